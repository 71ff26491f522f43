"""Launch a program in which one system call fails with EPERM, as an old seccomp profile makes it.

python refused_calls.py CALL PROGRAM...
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"pidfd_open": 434, "memfd_create": 319 if platform.machine() == "x86_64" else 279}
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE_EPERM = 0x7FFF0000, 0x00050001


def refuse(number: int) -> None:
    """From now on, in this process and its children."""
    steps = (
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, number),
        (RETURN, 0, 0, REFUSE_EPERM),
        (RETURN, 0, 0, ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    assert prctl(PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) == 0
    assert prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0


if __name__ == "__main__":
    refuse(NUMBERS[sys.argv[1]])
    os.execvp(sys.argv[2], sys.argv[2:])
