"""Faults aimed at one stage of the start of a whole OpenStack, each at the moment when it hurts most."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable

import psutil
import pytest

from drills.openstack.deployment import OpenStack
from kolla_mesos_start.ctl.up.containers import processes_of
from tests.conftest import connected
from tests.support.link import Link
from tests.support.zookeeper import Server

STOPPED = 12.0  # seconds: longer than any lease and session
CUT_OFF = 60.0  # seconds

pytestmark = pytest.mark.timeout(1200)

Attack = Callable[[OpenStack, Link], None]


def database_half_written(cloud: OpenStack, link: Link) -> None:
    """The data directory is being made."""
    mariadb = cloud.named("mariadb@ctl-1")
    new = mariadb.root / "var/lib/mysql/new"
    cloud.eventually(lambda: new.exists() and list(new.iterdir()), "it has begun")
    cloud.kill(mariadb)


def broker_and_cache_gone(cloud: OpenStack, link: Link) -> None:
    """Keystone bootstraps."""
    cloud.eventually(lambda: "bootstrap" in cloud.named("keystone-api@ctl-1").state[1], "it bootstraps")
    for name in ("memcached@ctl-1", "rabbitmq@ctl-1"):
        cloud.kill(cloud.named(name))


def all_stopped(cloud: OpenStack, link: Link) -> None:
    """The agents, guards and registrars of half of the containers, in the middle of their migrations."""
    cloud.eventually(lambda: "bootstrapping" in cloud.named("nova-api@ctl-1").state[0], "nova migrates")
    ours = [pid for each in random.sample(cloud.containers, 8) for pid in _agents(processes_of(each.run_dir))]
    _signal(ours, signal.SIGSTOP)
    time.sleep(STOPPED)
    _signal(ours, signal.SIGCONT)


def guards_killed(cloud: OpenStack, link: Link) -> None:
    """Every guard that there is, while the databases are migrated."""
    cloud.eventually(lambda: "bootstrapping" in cloud.named("nova-api@ctl-1").state[0], "nova migrates")
    # A guard has no environment by which it could be found.
    family = [each for one in cloud.containers for each in psutil.Process(one.pid).children(recursive=True)]
    guards = [each.pid for each in family if b"guard of" in _line(each.pid)]
    assert guards
    _signal(guards, signal.SIGKILL)


def zookeeper_cut_off(cloud: OpenStack, link: Link) -> None:
    """HAProxy follows the first replica at that moment."""
    haproxy = cloud.named("haproxy@ctl-1")
    cloud.eventually(lambda: "refresh" in haproxy.state[1], "it is refreshed", seconds=300)
    link.kill()
    time.sleep(CUT_OFF)
    link.launch()


ATTACKS: Sequence[Attack] = (
    database_half_written,
    broker_and_cache_gone,
    all_stopped,
    guards_killed,
    zookeeper_cut_off,
)


def _agents(pids: Iterator[int]) -> list[int]:
    return [pid for pid in pids if b"kolla_mesos_start" in _line(pid) or b"registrar of" in _line(pid)]


def _line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _signal(pids: Sequence[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


@contextmanager
def behind(link: Link, server: Server, programs: Path, place: Path) -> Iterator[OpenStack]:
    """The deployment, published; its agents reach ZooKeeper by the link."""
    with contextmanager(connected)(server) as zk:
        cloud = OpenStack(place, programs, zk, link.hosts)
        zk.ensure_path(cloud.path)
        cloud.publish()
        try:
            yield cloud
        finally:
            cloud.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_it_comes_up_all_the_same(
    attack: Attack, shared_zookeeper: Server, programs: Path, place: Path, tmp_path: Path
) -> None:
    """What has ended is started again, as a launcher does; every one-time command is done once."""
    link = Link(shared_zookeeper, tmp_path / "link.log")
    try:
        with behind(link, shared_zookeeper, programs, place) as cloud:
            began = time.monotonic()
            cloud.start(cloud.seed)
            attack(cloud, link)
            restarts = cloud.await_up_as_a_launcher()
            print(f"{attack.__name__}: up after {time.monotonic() - began:.1f} s; {dict(restarts)}")
            assert set(cloud.successes().values()) == {1}, cloud.successes()
            assert cloud.ask("answer = [each.state for each in cloud.compute.services()]") == ["up"] * 3
            for container in cloud.containers:
                assert "Traceback" not in "".join(
                    line
                    for line in container.log.read_text(errors="replace").splitlines()
                    if "kolla_mesos_start" in line
                )
    finally:
        link.kill()
