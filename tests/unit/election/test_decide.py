"""Who bootstraps a cluster, who joins it, who waits, and what is refused: one case for each rule."""

from __future__ import annotations

from typing import Any, Union

import pytest

from kolla_mesos_start.election import decide, words
from kolla_mesos_start.election.decide import Elected, Join, Refused, Snapshot, Wait
from kolla_mesos_start.election.records import Candidate, Decision, Member, Override, Running, parse

Expected = Union[str, tuple[str, str]]


def candidates(**positions: str) -> dict[str, Candidate]:
    return {host: Candidate(*parse(position)) for host, position in positions.items()}


def members(states: str, *hosts: str) -> dict[str, Member]:
    """The hosts a, b, c and so on: `j` is joined, `i` is joining, `l` is left out, `-` is no member."""
    kinds = {"j": "joined", "i": "joining", "l": "left-out"}
    return {host: Member(3, kinds[each]) for host, each in zip("abcdef", states) if each != "-"}


def decision(group: str | None = "g", value: int | None = 5, **more: Any) -> Decision:
    fields = {"epoch": 3, "winner": "a", "positions": {}, "state": "formed", "formed": True, **more}
    return Decision(group=group, value=value, **fields)


def snapshot(positions: dict[str, str], states: str = "", **more: Any) -> Snapshot:
    return Snapshot(
        **{"wanted": 3, "members": members(states), "candidates": candidates(**positions), **more}
    )


def override(
    winner: str | None = None, *without: str, epoch: int = 4, empty: tuple[str, ...] = ()
) -> Override:
    return Override(epoch, winner, without, empty)


FORMED, UNFORMED = decision(), decision(state="bootstrapping", formed=False)
AGAIN = decision(state="bootstrapping")
FROM_NONE = decision(None, None)
RUNS_B = {"b": Running(3, "join", "starting")}

JUDGED: list[tuple[str, Snapshot, Expected]] = [
    # the first cluster
    ("all hosts are empty", snapshot({"a": "none", "b": "none", "c": "none"}), "a"),
    ("data that were there before", snapshot({"a": "g:1", "b": "g:3", "c": "none"}), "b"),
    ("a host has not come yet", snapshot({"a": "none", "b": "none"}), (decide.MISSING, "")),
    ("no host has come yet", snapshot({}), (decide.MISSING, "")),
    ("more hosts than there may be",
     snapshot({"a": "none", "b": "none", "c": "none", "d": "none"}), (decide.TOO_MANY, "abcd")),
    ("one host alone", snapshot({"a": "none"}, wanted=1), "a"),
    # the largest number
    ("the largest number", snapshot({"a": "g:5", "b": "g:9", "c": "g:7"}, "jjj", decision=FORMED), "b"),
    ("not the longest text", snapshot({"a": "g:9", "b": "g:10", "c": "g:1"}, "jjj", decision=FORMED), "b"),
    ("64 bits", snapshot({"a": f"g:{2**64 - 2}", "b": f"g:{2**64 - 1}", "c": "g:0"}, "jjj"), "b"),
    ("a tie", snapshot({"c": "g:9", "b": "g:9", "a": "g:8"}, "jjj", decision=FORMED), "b"),
    ("numbers alone", snapshot({"a": "5", "b": "6", "c": "4"}, "jjj", decision=decision("", 5)), "b"),
    ("0 is not empty", snapshot({"a": "none", "b": "g:0", "c": "none"}, "iji", decision=FORMED), "b"),
    # membership by name
    ("a member is missing",
     snapshot({"a": "g:5", "b": "g:5"}, "jjj", decision=FORMED), (decide.MISSING, "c")),
    ("two are missing", snapshot({"a": "g:5"}, "jjj", decision=FORMED), (decide.MISSING, "bc")),
    ("a replacement can't stand in",
     snapshot({"a": "g:5", "b": "g:5", "d": "none"}, "jjj", decision=FORMED), (decide.MISSING, "c")),
    ("a replacement has no say",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:6", "d": "g:9"}, "jjj", decision=FORMED), "c"),
    ("fewer are wanted than members",
     snapshot({"a": "g:5", "b": "g:5"}, "jjj", decision=FORMED, wanted=1), (decide.MISSING, "c")),
    ("more are wanted than members",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:5"}, "jjj", decision=FORMED, wanted=5), (decide.MISSING, "")),
    ("a new host in a free place",
     snapshot({"a": "g:5", "b": "g:4", "c": "none"}, "jj-", decision=FORMED), "a"),
    ("two new hosts, one free place",
     snapshot({"a": "g:5", "b": "g:5", "c": "none", "d": "none"}, "jj--", decision=FORMED),
     (decide.TOO_MANY, "cd")),
    ("a new host has the newest data",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:6"}, "jj-", decision=FORMED), (decide.STRANGER, "c")),
    ("a new host has the same number",
     snapshot({"a": "g:5", "b": "g:6", "c": "g:6"}, "jj-", decision=FORMED), "b"),
    # groups
    ("different groups", snapshot({"a": "g:5", "b": "h:5", "c": "none"}), (decide.GROUPS, "ab")),
    ("a group and none", snapshot({"a": "g:5", "b": "5", "c": "none"}), (decide.GROUPS, "ab")),
    ("one group, foreign to the cluster",
     snapshot({"a": "h:5", "b": "h:5", "c": "h:5"}, "jjj", decision=FORMED), (decide.FOREIGN, "abc")),
    ("a foreign group, also before the cluster is formed again",
     snapshot({"a": "h:5", "b": "h:5", "c": "h:5"}, "jjj", decision=AGAIN), (decide.FOREIGN, "abc")),
    ("another group if no cluster was formed",
     snapshot({"a": "h:5", "b": "none", "c": "none"}, "iii", decision=decision(
         None, None, state="bootstrapping", formed=False)), "a"),
    ("a refusal does not wait for the missing",
     snapshot({"a": "h:5", "b": "g:5"}, "jjj", decision=FORMED), (decide.GROUPS, "ab")),
    ("the group of the first cluster is not known yet",
     snapshot({"a": "h:5", "b": "h:6", "c": "none"}, "jji", decision=FROM_NONE), "b"),
    # empty hosts
    ("a host that had joined is empty",
     snapshot({"a": "g:5", "b": "none", "c": "g:5"}, "jjj", decision=FORMED), (decide.EMPTY, "b")),
    ("a host that was joining is empty",
     snapshot({"a": "g:5", "b": "none", "c": "g:4"}, "jij", decision=FORMED), "a"),
    ("all that joined are empty",
     snapshot({"a": "none", "b": "none", "c": "none"}, "jji", decision=FORMED), (decide.EMPTY, "ab")),
    ("all hosts that were joining are empty",
     snapshot({"a": "none", "b": "none", "c": "none"}, "iii", decision=FORMED), (decide.ALL_EMPTY, "abc")),
    ("all are empty, and the last winner was not",
     snapshot({"a": "none", "b": "none", "c": "none"}, "iii", decision=UNFORMED), (decide.EMPTY, "a")),
    ("all are empty again before the first cluster is formed",
     snapshot({"a": "none", "b": "none", "c": "none"}, "iii", decision=decision(
         None, None, state="bootstrapping", formed=False)), "a"),
    ("a winner that did not form the cluster has lost its data",
     snapshot({"a": "none", "b": "g:4", "c": "g:4"}, "iii", decision=UNFORMED), (decide.EMPTY, "a")),
    # a winner that died
    ("not replaced by the second best",
     snapshot({"b": "g:4", "c": "g:4"}, "iii", decision=UNFORMED), (decide.MISSING, "a")),
    ("it comes back", snapshot({"a": "g:6", "b": "g:4", "c": "g:4"}, "iii", decision=UNFORMED), "a"),
    ("another one is newer by now",
     snapshot({"a": "g:5", "b": "g:8", "c": "g:4"}, "iii", decision=UNFORMED), "b"),
    # running hosts
    ("a host runs",
     snapshot({"a": "g:5", "c": "g:5"}, "jjj", decision=FORMED, running=RUNS_B), (decide.RUNS, "b")),
    ("a host is both",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:5"}, "jjj", running=RUNS_B), (decide.RUNS, "b")),
    ("an instance is ready, without an election",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:5"}, ready=["d"]), (decide.ANSWER, "d")),
    # left out
    ("an absent host that was left out is waited for",
     snapshot({"a": "g:5", "b": "g:5"}, "jjl", decision=FORMED), (decide.MISSING, "c")),
    ("it does not count with its old data",
     snapshot({"a": "g:5", "b": "g:5", "c": "g:9"}, "jjl", decision=FORMED), (decide.LEFT, "c")),
    ("the missing are named first",
     snapshot({"a": "g:5", "c": "g:9"}, "jjl", decision=FORMED), (decide.MISSING, "b")),
    ("it may come back empty", snapshot({"a": "g:5", "b": "g:5", "c": "none"}, "jjl", decision=FORMED), "a"),
    ("its old group does not matter",
     snapshot({"a": "g:5", "b": "g:5", "c": "h:9"}, "jjl", decision=FORMED), (decide.LEFT, "c")),
    # overrides
    ("without a missing host",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("a", "c")), "a"),
    ("the winner alone is not enough",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED,
              override=override("a")), (decide.MISSING, "c")),
    ("every absent host must be named",
     snapshot({"a": "g:5"}, "jjj", decision=FORMED, override=override("a", "c")), (decide.MISSING, "b")),
    ("the override is for a past epoch",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("a", "c", epoch=3)),
     (decide.MISSING, "c")),
    ("the override is for a later epoch",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("a", "c", epoch=5)),
     (decide.MISSING, "c")),
    ("the winner must be a candidate",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("d", "c")),
     (decide.NO_WINNER, "d")),
    ("a foreign group can't be overridden",
     snapshot({"a": "h:5", "b": "h:6", "c": "h:5"}, "jjj", decision=FORMED, override=override("a")),
     (decide.FOREIGN, "abc")),
    ("different groups can't be overridden",
     snapshot({"a": "g:5", "b": "h:6", "c": "g:5"}, "jjj", decision=FORMED, override=override("a")),
     (decide.GROUPS, "abc")),
    ("an older winner",
     snapshot({"a": "g:5", "b": "g:6", "c": "g:5"}, "jjj", decision=FORMED, override=override("a")),
     "a"),
    ("an empty winner beside data",
     snapshot({"a": "g:5", "b": "none"}, "jij", decision=FORMED, override=override("b", "c")),
     (decide.EMPTY_WINNER, "b")),
    ("a winner that is no member",
     snapshot({"a": "g:5", "d": "g:6"}, "jj-", decision=FORMED, override=override("d", "b")),
     (decide.STRANGER, "d")),
    ("a winner that is no member, if all are empty",
     snapshot({"a": "none", "d": "none"}, "ji-", decision=FORMED, override=override(
         "d", "b", empty=("a", "d"))), "d"),
    ("a host to be left out is here",
     snapshot({"a": "g:5", "b": "g:6", "c": "g:7"}, "jjj", decision=FORMED, override=override("a", "c")),
     (decide.PRESENT, "c")),
    ("a host that was left out before may be named again",
     snapshot({"a": "g:5", "b": "g:6", "c": "g:7"}, "jjl", decision=FORMED,
              override=override("b", "c")), "b"),
    ("not while a host runs",
     snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, running={"c": Running(3, "join", "starting")},
              override=override("a", "c")), (decide.RUNS, "c")),
    ("without a host of the first cluster that was never here",
     snapshot({"a": "none", "b": "none"}, override=override("b", "c", epoch=1)), "b"),
    # accept-empty
    ("an empty host is accepted",
     snapshot({"a": "g:5", "b": "none", "c": "g:5"}, "jjj", decision=FORMED,
              override=override(empty=("b",))), "a"),
    ("only the named one",
     snapshot({"a": "none", "b": "none", "c": "g:5"}, "jjj", decision=FORMED,
              override=override(empty=("b",))),
     (decide.EMPTY, "a")),
    ("for one epoch",
     snapshot({"a": "g:5", "b": "none", "c": "g:5"}, "jjj", decision=FORMED, override=override(
         epoch=3, empty=("b",))), (decide.EMPTY, "b")),
    ("everything is lost, and that is accepted for each host",
     snapshot({"a": "none", "b": "none", "c": "none"}, "jjj", decision=FORMED, override=override(
         empty=("a", "b", "c"))), "a"),
    ("not for each host",
     snapshot({"a": "none", "b": "none", "c": "none"}, "jii", decision=FORMED, override=override(
         empty=("a", "b"))), (decide.ALL_EMPTY, "c")),
]  # fmt: skip


def outcome(verdict: Any) -> Expected:
    """A verdict as in the table: the winner, or the code and the hosts."""
    if isinstance(verdict, Elected):
        return verdict.winner
    return (verdict.code, "".join(verdict.hosts))


@pytest.mark.parametrize(
    ("state", "expected"), [case[1:] for case in JUDGED], ids=[case[0] for case in JUDGED]
)
def test_the_decision(state: Snapshot, expected: Expected) -> None:
    """The winner, or why there is none."""
    verdict = decide.judge(state)
    assert outcome(verdict) == expected
    if isinstance(verdict, (Wait, Refused)):
        said = words.describe(verdict, state)
        assert ("refused" in said) == isinstance(verdict, Refused) == (verdict.code.startswith("refused-"))
        assert all(host in said for host in verdict.hosts)
        assert words.fields(verdict, state).get("hosts", "") == ",".join(sorted(verdict.hosts))
    # A host bootstraps only if it is the winner of this decision.
    for host in state.candidates:
        mine = decide.decide(state, host)
        assert isinstance(mine, Elected) == (expected == host)


JOINS: list[tuple[str, Snapshot, Expected]] = [
    ("an answer", snapshot({"a": "g:3"}, "jjj", decision=FORMED, answered=True), "join"),
    ("no answer yet", snapshot({"a": "g:3"}, "jjj", decision=FORMED), (decide.ANSWER, "b")),
    ("nobody is ready", snapshot({"a": "g:3"}, "jjj", decision=FORMED, ready=[]), (decide.RUNS, "b")),
    ("a foreign group", snapshot({"a": "h:3"}, "jjj", decision=FORMED, answered=True), (decide.FOREIGN, "a")),
    ("a foreign group, before any answer",
     snapshot({"a": "h:3"}, "jjj", decision=FORMED), (decide.FOREIGN, "a")),
    ("no group", snapshot({"a": "3"}, "jjj", decision=FORMED, answered=True), (decide.FOREIGN, "a")),
    ("an empty host", snapshot({"a": "none"}, "ijj", decision=FORMED, answered=True), "join"),
    ("an empty host that had joined", snapshot({"a": "none"}, "jjj", decision=FORMED, answered=True), "join"),
    ("a new host in a free place", snapshot({"d": "none"}, "jj-", decision=FORMED, answered=True), "join"),
    ("a new host without a place",
     snapshot({"d": "none"}, "jjj", decision=FORMED, answered=True), (decide.NO_PLACE, "d")),
    ("left out, with data",
     snapshot({"a": "g:3"}, "ljj", decision=FORMED, answered=True), (decide.LEFT, "a")),
    ("left out, and empty", snapshot({"a": "none"}, "ljj", decision=FORMED, answered=True), "join"),
    ("a member, the group is not known",
     snapshot({"a": "x:3"}, "jjj", decision=FROM_NONE, answered=True), "join"),
    ("a new host with data, the group is not known",
     snapshot({"d": "x:3"}, "jj-", decision=FROM_NONE, answered=True), (decide.UNKNOWN_GROUP, "d")),
    ("a new empty host, the group is not known",
     snapshot({"d": "none"}, "jj-", decision=FROM_NONE, answered=True), "join"),
    ("the winner starts", snapshot({"c": "g:3"}, "jjj", decision=AGAIN._replace(winner="b"), ready=[]),
     (decide.STARTS, "b")),
    ("the winner has not formed the cluster",
     snapshot({"c": "g:3"}, "jjj", decision=AGAIN._replace(winner="b"), answered=True), (decide.STARTS, "b")),
    ("there was no decision", snapshot({"a": "g:3"}, answered=True), (decide.RUNS, "b")),
]  # fmt: skip


@pytest.mark.parametrize(("state", "expected"), [case[1:] for case in JOINS], ids=[case[0] for case in JOINS])
def test_joining_a_running_cluster(state: Snapshot, expected: Expected) -> None:
    """The host b runs, and is ready unless the case says otherwise."""
    (host,) = state.candidates
    runs = {"b": Running(3, "first", "ready")}
    state = state._replace(running=runs, ready=["b"] if state.ready == () else state.ready)
    verdict = decide.decide(state, host)
    assert not isinstance(verdict, Elected)
    if isinstance(verdict, Join):
        assert expected == "join"
        assert verdict.member == Member(3, "joining")
        assert verdict.running == Running(3, "join", "starting")
    else:
        assert outcome(verdict) == expected
        assert ("refused" in words.describe(verdict, state)) == isinstance(verdict, Refused)


def elected(state: Snapshot) -> Elected:
    verdict = decide.judge(state)
    assert isinstance(verdict, Elected)
    return verdict


def states_of(verdict: Elected) -> dict[str, str]:
    assert {member.epoch for member in verdict.members.values()} == {verdict.decision.epoch}
    return {host: member.state for host, member in verdict.members.items()}


def test_the_decision_records_its_reasons() -> None:
    """The next epoch, and all positions as they were printed."""
    found = elected(snapshot({"a": "g:5", "b": "g:7", "c": "none"}, "jji", decision=FORMED)).decision
    assert found == Decision(4, "b", "g", 7, {"a": "g:5", "b": "g:7", "c": "none"}, "bootstrapping", True)


def test_a_decision_makes_all_candidates_members() -> None:
    """One that had joined stays so: if it is empty later, its data are lost."""
    first = elected(snapshot({"a": "none", "b": "none", "c": "none"}))
    assert states_of(first) == {"a": "joining", "b": "joining", "c": "joining"}
    assert not first.decision.formed
    later = elected(snapshot({"a": "g:5", "b": "g:5", "c": "none"}, "jil", decision=FORMED))
    assert states_of(later) == {"a": "joined", "b": "joining", "c": "joining"}


def test_hosts_that_were_named_are_left_out() -> None:
    """Their data count no longer, whatever their number is."""
    found = elected(snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("b", "c")))
    assert states_of(found) == {"a": "joined", "b": "joined", "c": "left-out"}
    first = elected(snapshot({"a": "none"}, override=override("a", "b", "c", epoch=1)))
    assert states_of(first) == {"a": "joining", "b": "left-out", "c": "left-out"}


def test_a_misspelt_host_takes_no_place() -> None:
    """It would be waited for in every later election."""
    found = elected(
        snapshot({"a": "g:5", "b": "g:6"}, "jjj", decision=FORMED, override=override("b", "c", "x"))
    )
    assert states_of(found) == {"a": "joined", "b": "joined", "c": "left-out"}


def test_an_accepted_empty_host_is_joining() -> None:
    """It is empty, so it must not be expected to have data until it has joined."""
    state = snapshot(
        {"a": "g:5", "b": "none", "c": "g:5"}, "jjj", decision=FORMED, override=override(empty=("b",))
    )
    assert states_of(elected(state)) == {"a": "joined", "b": "joining", "c": "joined"}


def test_that_a_cluster_was_formed_survives_decisions() -> None:
    """Until a later cluster is formed, its group still holds."""
    found = elected(snapshot({"a": "g:5", "b": "g:5", "c": "g:5"}, "jjj", decision=AGAIN))
    assert (found.decision.formed, found.decision.group) == (True, "g")


def test_a_stranger_without_a_place_is_told_so() -> None:
    """Also while the members are waited for."""
    state = snapshot({"a": "g:5", "d": "g:9"}, "jjj", decision=FORMED)
    assert outcome(decide.decide(state, "d")) == (decide.NO_PLACE, "d")
    assert outcome(decide.decide(state, "a")) == (decide.MISSING, "bc")


def test_the_others_wait_for_the_winner() -> None:
    """Only the winner itself makes the decision: so it is alive."""
    state = snapshot({"a": "g:5", "b": "g:6", "c": "g:5"}, "jjj", decision=FORMED)
    assert outcome(decide.decide(state, "a")) == (decide.OTHER, "b")


def test_a_refusal_names_the_missing_too() -> None:
    """They may have to be found as well."""
    verdict = decide.judge(snapshot({"a": "g:5", "b": "none"}, "jjj", decision=FORMED))
    assert isinstance(verdict, Refused)
    assert verdict == Refused(decide.EMPTY, ("b",), ("c",))
    assert words.describe(verdict, Snapshot(3)).endswith("missing: c")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (decision(state="bootstrapping", winner="b", attempts=2), 3),
        (decision(state="bootstrapping", winner="a", attempts=2), 1),
        (decision(winner="b", attempts=2), 1),
        (None, 1),
    ],
    ids=["same winner", "another winner", "formed", "first"],
)
def test_the_attempts_of_a_winner_are_counted(before: Decision | None, expected: int) -> None:
    """In a row, until its cluster is formed."""
    verdict = decide.judge(snapshot({"a": "g:5", "b": "g:7", "c": "g:5"}, "jjj", decision=before))
    assert isinstance(verdict, Elected)
    assert (verdict.winner, verdict.decision.attempts) == ("b", expected)
