"""A rolling restart of a web service behind HAProxy, which never repeats a request: `drain` loses none.

The load balancer example with real HAProxy, without its retries, and with health checks that come too late.
The replicas end as soon as they get SIGTERM. The rate can be set: `ROLLING_RATE=1000`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.directory.directory import Deployment
from tests.stack.test_loadbalancer import HAPROXY, WEB, Edge, Load, load, running
from tests.support.arrangement import section
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

pytestmark = pytest.mark.timeout(600)

RATE = int(os.environ.get("ROLLING_RATE", "200"))  # requests a second
DRAIN = 5  # seconds
# Lines of haproxy.cfg that hide lost requests.
HIDES = re.compile(
    rb"(?m)^ *(retries|retry-on|option redispatch|option httpchk|http-check|http-request) .*\n"
)


class Plain(Edge):
    """Three replicas behind an HAProxy that sends each request once. `drain_seconds`: 0 for no draining."""

    drain_seconds = 0

    def read(self) -> Deployment:
        found = super().read()
        services = []
        for service in found.services:
            definition, files = json.loads(service.definition), dict(service.files)
            if service.name == WEB:
                definition["service"]["daemon"]["drain"] = self.drain_seconds
            if service.name == HAPROXY:
                files["haproxy.cfg"], count = HIDES.subn(b"", files["haproxy.cfg"])
                assert count == 5
                files["haproxy.cfg"] = files["haproxy.cfg"].replace(
                    b"mode http\n", b"mode http\n    retries 0\n"
                )
            services.append(service._replace(definition=json.dumps(definition).encode(), files=files))
        variables = {**found.variables, "server_options": b"check inter 60s"}
        return found._replace(services=services, variables=variables)

    def restart_each(self) -> float:
        """One replica after the other; the seconds that it took."""
        begun = time.monotonic()
        for replica in self.replicas[:3]:
            os.kill(replica.pid, signal.SIGTERM)
            replica.wait()
            replica.start()
            eventually(partial(self.is_ready, replica), "it is ready again")
            eventually(partial(self.serves, replica), "HAProxy has it again")
        return time.monotonic() - begun


@pytest.fixture(scope="module")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: what was measured."""
    return section(pytestconfig, "a rolling restart behind HAProxy without retries")


@pytest.fixture(scope="module")
def plain(
    shared_zookeeper: Server, module_zk: KazooClient, edge_servers: None, place: Path
) -> Iterator[Plain]:
    """The deployment, published, with three replicas up."""
    edge = Plain(place / "rolling", module_zk, shared_zookeeper.hosts)
    with running(edge, module_zk):
        yield edge


def test_without_drain_requests_fail(plain: Plain, report: list[str]) -> None:
    """Until HAProxy has refreshed, it sends requests to the replica that has ended."""
    with load(plain, rate=RATE) as seen:
        took = plain.restart_each()
    report.append(text("no drain", seen, took))
    assert seen.failures


@pytest.mark.parametrize("options", [(), ("-disable-keepalive",)], ids=["kept-alive", "new-connections"])
def test_with_drain_no_request_fails(plain: Plain, report: list[str], options: tuple[str, ...]) -> None:
    """The replicas are started again once, to have the new definition."""
    if not plain.drain_seconds:
        plain.drain_seconds = DRAIN
        plain.publish()
        plain.restart_each()
    with load(plain, *options, rate=RATE) as seen:
        took = plain.restart_each()
    report.append(text("drain" + " without keep-alive" * bool(options), seen, took))
    assert not seen.failures
    assert seen.responses


def text(what: str, seen: Load, took: float) -> str:
    return f"{what}: three replicas in {took:.1f} s, {seen.responses / took:.0f} requests a second: {seen}"
