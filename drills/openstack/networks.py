"""Hosts with their own addresses: network namespaces, connected by a switch, each with an interface `eth0`.

Creates them, starts processes in them, and connects them to ZooKeeper only. Needs root.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.tcp_proxy import carry

CLONE_NEWNET = 0x40000000
SWITCH = "switch"
MASK = 24
LIBC = ctypes.CDLL(None, use_errno=True)


class Network:
    """The hosts of `addresses`, by name; `prefix` is that of the namespaces' names."""

    def __init__(self, prefix: str, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self._prefix = prefix
        self._made: list[str] = []
        self._relays: list[_Relay] = []

    def __enter__(self) -> Network:
        self._add(SWITCH)
        self._ip(SWITCH, "link", "add", SWITCH, "type", "bridge")
        self._ip(SWITCH, "link", "set", SWITCH, "up")
        for host, address in self.addresses.items():
            self._add(host)
            peer = self._name(host)
            self._ip(SWITCH, *f"link add {host} type veth peer name eth0 netns {peer}".split())
            self._ip(SWITCH, *f"link set {host} master {SWITCH} up".split())
            self._ip(host, *f"addr add {address}/{MASK} dev eth0".split())
            self._ip(host, *["link", "set", "eth0", "up"])
        return self

    def __exit__(self, *exc: object) -> None:
        for relay in self._relays:
            relay.close()
        for name in self._made:
            subprocess.run(("ip", "netns", "del", name), check=True)

    def unplug(self, host: str) -> None:
        """Nothing comes from this host any more, and nothing reaches it."""
        self._ip(SWITCH, "link", "set", host, "down")

    def plug(self, host: str) -> None:
        """Take back `unplug`."""
        self._ip(SWITCH, "link", "set", host, "up")

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Meanwhile what this thread starts, and the sockets that it makes, are in the host's network."""
        with Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net").open() as ours:
            with Path(f"/run/netns/{self._name(host)}").open() as theirs:
                _enter(theirs.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())

    def relay(self, host: str, port: int) -> None:
        """A port of the host's address leads to the same port of our own loopback interface."""
        with self.inside(host):
            listening = socket.create_server((self.addresses[host], port))
        self._relays.append(_Relay(listening, port))

    def _add(self, host: str) -> None:
        name = self._name(host)
        with suppress(subprocess.CalledProcessError):  # Left by a run that was killed.
            subprocess.run(("ip", "netns", "del", name), check=True, stderr=subprocess.DEVNULL)
        subprocess.run(("ip", "netns", "add", name), check=True)
        self._made.append(name)
        self._ip(host, "link", "set", "lo", "up")

    def _ip(self, host: str, *words: str) -> None:
        subprocess.run(("ip", "-n", self._name(host), *words), check=True)

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"


class _Relay:
    """Carries connections in a thread of its own."""

    def __init__(self, listening: socket.socket, target: int) -> None:
        self._loop = asyncio.new_event_loop()
        starting = asyncio.start_server(partial(_carry, target), sock=listening)
        self._server = self._loop.run_until_complete(starting)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.run_until_complete(self._cancel(asyncio.all_tasks(self._loop)))
        self._loop.close()

    async def _cancel(self, carrying: Iterable[asyncio.Task[Any]]) -> None:
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


async def _carry(target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.CancelledError):  # Of a handler that was cancelled asyncio prints a traceback.
        await carry(reader, writer, target=target)


def _enter(descriptor: int) -> None:
    if LIBC.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
