"""The runner of any deployment, with one that it knows nothing about."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up import up
from kolla_mesos_start.ctl.up.containers import processes_of
from kolla_mesos_start.ctl.up.local_deployment import LocalDeployment
from kolla_mesos_start.ctl.up.progress import Size
from kolla_mesos_start.ctl.up.up import STOP_SIGNALS, Restarts, Up
from kolla_mesos_start.errors import BadUsage
from tests.conftest import Deployment
from tests.publishing import write_files

BASE = "commands: {prepare: {command: 'true'}}\nservice: {daemon: {command: sleep 600, ready: {alive: 0}}}\n"
NEEDY = """
service:
  daemon: {command: sleep 600, dependencies: [base/daemon], ready: {alive: 0}}
"""


class Small(Up[LocalDeployment]):
    """Two services, each in one container."""

    def __init__(self, source: Path, directory: Path) -> None:
        super().__init__(directory, "small", stays=False)
        self.source = source

    def deployment(self, environ: Mapping[str, str]) -> LocalDeployment:
        made = LocalDeployment(self.source, self.directory, None, environ, self.prefix, self.name)
        for role in ("base", "needy"):
            made.add(f"small/{role}", "here")
        return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with nothing but definitions."""
    return write_files(
        tmp_path / "source",
        services__small__base__definition_yml=BASE,
        services__small__needy__definition_yml=NEEDY,
    )


@pytest.fixture
def small(
    source: Path,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Small]:
    """A runner that publishes below the test's own deployment; its changes to this process are undone."""
    monkeypatch.setenv("KOLLA_ZK_HOSTS", deployment.hosts)
    monkeypatch.setenv("KOLLA_SYSTEM_PREFIX", deployment.path)
    handlers = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    yield Small(source, tmp_path_factory.mktemp("u") / "run")
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


def test_any_deployment_comes_up_is_shown_and_ends(
    small: Small, zk: KazooClient, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each change, the timeline, the places; then no process and no znode is left."""
    assert small.main() == 0
    shown = capsys.readouterr().out
    headings = re.findall(r"^-- (.*)$", shown, re.MULTILINE)
    assert [heading.split()[0] for heading in headings] == [
        "ZooKeeper:",
        "publish",
        "starting",
        "the",
        "ending",
    ]
    for container in ("base@here", "needy@here"):
        assert re.search(rf"\d\.\d\d s  {container} +ready\n", shown)
    assert re.search(r"\n\* base/daemon \(here\) .*\n\* needy/daemon \(here\) ", shown)
    assert re.search(r"\n  needy@here +\S+/here/needy/  log\n", shown)
    assert list(processes_of(small.directory)) == []
    assert zk.get_children(deployment.path) == []


def test_where_things_lie_is_folded_on_a_terminal(
    small: Small, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "terminal", lambda: Size(30, 24))
    assert small.main() == 0
    assert re.search(r"\n  needy@here\s+\S+/here/needy/\n      log\n", capsys.readouterr().out)


def test_a_deployment_that_fails_shows_the_log_of_what_has_ended(
    small: Small, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of nothing else."""
    write_files(source, services__small__base__definition_yml=BASE.replace("'true'", "'echo no disk; false'"))
    assert small.main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith(
        "small: the deployment did not come up\nROOT CAUSE  base/prepare failed on here "
    )
    assert "\n--- base@here: ended with status 1;" in errors
    assert "no disk" in errors
    assert "--- needy@here" not in errors
    assert list(processes_of(small.directory)) == []


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_a_signal_ends_it_before_the_next_step(
    small: Small, signum: int, monkeypatch: pytest.MonkeyPatch, zk: KazooClient, deployment: Deployment
) -> None:
    """The status is the signal's; nothing has been published or started."""
    monkeypatch.setattr(up, "end_all", lambda directory: os.kill(os.getpid(), signum))
    assert small.main() == 128 + signum
    assert small.running is None
    assert zk.get_children(deployment.path) == []


def test_a_directory_too_long_for_sockets_is_refused(source: Path) -> None:
    """Before anything is removed or made in it."""
    directory = source / ("x" * 100)
    with pytest.raises(BadUsage, match="too long for the sockets in it"):
        Small(source, directory).run()
    assert not directory.exists()


def test_what_ends_again_and_again_is_started_ever_later(capsys: pytest.CaptureFixture[str]) -> None:
    """Each by itself; what has lived for a while begins at the start again."""
    instant = 0.0
    restarts = Restarts(lambda: instant)

    def waited() -> float:
        """Until it is started again."""
        nonlocal instant
        ended = instant
        while not restarts.is_due("db@here"):
            instant += 0.5
        return instant - ended

    assert not restarts.is_due("job@here", 78)
    said = capsys.readouterr().out
    assert (
        said == "  job@here: starting it again in 1 s (status 78 is final unless the published data change)\n"
    )
    assert [waited() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert not restarts.is_due("web@here")
    instant += 31
    assert waited() == 1
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  db@here: starting it again in 2 s",
        "  db@here: starting it again in 4 s",
    ]
