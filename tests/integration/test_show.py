"""`tests/show.py` from its start to its end, as an operator goes through it, with fewer containers."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.up.containers import processes_of
from tests import show
from tests.conftest import Deployment
from tests.integration.test_status import Screen
from tests.integration.test_up import Run
from tests.processes import command_line
from tests.tool import run_ctl, tool
from tests.waiting import eventually
from tests.zookeeper import Server

REPLICAS = 2
DAEMONS = ("api", "cache", "monitor", "proxy", "queue", "search", "static", "store", "worker")


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, zookeeper: Server) -> Iterator[Run]:
    """The deployment, starting."""
    place = tmp_path_factory.mktemp("s")
    show.write(place / "show", REPLICAS)
    run = Run(
        place,
        {"PATH": os.environ["PATH"], "KOLLA_ZK_HOSTS": zookeeper.hosts},
        *("show", "--in", "kept", "--quiet", "--replicas", "schema=2"),
    )
    yield run
    run.process.kill()
    run.process.wait()


def deployment_of(run: Run) -> Deployment:
    """The deployment, from the file that other shells load, once it is published."""
    run.says("-- starting 20 containers")
    found = re.search(r"KOLLA_ZK_HOSTS=(\S+)", (run.place / "kept/site/env").read_text())
    assert found is not None
    return Deployment(found[1], "/kolla", "show")


def kill(run: Run, name: str) -> None:
    """kill -9 of the daemon of a container."""
    host, role = name.split("/")
    mark = f"KOLLA_STATE_DIR={run.place}/kept/site/{name}/state".encode()
    pids = [
        pid
        for pid in processes_of(run.place / "kept/site")
        if mark in Path(f"/proc/{pid}/environ").read_bytes() and "http.server" in command_line(pid)
    ]
    assert len(pids) == 1, (host, role, pids)
    os.kill(pids[0], signal.SIGKILL)


def test_the_show_starts_breaks_explains_and_repairs_a_deployment(run: Run) -> None:
    """Twenty containers; `tests/show.py` does it with a hundred."""
    shown = deployment_of(run)
    with closing(Screen(shown, "status", "--watch")) as screen:
        screen.shows("show: 10 of 10 services up")
        run.says("-- up; Ctrl-C ends it")
        head, *said = re.split(r" {2,}|, ", tool(shown, "explain").rstrip("\n"))
        assert head == "up"
        assert sorted(said) == sorted([*(f"{role} 2 of 2" for role in DAEMONS), "schema 1 of 1"])
        members = run.place / "kept/site/node-1/proxy/srv/members"
        assert re.fullmatch(r"node-1:\d+\nnode-2:\d+\n", members.read_text())

        # One daemon is killed, and can't come back: what it has to run once more fails.
        tool(shown, "set", "queue_users", "0")
        assert "the next container of infra/queue that starts runs it" in tool(shown, "rerun", "queue/users")
        kill(run, "node-1/queue")
        screen.shows("show: 9 of 10 services up")
        found = eventually(lambda: stuck(shown), "it is stuck")
        assert [cause["text"].split(" on ")[0] for cause in found] == ["queue/users failed"]
        assert found[0]["blocks"] == [["queue/daemon"]]
        assert "queue/daemon (1 of 2 ready)" in run_ctl(shown, "explain", "queue").stdout

        # Whoever starts it again finds the right value.
        tool(shown, "set", "queue_users", "3")
        tool(shown, "wait", "--timeout", "60")
        screen.shows("show: 10 of 10 services up")
    page = run.place / "timeline.html"
    tool(shown, "timeline", "--html", str(page))
    assert "queue/users" in page.read_text()
    assert run.ends(signal.SIGINT) == 0


def stuck(shown: Deployment) -> list[dict[str, Any]]:
    """The causes, once only the failed command is left: before, its container may end or run it again."""
    causes: list[dict[str, Any]] = json.loads(run_ctl(shown, "explain", "--format", "json").stdout)["causes"]
    return causes if {cause["kind"] for cause in causes} == {"failed"} else []
