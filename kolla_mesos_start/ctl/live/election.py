"""The election of a service: who takes part, who is missing, and what keeps it from a decision.

Pure. The verdict is that of the agent's own `election.decide`, from the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from kolla_mesos_start.ctl.text import lasting
from kolla_mesos_start.ctl.zk import containers
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Election
from kolla_mesos_start.definition.strings import LOCAL
from kolla_mesos_start.election import decide, records, words
from kolla_mesos_start.election.decide import Elected, Refused, Snapshot, Wait
from kolla_mesos_start.election.records import BadRecord
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Znode

Verdict = Union[Wait, Refused, Elected]

READY, REFUSED, ELECTING = "ready", "refused", "electing"  # of an election
NOT_FORMED = "not formed"  # the cluster, before the first decision
CANDIDATE, MISSING, ABSENT, NOT_READY = "candidate", "missing", "not a candidate", "not ready"  # of a host


class ElectionHost(NamedTuple):
    """One host. `part` is CANDIDATE, `starting`, READY or NOT_READY (its daemon runs), ABSENT (its container
    is no candidate yet), or MISSING.

    `position` is as printed; None if it is unknown. `member`: its state as a member; None if it is none.
    `since`: when it became a candidate, or its daemon was started (seconds since the epoch); for a missing
    host when it was last seen, None if never. `reason`: what its container reports, or how it ended.
    `refused`: why it may not take part; empty if it may.
    """

    host: str
    part: str
    position: str | None
    member: str | None
    since: float | None
    reason: str = ""
    refused: str = ""


class LiveElection(NamedTuple):
    """The election of a daemon. `snapshot` is what is recorded, `verdict` what follows from it for all.

    `last_exit`: how the winner's last start ended; empty if that was not recorded.
    """

    snapshot: Snapshot
    verdict: Verdict
    hosts: tuple[ElectionHost, ...]
    last_exit: str = ""

    @property
    def code(self) -> str | None:
        """What all wait for, or why they are refused; None if one is elected."""
        return None if isinstance(self.verdict, Elected) else self.verdict.code

    @property
    def ready(self) -> list[str]:
        """The hosts whose daemon is ready."""
        return [each.host for each in self.hosts if each.part == READY]

    @property
    def candidates(self) -> list[ElectionHost]:
        return [each for each in self.hosts if each.part == CANDIDATE]

    @property
    def since(self) -> float | None:
        """Since when a host has been waiting for a decision (seconds since the epoch)."""
        return min((each.since for each in self.candidates if each.since is not None), default=None)

    @property
    def winner_ended(self) -> int:
        """How often in a row the winner has ended before it was ready."""
        decision = self.snapshot.decision
        if decision is None or decision.state != records.BOOTSTRAPPING:
            return 0
        return decision.attempts - (decision.winner in self.snapshot.running)

    @property
    def missing(self) -> list[ElectionHost]:
        """The members without a container that the decision waits for."""
        if self.ready or self.state == records.BOOTSTRAPPING:
            return []
        override = self.snapshot.valid_override
        without = set(map(printable, override.without)) if override else set()
        absent = [each for each in self.hosts if each.part == MISSING and each.member]
        return [each for each in absent if each.host not in without]

    @property
    def unknown(self) -> int:
        """How many more hosts it waits for, whose names are unknown."""
        if not isinstance(self.verdict, Wait) or self.code != decide.MISSING:
            return 0
        absent = sum(each.part == ABSENT and each.member is None for each in self.hosts)
        return max(0, self.verdict.count - absent)

    @property
    def refused(self) -> list[str]:
        """Each refusal in a sentence: that of the decision, and those of single hosts."""
        whole = [_words(self.verdict, self.snapshot)] if isinstance(self.verdict, Refused) else []
        return list(dict.fromkeys([*whole, *(each.refused for each in self.hosts if each.refused)]))

    @property
    def state(self) -> str:
        """In one word what is going on."""
        if self.ready:
            return READY
        if self.refused:
            return REFUSED
        return records.BOOTSTRAPPING if self.code == decide.STARTS else ELECTING

    @property
    def is_settled(self) -> bool:
        """Whether nothing is missing or refused: the cluster runs, or is being bootstrapped."""
        return not self.refused and bool(self.ready or self.code in (None, decide.STARTS))

    @property
    def is_going_on(self) -> bool:
        """Whether a host waits, starts, or is refused."""
        return bool(self.candidates or self.refused or (self.snapshot.running and not self.ready))

    # -- in words -----------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """What happens now, or what it waits for, in a sentence."""
        if self.ready:
            return f"ready on {', '.join(self.ready)}"
        if isinstance(self.verdict, Elected):
            return _words(Wait(decide.OTHER, (self.verdict.winner,)), self.snapshot)
        return _words(self.verdict, self.snapshot)

    @property
    def stage(self) -> str:
        """How many candidates there are while hosts are missing, or else `text`."""
        if self.code == decide.MISSING:
            return f"{len(self.candidates)} of {self.snapshot.wanted} candidates"
        return self.text

    @property
    def progress(self) -> str:
        """How far it has come, in a few words."""
        missing = self.missing_hosts()
        return "; ".join(self.refused) or (f"{self.stage}; missing {missing}" if missing else self.stage)

    @property
    def failures(self) -> str:
        """How often the winner has ended, in a sentence; empty if it has not."""
        decision, count = self.snapshot.decision, self.winner_ended
        if decision is None or not count:
            return ""
        how = "won once and ended" if count == 1 else f"won {count} times and ended each time"
        last = f"; its last exit: {self.last_exit}" if self.last_exit else ""
        return f"{printable(decision.winner)} {how} before it was ready{last}"

    def missing_hosts(self, now: float | None = None) -> str:
        """The hosts that the decision waits for, with `now` when each was last seen; empty if there are
        none."""
        names = []
        for each in self.missing:
            age = "" if now is None or each.since is None else lasting(now - each.since)
            names.append(f"{each.host} (last seen {age} ago)" if age else each.host)
        if self.unknown:
            hosts = "host" if self.unknown == 1 else "hosts"
            names.append(f"{self.unknown} {'more ' if names else ''}{hosts} that never took part")
        return ", ".join(names)


# -- what it means ----------------------------------------------------------------------------------------


def live_election(
    znodes: Znodes, election: Election, existing: Sequence[Container], ended: Mapping[str, str], view: View
) -> LiveElection:
    """The election. `ended`: how the last start on each host failed."""
    ready = sorted({each.host for each in existing if each.ready})
    at = znodes.election
    paths = [at.turn, at.decision, at.override]
    for place in (at.members, at.candidates, at.running):
        paths += [f"{place}/{host}" for host in view.names(place)]
    recorded = {path: znode for path in paths if (znode := view.znode(path))}
    try:
        found = decide.snapshot(at, recorded, election.members, ready)[0]
        verdict: Verdict = decide.judge(found)
    except BadRecord as error:
        turn = recorded.get(at.turn)
        found = Snapshot(election.members, turn.stat.version if turn else 0, ready=ready)
        return LiveElection(found, Refused(decide.BAD_RECORD, (str(error),)), ())
    decision = found.decision
    # While a winner starts, that is what everybody waits for.
    if decision and decision.state == records.BOOTSTRAPPING and decision.winner in found.running:
        verdict = Wait(decide.STARTS, (decision.winner,))
    live = {each.host: each for each in existing if each.is_live}
    hosts = _hosts(znodes, election, found, live, ended, view)
    last_exit = ended.get(decision.winner, "").removeprefix("ended: ") if decision else ""
    return LiveElection(found, verdict, tuple(hosts), last_exit)


def _words(verdict: Wait | Refused, found: Snapshot) -> str:
    """As agents say it. The names of hosts are those of znodes."""
    return printable(words.describe(verdict, found))


def _hosts(
    znodes: Znodes,
    election: Election,
    found: Snapshot,
    live: Mapping[str, Container],
    ended: Mapping[str, str],
    view: View,
) -> Iterator[ElectionHost]:
    """The hosts that take part, should, or have a container."""
    at, decision = znodes.election, found.decision
    without = found.valid_override.without if found.valid_override else ()
    for host in sorted({*found.members, *found.candidates, *found.running, *live, *without}):
        container, position, since, refused = live.get(host), None, None, ""
        reason = container.reason if container else ""
        if host in found.candidates:
            part, position, reason = CANDIDATE, str(found.candidates[host].position), ""
            own = decide.decide(found, host)
            whole = not (found.running or found.ready) and own == decide.judge(found)
            refused = _words(own, found) if isinstance(own, Refused) and not whole else ""
            since = _made(view.znode(at.candidate(host)))
        elif host in found.running:
            # Its record stays `ready` when it is no longer ready.
            was_ready = found.running[host].state == records.READY
            part = READY if host in found.ready else NOT_READY if was_ready else records.STARTING
            position = decision.positions.get(host) if decision else None
            reason = "" if container and container.ready else reason
            since = _made(view.znode(at.runner(host)))
        elif container:
            part, since = READY if container.ready else ABSENT, container.since
        else:
            part, reason = MISSING, ended.get(host, "")
            seen = map(view.znode, [*_signs(znodes._replace(host=host), election), at.member(host)])
            since = max((each.stat.mtime / 1000 for each in seen if each), default=None)
        member = found.members[host].state if host in found.members else None
        yield ElectionHost(printable(host), part, position, member, since, reason, refused)


def _signs(znodes: Znodes, election: Election) -> list[str]:
    """What the containers on a host write at each start."""
    states = [znodes.command(LOCAL, election.position).state, containers.daemon(znodes, LOCAL).state]
    return [znodes.ended, *states]


def _made(znode: Znode | None) -> float | None:
    return znode.stat.ctime / 1000 if znode else None


# -- for programs -----------------------------------------------------------------------------------------


def as_data(election: LiveElection) -> dict[str, Any]:
    """The election for a program."""
    found, verdict = election.snapshot, election.verdict
    decision, override = found.decision, found.valid_override
    return {
        "state": election.state,
        "text": election.text,
        "code": None if election.ready else election.code,
        "cluster": decision.state if decision else NOT_FORMED,
        "epoch": decision.epoch if decision else 0,
        "winner": decision.winner if decision else None,
        "group": decision.group if decision else None,
        "winner_ended": election.winner_ended,
        "wanted": found.wanted,
        "elected": verdict.winner if isinstance(verdict, Elected) else None,
        "missing": [each.host for each in election.missing],
        "unknown": election.unknown,
        "refused": election.refused,
        "since": election.since,
        "override": override and {key: value for key, value in override._asdict().items() if value},
        "hosts": [_host_data(each) for each in election.hosts],
    }


def _host_data(each: ElectionHost) -> dict[str, Any]:
    is_missing = each.part == MISSING
    times = {"since": None if is_missing else each.since, "last_seen": each.since if is_missing else None}
    return {**each._asdict(), **times}
