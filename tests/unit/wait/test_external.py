"""When an external service is probed, and what its answer is."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

import pytest

from kolla_mesos_start.definition.model import External
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.wait import external
from kolla_mesos_start.wait.external import Answer, ExternalProbe, ExternalProbes
from kolla_mesos_start.zookeeper import connect
from tests.rules.test_house import loaded_by
from tests.support.peer import OK, Peer

if TYPE_CHECKING:
    from kolla_mesos_start.zookeeper.connect import Steps


class Service:
    """An external service with a simulated clock and network; `instants` are those of its probes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.instant, self.answer, self.instants = 1000.0, "refused", list[float]()
        self.is_silent = False
        for module in (external, connect):
            monkeypatch.setattr(module, "now", lambda: self.instant)
        monkeypatch.setattr(time, "time", lambda: self.instant)
        monkeypatch.setattr(external, "tcp", self._tcp)

    def _tcp(self, hosts: list[str], port: int) -> Steps[str]:
        self.instants.append(self.instant)
        while self.is_silent:
            yield 0, select.POLLIN
        return self.answer

    def run(self, probe: ExternalProbe, until: float) -> list[float]:
        """Advance the clock; returns the pauses between probes."""
        self.instants.clear()
        while probe.deadline <= until:
            self.instant = max(self.instant, probe.deadline)
            probe.run(False)
        self.instant = until
        return [after - before for before, after in zip(self.instants, self.instants[1:])]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def probe(interval: float = 10.0) -> ExternalProbe:
    return ExternalProbe(External("tcp", "db:3306", interval, None))


def test_probes_start_at_once_with_increasing_pauses(service: Service) -> None:
    """Up to the interval; with jitter, because many containers probe the same service."""
    pauses = service.run(probe(), 1100.0)
    assert service.instants[0] == 1000.0
    for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]):
        assert expected * 0.8 <= pause <= expected * 1.2
    assert len(set(pauses)) == len(pauses)


def test_a_service_that_answers_is_probed_once_per_interval(service: Service) -> None:
    service.answer = ""
    one = probe(interval=5.0)
    pauses = service.run(one, 1050.0)
    assert all(4.0 <= pause <= 6.0 for pause in pauses)
    assert 8 <= len(pauses) <= 13
    assert one.answer == Answer("", 1000.0)


def test_a_service_that_has_failed_is_probed_soon(service: Service) -> None:
    """It may be back at any moment. `since` is the first failure."""
    service.answer = ""
    one = probe()
    service.run(one, 1020.0)
    service.answer = "refused"
    service.run(one, one.deadline + 0.05)
    failed_at = service.instants[0]
    assert one.answer == Answer("refused", failed_at)
    service.run(one, failed_at + 1.0)
    assert len(service.instants) >= 3
    assert one.answer == Answer("refused", failed_at)


def test_no_pause_is_longer_than_a_short_interval(service: Service) -> None:
    assert max(service.run(probe(interval=0.1), 1010.0)) <= 0.12


def test_a_silent_service_times_out_and_is_probed_again(service: Service) -> None:
    """Before that, "no answer yet" is reported."""
    service.is_silent = True
    one = probe()
    service.run(one, 1000.4)
    assert one.answer is None
    service.run(one, 1000.6)
    assert one.answer == Answer("no answer yet", 1000.5)
    service.run(one, 1015.0)
    assert one.answer == Answer("no answer within 10 s", 1000.5)
    assert len(service.instants) == 1


def test_a_service_is_only_probed_while_it_is_waited_for() -> None:
    """With real sockets: a probe that is running is closed, and its answer dropped."""
    loop, one, other = Loop(), Peer().start(), Peer(OK).start()
    wanted = [External("http", peer.url, 10.0, None) for peer in (one, other)]
    probes = ExternalProbes(loop)
    probes.probe(wanted)
    assert loop.wait(lambda: probes.answers.get(wanted[1]), now() + 30)
    loop.wait(lambda: one.open, now() + 30)
    probes.probe(wanted[1:])
    assert set(probes.answers) == {wanted[1]}
    probes.probe(())
    assert not probes.answers and not loop._sources
    for peer in (one, other):
        peer.stop()


@pytest.mark.parametrize(
    ("kind", "value", "endpoint"),
    [
        ("tcp", "db:3306", "db:3306"),
        ("tcp", "[::1]:80", "[::1]:80"),
        ("http", "http://a", "a:80"),
        ("http", "https://a/secret", "a:443"),
        ("http", "https://a:5000?secret:1", "a:5000"),
        ("http", "http://[::1]/secret", "[::1]:80"),
        ("http", "http://[::1]:81/secret@:9", "[::1]:81"),
        ("http", "http://12/", "12:80"),
    ],
)
def test_messages_name_only_host_and_port_of_a_url(kind: str, value: str, endpoint: str) -> None:
    assert External(kind, value, 1.0, None).what == f"external {kind} {endpoint}"


@pytest.mark.parametrize("module", ["wait.waiting", "agent", "tree.status"])
def test_a_start_without_external_dependencies_does_not_import_it(module: str) -> None:
    loaded = loaded_by(f"import kolla_mesos_start.{module}")
    assert not {name for name in loaded if name.endswith((".external", ".readiness"))}
