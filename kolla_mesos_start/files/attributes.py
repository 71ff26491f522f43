"""Keeps the extended attributes of a file that is replaced: its ACL, its SELinux context, and others.

Only imported if there was a file before.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress

from kolla_mesos_start.files.paths import strerror
from kolla_mesos_start.log import Logger

log = Logger(__name__)

ACL = "system.posix_acl_access"
# They give rights to, or are a checksum of, the old content.
OF_CONTENT = ("security.capability", "security.ima", "security.evm")
OWNER, GROUP, MASK, OTHER = 0x01, 0x04, 0x10, 0x20  # tags of the entries of an ACL


def keep(old: int, new: int, mode: int, dest: str) -> None:
    """Copy the attributes to the empty file `new`, which will have `mode`.

    A file system without attributes, or without the right to set one, is no error.
    """
    is_same_mode = stat.S_IMODE(os.fstat(old).st_mode) == mode
    there = _all(old)
    for name, value in there.items():
        if name == ACL:
            value = _with_mode(value, mode)
        elif name.startswith("system.") and not is_same_mode:
            continue  # Another kind of ACL could let more users read the file than `mode` does.
        _set(new, name, value, dest)
    if ACL not in there and ACL in _all(new):
        with suppress(OSError):
            os.removexattr(new, ACL)  # The directory's default ACL.


def _all(fd: int) -> dict[str, bytes]:
    found = {}
    with suppress(OSError):  # This file system has none.
        for name in os.listxattr(fd):
            with suppress(OSError):  # We may not read it.
                found[name] = os.getxattr(fd, name)
    return {name: value for name, value in found.items() if name not in OF_CONTENT}


def _set(fd: int, name: str, value: bytes, dest: str) -> None:
    try:
        try:
            if os.getxattr(fd, name) == value:
                return
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
        os.setxattr(fd, name, value)
    except OSError as error:
        log.warning("%s: its attribute %s can't be kept: %s", dest, name, strerror(error))


def _with_mode(acl: bytes, mode: int) -> bytes:
    """The ACL as chmod would change it: setting it never lets anybody read more than `mode` does."""
    entries = list(struct.iter_unpack("<HHI", acl[4:]))
    group = MASK if any(tag == MASK for tag, _, _ in entries) else GROUP
    bits = {OWNER: mode >> 6 & 7, group: mode >> 3 & 7, OTHER: mode & 7}
    return acl[:4] + b"".join(struct.pack("<HHI", tag, bits.get(tag, was), who) for tag, was, who in entries)
