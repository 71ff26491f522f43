"""The verdicts of `decide` in words, for the log, `.containers` and the operator's tool. Pure."""

from __future__ import annotations

from kolla_mesos_start.election import decide
from kolla_mesos_start.election.decide import Refused, Wait
from kolla_mesos_start.election.records import JOIN, Position
from kolla_mesos_start.errors import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kolla_mesos_start.election.decide import Snapshot

# `{hosts}`: names with commas; `{positions}`: the position of each candidate.
WORDS = {
    decide.STARTS: "{hosts} bootstraps the cluster, and is not ready yet",
    decide.RUNS: "the daemon of {hosts} runs and is not ready: no host can bootstrap the cluster before"
    " it has ended",
    decide.ANSWER: "the ready instance on {hosts} has not answered yet",
    decide.OTHER: "{hosts} has the newest data, and is about to bootstrap the cluster",
    decide.NO_WINNER: "{hosts}, which the operator chose as the winner, is no candidate",
    decide.POSITION: "the position of this host is not known",
    decide.GROUPS: "the candidates have data of different clusters ({positions}): empty the data directories"
    " that are wrong",
    decide.FOREIGN: "the data of {hosts} belong to another cluster than the one that was formed"
    " ({positions}): check that the right volume is mounted; if it is, empty the data directory",
    decide.UNKNOWN_GROUP: "{hosts} has data, but is no member, and the name of the cluster is not recorded"
    " yet: empty its data directory",
    decide.ALL_EMPTY: "{hosts} have no data, although there was a cluster with data: check that their volumes"
    " are mounted; if the data are lost, use `kolla_mesos_ctl elect SERVICE --accept-empty HOST` for each",
    decide.EMPTY: "{hosts} should have data, and has none: check that its volume is mounted; if the data are"
    " lost, use `kolla_mesos_ctl elect SERVICE --accept-empty HOST`",
    decide.LEFT: "{hosts} was left out of a decision, and still has its old data: empty its data directory;"
    " then it copies all data from the others",
    decide.NO_PLACE: "{hosts} is no member, and there are as many members as the definition allows: use"
    " `kolla_mesos_ctl elect SERVICE --forget HOST` for the host that it replaces",
    decide.TOO_MANY: "there are more hosts than `members` in the definition; not members yet: {hosts}",
    decide.STRANGER: "{hosts} has the newest data, but is no member ({positions})",
    decide.EMPTY_WINNER: "{hosts}, which the operator chose as the winner, has no data, and others have"
    " ({positions})",
    decide.PRESENT: "{hosts} is to be left out (`--without`), but is a candidate ({positions})",
    decide.BAD_RECORD: "{hosts}",
}


def describe(verdict: Wait | Refused, snapshot: Snapshot) -> str:
    """One sentence, with "refused" in it if it is a refusal."""
    positions = ", ".join(f"{host}: {each}" for host, each in snapshot.positions.items())
    if verdict.code == decide.MISSING:
        text = f"{_missing(verdict)}; a missing host may have the newest data"
    else:
        text = WORDS[verdict.code].format(hosts=listed(verdict.hosts), positions=positions)
    if isinstance(verdict, Wait):
        return text
    more = f"; missing: {listed(verdict.missing)}" if verdict.missing else ""
    return f"refused: {text}{more}"


def _missing(verdict: Wait | Refused) -> str:
    unknown = verdict.count if isinstance(verdict, Wait) else 0
    words = [f"missing: {listed(verdict.hosts)}"] if verdict.hosts else []
    if unknown:
        hosts = "host" if unknown == 1 else "hosts"
        words.append(
            f"{unknown} more {hosts} that never took part"
            if words
            else f"missing: {unknown} {hosts} that never took part"
        )
    return ", and ".join(words)


def fields(verdict: Wait | Refused, snapshot: Snapshot) -> Mapping[str, str]:
    """The verdict for programs, as the `election` field of a container's znode."""
    found = {"hosts": ",".join(sorted(verdict.hosts))} if verdict.hosts else {}
    if isinstance(verdict, Wait) and verdict.count:
        found["count"] = str(verdict.count)
    if isinstance(verdict, Refused) and verdict.missing:
        found["missing"] = ",".join(verdict.missing)
    return {**found, **{f"position {host}": str(each) for host, each in snapshot.positions.items()}}


# -- what templates and the daemon see -----------------------------------------------------------------------


def values(role: str, epoch: str, position: Position) -> dict[str, str]:
    """What templates see as `election`; group and position are empty for a host without data."""
    number = "" if position.value is None else str(position.value)
    return {"role": role, "epoch": epoch, "group": position.group or "", "position": number}


def example() -> dict[str, str]:
    """What templates see before there is a result."""
    return values(JOIN, "", Position())
