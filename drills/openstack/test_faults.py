"""Faults while a whole OpenStack starts and while it runs, and what `explain` says of them meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from drills.openstack.deployment import OpenStack
from kolla_mesos_start.ctl.live import explanation
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import connected
from tests.support.tool import operator_client
from tests.support.zookeeper import Ensemble, Server

START = 40.0  # seconds: about as long as a start takes
DATABASE_AWAY = 30.0  # seconds
LOOK_EVERY = 1.0  # seconds
SEEN_WITHIN = 15.0  # seconds: the session of a dead registrar, and a start
NOT_YET = 3.0  # seconds in which containers that were started all at once show themselves

# What is slow, and a load balancer that does not know of a backend yet.
SLOW_AT_MOST = {"not ready", "outside"}

pytestmark = pytest.mark.timeout(1200)


class Seen(NamedTuple):
    """What `explain` calls stuck at one moment: kinds, and the nodes at which it is."""

    at: float  # seconds, by time.monotonic
    stuck: frozenset[tuple[str, str]]


class Explaining:
    """Asks again and again, in a thread of its own, as an operator would."""

    def __init__(self, client: OperatorClient, cloud: OpenStack) -> None:
        self._live = DeploymentReader(Znodes(cloud.prefix, cloud.id, "", ""), cloud.given)
        self._client, self._ended = client, threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.seen: list[Seen] = []
        self._thread.start()

    def _ask(self) -> None:
        while not self._ended.wait(LOOK_EVERY):
            _, found = explanation.read_and_explain(lambda: Mirror(self._client, self._live).deployment())
            stuck = frozenset((each.kind, each.nodes[0]) for each in found if each.is_stuck)
            self.seen.append(Seen(time.monotonic(), stuck))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()

    def stuck(self, since: float, until: float) -> frozenset[tuple[str, str]]:
        """All that was stuck at any moment between the two."""
        return frozenset().union(*(each.stuck for each in self.seen if since <= each.at <= until))

    def first(self, node: str, since: float) -> float | None:
        """When something was stuck there for the first time, in seconds since then."""
        later = (each for each in self.seen if each.at >= since)
        times = (each.at - since for each in later if node in {where for _, where in each.stuck})
        return next(times, None)


@contextmanager
def deployed(
    servers: Server | Ensemble, programs: Path, place: Path
) -> Iterator[tuple[OpenStack, Explaining]]:
    """The deployment, published, and started by the test."""
    with contextmanager(connected)(servers) as zk:
        cloud = OpenStack(place, programs, zk, servers.hosts)
        zk.ensure_path(cloud.path)
        cloud.publish()
        explaining = Explaining(operator_client(zk, cloud.prefix, cloud.id), cloud)
        try:
            yield cloud, explaining
        finally:
            explaining.close()
            cloud.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


def test_it_comes_up_though_a_container_is_killed(
    seed: int, shared_zookeeper: Server, programs: Path, place: Path
) -> None:
    """At a random moment, and started again, as a launcher does; every one-time command is done once."""
    chance = random.Random(seed)
    with deployed(shared_zookeeper, programs, place) as (cloud, explaining):
        began = time.monotonic()
        cloud.start(seed)
        victim = chance.choice(cloud.containers)
        time.sleep(chance.uniform(0, START))
        at = f"{victim.name} ({' '.join(victim.state[:2])}) after {time.monotonic() - began:.1f} s"
        cloud.kill(victim)
        restarts = cloud.await_up_as_a_launcher()
        stuck = sorted(explaining.stuck(began + NOT_YET, time.monotonic()))
        print(
            f"seed {seed}: killed {at}; up after {time.monotonic() - began:.1f} s; {dict(restarts)}; {stuck}"
        )
        assert set(cloud.successes().values()) == {1}, (at, cloud.successes())
        ended = {victim.role, *(name.partition("@")[0] for name in restarts)}
        others = {
            kind for kind, node in stuck if not ended & {node.partition("/")[0], node.rpartition("/")[2]}
        }
        assert others <= {*SLOW_AT_MOST, "failing"}, (at, stuck)
        assert states(cloud) == ["up"] * 3


def test_it_goes_on_through_faults(ensemble: Ensemble, programs: Path, place: Path) -> None:
    """Database, broker, ZooKeeper and in the end all of it go away for a while; nothing runs twice."""
    with deployed(ensemble, programs, place) as (cloud, explaining):
        began = time.monotonic()
        cloud.start(cloud.seed)
        cloud.await_up()
        up = time.monotonic()
        stuck = explaining.stuck(began + NOT_YET, up)
        assert {kind for kind, _ in stuck} <= SLOW_AT_MOST, stuck
        once = cloud.successes()
        assert set(once.values()) == {1}, once

        ensemble.leader.kill()
        time.sleep(SEEN_WITHIN)
        assert cloud.is_up, cloud.log_ends()
        ensemble.mend()

        for name, seconds in (("mariadb@ctl-1", DATABASE_AWAY), ("rabbitmq@ctl-1", 0.0)):
            victim = cloud.named(name)
            killed = time.monotonic()
            cloud.kill(victim)
            time.sleep(seconds)
            cloud.start_one(victim)
            cloud.await_up_as_a_launcher()
            if seconds:
                seen = explaining.first(f"{victim.role}/daemon", killed)  # Its cluster waits for an election.
                assert seen is not None and seen < SEEN_WITHIN, explaining.seen
            boots(cloud, victim.role)
        assert not explaining.seen[-1].stuck

        cloud.end(grace=20.0)
        cloud.eventually(lambda: not cloud.processes(), "no process is left")
        cloud.start(cloud.seed)
        cloud.await_up()
        # After a minute away a service is down for Nova until it reports again, 10 s after its start.
        cloud.eventually(lambda: set(states(cloud)) == {"up"}, "Nova has heard of all its services")
        boots(cloud, "again")
        assert cloud.successes() == once


def states(cloud: OpenStack) -> list[str]:
    """What Nova says of its services."""
    answer: list[str] = cloud.ask("answer = [each.state for each in cloud.compute.services()]")
    return answer


def boots(cloud: OpenStack, name: str) -> None:
    """A server becomes ACTIVE."""
    answer = cloud.ask(f"""
image = cloud.get_image("tiny") or cloud.create_image(
    "tiny", data=b"0" * 65536, disk_format="raw", container_format="bare", wait=True
)
flavor = cloud.get_flavor("tiny") or cloud.create_flavor("tiny", ram=64, vcpus=1, disk=1)
server = cloud.compute.create_server(
    name="{name}", image_id=image.id, flavor_id=flavor.id, networks="none"
)
try:
    cloud.compute.wait_for_server(server, wait=120)
except openstack.exceptions.ResourceFailure:
    pass
server = cloud.compute.get_server(server)
answer = [server.status, server.fault]
""")
    assert answer[0] == "ACTIVE", answer
