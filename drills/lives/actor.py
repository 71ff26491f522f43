"""The programs of a life: its daemon, and the commands around it. Each tells the driver what it does.

    python -I -S actor.py SOCKET daemon FILE KIND
    python -I -S actor.py SOCKET told FILE                  on_change
    python -I -S actor.py SOCKET NAME SECONDS STATUS        a check, before_stop

The connection of a daemon stays open in each of its processes: when the kernel closes it, all have ended.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

LINE = socket.socket(socket.AF_UNIX)


def say(*words: object) -> None:
    LINE.sendall(" ".join(map(str, words)).encode() + b"\n")


def content(path: str) -> str:
    with open(path) as file:
        return file.read().strip() or "-"


def daemon(path: str, kind: str) -> None:
    """Obeys TERM: at once (`obeys`), later (`slow`), never (`stubborn`), with a child that does not
    (`family`); or `ends` by itself. HUP: it reads its file again."""
    heard = {signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    output = [os.fstat(fd).st_ino for fd in (1, 2)]
    say("begin", os.getpid(), content(path), *output)
    if kind == "family" and os.fork() == 0:
        os.setsid()
        while True:
            signal.sigwait(heard)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    ends_at = time.monotonic() + 2.0
    while True:
        info = signal.sigtimedwait(heard, 0.5)
        if info is None:
            if kind == "ends" and time.monotonic() > ends_at:
                return
        elif info.si_signo == signal.SIGHUP:
            say("read", content(path))
        else:
            say("term", os.getpid())
            if kind == "slow":
                time.sleep(0.5)
            if kind != "stubborn":
                return


def main() -> None:
    where, name, *words = sys.argv[1:]
    LINE.connect(where)
    if name == "daemon":
        daemon(*words)
    elif name == "told":
        say("read", content(words[0]))
    else:
        say(name, "begun")
        time.sleep(float(words[0]))
        say(name, "ended")
        sys.exit(int(words[1]))


if __name__ == "__main__":
    main()
