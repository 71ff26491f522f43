"""The floor of a chain: COUNT bare sessions, of which those of a level are told at the same moment.

    python levels.py HOSTS PATH LEVELS COUNT TIMEOUT

Each watches PATH/<its level>, one of LEVELS, in a session of TIMEOUT seconds, and reads it again when it
has changed; where it finds `go` it makes an ephemeral. Says `standing` once all watch; then, each time
when all of a level have done that, the moment of the last one in JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

from kazoo.protocol.serialization import Connect, Create, GetData, ReplyHeader, int_struct
from kazoo.security import OPEN_ACL_UNSAFE

WATCH_XID, EPHEMERAL = -1, 1

hosts, path, levels, count, timeout = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
signal.alarm(900)  # to end with, where something goes wrong


class Bare:
    """One session."""

    def __init__(self, number: int) -> None:
        host, port = hosts.split(":")
        self.level, self.xid, self.inbox, self.shown = number % levels, 0, b"", False
        self.path = f"{path}/{self.level}"
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(b"", Connect(0, 0, timeout * 1000, 0, b"\0" * 16, False))
        self.receive()
        self.ask(GetData(self.path, True))
        self.receive()

    def ask(self, operation: object) -> None:
        self.xid += 1
        self.send(int_struct.pack(self.xid) + int_struct.pack(operation.type), operation)  # type: ignore[attr-defined]

    def send(self, header: bytes, operation: object) -> None:
        payload = header + bytes(operation.serialize())  # type: ignore[attr-defined]
        self.socket.sendall(int_struct.pack(len(payload)) + payload)

    def receive(self) -> list[bytes]:
        """The packets that have come; at least one, if a part of it has."""
        packets: list[bytes] = []
        while not packets or self.inbox:
            self.inbox += self.socket.recv(65536)
            while len(self.inbox) >= 4 and len(self.inbox) >= 4 + int_struct.unpack_from(self.inbox)[0]:
                end = 4 + int_struct.unpack_from(self.inbox)[0]
                packets.append(self.inbox[4:end])
                self.inbox = self.inbox[end:]
        return packets

    def answer(self) -> bool:
        """Do what follows from what has come; true once there is nothing more to do."""
        done = False
        for packet in self.receive():
            header, offset = ReplyHeader.deserialize(packet, 0)
            if header.xid == WATCH_XID:
                self.ask(GetData(self.path, True))
            elif not self.shown and GetData.deserialize(packet, offset)[0] == b"go":
                self.shown = True
                self.ask(Create(f"{self.path}/{os.getpid()}-{id(self)}", b"", OPEN_ACL_UNSAFE, EPHEMERAL))
            else:
                done = True
        return done


sessions = {bare.socket.fileno(): bare for bare in map(Bare, range(count))}
poller = select.epoll()
for fd in sessions:
    poller.register(fd, select.EPOLLIN)
print("standing", flush=True)
missing = [sum(bare.level == level for bare in sessions.values()) for level in range(levels)]
left = list(missing)
while True:
    for fd, _ in poller.poll():
        bare = sessions[fd]
        if bare.answer():
            left[bare.level] -= 1
            if not left[bare.level]:
                left[bare.level] = missing[bare.level]
                print(json.dumps(time.time()), flush=True)
