"""Stand-ins for containers: an agent each, with a root, a local state and a log of its own.

The file system, the process ids and the network are the machine's; what a container has for
itself are directories and a port. Everything that one starts has its run directory in the
environment, and so can be found. What lives here: starting, ending and finding it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from kolla_mesos_start.errors import AgentError

CHECKOUT = Path(__file__).resolve().parents[2]
AGENT = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_start"))
REGISTRAR = "kolla_mesos_start.daemon.registrar"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"  # as the agent's log has it, text or JSON
# Where even SIGKILL ends us, the kernel ends what we have started, and that its own helpers.
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")


class Container:
    """One container of `service` on `host`; `root` is where its file system would begin.

    `run_dir` lies elsewhere, for a short name: that of a socket may have 107 bytes.
    """

    def __init__(
        self, service: str, host: str, root: Path, run_dir: Path, environ: Mapping[str, str]
    ) -> None:
        self.service = service
        self.host = host
        self.root = root
        self.log = root / "log"
        self.run_dir = run_dir
        self.started_at = 0.0  # seconds since the epoch
        self.environ = {
            **environ,
            "KOLLA_HOSTNAME": host,
            "KOLLA_RUN_DIR": str(self.run_dir),
            "KOLLA_STATE_DIR": str(root / "state"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        root.mkdir(parents=True, mode=0o755)

    @property
    def role(self) -> str:
        return self.service.rsplit("/", 1)[-1]

    @property
    def name(self) -> str:
        return f"{self.role}@{self.host}"

    @property
    def pid(self) -> int:
        """The process id of the agent, and then of the daemon that it has become."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status (-n: ended by signal n); None while it runs or was never started."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self.status is None

    @property
    def state(self) -> tuple[str, str, float]:
        """What it tells its probes: a stage, a text, and since when (seconds since the epoch)."""
        try:
            with (self.run_dir / "state").open() as file:
                stage, _, text = file.readline().rstrip("\n").partition(" ")
                return stage, text, os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return "begins", "", self.started_at

    def start(self) -> None:
        self.started_at = time.time()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*DIES_WITH_US, *AGENT),
                env=self.environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for us, who then stop what we have started.
                start_new_session=True,
            )

    def stop(self) -> int:
        """SIGTERM, as a launcher would; the exit status."""
        if self.status is None:
            os.kill(self.pid, signal.SIGTERM)
        return self.ended()

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for its end; the exit status."""
        assert self._process is not None, f"{self.name} was not started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AgentError(f"{self.name} did not end within {seconds:g} s: {self.said()}") from None

    def kill(self, *, with_registrar: bool) -> None:
        """SIGKILL. With the registrar it is what the end of a pid namespace does: nobody is left to tell."""
        if with_registrar:
            # First, or it might see the daemon's end before its own.
            os.kill(self.registrar(), signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def registrar(self) -> int:
        """The process that holds the daemon's session."""
        (pid,) = (each for each in processes_of(self.run_dir) if REGISTRAR in command_line(each))
        return pid

    def health(self, *arguments: str) -> tuple[int, str]:
        """What `kolla_mesos_start health` says of this container."""
        done = subprocess.run(
            (*AGENT, "health", *arguments), env=self.environ, stdout=subprocess.PIPE, text=True, timeout=60
        )
        return done.returncode, done.stdout.strip()

    def exec_time(self) -> float:
        """When the agent became the daemon last, as its log says; seconds since the epoch."""
        said = self.log.read_text(errors="replace")
        told = re.findall(rf'({TIME}).*[ "]{re.escape(self.role)}/daemon: exec', said)
        if not told:
            raise AgentError(f"{self.name} never said that it execs: {self.said()}")
        return datetime.strptime(told[-1], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()

    def said(self) -> str:
        """The end of its log, for a message."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def processes_of(directory: Path) -> Iterator[int]:
    """The processes of the containers whose run directory is `directory`, or lies below it."""
    # Not any mention of the directory: a shell that somebody has opened in it is not ours.
    mark = os.fsencode(f"KOLLA_RUN_DIR={directory}")
    for pid in processes():
        environ = _read(pid, "environ")
        if mark + b"/" in environ or mark + b"\0" in environ:
            yield pid


def processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def command_line(pid: int) -> str:
    """A process's arguments, as everybody on the machine can read them; empty where it is gone."""
    return os.fsdecode(_read(pid, "cmdline").replace(b"\0", b" "))


def environment(pid: int) -> str:
    return os.fsdecode(_read(pid, "environ").replace(b"\0", b"\n"))


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""  # gone, or another user's


def end_all(directory: Path, grace: float = 0.0) -> None:
    """End all that still runs of `directory`: TERM, and after `grace` seconds KILL."""
    kill_at = time.monotonic() + grace
    signum = signal.SIGTERM if grace else signal.SIGKILL
    told: set[tuple[int, int]] = set()
    while left := set(processes_of(directory)):
        if time.monotonic() >= kill_at:
            signum = signal.SIGKILL
        for pid in left:
            if (pid, signum) not in told:
                told.add((pid, signum))
                with suppress(ProcessLookupError):  # It has ended by itself meanwhile.
                    os.kill(pid, signum)
        time.sleep(0.02)
