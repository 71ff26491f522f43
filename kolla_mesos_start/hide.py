"""Hide the memory of this process, which holds the credential for ZooKeeper."""

from __future__ import annotations

PR_SET_DUMPABLE = 4


def hide_memory() -> bool:
    """Make this process not dumpable (prctl(2)): of other processes only root's may read or trace it.

    That is so until it executes another program. Its own files in /proc belong to root then. False where it
    can't be done: a Python may have been built without libffi.
    """
    try:
        # Not ctypes around it, which takes up to 2 MB of each registrar, and 10 ms of each start.
        import _ctypes
    except ImportError:
        return False
    this_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(this_program, "prctl")
    return bool(_ctypes.call_function(prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0)
