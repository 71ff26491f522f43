"""Connects without blocking: resolves a name, connects a socket, negotiates TLS.

Each function is a generator for a single-threaded loop: it yields the descriptor and poll() events that it
waits for, and returns its result. It raises OSError, or ValueError for an invalid name. The caller sets time
limits: closing the generator closes everything that it has opened.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import math
import os
import select
import signal
import socket
from functools import partial

from kolla_mesos_start.errors import NO_ANSWER
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Iterable
    from typing import Any, TypeVar

    from kolla_mesos_start.loop import Interest

    T = TypeVar("T")
    Steps = Generator[tuple[int, int], None, T]
    Address = tuple[int, Any]  # the family, and what connect() needs
    Wrap = Callable[[socket.socket], socket.socket]


def look_up(name: bytes, port: int) -> Steps[list[Any]]:
    """The result of getaddrinfo, which may block for half a minute if the name server does not answer.

    It runs in a child process: there must be no thread when another part of the agent forks.
    """
    reader, writer = os.pipe()
    try:
        try:
            child = fork(partial(_look_up_as_child, name, port, writer))
        finally:
            os.close(writer)
    except OSError:  # The process limit is reached. The session tries to connect again.
        os.close(reader)
        raise
    try:
        os.set_blocking(reader, False)
        heard = b""
        while True:
            yield reader, select.POLLIN
            part = os.read(reader, 65536)
            if not part:
                break
            heard += part
    finally:
        os.close(reader)
        _end_child(child)
    found, reason = marshal.loads(heard) if heard else (None, "the look-up ended without a result")
    if found is None:
        raise OSError(errno.EHOSTUNREACH, f"the name {name.decode()} can't be resolved: {reason}")
    return list(found)


def _look_up_as_child(name: bytes, port: int, writer: int) -> None:
    # These files are the agent's. While they are open here, others do not notice its end.
    os.closerange(0, writer)
    os.closerange(writer + 1, 1 << 16)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        plain = [(int(family), int(kind), number, "", address) for family, kind, number, _, address in found]
        os.write(writer, marshal.dumps((plain, "")))
    except OSError as error:
        os.write(writer, marshal.dumps((None, error.strerror or str(error))))


def _end_child(child: int) -> None:
    # The loop may have reaped it on SIGCHLD.
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def in_ascii(host: str) -> bytes:
    """The name of a host in the form of DNS and certificates.

    As bytes: for text, Python would load its Unicode tables, a megabyte.
    """
    return host.encode("ascii" if host.isascii() else "idna")


def resolve(host: str, port: int) -> Steps[list[Address]]:
    """The addresses of a host, in random order: a dead one must not always be first."""
    name = in_ascii(host)
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = yield from look_up(name, port)
    found.sort(key=lambda address: os.urandom(8))
    return [(family, address) for family, _, _, _, address in found]


def connect(address: Address, wrap: Wrap | None = None) -> Steps[socket.socket]:
    """A connected socket that doesn't block, as it is or wrapped for TLS."""
    connection = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        if wrap:
            # Not once it is connected: if the server has reset it by then, Python would leave it open.
            connection = wrap(connection)
        error = connection.connect_ex(address[1])
        if error == errno.EINPROGRESS:
            yield connection.fileno(), select.POLLOUT
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        # A socket that connects to an unused local port can get that port as its own, and be connected with
        # itself.
        if connection.getsockname() == connection.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_any(addresses: Iterable[Address], wrap: Wrap | None = None) -> Steps[socket.socket]:
    """A connection to the first of the addresses that accepts it."""
    refused: OSError | None = None
    for address in addresses:
        try:
            return (yield from connect(address, wrap))
        except OSError as error:
            refused = error
    raise refused or OSError(errno.EHOSTUNREACH, "the name has no address")


def connect_with_tls(
    addresses: Iterable[Address], context: ssl.SSLContext, host: str
) -> Steps[socket.socket]:
    """A connection with TLS to the first of the addresses that accepts a connection."""
    import ssl

    name = in_ascii(host.removesuffix("."))  # Certificates have no absolute names.
    wrap = partial(context.wrap_socket, server_hostname=name, do_handshake_on_connect=False)
    connection: Any = yield from connect_any(addresses, wrap)
    # Otherwise a handshake with a server that has closed the connection fails before its alert is read.
    connection._connected = True
    try:
        while True:
            try:
                connection.do_handshake()
                return connection  # type: ignore[no-any-return]
            except ssl.SSLWantReadError:
                yield connection.fileno(), select.POLLIN
            except ssl.SSLWantWriteError:
                yield connection.fileno(), select.POLLOUT
    except BaseException:
        connection.close()
        raise


def would_block(error: OSError) -> bool:
    """Whether a socket, with TLS or without, would block."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )


class Task:
    """Runs steps in the loop, beginning with the first `run(True)`.

    `deadline` (see `loop.now`) may be changed while they run.
    """

    def __init__(self, steps: Steps[Any], deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.interest: Interest = None
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self._steps = steps

    def run(self, ready: bool) -> None:
        """Continue if the events of `interest` have come (`ready`); end with TimeoutError at the deadline."""
        if ready:
            self._resume()
        elif now() >= self.deadline:
            self.close(TimeoutError(errno.ETIMEDOUT, NO_ANSWER))

    def close(self, error: OSError | None = None) -> None:
        """End early, and close everything that the steps have opened."""
        self._steps.close()
        self._end(error)

    def _resume(self) -> None:
        try:
            self.interest = next(self._steps)
        except StopIteration as stop:
            self.result = stop.value
            self._end(None)
        except (OSError, ValueError) as error:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.error, self.ended, self.interest = error, True, None
