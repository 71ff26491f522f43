"""What a ZooKeeper server sends, as bytes."""

from __future__ import annotations

import struct

STAT = struct.pack("!qqqqiiiqiiq", *range(11))


def text(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def result(kind: int, body: bytes = b"", error: int = 0) -> bytes:
    """A part of the reply to a transaction."""
    return struct.pack("!iBi", kind, kind == -1 and error == -1, error) + body


END = result(-1, error=-1)
NAMES = struct.pack("!i", 2) + text(b"a") + text("\u00e9".encode())
CONNECTED = struct.pack("!iiq", 0, 10000, 0x1234) + text(b"p" * 16) + b"\0"


def framed(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body
