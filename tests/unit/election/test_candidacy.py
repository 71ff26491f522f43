"""What the transactions of an election check and change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kolla_mesos_start.election import decide, words
from kolla_mesos_start.election.candidacy import Candidacy, Result
from kolla_mesos_start.election.decide import Elected, Join, Snapshot
from kolla_mesos_start.election.records import Candidate, Decision, Member, Override, Position, Running, parse
from kolla_mesos_start.tree.znodes import ElectionZnodes
from kolla_mesos_start.zookeeper.view import Znode
from kolla_mesos_start.zookeeper.wire import CheckVersion, Create, Delete, SetData
from tests.support.instances import INSTANCE_DATA

AT = ElectionZnodes("/e")
FORMED = Decision(3, "a", "g", 5, {}, "formed", True)


STAT = {"mzxid": 9, "czxid": 5, "ephemeralOwner": 3}


def znode(version: int = 0, **stat: Any) -> Znode:
    return Znode(INSTANCE_DATA, SimpleNamespace(**{**STAT, "version": version, **stat}))


def candidate_on(host: str) -> Candidacy:
    """Its part without ZooKeeper: only what makes operations."""
    found = Candidacy.__new__(Candidacy)
    found._at, found._host, found._container, found._ready = AT, host, "id", "/ready"
    creation = lambda path, data, flags=0: Create(path, data, [], flags)  # noqa: E731
    found._client = SimpleNamespace(creation=creation)  # type: ignore[assignment]
    return found


def shown(operations: Any) -> list[str]:
    """Each operation as text: its kind, its path, and the version that it checks."""
    kinds = {CheckVersion: "check", Delete: "delete", SetData: "set", Create: "create"}
    return [
        f"{kinds[type(each)]} {each.path}" + (f" {each.version}" if hasattr(each, "version") else "")
        for each in operations
    ]


def test_a_decision_checks_all_other_candidates() -> None:
    """A host whose session has ended since the snapshot was read may be running soon."""
    positions = {"a": "g:5", "b": "g:6", "c": "g:4"}
    snapshot = Snapshot(
        wanted=3,
        decision=FORMED,
        members={host: Member(3, "joined") for host in "ab"},
        candidates={host: Candidate(*parse(each)) for host, each in positions.items()},
        override=Override(4, "b"),
    )
    verdict = decide.decide(snapshot, "b")
    assert isinstance(verdict, Elected)
    view = {
        **{AT.candidate(host): znode() for host in "abc"},
        **{AT.member(host): znode(2) for host in "ab"},
        **{AT.decision: znode(7), AT.override: znode(1)},
    }
    assert shown(candidate_on("b")._decision(verdict, view)) == [
        "check /e/candidates/a 0",
        "check /e/candidates/c 0",
        "delete /e/candidates/b 0",
        "create /e/running/b",
        "set /e/decision 7",
        "set /e/members/a 2",
        "set /e/members/b 2",
        "create /e/members/c",
        "delete /e/override 1",
    ]


def test_a_join_checks_the_answer_and_the_decision() -> None:
    """An instance that answered before is no proof, and neither is another epoch."""
    verdict = Join(Member(3, "joining"), Running(3, "join", "starting"))
    view = {
        **{AT.candidate("b"): znode(), AT.decision: znode(7)},
        **{"/ready/old": znode(4, mzxid=4, czxid=1), "/ready/new": znode(6)},
        # Of a copied tree.
        "/ready/copied": znode(5, ephemeralOwner=0),
    }
    found = candidate_on("b")._join(verdict, view, view[AT.candidate("b")])
    assert shown(found) == [
        "check /ready/new 6",
        "check /e/decision 7",
        "delete /e/candidates/b 0",
        "create /e/running/b",
        "create /e/members/b",
    ]


def test_the_environment_has_the_own_position() -> None:
    """Group and number are empty without data."""
    assert Result("first", 4, Position("g", 5)).environ == {
        "KOLLA_ELECTION": "first",
        "KOLLA_ELECTION_EPOCH": "4",
        "KOLLA_ELECTION_GROUP": "g",
        "KOLLA_ELECTION_POSITION": "5",
    }
    assert Result("join", 1, Position()).values == {"role": "join", "epoch": "1", "group": "", "position": ""}
    assert words.example()["role"] == "join"
