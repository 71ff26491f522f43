"""Connections made without blocking: a name resolved, a socket connected, TLS agreed on.

What lives here: steps for a loop of one thread. Each function is a generator that yields what it
waits for (a descriptor, and the events of poll()) and returns what it was asked for; it raises
OSError, or ValueError for a name that can't be one. Time limits are the caller's: closing the
generator closes whatever it had open.
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
    from collections.abc import Generator, Iterable
    from typing import Any, TypeVar

    from kolla_mesos_start.loop import Interest

    T = TypeVar("T")
    Steps = Generator[tuple[int, int], None, T]
    Address = tuple[int, Any]  # the family, and what connect() needs


def look_up(name: bytes, port: int) -> Steps[list[Any]]:
    """What getaddrinfo says of a name; it blocks for half a minute if the name server is away.

    It runs in a child process: a thread must not be there when another part of the agent forks.
    """
    reader, writer = os.pipe()
    try:
        try:
            child = fork(partial(_look_up_as_child, name, port, writer))
        finally:
            os.close(writer)
    except OSError:  # No more processes for now: it is tried again, with the connection.
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
    # The open files belong to the agent. While they are open here, others do not see that it has ended.
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
    # On SIGCHLD every child is reaped: then it is gone already.
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def in_ascii(host: str) -> bytes:
    """The name of a host as name servers and certificates have it.

    Give it to Python as these bytes: for text it loads the tables of all of Unicode, a megabyte.
    """
    return host.encode("ascii" if host.isascii() else "idna")


def resolve(host: str, port: int) -> Steps[list[Address]]:
    """The addresses of a host, in random order: one that is dead must not stand first for ever."""
    name = in_ascii(host)
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = yield from look_up(name, port)
    found.sort(key=lambda address: os.urandom(8))
    return [(family, address) for family, _, _, _, address in found]


def connect(address: Address) -> Steps[socket.socket]:
    """A connected socket that doesn't block."""
    connection = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        error = connection.connect_ex(address[1])
        if error == errno.EINPROGRESS:
            yield connection.fileno(), select.POLLOUT
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        # Trying a local port again and again where nobody listens, a socket can be given that very
        # port as its own, and is then connected with itself.
        if connection.getsockname() == connection.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_any(addresses: Iterable[Address]) -> Steps[socket.socket]:
    """A connection to the first of the addresses that takes it."""
    refused: OSError | None = None
    for address in addresses:
        try:
            return (yield from connect(address))
        except OSError as error:
            refused = error
    raise refused or OSError(errno.EHOSTUNREACH, "the name has no address")


def agree_on_tls(connection: socket.socket, context: ssl.SSLContext, host: str) -> Steps[socket.socket]:
    """The same connection under TLS. It is closed if that fails."""
    import ssl

    try:
        name = in_ascii(host)
        wrapped = context.wrap_socket(connection, server_hostname=name, do_handshake_on_connect=False)
    except BaseException:
        connection.close()
        raise
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                yield wrapped.fileno(), select.POLLIN
            except ssl.SSLWantWriteError:
                yield wrapped.fileno(), select.POLLOUT
    except BaseException:
        wrapped.close()
        raise


def would_block(error: OSError) -> bool:
    """Whether a socket, under TLS or not, only asks for timeout."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )


class Task:
    """Steps that wait for their turn in the loop; they begin with the first `run(True)`.

    `deadline` (see `loop.now`) may be moved while they are under way.
    """

    def __init__(self, steps: Steps[Any], deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.interest: Interest = None
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self._steps = steps

    def run(self, ready: bool) -> None:
        """Go on if `interest` has come (`ready`); at the deadline end with TimeoutError."""
        if ready:
            self._resume()
        elif now() >= self.deadline:
            self.close(TimeoutError(errno.ETIMEDOUT, NO_ANSWER))

    def close(self, error: OSError | None = None) -> None:
        """Give up: everything that the steps had open is closed."""
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
