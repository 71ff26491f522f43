"""Servers that answer reads only, or do not vote: a follower without its quorum, and an observer.

With `readonlymode.enabled`, a server that has lost its quorum continues to answer reads. Its data may be old,
and sessions may have expired at the other servers, so nothing may rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.agent.test_one_time import Site
from tests.agent.test_one_time import site as site
from tests.conftest import Deployment, connected, made
from tests.support.guarded import lives
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

READ_ONLY_MODE = ("-Dreadonlymode.enabled=true",)
WHY = "not serving yet (it is starting, or has no quorum)"


class Ground(NamedTuple):
    """An ensemble with an observer whose servers become read-only without a quorum."""

    ensemble: Ensemble
    zk: KazooClient


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("zk")
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(directory, observers=1, java=READ_ONLY_MODE))
        yield Ground(ensemble, stack.enter_context(contextmanager(connected)(ensemble)))


@pytest.fixture
def deployment(ground: Ground) -> Iterator[Deployment]:
    yield from made(ground.ensemble, ground.zk)


@pytest.fixture
def zk(ground: Ground) -> KazooClient:
    return ground.zk


def test_an_observer_serves_agents_and_the_tool(ground: Ground, site: Site) -> None:
    """What they write reaches the others by way of it, and they see what others write."""
    (observer,) = ground.ensemble.observers
    by_observer = site.deployment._replace(hosts=observer.hosts)
    site.publish(sync=site.once())
    holder = site.start("web1", KOLLA_ZK_HOSTS=observer.hosts)
    site.running()
    taker = site.start("web2", KOLLA_ZK_HOSTS=ground.ensemble.leader.hosts)
    site.queued("web1", "web2")
    site.let_go()
    assert (holder.ends(), taker.ends(), len(site.runs())) == (0, 0, 1)
    assert site.state() == "done"
    assert "infra/db  1 of 1 done" in ctl(by_observer, "status").stdout
    ctl(by_observer, "rerun", "db/sync")
    assert site.state() != "done"


def test_a_read_only_server_is_refused(ground: Ground, site: Site) -> None:
    """Agents and the tool say so. A one-time command loses its lease, and runs again with a quorum."""
    follower, other = ground.ensemble.followers
    alone = {"KOLLA_ZK_HOSTS": follower.hosts, "KOLLA_ZK_SESSION_TIMEOUT": "4"}
    site.publish(sync=site.once())
    holder = site.start("web1", **alone)
    run = site.running()
    with ExitStack() as stack:
        stack.callback(ground.ensemble.mend)
        for server in (other, ground.ensemble.leader):
            server.kill()
        eventually(lambda: follower.mode == "read-only", "the follower is read-only")
        eventually(lambda: not lives(run.pid), "the command has lost its lease")
        late = site.start("web2", **alone, KOLLA_ZK_CONNECT_TIMEOUT="6")
        refused = ctl(site.deployment._replace(hosts=follower.hosts), "status", status=69)
        assert WHY in refused.stderr
        assert late.ends() == 69
        assert WHY in late.said
        assert len(site.runs()) == 1
    site.running(2)
    site.let_go()
    assert holder.ends() == 0
