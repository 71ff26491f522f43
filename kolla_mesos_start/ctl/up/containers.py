"""Stand-ins for containers: each is an agent with its own root directory, local state and log.

They share file system, process ids and network with the machine; only directories and ports are their own.
Every process of a container has the run directory in its environment, and is found by it, unless the process
has overwritten its environment. This module starts, stops and finds the processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

import psutil

from kolla_mesos_start.errors import AgentError

KILL_TIMEOUT = 30.0  # seconds after KILL, on a busy machine


def _agent() -> Path:
    """The agent's script: that of the checkout which holds this package, else the installed one."""
    in_checkout = Path(__file__).resolve().parents[3] / "bin" / "kolla_mesos_start"
    return in_checkout if in_checkout.exists() else Path(sys.executable).with_name("kolla_mesos_start")


AGENT = (sys.executable, str(_agent()))
SETPRIV = "setpriv"
LAST_BYTES = 2000


def dies_with_us() -> tuple[str, ...]:
    """What to put before a command: if this process is killed, the kernel kills the command too.

    An agent's own processes end with the agent.
    """
    # If we are killed before setpriv has asked the kernel for that, it is too late: then the shell has
    # another parent, and the command does not start.
    return (SETPRIV, "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid()))


class LocalContainer:
    """One container of `service` on `host`; `root` is the directory in place of its `/`.

    `run_dir` lies elsewhere, to have a short name: the path of a socket may have 107 bytes.
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
            "KOLLA_LOGS": str(self.log),
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
        """The process id of the agent, which the daemon takes over."""
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
        """What its probes read: a stage, a text, and since when (seconds since the epoch)."""
        try:
            with (self.run_dir / "state").open() as file:
                stage, _, text = file.readline().rstrip("\n").partition(" ")
                return stage, text, os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return "begins", "", self.started_at

    def start(self) -> None:
        self.started_at = time.time()
        self._process = self._run(*dies_with_us(), *AGENT)

    def restart(self) -> None:
        """Start it again. What it has left ends before that, as all of a container ends with process 1."""
        end_all(self.run_dir)
        self.start()

    def begin_stop(self) -> subprocess.Popen[bytes]:
        """Begin to drain and stop its daemon, with the agent's own command, which ends when that is done."""
        return self._run(*AGENT, "stop")

    def _run(self, *argv: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                argv,
                env=self.environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for us; we then end what we have started.
                start_new_session=True,
            )

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end; the exit status."""
        assert self._process is not None, f"{self.name} was not started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AgentError(f"{self.name} did not end within {seconds:g} s: {self.log_end()}") from None

    def log_end(self) -> str:
        """The end of its log, for a message."""
        return self.log.read_text(errors="replace")[-LAST_BYTES:] if self.log.exists() else ""


# -- processes ------------------------------------------------------------------------------------


def processes_of(directory: Path) -> Iterator[int]:
    """The processes of the containers whose run directory is `directory`, or lies below it."""
    # Not a shell in the directory, nor one with KOLLA_RUN_DIR for the probes: containers have both variables.
    mark = os.fsencode(f"KOLLA_RUN_DIR={directory}")
    for pid in psutil.pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()  # Some daemons overwrite a part of it.
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # It has ended, or is another user's.
        if b"KOLLA_STATE_DIR=" in environ and (mark + b"/" in environ or mark + b"\0" in environ):
            yield pid


def end_all(directory: Path, grace: float = 0.0, containers: Sequence[LocalContainer] = ()) -> None:
    """End every process of the containers in `directory`: TERM, and after `grace` seconds KILL.

    `containers` are those that we have started: an agent hides its environment from all but root.
    Raises AgentError for what can't be killed.
    """
    kill_at = time.monotonic() + grace
    signum = signal.SIGTERM if grace else signal.SIGKILL
    sent: set[tuple[int, int]] = set()
    known: set[psutil.Process] = set()
    while True:
        left = {*processes_of(directory), *(each.pid for each in containers if each.running)}
        # Also what they have started, which outlives them, and may have overwritten its environment, as Nova
        # does to have a title.
        known = {
            each for each in known | _descendants(left | {each.pid for each in known}) if _is_alive(each)
        }
        left |= {each.pid for each in known}
        if not left:
            return
        if time.monotonic() >= kill_at + KILL_TIMEOUT:
            raise AgentError(f"processes that can't be killed: {', '.join(map(str, sorted(left)))}")
        if time.monotonic() >= kill_at:
            signum = signal.SIGKILL
        for pid in left:
            if (pid, signum) not in sent:
                sent.add((pid, signum))
                with suppress(ProcessLookupError):  # It has ended in the meantime.
                    os.kill(pid, signum)
        time.sleep(0.02)


def _descendants(pids: Set[int]) -> set[psutil.Process]:
    children: dict[int, list[psutil.Process]] = {}
    for each in psutil.process_iter(["ppid"]):
        children.setdefault(each.info["ppid"], []).append(each)
    found: set[psutil.Process] = set()
    parents = list(pids)
    for parent in parents:
        below = children.pop(parent, [])
        found.update(below)
        parents += (each.pid for each in below)
    return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
