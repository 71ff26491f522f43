"""What the definition has no more is removed at a start and at a refresh, if nobody has changed it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.tool import run_ctl
from tests.support.waiting import eventually

SERVICE = "openstack/web"
DAEMON = """
import signal
def heard(number, frame):
    open("heard", "a").write("HUP\\n")
signal.signal(signal.SIGHUP, heard)
open("listens", "w").close()
while True:
    signal.pause()
"""


class Site:
    """A daemon with files in a directory that its containers share, as they share a mounted state."""

    def __init__(self, deployment: Deployment, containers: Containers, zk: KazooClient, home: Path) -> None:
        self._deployment, self._containers, self.zk = deployment, containers, zk
        self.home, self.path = home / "etc", f"{deployment.path}/{SERVICE}"
        self._state = home / "state"
        self._state.mkdir()
        self.record = self._state / "written"

    def publish(
        self,
        *names: str,
        content: dict[str, str] | None = None,
        commands: dict[str, Any] | None = None,
        **daemon: Any,
    ) -> None:
        """Optional files of these names, with a content for each, or only for those in `content`."""
        files = {name: {"dest": f"{self.home}/{name}", "optional": True} for name in names}
        whole = {
            "command": [sys.executable, "-I", "-S", "-c", DAEMON],
            "ready": {"alive": 0},
            "on_change": {"signal": "HUP"},
            "files": files,
            **daemon,
        }
        daemon = {key: each for key, each in whole.items() if each is not None}
        definition = {"commands": commands or {}, "service": {"daemon": daemon}}
        texts = dict.fromkeys(names, "text") if content is None else content
        publish(self._deployment, SERVICE, definition, files=texts)

    def unpublish(self, name: str) -> None:
        self.zk.delete(f"{self.path}/files/{name}")

    def start(self, **environ: str) -> Agent:
        agent = self._containers.start(SERVICE, KOLLA_STATE_DIR=str(self._state), **environ)
        eventually((agent.directory / "listens").exists, "the daemon listens")
        eventually(lambda: "the daemon is ready" in agent.said, "the daemon is ready")
        return agent

    def check(self) -> tuple[int, str]:
        """The status and the output of `check`."""
        agent = self._containers.start(SERVICE, KOLLA_STATE_DIR=str(self._state), words=["check"])
        return agent.ends(), agent.said

    @property
    def names(self) -> list[str]:
        return sorted(os.listdir(self.home))


@pytest.fixture
def site(deployment: Deployment, containers: Containers, zk: KazooClient, tmp_path: Path) -> Site:
    return Site(deployment, containers, zk, tmp_path)


def heard(agent: Agent) -> int:
    path = agent.directory / "heard"
    return path.read_text().count("HUP") if path.exists() else 0


def stop(agent: Agent) -> None:
    agent.process.terminate()
    agent.ends()


def test_the_content_of_an_optional_file_is_removed(site: Site) -> None:
    site.publish("a.conf", "b.conf")
    agent = site.start()
    assert site.names == ["a.conf", "b.conf"]
    site.unpublish("b.conf")
    eventually(lambda: heard(agent) == 1, "the daemon is notified of a removal")
    assert site.names == ["a.conf"]
    assert f"{site.home}/b.conf: removed" in agent.said
    site.publish("a.conf", "b.conf")
    eventually(lambda: heard(agent) == 2, "the file is back")
    assert site.names == ["a.conf", "b.conf"]


def test_a_refresh_removes_what_the_definition_has_no_more(site: Site) -> None:
    """An entry, and the old file of one with a new dest; later changes go on to arrive."""
    site.publish("a.conf", "b.conf")
    agent = site.start()
    site.publish("a.conf")
    eventually(lambda: heard(agent) == 1, "the daemon is notified of a removed entry")
    assert site.names == ["a.conf"]
    site.publish("a.conf", files={"a.conf": {"dest": f"{site.home}/c.conf"}})
    eventually(lambda: heard(agent) == 2, "the daemon is notified of another dest")
    assert site.names == ["c.conf"]
    site.publish(files=None)
    eventually(lambda: heard(agent) == 3, "the daemon is notified of the last one")
    assert site.names == []


def test_a_start_removes_what_earlier_ones_have_written(site: Site) -> None:
    """A daemon without `on_change` keeps it until then."""
    site.publish("a.conf", "b.conf", on_change=None)
    stop(site.start())
    site.publish("a.conf", on_change=None)
    status, said = site.check()
    assert (status, "b.conf (would be removed" in said) == (1, True), said
    assert site.names == ["a.conf", "b.conf"]
    stop(site.start())
    assert site.names == ["a.conf"]
    assert site.check()[0] == 0


@pytest.mark.parametrize("what", ["edited", "link", "directory"])
def test_what_somebody_has_changed_stays(site: Site, what: str) -> None:
    site.publish("a.conf", "b.conf")
    agent = site.start()
    there = site.home / "b.conf"
    if what == "edited":
        there.write_text("edited")
    else:
        there.unlink()
        there.symlink_to("a.conf") if what == "link" else there.mkdir()
    site.unpublish("b.conf")
    eventually(lambda: heard(agent) == 1, "the daemon is notified")
    assert site.names == ["a.conf", "b.conf"]
    assert "b.conf is no longer in the definition, but " in agent.said
    stop(agent)
    assert "b.conf is no longer" not in site.start().said  # It is said once.


def test_what_the_agent_has_only_found_stays(site: Site) -> None:
    site.home.mkdir()
    for name in ("a.conf", "b.conf"):
        (site.home / name).write_text("text")
        (site.home / name).chmod(0o600)
    site.publish("a.conf", "b.conf")
    agent = site.start()
    site.unpublish("b.conf")
    eventually(lambda: heard(agent) == 1, "the daemon is notified")
    assert site.names == ["a.conf", "b.conf"]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"/etc/passwd": 1}',
        b'{"/etc/passwd": ["x", [[1]]]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_ignored(site: Site, record: bytes) -> None:
    """With one line that says so; the next files are recorded again."""
    site.publish("a.conf", "b.conf")
    stop(site.start())
    site.record.write_bytes(record)
    site.publish("a.conf", content={"a.conf": "new"})
    agent = site.start()
    assert agent.said.count("is ignored") == 1
    assert site.names == ["a.conf", "b.conf"]
    assert list(json.loads(site.record.read_bytes())) == [f"{site.home}/a.conf"]


def test_a_failed_refresh_puts_removed_files_back(site: Site) -> None:
    site.publish("a.conf", "b.conf", on_change={"command": "test -e good"})
    agent = site.start()
    site.unpublish("b.conf")
    eventually(lambda: "the refresh of the daemon's files failed" in agent.said, "the command fails")
    assert site.names == ["a.conf", "b.conf"]
    (agent.directory / "good").touch()
    site.publish("a.conf", "b.conf", content={"a.conf": "new"}, on_change={"command": "test -e good"})
    eventually(lambda: site.names == ["a.conf"], "the next refresh removes the file")


def test_with_copy_once_nothing_is_removed(site: Site) -> None:
    site.publish("a.conf", "b.conf")
    stop(site.start(KOLLA_CONFIG_STRATEGY="COPY_ONCE"))
    site.publish("a.conf")
    stop(site.start(KOLLA_CONFIG_STRATEGY="COPY_ONCE"))
    site.publish(files=None)
    stop(site.start(KOLLA_CONFIG_STRATEGY="COPY_ONCE"))
    assert site.names == ["a.conf", "b.conf"]


def test_a_file_that_another_command_writes_now_stays(site: Site) -> None:
    site.publish("a.conf", "b.conf")
    agent = site.start()
    moved = {"prepare": {"command": "true", "files": {"b.conf": {"dest": f"{site.home}/b.conf"}}}}
    site.publish("a.conf", commands=moved, content={"a.conf": "new", "b.conf": "text"})
    eventually(lambda: heard(agent) == 1, "the daemon is notified")
    assert site.names == ["a.conf", "b.conf"]


def test_status_and_wait_see_a_removal(site: Site, deployment: Deployment) -> None:
    """A daemon without `on_change` must be restarted, and one with it refreshes its files."""
    site.publish("a.conf", "b.conf", on_change=None)
    agent = site.start()
    wait = ("wait", SERVICE, "--timeout", "1")
    assert run_ctl(deployment, *wait).returncode == 0
    site.unpublish("b.conf")
    assert "runs an older file b.conf (removed): restart it" in run_ctl(deployment, "explain").stdout
    assert run_ctl(deployment, *wait).returncode != 0
    stop(agent)
    site.publish("a.conf", "b.conf")
    agent = site.start()
    site.unpublish("b.conf")
    eventually(lambda: heard(agent) == 1, "the daemon is notified")
    assert run_ctl(deployment, "wait", SERVICE, "--timeout", "20").returncode == 0
