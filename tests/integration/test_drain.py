"""Draining: a daemon is stopped only after the services that list it have refreshed.

Whole agents with a real ZooKeeper. `front` lists the instances of `web`, and refreshes while the file `go`
exists: so a test decides when it has.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.daemon.stop_client import ENDED, UNKNOWN
from tests.agents import PROGRAM, Agent, Containers
from tests.conftest import Deployment
from tests.instances import Site
from tests.link import Link
from tests.publishing import publish
from tests.tool import run_ctl
from tests.waiting import LIMIT, eventually

WEB, FRONT = "site/web", "site/front"
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
INSTANCES = "{% for each in ready_instances('site/web') %}{{ each.host }} {% endfor %}"
MEMBERS = "{{ list_ips_by_service('site/web') }}"


class Edge:
    """A deployment with `web` and `front`."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient) -> None:
        self._deployment, self._containers, self._zk = deployment, containers, zk
        self.web, self.front = Site(deployment, zk, WEB), Site(deployment, zk, FRONT)
        self.front_daemon: dict[str, Any] = {}
        self.go = containers.directory / "go"
        self.go.parent.mkdir(parents=True, exist_ok=True)
        self.go.touch()

    def start_web(self, host: str = "web1", environ: dict[str, str] = SUPERVISE, **daemon: Any) -> Agent:
        """A ready instance of `web`; `daemon` are keys of its definition."""
        count = len(self.web.instances())
        whole = {"command": COMMAND, "ready": {"alive": 0}, **daemon}
        publish(self._deployment, WEB, {"service": {"daemon": whole}})
        agent = self._containers.start(WEB, host, **environ)
        eventually((agent.directory / "listens").exists, "the daemon listens")
        self.web.await_instances(count + 1)
        return agent

    def start_front(self, text: str = INSTANCES, **environ: str) -> Agent:
        """An instance of `front` whose file lists all that there are of `web`."""
        directory = self._containers.directory / f"{len(self._containers._agents)}-edge1"
        daemon = self.front_daemon = {
            "command": COMMAND,
            "ready": {"alive": 0},
            "on_change": {"signal": "HUP"},
            "files": {
                "front.conf": {
                    "dest": str(directory / "front.conf"),
                    "check": ["sh", "-c", f"until test -e {self.go}; do sleep 0.02; done"],
                }
            },
        }
        publish(self._deployment, FRONT, {"service": {"daemon": daemon}}, files={"front.conf": text})
        agent = self._containers.start(FRONT, "edge1", **environ)
        self.front.await_instances(1)
        eventually(lambda: self.container(self.front).get("lists"), "it says what it lists")
        return agent

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no refresh of `front` ends."""
        self.go.unlink()
        yield
        self.go.touch()

    @staticmethod
    def container(site: Site, host: str = "") -> dict[str, Any]:
        """What the container on a host says; the first one by default."""
        found = (each for each in site.containers.values() if not host or each["host"] == host)
        return next(found, {})

    def drains(self, what: str = "waits for front on edge1 to refresh", host: str = "web1") -> None:
        """Wait until `web` says so."""
        eventually(lambda: what in self.container(self.web, host).get("reason", ""), f"{host} {what}")
        assert self.container(self.web, host)["state"] == "draining"

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


def lists(agent: Agent, text: str) -> None:
    """Wait until its file has this content."""
    eventually(lambda: (agent.directory / "front.conf").read_text().strip() == text, f"it lists {text!r}")


def stopping(agent: Agent, *words: str) -> subprocess.Popen[str]:
    """`kolla_mesos_start stop` in its container."""
    return stopping_at(Path(agent.environ["KOLLA_RUN_DIR"]), *words)


def stopping_at(run_dir: Path, *words: str) -> subprocess.Popen[str]:
    """`kolla_mesos_start stop` for the container with this KOLLA_RUN_DIR."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), "stop", *words],
        env={**os.environ, "KOLLA_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status, and what it has printed."""
    with client:
        said, _ = client.communicate(timeout=LIMIT)
    return client.returncode, said.strip()


# -- supervise ------------------------------------------------------------------------------------


def test_sigterm_waits_until_others_have_refreshed(edge: Edge) -> None:
    """The instance is gone from ZooKeeper meanwhile, and the daemon serves on."""
    web, front = edge.start_web(drain=LONG), edge.start_front()
    lists(front, "web1")
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        assert not edge.web.instances() and not edge.web.instances("web1")
        assert edge.web.members, "nobody lists the members"
        assert web.running and not heard(web)
        assert web.health().returncode == 0, "a liveness probe must not kill it"
        assert web.health("--ready").returncode == 1
    assert web.ends() == 7
    assert heard(web) == ["SIGTERM"]
    lists(front, "")
    assert heard(front) == ["SIGHUP"]
    assert "refreshed: front on edge1" in web.said


def test_without_a_service_that_lists_it_nothing_is_waited_for(edge: Edge) -> None:
    web, _ = edge.start_web(drain=LONG), edge.start_front(text=INSTANCES.replace("web", "other"))
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert "no service lists it" in web.said


def test_a_service_that_does_not_refresh_is_waited_for_up_to_the_limit(edge: Edge) -> None:
    web, _ = edge.start_web(drain=SHORT), edge.start_front()
    with edge.held():
        begun = time.monotonic()
        web.signal(signal.SIGTERM)
        assert web.ends() == 7
        assert time.monotonic() - begun >= SHORT
    assert "draining ended after 2 s, its limit: not refreshed: front on edge1 to refresh" in web.said


def test_a_service_that_needs_a_restart_has_refreshed_too(edge: Edge, deployment: Deployment) -> None:
    """Its daemon uses the new file, although only a restart applies its new command."""
    web, front = edge.start_web(drain=LONG), edge.start_front()
    lists(front, "web1")
    changed = {**edge.front_daemon, "env": {"NEW": "1"}}
    publish(deployment, FRONT, {"service": {"daemon": changed}}, files={"front.conf": INSTANCES})
    said = "restart the container"
    eventually(lambda: said in edge.container(edge.front).get("reason", ""), "it needs one")
    before = {**edge.container(edge.front), "lists": 0, "since": 0}
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    lists(front, "")
    assert "refreshed: front on edge1" in web.said
    assert before == {**edge.container(edge.front), "lists": 0, "since": 0}, "what it runs is as before"


def test_a_list_of_members_is_left_too(edge: Edge) -> None:
    """The presence of the container is removed, because that is what the file lists."""
    web, front = edge.start_web(drain=LONG), edge.start_front(text=MEMBERS)
    eventually(lambda: (front.directory / "front.conf").read_text(), "it lists the member")
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        edge.web.await_members(0)
        assert not heard(web)
    assert web.ends() == 7
    assert not (front.directory / "front.conf").read_text()


def test_one_after_the_other_each_is_waited_for(edge: Edge) -> None:
    """A second instance that leaves while `front` refreshes for the first one is waited for as well."""
    first, front = edge.start_web(drain=LONG), edge.start_front()
    second = edge.start_web("web2", drain=LONG)
    lists(front, "web1 web2")
    with edge.held():
        first.signal(signal.SIGTERM)
        eventually(lambda: edge.container(edge.front).get("code") == "refresh-running", "it refreshes")
        second.signal(signal.SIGTERM)
        for host in ("web1", "web2"):
            edge.drains(host=host)
    assert first.ends() == second.ends() == 7
    lists(front, "")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_draining(edge: Edge, signum: signal.Signals) -> None:
    """Ctrl-C twice too. The signal itself is forwarded."""
    web, _ = edge.start_web(drain=LONG, before_stop="touch ran"), edge.start_front()
    with edge.held():
        web.signal(signum)
        edge.drains()
        web.signal(signum)
        assert web.ends() == 7
    assert heard(web) == [signum.name]
    assert not (web.directory / "ran").exists()
    assert "a second signal" in web.said


def test_other_signals_are_forwarded_while_it_drains(edge: Edge) -> None:
    web, _ = edge.start_web(drain=LONG), edge.start_front()
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        web.signal(signal.SIGHUP)
        eventually(lambda: heard(web) == ["SIGHUP"], "the daemon gets SIGHUP")
        assert web.running
    assert web.ends() == 7


def test_a_restart_for_new_files_drains_too(edge: Edge, deployment: Deployment) -> None:
    """The instance is registered again afterwards."""
    front = edge.start_front()
    daemon: dict[str, Any] = {
        "command": COMMAND,
        "ready": {"alive": 0},
        "drain": LONG,
        "on_change": {"restart": True},
        "files": {"web.conf": {"dest": "{{ directory }}"}},
    }
    place = edge.go.with_name("web.conf")
    definition = {"service": {"daemon": daemon}}
    variables = {"directory": str(place)}
    publish(deployment, WEB, definition, files={"web.conf": "old"}, variables=variables)
    web = edge._containers.start(WEB, "web1", **SUPERVISE)
    edge.web.await_instances(1)
    lists(front, "web1")
    eventually((web.directory / "listens").exists, "the daemon listens")
    with edge.held():
        publish(deployment, WEB, definition, files={"web.conf": "new"}, variables=variables)
        edge.drains()
        assert not heard(web)
    eventually(lambda: "started again" in web.said, "it is started again")
    edge.web.await_instances(1)
    lists(front, "web1")
    assert heard(web) == ["SIGTERM"]


# -- before_stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "list", "object"])
def test_before_stop_runs_before_sigterm(edge: Edge, form: str) -> None:
    """In the daemon's environment, after the instance is gone."""
    script = 'test ! -e heard && echo "$WORD" > ran && echo output'
    command: Any = {"text": script, "list": ["sh", "-c", script], "object": {"command": script}}[form]
    web = edge.start_web(before_stop=command, env={"WORD": "first"})
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
    web = edge.start_web(before_stop={"command": command, "timeout": 0.5})
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert why in web.said
    assert heard(web) == ["SIGTERM"]
    assert "sleep" not in web.processes.values()


def test_a_second_signal_kills_before_stop(edge: Edge) -> None:
    web = edge.start_web(before_stop={"command": "touch ran; exec sleep 1000", "timeout": LONG})
    web.signal(signal.SIGTERM)
    eventually((web.directory / "ran").exists, "it runs")
    edge.drains("before_stop runs")
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert "sleep" not in web.processes.values()


# -- faults ---------------------------------------------------------------------------------------


def test_a_service_that_dies_is_not_waited_for(edge: Edge) -> None:
    """Its znode goes with its session."""
    web, front = edge.start_web(drain=LONG), edge.start_front()
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        os.kill(front.registrar, signal.SIGKILL)
        front.end()
        assert web.ends() == 7


def test_a_daemon_that_is_killed_while_it_drains_ends_the_container(edge: Edge) -> None:
    web, _ = edge.start_web(drain=LONG, before_stop="touch ran"), edge.start_front()
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        client = stopping(web)
        daemon = next(
            pid for pid, name in web.processes.items() if name != "kolla_registrar" and pid != web.pid
        )
        os.kill(daemon, signal.SIGKILL)
        assert web.ends() == 128 + signal.SIGKILL
        assert ended(client)[0] == 1
    assert not (web.directory / "ran").exists()


@pytest.mark.parametrize("cut", ["kill", "freeze"])
def test_an_outage_does_not_keep_it_longer_than_its_limit(edge: Edge, link: Link, cut: str) -> None:
    """Before it begins: the instance can't even be deregistered."""
    web = edge.start_web(environ={**SUPERVISE, "KOLLA_ZK_HOSTS": link.hosts}, drain=SHORT)
    getattr(link, cut)()
    if cut == "kill":
        web.says("connection to ZooKeeper")
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert "draining ended after 2 s, its limit" in web.said


def test_an_outage_in_between_is_survived(edge: Edge, link: Link) -> None:
    """Everything is read again after the reconnect."""
    web = edge.start_web(environ={**SUPERVISE, "KOLLA_ZK_HOSTS": link.hosts}, drain=LONG)
    edge.start_front()
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        link.kill()
        eventually(lambda: "no connection to ZooKeeper" in web.state, "it has noticed")
    eventually(lambda: not edge.container(edge.front).get("code"), "front has refreshed")
    link.launch()
    assert web.ends() == 7
    assert "refreshed: front on edge1" in web.said


def test_a_killed_supervisor_leaves_no_command(edge: Edge) -> None:
    """Not even one that hangs."""
    web = edge.start_web(before_stop={"command": "touch ran; exec sleep 1000", "timeout": LONG})
    web.signal(signal.SIGTERM)
    eventually((web.directory / "ran").exists, "it runs")
    os.kill(web.registrar, signal.SIGKILL)
    eventually(lambda: "sleep" not in web.processes.values(), "the command is killed")


# -- exec mode ------------------------------------------------------------------------------------


def test_stop_drains_and_ends_the_daemon(edge: Edge) -> None:
    web, _ = edge.start_web(environ={}, drain=LONG, before_stop="touch ran"), edge.start_front()
    with edge.held():
        client = stopping(web)
        edge.drains()
        assert not edge.web.instances()
        assert web.running and not heard(web)
    assert ended(client) == (0, "drained; the daemon has ended")
    assert web.ends() == 7
    assert heard(web) == ["SIGTERM"]
    assert (web.directory / "ran").exists()


def test_a_hook_leaves_sigterm_to_the_launcher(edge: Edge) -> None:
    """The instance is not registered again, whatever the daemon says; a second call returns at once."""
    web, front = edge.start_web(environ={}, drain=LONG), edge.start_front()
    assert ended(stopping(web, "--no-term")) == (0, "drained")
    lists(front, "")
    assert web.running and not heard(web)
    assert ended(stopping(web, "--no-term")) == (0, "drained")
    assert not edge.web.instances()
    assert "draining drained" in web.health().stdout
    web.signal(signal.SIGTERM)
    assert web.ends() == 7


def test_a_hook_in_supervise_mode_does_all_the_work(edge: Edge) -> None:
    """SIGTERM is forwarded at once then."""
    web, _ = edge.start_web(drain=LONG, before_stop="echo run >> ran"), edge.start_front()
    assert ended(stopping(web, "--no-term")) == (0, "drained")
    web.signal(signal.SIGTERM)
    assert web.ends() == 7
    assert (web.directory / "ran").read_text() == "run\n"


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_stop_says_what_went_wrong(edge: Edge, environ: dict[str, str]) -> None:
    web = edge.start_web(environ=environ, before_stop="exit 3")
    assert ended(stopping(web)) == (1, "before_stop failed: exit status 3; the daemon has ended")
    assert web.ends() == 7


def test_stop_reports_a_daemon_that_ignores_sigterm(edge: Edge) -> None:
    """In exec mode nobody but the launcher may kill it."""
    stubborn = [*COMMAND[:-1], DAEMON.replace("os._exit(7)", "pass")]
    web = edge.start_web(environ={}, command=stubborn, before_stop="true", stop_grace=0.1)
    client = stopping(web)
    eventually(lambda: heard(web) == ["SIGTERM"], "the daemon gets SIGTERM")
    status, said = ended(client)
    assert (status, said) == (1, "drained; the daemon has not ended 0.1 s after SIGTERM")
    assert web.running


def test_the_end_of_the_registrar_is_not_that_of_the_daemon(edge: Edge) -> None:
    """It is killed after it has sent SIGTERM, which the daemon ignores."""
    stubborn = [*COMMAND[:-1], DAEMON.replace("os._exit(7)", "pass")]
    web = edge.start_web(environ={}, command=stubborn, before_stop="true", stop_grace=LONG)
    client = stopping(web)
    eventually(lambda: heard(web) == ["SIGTERM"], "the daemon gets SIGTERM")
    os.kill(web.registrar, signal.SIGKILL)
    assert ended(client) == (1, f"drained; {UNKNOWN}")
    assert web.running


def test_a_registrar_that_ends_before_it_is_asked_for_sigterm(tmp_path: Path) -> None:
    """The daemon may not even have got SIGTERM."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "stop"))
        listener.listen()
        client = stopping_at(tmp_path)
        listener.settimeout(LIMIT)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"0 1 drained\n")
        assert ended(client) == (1, f"drained; {UNKNOWN}")


@pytest.mark.parametrize(
    ("words", "said"), [((), "drained; the daemon has ended"), (("--no-term",), "drained")]
)
def test_a_daemon_that_ends_at_once_after_it_was_drained(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Both messages of the registrar come together, and it has gone."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "stop"))
        listener.listen()
        client = stopping_at(tmp_path, *words)
        listener.settimeout(LIMIT)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"0 1 drained\n" + ENDED)
        assert ended(client) == (0, said)


def test_stop_without_anything_to_drain(edge: Edge) -> None:
    """A daemon without these keys has no socket; a hook must not fail for that."""
    web = edge.start_web(environ={})
    assert not Path(web.environ["KOLLA_RUN_DIR"], "stop").exists()
    status, said = ended(stopping(web))
    assert status == 1 and said.startswith("nothing to drain: ")
    assert ended(stopping(web, "--no-term"))[0] == 0
    assert web.running and edge.web.instances()


def test_a_registrar_that_is_killed_ends_stop(edge: Edge) -> None:
    web, _ = edge.start_web(environ={}, drain=LONG), edge.start_front()
    with edge.held():
        client = stopping(web)
        edge.drains()
        os.kill(web.registrar, signal.SIGKILL)
        status, said = ended(client)
    assert status == 1 and "registrar, has ended" in said
    assert web.running and not heard(web)
    assert web.health().stdout == "daemon runs, unregistered\n"


# -- what an operator sees ------------------------------------------------------------------------


def test_status_and_explain_show_what_is_waited_for(edge: Edge) -> None:
    web, _ = edge.start_web(drain=LONG), edge.start_front()
    with edge.held():
        web.signal(signal.SIGTERM)
        edge.drains()
        status, explain = edge.ctl("status"), edge.ctl("explain")
    assert re.search(r"web1 +draining +\d.*waits for front on edge1 to refresh \(limit 600 s\)", status), (
        status
    )
    pattern = r"^draining +web/daemon on web1 has been draining for \d.*: waits for front on edge1 to refresh"
    assert re.search(pattern, explain, re.MULTILINE), explain
    assert "ROOT CAUSE" not in explain
    assert web.ends() == 7


def test_a_container_without_lists_says_nothing_of_them(edge: Edge) -> None:
    edge.start_web(environ={})
    assert "lists" not in eventually(lambda: edge.container(edge.web), "it says what it is doing")


def test_a_file_that_is_never_refreshed_lists_nothing(edge: Edge, deployment: Deployment) -> None:
    """Nobody would wait for it in vain."""
    files = {"front.conf": {"dest": str(edge.go.with_name("front.conf"))}}
    daemon = {"command": COMMAND, "ready": {"alive": 0}, "files": files}
    publish(deployment, FRONT, {"service": {"daemon": daemon}}, files={"front.conf": INSTANCES})
    edge._containers.start(FRONT, "edge1")
    edge.front.await_instances(1)
    assert "lists" not in eventually(lambda: edge.container(edge.front), "it says what it is doing")


def test_a_restarted_daemon_has_its_output_and_no_other_descriptors(
    edge: Edge, deployment: Deployment
) -> None:
    """As after its first start."""
    script = "echo begun; echo $(ls /proc/self/fd); exec sleep 1000"
    daemon: dict[str, Any] = {
        "command": ["sh", "-c", script],
        "ready": {"alive": 0},
        "on_change": {"restart": True},
        "files": {"web.conf": {"dest": str(edge.go.with_name("web.conf"))}},
    }
    definition = {"service": {"daemon": daemon}}
    publish(deployment, WEB, definition, files={"web.conf": "old"})
    web = edge._containers.start(WEB, "web1", **SUPERVISE)
    edge.web.await_instances(1)
    publish(deployment, WEB, definition, files={"web.conf": "new"})
    eventually(lambda: "started again" in web.said, "it is started again")
    eventually(lambda: web.said.splitlines().count("begun") == 2, "it prints the same again")
    eventually(lambda: web.said.splitlines().count("0 1 2 3") == 2, "it has the same descriptors")


@pytest.mark.parametrize("environ", [{}, SUPERVISE], ids=["exec", "supervise"])
def test_a_stop_goes_on_without_its_client(edge: Edge, environ: dict[str, str]) -> None:
    """The client is killed while the daemon drains: it would stay alive, and withdrawn for ever."""
    web, _ = edge.start_web(environ=environ, drain=LONG), edge.start_front()
    with edge.held():
        client = stopping(web)
        edge.drains()
        client.kill()
        client.communicate()
    assert web.ends() == 7
    assert heard(web) == ["SIGTERM"]


def test_a_client_that_is_killed_before_it_has_asked_changes_nothing(edge: Edge) -> None:
    web = edge.start_web(environ={}, before_stop="true")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{web.environ['KOLLA_RUN_DIR']}/stop")
    assert ended(stopping(web)) == (0, "drained; the daemon has ended")
    assert web.said.count("running before_stop") == 1
