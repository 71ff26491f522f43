"""A guard without an agent, for tests: they send messages over its socketpair and read its output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import psutil

from kolla_mesos_start.commands import guard, guard_client

# Starts a guard that waits for the end of killed processes: on a busy machine it may take longer than
# LATE_TIMEOUT, and they would be reported as unkillable.
PATIENT_BOOT = (
    "import sys; sys.path.append(sys.argv[3]); from kolla_mesos_start.commands import guard; "
    "guard.LATE_TIMEOUT = guard.KILL_TIMEOUT; guard.main(int(sys.argv[1]))"
)

HANDSHAKE_TIMEOUT = 60.0
PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

# Programs for /bin/sh. Each one prints its own pid and those of the processes that it starts.
SLEEP = "echo $$; exec sleep 1000"
# All processes of a tree run once it has printed so many pids; a test then expects that all of them end.
TREES = {
    "a leader": ("echo $$; sleep 1000; true", 1),
    "in the group": ("sleep 1000 & echo $! $$; wait", 2),
    "setsid": ("setsid sleep 1000 & echo $! $$; wait", 2),
    "double fork": ("(sleep 1000 & echo $!); echo $$; sleep 1000; true", 2),
    "double fork and setsid": ("(setsid sleep 1000 & echo $!); echo $$; sleep 1000; true", 2),
    "sessions in sessions": (
        "echo $$; setsid sh -c 'echo $$; setsid sh -c \"echo \\$\\$; exec sleep 9\"'; wait",
        3,
    ),
    "stopped": ("sleep 1000 & echo $! $$; kill -STOP $!; kill -STOP $$", 2),
    "ignoring signals": ("trap '' TERM INT HUP; setsid sleep 1000 & echo $! $$; sleep 1000; true", 2),
}


class Report(NamedTuple):
    """The guard's message that a command has ended."""

    status: int | None
    reason: str
    errno: int | None
    at: str | None
    unkillable: bool


def read_output(output: int, text: bytes, until: Callable[[bytes], object]) -> bytes:
    """`text` and what follows it, when `until` is true of it, or when no process can write any more."""
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    while not until(text):
        assert select.select([output], [], [], deadline - time.monotonic())[0], text
        data = os.read(output, 65536)
        if not data:
            break
        text += data
    return text


class BareGuard:
    """A guard whose agent is this test. At the end of `with` it and its commands must have ended."""

    def __init__(
        self, *, preexec: Callable[[], None] | None = None, fork: bool = False, leak: int | None = None
    ) -> None:
        """`fork`: no exec, for a `preexec` after which none is possible; `leak`: a descriptor to inherit."""
        self.socket, theirs = socket.socketpair()
        self.output, stdout = os.pipe()
        self.text = b""
        with theirs:
            self.pid = (_forked if fork else _started)(theirs.fileno(), stdout, preexec, leak)
        os.close(stdout)
        self.buffer = bytearray()
        self.messages: list[tuple[Any, ...]] = []
        self.exit_status: int | None = None

    def send(self, *message: Any) -> None:
        self.socket.sendall(guard.frame(message))

    def spawn(
        self,
        *argv: str | bytes,
        env: dict[str, str] = PATH,
        ids: tuple[int, int, list[int]] | None = None,
        deadline: float | None = None,
        stop_grace: float = 30.0,
    ) -> None:
        arguments = [os.fsencode(word) for word in argv]
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        self.send("spawn", arguments, variables, ids, None, deadline, stop_grace)

    def sh(self, script: str, **more: Any) -> None:
        self.spawn("/bin/sh", "-c", script, **more)

    def start_tree(self, tree: str, **more: Any) -> list[int]:
        """Start one of TREES; returns its pids when all its processes run."""
        script, count = TREES[tree]
        self.sh(script, **more)
        return self.pids(count)

    def receive(self) -> tuple[Any, ...]:
        """The next message of the guard."""
        self.socket.settimeout(HANDSHAKE_TIMEOUT)
        while not self.messages:
            data = self.socket.recv(65536)
            assert data, "the guard has ended"
            self.buffer += data
            self.messages += guard.unframe(self.buffer)
        return self.messages.pop(0)

    def ended(self) -> Report:
        """The next report that a command has ended; other messages are dropped."""
        while True:
            verb, *values = self.receive()
            if verb == "ended":
                return Report(*values)

    def is_silent(self) -> bool:
        """Whether no message waits to be read."""
        return not self.messages and not select.select([self.socket], [], [], 0)[0]

    def read(self, until: Callable[[bytes], object] = lambda text: False) -> bytes:
        """The standard output so far, when `until` is true of it, or when no process can write any more."""
        self.text = read_output(self.output, self.text, until)
        return self.text

    def pids(self, count: int) -> list[int]:
        """The first `count` pids that the command prints."""
        text = self.read(lambda text: len(text[: text.rfind(b"\n") + 1].split()) >= count)
        return [int(word) for word in text.split()]

    def close(self) -> None:
        """Close the socket, as when the agent is killed."""
        self.socket.close()

    def wait(self) -> int:
        """The guard's wait status, after it has ended."""
        if self.exit_status is None:
            deadline = time.monotonic() + HANDSHAKE_TIMEOUT
            while (found := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
                assert time.monotonic() < deadline, "the guard does not end"
                time.sleep(0.005)
            self.exit_status = found[1]
        return self.exit_status

    def __enter__(self) -> BareGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
            if error is None:
                assert self.wait() == 0
                self.read()  # Up to end of file: no process has the output open any more.
        finally:
            if self.exit_status is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            os.close(self.output)


def _started(fd: int, stdout: int, preexec: Callable[[], None] | None, leak: int | None) -> int:
    kept = (fd,) if leak is None else (fd, leak)
    argv = guard_client.command_line(fd, "shop/api")
    process = subprocess.Popen(
        [PATIENT_BOOT if word == guard_client.BOOT else word for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        pass_fds=kept,
        preexec_fn=preexec,
        restore_signals=False,
    )
    process.returncode = 0  # `wait` above reads its status.
    return process.pid


def _forked(fd: int, stdout: int, preexec: Callable[[], None] | None, leak: int | None) -> int:
    import _ctypes  # noqa: F401 (`preexec` may take the right to read it away)

    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(stdout, 1)
            with open(os.devnull, "rb") as null:
                os.dup2(null.fileno(), 0)
            if preexec:
                preexec()
            guard.serve(fd)
        finally:
            os._exit(0)
    return pid


def guard_of(agent: int) -> psutil.Process:
    """The guard process of an agent."""
    (found,) = (
        each for each in psutil.Process(agent).children() if guard.__name__ in " ".join(each.cmdline())
    )
    return found


def lives(pid: int) -> bool:
    """Whether the process exists; true for a zombie too."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def state(pid: int) -> str:
    """R, S, D, T or Z, as in ps; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
