"""What is done next about an ephemeral: the decisions, as tables and as stories without a server."""

from __future__ import annotations

import math
import os
from typing import Any, Callable

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)
from kazoo.protocol.serialization import Create, Delete, Exists, SetData, Transaction
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.errors import AgentError, NoRight
from kolla_mesos_start.zookeeper import ephemerals as module
from kolla_mesos_start.zookeeper.ephemerals import (
    FORMER,
    LONGEST_RETRY,
    NONE,
    OTHER,
    OURS,
    OUTDATED,
    RETRY,
    SETTLE,
    UNKNOWN,
    Ephemeral,
    Ephemerals,
    owner_of,
)
from kolla_mesos_start.zookeeper.session import MAX_DATA, Servers
from tests.conftest import LogLines

SESSION = 7
PATH = "/kolla/site/infra/x"

# -- who owns it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "former", "held", "expected"),
    [
        (None, set(), False, NONE),
        (None, set(), True, NONE),
        (7, set(), True, OURS),
        (7, set(), False, OURS),
        (7, {7}, False, OURS),
        (5, {5}, True, FORMER),
        (5, {5}, False, FORMER),
        (3, set(), False, FORMER),
        (3, {5}, True, OTHER),
        (0, set(), True, FORMER),  # It is persistent: nobody's.
        (0, set(), False, FORMER),
    ],
)
def test_the_owner(session: int | None, former: set[int], held: bool, expected: str) -> None:
    """In session 7: what we never had is a previous run's; what was taken from us is another container's."""
    assert owner_of(session, SESSION, former, held) == expected


# -- what to do next ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "wanted", "given_up"),
    [
        (UNKNOWN, "look", "look"),
        (NONE, "create", "rest"),
        (OURS, "rest", "delete"),
        (OUTDATED, "write", "delete"),
        (FORMER, "replace", "delete"),
        (OTHER, "rest", "rest"),
    ],
)
def test_the_next_step(owner: str, wanted: str, given_up: str) -> None:
    """Nothing is done blindly, what is another container's is left alone, what is known is not repeated."""
    for want, step in ((True, wanted), (False, given_up)):
        ephemeral = Ephemeral(PATH, b"", wanted=want, owner=OURS if owner == OUTDATED else owner)
        if owner == OUTDATED:
            ephemeral.data = b"newer"
        assert ephemeral.step == step


def held() -> Ephemeral:
    """One that is ours, and was looked at."""
    ephemeral = Ephemeral(PATH, b"", wanted=True)
    ephemeral.looked(SESSION, SESSION, ())
    return ephemeral


def test_what_was_ours_once_and_is_anothers_now_was_taken() -> None:
    """In a later session too: two that replaced each other would do so for ever."""
    ephemeral = Ephemeral(PATH, b"", wanted=True)
    ephemeral.looked(3, SESSION, ())
    assert ephemeral.owner == FORMER, "of an earlier run of this container"
    ephemeral.looked(SESSION, SESSION, ())
    ephemeral.unsure()
    ephemeral.looked(SESSION, 8, {SESSION})
    assert ephemeral.owner == FORMER
    ephemeral.looked(3, 8, {SESSION})
    assert ephemeral.owner == OTHER


@pytest.mark.parametrize("owner", [NONE, FORMER, OTHER, UNKNOWN])
def test_what_becomes_of_others_ones_is_looked_at_at_once(owner: str) -> None:
    """The one in our place may just have gone."""
    ephemeral = Ephemeral(PATH, b"", wanted=True, owner=owner)
    ephemeral.fired(100.0)
    assert (ephemeral.step, ephemeral.not_before) == ("look", 0.0)


def test_a_watch_that_fires_while_a_request_is_under_way_changes_nothing() -> None:
    """It is our own doing, as a rule; the reply says what has come of it."""
    ephemeral = held()
    ephemeral.busy = True
    ephemeral.fired(100.0)
    assert (ephemeral.busy, ephemeral.owner, ephemeral.not_before) == (True, OURS, 0.0)


@pytest.mark.parametrize(("chance", "factor"), [(b"\0", 0.8), (b"\xff", 1.2)])
def test_a_refusal_is_tried_again_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, chance: bytes, factor: float
) -> None:
    """Up to some minutes; a thousand containers that are refused together do not come back together."""
    monkeypatch.setattr(os, "urandom", lambda count: chance * count)
    ephemeral = Ephemeral(PATH, b"", wanted=True)
    pauses = []
    for _ in range(20):
        ephemeral.refused(1000.0)
        assert (ephemeral.step, ephemeral.busy) == ("look", False)
        pauses.append((ephemeral.not_before - 1000.0) / factor)
    expected = [min(RETRY * 2**number, LONGEST_RETRY) for number in range(20)]
    assert pauses == pytest.approx(expected)
    assert pauses[0] == pytest.approx(5.0) and pauses[-1] == pytest.approx(300.0)


def test_a_success_ends_the_long_pauses() -> None:
    """The next refusal is a new one."""
    ephemeral = Ephemeral(PATH, b"", wanted=True)
    for _ in range(10):
        ephemeral.refused(0.0)
    ephemeral.looked(None, SESSION, ())
    ephemeral.refused(0.0)
    assert ephemeral.not_before > 100.0, "that there is no znode is no success"
    ephemeral.looked(SESSION, SESSION, ())
    ephemeral.refused(0.0)
    assert ephemeral.not_before <= RETRY * 1.2


# -- the requests, by a session that answers what it is told to -----------------------------------


class Session:
    """What ephemerals need of a session; each request waits for the test to answer it."""

    id = SESSION
    servers = Servers([])

    def __init__(self) -> None:
        self.connected = True
        self.former: set[int] = set()
        self.requests: list[tuple[Any, Callable[[Any, Any], object]]] = []
        self.connect: Callable[[], object] = lambda: None
        self.fire: Callable[[str], object] = lambda path: None

    def on_connected(self, handler: Callable[[], object]) -> None:
        self.connect = handler

    def on_watch(self, handler: Callable[[str], object]) -> None:
        self.fire = handler

    def request(self, operation: Any, done: Callable[[Any, Any], object]) -> None:
        self.requests.append((operation, done))

    def answer(self, value: object = None, error: KazooException | None = None) -> Any:
        """Answer the oldest request; returns it."""
        operation, done = self.requests.pop(0)
        done(value, error)
        return operation


def owned_by(session: int) -> ZnodeStat:
    """The answer to a look."""
    return ZnodeStat(1, 1, 0, 0, 0, 0, 0, session, 0, 0, 1)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the ephemerals; its one item is the time."""
    instant = [1000.0]
    monkeypatch.setattr(module, "now", lambda: instant[0])
    return instant


@pytest.fixture
def ephemerals(session: Session, clock: list[float]) -> Ephemerals:
    return Ephemerals(session, (), [("/kolla/site/infra", b"parent")])  # type: ignore[arg-type]


def kinds(session: Session) -> list[type]:
    return [type(operation) for operation, _ in session.requests]


def test_one_is_created_then_looked_at(ephemerals: Ephemerals, session: Session) -> None:
    """Looking says whose it is and sets the watch; then there is nothing to do, and nothing to wake for."""
    ephemeral = ephemerals.keep(PATH, b"data")
    assert ephemerals.deadline <= 1000.0
    ephemerals.run()
    ephemerals.run()
    assert kinds(session) == [Create], "one request at a time"
    assert ephemerals.deadline == math.inf
    create = session.answer(PATH)
    assert (create.path, create.data, create.flags) == (PATH, b"data", 1)
    ephemerals.run()
    look = session.answer(owned_by(SESSION))
    assert isinstance(look, Exists) and look.watcher
    assert ephemeral.owner == OURS
    ephemerals.run()
    assert session.requests == [] and ephemerals.deadline == math.inf


def test_the_one_of_a_former_run_is_replaced_in_one_transaction(
    ephemerals: Ephemerals, session: Session
) -> None:
    """Nobody counts two of us, nor none."""
    ephemerals.keep(PATH, b"data")
    ephemerals.run()
    session.answer(None, NodeExistsError())
    ephemerals.run()
    session.answer(owned_by(3))
    ephemerals.run()
    replace = session.answer([True, PATH])
    assert isinstance(replace, Transaction)
    assert [type(each) for each in replace.operations] == [Delete, Create]
    ephemerals.run()
    assert kinds(session) == [Exists]


@pytest.mark.parametrize(
    ("results", "error", "pause"),
    [
        (None, ConnectionLoss(), False),
        ([NoNodeError(), RolledBackError()], None, False),
        ([RolledBackError(), NoAuthError()], None, True),
        (None, NoAuthError(), True),
    ],
)
def test_a_replacement_that_fails(
    ephemerals: Ephemerals,
    session: Session,
    results: list[KazooException] | None,
    error: KazooException | None,
    pause: bool,
) -> None:
    """If it had gone by itself, or nobody knows, it is looked at again; a refusal is given time."""
    ephemeral = ephemerals.keep(PATH, b"")
    ephemeral.looked(3, SESSION, ())
    ephemerals.run()
    session.answer(results, error)
    assert (ephemeral.busy, ephemeral.step) == (False, "look")
    assert (ephemeral.not_before > 1000.0) is pause


def test_one_that_is_deleted_comes_back_once_it_has_settled(
    ephemerals: Ephemerals, session: Session, clock: list[float]
) -> None:
    """The loop is woken for it, and not before."""
    ephemerals.keep(PATH, b"").looked(SESSION, SESSION, ())
    session.fire("/another")
    assert ephemerals.deadline == math.inf
    session.fire(PATH)
    assert ephemerals.deadline == 1000.0 + SETTLE
    clock[0] += SETTLE - 0.1
    ephemerals.run()
    assert session.requests == []
    clock[0] += 0.1
    ephemerals.run()
    session.answer(None, NoNodeError())
    ephemerals.run()
    assert kinds(session) == [Create]


def test_what_has_changed_is_written_in_its_time(
    ephemerals: Ephemerals, session: Session, clock: list[float]
) -> None:
    """The latest wins; afterwards it is watched again, for our own write has used up the watch."""
    ephemeral = ephemerals.keep(PATH, b"1")
    ephemeral.interval, ephemeral.write_after = 1.0, 1000.2
    assert ephemerals.deadline == 1000.2
    clock[0] = 1000.2
    ephemerals.run()
    session.answer(PATH)
    ephemerals.run()
    session.answer(owned_by(SESSION))
    for data in (b"2", b"3"):
        ephemeral.data = data
        ephemerals.run()
    assert session.requests == [] and ephemerals.deadline == 1001.2
    clock[0] = 1001.2
    ephemerals.run()
    session.fire(PATH)
    write = session.answer(owned_by(SESSION))
    assert isinstance(write, SetData) and (write.path, write.data) == (PATH, b"3")
    ephemerals.run()
    assert isinstance(session.answer(owned_by(SESSION)), Exists)
    ephemerals.run()
    assert session.requests == [] and ephemerals.deadline == math.inf


@pytest.mark.parametrize(
    ("error", "found", "then"),
    [(ConnectionLoss(), owned_by(SESSION), SetData), (NoNodeError(), None, Create)],
)
def test_a_write_whose_outcome_is_lost_is_made_again(
    ephemerals: Ephemerals, session: Session, error: KazooException, found: ZnodeStat | None, then: type
) -> None:
    """And one whose znode is gone makes it again."""
    ephemeral = ephemerals.keep(PATH, b"1")
    ephemeral.looked(SESSION, SESSION, ())
    ephemeral.data = b"2"
    ephemerals.run()
    assert isinstance(session.answer(None, error), SetData)
    ephemerals.run()
    session.answer(found, None if found else NoNodeError())
    ephemerals.run()
    again = session.answer()
    assert (type(again), again.data) == (then, b"2")


def test_what_is_there_already_in_our_session_is_written(ephemerals: Ephemerals, session: Session) -> None:
    """The agent that handed it over has created it after we had looked: with other data, perhaps."""
    ephemerals.keep(PATH, b"registrar")
    ephemerals.run()
    session.answer(None, NodeExistsError())
    ephemerals.run()
    session.answer(owned_by(SESSION))
    ephemerals.run()
    assert kinds(session) == [SetData]


def test_one_that_is_due_hurries_no_other(ephemerals: Ephemerals, session: Session) -> None:
    """Each has its own time: what ZooKeeper has refused is not asked again with every step of another."""
    ephemerals.keep(PATH, b"").refused(1000.0)
    ephemerals.keep(f"{PATH}-2", b"")
    ephemerals.run()
    assert [operation.path for operation, _ in session.requests] == [f"{PATH}-2"]


def test_one_that_another_container_has_taken_is_left_to_it(
    ephemerals: Ephemerals, session: Session, log_lines: LogLines
) -> None:
    """It is said once, with what to look at."""
    ephemeral = ephemerals.keep(PATH, b"")
    ephemeral.looked(SESSION, SESSION, ())
    for _ in range(3):
        ephemeral.unsure()
        ephemerals.run()
        session.answer(owned_by(99))
    ephemerals.run()
    assert session.requests == []
    (line,) = log_lines()
    assert line.level == "warning"
    assert line.message == f"another container has taken {PATH}: it uses the same KOLLA_STATE_DIR"


@pytest.mark.parametrize("first", [None, NodeExistsError(), NoAuthError()])
def test_one_parent_is_created_after_the_other(session: Session, first: Exception | None) -> None:
    """The first may be there already, or be what only an operator creates."""
    ephemerals = Ephemerals(session, (), [("/kolla/site", b""), ("/kolla/site/infra", b"")])  # type: ignore[arg-type]
    ephemeral = ephemerals.keep(PATH, b"")
    ephemerals.run()
    session.answer(None, NoNodeError())
    assert session.answer(None, first).path == "/kolla/site"
    assert ephemeral.not_before > 0.0
    assert session.answer("/kolla/site/infra").path == "/kolla/site/infra"
    assert (ephemeral.step, ephemeral.not_before) == ("look", 0.0)


def test_where_the_deployment_is_gone_an_attempt_is_three_requests(session: Session) -> None:
    """A thousand containers go on trying, for as long as nobody stops them."""
    parents = [
        ("/kolla/site/infra", b"parent"),
        ("/kolla/site/infra/db", b""),
        (PATH.rpartition("/")[0], b""),
    ]
    ephemerals = Ephemerals(session, (), parents)  # type: ignore[arg-type]
    ephemerals.keep(PATH, b"").unsure()
    ephemerals.run()
    sent = []
    while session.requests:
        sent.append(type(session.answer(None, NoNodeError())).__name__)
        ephemerals.run()
    assert sent == ["Exists", "Create", "Create"]


@pytest.mark.parametrize(
    ("path", "said"),
    [(PATH, "the deployment is gone"), ("/kolla/site/other/x", "its parent is missing")],
)
def test_where_no_parent_can_be_created_it_is_tried_again_later(
    ephemerals: Ephemerals, session: Session, log_lines: LogLines, path: str, said: str
) -> None:
    """The deployment itself is never created by an agent; and a log is not filled with that."""
    ephemeral = ephemerals.keep(path, b"")
    for _ in range(3):
        ephemeral.looked(None, SESSION, ())
        ephemeral.not_before = 0.0
        ephemerals.run()
        while session.requests:
            session.answer(None, NoNodeError())
    assert ephemeral.not_before > 1000.0
    assert [line.message for line in log_lines()] == [f"{path} can't be created: {said}"]


def test_one_that_is_given_up_while_it_is_created_is_deleted(
    ephemerals: Ephemerals, session: Session
) -> None:
    """The reply says that it was created, not that it is gone: a daemon may be stopped at that moment."""
    ephemeral = ephemerals.keep(PATH, b"")
    ephemerals.run()
    ephemeral.wanted = False
    assert isinstance(session.answer(PATH), Create)
    ephemerals.run()
    assert isinstance(session.answer(owned_by(SESSION)), Exists)
    ephemerals.run()
    assert isinstance(session.answer(True), Delete)
    assert ephemeral.owner == NONE


@pytest.mark.parametrize("error", [None, NoNodeError()])
def test_a_discarded_one_is_forgotten_once_it_is_gone(
    ephemerals: Ephemerals, session: Session, error: KazooException | None
) -> None:
    """Not before: an agent does not end while a place of it is still in a queue."""
    ephemerals.discard(PATH)
    assert ephemerals.discarding
    ephemerals.run()
    session.answer(None, ConnectionLoss())
    assert ephemerals.discarding
    ephemerals.run()
    session.answer(owned_by(SESSION))
    ephemerals.run()
    assert isinstance(session.answer(True, error), Delete)
    assert not ephemerals.discarding
    assert PATH not in ephemerals.all


def test_one_that_was_discarded_and_is_wanted_again_is_not_forgotten(
    ephemerals: Ephemerals, session: Session
) -> None:
    """The reply to the old request is not about the new one."""
    ephemerals.discard(PATH)
    ephemerals.run()
    kept = ephemerals.keep(PATH, b"")
    session.answer(True)
    assert ephemerals.all == {PATH: kept}
    ephemerals.run()
    assert kinds(session) == [Create]


def test_what_an_acl_refuses_is_said_once_or_left_to_the_caller(
    session: Session, clock: list[float], log_lines: LogLines
) -> None:
    """A daemon's registrar goes on trying; the agent ends, since an operator has to do something."""
    ephemerals = Ephemerals(session, ())  # type: ignore[arg-type]
    ephemeral = ephemerals.keep(PATH, b"")
    for _ in range(3):
        ephemerals.run()
        session.answer(None, NoAuthError())
        clock[0] += 1000.0
    assert ephemeral.refusals == 3
    (line,) = log_lines()
    above = PATH.rpartition("/")[0]
    lacks = f"the ACL of {above} lacks the right c (create)"
    assert line.message == f"{PATH} can't be created: NoAuthError: {lacks}; retrying"

    def deny(denied: NoRight) -> None:
        raise denied

    ephemerals = Ephemerals(session, (), on_denied=deny)  # type: ignore[arg-type]
    ephemerals.keep(PATH, b"")
    ephemerals.run()
    with pytest.raises(NoRight, match=f"{PATH} can't be created: NoAuthError"):
        session.answer(None, NoAuthError())


def test_what_is_too_large_is_refused_at_once(ephemerals: Ephemerals) -> None:
    """The server would drop the connection on it, again and again."""
    with pytest.raises(AgentError, match=f"{PATH}: {MAX_DATA + 1} bytes"):
        ephemerals.keep(PATH, b"x" * (MAX_DATA + 1))
    assert ephemerals.all == {}
