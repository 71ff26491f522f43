"""Something outside of the deployment: a server on the loopback interface that behaves as a test wants."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

from tests.support.zookeeper import HOST, free_port

SILENT, RESET = b"", b"reset"
OK, BROKEN = b"HTTP/1.1 200 OK\r\n\r\nfine", b"HTTP/1.1 500 Oops\r\n\r\n"


class Peer:
    """Listens once it is started. `answer` is what each connection gets once it has sent something: bytes,
    SILENT (nothing, and the connection stays) or RESET.

    `asked` are the instants of connections (seconds since the epoch), `open` how many there are.
    """

    def __init__(self, answer: bytes = SILENT) -> None:
        self.answer = answer
        self.asked: list[float] = []
        self.open = 0
        self.port = free_port()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None

    @property
    def tcp(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.tcp}/secret?token=secret"

    def start(self) -> Peer:
        self._listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # It wakes the thread that accepts.
            self._listener.close()
            self._listener = None

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.asked.append(time.time())
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with self._lock:
            self.open += 1
        with suppress(OSError), connection:
            if self.answer == RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                if connection.recv(65536) and self.answer:
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        with self._lock:
            self.open -= 1
