"""Clients that insert rows, and remember each row that was acknowledged."""

from __future__ import annotations

import random
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.examples.openstack import SYSTEM_PATH

TABLE = "drill.rows"
CREATE = f"""
CREATE DATABASE IF NOT EXISTS drill;
CREATE TABLE IF NOT EXISTS {TABLE} (writer INT, number INT, v VARCHAR(200), PRIMARY KEY (writer, number));
"""
ANSWER_TIMEOUT = 15.0  # seconds; after kill -9 of a member, commits pause for 6 s
PAUSE = 0.004  # seconds between two inserts


class Writer(threading.Thread):
    """One client. It stays with a host until an insert fails, and then takes another one."""

    def __init__(self, number: int, sockets: Mapping[str, Path], seed: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.number, self.sockets, self._dice = number, sockets, random.Random(f"{seed} {number}")
        self.acknowledged: set[int] = set()
        self.tried = 0
        self.hosts: list[str] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            host = self._dice.choice(sorted(self.sockets))
            self.hosts.append(host)
            self._write(self.address(host))
            self._over.wait(0.1)

    def address(self, host: str) -> Sequence[str]:
        """How the client reaches a host, as its arguments."""
        return (f"--socket={self.sockets[host]}",)

    def _write(self, address: Sequence[str]) -> None:
        """Insert until something fails. The client ends at the first error."""
        command = ("mariadb", *address, "--batch", "--skip-column-names", "--unbuffered")
        with (
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": SYSTEM_PATH},
                bufsize=0,
            ) as client,
            selectors.DefaultSelector() as selector,
        ):
            assert client.stdin is not None and client.stdout is not None
            selector.register(client.stdout, selectors.EVENT_READ)
            try:
                while not self._over.is_set() and self._insert(client, selector):
                    time.sleep(PAUSE)
            except BrokenPipeError:
                pass
            finally:
                client.kill()

    def _insert(self, client: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> bool:
        """One row; whether it was acknowledged."""
        assert client.stdin is not None and client.stdout is not None
        self.tried += 1
        number = self.tried
        text = f"INSERT INTO {TABLE} VALUES ({self.number}, {number}, REPEAT('x', 150)); SELECT {number};\n"
        client.stdin.write(text.encode())
        if not selector.select(ANSWER_TIMEOUT) or client.stdout.read(64) != f"{number}\n".encode():
            return False
        self.acknowledged.add(number)
        return True

    def stop(self) -> None:
        self._over.set()
        self.join()
