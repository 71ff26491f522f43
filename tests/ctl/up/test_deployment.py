"""Any deployment directory run on this machine, with real agents and a real ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.timeline import critical_path
from tests.conftest import Deployment
from tests.support.local_deployment import LocalDeployment
from tests.support.publishing import write_files
from tests.support.tool import operator_client
from tests.support.waiting import eventually

PAIR = """
name: pair/twin
commands:
  prepare: {command: "true"}
service:
  daemon:
    command: sleep 600
    dependencies: [twin/prepare]
    ready: {alive: 0}
"""
USER = """
name: pair/user
service:
  daemon:
    command: sleep 600
    dependencies:
      - {members: pair/twin, count: 2}
      - {path: twin/prepare, scope: local}
      - {path: twin/daemon, count: "{{ twins }}"}
    ready: {alive: 0}
"""


@pytest.fixture
def pairs(
    deployment: Deployment, zk: KazooClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalDeployment]:
    """Two twins and one that needs both, each on a host of its own but one; not published yet."""
    place = tmp_path_factory.mktemp("s")  # Short: sockets will lie in it.
    source = write_files(
        place / "source",
        services__pair__twin__definition_yml=PAIR,
        services__pair__user__definition_yml=USER,
        variables__twins="2",
    )
    environ = {"PATH": os.environ["PATH"], "KOLLA_ZK_HOSTS": deployment.hosts}
    client = operator_client(zk, deployment.prefix, "pairs")
    pairs = LocalDeployment(source, place / "run", client, environ, deployment.prefix, "pairs")
    for host in ("one", "two"):
        pairs.add("pair/twin", host, values={"number": host})
    pairs.add("pair/user", "one")
    yield pairs
    pairs.end()
    client.close()


def test_the_timeline_knows_everything_that_can_be_waited_for(pairs: LocalDeployment) -> None:
    """Members, a plain command on this host, and as many instances as a template says."""
    pairs.publish()
    pairs.start(seed=1)
    eventually(lambda: pairs.is_up, "all are ready")
    assert not pairs.broken
    steps = pairs.steps()
    finished = critical_path.Finished(steps)
    (user,) = (step for step in steps if step.container == "user@one")
    needed = [(step.name, step.host) for step in critical_path.needed(user, finished)]
    assert {name for name, _ in needed} == {"twin/.party", "twin/prepare", "twin/daemon"}
    assert ("twin/prepare", "one") in needed
    for name in ("twin/.party", "twin/daemon"):
        # Of two that have finished in the same millisecond the later one in the list.
        last = sorted((step for step in steps if step.name == name), key=lambda step: step.finished)[-1]
        assert (name, last.host) in needed
    for step in steps:
        assert step.started >= critical_path.earliest_start(step, finished, pairs.started_at) - 0.002, step


def test_a_daemon_that_is_restarted_on_a_change_is_supervised(
    pairs: LocalDeployment, zk: KazooClient
) -> None:
    """In exec mode its agent would refuse it. The others are started as ever; the timeline has all."""
    restarted = PAIR + "    on_change: {restart: true}\n    files: {given: {dest: '{{ root }}/given'}}\n"
    write_files(
        pairs.source, services__pair__twin__definition_yml=restarted, services__pair__twin__files__given="old"
    )
    pairs.publish()
    pairs.start(seed=3)
    eventually(lambda: pairs.is_up, "all are ready")
    modes = [each.environ.get("KOLLA_START_MODE") for each in pairs.containers]
    assert modes == ["supervise", "supervise", None]
    daemons = [step.container for step in pairs.steps() if step.name.endswith("/daemon")]
    assert sorted(daemons) == ["twin@one", "twin@two", "user@one"]
    zk.set(f"{pairs.path}/pair/twin/files/given", b"new")
    again = "the daemon is started again"
    eventually(lambda: all(again in each.log_end() for each in pairs.containers[:2]), "both are restarted")
