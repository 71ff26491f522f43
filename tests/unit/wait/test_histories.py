"""Histories: what happens one after another, and the decision it must lead to, wherever it is interrupted.

Each history is replayed whole, and once more for every step, interrupted there: the connection is
lost, with the session or without, and what was under way with it. What is replayed against are the
decisions alone; the server is a dict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, product
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.commands.lease import Lease
from kolla_mesos_start.daemon.readiness import Check
from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.tree.states import Unmet, encode_mark
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.wait import judge as wait
from kolla_mesos_start.wait.judge import Blocked, Progress, Runnable, judge
from kolla_mesos_start.zookeeper.client import WatchState
from kolla_mesos_start.zookeeper.ephemerals import FORMER, NONE, UNKNOWN, Ephemeral
from kolla_mesos_start.zookeeper.lock import standing
from kolla_mesos_start.zookeeper.view import Query, Unknown, View, Znode, children_of, data_of
from tests.support.instances import INSTANCE_DATA, MEMBER_DATA

INSTANCE, MEMBER = INSTANCE_DATA.decode(), MEMBER_DATA.decode()

# -- the lease ----------------------------------------------------------------------------------------


LATE = 10**6  # a zxid after all others


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
OURS, RIVAL = "a__lock__{:010d}", "b__lock__{:010d}"


class Tree:
    """The server as one client sees it: znodes, and the watches that this client has set."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.watched: set[Query] = set()
        self.fired: list[Query] = []

    def put(self, path: str, data: bytes) -> None:
        self._change(path, new=path not in self.nodes)
        self.nodes[path] = data

    def remove(self, path: str) -> None:
        if self.nodes.pop(path, None) is not None:
            self._change(path, new=True)

    def ask(self, query: Query) -> Any:
        """The answer; a watch comes with it."""
        self.watched.add(query)
        below = {
            name[len(query.path) + 1 :].split("/")[0]
            for name in self.nodes
            if name.startswith(query.path + "/")
        }
        if query.children:
            return tuple(sorted(below))
        data = self.nodes.get(query.path)
        return None if data is None else Znode(data, ZnodeStat(1, LATE, 0, 0, 0, 0, 0, 7, len(data), 0, 1))

    def _change(self, path: str, *, new: bool) -> None:
        touched = {(path, False)}
        # A path comes with all above it here, so that the names below each of these may be new.
        parent = path
        while new and parent:
            parent = parent.rpartition("/")[0]
            touched.add((parent, True))
        fired = {query for query in self.watched if (query.path, query.children) in touched}
        self.fired += sorted(fired)
        self.watched -= fired


class Waiter:
    """A container that waits: what it knows, and what it would do. Question `last` cuts it off."""

    def __init__(self, tree: Tree, definition: dict[str, Any], last: int = -1) -> None:
        self.tree = tree
        built = keys.build(load(json.dumps(definition).encode()), ZNODES.service_name, str)
        self.command = built.daemon or built.commands[-1]
        own = frozenset(command.path for command in built.commands)
        self.passage = Progress(own, frozenset(), DEFINITION, None, {})
        self.connected = True
        self.asked = 0
        self._last = last
        self._watch_state = WatchState()
        self._paused: list[Query] = []
        self._unmet: Sequence[Unmet] = ()
        self._wanted: set[Query] = set()
        self._place: str | None = None
        self._numbers = count(10)

    def settle(self) -> None:
        """Hear what has been told, and ask what has to be asked, until there is nothing more."""
        while self.connected:
            self._paused += [query for query in self.tree.fired if self._watch_state.fired(query)]
            self.tree.fired = []
            self._look()
            due = sorted(self._watch_state.due())
            if not due and not self.tree.fired:
                if not self._paused:
                    return
                self._watch_state.resume(self._paused.pop())
            for query in due:
                answer = self.tree.ask(query)
                self.connected = self.connected and self.asked != self._last
                self.asked += 1
                if self.connected:
                    self._watch_state.arrived(query, answer)
                else:
                    self._watch_state.failed(query)

    def reconnect(self, renewed: bool) -> None:
        """With the session of before, or in a new one."""
        self.tree.watched, self.tree.fired = set(), []
        if renewed and self._place:
            self.tree.remove(self._place)
            self._place = None
        self.connected = True
        self._watch_state.connected()

    def _judge(self) -> Runnable | Blocked | None:
        """The decision, and what it has read; raises Unknown. As `Waiting` does."""
        view = View(self._watch_state.results)
        self._wanted = {children_of(LOCK)} if self.command.run_once else set()
        try:
            found = judge(self.command, view, ZNODES, self.passage, self._unmet)
        finally:
            self._wanted |= view.noted
        if not self._watch_state.complete or not self._wanted <= self._watch_state.results.keys():
            raise Unknown
        self._unmet = found.unmet if isinstance(found, Blocked) else ()
        return found

    def _look(self) -> None:
        with suppress(Unknown):
            self._judge()
        self._watch_state.want(self._wanted)

    @property
    def decision(self) -> str:
        """In a word or two."""
        found = self._judge()
        if isinstance(found, Runnable):
            return "pass" if found.already_done else "run"
        if isinstance(found, Blocked):
            return found.reason or ", ".join(lack.found for lack in found.unmet)
        if self._place is None:
            self._place = f"{LOCK}/{OURS.format(next(self._numbers))}"
            self.tree.put(self._place, b"")
        names = [name.rpartition("/")[2] for name in self.tree.nodes if name.startswith(f"{LOCK}/")]
        place = standing(LOCK, names, self._place.rpartition("/")[2])
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
        waiter.passage = waiter.passage._replace(passed=waiter.passage.passed | {event.partition(" ")[2]})
    elif event.startswith("-"):
        waiter.tree.remove(event[1:])
    else:
        path, _, data = event.partition("=")
        waiter.tree.put(path, data.encode())


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_decides_by_what_is_there_after_each_event(name: str) -> None:
    """Uninterrupted."""
    waiter = Waiter(Tree(), WAITS[name].step)
    waiter.settle()
    for event, decision in WAITS[name].events:
        happen(waiter, event)
        waiter.settle()
        assert waiter.decision == decision, event


@pytest.mark.parametrize("renewed", [False, True], ids=["same session", "new session"])
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_is_interrupted_decides_the_same(name: str, renewed: bool) -> None:
    """At whichever question the connection goes, and however many events it is away for."""
    history = WAITS[name]
    whole = Waiter(Tree(), history.step)
    whole.settle()
    for event, _ in history.events:
        happen(whole, event)
        whole.settle()
    for last, away in product(range(whole.asked), range(3)):
        waiter = Waiter(Tree(), history.step, last)
        waiter.settle()
        missed = 0
        for event, decision in history.events:
            happen(waiter, event)
            waiter.settle()
            missed += not waiter.connected
            if not waiter.connected and missed > away:
                waiter.reconnect(renewed)
                waiter.settle()
            if waiter.connected:
                assert waiter.decision == decision, (last, away, event)
        if not waiter.connected:
            waiter.reconnect(renewed)
            waiter.settle()
        assert waiter.decision == history.events[-1][1], (last, away)


def test_a_dependency_that_holds_is_looked_at_again_once_the_others_hold_too() -> None:
    """Until then nothing asks for it, whatever becomes of it."""
    waiter = Waiter(Tree(), one(dependencies=["db/sync", {"path": "mq/daemon", "count": 2}]))
    waiter.settle()
    happen(waiter, f"{SYNC}=done")
    waiter.settle()
    asked = waiter.asked
    for number in range(20):
        happen(waiter, f"{SYNC}={'waiting' if number % 2 else 'done'}")
        waiter.settle()
        assert waiter.decision == "0 of 2 instances ready"
    assert waiter.asked == asked
    for event, decision in [
        (f"{READY}/a={INSTANCE}", "1 of 2 instances ready"),
        (f"{READY}/b={INSTANCE}", "not started yet"),
        (f"-{READY}/a", "not started yet"),
        (f"{SYNC}=done", "1 of 2 instances ready"),
        (f"{READY}/a={INSTANCE}", "run"),
    ]:
        happen(waiter, event)
        waiter.settle()
        assert waiter.decision == decision, event


# What happens to one query that is wanted -> whether it is asked then, and whether all is known.
ASKED: Sequence[tuple[str, bool, bool]] = [
    ("want", True, False),
    ("changed", False, False),  # One question at a time:
    ("arrived", True, False),  # the answer may be of before.
    ("failed", True, False),
    ("connected", False, False),
    ("failed", True, False),
    ("arrived", False, True),
    ("connected", True, False),
    ("arrived", False, True),
]


def test_what_is_asked_after_each_event() -> None:
    """Until an answer is younger than all that was told."""
    knowledge, query = WatchState(), data_of(SYNC)
    arguments: dict[str, tuple[Any, ...]] = {"want": ([query],), "arrived": (query, None), "connected": ()}
    for event, asked, complete in ASKED:
        getattr(knowledge, event)(*arguments.get(event, (query,)))
        assert (bool(knowledge.due()), knowledge.complete) == (asked, complete), event


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
def test_names_are_read_again_the_sooner_the_fewer_are_missing(wanted: int, known: int, pause: float) -> None:
    """The last one at once."""
    knowledge, query = WatchState(), children_of(READY, wanted)
    knowledge.want([query])
    assert knowledge.due() == {query}
    knowledge.arrived(query, tuple(map(str, range(known))))
    assert knowledge.fired(query) == pytest.approx(pause)
    assert not knowledge.complete
    assert knowledge.due() == (set() if pause else {query})
    knowledge.resume(query)
    assert knowledge.due() == ({query} if pause else set())


@pytest.mark.parametrize("event", ["connected", "want"])
def test_a_pause_holds_up_nothing_that_is_read_anyway(event: str) -> None:
    """After a reconnection, or when it is wanted again; and it is not read once more after the pause."""
    knowledge, query = WatchState(), children_of(READY, 200)
    knowledge.want([query])
    knowledge.due()
    knowledge.arrived(query, ())
    assert knowledge.fired(query)
    if event == "connected":
        knowledge.connected()
    else:
        knowledge.want([])
        knowledge.want([query])
    assert knowledge.due() == {query}
    knowledge.resume(query)
    knowledge.arrived(query, ())
    assert knowledge.complete


def test_what_is_no_longer_wanted_is_not_read() -> None:
    knowledge, query = WatchState(), data_of(SYNC)
    knowledge.want([query])
    knowledge.want([])
    assert (knowledge.due(), knowledge.complete) == (set(), True)


# -- the registrar ------------------------------------------------------------------------------------

FIRST, PREVIOUS_RUN, SOMEBODY = 1, 77, 99  # sessions
NOTIFY = Check("notify", None, 1.0, 1.0, 1)


class Cut(NamedTuple):
    """An interruption: which request it hits, whether that still arrives, and whether the session is lost."""

    request: int
    arrives: bool = False
    expires: bool = False


NEVER = Cut(-1)


class Place:
    """One ephemeral and its znode on the server; `owner` is the session that owns that.

    `found` is what is thought of it at first: the registrar looks, the agent knows or takes a chance.
    """

    def __init__(self, wanted: bool, owner: int | None, found: str = UNKNOWN, cut: Cut = NEVER) -> None:
        self.owner = owner
        self.requests = 0
        self.session = FIRST
        self.ephemeral = Ephemeral("/ready/one", b"{}", wanted=wanted, owner=found)
        self._former: set[int] = set()
        self._cut = cut

    def settle(self) -> None:
        """Take step after step until there is none."""
        while (step := self.ephemeral.step) != "rest":
            self.ephemeral.busy = True
            self.requests += 1
            if self.requests - 1 == self._cut.request:
                if self._cut.arrives:
                    self._do(step)
                self.interrupt(self._cut.expires)
            elif step == "look":
                self.ephemeral.looked(self.owner, self.session, self._former)
            else:
                self._do(step)
                self.ephemeral.unsure()

    def interrupt(self, expires: bool) -> None:
        """The connection is lost and made again."""
        if expires:
            self.owner = None if self.owner == self.session else self.owner
            self._former.add(self.session)
            self.session += 1
        self.ephemeral.unsure()

    def _do(self, step: str) -> None:
        # A creation fails where something stands, a replacement where nothing does.
        if step == {True: "create", False: "replace"}[self.owner is None]:
            self.owner = self.session
        elif step == "delete":
            self.owner = None

    @property
    def decision(self) -> str:
        whose = {None: "nobody's", self.session: "ours", SOMEBODY: "somebody's"}
        return whose.get(self.owner, "a former one's")


# -- the agent's own ephemerals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found", "owner"),
    [
        (True, NONE, None),
        (True, NONE, PREVIOUS_RUN),
        (False, FORMER, None),
        (False, FORMER, PREVIOUS_RUN),
    ],
    ids=["a member", "a member after a previous run", "an instance that never was", "an instance"],
)
def test_a_member_is_the_own_sessions_and_nothing_is_left_of_the_previous_run(
    wanted: bool, found: str, owner: int | None
) -> None:
    """Whichever request is cut off, and in each later session."""
    decision = "ours" if wanted else "nobody's"

    def started(cut: Cut) -> Place:
        place = Place(wanted, owner, found, cut)
        for expires in (False, False, True):
            place.settle()
            assert place.decision == decision, cut
            place.interrupt(expires)
        place.settle()
        assert place.decision == decision, cut
        return place

    whole = started(NEVER)
    for cut in product(range(whole.requests), (False, True), (False, True)):
        started(Cut(*cut))
