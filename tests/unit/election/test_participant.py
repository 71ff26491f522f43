"""When a running daemon gives up, and when it is registered again.

Whole elections are in tests/agent/test_election.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

import pytest

from kolla_mesos_start.election import participant
from kolla_mesos_start.election.participant import Participant
from kolla_mesos_start.election.records import FORMED, JOINED, Decision, Member, Membership, encode
from kolla_mesos_start.zookeeper.wire import GetData, NoNodeError, Transaction
from tests.support.instances import INSTANCE_DATA

READY_AT = "/s/daemon/ready"


class Session:
    """A session whose replies the test gives."""

    def __init__(self) -> None:
        self.id, self.former, self.connected = 1, set[int](), True
        self.handler: Callable[[], object] = lambda: None
        self.replies: dict[str, Callable[[Any, Any], object]] = {}
        self.znodes: dict[str, bytes] = {}
        self.transactions = self.owner = 0

    def on_connected(self, handler: Callable[[], object]) -> None:
        self.handler = handler

    def on_watch(self, handler: Callable[[str], object]) -> None:
        self.fire = handler

    def request(self, operation: Any, done: Callable[[Any, Any], object]) -> None:
        """Of the data and the transactions, too: all are committed."""
        if isinstance(operation, Transaction):
            self.transactions += 1
            done([], None)
        elif isinstance(operation, GetData):
            data = self.znodes.get(operation.path)
            stat = SimpleNamespace(version=0, ephemeralOwner=self.owner)
            done((data, stat) if data is not None else None, None if data is not None else NoNodeError())
        else:
            self.replies[operation.path] = done


class Readiness:
    ready = confirmed = stopped = False

    def confirm(self, after: float) -> None:
        self.confirmed = False

    def stop(self) -> None:
        self.stopped = True


class Presence:
    acl: Any = ()

    def ready_data(self) -> dict[str, bytes]:
        return {f"{READY_AT}/me": b"{}"}

    def adopt(self, data: dict[str, bytes]) -> None:
        pass


class Instance:
    """The participant of a daemon that is never ready, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, role: str, start_timeout: float | None) -> None:
        self.time = 100.0
        monkeypatch.setattr(participant, "now", lambda: self.time)
        self.session, self.readiness, self.ended = Session(), Readiness(), list[bool]()
        order = Membership("/e", "h", "me", role, 1, start_timeout, 20.0, 10.0, {})
        session: Any = self.session
        readiness: Any = self.readiness
        presence: Any = Presence()
        self.participant = Participant(session, presence, lambda: readiness, order, self.ended.append)
        self.connect()

    def connect(self) -> None:
        self.session.connected = True
        self.session.handler()
        self.see()

    def see(self, *names: str, owner: int = 5, data: bytes = INSTANCE_DATA) -> None:
        """The ready instances are read."""
        self.session.owner = owner
        self.session.znodes.update((f"{READY_AT}/{name}", data) for name in names)
        self.session.fire(READY_AT)
        self.session.replies[READY_AT](list(names), None)

    def at(self, time: float) -> list[bool]:
        """Run at that time; how the daemon was ended so far: by TERM (False), by KILL (True)."""
        self.time = time
        self.participant.run(False)
        return self.ended


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Instance]:
    """Starts a daemon at 100 s, with a give_up of 20 s."""
    return lambda role="join", start_timeout=None: Instance(monkeypatch, role, start_timeout)


def test_a_daemon_that_waits_in_vain_has_ended_after_give_up(instance: Callable[..., Instance]) -> None:
    """TERM a quarter before, KILL at the end."""
    found = instance()
    assert found.participant.deadline == 115.0
    assert found.at(114.9) == []
    assert found.at(115.0) == [False]
    assert found.readiness.stopped
    assert found.participant.deadline == 120.0
    assert found.at(120.0) == [False, True]


def test_it_waits_while_any_instance_is_ready(instance: Callable[..., Instance]) -> None:
    """Give_up counts from when one was last seen."""
    found = instance()
    found.see("other")
    assert found.at(1000.0) == []
    found.see()
    assert found.at(1014.9) == []
    assert found.at(1015.0) == [False]


@pytest.mark.parametrize("other", [{"owner": 0}, {"data": b""}, {"data": b"[]"}])
def test_an_instance_that_is_nobodys_or_invalid_is_no_reason_to_wait(
    instance: Callable[..., Instance], other: dict[str, Any]
) -> None:
    """Of a copied tree, for example."""
    found = instance()
    found.see("other", **other)
    assert found.at(1000.0) == [False]


def test_a_daemon_that_is_ready_does_not_give_up(instance: Callable[..., Instance]) -> None:
    """Its registration may be under way."""
    found = instance()
    found.readiness.ready = True
    assert found.at(1000.0) == []


def test_it_never_gives_up_while_it_is_cut_off(instance: Callable[..., Instance]) -> None:
    """Others may be ready. The time counts from the next connection."""
    found = instance()
    found.session.connected = False
    assert found.at(1000.0) == []
    found.connect()
    assert found.at(1014.9) == []
    assert found.at(1015.0) == [False]


def test_a_new_winner_has_its_own_limit(instance: Callable[..., Instance]) -> None:
    """By default none: a crash recovery can be long."""
    assert instance("first").at(10_000.0) == []
    found = instance("first", start_timeout=50.0)
    assert found.at(149.9) == []
    found.at(150.0)
    assert found.at(150.0) == [True]


def test_a_new_session_registers_the_daemon_after_a_new_check(instance: Callable[..., Instance]) -> None:
    """Its cluster may have gone during the outage, and a candidate takes a new registration for an answer."""
    found = instance()
    decision = Decision(1, "other", "g", 5, {}, FORMED, formed=True)
    found.session.znodes = {
        "/e/turn": b"",
        "/e/decision": encode(decision),
        "/e/members/h": encode(Member(1, JOINED)),
    }
    found.readiness.ready = found.readiness.confirmed = True
    found.at(101.0)
    assert found.participant.admitted
    found.session.id = 2
    found.connect()
    found.at(102.0)
    found.at(103.0)
    assert (found.participant.admitted, found.session.transactions) == (False, 2), "its `running` is back"
    found.readiness.confirmed = True
    found.at(104.0)
    assert found.participant.admitted
