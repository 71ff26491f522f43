"""Which command may run, and what is reported meanwhile: decided on a tree and a clock in memory."""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from kolla_mesos_start.definition import document, keys
from kolla_mesos_start.definition.model import External
from kolla_mesos_start.errors import DependenciesNotSatisfied
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.wait import waiting as module
from kolla_mesos_start.wait.external import Answer
from kolla_mesos_start.wait.judge import SUPERSEDED, Blocked, Progress, Runnable, judge
from kolla_mesos_start.wait.waiting import Waiting
from kolla_mesos_start.zookeeper.view import Query, data_of
from tests.conftest import LogLines
from tests.support.instances import INSTANCE_DATA as READY
from tests.unit.tree.test_states import EPOCH, SYNC, ZNODES, Tree, decided, one_time, view_of

V1 = {f"{SYNC}/generations/v1": b"7 3"}
V2 = {f"{SYNC}/generations/v2": b"9 5"}
FOREIGN = "db/sync is for v2, this image is v1"


@pytest.mark.parametrize(
    ("image", "generation", "tree", "expected"),
    [
        ("v2", "v2", V1, None),
        (None, "v2", V1, None),
        ("v1", None, {}, None),
        # An image of another generation runs nothing, old or new.
        ("v1", "v2", {}, FOREIGN),
        ("v1", "v2", V1, FOREIGN),
        ("v3", "v2", V1, "db/sync is for v2, this image is v3"),
        # A command that is already done is passed through.
        ("v1", "v2", V2, Runnable),
        ("v3", "v2", V2, Runnable),
        # Only a restart helps: then the newer definition is read.
        ("v1", "v2", {f"{SYNC}/generations/v3": b"9 11"}, SUPERSEDED),
    ],
)
def test_an_image_of_another_generation_never_takes_the_lock(
    image: str | None, generation: str | None, tree: Tree, expected: object
) -> None:
    """None: the lock decides. Old code must not be recorded as the new migration."""
    command = one_time(generation=generation)
    progress = Progress(frozenset({"db/sync"}), frozenset(), 10, image, {})
    verdict, _ = decided(lambda view: judge(command, view, ZNODES, progress), tree)
    found = verdict.reason if isinstance(verdict, Blocked) else verdict and type(verdict)
    assert found == expected


# -- a container that waits, in memory ------------------------------------------------------------------

STATUS = "/kolla/site/status"
GLOBAL = f"{STATUS}/global"
DB = f"{GLOBAL}/db/sync"
MQ = f"{GLOBAL}/mq/daemon/ready"
LOCK = f"{GLOBAL}/web/load/lock"
DONE = b"done"


class Memory:
    """A container of the service `web` on the host web1, with ZooKeeper and its clock in memory.

    It is its own client, loop, watches and report. `at` schedules changes; time passes only in `wait`.
    """

    definition_zxid = 100
    stamps: Mapping[str, Any] = {}

    def __init__(self, definition: Mapping[str, Any], tree: Tree) -> None:
        self.tree = dict(tree)
        self.clock = 0.0
        self.connected = True
        self.changes = 0
        self.results: dict[Query, Any] = {}
        self.reports: list[str] = []
        self.warnings: list[str] = []
        self.read: list[str] = []  # the paths, in the order in which watches were set
        self.answers: dict[External, Answer] = {}
        self.settled = True
        self.asked: list[list[str]] = []  # what lies outside and is asked, each time that this changes
        self.lists = 0  # how often the contenders for a lock were listed
        self.id, self.name = 1, "web1"
        self.all: Mapping[str, Any] = {}  # ephemerals: none is being deleted
        self.client = self.loop = self.watches = self.session = self.ephemerals = self
        self.znodes = Znodes("/kolla", "site", "web", "web1")
        self.graph = keys.build(document.load(json.dumps(definition).encode()), "web", lambda text: text.text)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, change: Mapping[str, bytes | None] | Callable[[], object]) -> Memory:
        """At this time, change znodes (None: delete), or call a function."""
        act = change if callable(change) else lambda: self.put(change)
        heapq.heappush(self._events, (when, next(self._numbers), act))
        return self

    def put(self, znodes: Mapping[str, bytes | None]) -> None:
        for path, data in znodes.items():
            if data is None:
                self.tree.pop(path, None)
            else:
                self.tree[path] = data
        self._refresh()

    # -- the loop, the watches, the report --------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], deadline: float = math.inf) -> Any:
        while not (value := condition()) and self.clock < deadline:
            if self._events and self._events[0][0] <= deadline:
                when, _, act = heapq.heappop(self._events)
                self.clock = max(self.clock, when)
                act()
            else:
                assert deadline != math.inf, "it would wait for ever"
                self.clock = deadline
        return value

    def watch(self, queries: Iterable[Query]) -> None:
        wanted = set(queries)
        self.read += sorted(query.path for query in wanted - self.results.keys())
        self.results = {query: self.results.get(query) for query in wanted}
        self._refresh()

    def forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.results.pop(data_of(path), None)

    def answered(self) -> bool:
        return self.connected

    def _refresh(self) -> None:
        if self.connected:
            found = view_of(self.tree, self.results)
            self.changes += found != self.results
            self.results = dict(found)

    def probe(self, externals: Iterable[External]) -> None:
        """As `ExternalProbes` does."""
        self.asked.append([external.value for external in externals])

    def answer(self, failure: str = "", settled: bool = True) -> None:
        """What all that is outside answers from now on."""
        externals = [external for command in self.graph.all_commands for external in command.outside]
        self.answers = dict.fromkeys(externals, Answer(failure, EPOCH))
        self.settled = settled

    def write(self, stage: str, text: str, only: str = "", **_: object) -> None:
        self.reports.append(text)

    def write_silence(self, what: str) -> None:
        """Probes see it: see tests/agent."""

    def raise_if_seen_changed(self) -> None:
        """Whole agents do: see tests/agent."""

    def warn_once(self, warning: str) -> None:
        self.warnings.append(warning)

    # -- the requests of a contender --------------------------------------------------------------------

    def creation(self, path: str, data: bytes, flags: int) -> tuple[str, bytes]:
        return f"{path}{len(self.queue):010}", data

    def attempt(self, znode: tuple[str, bytes], what: str) -> None:
        self.put(dict([znode]))

    def children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        self.lists += 1
        return {
            path: [name.rsplit("/", 1)[1] for name in self.tree if name.startswith(path)] for path in paths
        }

    def discard(self, path: str) -> None:
        self.put({path: None})

    @property
    def queue(self) -> list[str]:
        """The contenders for the lock of web/load."""
        return [path for path in self.tree if path.startswith(f"{LOCK}/")]


Start = Callable[..., Memory]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Makes a container of these commands and znodes."""

    def start(commands: Mapping[str, Any], tree: Tree = {}, daemon: Any = None) -> Memory:  # noqa: B006
        service = {"service": {"daemon": daemon}} if daemon else {}
        memory = Memory({"commands": commands, **service}, tree)
        if any(command.outside for command in memory.graph.all_commands):
            monkeypatch.setattr(module, "_external_probes", lambda tree: memory)
        monkeypatch.setattr(module, "now", lambda: memory.clock)
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: EPOCH + memory.clock))
        return memory

    return start


def needs(*dependencies: Any, **keys: Any) -> dict[str, Any]:
    return {"command": "true", "dependencies": [*dependencies], **keys}


def turns(memory: Memory, limit: float | None = None) -> Iterator[Runnable]:
    """Each command when its turn has come; it has been passed by the next one."""
    waiting = Waiting(memory, memory, limit)  # type: ignore[arg-type]
    for turn in waiting:
        yield turn
        waiting.passed(turn.command)


def order(memory: Memory, limit: float | None = None) -> list[tuple[str, float]]:
    """The commands in the order in which they ran, with the times."""
    return [(turn.command.name, memory.clock) for turn in turns(memory, limit)]


def reason(memory: Memory, limit: float | None = None) -> str:
    """Why the container gives up."""
    with pytest.raises(DependenciesNotSatisfied) as raised:
        order(memory, limit)
    return raised.value.reason


# -- the order ------------------------------------------------------------------------------------------

FIRST = {"a": needs("db/sync"), "b": needs("mq/daemon"), "c": needs()}


@pytest.mark.parametrize(
    ("commands", "tree", "changes", "expected"),
    [
        # In the order of the definition when all are ready, else as they become ready.
        (FIRST, {DB: DONE, f"{MQ}/1": READY}, {}, [("a", 0), ("b", 0), ("c", 0)]),
        (FIRST, {}, {3: {f"{MQ}/1": READY}, 5: {DB: DONE}}, [("c", 0), ("b", 3), ("a", 5)]),
        # Inside one definition: this container's own run, whatever the tree says.
        (
            {"use": needs("web/make", {"path": "web/make", "scope": "local"}), "make": needs()},
            {f"{GLOBAL}/web/make": DONE, f"{STATUS}/web1/web/make": DONE},
            {},
            [("make", 0), ("use", 0)],
        ),
        # ... and its own generation, even if an older one is done.
        (
            {
                "use": needs("web/migrate"),
                "migrate": needs(run_once=True, generation="2"),
            },
            {f"{GLOBAL}/web/migrate": DONE, f"{GLOBAL}/web/migrate/generations/1": b"1 1"},
            {},
            [("migrate", 0), ("use", 0)],
        ),
        # ... and its own run, and beyond that enough hosts.
        (
            {"use": needs({"path": "web/make", "count": 2}), "make": needs()},
            {f"{GLOBAL}/web/make/hosts/web1": b""},
            {4: {f"{GLOBAL}/web/make/hosts/web2": b""}},
            [("make", 0), ("use", 4)],
        ),
    ],
)
def test_commands_run_when_they_are_ready(
    start: Start,
    commands: Mapping[str, Any],
    tree: Tree,
    changes: Mapping[float, Mapping[str, bytes]],
    expected: list[tuple[str, float]],
) -> None:
    """Whichever is ready first: a fixed order could deadlock two containers."""
    memory = start(commands, tree)
    for when, change in changes.items():
        memory.at(when, change)
    assert order(memory) == expected


def test_the_daemon_comes_last(start: Start) -> None:
    """It waits for the commands even if its own dependencies are satisfied first."""
    memory = start({"a": needs("db/sync")}, {f"{MQ}/1": READY}, daemon=needs("mq/daemon")).at(9, {DB: DONE})
    assert order(memory) == [("a", 9), ("daemon", 9)]


def test_a_dependency_that_no_longer_holds_blocks_again(start: Start) -> None:
    """A satisfied one is not read while another is missing; before the command runs, it is read again."""
    memory = start({"a": needs("mq/daemon", "db/sync")}, {f"{MQ}/1": READY})
    memory.at(1, {f"{MQ}/1": None}).at(2, memory.read.clear).at(3, {DB: DONE}).at(4, {f"{MQ}/2": READY})
    assert order(memory) == [("a", 4)]
    assert memory.reports[-2:] == [
        "web/a waits for db/sync: not started",
        "web/a waits for mq/daemon: 0 of 1 instances ready",
    ]
    assert memory.read == [MQ, f"{MQ}/2", DB]


# -- one-time commands ----------------------------------------------------------------------------------

ONCE = {"load": needs("db/sync", run_once=True), "step": needs("mq/daemon")}
DETAIL = {f"{GLOBAL}/web/load/detail": json.dumps({"attempt": 1, "host": "web3", "started": EPOCH}).encode()}


def test_commands_whose_answers_take_different_time_wait_side_by_side(start: Start) -> None:
    """What one of them need not watch any more is not read again while more is read for another one."""
    both = {"a": needs("mq/daemon", "web2/x"), "b": needs("db/sync", "web2/x")}
    memory = start(both, {f"{GLOBAL}/web2/x": DONE}).at(3, {f"{MQ}/1": READY}).at(5, {DB: DONE})
    assert order(memory) == [("a", 3), ("b", 5)]
    assert memory.read.count(f"{GLOBAL}/web2/x") <= 3


def test_a_held_lock_blocks_only_its_command(start: Start) -> None:
    """The place in the queue is taken when it can be used, and given back before another command runs."""
    holder = {f"{LOCK}/{'0' * 32}__lock__{'0' * 10}": b"web3"}
    memory = start(ONCE, {**holder, **DETAIL})
    queues: list[int] = []

    def note() -> None:
        queues.append(len(memory.queue))

    memory.at(1, note).at(2, {DB: DONE}).at(3, note).at(4, {DB: b"waiting"}).at(5, note)
    memory.at(6, {DB: DONE}).at(7, note).at(8, {f"{MQ}/1": READY}).at(10, dict.fromkeys(holder))
    found = []
    for turn in turns(memory):
        found.append((turn.command.name, memory.clock, len(memory.queue), bool(turn.contender)))
    assert queues == [1, 2, 1, 2]
    assert memory.lists == 3  # only when a place is taken: later contenders are behind it
    assert found == [("step", 8, 1, False), ("load", 10, 1, True)]
    waits = "web/load waits: web3 is running it; web/step waits for mq/daemon: 0 of 1 instances ready"
    assert waits in memory.reports


def test_a_command_that_another_container_has_completed_is_passed_through(start: Start) -> None:
    """All contenders continue at once, not one after another, and take no lock."""
    memory = start(ONCE, {f"{LOCK}/{'0' * 32}__lock__{'0' * 10}": b"web3", DB: DONE, f"{MQ}/1": READY})
    memory.at(1, {f"{GLOBAL}/web/load": DONE})
    found = [(turn.command.name, turn.already_done) for turn in turns(memory)]
    assert found == [("step", False), ("load", True)]
    assert len(memory.queue) == 1


# -- limits ---------------------------------------------------------------------------------------------

HASTY = {"path": "db/sync", "timeout": 3}
NO_MQ = "mq/daemon (0 of 1 instances ready)"


@pytest.mark.parametrize(
    ("commands", "tree", "limit", "expected"),
    [
        ({"a": needs(HASTY, "mq/daemon")}, {}, None, f"waited 3 s for db/sync (not started), {NO_MQ}"),
        ({"a": needs(HASTY, "mq/daemon")}, {DB: DONE}, 5, f"waited 5 s for {NO_MQ}"),
        (
            {"a": needs("db/sync"), "b": needs("mq/daemon")},
            {},
            5,
            f"waited 5 s for db/sync (not started); web/b has waited 5 s for {NO_MQ}",
        ),
        # Where and why an attempt has failed is read right before the line.
        (
            {"a": needs("db/sync")},
            {
                DB: b"error",
                f"{DB}/detail": b'{"attempt": 1, "host": "web2", "state": "error", "finished": 1, '
                b'"message": "exit status 3"}',
            },
            5,
            "waited 5 s for db/sync (error, for 5 s, attempt 1 on web2 failed: exit status 3)",
        ),
    ],
)
def test_past_its_limit_each_missing_dependency_is_named(
    start: Start, commands: Mapping[str, Any], tree: Tree, limit: float | None, expected: str
) -> None:
    """With its state; the first command that is over its limit is the one at fault."""
    memory = start(commands, tree)
    assert reason(memory, limit) == expected


def test_how_an_attempt_failed_is_read_only_when_a_line_says_it(start: Start) -> None:
    """Until then no container that waits has a use for it."""
    memory = start({"a": needs("db/sync")}, {DB: b"error"})
    memory.at(3.9, lambda: memory.reports.append(f"{f'{DB}/detail' in memory.read}"))
    reason(memory, 5)
    assert memory.reports[-1] == "False"
    assert memory.read.count(f"{DB}/detail") == 1


def test_an_outage_counts_toward_the_limit(start: Start) -> None:
    """The reason has the last known state."""
    memory = start({"a": needs("db/sync")}, {DB: b"error"})
    memory.at(1, lambda: setattr(memory, "connected", False)).at(2, {DB: DONE})
    assert reason(memory, 5) == "waited 5 s for db/sync (error, for 5 s)"


def test_the_time_in_which_a_command_runs_is_not_waited(start: Start) -> None:
    """Else a slow first command would end the container."""
    memory = start({"slow": needs(), "next": needs("web/slow", "db/sync")}).at(104, {DB: DONE})
    found = []
    for turn in turns(memory, 5):
        found.append(turn.command.name)
        memory.clock += 100
    assert found == ["slow", "next"]


# -- outside the deployment -----------------------------------------------------------------------------

VAULT = {"external": {"tcp": "vault:8200"}}


def test_something_outside_is_asked_until_the_command_runs(start: Start) -> None:
    """If it no longer answers when all else is ready, the command waits; afterwards it is not asked."""
    memory = start({"go": needs("db/sync", VAULT), "next": needs("mq/daemon")}).at(9, {f"{MQ}/1": READY})
    memory.at(1, lambda: memory.answer()).at(2, lambda: memory.answer("Connection refused"))
    memory.at(3, {DB: DONE}).at(5, lambda: memory.answer())
    assert order(memory) == [("go", 5), ("next", 9)]
    assert memory.reports[2].startswith(
        "web/go waits for db/sync: not started, external tcp vault:8200: Conn"
    )
    assert memory.reports[3].startswith(
        "web/go waits for external tcp vault:8200: Connection refused; web/next"
    )
    assert memory.asked == [["vault:8200"], [], [], []]


def test_something_outside_that_answers_at_once_is_not_reported(start: Start) -> None:
    memory = start({"go": needs(VAULT)})
    memory.answer()
    assert (order(memory), memory.reports) == ([("go", 0)], [])


def test_the_first_report_has_all_answers(start: Start) -> None:
    """Not only those that came first."""
    memory = start({"go": needs(VAULT, "db/sync")})
    memory.answer(settled=False)
    memory.at(1, lambda: memory.answer("Connection refused")).at(2, {DB: DONE}).at(3, lambda: memory.answer())
    assert order(memory) == [("go", 3)]
    assert (
        memory.reports[0]
        == "web/go waits for external tcp vault:8200: Connection refused, db/sync: not started"
    )


def test_what_the_daemon_needs_outside_is_asked_when_it_is_the_daemons_turn(start: Start) -> None:
    memory = start({"go": needs("db/sync")}, daemon=needs(VAULT)).at(1, {DB: DONE})
    memory.at(2, lambda: memory.answer())
    assert order(memory) == [("go", 1), ("daemon", 2)]
    assert memory.asked == [[], [], ["vault:8200"], []]


def test_a_place_in_the_queue_is_given_back_while_something_outside_does_not_answer(start: Start) -> None:
    """A container that cannot reach it must not keep others from the command."""
    memory = start({"load": needs(VAULT, run_once=True)}, {f"{LOCK}/{'0' * 32}__lock__{'0' * 10}": b"web3"})
    queues: list[int] = []
    memory.answer()
    memory.at(1, lambda: queues.append(len(memory.queue))).at(2, lambda: memory.answer("Connection refused"))
    memory.at(3, lambda: queues.append(len(memory.queue)))
    assert reason(memory, 5) == "waited 5 s for external tcp vault:8200 (Connection refused, for 5 s)"
    assert queues == [2, 1]


def test_a_limit_before_the_first_answer_names_what_is_asked(start: Start) -> None:
    assert (
        reason(start({"go": needs(VAULT)}), 0.5) == "waited 0 s for external tcp vault:8200 (no answer yet)"
    )


# -- the line of every half minute ----------------------------------------------------------------------


def test_every_half_minute_one_line_says_what_is_missing(start: Start, log_lines: LogLines) -> None:
    """In which state, since when, and where and why it failed; in an outage, as last known."""
    detail = {"attempt": 1, "host": "web2", "state": "error", "finished": EPOCH, "message": "exit status 3"}
    memory = start(
        {"go": needs("db/sync", "mq/daemon"), "load": needs(run_once=True)},
        {
            DB: b"error",
            f"{DB}/detail": json.dumps(detail).encode(),
            f"{LOCK}/{'0' * 32}__lock__{'0' * 10}": b"web3",
            **DETAIL,
        },
    )
    memory.at(40, lambda: setattr(memory, "connected", False))
    reason(memory, 65)
    waited = [line.message for line in log_lines() if "has waited" in line.message]
    failed = ", attempt 1 on web2 failed: exit status 3"
    missing = (
        "web/go has waited {0} s for db/sync (error, for {0} s{1}), "
        f"{NO_MQ}; web/load has waited {{0}} s while web3 is running it for {{0}} s (it holds the lock); "
        "it has no `timeout`: if it hangs, kill its process there, and set one in the definition"
    )
    assert waited == [
        missing.format(30, failed),
        "no connection to ZooKeeper; as last known: " + missing.format(60, ""),
    ]
    assert log_lines()[0].message == (
        "web/go waits for db/sync: error, mq/daemon: 0 of 1 instances ready; "
        "web/load waits: web3 is running it"
    )
