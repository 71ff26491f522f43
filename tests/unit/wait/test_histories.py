"""Histories: what happens one after another, and the decision it must lead to, wherever it is interrupted.

Each history is replayed whole, and once more for every step, interrupted there: the connection is
lost, with the session or without, and what was under way with it. The servers are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, product
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.tree.states import Unmet, encode_mark
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.wait import judge as wait
from kolla_mesos_start.wait.judge import Blocked, Progress, Runnable, judge
from kolla_mesos_start.zookeeper import client
from kolla_mesos_start.zookeeper.client import Watches
from kolla_mesos_start.zookeeper.ephemerals import Ephemerals
from kolla_mesos_start.zookeeper.lock import standing
from kolla_mesos_start.zookeeper.view import Query, Unknown, View, children_of, data_of
from tests.support.in_memory import Servers, Session
from tests.support.instances import INSTANCE_DATA, MEMBER_DATA

INSTANCE, MEMBER = INSTANCE_DATA.decode(), MEMBER_DATA.decode()

# -- the lease ----------------------------------------------------------------------------------------


class Quorum(NamedTuple):
    """A follower and its leader: what the leader knows of the session of one that renews at the follower.

    The follower tells it with its answers to the leader's pings, every half tick at a `phase`, until
    their link is `cut`. A transaction is answered after `round_trip`, if the link lives for so long.
    """

    timeout: float
    tick: float
    phase: float
    round_trip: float
    cut: float

    def commits(self, sent: float) -> bool:
        return sent + self.round_trip < self.cut

    def expires(self, touched: Sequence[float]) -> float:
        """When the leader ends the session, whatever the follower still hears of it."""
        known = before = touched[0]
        # It was known by then that the session was alive.
        first = touched[0] - touched[0] % (self.tick / 2) + self.phase
        for ping in (first + number * self.tick / 2 for number in count()):
            if ping >= self.cut:
                return known + self.timeout
            if any(before < touch <= ping for touch in touched):
                known = ping
            before = ping
        raise AssertionError("never cut")


@given(
    timeout=st.floats(2, 40),
    ticks=st.floats(2, 20),
    phase=st.floats(0, 1),
    round_trip=st.floats(0, 0.5),
    pinged=st.floats(0, 1),
    renewals=st.integers(0, 30),
    later=st.floats(0, 1),
)
# The worst there is: the last ping came right after the follower's last word, at the longest ticks.
@example(timeout=2.0, ticks=2.0, phase=0.002, round_trip=0.0, pinged=0.747, renewals=0, later=0.0)
def test_wherever_a_quorum_is_cut_the_command_is_dead_before_the_session(
    timeout: float, ticks: float, phase: float, round_trip: float, pinged: float, renewals: int, later: float
) -> None:
    """The leader gives the lock to nobody before; the follower, which knows nothing, goes on answering.

    The last ping before the claim was sent up to T/3 before it.
    """
    tick = timeout / ticks
    trip = round_trip * timeout / 6
    cut = trip + 1e-6 + (renewals + later) * timeout / 6  # The claim is committed before.
    quorum = Quorum(timeout, tick, phase * tick / 2, trip, cut)
    pings = [-(pinged + number) * timeout / 3 for number in range(6, -1, -1)]
    lease, sent = Lease(timeout, 0.0), [0.0]
    while quorum.commits(renewal := lease.renew_at + 1e-6):
        sent.append(renewal)
        lease.acknowledged(renewal)
    assert lease.kill_at + max(0.3, timeout / 20) <= quorum.expires([*pings, *sent]) + 1e-9


# -- the wait -----------------------------------------------------------------------------------------

ZNODES = Znodes("/kolla", "site", "infra/web", "web1")
STATUS = "/kolla/site/status"
SYNC, GO, LOCK = f"{STATUS}/global/db/sync", f"{STATUS}/global/web/go", f"{STATUS}/global/web/go/lock"
READY, PARTY = f"{STATUS}/global/mq/daemon/ready", "/kolla/site/infra/mq/.party"
DEFINITION = 50
SOMEBODY = 99  # the session of another container
OURS, RIVAL = "a__lock__{:010d}", "b__lock__{:010d}"


class Timers(list[Callable[[], object]]):
    """The part of a loop that `Watches` needs: handlers to call after a pause."""

    def call_at(self, when: float, handler: Callable[[], object]) -> None:
        self.append(handler)


class Waiter:
    """A container that waits, and what it would do. The connection is lost at its request number `last`."""

    def __init__(self, definition: dict[str, Any], last: int = -1) -> None:
        self.servers = Servers()
        self.session = Session(self.servers)
        self.watches = Watches(self.session, timers := Timers())  # type: ignore[arg-type]
        built = keys.build(load(json.dumps(definition).encode()), ZNODES.service_name, str)
        self.command = built.daemon or built.commands[-1]
        own = frozenset(command.path for command in built.commands)
        self.progress = Progress(own, frozenset(), DEFINITION, None, {})
        self._last, self._timers = last, timers
        self._unmet: Sequence[Unmet] = ()
        self._place: str | None = None
        self._numbers = count(10)

    def settle(self) -> None:
        """Judge after each message, until there is nothing more to read."""
        while self.session.connected:
            if self.watches.answered():
                with suppress(Unknown):
                    self._judge()
            if self.session.outbox and not self.session.inbox and self.servers.requests == self._last:
                self.session.lose()
            elif not self.servers.step():
                if not self._timers:
                    return
                self._timers.pop()()

    def reconnect(self, renewed: bool) -> None:
        """With the session of before, or in a new one."""
        self._last = -1
        self.session.connect(expired=renewed)
        self.settle()

    def _judge(self) -> Runnable | Blocked | None:
        """The decision, whose queries are watched; raises Unknown. As `Waiting` does."""
        view = View(self.watches.results)
        try:
            found = judge(self.command, view, ZNODES, self.progress, self._unmet)
        finally:
            self.watches.watch(view.noted | ({children_of(LOCK)} if self.command.run_once else set()))
        self._unmet = found.unmet if isinstance(found, Blocked) else ()
        return found

    @property
    def decision(self) -> str:
        """In a word or two."""
        assert self.watches.fresh()
        found = self._judge()
        if isinstance(found, Runnable):
            return "pass" if found.already_done else "run"
        if isinstance(found, Blocked):
            return found.reason or ", ".join(lack.found for lack in found.unmet)
        if self._place not in self.servers.znodes:
            self._place = f"{LOCK}/{OURS.format(next(self._numbers))}"
            self.servers.put(self._place, owner=self.session.id)
            self.settle()
        assert self._place is not None
        place = standing(LOCK, self.servers.children(LOCK), self._place.rpartition("/")[2])
        assert place is not None
        return "queue" if place.before else "claim"


class Wait(NamedTuple):
    """A definition, and what happens: `"path=text"`, `"-path"`, `"passed path"`; with what its last step
    comes to after each event."""

    step: dict[str, Any]
    events: Sequence[tuple[str, str]]


def one(**keys: Any) -> dict[str, Any]:
    return {"commands": {"go": {"command": "true", **keys}}}


def mark(definition: int, token: int) -> str:
    return encode_mark(token, definition).decode()


OTHERS = {"db_sync": {"command": "true"}}
WAITS = {
    "a command": Wait(
        one(dependencies=["db/sync"]),
        [
            (f"{SYNC}=waiting", "not started yet"),
            (f"{SYNC}=running", "running"),
            (f"{SYNC}/detail={{}}", "running"),
            (f"{SYNC}=retry", "retry"),
            (f"{SYNC}=running", "running"),
            (f"{SYNC}=error", "error"),
            (f"{SYNC}=running", "running"),
            (f"{SYNC}=done", "run"),
        ],
    ),
    "a command that blinks": Wait(
        one(dependencies=["db/sync"]),
        [
            (f"{SYNC}=done", "run"),
            (f"{SYNC}=waiting", "not started yet"),
            (f"-{SYNC}", "not started"),
            (f"{SYNC}=done", "run"),
        ],
    ),
    "a generation of two": Wait(
        one(dependencies=[{"path": "db/sync", "generation": "2"}]),
        [
            (f"{SYNC}=done", "not done for this generation"),
            (f"{SYNC}/generations/1=7 7", "not done for this generation"),
            (f"{SYNC}/generations/2=8 8", "run"),
            (f"{SYNC}=running", "run"),
        ],
    ),
    "hosts": Wait(
        one(dependencies=[{"path": "db/sync", "count": 2}]),
        [
            (f"{SYNC}/hosts/web1=", "done on 1 of 2 hosts"),
            (f"{SYNC}=done", "done on 1 of 2 hosts"),
            (f"{SYNC}/hosts/web2=", "run"),
        ],
    ),
    "instances that come and go": Wait(
        one(dependencies=[{"path": "mq/daemon", "count": 2}]),
        [
            (f"{READY}/a={INSTANCE}", "1 of 2 instances ready"),
            (f"{READY}/b={INSTANCE}", "run"),
            (f"-{READY}/a", "1 of 2 instances ready"),
            (f"-{READY}/b", "0 of 2 instances ready"),
            (f"{READY}/c={INSTANCE}", "1 of 2 instances ready"),
            (f"{READY}/a={INSTANCE}", "run"),
        ],
    ),
    "members, ready or not": Wait(
        one(dependencies=[{"members": "infra/mq", "count": 1}]),
        [(f"{PARTY}/a={MEMBER}", "run"), (f"-{PARTY}/a", "0 of 1 present"), (f"{PARTY}/b={MEMBER}", "run")],
    ),
    "own commands, whatever the tree says of them": Wait(
        {"commands": OTHERS, "service": {"daemon": {"command": "x", "dependencies": ["web/db_sync"]}}},
        [
            (f"{STATUS}/global/web/db_sync=done", "not run by this container yet"),
            ("passed web/db_sync", "run"),
            (f"{STATUS}/global/web/db_sync=waiting", "run"),
        ],
    ),
    "both": Wait(
        one(dependencies=["db/sync", "mq/daemon"]),
        [
            (f"{READY}/a={INSTANCE}", "not started"),
            (f"{SYNC}=done", "run"),
            (f"-{READY}/a", "0 of 1 instances ready"),
            (f"{READY}/a={INSTANCE}", "run"),
        ],
    ),
    "once, by another one": Wait(
        one(run_once=True, dependencies=["db/sync"]),
        [
            (f"{GO}=waiting", "not started"),
            (f"{SYNC}=done", "claim"),
            (f"{LOCK}/{RIVAL.format(1)}=", "queue"),
            (f"{GO}=running", "queue"),
            (f"{GO}=done", "pass"),
            (f"-{LOCK}/{RIVAL.format(1)}", "pass"),
            (f"{SYNC}=waiting", "not started yet"),
            (f"{SYNC}=done", "pass"),
        ],
    ),
    "once, after another one has failed": Wait(
        one(run_once=True),
        [
            (f"{LOCK}/{RIVAL.format(1)}=", "queue"),
            (f"{GO}=running", "queue"),
            (f"{GO}=error", "queue"),
            (f"-{LOCK}/{RIVAL.format(1)}", "claim"),
        ],
    ),
    "once, and the tree is deleted": Wait(
        one(run_once=True),
        [(f"{GO}=waiting", "claim"), (f"{GO}=done", "pass"), (f"-{GO}", "claim")],
    ),
    "a generation of a newer definition": Wait(
        one(run_once=True, generation="1"),
        [
            (f"{GO}/generations/0={mark(DEFINITION - 1, 5)}", "claim"),
            (f"{GO}/generations/2={mark(DEFINITION + 1, 6)}", wait.SUPERSEDED),
            (f"{GO}/generations/0={mark(DEFINITION - 1, 7)}", "claim"),
            (f"{GO}/generations/1={mark(DEFINITION, 8)}", "pass"),
        ],
    ),
}


def happen(waiter: Waiter, event: str) -> None:
    """One event of a history; it may happen in an outage."""
    if event.startswith("passed "):
        waiter.progress = waiter.progress._replace(passed=waiter.progress.passed | {event.partition(" ")[2]})
    elif event.startswith("-"):
        waiter.servers.remove(event[1:])
    else:
        path, _, data = event.partition("=")
        waiter.servers.put(path, data.encode(), owner=SOMEBODY)
    waiter.settle()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_decides_by_what_is_there_after_each_event(name: str) -> None:
    """Uninterrupted."""
    waiter = Waiter(WAITS[name].step)
    for event, decision in WAITS[name].events:
        happen(waiter, event)
        assert waiter.decision == decision, event


@pytest.mark.parametrize("renewed", [False, True], ids=["same session", "new session"])
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_is_interrupted_decides_the_same(name: str, renewed: bool) -> None:
    """At whichever request the connection goes, and however many events it is away for."""
    history = WAITS[name]
    whole = Waiter(history.step)
    for event, _ in history.events:
        happen(whole, event)
    for last, away in product(range(whole.servers.requests), range(3)):
        waiter = Waiter(history.step, last)
        missed = 0
        for event, decision in history.events:
            happen(waiter, event)
            missed += not waiter.session.connected
            if missed > away and not waiter.session.connected:
                waiter.reconnect(renewed)
            if waiter.session.connected:
                assert waiter.decision == decision, (last, away, event)
        if not waiter.session.connected:
            waiter.reconnect(renewed)
        assert waiter.decision == history.events[-1][1], (last, away)


def test_a_dependency_that_holds_is_looked_at_again_once_the_others_hold_too() -> None:
    """Until then nothing asks for it, whatever becomes of it."""
    waiter = Waiter(one(dependencies=["db/sync", {"path": "mq/daemon", "count": 2}]))
    happen(waiter, f"{SYNC}=done")
    asked = waiter.servers.requests
    for number in range(20):
        happen(waiter, f"{SYNC}={'waiting' if number % 2 else 'done'}")
        assert waiter.decision == "0 of 2 instances ready"
    assert waiter.servers.requests == asked
    for event, decision in [
        (f"{READY}/a={INSTANCE}", "1 of 2 instances ready"),
        (f"{READY}/b={INSTANCE}", "not started yet"),
        (f"-{READY}/a", "not started yet"),
        (f"{SYNC}=done", "1 of 2 instances ready"),
        (f"{READY}/a={INSTANCE}", "run"),
    ]:
        happen(waiter, event)
        assert waiter.decision == decision, event


# -- the watches --------------------------------------------------------------------------------------


class Watched:
    """The watches on one query, step by step."""

    def __init__(self, query: Query, *names: str) -> None:
        self.servers = Servers()
        for name in names:
            self.servers.put(f"{query.path}/{name}")
        self.servers.put(query.path)
        self.session, self.timers = Session(self.servers), Timers()
        self.watches = Watches(self.session, self.timers)  # type: ignore[arg-type]
        self.watches.watch([query])

    @property
    def state(self) -> tuple[int, bool]:
        """How many requests are under way, and whether all is known."""
        return len(self.session.outbox), self.watches.fresh()

    def settle(self) -> None:
        while self.servers.step():
            pass


def test_what_changes_while_it_is_read_is_read_again() -> None:
    """One request at a time: the answer may be of before."""
    seen = Watched(data_of(SYNC))
    assert seen.state == (1, False)
    seen.session.fire(SYNC)
    assert seen.state == (1, False)
    seen.servers.step()
    seen.servers.step()
    assert seen.state == (1, False) and seen.watches.answered()
    seen.session.lose()
    assert seen.state == (0, False) and not seen.watches.answered()
    seen.session.connect()
    assert seen.state == (1, False)
    seen.settle()
    assert seen.state == (0, True)


def test_what_is_no_longer_wanted_is_not_read() -> None:
    seen = Watched(data_of(SYNC))
    seen.session.fire(SYNC)
    seen.watches.watch([])
    seen.settle()
    assert seen.state == (0, True) and not seen.watches.results


# Of so many names that are wanted, so many are known when another one comes -> the pause, in seconds.
PAUSES = [
    (1, 0, 0.0),
    (200, 199, 0.0),
    (200, 200, 0.0),
    (200, 201, 0.0),
    (200, 198, 0.01),
    (200, 190, 0.09),
    (200, 0, 0.24),
    (2000, 0, 0.24),
]


@pytest.mark.parametrize(("wanted", "known", "pause"), PAUSES)
def test_names_are_read_again_the_sooner_the_fewer_are_missing(
    monkeypatch: pytest.MonkeyPatch, wanted: int, known: int, pause: float
) -> None:
    """The last one at once."""
    seen = Watched(children_of(READY, wanted), *map(str, range(known)))
    seen.settle()
    pauses: list[float] = []

    def note(seconds: float, share: float) -> float:
        pauses.append(seconds * (1 + share))
        return 0.0

    monkeypatch.setattr(client, "now", lambda: 0.0)
    monkeypatch.setattr(client, "jittered", note)
    seen.servers.put(f"{READY}/new")
    seen.servers.step()
    assert pauses == pytest.approx([pause] if pause else [])
    assert seen.state == (not pause, False)
    for handler in seen.timers:
        handler()
    assert seen.state == (1, False)


@pytest.mark.parametrize("event", ["connected", "want"])
def test_a_pause_holds_up_nothing_that_is_read_anyway(event: str) -> None:
    """After a reconnection, or when it is wanted again; and it is not read once more after the pause."""
    query = children_of(READY, 200)
    seen = Watched(query)
    seen.settle()
    seen.servers.put(f"{READY}/new")
    seen.servers.step()
    assert seen.state == (0, False)
    if event == "connected":
        seen.session.lose()
        seen.session.connect()
    else:
        seen.watches.watch([])
        seen.watches.watch([query])
    assert seen.state == (1, False)
    seen.settle()
    (resume,) = seen.timers
    resume()
    assert seen.state == (0, True)


# -- ephemerals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False], ids=["a member", "an instance"])
@pytest.mark.parametrize("previous", [False, True], ids=["the first run", "after a previous run"])
def test_an_ephemeral_is_the_own_sessions_and_nothing_is_left_of_the_previous_run(
    wanted: bool, previous: bool
) -> None:
    """Whichever request is cut off, whether it still arrives, and in each later session."""

    def started(last: int, served: int, expired: bool) -> int:
        servers = Servers()
        session, ephemerals = connect_ephemerals(servers)
        path = f"{READY}/one"
        servers.put(READY)
        if previous:
            servers.put(path, owner=SOMEBODY)
        ephemerals.keep(path, b"{}") if wanted else ephemerals.discard(path)
        for later in (False, False, True):
            while True:
                ephemerals.run()
                if session.outbox and not session.inbox and servers.requests == last:
                    last = -1
                    session.lose(served)
                    session.connect(expired)
                elif not servers.step():
                    break
            owner = servers.znodes[path].owner if path in servers.znodes else None
            assert owner == (session.id if wanted else None), (served, expired)
            session.lose()
            session.connect(later)
        return servers.requests

    for cut in product(range(started(-1, 0, False)), (0, 1), (False, True)):
        started(*cut)


def connect_ephemerals(servers: Servers) -> tuple[Session, Ephemerals]:
    session = Session(servers)
    return session, Ephemerals(session, ())  # type: ignore[arg-type]
