"""Launch a program in which a system call fails: with EPERM, as an old seccomp profile makes it, or an errno.

python refused_calls.py CALL[:ERRNO] PROGRAM...
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

# Each with the calls that the C library may make instead.
NUMBERS = {
    "x86_64": {
        **{"pidfd_open": (434,), "memfd_create": (319,), "clone": (56, 57, 58, 435), "pipe": (22, 293)},
        **{"socketpair": (53,), "rename": (82, 264, 316), "fsync": (74,), "fchown": (93,), "fchmod": (91,)},
        **{"flock": (73,), "mkdir": (83, 258), "unlink": (87, 263), "listen": (50,), "execve": (59,)},
    },
    "aarch64": {
        **{"pidfd_open": (434,), "memfd_create": (279,), "clone": (220, 435), "pipe": (59,)},
        **{"socketpair": (199,), "rename": (38, 276), "fsync": (82,), "fchown": (55,), "fchmod": (52,)},
        **{"flock": (32,), "mkdir": (34,), "unlink": (35,), "listen": (201,), "execve": (221,)},
    },
}[platform.machine()]
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


def refuse(numbers: Sequence[int], cause: int) -> None:
    """From now on, in this process and its children."""
    steps = [(LOAD, 0, 0, 0)]
    for number in numbers:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | cause)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    assert prctl(PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) == 0
    assert prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0


if __name__ == "__main__":
    call, _, cause = sys.argv[1].partition(":")
    refuse(NUMBERS[call], getattr(errno, cause or "EPERM"))
    os.execvp(sys.argv[2], sys.argv[2:])
