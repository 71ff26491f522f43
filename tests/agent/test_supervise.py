"""Supervise mode: signals, readiness, orphans, left-over processes and the exit status.

Whole agents with a real ZooKeeper; test_process_1.py tests them as process 1.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.daemon.supervise import WITHDRAW_TIMEOUT
from tests.agent.test_presence import SERVICE, publish_daemon
from tests.agent.test_presence import site as site
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.guarded import lives
from tests.support.instances import Site
from tests.support.link import Link
from tests.support.waiting import eventually

SUPERVISE = {"KOLLA_START_MODE": "supervise"}
# A daemon that records each signal, and exits with 7 on SIGTERM.
LISTENER = """
import os, signal, sys
def heard(number, frame):
    with open("heard", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        os._exit(7)
for number in signal.valid_signals() - {9, 19, 17, 11, 7, 8, 4, 5, 31}:
    signal.signal(number, heard)
open("listens", "w").close()
while True:
    signal.pause()
"""


@pytest.fixture
def start(deployment: Deployment, containers: Containers, site: Site) -> Callable[..., Agent]:
    """Starts a supervised daemon, and waits until it is ready unless it will not be."""

    def start(
        command: str | Sequence[str],
        *,
        ready: dict[str, Any] | None = None,
        wait: bool = True,
        environ: dict[str, str] | None = None,
        **daemon: Any,
    ) -> Agent:
        publish_daemon(deployment, command, ready or {"alive": 0}, **daemon)
        agent = containers.start(SERVICE, **{**SUPERVISE, **(environ or {})})
        if wait:
            eventually(site.instances, "it is ready")
        return agent

    return start


def python(source: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", source]


def listens(agent: Agent) -> None:
    eventually((agent.directory / "listens").exists, "the daemon listens")


def supervisor(agent: Agent) -> psutil.Process:
    """The agent itself, below its launcher."""
    return next(p for p in _family(agent) if p.name() == "kolla_registrar")


def daemon(agent: Agent) -> psutil.Process:
    (child,) = supervisor(agent).children()
    return child


def _holds(file: Path, count: int) -> bool:
    return file.exists() and len(file.read_text().split()) == count


def _family(agent: Agent) -> list[psutil.Process]:
    launched = psutil.Process(agent.pid)
    return [launched, *launched.children(recursive=True)]


# -- its terminal -------------------------------------------------------------------------------------

# Starts the agent in its own session with a terminal, like `docker run -it`; the input is the file `typed`.
TERMINAL = """
import os, pty, select, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
typed = os.open("typed", os.O_RDWR)
while True:
    for fd in select.select([terminal, typed], [], [])[0]:
        try:
            os.write(1 if fd == terminal else terminal, os.read(fd, 1024))
        except OSError:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_the_daemon_gets_the_terminal(deployment: Deployment, containers: Containers, site: Site) -> None:
    """It may read and change it, and gets Ctrl-C; it was a background job, stopped by its first read."""
    shell = ["sh", "-c", "stty -echo; while read line; do echo got $line; done"]
    publish_daemon(deployment, shell, {"alive": 0})
    typed = containers.directory / "0-web1" / "typed"
    typed.parent.mkdir(parents=True)
    os.mkfifo(typed)
    agent = containers.start(SERVICE, under=python(TERMINAL), **SUPERVISE)
    eventually(site.instances, "it is ready", seconds=30)
    with typed.open("w") as terminal:
        terminal.write("hello\n")
        terminal.flush()
        agent.says("got hello", seconds=30)
        terminal.write("\x03")
    assert agent.ends(30) == 128 + signal.SIGINT


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_stopped_daemon_is_not_ready(start: Callable[..., Agent], site: Site, mode: str) -> None:
    agent = start(["sleep", "1000"], environ={"KOLLA_START_MODE": mode})
    (pid,) = (pid for pid, name in agent.processes.items() if name == "sleep")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: not site.instances(), "it is withdrawn", seconds=30)
    assert "the daemon is stopped" in agent.state
    os.kill(pid, signal.SIGCONT)
    eventually(site.instances, "it is ready again", seconds=30)


def test_a_stopped_daemon_is_continued_to_be_ended(start: Callable[..., Agent]) -> None:
    agent = start(["sleep", "1000"], stop_grace=600)
    daemon(agent).send_signal(signal.SIGSTOP)
    agent.signal(signal.SIGTERM)
    assert agent.ends(30) == 128 + signal.SIGTERM


# -- the daemon ---------------------------------------------------------------------------------------


def test_nothing_is_registered_when_the_container_has_ended(start: Callable[..., Agent], site: Site) -> None:
    """At once; in exec mode it can take a session timeout."""
    agent = start(["sh", "-c", "until test -e end; do sleep 0.02; done; exit 65"])
    (agent.directory / "end").touch()
    assert agent.ends() == 65
    assert not site.instances() and not site.instances("web1")
    assert not site.members
    assert agent.health().returncode == 1


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_that_ends_the_daemon_gives_128_plus_n(start: Callable[..., Agent], signum: int) -> None:
    agent = start(["sleep", "1000"])
    daemon(agent).send_signal(signum)
    assert agent.ends() == 128 + signum


def test_other_signals_are_passed_to_the_daemon(start: Callable[..., Agent]) -> None:
    """HUP to reload, USR1 to reopen logs, and others."""
    agent = start(python(LISTENER))
    listens(agent)
    sent = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH]
    heard = agent.directory / "heard"
    for number, signum in enumerate(sent, 1):
        agent.signal(signum)
        eventually(partial(_holds, heard, number), signum.name)
    assert heard.read_text().split() == [signum.name for signum in sent]
    assert agent.running


def test_readiness_is_withdrawn_before_sigterm(
    start: Callable[..., Agent], zk: KazooClient, site: Site
) -> None:
    """Clients find no instance that is about to stop."""
    agent = start(python(LISTENER.replace("os._exit(7)", "pass")), stop_grace=30)
    listens(agent)
    (instance,) = site.instances()
    begun = time.monotonic()
    agent.signal(signal.SIGTERM)
    heard = agent.directory / "heard"
    eventually(lambda: heard.exists() and "SIGTERM" in heard.read_text(), "the daemon has heard", every=0.001)
    in_time = time.monotonic() - begun < WITHDRAW_TIMEOUT  # On a busy machine it may not be.
    assert not (zk.exists(f"{site.daemon()}/ready/{instance}") and in_time)
    eventually(lambda: not site.instances(), "it is withdrawn")
    assert agent.running
    eventually(lambda: "no longer ready: it is being stopped" in agent.said, "the log says so")
    assert "WARNING" not in agent.said, "nothing asks for action"


def test_the_stop_signal_of_an_image_stops_the_daemon(start: Callable[..., Agent], site: Site) -> None:
    """It begins the whole stop, with withdrawal and `before_stop`, and reaches the daemon once."""
    quits = LISTENER.replace("signal.SIGTERM", "signal.SIGQUIT")
    stops = {"before_stop": "cp heard before || :", "stop_grace": 30}
    agent = start(python(quits), environ={"KOLLA_STOP_SIGNAL": "QUIT"}, **stops)
    listens(agent)
    agent.signal(signal.SIGQUIT)
    assert agent.ends() == 7
    assert (agent.directory / "heard").read_text() == "SIGQUIT\n"
    assert "before_stop has succeeded" in agent.said
    assert not (agent.directory / "before").exists()
    assert not site.instances()


def test_a_stop_does_not_wait_for_zookeeper(start: Callable[..., Agent], link: Link) -> None:
    """Readiness is withdrawn within a second, or not at all."""
    agent = start(python(LISTENER), environ={"KOLLA_ZK_HOSTS": link.hosts})
    listens(agent)
    link.freeze()
    begun = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 7
    assert time.monotonic() - begun < 30


def test_a_daemon_that_does_not_end_is_killed_after_stop_grace(start: Callable[..., Agent]) -> None:
    """With all its children."""
    source = "import signal, subprocess; signal.signal(15, signal.SIG_IGN)\nsubprocess.run(['sleep', '1000'])"
    agent = start(python(source), stop_grace=0.5)
    eventually(lambda: daemon(agent).children(), "it has a child")
    (child,) = daemon(agent).children()
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGKILL
    assert not lives(child.pid)
    assert "has not ended 0.5 s after SIGTERM: killing it" in agent.said


# -- its parent ---------------------------------------------------------------------------------------


def test_left_over_processes_end_with_the_daemon(start: Callable[..., Agent]) -> None:
    """TERM, and KILL after `stop_grace`."""
    source = (
        "import os, subprocess, time\n"
        "children = [subprocess.Popen(['setsid', 'sleep', '1000']),"
        " subprocess.Popen(['setsid', 'sh', '-c', 'trap : TERM; while :; do sleep 0.1; done'])]\n"
        "open('children', 'w').write(' '.join(str(child.pid) for child in children))\n"
        "while not os.path.exists('end'): time.sleep(0.02)\n"
        "raise SystemExit(3)"
    )
    agent = start(python(source), stop_grace=0.5)
    told = agent.directory / "children"
    eventually(partial(_holds, told, 2), "it has children")
    children = [int(pid) for pid in told.read_text().split()]
    (agent.directory / "end").touch()
    assert agent.ends() == 3
    assert [pid for pid in children if lives(pid)] == []


def test_the_agent_does_not_reap_the_commands_of_checks(start: Callable[..., Agent], site: Site) -> None:
    """Readiness needs their exit status."""
    check = {"command": "test ! -e broken", "interval": 0.05, "fall": 1}
    agent = start(["sh", "-c", "while :; do (true &); sleep 0.01; done"], ready=check)
    site.await_instances(1)
    (agent.directory / "broken").touch()
    site.await_instances(0)
    (agent.directory / "broken").unlink()
    site.await_instances(1)


def test_the_supervisor_is_as_small_as_the_registrar(start: Callable[..., Agent]) -> None:
    """One process with one thread."""
    agent = start(["sleep", "1000"])
    parent = supervisor(agent)
    assert parent.pid == agent.pid
    assert [child.name() for child in parent.children()] == ["sleep"]
    assert parent.num_threads() == 1
    assert parent.memory_info().rss < 24e6  # measured: 14 MB


def test_kill_9_of_the_agent_ends_the_daemon(start: Callable[..., Agent]) -> None:
    """It would no longer be registered."""
    agent = start(["sleep", "1000"])
    child = daemon(agent).pid
    agent.signal(signal.SIGKILL)
    agent.ends()
    eventually(lambda: not lives(child), "the daemon has ended")


def test_the_daemon_inherits_nothing_of_the_agent(start: Callable[..., Agent]) -> None:
    agent = start(["sleep", "1000"])
    child = daemon(agent)
    assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2"]
    status = dict(line.split(":\t") for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
    assert {int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")} == {0}
    assert os.getpgid(child.pid) == child.pid


@pytest.mark.parametrize(("command", "status"), [("/no/such/program", 127), ("/etc/hostname", 126)])
def test_a_daemon_that_cannot_be_executed_ends_the_agent(
    start: Callable[..., Agent], site: Site, command: str, status: int
) -> None:
    """As in exec mode, with nothing registered."""
    agent = start([command], wait=False)
    assert agent.ends() == status
    assert agent.ending["stage"] == "exec" and agent.ending["status"] == status
    assert not site.members, "it has closed its session"


def test_a_stop_during_the_start_is_not_lost(deployment: Deployment, containers: Containers) -> None:
    publish_daemon(deployment)
    for number in range(12):
        agent = containers.start(SERVICE, f"web{number}", **SUPERVISE)
        time.sleep(0.02 * number)
        agent.signal(signal.SIGTERM)
        assert agent.ends() == 128 + signal.SIGTERM, agent.said
        eventually(lambda: agent.processes == {}, "no process is left")  # noqa: B023
