"""Runs the operator's tool in a fork of a process that has imported it already.

A new process spends most of its time on imports. The fork has its own arguments, environment, directory and
standard streams, as if it had been started. One process, in a session of its own, makes all forks of a test
process, and ends with it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from select import select

from tests import CHECKOUT

# What a process reads at its start: the locale, options of Python and of OpenSSL.
OF_THE_PROCESS = ("PYTHON", "LC_", "LANG", "OPENSSL_")
LARGEST_INPUT = 60_000  # bytes: a pipe holds that much


class Forks:
    """The process that forks, as its client sees it. It is started when it is first needed."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def run(
        self, program: Path, words: Sequence[str | Path], env: Mapping[str, str], given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Like `subprocess.run`, with its output as bytes."""
        argv = [str(program), *map(str, words)]
        request = json.dumps({"argv": argv, "env": dict(env), "cwd": os.getcwd()}).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            stdin, give = os.pipe()
            heard, report = os.pipe()
            os.write(give, given)
            os.close(give)
            try:
                self._send(request, [stdin, out.fileno(), err.fileno(), report])
            finally:
                os.close(stdin)
                os.close(report)
            status = _status(heard, timeout, argv)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(argv, status, out.read(), err.read())

    def _send(self, request: bytes, fds: list[int]) -> None:
        if self._control is not None:
            with suppress(ConnectionError, BrokenPipeError):
                socket.send_fds(self._control, [request], fds)
                return
            self._control.close()
        self._control = _start()
        socket.send_fds(self._control, [request], fds)


FORKS = Forks()


def can_fork(env: Mapping[str, str], given: bytes) -> bool:
    """Whether a fork would behave as a tool that is started with this environment and input."""
    return len(given) <= LARGEST_INPUT and not any(name.startswith(OF_THE_PROCESS) for name in env)


def _start() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        umask=0o022,
    )
    theirs.close()
    atexit.register(_end, ours, process)
    return ours


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.wait(10)


def _status(heard: int, timeout: float, argv: Sequence[str]) -> int:
    """The exit status that the fork's parent reports, after the fork's pid; the fork is killed in the end."""
    deadline, said = time.monotonic() + timeout, b""
    with os.fdopen(heard, "rb", buffering=0) as file:
        while select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            more = file.read(64)
            if not more:
                return int(said.split()[1])
            said += more
    if said:
        os.kill(int(said.split()[0]), signal.SIGKILL)
    raise subprocess.TimeoutExpired(argv, timeout)


# -- the process that forks -------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork for each request, until the test process has ended."""
    import kolla_mesos_start.ctl.commands as commands

    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}")
    for name in ("directory.json_schema", "timeline.html_page"):
        importlib.import_module(f"kolla_mesos_start.ctl.{name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _watch(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _watch(request: Mapping[str, object], fds: Sequence[int]) -> None:
    """Fork once more, to report the exit status of the tool."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, report = fds
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _become_the_tool(request, streams)
    for fd in streams:
        os.close(fd)
    os.write(report, b"%d " % pid)
    _, status = os.waitpid(pid, 0)
    os.write(report, b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_the_tool(request: Mapping[str, object], streams: Sequence[int]) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(request["cwd"])  # type: ignore[arg-type]
    sys.argv = list(request["argv"])  # type: ignore[call-overload]
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    else:
        status = 0
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
