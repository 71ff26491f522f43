"""Refreshes of a daemon's files: one notification each, all files old or new, `width` instances at a time.

Whole agents with a real ZooKeeper; tests/process/daemon has the decisions. The daemon records each
signal, and the content of its file then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import PROGRAM, Agent, Containers
from tests.support.instances import Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tool import run_ctl
from tests.support.waiting import LIMIT, eventually

SERVICE = "openstack/web"
OTHER = "openstack/api"
DAEMON = """
import os, signal, sys
def heard(number, frame):
    with open("heard", "a") as file:
        file.write(signal.Signals(number).name + " " + open("web.conf").read() + "\\n")
for number in (signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, heard)
with open("started", "a") as file:
    file.write(open("web.conf").read() + "\\n")
open("listens", "w").close()
while True:
    signal.pause()
"""
SLOW_TO_STOP = """
import os, signal, time
def heard(number, frame):
    with open("heard", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
signal.signal(signal.SIGTERM, heard)
with open("started", "a") as file:
    file.write(open("web.conf").read() + "\\n")
open("listens", "w").close()
while not os.path.exists("end"):
    time.sleep(0.02)
"""
HUP = {"signal": "HUP"}


class Web:
    """The service of these tests: its definition, and its containers."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient) -> None:
        self._deployment, self._containers, self._zk = deployment, containers, zk
        self.site = Site(deployment, zk, SERVICE)

    def publish(
        self,
        text: str | None = None,
        file: dict[str, Any] | None = None,
        instances: int = 1,
        **daemon: Any,
    ) -> None:
        """The definition; with `text` the content of its file."""
        whole = {
            "command": [sys.executable, "-I", "-S", "-c", DAEMON],
            "ready": {"alive": 0},
            "on_change": HUP,
        }
        files = {"web.conf": {"dest": "{{ directory }}/web.conf", **(file or {})}}
        definition = {"service": {"instances": instances, "daemon": {**whole, "files": files, **daemon}}}
        publish(self._deployment, SERVICE, definition, files=None if text is None else {"web.conf": text})

    def set(self, **variables: str) -> None:
        """Variables of the deployment, as an operator sets them."""
        for name, value in variables.items():
            path = f"{self._deployment.path}/variables/{name}"
            self._zk.ensure_path(path)
            self._zk.set(path, value.encode())

    def directory(self, host: str = "web1") -> Path:
        """The directory of its next container."""
        return self._containers.directory / f"{len(self._containers._agents)}-{host}"

    def start(self, host: str = "web1", under: Sequence[str] = (), **environ: str) -> Agent:
        """A container that is ready, and whose daemon listens."""
        directory = self.directory(host)
        path = f"{self._deployment.path}/{SERVICE}/variables/{host}/directory"
        self._zk.ensure_path(path)
        self._zk.set(path, str(directory).encode())
        agent = self._containers.start(SERVICE, host, under=under, **environ)
        eventually((directory / "listens").exists, f"the daemon of {host} listens")
        eventually(lambda: "the daemon is ready" in agent.said, f"{host} is ready")
        return agent

    def reason(self, host: str = "web1", field: str = "reason") -> str:
        """The reason in the record of the container on a host."""
        containers = self.site.containers.values()
        return next((str(each.get(field, "")) for each in containers if each["host"] == host), "")

    def code(self, host: str = "web1") -> str:
        """The code beside the reason, for programs."""
        return self.reason(host, "code")

    def explain(self) -> str:
        """The output of `kolla_mesos_ctl explain`."""
        return run_ctl(self._deployment, "explain").stdout


@pytest.fixture
def web(deployment: Deployment, containers: Containers, zk: KazooClient) -> Web:
    return Web(deployment, containers, zk)


def heard(agent: Agent) -> list[str]:
    """The signals that the daemon got, each with the content of its file."""
    path = agent.directory / "heard"
    return path.read_text().splitlines() if path.exists() else []


def refreshed(agent: Agent, times: int = 1) -> None:
    eventually(lambda: agent.said.count("the daemon was notified") >= times, f"refreshed {times} times")


def by_hand(agent: Agent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), "refresh"],
        env=agent.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def refresher(agent: Agent) -> int:
    """The process that refreshes its files; 0 while there is none."""
    return process(agent, b"start refresh")


def process(agent: Agent, words: bytes) -> int:
    """The process of a container whose command line contains these words; 0 while there is none."""
    return next((pid for pid in agent.processes if words in command_line(pid)), 0)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# A check that lasts as long as the file `hold` exists.
HELD = {"check": ["sh", "-c", "while [ -e hold ]; do sleep 0.05; done", "sh", "{}"]}


def hold(agent: Agent) -> None:
    (agent.directory / "hold").touch()


def let_go(agent: Agent) -> None:
    (agent.directory / "hold").unlink()


def is_held(agent: Agent) -> bool:
    """Whether a refresh has reached its check."""
    return "sleep" in agent.processes.values()


# -- one publication ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_changed_variable_reaches_the_daemon(web: Web, mode: str) -> None:
    """The file is there when the signal comes, and the daemon keeps running."""
    web.set(greeting="hello")
    web.publish("{{ greeting }}")
    agent = web.start(KOLLA_START_MODE=mode)
    web.set(greeting="hallo")
    eventually(lambda: heard(agent) == ["SIGHUP hallo"], "it is notified")
    web.set(greeting="salut")
    eventually(lambda: heard(agent) == ["SIGHUP hallo", "SIGHUP salut"], "it is notified again")
    assert (agent.directory / "started").read_text() == "hello\n"
    eventually(lambda: agent.state == "ready", "it is ready, and nothing else is to say")


def test_without_on_change_nothing_is_rendered_again(web: Web, zk: KazooClient) -> None:
    web.set(greeting="hello")
    web.publish("{{ greeting }}", on_change=None)
    agent = web.start()
    web.set(greeting="hallo")
    done = by_hand(agent)
    assert (done.returncode, "no daemon can be refreshed here" in done.stdout) == (1, True)
    assert (agent.directory / "web.conf").read_text() == "hello"


@pytest.mark.parametrize("on_change", [HUP, {"command": "echo SIGHUP $(cat web.conf) >> heard"}])
def test_a_file_that_was_edited_by_hand_notifies_like_any_other(web: Web, on_change: dict[str, str]) -> None:
    """The daemon has not read that edit."""
    web.set(greeting="hello", other="x")
    web.publish("{{ greeting }}{{ '' if other else '' }}", on_change=on_change)
    agent = web.start()
    (agent.directory / "web.conf").write_text("hallo")
    web.set(greeting="hallo")
    eventually(lambda: heard(agent) == ["SIGHUP hallo"], "it is notified")
    web.set(other="y")
    refreshed_by_hand = by_hand(agent)
    assert refreshed_by_hand.stdout == "nothing has changed in its files\n"
    assert heard(agent) == ["SIGHUP hallo"]


def test_instances_that_a_template_lists_are_watched(
    web: Web, containers: Containers, deployment: Deployment
) -> None:
    """With `keep_last`, the last one stays in the file."""
    publish(deployment, OTHER, {"service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}}})
    text = f'{{% for one in ready_instances("{OTHER}") %}}{{{{ one.host }}}} {{% endfor %}}'
    web.publish(text, {"keep_last": True})
    agent = web.start()
    assert (agent.directory / "started").read_text() == "\n"
    first = containers.start(OTHER, "api1")
    eventually(lambda: heard(agent) == ["SIGHUP api1 "], "the first one")
    second = containers.start(OTHER, "api2")
    eventually(lambda: heard(agent)[1:] == ["SIGHUP api1 api2 "], "the second one")
    first.end()
    eventually(lambda: heard(agent)[2:] == ["SIGHUP api2 "], "the first one is gone")
    second.end()
    eventually(lambda: "web.conf stays as it was" in web.reason(), "none is left")
    assert (agent.directory / "web.conf").read_text() == "api2 "
    assert len(heard(agent)) == 3
    containers.start(OTHER, "api3")
    eventually(lambda: heard(agent)[3:] == ["SIGHUP api3 "], "another one")


ISOLATED = ("sh", "-c", 'exec "$1" -I "$2"', "sh")  # starts the agent
PLANTED = "import os; os.close(os.open({!r}, os.O_CREAT)); raise SystemExit(3)"


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_modules_planted_beside_the_daemon_are_not_imported(web: Web, tmp_path: Path, mode: str) -> None:
    """Neither from its working directory, nor from a PYTHONPATH for the daemon."""
    web.set(greeting="hello")
    web.publish("{{ greeting }}", {"check": "test -s {}"})
    found = tmp_path / "found"
    for directory in (web.directory(), tmp_path / "library"):
        directory.mkdir(parents=True)
        for name in ("jinja2", "json", "kazoo", "kolla_mesos_start", "psutil", "random", "signal"):
            (directory / f"{name}.py").write_text(PLANTED.format(str(found)))
    path = f"{tmp_path / 'library'}:"
    agent = web.start(under=ISOLATED, KOLLA_START_MODE=mode, PYTHONPATH=path)
    web.set(greeting="hallo")
    eventually(lambda: heard(agent) == ["SIGHUP hallo"], "it is notified")
    assert not found.exists()


# -- how the daemon is notified ----------------------------------------------------------------------


def test_a_command_can_notify_the_daemon(web: Web) -> None:
    """It runs in the container, with the daemon's environment, after the files are placed."""
    web.publish("old", env={"WORD": "told"}, on_change={"command": 'cp web.conf "$WORD"'})
    agent = web.start()
    web.publish("new", env={"WORD": "told"}, on_change={"command": 'cp web.conf "$WORD"'})
    refreshed(agent)
    assert (agent.directory / "told").read_text() == "new"


def test_if_the_command_fails_the_old_files_are_put_back(web: Web) -> None:
    web.publish("old", on_change={"command": "exit 3"})
    agent = web.start()
    web.publish("new", on_change={"command": "exit 3"})
    eventually(lambda: "the command of on_change failed: exit status 3" in web.reason(), "it failed")
    assert (agent.directory / "web.conf").read_text() == "old"
    web.publish("newer", on_change={"command": "true"})
    refreshed(agent)
    assert (agent.directory / "web.conf").read_text() == "newer"
    eventually(lambda: web.reason() == "", "the reason is gone")


def test_a_restart_replaces_the_daemon(web: Web) -> None:
    """Under supervise the container stays."""
    web.publish("old", on_change={"restart": True})
    agent = web.start(KOLLA_START_MODE="supervise")
    (before,) = eventually(web.site.instances, "it is registered")
    web.publish("new", on_change={"restart": True})
    started = agent.directory / "started"
    eventually(lambda: started.read_text() == "old\nnew\n", "it is started again")
    eventually(lambda: agent.state == "ready", "it is ready again")
    assert list(web.site.instances()) == [before]
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGTERM


def test_a_daemon_can_be_restarted_many_times(web: Web) -> None:
    """Also one that ends at once."""
    command = "touch listens; cat web.conf >>started; exec sleep 1000"
    web.publish("0\n", on_change={"restart": True}, command=["sh", "-c", command])
    agent = web.start(KOLLA_START_MODE="supervise")
    started, numbers = agent.directory / "started", [f"{number}" for number in range(5)]
    for number in numbers[1:]:
        web.publish(f"{number}\n", on_change={"restart": True}, command=["sh", "-c", command])
        done = by_hand(agent)
        assert done.returncode == 0, agent.said
        begun = numbers[: int(number) + 1]
        eventually(lambda begun=begun: started.read_text().split() == begun, "it has begun")  # type: ignore[misc]
    eventually(lambda: agent.state == "ready", "it is ready again")


def test_a_second_restart_while_the_daemon_ends_does_not_signal_it_again(web: Web) -> None:
    """A second SIGTERM may mean: end at once."""
    slow: dict[str, Any] = {
        "on_change": {"restart": True},
        "command": [sys.executable, "-I", "-S", "-c", SLOW_TO_STOP],
        "stop_grace": 600,
    }
    web.publish("old", **slow)
    agent = web.start(KOLLA_START_MODE="supervise")
    for number, text in enumerate(("new", "newer"), 1):
        web.publish(text, **slow)
        refreshed(agent, number)
    (agent.directory / "end").touch()
    eventually(lambda: (agent.directory / "started").read_text() == "old\nnewer\n", "it is started again")
    assert heard(agent) == ["SIGTERM"]


@pytest.mark.parametrize(
    ("mode", "status", "reason"), [(None, 127, "No such file"), (0o644, 126, "Permission denied")]
)
def test_a_daemon_that_cannot_be_restarted_ends_the_container(
    web: Web, zk: KazooClient, deployment: Deployment, mode: int | None, status: int, reason: str
) -> None:
    """As if its program had been missing at the start."""
    command = ["./program", "-I", "-S", "-c", DAEMON]
    web.publish("old", on_change={"restart": True}, command=command)
    program = web.directory() / "program"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    agent = web.start(KOLLA_START_MODE="supervise")
    program.unlink() if mode is None else program.chmod(mode)
    web.publish("new", on_change={"restart": True}, command=command)
    assert agent.ends() == status
    ended = json.loads(zk.get(f"{deployment.path}/status/web1/web/ended")[0])
    assert (ended["stage"], ended["status"], ended["retriable"]) == ("daemon", status, False)
    assert f"it can't be started again, with its new files: {reason}" in ended["reason"]


def test_a_restart_needs_supervise(web: Web, containers: Containers) -> None:
    """In exec mode, no process could start the daemon again."""
    web.publish("old", on_change={"restart": True})
    web.set(directory=str(containers.directory))
    agent = containers.start(SERVICE)
    assert agent.ends() == 65
    assert "set KOLLA_START_MODE to supervise" in agent.ending["reason"]


# -- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "file", "words"),
    [
        ("{{ nowhere }}", {}, "missing: nowhere"),
        (
            "new",
            {"check": "grep -q old {}"},
            "its check refuses the new content: exit status 1; correct its template or variables; run it by"
            " hand to see its output (the content has no newline at its end)",
        ),
        ("new", {"dest": "/proc/web.conf"}, "/proc/web.conf can't be written"),
    ],
)
def test_a_refresh_that_fails_changes_nothing(web: Web, text: str, file: dict[str, str], words: str) -> None:
    """The files stay, the daemon is ready, and the reason is shown."""
    web.publish("old", {"check": "grep -q old {}"})
    agent = web.start()
    web.publish(text, file)
    eventually(lambda: words in web.reason(), "the reason is there")
    assert web.reason().startswith("the refresh of its files failed: ")
    assert web.code() == "refresh-failed"
    assert agent.state.startswith("ready the refresh of its files failed")
    assert agent.health("--ready").returncode == 0
    assert (agent.directory / "web.conf").read_text() == "old"
    assert heard(agent) == []
    assert len(web.site.instances()) == 1
    explained = web.explain()
    assert "ROOT CAUSE  web/daemon on web1 is ready; the refresh of its files failed: " in explained
    web.publish("fixed")
    eventually(lambda: heard(agent) == ["SIGHUP fixed"], "it is tried again at the next change")


def test_a_variable_that_was_missing_is_watched(web: Web) -> None:
    web.publish("old")
    agent = web.start()
    web.publish("{{ nowhere }}")
    eventually(lambda: "missing: nowhere" in web.reason(), "the reason is there")
    web.set(nowhere="here")
    eventually(lambda: heard(agent) == ["SIGHUP here"], "it is notified")


def test_a_file_must_pass_its_check_before_it_is_first_placed(web: Web, containers: Containers) -> None:
    """Else 78."""
    web.publish("wrong", {"check": ["sh", "-c", "exit 2", "sh", "{}"]})
    web.set(directory=str(containers.directory))
    agent = containers.start(SERVICE)
    assert agent.ends() == 78
    assert "config file web.conf: its check refuses the new content: exit status 2" in agent.ending["reason"]
    assert not (containers.directory / "web.conf").exists()


def test_what_a_check_prints_is_discarded(web: Web) -> None:
    """It can be the whole file. In a start, in a refresh, and of a process that the check leaves behind."""
    words = 'cat "$1"; cat "$1" >&2; (cat "$1" >&2) & wait; ! grep -q wrong "$1"'
    web.publish("xyzzy", {"check": ["sh", "-c", words, "sh", "{}"]}, on_change={"command": "echo notified"})
    agent = web.start()
    web.publish("xyzzy 2", {"check": ["sh", "-c", words, "sh", "{}"]}, on_change={"command": "echo notified"})
    refreshed(agent)
    assert "notified" in agent.said  # The output of commands is not the agent's.
    web.publish("xyzzy wrong", {"check": ["sh", "-c", words, "sh", "{}"]})
    eventually(lambda: "refuses the new content: exit status 1" in web.reason(), "it is refused")
    assert "xyzzy" not in agent.said + web.reason()


def test_a_start_that_waits_for_a_check_reports_it(web: Web, containers: Containers) -> None:
    check = "while [ -e {{ directory }}/hold ]; do sleep 0.05; done"
    web.publish("new", {"check": check}, command=["sleep", "1000"])
    web.set(directory=str(containers.directory))
    (containers.directory / "hold").touch()
    agent = containers.start(SERVICE)
    words = "web/daemon waits for the check of its file web.conf"
    eventually(lambda: agent.state == f"waiting {words}", "the probes say so")
    eventually(lambda: web.reason() == words, "the record says so")
    (containers.directory / "hold").unlink()
    agent.says("the daemon is ready")


def test_a_refresh_ends_with_the_daemon(web: Web) -> None:
    """Also if its check hangs."""
    file = {"check": ["sh", "-c", "[ -e first ] && exec sleep 1000; touch first", "sh", "{}"]}
    web.publish("one", file)
    agent = web.start()
    web.publish("two", file)
    eventually(lambda: is_held(agent), "the check hangs")
    agent.process.kill()
    eventually(lambda: not agent.processes, "all its processes have ended")


@pytest.mark.parametrize("stage", ["check", "connect"])
def test_a_refresh_ends_with_the_registrar(web: Web, link: Link, stage: str) -> None:
    """Nobody could notify the daemon: the files stay as they were."""
    web.publish("old", HELD)
    agent = web.start(KOLLA_ZK_HOSTS=link.hosts)
    hold(agent)
    asks = [sys.executable, str(PROGRAM), "refresh"]
    if stage == "connect":
        link.kill()
    web.publish("new", HELD)
    with subprocess.Popen(asks, env=agent.environ) as asking:
        eventually(lambda: refresher(agent), "a refresh runs")
        if stage == "check":
            eventually(lambda: is_held(agent), "its check runs")
        os.kill(agent.registrar, signal.SIGKILL)
        let_go(agent)
        assert asking.wait(LIMIT) == 1
    eventually(lambda: list(agent.processes) == [agent.pid], "nothing but the daemon is left")
    assert (agent.directory / "web.conf").read_text() == "old"
    assert not list(agent.directory.glob(".kolla*"))
    assert agent.health().stdout == "daemon runs, unregistered\n"


# -- by hand, and what is shown ----------------------------------------------------------------------


def test_a_refresh_by_hand_runs_at_once(web: Web) -> None:
    """It returns when the daemon is notified and ready; a failure is its exit status."""
    web.publish("old")
    agent = web.start()
    web.publish("new")
    done = by_hand(agent)
    assert (done.returncode, done.stdout) == (0, "refreshed; the daemon was notified, and is ready\n")
    assert heard(agent) == ["SIGHUP new"]
    web.publish("{{ nowhere }}")
    done = by_hand(agent)
    assert done.returncode == 78
    assert "missing: nowhere" in done.stdout


def test_a_failed_signal_is_repeated_at_the_next_refresh(web: Web) -> None:
    """The new files are placed already."""
    other_user = DAEMON.replace("while True", "os.setuid(65534)\nwhile True")
    command = [sys.executable, "-I", "-S", "-c", other_user]
    web.publish("old", command=command)
    # The registrar is root without the right to signal processes of other users.
    agent = web.start(under=("setpriv", "--bounding-set=-kill"))
    web.publish("new", command=command)
    eventually(lambda: "SIGHUP can't be sent to the daemon" in web.reason(), "the reason is there")
    assert by_hand(agent).returncode == 1
    web.publish("new", command=command, on_change={"command": "cp web.conf told"})
    refreshed(agent)
    assert (agent.directory / "told").read_text() == "new"


# -- one after the other -----------------------------------------------------------------------------


def fleet(web: Web, text: str, width: int, **daemon: Any) -> dict[str, Agent]:
    """Three containers that are ready."""
    web.publish(text, instances=3, width=width, **daemon)
    return {host: web.start(host, KOLLA_ZK_SESSION_TIMEOUT="4") for host in ("w1", "w2", "w3")}
