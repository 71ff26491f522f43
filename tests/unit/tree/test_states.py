"""Whether a dependency is satisfied and a one-time command is done, for tables of znodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.definition.model import Command, Dependency, Members
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import MAX_DETAIL, MAX_MESSAGE, MAX_STATE, Detail, Mark, Unmet
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Query, Unknown, View, Znode, data_of
from tests.support.instances import INSTANCE, INSTANCE_DATA, MEMBER_DATA
from tests.unit.definition.examples import command

ZNODES = Znodes("/kolla", "site", "infra/db", "web1")
STATUS = "/kolla/site/status"
SYNC = f"{STATUS}/global/db/sync"
LOCAL_SYNC = f"{STATUS}/web1/db/sync"
EPOCH = 1_700_000_000.0

Tree = Mapping[str, bytes]


def znode(data: bytes, changed: float = EPOCH, mzxid: int = 1000, owner: int = 7) -> Znode:
    return Znode(data, ZnodeStat(1, mzxid, 0, int(changed * 1000), 0, 0, 0, owner, len(data), 0, 1))


def dependency(
    path: str = "db/sync",
    scope: str = "global",
    count: int | None = None,
    generation: str | None = None,
    exclusive: bool = False,
) -> Dependency:
    return Dependency(path, scope, count, generation, exclusive, None)


def one_time(scope: str = "global", generation: str | None = None) -> Command:
    return command()._replace(path="db/sync", name="sync", run_once=scope, generation=generation)


def view_of(tree: Tree, queries: Iterable[Query]) -> dict[Query, Any]:
    """The answers to `queries` if these znodes exist, and no others."""
    view: dict[Query, Any] = {}
    for query in queries:
        path = query.path
        if query.children:
            below = {name[len(path) + 1 :].split("/")[0] for name in tree if name.startswith(f"{path}/")}
            view[query] = tuple(sorted(below))
        else:
            view[query] = znode(tree[path]) if path in tree else None
    return view


def decided(decide: Callable[[View], Any], tree: Tree) -> tuple[Any, View]:
    """A decision, and what it was made from: what it has asked for is read until that is enough."""
    answers: dict[Query, Any] = {}
    while True:
        view = View(answers)
        try:
            return decide(view), view
        except Unknown:
            answers = view_of(tree, view.noted)


def found_of(wanted: Dependency | Members, tree: Tree, **image: Any) -> str | None:
    missing = decided(lambda view: states.unmet(wanted, view, ZNODES, **image), tree)[0]
    return missing.found if missing else None


# -- dependencies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "tree", "found"),
    [
        # A command: its text says done, or some generation of it is.
        (dependency(), {}, "not started"),
        (dependency(), {SYNC: b""}, "not started"),
        (dependency(), {SYNC: b"waiting"}, "not started yet"),
        (dependency(), {SYNC: b"running"}, "running"),
        (dependency(), {SYNC: b"retry"}, "retry"),
        (dependency(), {SYNC: b"error"}, "error"),
        (dependency(), {SYNC: b"done"}, None),
        (dependency(), {SYNC: b"running", f"{SYNC}/generations/v1": b"7 3"}, None),
        (dependency(), {SYNC: b"error", f"{SYNC}/generations/v1": b"7 3"}, None),
        (dependency(), {LOCAL_SYNC: b"done"}, "not started"),
        # On this host.
        (dependency(scope="local"), {SYNC: b"done"}, "not started"),
        (dependency(scope="local"), {LOCAL_SYNC: b"waiting"}, "not started yet"),
        (dependency(scope="local"), {LOCAL_SYNC: b"done"}, None),
        # One generation, and no other.
        (dependency(generation="v2"), {SYNC: b"done"}, "not done for this generation"),
        (dependency(generation="v2"), {f"{SYNC}/generations/v1": b"7 3"}, "not done for this generation"),
        (dependency(generation="v2"), {SYNC: b"running", f"{SYNC}/generations/v2": b"9 5"}, None),
        (dependency(generation="a/b:1"), {f"{SYNC}/generations/a%2Fb%3A1": b"9 5"}, None),
        (dependency(generation=".."), {f"{SYNC}/generations/%2E%2E": b"9 5"}, None),
        # On so many hosts.
        (dependency(count=2), {SYNC: b"done"}, "done on 0 of 2 hosts"),
        (dependency(count=2), {SYNC: b"done", f"{SYNC}/hosts/web1": b""}, "done on 1 of 2 hosts"),
        (dependency(count=2), {f"{SYNC}/hosts/web1": b"", f"{SYNC}/hosts/web2": b""}, None),
        # A daemon: only live instances, whatever the text says.
        (dependency("db/daemon"), {f"{STATUS}/global/db/daemon": b"running"}, "0 of 1 instances ready"),
        (dependency("db/daemon"), {f"{STATUS}/global/db/daemon/ready/a": INSTANCE_DATA}, None),
        (
            dependency("db/daemon", count=2),
            {f"{STATUS}/global/db/daemon/ready/a": INSTANCE_DATA},
            "1 of 2 instances ready",
        ),
        (
            dependency("db/daemon", "local"),
            {f"{STATUS}/global/db/daemon/ready/a": INSTANCE_DATA},
            "0 of 1 instances ready",
        ),
        (dependency("db/daemon", "local"), {f"{STATUS}/web1/db/daemon/ready/a": INSTANCE_DATA}, None),
        # Members, ready or not.
        (Members("infra/db", 2, None), {"/kolla/site/infra/db/.party/a": MEMBER_DATA}, "1 of 2 present"),
        (Members("infra/db", 1, None), {"/kolla/site/infra/db/.party/a": MEMBER_DATA}, None),
        # What is invalid counts for nothing.
        *(
            (wanted, {path: data}, found)
            for wanted, path, found in (
                (dependency("db/daemon"), f"{STATUS}/global/db/daemon/ready/a", "0 of 1 instances ready"),
                (Members("infra/db", 1, None), "/kolla/site/infra/db/.party/a", "0 of 1 present"),
            )
            for data in (b"", b"[]", b"{}", b"x" * 200_000, b"[" * 16_000, b'{"address": 1}', b"\xff")
        ),
    ],
)
def test_a_dependency_is_satisfied_by_the_znodes_of_its_kind(
    wanted: Dependency | Members, tree: Tree, found: str | None
) -> None:
    """If it isn't, `found` says what was found."""
    assert found_of(wanted, tree) == found


V1, V2 = f"{SYNC}/generations/v1", f"{SYNC}/generations/v2"
ONCE = {f"{SYNC}/generations": b""}
OWN = "not done for generation v2, which this image has"


@pytest.mark.parametrize(
    ("wanted", "tree", "image", "published", "found"),
    [
        # The image is of the published generation: that one must be done.
        (dependency(), {SYNC: b"done", V1: b"7 3", **ONCE}, "v2", "v2", OWN),
        (dependency(), {SYNC: b"running", V1: b"7 3", **ONCE}, "v2", "v2", OWN),
        (dependency(), {SYNC: b"done", V2: b"9 5", **ONCE}, "v2", "v2", None),
        (dependency(), {SYNC: b"waiting", **ONCE}, "v2", "v2", "not started yet"),
        # It was done before it had generations.
        (dependency(), {SYNC: b"done", **ONCE}, "v2", "v2", OWN),
        # For any other image one that is done is enough, and where there is none.
        (dependency(), {SYNC: b"done", V1: b"7 3", **ONCE}, "v1", "v2", None),
        (dependency(), {SYNC: b"running", V1: b"7 3", **ONCE}, "v1", "v2", None),
        (dependency(), {SYNC: b"done", V1: b"7 3", **ONCE}, "v0", "v2", None),
        (dependency(), {SYNC: b"done", V1: b"7 3", **ONCE}, None, "v2", None),
        (dependency(), {SYNC: b"done", V1: b"7 3", **ONCE}, "v2", None, None),
        # A plain command has no generations.
        (dependency(), {SYNC: b"done"}, "v2", "v2", None),
        # The dependency says which it needs.
        (dependency(generation="any"), {SYNC: b"done", V1: b"7 3", **ONCE}, "v2", "v2", None),
        (dependency(generation="v1"), {SYNC: b"done", V1: b"7 3", **ONCE}, "v2", "v2", None),
        # What is published for the deployment does not decide what each host does once.
        (dependency(scope="local"), {LOCAL_SYNC: b"done"}, "v2", "v2", None),
    ],
)
def test_an_image_of_the_published_generation_needs_that_generation(
    wanted: Dependency, tree: Tree, image: str | None, published: str | None, found: str | None
) -> None:
    assert found_of(wanted, tree, image=image, published=lambda dependency: published) == found


def instances(*generations: str | None) -> Tree:
    """Ready instances of `api/daemon`, each with the generation of its image."""
    return {
        f"{STATUS}/global/api/daemon/ready/{number}": json.dumps(
            {**INSTANCE, "generation": generation}
        ).encode()
        for number, generation in enumerate(generations)
    }


def of_containers(*generations: str | None) -> Tree:
    """The containers of the service that has the role `api`."""
    shown = {
        f"/kolla/site/web/api/.containers/{number}": json.dumps(
            {"host": f"web-{number}", "generation": generation}
        ).encode()
        for number, generation in enumerate(generations)
    }
    return {f"{STATUS}/global/api": b"web/api", **shown}


NEW = dependency("api/daemon", generation="2")
NEW_TWICE = dependency("api/daemon", count=2, generation="2")
ONLY_NEW = dependency("api/daemon", generation="2", exclusive=True)
ONE = instances("2")
CONTAINER = "/kolla/site/web/api/.containers/9"
DEEP = b"[" * 9000


@pytest.mark.parametrize(
    ("wanted", "tree", "found"),
    [
        (NEW, {}, "0 of 1 instances of generation 2 ready"),
        (NEW, instances("1", None), "0 of 1 instances of generation 2 ready"),
        (NEW, instances("1", "2"), None),
        (NEW_TWICE, instances("1", "2", None), "1 of 2 instances of generation 2 ready"),
        (NEW_TWICE, instances("2", "1", "2"), None),
        # Without an own generation in the dependency any instance counts.
        (dependency("api/daemon", count=2), instances("1", None), None),
        # What an instance registers is data from strangers.
        *(
            (NEW, {f"{STATUS}/global/api/daemon/ready/1": data}, "0 of 1 instances of generation 2 ready")
            for data in (b"", b"no JSON", b'"2"', b"[]", b'{"generation": 2}', b'{"generation": ["2"]}', DEEP)
        ),
        (
            dependency("api/daemon", generation="a\nb"),
            instances("a\nb"),
            "0 of 1 instances of generation a\nb ready",
        ),
        (
            NEW,
            {f"{STATUS}/global/api/daemon/ready/1": b'{"generation": "2", "more": "%s"}' % (b"x" * 20000)},
            "0 of 1 instances of generation 2 ready",
        ),
        # Nobody else may be there, ready or not.
        (ONLY_NEW, {**instances("1"), **of_containers("1")}, "0 of 1 instances of generation 2 ready"),
        (ONLY_NEW, {**ONE, **of_containers("2", "2")}, None),
        (ONLY_NEW, {**ONE, **of_containers("2", "2", "1")}, "api on web-2 still has generation 1"),
        (ONLY_NEW, {**ONE, **of_containers("2", None)}, "api on web-1 still has no generation"),
        (
            ONLY_NEW,
            {**ONE, **of_containers("1", "2", None, "3")},
            "api on web-0 still has generation 1, and 2 more have another one",
        ),
        *(
            (
                ONLY_NEW,
                {**ONE, **of_containers("2"), CONTAINER: data},
                "api on an unknown host still has no generation",
            )
            for data in (b"", b"no JSON", b"[]", b'{"generation": 2, "host": 2}', DEEP)
        ),
        (
            ONLY_NEW,
            {**ONE, **of_containers("2"), CONTAINER: b'{"generation": "%s", "host": "a\\nb"}' % (b"1" * 100)},
            f"api on a\N{REPLACEMENT CHARACTER}b still has generation {'1' * 64}",
        ),
        # Who has the role is said by nobody, or by a stranger.
        *(
            (
                ONLY_NEW,
                {**ONE, **tree},
                "/kolla/site/status/global/api does not name the service of this role",
            )
            for tree in ({}, {f"{STATUS}/global/api": b""}, {f"{STATUS}/global/api": b"web/other"})
        ),
        (
            ONLY_NEW,
            {**ONE, f"{STATUS}/global/api": b"../api"},
            "/kolla/site/status/global/api does not name the service of this role",
        ),
    ],
)
def test_a_daemon_of_one_generation_is_satisfied_by_instances_of_it(
    wanted: Dependency, tree: Tree, found: str | None
) -> None:
    """Only ready ones count, so many; an exclusive one has no container of another generation beside it."""
    assert found_of(wanted, tree) == found


@pytest.mark.parametrize(
    ("wanted", "path", "data"),
    [
        (dependency("db/daemon"), f"{STATUS}/global/db/daemon/ready/a", INSTANCE_DATA),
        (Members("infra/db", 1, None), "/kolla/site/infra/db/.party/a", MEMBER_DATA),
    ],
)
def test_what_no_session_owns_counts_for_nothing(
    wanted: Dependency | Members, path: str, data: bytes
) -> None:
    """Its names come first; only as many others as are required are read. A warning names it."""
    tree = {path: data, f"{path}b": data, f"{path}c": data}
    unmet = partial(states.unmet, wanted, znodes=ZNODES)
    missing, view = decided(unmet, tree)
    assert missing is None and not view.remarks
    assert data_of(f"{path}b") not in view.noted
    answers = {**view.answers, data_of(path): znode(data, owner=0)}
    view = View(answers)
    with pytest.raises(Unknown):
        unmet(view)
    assert view.noted - answers.keys() == {data_of(f"{path}b")}
    view = View({**answers, data_of(f"{path}b"): znode(data)})
    assert unmet(view) is None
    (warning,) = view.remarks
    assert warning.startswith(f"{path} is left out: no session owns it")


def test_a_container_that_no_session_owns_is_in_nobodys_way() -> None:
    """A copied tree may hold one of any generation; nor is one that is gone by now."""
    _, view = decided(lambda view: states.unmet(ONLY_NEW, view, ZNODES), {**ONE, **of_containers("2", "1")})
    path = "/kolla/site/web/api/.containers/1"
    for left in (znode(view.answers[data_of(path)].data, owner=0), None):
        found = View({**view.answers, data_of(path): left})
        assert states.unmet(ONLY_NEW, found, ZNODES) is None
        assert [each.split()[0] for each in found.remarks] == [path] * bool(left)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (dependency(), "db/sync"),
        (dependency(scope="local"), "db/sync on this host"),
        (dependency(generation="v1"), "db/sync generation v1"),
        (dependency("db/daemon"), "db/daemon"),
        (NEW_TWICE, "api/daemon"),
        (Members("infra/db", 2, None), "members of infra/db"),
    ],
)
def test_what_is_missing_is_named_as_the_definition_names_it(
    wanted: Dependency | Members, named: str
) -> None:
    """So that it can be found in the definition."""
    assert Unmet(wanted, "").what == named


@pytest.mark.parametrize(
    ("missing", "detail", "words"),
    [
        (Unmet(dependency(), "not started"), Detail(), "db/sync (not started)"),
        (Unmet(dependency(), "waiting", EPOCH - 90), Detail(), "db/sync (waiting, for 90 s)"),
        # The clocks of two machines may differ.
        (Unmet(dependency(), "waiting", EPOCH + 90), Detail(), "db/sync (waiting, for 0 s)"),
        (
            Unmet(dependency(), "running", EPOCH - 5),
            Detail(attempt=2, host="web2", started=EPOCH - 5, state="running"),
            "db/sync (running, for 5 s, attempt 2 runs on web2)",
        ),
        (
            Unmet(dependency(), "error", EPOCH - 5),
            Detail(
                attempt=3,
                host="web2",
                started=EPOCH - 9,
                finished=EPOCH - 5,
                state="error",
                message="exit status 3",
            ),
            "db/sync (error, for 5 s, attempt 3 on web2 failed: exit status 3)",
        ),
        # Done here, but not on enough hosts: nothing has failed.
        (
            Unmet(dependency(count=2), "done on 1 of 2 hosts"),
            Detail(attempt=1, host="web2", started=EPOCH - 9, finished=EPOCH - 5, state="done"),
            "db/sync (done on 1 of 2 hosts)",
        ),
    ],
)
def test_what_is_missing_is_described_with_its_state_since_when_and_why(
    missing: Unmet, detail: Detail, words: str
) -> None:
    """Host, attempt and reason of a failure are in the same text."""
    assert states.describe(missing, detail, EPOCH) == words


# -- one-time commands ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "tree", "done"),
    [
        (one_time(), {}, False),
        (one_time(), {SYNC: b"running"}, False),
        (one_time(), {SYNC: b"error"}, False),
        (one_time(), {SYNC: b"done"}, True),
        (one_time("local"), {SYNC: b"done"}, False),
        (one_time("local"), {LOCAL_SYNC: b"done"}, True),
        # With a generation its mark counts, never the text.
        (one_time(generation="v2"), {SYNC: b"done", f"{SYNC}/generations/v1": b"7 3"}, False),
        (one_time(generation="v1"), {SYNC: b"running", f"{SYNC}/generations/v1": b"7 3"}, True),
        (one_time(generation="quay.io/x:1.0"), {f"{SYNC}/generations/quay.io%2Fx%3A1.0": b"7 3"}, True),
        (one_time(generation="."), {f"{SYNC}/generations/%2E": b"7 3"}, True),
        (one_time("local", "v1"), {f"{SYNC}/generations/v1": b"7 3"}, False),
        (one_time("local", "v1"), {f"{LOCAL_SYNC}/generations/v1": b"7 3"}, True),
    ],
)
def test_a_one_time_command_is_done_once_its_own_scope_says_so(
    command: Command, tree: Tree, done: bool
) -> None:
    """In the deployment or on the host; for its generation if it has one."""
    assert decided(lambda view: states.is_done(command, ZNODES, view), tree)[0] is done


MARKS = {f"{SYNC}/generations/v1": b"100 30", f"{SYNC}/generations/v2": b"200 20"}


@pytest.mark.parametrize(
    ("command", "definition", "tree", "superseded_by"),
    [
        # Without generations there is nothing to be late for.
        (one_time(), 10, MARKS, None),
        (one_time(generation="v3"), 10, {}, None),
        # The newest mark is that of the largest token, and only its definition counts.
        (one_time(generation="v3"), 10, MARKS, "v2"),
        (one_time(generation="v3"), 19, MARKS, "v2"),
        (one_time(generation="v3"), 20, MARKS, None),
        (one_time(generation="v3"), 25, MARKS, None),
        (one_time(generation="v3"), 10, {**MARKS, f"{SYNC}/generations/v0": b"300 5"}, None),
        # A foreign mark is older than all others, and alone it is no newer than any definition.
        (one_time(generation="v3"), 10, {**MARKS, f"{SYNC}/generations/odd": b"mine"}, "v2"),
        (one_time(generation="v3"), 10, {f"{SYNC}/generations/odd": b"mine"}, None),
        (one_time("local", "v3"), 10, MARKS, None),
        # Tokens are numbers: as text 99 would be greater than 100.
        (
            one_time(generation="v3"),
            10,
            {f"{SYNC}/generations/v1": b"99 5", f"{SYNC}/generations/v2": b"100 50"},
            "v2",
        ),
        # Of an ensemble that had come farther than this one: its definitions are older than any here.
        (one_time(generation="v3"), 10, {f"{SYNC}/generations/v2": b"5000 1000"}, "v2"),
        (one_time(generation="v3"), 10, {f"{SYNC}/generations/v2": b"5000 1001"}, None),
    ],
)
def test_a_newer_mark_supersedes_an_older_definition(
    command: Command, definition: int, tree: Tree, superseded_by: str | None
) -> None:
    """A replica that was stopped for a while must not run an old migration after a new one."""
    mark, _ = decided(lambda view: states.superseded_by(command, ZNODES, view, definition), tree)
    assert (mark.name.rsplit("/", 1)[1] if mark else None) == superseded_by


@pytest.mark.parametrize(
    ("detail", "read"),
    [
        # The last success is the newest, whatever has failed or begun since.
        (Detail(state="done", generation="g7"), ["g7"]),
        (Detail(state="running", generation="g", newest="g7"), ["g7"]),
        # Nothing says it: all are read.
        (Detail(state="done", generation="forgotten"), [f"g{n}" for n in range(500)]),
        (Detail(), [f"g{n}" for n in range(500)]),
    ],
)
def test_far_too_many_marks_are_not_all_read(detail: Detail, read: list[str]) -> None:
    tree = {f"{SYNC}/generations/g{n}": b"%d 3" % n for n in range(500)}
    tree[f"{SYNC}/detail"] = detail.encoded()
    _, view = decided(lambda view: states.newest_mark(CONTRACT, view), tree)
    marks = [query.path.rpartition("/")[2] for query in view.noted if "/generations/" in query.path]
    assert sorted(marks) == sorted(read)


CONTRACT = ZNODES.command("global", "db/sync")


@pytest.mark.parametrize(
    ("scope", "current", "new", "text"),
    [
        ("local", None, "running", "running"),
        ("local", "done", "running", "running"),
        ("local", "done", "error", "error"),
        ("global", "waiting", "running", "running"),
        ("global", "running", "error", "error"),
        ("global", "error", "done", "done"),
        # One has succeeded: no later run, here or elsewhere, takes that back.
        ("global", "done", "running", "done"),
        ("global", "done", "retry", "done"),
        ("global", "done", "error", "done"),
    ],
)
def test_done_stays_in_the_deployments_scope(scope: str, current: str | None, new: str, text: str) -> None:
    """A replica never changes the state of another; on a host the last run counts."""
    assert states.plain_state(scope, current, new) == text


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "mark"),
    [
        (b"100 30", Mark("m", 100, 30)),
        (states.encode_mark(2**63 - 1, 7), Mark("m", 2**63 - 1, 7)),
        (b"", Mark("m", 0, 0)),
        (b"100", Mark("m", 0, 0)),
        (b"100 30 1", Mark("m", 0, 0)),
        (b"one two", Mark("m", 0, 0)),
        (b"\xff\xfe 1", Mark("m", 0, 0)),
        (b"7" * 900_000 + b" 1", Mark("m", 0, 0)),
        (b"7" * 4000 + b" 1", Mark("m", 0, 0)),
    ],
)
def test_a_mark_is_read_back_and_a_foreign_one_is_the_oldest(data: bytes, mark: Mark) -> None:
    """An operator may create one by hand, to skip a migration."""
    assert states.decode_mark("m", znode(data)) == mark
    assert states.decode_mark("m", None) == Mark("m", 0, 0)


FOREIGN = rb"""
no JSON|\xff|[]|null|3|"text"|{"attempt": "many"}|{"foreign": 1}|{"attempt": true}|{"attempt": 1.5}
{"attempt": null}|{"host": {"a": 1}}|{"host": null}|{"claim": 7}|{"generation": []}|{"started": "now"}
{"finished": {}}|{"state": 1}|{"status": "0"}|{"token": "7"}|{"message": ["m"]}
{"message": "m", "started": true}
""".replace(b"\n", b"|").split(b"|")


@pytest.mark.parametrize(
    "data", [*FOREIGN, b"\xff", b'{"attempt": 1' + b" " * MAX_DETAIL + b"}", b"[" * 4000]
)
def test_a_foreign_detail_counts_as_empty(data: bytes) -> None:
    """The next attempt is then the first."""
    assert states.decode_detail(znode(data)) == Detail()
    assert states.decode_detail(None) == Detail()


@pytest.mark.parametrize(
    ("detail", "mzxid", "token"),
    [
        (Detail(), 7, 7),
        (Detail(attempt=1, started=1.0), 7, 7),
        (Detail(attempt=2, started=1.0, after=6), 7, 7),
        # In an ensemble that has not come as far as the one before.
        (Detail(attempt=2, started=1.0, after=7), 7, 8),
        (Detail(attempt=2, started=1.0, after=5000), 7, 5001),
        # The znode was written again, with the outcome.
        (Detail(attempt=1, started=1.0, finished=2.0, token=7), 9, 7),
        (Detail(attempt=1, started=1.0, finished=2.0, token=5000), 9, 5000),
    ],
)
def test_a_token_is_larger_than_the_one_before(detail: Detail, mzxid: int, token: int) -> None:
    """Also in a tree that was moved to another ensemble."""
    assert states.token_of(detail, mzxid) == token


@pytest.mark.parametrize(
    ("detail", "floor", "token"),
    [
        (None, None, 0),
        (b"", b"5000", 5000),
        (b'{"started": 1, "token": 7}', None, 7),
        (b'{"started": 1, "token": 7}', b"5000", 5000),
        (b'{"started": 1, "token": 5000}', b"7", 5000),
        (b'{"started": 1, "after": 5000}', b"7", 5001),
        # What nobody has written here, or a service that forges its own tokens.
        (None, b"five", 0),
        (None, b"-5", 0),
        (None, b"%d" % 2**62, 2**62),
        (None, b"%d" % (2**62 + 1), 0),
    ],
)
def test_the_token_floor_counts_as_an_earlier_attempt(
    detail: bytes | None, floor: bytes | None, token: int
) -> None:
    found, least = (None if data is None else znode(data) for data in (detail, floor))
    assert states.largest_token(found, least) == token


details = st.builds(
    Detail,
    attempt=st.integers(1, 10**6),
    claim=st.uuids().map(lambda name: name.hex),
    host=st.text(max_size=64).filter(str.isprintable),
    generation=st.none() | st.text(min_size=1, max_size=3000),
    started=st.floats(0, 2e9),
    finished=st.none() | st.floats(0, 2e9),
    state=st.sampled_from(["running", "done", "error", "retry"]),
    status=st.none() | st.integers(0, 255),
    after=st.none() | st.integers(1, 2**63 - 1),
    token=st.none() | st.integers(1, 2**63 - 1),
    message=st.text(max_size=3000),
)


@given(details)
def test_a_detail_never_exceeds_its_limit(detail: Detail) -> None:
    """4 KiB at most, 1 KiB of message, and all other fields are read back unchanged."""
    data = detail.encoded()
    assert len(data) <= MAX_DETAIL
    found = states.decode_detail(znode(data))
    assert len(found.message.encode()) <= MAX_MESSAGE
    assert found._replace(message="", generation=None) == detail._replace(message="", generation=None)
    assert set(json.loads(data)) <= set(Detail._fields)


@pytest.mark.parametrize("character", ["a", "é", "語", "🐍", '"'])
def test_a_long_message_is_cut_at_a_character(character: str) -> None:
    """Never inside a character, and as late as possible."""
    assert states.cut(character * 2000, 10) == character * (10 // len(character.encode()))
    detail = Detail(message=character * 2000, generation=character * 2000)
    assert len(detail.encoded()) <= MAX_DETAIL
    assert set(states.decode_detail(znode(detail.encoded())).message) == {character}


def test_what_a_foreign_detail_says_stays_in_its_line() -> None:
    """It is shown in the log, and to the probes."""
    found = states.decode_detail(znode(json.dumps({"host": "a\nb\x1b", "message": "c\r\ud800d"}).encode()))
    assert (found.host, found.message) == ("a\ufffdb\ufffd", "c\ufffd\ufffdd")


def test_a_state_is_read_with_its_age() -> None:
    """An empty text is no state; the age is that of its last change. A foreign one is cut to a few words."""
    texts = {"/a": b"running", "/b": b"", "/d": b"done\n\x1b\xff" + b"x" * 900_000}
    view = View(view_of(texts, map(data_of, ("/a", "/b", "/c", "/d"))))
    assert states.state_of(view, "/d")[0] == "done\ufffd\ufffd\ufffd" + "x" * (MAX_STATE - 7) + "..."
    assert states.state_of(view, "/a") == ("running", EPOCH)
    assert states.state_of(view, "/b") == (None, EPOCH)
    assert states.state_of(view, "/c") == (None, None)
