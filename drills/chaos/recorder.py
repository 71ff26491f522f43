"""Records when the commands and daemons of a chaos run begin, finish, and are gone.

There is one socket and one thread. A program that begins connects and waits for an answer. The thread reads
all pending events before it answers, so the record has the true order of an end and the beginning after it,
even if the thread is late.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from pathlib import Path
from typing import Any

from drills.chaos.checker import Run
from kolla_mesos_start.loop import now

NEVER = float("inf")


class Line:
    """A connection, and the run at its other end, once that has begun."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.leader: int = struct.unpack("3i", credentials)[0]
        self.run: Run | None = None
        self._heard = b""

    def words(self) -> list[dict[str, Any]] | None:
        """What has been said; None at the end."""
        try:
            data = self.connection.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Recorder:
    """`path`: where to connect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(100)
        self._wake, self._woken = os.pipe()
        self._lines: dict[int, Line] = {}
        self._all: list[Line] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        os.write(self._woken, b"\0")
        self._thread.join()
        for connection in (self._listener, *(line.connection for line in self._lines.values())):
            connection.close()
        os.close(self._wake)
        os.close(self._woken)

    @property
    def runs(self) -> list[Run]:
        """All so far; the end of those that live is never."""
        return [line.run for line in list(self._all) if line.run]

    def living(self, container: str) -> list[tuple[int, Run]]:
        """The runs in a container that have not ended, with the process that leads each."""
        lines = list(self._lines.values())
        return [(line.leader, line.run) for line in lines if line.run and line.run.container == container]

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        while True:
            begins: list[tuple[Line, dict[str, Any]]] = []
            come = poller.poll()
            while come:
                for fd, _ in come:
                    if fd == self._wake:
                        return
                    if fd == self._listener.fileno():
                        connection = self._listener.accept()[0]
                        self._lines[connection.fileno()] = Line(connection)
                        poller.register(connection, select.POLLIN)
                    else:
                        begins += self._hear(poller, self._lines[fd])
                come = poller.poll(0)
            for line, word in begins:
                self._begin(line, word)

    def _hear(self, poller: select.poll, line: Line) -> list[tuple[Line, dict[str, Any]]]:
        words = line.words()
        if words is None:
            poller.unregister(line.connection)
            del self._lines[line.connection.fileno()]
            line.connection.close()
            if line.run:
                line.run = line.run._replace(end=now())
            return []
        for word in words:
            if word["word"] == "done" and line.run:
                line.run = line.run._replace(done=now())
        return [(line, word) for word in words if word["word"] == "begin"]

    def _begin(self, line: Line, word: dict[str, Any]) -> None:
        if line.connection.fileno() < 0:
            return  # Killed before it could do anything.
        del word["word"]
        line.run = Run(begin=now(), end=NEVER, **word)
        self._all.append(line)
        try:
            line.connection.sendall(b"\0")
        except (BrokenPipeError, ConnectionResetError):
            return  # Its end will be heard of.
