"""The addresses of this network namespace, and its changes, from the kernel: rtnetlink(7)."""

from __future__ import annotations

import os
import socket
import struct

from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_DONE, _ERROR, _NEWADDR, _GETADDR = 3, 2, 20, 22  # types of messages
_REQUEST_DUMP = 0x301
_LOCAL_ATTRIBUTE, _ADDRESS, _LABEL, _FLAGS = 2, 1, 3, 8  # attributes of an address
_CHANGES = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # groups: links, and addresses and routes of IPv4 and IPv6

TEMPORARY, DAD_FAILED, DEPRECATED, TENTATIVE = 0x01, 0x08, 0x20, 0x40  # flags; for IPv4, 0x01 is "secondary"


class Address(NamedTuple):
    """An address of the interface with this number. `label` is the interface's name, or begins with it."""

    interface: int
    text: str
    is_ipv6: bool
    prefix: int
    flags: int
    label: str


def changes() -> socket.socket:
    """A socket that becomes readable whenever an interface, an address or a route changes."""
    found = _socket(_CHANGES)
    found.setblocking(False)
    return found


def addresses() -> Iterator[Address]:
    """All addresses, in the kernel's order."""
    with _socket(0) as kernel:
        kernel.send(struct.pack("=IHHIIBBBBI", 24, _GETADDR, _REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0))
        while True:
            messages = kernel.recv(1 << 17)
            while messages:
                length, kind = struct.unpack_from("=IH", messages)
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", messages, 16)[0]
                    raise OSError(number, os.strerror(number))
                if kind == _DONE:
                    return
                if kind == _NEWADDR:
                    yield _address(messages[16:length])
                messages = messages[_aligned(length) :]


def _socket(groups: int) -> socket.socket:
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    found.bind((0, groups))
    return found


def _address(message: bytes) -> Address:
    family, prefix, flags, _, index = struct.unpack_from("=BBBBI", message)
    attributes, rest = {}, message[8:]
    while rest:
        length, kind = struct.unpack_from("=HH", rest)
        attributes[kind] = rest[4:length]
        rest = rest[_aligned(length) :]
    packed = attributes.get(_LOCAL_ATTRIBUTE) or attributes[_ADDRESS]  # The other end's, if there is one.
    if _FLAGS in attributes:
        (flags,) = struct.unpack("=I", attributes[_FLAGS])
    label = attributes.get(_LABEL, b"").rstrip(b"\0").decode("utf-8", "replace")
    return Address(index, socket.inet_ntop(family, packed), family == socket.AF_INET6, prefix, flags, label)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
