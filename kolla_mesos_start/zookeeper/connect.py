"""Connections made without blocking: a name resolved, a socket connected, TLS agreed on.

What lives here: steps for a loop of one thread. Each function is a generator that yields what it
waits for (a descriptor, and the events of poll()) and returns what it was asked for; it raises
OSError, or ValueError for a name that can't be one. Time limits are the caller's: closing the
generator closes whatever it had open.
"""

from __future__ import annotations

import errno
import math
import os
import random
import select
import socket
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Callable, TypeVar

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
Wait = tuple[int, int]
Steps = Generator[Wait, None, T]
Address = tuple[int, Any]  # the family, and what connect() wants


def aside(work: Callable[[], T]) -> Steps[T]:
    """The result of `work`, which blocks and knows no other way: it runs in a thread of its own."""
    import threading

    results: list[T] = []
    errors: list[OSError] = []
    reader, writer = os.pipe()

    def run() -> None:
        try:
            results.append(work())
        except OSError as error:
            errors.append(error)
        finally:
            os.close(writer)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:
        os.close(writer)
        os.close(reader)
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    try:
        yield reader, select.POLLIN
    finally:
        os.close(reader)
    if not results:
        raise errors[0] if errors else OSError(errno.EIO, "a thread ended without a result")
    return results[0]


def resolve(host: str, port: int) -> Steps[list[Address]]:
    """The addresses of a host, in random order: one that is dead must not stand first for ever."""
    # As bytes: for text Python loads the tables of all of Unicode, a megabyte.
    name = host.encode("ascii" if host.isascii() else "idna")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        # A name server that is away keeps getaddrinfo busy for half a minute.
        found = yield from aside(lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
    random.shuffle(found)
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
        wrapped = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
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
    """Steps that wait for their turn in the loop; they begin with the first `turn(now, True)`.

    `deadline` (see `loop.now`) may be moved while they are under way.
    """

    def __init__(self, steps: Steps[Any], deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.wait: Wait | None = None
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self._steps = steps

    def turn(self, now: float, ready: bool) -> None:
        """Go on if what is waited for is `ready`; at the deadline end with TimeoutError."""
        if ready:
            self._resume()
        elif now >= self.deadline:
            self.close(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def close(self, error: OSError | None = None) -> None:
        """Give up: whatever the steps had open is closed."""
        self._steps.close()
        self._end(error)

    def _resume(self) -> None:
        try:
            self.wait = next(self._steps)
        except StopIteration as stop:
            self.result = stop.value
            self._end(None)
        except (OSError, ValueError) as error:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.error, self.ended, self.wait = error, True, None
