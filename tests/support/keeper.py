"""Runs one process for a test, which is nobody's child there, and ends it when the test process ends.

    python keeper.py LOG ARGUMENT...

Tests of the agent's own process handling run in the test process: they count its children, and
end all of them. So a server that outlives one test must not be one. This process leaves its
parent, starts the command, writes its process id to the standard output, and ends with it. At the
end of its standard input, which is when whoever started it is gone, it kills the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def keep(log: str, argv: list[str]) -> None:
    """Start the command and stay until it has ended."""
    with open(log, "ab") as output:
        # A keeper that is killed takes the command along.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    print(process.pid, flush=True)
    threading.Thread(target=end_with_the_test, args=(process,), daemon=True).start()
    process.wait()
    os._exit(0)


def end_with_the_test(process: subprocess.Popen[bytes]) -> None:
    """Kill the command at the end of the standard input."""
    sys.stdin.read()
    process.kill()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    keep(sys.argv[1], sys.argv[2:])
