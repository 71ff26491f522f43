"""Agents as real processes, each in its own directory, as a container runtime starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

from tests.support.waiting import LIMIT, eventually

PROGRAM = Path(__file__).resolve().parents[2] / "bin" / "kolla_mesos_start"


class Agent:
    """One agent. `directory` is its container: run directory, state directory, and log."""

    def __init__(
        self, directory: Path, environ: Mapping[str, str], *words: str, under: Sequence[str] = ()
    ) -> None:
        """`under` launches it, for example `("sh", "-c", 'exec "$@"', "sh")`; `words` are its arguments."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "log"
        self.environ = {
            "PATH": os.environ["PATH"],
            "KOLLA_RUN_DIR": str(directory / "run"),
            "KOLLA_STATE_DIR": str(directory / "state"),
            "KOLLA_TERMINATION_LOG": str(directory / "termination-log"),
            **environ,
        }
        self._argv = (*under, sys.executable, str(PROGRAM), *words)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._argv,
                env=self.environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def state(self) -> str:
        """The state for probes: the stage and a text; empty before the first one."""
        try:
            return Path(self.environ["KOLLA_RUN_DIR"], "state").read_text().partition("\n")[0]
        except FileNotFoundError:
            return ""

    @property
    def processes(self) -> dict[int, str]:
        """The processes with this container's environment, by id: agent or daemon, registrar, commands."""
        mark = f"KOLLA_RUN_DIR={self.environ['KOLLA_RUN_DIR']}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "comm").read_text().rstrip("\n")
            except OSError:
                continue  # It has ended.
        return found

    @property
    def registrar(self) -> int:
        """The process id of its registrar; 0 while there is none."""
        return next((pid for pid, name in self.processes.items() if name == "kolla_registrar"), 0)

    @property
    def ending(self) -> dict[str, Any]:
        """The last line of the log, which is one JSON object."""
        ending: dict[str, Any] = json.loads(self.said.splitlines()[-1])
        return ending

    def restart(self) -> None:
        """Start the same container again."""
        assert not self.running
        self.process = self._start()

    def says(self, words: str, seconds: float = LIMIT) -> None:
        """Wait until the log holds `words`."""
        eventually(lambda: words in self.said, f"{words!r} in the log of {self.directory}", seconds=seconds)

    def ends(self, seconds: float = LIMIT) -> int:
        """Wait for the process to end; its exit status as in a shell."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s; it said:\n{self.said}") from None
        return status if status >= 0 else 128 - status

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def health(self, *words: str, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run the `health` probe in this container."""
        return subprocess.run(
            [*under, sys.executable, str(PROGRAM), "health", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def stop(self) -> subprocess.CompletedProcess[str]:
        """Run `stop` in this container."""
        return subprocess.run(
            [sys.executable, str(PROGRAM), "stop"],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def end(self) -> None:
        """Kill it if it still runs; its registrar and guard then end too."""
        if self.running:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Containers:
    """Starts agents, each in its own directory, and ends them all."""

    def __init__(self, directory: Path, environ: Callable[..., Mapping[str, str]]) -> None:
        """`environ(service, **more)` is what an agent of `service` needs (`Deployment.environ`)."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._environ = environ
        self._agents: list[Agent] = []

    def start(
        self,
        service: str,
        host: str = "web1",
        *,
        words: Sequence[str] = (),
        under: Sequence[str] = (),
        **environ: str,
    ) -> Agent:
        """Start a container of `service` on `host`; `under` launches it, with the arguments `words`."""
        directory = self.directory / f"{len(self._agents)}-{host}"
        given = self._environ(service, KOLLA_HOSTNAME=host, **environ)
        agent = Agent(directory, given, *words, under=under)
        self._agents.append(agent)
        return agent

    def end(self) -> None:
        for agent in self._agents:
            agent.end()
            # pytest shows it if the test fails.
            print(f"--- {agent.directory.name} said:\n{agent.said}")


@contextmanager
def restarted(agent: Agent, pause: float = 1.0) -> Iterator[None]:
    """Restart the container `pause` seconds after each end, as launchers do."""
    over = threading.Event()

    def launch() -> None:
        while True:
            agent.process.wait()
            if over.wait(pause):
                return
            agent.restart()

    launcher = threading.Thread(target=launch)
    launcher.start()
    try:
        yield
    finally:
        over.set()
        agent.end()
        launcher.join()
