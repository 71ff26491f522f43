"""Decides who bootstraps a cluster, and who joins it. Pure: the same znodes always give the same verdict.

The caller applies an Elected or a Join in one transaction, which checks that nothing has changed since the
snapshot was read. No rule mentions time: a cluster is never bootstrapped because a host is late.
"""

from __future__ import annotations

from types import MappingProxyType

from kolla_mesos_start.election.records import (
    BOOTSTRAPPING,
    FORMED,
    JOIN,
    JOINED,
    JOINING,
    LEFT_OUT,
    STARTING,
    BadRecord,
    Candidate,
    Decision,
    Member,
    Override,
    Running,
    decode,
)
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeVar, Union

    from kolla_mesos_start.election.records import Position
    from kolla_mesos_start.tree.znodes import ElectionZnodes
    from kolla_mesos_start.zookeeper.view import Znode

    T = TypeVar("T")
    Positions = Mapping[str, Position]

# Codes of what a host waits for.
MISSING = "election-missing"  # `hosts` must come back; `count` more, whose names are unknown
STARTS = "election-starts"  # `hosts` (the winner) bootstraps the cluster
RUNS = "election-runs"  # `hosts` run, and none is ready: they join, or end
ANSWER = "election-answer"  # an instance is ready, and has not answered this candidate yet
OTHER = "election-other"  # `hosts` (the winner) is about to start
NO_WINNER = "election-no-winner"  # `hosts`, the winner by the operator's override, is no candidate
EXPIRY = "election-expiry"  # the session of an earlier container on this host
POSITION = "election-position"  # the position command has failed; only the host itself knows that

# Codes of refusals. Each ends when the operator, or one of the hosts, changes something.
GROUPS = "refused-groups"  # the candidates have different groups
FOREIGN = "refused-foreign-group"  # `hosts` have a group other than the one that was formed
UNKNOWN_GROUP = "refused-unknown-group"  # `hosts` are no members; whether their group is right is unknown
ALL_EMPTY = "refused-all-empty"  # all hosts are empty although there was a cluster with data
EMPTY = "refused-empty"  # `hosts` are empty although they should have data
LEFT = "refused-left-out"  # `hosts` were left out of a decision, and have their old data
NO_PLACE = "refused-no-place"  # `hosts` are no members, and there are as many members as there may be
TOO_MANY = "refused-too-many"  # there are more hosts than `members`
STRANGER = "refused-stranger"  # `hosts` have the newest data, and are no members
EMPTY_WINNER = "refused-empty-winner"  # the winner by the operator's override is empty, and others are not
PRESENT = "refused-present"  # `hosts`, to be left out by the operator's override, are candidates
BAD_RECORD = "refused-bad-record"  # a znode holds something else


class Snapshot(NamedTuple):
    """What is recorded below the `election` znode at one `turn` (its version).

    `wanted`: how many hosts there are, according to the definition. `ready`: the hosts of ready instances.
    `answered`: whether one of them has written its znode after this host became a candidate.
    """

    wanted: int
    turn: int = 0
    decision: Decision | None = None
    members: Mapping[str, Member] = MappingProxyType({})
    candidates: Mapping[str, Candidate] = MappingProxyType({})
    running: Mapping[str, Running] = MappingProxyType({})
    override: Override | None = None
    ready: Sequence[str] = ()
    answered: bool = False

    @property
    def next_epoch(self) -> int:
        return (self.decision.epoch if self.decision else 0) + 1

    @property
    def valid_override(self) -> Override | None:
        """The operator's override, unless it is void."""
        return self.override if self.override and self.override.epoch == self.next_epoch else None

    @property
    def positions(self) -> Positions:
        return {host: self.candidates[host].position for host in sorted(self.candidates)}


def snapshot(
    at: ElectionZnodes,
    znodes: Mapping[str, Znode],
    wanted: int,
    ready: Sequence[str] = (),
    answered: bool = False,
) -> tuple[Snapshot, Sequence[BadRecord]]:
    """What is recorded in the existing `znodes` of an election, by path. Raises BadRecord.

    Invalid candidates are left out, and returned: an election is safe without a host that is absent.
    """
    held = {path: znode for path, znode in znodes.items() if znode.stat.ephemeralOwner}
    bad, candidates = [], {}
    for path, znode in _below(at.candidates, held).items():
        try:
            candidates[path.rpartition("/")[2]] = decode(Candidate, path, znode.data)
        except BadRecord as error:
            bad.append(error)

    def one(kind: type[T], path: str) -> T | None:
        return decode(kind, path, znodes[path].data) if path in znodes else None

    def each(kind: type[T], place: str, among: Mapping[str, Znode]) -> dict[str, T]:
        found = _below(place, among).items()
        return {path.rpartition("/")[2]: decode(kind, path, znode.data) for path, znode in found}

    return (
        Snapshot(
            wanted=wanted,
            turn=znodes[at.turn].stat.version if at.turn in znodes else 0,
            decision=one(Decision, at.decision),
            members=each(Member, at.members, znodes),
            candidates=candidates,
            running=each(Running, at.running, held),
            override=one(Override, at.override),
            ready=ready,
            answered=answered,
        ),
        bad,
    )


def _below(place: str, znodes: Mapping[str, Znode]) -> dict[str, Znode]:
    return {path: znode for path, znode in znodes.items() if path.startswith(f"{place}/")}


class Wait(NamedTuple):
    """Nothing can be done yet. `code`: one of those above; `count`: see MISSING."""

    code: str
    hosts: Sequence[str] = ()
    count: int = 0  # type: ignore[assignment]  # It hides tuple.count.


class Refused(NamedTuple):
    """There will be no decision, or this host may not join, until something is changed.

    `missing`: the hosts that would be waited for otherwise.
    """

    code: str
    hosts: Sequence[str] = ()
    missing: Sequence[str] = ()


class Elected(NamedTuple):
    """The decision: the records of the transaction. `members`: those that change."""

    decision: Decision
    members: Mapping[str, Member]

    @property
    def winner(self) -> str:
        return self.decision.winner


class Join(NamedTuple):
    """This host may join the running cluster: the records of the transaction."""

    member: Member
    running: Running


if TYPE_CHECKING:
    Verdict = Union[Wait, Refused, Elected]


def decide(snapshot: Snapshot, host: str) -> Verdict | Join:
    """What the candidate `host` has to do. Elected: it is the winner itself."""
    if snapshot.running or snapshot.ready:
        return _beside_running(snapshot, host)
    verdict = judge(snapshot)
    if host in _strangers_without_place(snapshot):
        return Refused(NO_PLACE, (host,))
    if host in _left_out_with_data(snapshot):
        return Refused(LEFT, (host,))
    if isinstance(verdict, Elected) and verdict.winner != host:
        return Wait(OTHER, (verdict.winner,))
    return verdict


def _beside_running(snapshot: Snapshot, host: str) -> Wait | Refused | Join:
    """Another host runs: the cluster must not be bootstrapped."""
    verdict = _join(snapshot, host)
    if not isinstance(verdict, Join):
        return verdict
    if snapshot.answered:
        return verdict
    if snapshot.ready:
        return Wait(ANSWER, tuple(sorted(snapshot.ready)))
    return Wait(RUNS, tuple(sorted(snapshot.running)))


def _join(snapshot: Snapshot, host: str) -> Wait | Refused | Join:
    """Whether the host may join the cluster, once a ready instance has answered it."""
    decision, position = snapshot.decision, snapshot.candidates[host].position
    member = snapshot.members.get(host)
    if host in _left_out_with_data(snapshot):
        return Refused(LEFT, (host,))
    if member is None and len(snapshot.members) >= snapshot.wanted:
        return Refused(NO_PLACE, (host,))
    if decision is None:
        return Wait(RUNS, tuple(sorted({*snapshot.running, *snapshot.ready})))
    if not position.is_empty and decision.group is None and member is None:
        return Refused(UNKNOWN_GROUP, (host,))
    if not position.is_empty and decision.group not in (None, position.group):
        return Refused(FOREIGN, (host,))
    if decision.state != FORMED:
        bootstraps = decision.winner in snapshot.running
        return Wait(STARTS, (decision.winner,)) if bootstraps else Wait(RUNS, tuple(sorted(snapshot.running)))
    # Also if it has joined before: a transfer may remove its data, and the running cluster has all of them.
    return Join(Member(decision.epoch, JOINING), Running(decision.epoch, JOIN, STARTING))


def judge(snapshot: Snapshot) -> Verdict:
    """Who bootstraps the cluster, or why there is no decision. The result is the same on every host."""
    if snapshot.running:
        return Wait(RUNS, tuple(sorted(snapshot.running)))
    if snapshot.ready:
        return Wait(ANSWER, tuple(sorted(snapshot.ready)))
    override, members = snapshot.valid_override, snapshot.members
    without = set(override.without) if override else set()
    left_out = _left_out_with_data(snapshot)
    ignored = left_out | _strangers_without_place(snapshot)
    counting = {host: each for host, each in snapshot.positions.items() if host not in ignored}
    here = {*counting, *without}
    missing = sorted(members.keys() - here - left_out)
    refused = _refusal(snapshot, counting, without)
    if refused:
        return refused._replace(missing=tuple(missing))
    unknown = max(0, snapshot.wanted - len(here | members.keys()))
    if missing or unknown:
        return Wait(MISSING, tuple(missing), unknown)
    if still := sorted(left_out - without):
        return Refused(LEFT, tuple(still))
    return _choose(snapshot, counting, without)


def _refusal(snapshot: Snapshot, counting: Positions, without: Collection[str]) -> Refused | None:
    """What no further host can correct."""
    decision, members = snapshot.decision, snapshot.members
    if present := sorted(counting.keys() & set(without)):
        return Refused(PRESENT, tuple(present))
    strangers = sorted(counting.keys() - members.keys())
    if strangers and len({*counting, *members, *without}) > snapshot.wanted:
        return Refused(TOO_MANY, tuple(strangers))
    groups = {host: each.group for host, each in counting.items() if not each.is_empty}
    if len(set(groups.values())) > 1:
        return Refused(GROUPS, tuple(sorted(groups)))
    if decision and decision.formed and decision.group is not None:
        foreign = sorted(host for host, group in groups.items() if group != decision.group)
        if foreign:
            return Refused(FOREIGN, tuple(foreign))
    accepted = snapshot.valid_override.accept_empty if snapshot.valid_override else ()
    lost = [
        host
        for host, each in counting.items()
        if each.is_empty and host not in accepted and _should_have_data(snapshot, host)
    ]
    return Refused(EMPTY, tuple(sorted(lost))) if lost else None


def _should_have_data(snapshot: Snapshot, host: str) -> bool:
    member, decision = snapshot.members.get(host), snapshot.decision
    if member and member.state == JOINED:
        return True
    # A winner that did not form its cluster: only it may have had the newest data.
    is_winner = decision is not None and decision.state == BOOTSTRAPPING and decision.winner == host
    return is_winner and decision is not None and decision.value is not None


def _choose(snapshot: Snapshot, counting: Positions, without: Collection[str]) -> Verdict:
    """The winner. All hosts that are waited for are here."""
    override, members, decision = snapshot.valid_override, snapshot.members, snapshot.decision
    data = {host: each.value for host, each in counting.items() if each.value is not None}
    accepted = override.accept_empty if override else ()
    had_data = decision is not None and (decision.formed or decision.value is not None)
    if not data and had_data and not set(accepted) >= counting.keys():
        return Refused(ALL_EMPTY, tuple(sorted(counting.keys() - set(accepted))))
    chosen = override.winner if override else None
    if chosen is not None:
        if chosen not in counting:
            return Wait(NO_WINNER, (chosen,))
        if data and chosen not in data:
            return Refused(EMPTY_WINNER, (chosen,))
        if data and members and chosen not in members:
            return Refused(STRANGER, (chosen,))
        return _elect(snapshot, counting, without, chosen)
    if not data:
        return _elect(snapshot, counting, without, min(counting)) if counting else Wait(MISSING)
    newest = sorted(host for host, value in data.items() if value == max(data.values()))
    eligible = [host for host in newest if not members or host in members]
    if not eligible:
        return Refused(STRANGER, tuple(newest))
    return _elect(snapshot, counting, without, eligible[0])


def _elect(snapshot: Snapshot, counting: Positions, without: Collection[str], winner: str) -> Elected:
    before, epoch = snapshot.decision, snapshot.next_epoch
    has_failed = before is not None and before.state == BOOTSTRAPPING and before.winner == winner
    decision = Decision(
        epoch=epoch,
        winner=winner,
        group=counting[winner].group,
        value=counting[winner].value,
        positions={host: str(each) for host, each in counting.items()},
        state=BOOTSTRAPPING,
        formed=before is not None and before.formed,
        attempts=before.attempts + 1 if before is not None and has_failed else 1,
    )
    members = {}
    for host, position in counting.items():
        known = snapshot.members.get(host)
        stays = known is not None and known.state == JOINED and not position.is_empty
        members[host] = Member(epoch, JOINED if stays else JOINING)
    places = snapshot.wanted - len({*members, *snapshot.members})
    for host in sorted(without):
        # A host that was never here needs a free place.
        if host in snapshot.members or places > 0:
            members[host] = Member(epoch, LEFT_OUT)
            places -= host not in snapshot.members
    return Elected(decision, members)


def _left_out_with_data(snapshot: Snapshot) -> set[str]:
    """Candidates whose old data may differ from those of the cluster, whatever their number is."""
    return {
        host
        for host, candidate in snapshot.candidates.items()
        if not candidate.position.is_empty
        and (member := snapshot.members.get(host)) is not None
        and member.state == LEFT_OUT
    }


def _strangers_without_place(snapshot: Snapshot) -> set[str]:
    """Candidates that are no members although all places are taken: they don't count."""
    members = snapshot.members
    return snapshot.candidates.keys() - members.keys() if len(members) >= snapshot.wanted else set()
