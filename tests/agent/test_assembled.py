"""Refreshes during which something else fails or changes.

Whole agents with a real ZooKeeper. The check of a file (`HELD`) holds a refresh while the file `hold` exists.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.daemon.control import TAKES_LONG
from tests.agent.test_refresh import (
    HELD,
    HUP,
    Web,
    by_hand,
    heard,
    hold,
    is_held,
    let_go,
    process,
    refreshed,
    refresher,
)
from tests.agent.test_refresh import web as web
from tests.conftest import Deployment
from tests.support.agents import PROGRAM, Agent
from tests.support.link import Link
from tests.support.tool import tool
from tests.support.unprivileged import launcher
from tests.support.waiting import LIMIT, eventually

FAILED = "the refresh of its files failed"


def asks(agent: Agent) -> subprocess.Popen[str]:
    """A refresh by hand that has been started."""
    argv = [sys.executable, str(PROGRAM), "refresh"]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=agent.environ, stdout=pipe, stderr=pipe, text=True)


def waits(agent: Agent) -> None:
    """Wait until a refresh by hand is connected to the registrar."""
    path = str(agent.directory / "run/refresh")
    eventually(lambda: Path("/proc/net/unix").read_text().count(path) == 2, "it waits for the answer")


# -- the end of a daemon, or of a container -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_daemon_that_dies_during_a_refresh_ends_its_container(web: Web, mode: str) -> None:
    """With its own status; registrar and refresh end too."""
    web.publish("old", HELD)
    agent = web.start(KOLLA_START_MODE=mode)
    hold(agent)
    web.publish("new", HELD)
    eventually(lambda: is_held(agent), "a refresh runs")
    os.kill(process(agent, b"signal.pause"), signal.SIGKILL)
    assert agent.ends() == 128 + signal.SIGKILL
    eventually(lambda: not agent.processes, "all its processes have ended")
    assert "Traceback" not in agent.said
    eventually(lambda: web.site.state() == "waiting", "it has left nothing that says it is ready")


SLOW_TO_STOP = """
import os, signal, sys, time
def stopped(number, frame):
    open("stopped", "w").close()
    while os.path.exists("stays"):
        time.sleep(0.02)
    sys.exit(3)
signal.signal(signal.SIGTERM, stopped)
with open("started", "a") as file:
    file.write("started\\n")
open("stays", "w").close()
open("listens", "w").close()
while True:
    signal.pause()
"""


def test_a_container_that_is_stopping_does_not_restart_its_daemon(web: Web) -> None:
    """Although a refresh ends meanwhile."""
    kind: dict[str, Any] = {
        "on_change": {"restart": True},
        "command": [sys.executable, "-I", "-S", "-c", SLOW_TO_STOP],
    }
    web.publish("old", HELD, **kind)
    agent = web.start(KOLLA_START_MODE="supervise")
    hold(agent)
    web.publish("new", HELD, **kind)
    eventually(lambda: is_held(agent), "a refresh runs")
    agent.signal(signal.SIGTERM)
    eventually((agent.directory / "stopped").exists, "the daemon is ending")
    let_go(agent)
    agent.says("the daemon was notified")
    (agent.directory / "stays").unlink()
    assert agent.ends() == 3
    assert (agent.directory / "started").read_text() == "started\n"


def test_a_refresh_does_not_restart_a_daemon_that_is_not_for_its_image(
    web: Web, deployment: Deployment
) -> None:
    """The daemon keeps running, and the reason is shown."""
    kind: dict[str, Any] = {"on_change": {"restart": True}}
    web.publish("old", generations=["1.0", "2.0"], **kind)
    agent = web.start(KOLLA_START_MODE="supervise", KOLLA_GENERATION="1.0")
    web.publish("new", generations=["2.0"], **kind)
    said = "this image is of generation 1.0, and the daemon's definition lists 2.0"
    eventually(lambda: said in web.reason(), "it is refused")
    assert said in tool(deployment, "explain", status=1)
    assert (agent.directory / "started").read_text() == "old\n"
    assert (agent.directory / "web.conf").read_text() == "old"


# -- the operator's tool --------------------------------------------------------------------------


def test_a_definition_that_changes_no_file_counts_as_refreshed(web: Web, deployment: Deployment) -> None:
    """Unless the daemon would be started otherwise."""
    web.publish("old")
    agent = web.start()
    web.publish("old", generations=["1.0"])
    eventually(lambda: "older definition" not in tool(deployment, "status"), "it is up to date")
    web.publish("old", env={"A": "b"})
    assert by_hand(agent).returncode == 0
    assert "older definition" in tool(deployment, "status")


def test_an_unreadable_definition_leaves_the_container_ready(
    web: Web, deployment: Deployment, zk: KazooClient
) -> None:
    web.publish("old")
    agent = web.start()
    zk.set(f"{deployment.path}/{web.site.service}", b"{")
    assert "bad JSON" in by_hand(agent).stdout
    said = tool(deployment, "status", status=1)
    assert "unreadable" in said
    assert "unready" not in said
    assert heard(agent) == []


# -- outages ------------------------------------------------------------------------


def test_an_outage_loses_no_refresh(web: Web, link: Link) -> None:
    """It connects later than a start would have given up."""
    web.publish("old")
    agent = web.start(KOLLA_ZK_HOSTS=link.hosts, KOLLA_ZK_CONNECT_TIMEOUT="1")
    os.kill(agent.registrar, signal.SIGSTOP)
    web.publish("new")
    asking = asks(agent)
    link.kill()
    os.kill(agent.registrar, signal.SIGCONT)
    eventually(lambda: refresher(agent), "a refresh runs")
    begun = time.monotonic()
    eventually(lambda: time.monotonic() > begun + 2 or not refresher(agent), "a start would have given up")
    link.launch()
    assert asking.communicate(timeout=LIMIT) == ("refreshed; the daemon was notified, and is ready\n", "")
    assert heard(agent) == ["SIGHUP new"]


def test_a_missing_directory_of_variables_is_reported(web: Web, tmp_path: Path) -> None:
    """Not in the termination log, which is for the end of the container."""
    given = tmp_path / "given"
    given.mkdir()
    (given / "word").write_text("secret")
    web.publish("old {{ word }}")
    agent = web.start(KOLLA_VARIABLES_DIR=str(given))
    given.rename(tmp_path / "away")
    web.publish("new {{ word }}")
    eventually(lambda: "KOLLA_VARIABLES_DIR" in web.reason(), "it is named")
    assert not (agent.directory / "termination-log").exists()
    (tmp_path / "away").rename(given)
    assert by_hand(agent).returncode == 0
    assert heard(agent) == ["SIGHUP new secret"]


# -- another on_change ------------------------------------------------------------------------------------

COMMAND = {"command": "cat web.conf >>told"}


@pytest.mark.parametrize(
    ("before", "after", "signals", "told"),
    [
        (HUP, COMMAND, [], "new"),
        (COMMAND, HUP, ["SIGHUP new"], ""),
    ],
)
def test_the_published_on_change_counts(
    web: Web, before: dict[str, str], after: dict[str, str], signals: list[str], told: str
) -> None:
    """Not the one of the start."""
    web.publish("old", on_change=before)
    agent = web.start()
    web.publish("new", on_change=after)
    refreshed(agent)
    eventually(lambda: heard(agent) == signals, "it has heard all")
    path = agent.directory / "told"
    assert (path.read_text() if path.exists() else "") == told


def test_a_later_restart_needs_supervise_too(web: Web) -> None:
    web.publish("old")
    agent = web.start()
    web.publish("new", on_change={"restart": True})
    eventually(lambda: "set KOLLA_START_MODE to supervise" in web.reason(), "it is refused")
    assert ((agent.directory / "web.conf").read_text(), heard(agent)) == ("old", [])


def test_if_on_change_is_removed_the_files_stay(web: Web) -> None:
    web.publish("old")
    agent = web.start()
    web.publish("new", on_change=None)
    eventually(lambda: "no on_change any more" in web.reason(), "the reason is shown")
    assert web.code() == "restart"
    assert "no on_change any more" in by_hand(agent).stdout
    assert ((agent.directory / "web.conf").read_text(), heard(agent)) == ("old", [])
    web.publish("newer")
    eventually(lambda: heard(agent) == ["SIGHUP newer"], "they follow again")
    eventually(lambda: web.reason() == "", "the reason is gone")


# -- refreshes by hand -----------------------------------------------------------------------------------


def test_a_refresh_by_hand_can_be_interrupted(web: Web) -> None:
    """No traceback, and the refresh continues."""
    web.publish("old", HELD)
    agent = web.start()
    hold(agent)
    web.publish("new", HELD)
    asking = asks(agent)
    eventually(lambda: is_held(agent), "a refresh runs")
    waits(agent)
    asking.send_signal(signal.SIGINT)
    said, complained = asking.communicate(timeout=LIMIT)
    assert (asking.returncode, said, complained.replace(f"{TAKES_LONG}\n", "")) == (-signal.SIGINT, "", "")
    let_go(agent)
    eventually(lambda: heard(agent) == ["SIGHUP new"], "it is notified")


def test_a_refresh_by_hand_ends_if_the_registrar_is_killed(web: Web) -> None:
    web.publish("old")
    agent = web.start()
    os.kill(agent.registrar, signal.SIGSTOP)
    asking = asks(agent)
    waits(agent)
    os.kill(agent.registrar, signal.SIGKILL)
    said, complained = asking.communicate(timeout=LIMIT)
    assert (asking.returncode, said, complained) == (1, "the daemon ended during the refresh\n", "")


def test_a_refresh_by_hand_needs_the_containers_user_and_run_directory(web: Web) -> None:
    """Otherwise the message says what to do."""
    web.publish("old")
    agent = web.start()
    rows: list[tuple[Sequence[str], dict[str, str], str]] = [
        (launcher(12345), {}, "run this as the agent's user, or as root"),
        ((), {"KOLLA_RUN_DIR": "/nowhere"}, "/nowhere/refresh can't be connected to (No such file"),
        ((), {"KOLLA_RUN_DIR": "/" + 200 * "x"}, "can't be connected to (AF_UNIX path too long)"),
    ]
    for under, environ, words in rows:
        done = subprocess.run(
            [*under, sys.executable, str(PROGRAM), "refresh"],
            env={**agent.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, "")
        assert words in done.stdout


def test_a_refresh_by_hand_with_a_full_disk_keeps_its_status(web: Web) -> None:
    web.publish("old")
    agent = web.start()
    with Path("/dev/full").open("w") as full:
        asking = subprocess.run(
            [sys.executable, str(PROGRAM), "refresh"],
            env=agent.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (asking.returncode, asking.stderr) == (0, b"")
