"""Draining: a daemon is stopped only some time after it was deregistered, and after its `before_stop`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.daemon.control import UNKNOWN
from tests.conftest import Deployment
from tests.support.agents import PROGRAM, Agent, Containers
from tests.support.instances import Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tool import run_ctl
from tests.support.waiting import LIMIT, eventually

WEB = "site/web"
SUPERVISE = {"KOLLA_START_MODE": "supervise"}
LONG = 600.0  # seconds: a test that waits so long has failed
SHORT = 2.0
# Records its start and each signal with the time; ends with 7.
DAEMON = """
import os, signal, sys, time
def heard(number, frame):
    with open("heard", "a") as file:
        file.write(f"{signal.Signals(number).name} {time.monotonic()}\\n")
    if number in (signal.SIGTERM, signal.SIGINT):
        os._exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, heard)
open("listens", "w").close()
while True:
    signal.pause()
"""
COMMAND = [sys.executable, "-I", "-S", "-c", DAEMON]


class Edge:
    """A deployment with `web`."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient) -> None:
        self._deployment, self.containers = deployment, containers
        self.web = Site(deployment, zk, WEB)

    def start(self, environ: dict[str, str] = SUPERVISE, **daemon: Any) -> Agent:
        """A ready instance; `daemon` are keys of its definition."""
        whole = {"command": COMMAND, "ready": {"alive": 0}, **daemon}
        publish(self._deployment, WEB, {"service": {"daemon": whole}})
        agent = self.containers.start(WEB, "web1", **environ)
        eventually((agent.directory / "listens").exists, "the daemon listens")
        self.web.await_instances(1)
        return agent

    @property
    def container(self) -> dict[str, Any]:
        """What the container says."""
        return next(iter(self.web.containers.values()), {})

    def drains(self, what: str = "load balancers have 600 s to remove it") -> None:
        """Wait until `web` says so."""
        eventually(lambda: what in self.container.get("reason", ""), what)
        assert self.container["state"] == "draining"

    def ctl(self, *words: str) -> str:
        """The output of `kolla_mesos_ctl`."""
        return run_ctl(self._deployment, *words).stdout


@pytest.fixture
def edge(deployment: Deployment, containers: Containers, zk: KazooClient) -> Edge:
    return Edge(deployment, containers, zk)


def heard(agent: Agent) -> list[str]:
    """The signals that its daemon has got."""
    file = agent.directory / "heard"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def stopping(agent: Agent, *words: str) -> subprocess.Popen[str]:
    """`kolla_mesos_start stop` in its container."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), "stop", *words],
        env={**os.environ, "KOLLA_RUN_DIR": agent.environ["KOLLA_RUN_DIR"]},
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status, and what it has printed."""
    with client:
        said, _ = client.communicate(timeout=LIMIT)
    return client.returncode, said.strip()


# -- supervise ------------------------------------------------------------------------------------


def test_sigterm_withdraws_waits_and_then_ends_the_daemon(edge: Edge) -> None:
    """The instance is gone from ZooKeeper meanwhile, and the daemon serves on."""
    web = edge.start(drain=SHORT)
    begun = time.monotonic()
    web.signal(signal.SIGTERM)
    edge.drains("load balancers have 2 s to remove it")
    eventually(lambda: not edge.web.instances() and not edge.web.instances("web1"), "it is deregistered")
    assert edge.web.members, "the container is still there"
    assert web.running and not heard(web)
    assert web.health().returncode == 0, "a liveness probe must not kill it"
    assert web.health("--ready").returncode == 1
    assert web.ends() == 7
    assert time.monotonic() - begun >= SHORT
    assert heard(web) == ["SIGTERM"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_draining(edge: Edge, signum: signal.Signals) -> None:
    """Ctrl-C twice too. Other signals are forwarded meanwhile."""
    web = edge.start(drain=LONG, before_stop="touch ran")
    web.signal(signum)
    edge.drains()
    web.signal(signal.SIGHUP)
    eventually(lambda: heard(web) == ["SIGHUP"], "the daemon gets SIGHUP")
    assert web.running
    web.signal(signum)
    assert web.ends() == 7
    assert heard(web) == ["SIGHUP", signum.name]
    assert not (web.directory / "ran").exists()
    assert "a second signal" in web.said


def test_a_restart_for_new_files_drains_too(edge: Edge, deployment: Deployment) -> None:
    """The instance is registered again afterwards; the daemon has its output, and no other descriptors."""
    script = (
        "trap 'echo got TERM; exit' TERM; echo begun; echo $(ls /proc/self/fd); while :; do sleep 0.05; done"
    )
    daemon: dict[str, Any] = {
        "command": ["sh", "-c", script],
        "ready": {"alive": 0},
        "drain": SHORT,
        "on_change": {"restart": True},
        "files": {"web.conf": {"dest": str(edge.containers.directory / "web.conf")}},
    }
    definition = {"service": {"daemon": daemon}}
    publish(deployment, WEB, definition, files={"web.conf": "old"})
    web = edge.containers.start(WEB, "web1", **SUPERVISE)
    edge.web.await_instances(1)
    publish(deployment, WEB, definition, files={"web.conf": "new"})
    edge.drains("load balancers have 2 s to remove it")
    assert "got TERM" not in web.said
    eventually(lambda: "started again" in web.said, "it is started again")
    edge.web.await_instances(1)
    eventually(lambda: web.said.splitlines().count("begun") == 2, "it prints the same again")
    eventually(lambda: web.said.splitlines().count("0 1 2 3") == 2, "it has the same descriptors")


# -- before_stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "list", "object"])
def test_before_stop_runs_before_sigterm(edge: Edge, form: str) -> None:
    """In the daemon's environment, after the instance is gone."""
    script = 'test ! -e heard && echo "$WORD" > ran && echo output'
    command: Any = {"text": script, "list": ["sh", "-c", script], "object": {"command": script}}[form]
    web = edge.start(before_stop=command, env={"WORD": "first"})
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert (web.directory / "ran").read_text() == "first\n"
    assert "before_stop has succeeded" in web.said
    assert "\noutput\n" in web.said
    assert heard(web) == ["SIGTERM"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "before_stop failed: exit status 3"),
        ("/not/there", "before_stop failed: No such file"),
        ("sleep 1000 & sleep 1000", "before_stop failed: not finished after 0.5 s: killed"),
    ],
)
def test_a_before_stop_that_fails_or_hangs_does_not_keep_the_daemon(
    edge: Edge, command: str, why: str
) -> None:
    web = edge.start(before_stop={"command": command, "timeout": 0.5})
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert why in web.said
    assert heard(web) == ["SIGTERM"]
    assert "sleep" not in web.processes.values()


def test_a_second_signal_kills_before_stop(edge: Edge) -> None:
    web = edge.start(before_stop={"command": "touch ran; exec sleep 1000", "timeout": LONG})
    web.signal(signal.SIGTERM)
    eventually((web.directory / "ran").exists, "it runs")
    edge.drains("before_stop runs")
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert "sleep" not in web.processes.values()


# -- faults ---------------------------------------------------------------------------------------


def test_a_daemon_that_is_killed_while_it_drains_ends_the_container(edge: Edge) -> None:
    web = edge.start(drain=LONG, before_stop="touch ran")
    web.signal(signal.SIGTERM)
    edge.drains()
    client = stopping(web)
    daemon = next(pid for pid, name in web.processes.items() if name != "kolla_registrar" and pid != web.pid)
    os.kill(daemon, signal.SIGKILL)
    assert web.ends() == 128 + signal.SIGKILL
    assert ended(client)[0] == 1
    assert not (web.directory / "ran").exists()


@pytest.mark.parametrize("cut", ["kill", "freeze"])
def test_an_outage_does_not_keep_it_longer_than_its_limit(edge: Edge, link: Link, cut: str) -> None:
    """The instance can't even be deregistered."""
    web = edge.start(environ={**SUPERVISE, "KOLLA_ZK_HOSTS": link.hosts}, drain=SHORT)
    getattr(link, cut)()
    if cut == "kill":
        web.says("connection to ZooKeeper")
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert "still registered after 2 s: ZooKeeper can't be reached" in web.said


def test_a_killed_supervisor_leaves_no_command(edge: Edge) -> None:
    """Not even one that hangs."""
    web = edge.start(before_stop={"command": "touch ran; exec sleep 1000", "timeout": LONG})
    web.signal(signal.SIGTERM)
    eventually((web.directory / "ran").exists, "it runs")
    os.kill(web.registrar, signal.SIGKILL)
    eventually(lambda: "sleep" not in web.processes.values(), "the command is killed")


# -- exec mode ------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_stop_drains_and_ends_the_daemon(edge: Edge, environ: dict[str, str]) -> None:
    web = edge.start(environ=environ, drain=SHORT, before_stop="touch ran")
    client = stopping(web)
    edge.drains("load balancers have 2 s to remove it")
    assert web.running and not heard(web)
    assert ended(client) == (0, "drained; the daemon has ended")
    assert web.ends() == 7
    assert heard(web) == ["SIGTERM"]
    assert (web.directory / "ran").exists()


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_a_hook_leaves_sigterm_to_the_launcher(edge: Edge, environ: dict[str, str]) -> None:
    """The instance is not registered again, and a second call returns at once; nothing is done twice."""
    web = edge.start(environ=environ, drain=0.1, before_stop="echo run >> ran")
    assert ended(stopping(web, "--no-term")) == (0, "drained")
    assert web.running and not heard(web)
    assert ended(stopping(web, "--no-term")) == (0, "drained")
    assert not edge.web.instances()
    assert "draining drained" in web.health().stdout
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert (web.directory / "ran").read_text() == "run\n"


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_stop_says_what_went_wrong(edge: Edge, environ: dict[str, str]) -> None:
    web = edge.start(environ=environ, before_stop="exit 3")
    assert ended(stopping(web)) == (1, "before_stop failed: exit status 3; the daemon has ended")
    assert web.ends() == 7


def test_stop_reports_a_daemon_that_ignores_sigterm(edge: Edge) -> None:
    """In exec mode nobody but the launcher may kill it."""
    stubborn = [*COMMAND[:-1], DAEMON.replace("os._exit(7)", "pass")]
    web = edge.start(environ={}, command=stubborn, before_stop="true", stop_grace=0.1)
    client = stopping(web)
    eventually(lambda: heard(web) == ["SIGTERM"], "the daemon gets SIGTERM")
    for _ in range(2):  # Whoever asks again gets the same answer, and the daemon no other signal.
        assert ended(client) == (1, "drained; the daemon has not ended 0.1 s after SIGTERM")
        client = stopping(web)
    assert ended(client)[0] == 1
    assert web.running and heard(web) == ["SIGTERM"]


def test_the_end_of_the_registrar_is_not_that_of_the_daemon(edge: Edge) -> None:
    """It is killed after it has sent SIGTERM, which the daemon ignores."""
    stubborn = [*COMMAND[:-1], DAEMON.replace("os._exit(7)", "pass")]
    web = edge.start(environ={}, command=stubborn, before_stop="true", stop_grace=LONG)
    client = stopping(web)
    eventually(lambda: heard(web) == ["SIGTERM"], "the daemon gets SIGTERM")
    os.kill(web.registrar, signal.SIGKILL)
    assert ended(client) == (1, UNKNOWN)
    assert web.running


def test_stop_without_anything_to_drain(edge: Edge) -> None:
    """A daemon without these keys has no socket; a hook must not fail for that."""
    web = edge.start(environ={})
    assert not Path(web.environ["KOLLA_RUN_DIR"], "stop").exists()
    status, said = ended(stopping(web))
    assert status == 1 and said.startswith("nothing to drain: ")
    assert ended(stopping(web, "--no-term"))[0] == 0
    assert web.running and edge.web.instances()


@pytest.mark.parametrize("running", [False, True], ids=["waits", "runs a command"])
def test_stop_during_a_start_ends_it(
    edge: Edge, deployment: Deployment, containers: Containers, running: bool
) -> None:
    """There is nothing to drain, and there will be no daemon. A hook alone ends nothing."""
    needs = {} if running else {"dependencies": ["db/daemon"]}
    publish(
        deployment,
        WEB,
        {
            "commands": {"prepare": {"command": "sleep 600"}} if running else {},
            "service": {"daemon": {"command": COMMAND, "drain": LONG, **needs}},
        },
    )
    agent = containers.start(WEB, "web1")
    agent.says("web/prepare: starting" if running else "web/daemon waits for db/daemon")
    assert ended(stopping(agent, "--no-term")) == (0, "nothing to drain: the daemon is not started yet")
    assert agent.running
    assert ended(stopping(agent)) == (0, "the daemon was not started yet; now it will not be")
    assert agent.ends() == 128 + signal.SIGTERM
    assert agent.ending["reason"] == "stopped by SIGTERM"
    status, said = ended(stopping(agent))
    assert status == 1 and said.startswith("nothing to drain: ")


def test_a_client_of_stop_finds_whoever_serves_it_next(edge: Edge) -> None:
    """A socket whose owner has gone: in a restart through an election, a new agent follows at once."""
    web = edge.start(environ={})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{web.environ['KOLLA_RUN_DIR']}/stop")
    client = stopping(web)
    Path(web.environ["KOLLA_RUN_DIR"], "stop").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{web.environ['KOLLA_RUN_DIR']}/stop")
        listener.listen()
        with listener.accept()[0] as connection:
            assert connection.recv(16) == b"T"
            connection.send(b"0 drained\n")
    assert ended(client) == (0, "drained")


def test_a_registrar_that_is_killed_ends_stop(edge: Edge) -> None:
    web = edge.start(environ={}, drain=LONG)
    client = stopping(web)
    edge.drains()
    os.kill(web.registrar, signal.SIGKILL)
    assert ended(client) == (1, UNKNOWN)
    assert web.running and not heard(web)
    # Its descriptors are closed one after the other: its socket, and then its lock.
    eventually(lambda: web.health().stdout == "daemon runs, unregistered\n", "it is known to be dead")


def test_status_and_explain_show_what_is_waited_for(edge: Edge) -> None:
    web = edge.start(drain=LONG)
    web.signal(signal.SIGTERM)
    edge.drains()
    status, explain = edge.ctl("status"), edge.ctl("explain")
    assert re.search(r"web1 +draining +\d.*load balancers have 600 s", status), status
    pattern = r"^draining +web/daemon on web1 has been draining for \d.*: is no longer registered"
    assert re.search(pattern, explain, re.MULTILINE), explain
    assert "ROOT CAUSE" not in explain


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_a_stop_goes_on_without_its_client(edge: Edge, environ: dict[str, str]) -> None:
    """The client is killed while the daemon drains: it would stay alive, and withdrawn for ever."""
    web = edge.start(environ=environ, drain=SHORT)
    client = stopping(web)
    edge.drains("load balancers have 2 s to remove it")
    client.kill()
    client.communicate()
    assert web.ends() == 7
    assert heard(web) == ["SIGTERM"]


def test_a_client_that_is_killed_before_it_has_asked_changes_nothing(edge: Edge) -> None:
    web = edge.start(environ={}, before_stop="true")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{web.environ['KOLLA_RUN_DIR']}/stop")
    assert ended(stopping(web)) == (0, "drained; the daemon has ended")
    assert web.said.count("running before_stop") == 1
