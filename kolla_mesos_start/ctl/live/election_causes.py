"""What keeps the hosts of an election from bootstrapping or joining their cluster.

Pure, a part of `causes`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kolla_mesos_start.ctl.live.cause import Cause
from kolla_mesos_start.ctl.live.election import ABSENT, CANDIDATE, ElectionHost, LiveElection
from kolla_mesos_start.ctl.live.logs import see
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.text import lasting
from kolla_mesos_start.election import decide

NO_POSITION, ELECTING, WAITS, REFUSED = "no position", "electing", "election waits", "election refused"
ELECTION_KINDS = frozenset((NO_POSITION, ELECTING, WAITS, REFUSED))


def find(service: LiveService, now: float) -> Iterator[Cause]:
    """The causes in the election of a service, if it has one."""
    election, where = service.election, (service.daemon,)
    if election is None:
        return
    for each in service.containers:
        if each.code == decide.POSITION:
            text = f"{service.name} on {each.host} for {lasting(now - each.since)}: {each.reason}"
            yield Cause(NO_POSITION, f"{text}; {see(service, each.host)}", where)
    for refusal in election.refused:
        yield Cause(REFUSED, f"{service.daemon}: {refusal}", where)
    if election.ready or not election.refused:
        yield from _of_waiting(service, election, now)


def _of_waiting(service: LiveService, election: LiveElection, now: float) -> Iterator[Cause]:
    """What the candidates wait for."""
    path, where = service.daemon, (service.daemon,)
    waiting = [each for each in election.candidates if not each.refused]
    if election.missing or (election.unknown and waiting):
        yield Cause(WAITS, _missing(path, election, now), where)
    elif election.ready and waiting:
        hosts = ", ".join(each.host for each in waiting)
        text = f"{path} on {hosts} is about to join the cluster: {election.text}"
        yield Cause(ELECTING, text, where)
    elif waiting or (election.snapshot.running and not election.ready):
        absent = [each for each in election.hosts if each.part == ABSENT]
        text = _absent(absent) if absent and _waits_for_hosts(election) else election.text
        yield Cause(ELECTING, f"{path}: {text}{_failures(election)}", where)


def _waits_for_hosts(election: LiveElection) -> bool:
    return getattr(election.verdict, "code", "") == decide.MISSING


def _missing(path: str, election: LiveElection, now: float) -> str:
    """Which hosts are missing, who waits for them, and the positions."""
    since = election.since
    waited = "" if since is None else f" for {lasting(now - since)}"
    candidates = [f"{each.host} ({each.position})" for each in election.hosts if each.part == CANDIDATE]
    here = f"; candidates: {', '.join(candidates)}" if candidates else "; there is no candidate"
    what = f"{path} has waited{waited} for an election: {missing_hosts(election, now)}{here}"
    return f"{what}; a missing host may have the newest data: start it{_failures(election)}"


def _failures(election: LiveElection) -> str:
    return f"; {election.failures}" if election.failures else ""


def missing_hosts(election: LiveElection, now: float) -> str:
    """The missing hosts in words."""
    words = []
    if election.missing:
        words.append(f"missing: {', '.join(_host(each, now) for each in election.missing)}")
    if election.unknown:
        more = "more " if election.missing else ""
        hosts = "host" if election.unknown == 1 else "hosts"
        words.append(f"{election.unknown} {more}{hosts} never took part")
    return ", and ".join(words)


def _host(each: ElectionHost, now: float) -> str:
    return each.host if each.since is None else f"{each.host} (last seen {lasting(now - each.since)} ago)"


def _absent(hosts: list[ElectionHost]) -> str:
    each = [f"{host.host} ({host.reason})" if host.reason else host.host for host in hosts]
    return f"not yet candidates: {', '.join(each)}"
