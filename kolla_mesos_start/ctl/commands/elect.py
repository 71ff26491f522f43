"""`kolla_mesos_ctl elect`: who takes part in an election, and the operator's override of the next decision.

Asks for confirmation and refuses unsafe decisions. `live.election` reads the election, `zk.elections`
changes it, and the agent's own `election.decide` computes the winner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kolla_mesos_start.ctl.invocation import DECLINED, Invocation, Line, show
from kolla_mesos_start.ctl.live.election import (
    CANDIDATE,
    ELECTING,
    MISSING,
    NOT_FORMED,
    ElectionHost,
    LiveElection,
    as_data,
)
from kolla_mesos_start.ctl.live.mirror import mirror
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.subcommand import FORMAT, YES, argument, subcommand
from kolla_mesos_start.ctl.text import lasting, nearest
from kolla_mesos_start.ctl.zk import connection, elections, event_record, services
from kolla_mesos_start.election import decide, records, words
from kolla_mesos_start.election.decide import Elected, Refused, Snapshot, Wait
from kolla_mesos_start.election.records import Override
from kolla_mesos_start.errors import AgentError, BadUsage, listed
from kolla_mesos_start.tree.znodes import ElectionZnodes

ONLY_IF = "only if {} is powered off and never comes back with its data"
TITLES = ("HOST", "STATE", "POSITION", "MEMBER", "SINCE")
STYLES = {CANDIDATE: "yellow", MISSING: "red", "ready": "green", "starting": "cyan"}


class RefusedChange(AgentError):
    """The agents would not do what the operator wants."""

    status = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; nothing was changed")


@subcommand(
    "kolla_mesos_ctl elect mariadb --deployment site",
    argument("service", metavar="SERVICE", help="its name, or its role"),
    argument(
        "--winner",
        metavar="HOST",
        help="let this candidate bootstrap the cluster, whatever the positions are",
    ),
    argument(
        "--without",
        metavar="HOST",
        action="append",
        default=[],
        help="do not wait for this missing host; once for each host; needs --winner",
    ),
    argument(
        "--accept-empty",
        metavar="HOST",
        action="append",
        default=[],
        help="let this candidate take part although it has lost its data; once for each host",
    ),
    argument("--forget", metavar="HOST", help="remove a member that another host replaces"),
    argument(
        "--withdraw",
        action="store_true",
        help="withdraw --winner, --without and --accept-empty, if they have not been used yet",
    ),
    YES,
    FORMAT,
)
def elect(invocation: Invocation) -> int:
    """Show the election of a service: which host bootstraps its cluster when no instance runs. There is a
    line for each host: whether it is a candidate, the position of its data, whether it is a member, and since
    when. The status is 0 if the cluster runs or is being bootstrapped, 1 if a host is missing or refused.

    The election waits for all members, however long it takes: a missing host may have the newest data, so
    start it. If it never comes back, use --winner with --without. A host that was left out must be empty when
    it comes back. If a host has lost its data, use --accept-empty. These options hold for the next decision
    (epoch) only. --forget removes a member for good, so that another host can take its place. Each option
    asks before it changes anything. If the agents would refuse the change, or the election has changed
    meanwhile, the status is 1 and nothing is changed.
    """
    options = invocation.options
    changes = (options.winner or options.accept_empty, options.forget, options.withdraw)
    if sum(map(bool, changes)) > 1 or (options.without and not options.winner):
        raise BadUsage("give one of --winner, --forget and --withdraw; --without needs --winner")
    if any(changes) and invocation.as_json:
        raise BadUsage("--format json only shows the election")
    service, election = read(invocation, options.service)
    found, at = election.snapshot, invocation.znodes._replace(service_name=service.name).election
    if any(changes) and not options.withdraw and election.code == decide.BAD_RECORD:
        raise RefusedChange(election.text)
    if options.withdraw:
        return _withdraw(invocation, service, at, found)
    if options.forget:
        return _forget(invocation, service, at, election)
    if options.winner or options.accept_empty:
        return _override(invocation, service, at, election)
    if invocation.as_json:
        invocation.print_json({"service": service.name, "role": service.role, **as_data(election)})
    else:
        show(invocation.out, lines(service, election, time.time()))
    return 0 if election.is_settled else 1


def read(invocation: Invocation, name: str) -> tuple[LiveService, LiveElection]:
    """The service and its election, as it was at one turn."""
    client, znodes = invocation.client, invocation.require_deployment()
    own = znodes._replace(service_name=services.find(client, znodes, name))
    turn = own.election.turn
    while True:
        before = connection.mzxids(client, [turn])
        service = mirror(invocation).deployment().services.get(own.service_name)
        if service is None or service.election is None:
            why = "; ".join(service.issues) if service and service.issues else "its daemon has no `election`"
            raise BadUsage(f"{own.service_name} has no election: {why}")
        if connection.mzxids(client, [turn]) == before:
            return service, service.election


# -- changes ----------------------------------------------------------------------------------------------


def _override(
    invocation: Invocation, service: LiveService, at: ElectionZnodes, election: LiveElection
) -> int:
    """Write the operator's override for the next epoch, if the agents would follow it."""
    options, found = invocation.options, election.snapshot
    earlier = found.valid_override or Override(found.next_epoch)
    wanted = earlier._replace(accept_empty=sorted({*earlier.accept_empty, *options.accept_empty}))
    what = f"accept that {listed(options.accept_empty)} has lost its data, in epoch {wanted.epoch}"
    if options.winner:
        wanted = wanted._replace(winner=options.winner, without=sorted(set(options.without)))
        without = f", without {listed(wanted.without)}" if wanted.without else ""
        what = f"let {wanted.winner} bootstrap the cluster of {service.name} in epoch {wanted.epoch}{without}"
    for host in options.accept_empty:
        candidate = found.candidates.get(host)
        if candidate is None:
            raise RefusedChange(f"{host} is no candidate{nearest(host, found.candidates)}")
        if not candidate.position.is_empty:
            why = "--accept-empty is for a host without data"
            raise RefusedChange(f"{host} has data ({candidate.position}): {why}")
    verdict = decide.judge(found._replace(override=wanted))
    if found.running or found.ready:
        hosts = listed({*found.running, *found.ready})
        raise RefusedChange(f"the daemon runs on {hosts}: there is no election")
    if options.winner and not isinstance(verdict, Elected):
        raise RefusedChange(f"{service.name}: {_why_not(found, wanted, verdict)}")
    if not _confirmed(invocation, election, what, *(ONLY_IF.format(host) for host in wanted.without)):
        return DECLINED
    elections.override(invocation.client, at, found.turn, wanted)
    _record(invocation, service, f"for epoch {wanted.epoch}: {_said(wanted)}")
    print(f"recorded for epoch {wanted.epoch} of {service.name}: {_said(wanted)}")
    return 0


def _said(wanted: Override) -> str:
    parts = [f"winner {wanted.winner}"] if wanted.winner else []
    parts += [f"without {listed(wanted.without)}"] if wanted.without else []
    parts += [f"{listed(wanted.accept_empty)} may be empty"] if wanted.accept_empty else []
    return ", ".join(parts)


def _why_not(found: Snapshot, wanted: Override, verdict: Wait | Refused) -> str:
    """Why the agents would not elect the winner."""
    if verdict.code == decide.NO_WINNER:
        return f"{wanted.winner} is no candidate{nearest(str(wanted.winner), found.candidates)}"
    text = words.describe(verdict, found._replace(override=wanted))
    if verdict.code != decide.MISSING:
        return text
    unknown = [host for host in wanted.without if host not in found.members]
    slips = "".join(nearest(host, verdict.hosts) for host in unknown)
    return f"{text}{slips}; to decide without it, name each missing host with --without"


def _forget(invocation: Invocation, service: LiveService, at: ElectionZnodes, election: LiveElection) -> int:
    """Remove a member that never comes back."""
    host, found = invocation.options.forget, election.snapshot
    if host not in found.members:
        known = f"members are {listed(found.members) or 'none'}"
        near = nearest(host, found.members)
        raise RefusedChange(f"{host} is no member of the election of {service.name}{near}: {known}")
    if host in found.candidates or host in found.running or host in found.ready:
        doing = "is a candidate" if host in found.candidates else "runs the daemon"
        raise RefusedChange(f"{host} {doing}: stop its container first")
    notes = [ONLY_IF.format(host)]
    if found.decision and found.decision.winner == host and not election.ready:
        notes.append(f"{host} won the last election: the other hosts may lack its newest data")
    what = f"forget {host} as a member of the election of {service.name}"
    if not _confirmed(invocation, election, what, *notes):
        return DECLINED
    elections.forget(invocation.client, at, found.turn, host)
    _record(invocation, service, f"--forget {host}")
    print(f"forgot {host}: {len(found.members) - 1} of {found.wanted} members of {service.name} are left")
    return 0


def _withdraw(invocation: Invocation, service: LiveService, at: ElectionZnodes, found: Snapshot) -> int:
    """Remove the operator's override for the next epoch."""
    if connection.read(invocation.client, [at.override])[at.override] is None:
        print(f"nothing is recorded for the next epoch of {service.name}")
        return 0
    elections.withdraw(invocation.client, at, found.turn)
    _record(invocation, service, "--withdraw")
    print(f"withdrew the choice that was recorded for the next epoch of {service.name}")
    return 0


def _confirmed(invocation: Invocation, election: LiveElection, what: str, *notes: str) -> bool:
    """Ask, after all hosts and notes."""
    show(invocation.err, [*_hosts(election, time.time())])
    for note in notes:
        invocation.err.print(note)
    return invocation.confirmed(what)


def _record(invocation: Invocation, service: LiveService, detail: str) -> None:
    names = [service.name]
    event_record.append(invocation.client, invocation.znodes, "elect", names, services=names, detail=detail)


# -- lines ------------------------------------------------------------------------------------------------


def lines(service: LiveService, election: LiveElection, now: float) -> Iterator[Line]:
    """The whole election."""
    found = election.snapshot
    style = "bold green" if election.is_settled else "bold red" if election.refused else "bold yellow"
    yield Line(f"{service.name}  ", style, _headline(election, now))
    verdict, missing = election.verdict, election.missing_hosts()
    # Missing hosts have a line of their own.
    alone = verdict._replace(missing=()) if isinstance(verdict, Refused) else verdict
    for refusal in election._replace(verdict=alone).refused:
        yield Line(refusal, STYLES[MISSING])
    if missing:
        yield Line("missing: ", STYLES[MISSING], missing)
    yield Line("cluster  ", "", _cluster(found))
    if election.failures:
        yield Line("winner   ", "", election.failures)
    if found.valid_override:
        yield Line("operator ", "", f"for epoch {found.next_epoch}: {_said(found.valid_override)}")
    yield from _hosts(election, now)


def _headline(election: LiveElection, now: float) -> str:
    if election.ready:
        return election.text
    state = records.BOOTSTRAPPING if election.state == records.BOOTSTRAPPING else ELECTING
    waited = "" if election.since is None else f" for {lasting(now - election.since)}"
    return f"{state}{waited}" if election.refused else f"{state}{waited}: {election.stage}"


def _cluster(found: Snapshot) -> str:
    decision = found.decision
    if decision is None:
        return f"{NOT_FORMED}; {found.wanted} hosts are needed"
    group = f", group {decision.group}" if decision.group else ""
    return f"{decision.state} in epoch {decision.epoch} by {decision.winner}{group}"


def _hosts(election: LiveElection, now: float) -> Iterator[Line]:
    """A line for each host below the titles: its part, position, whether it is a member, and since when."""
    if not election.hosts:
        return
    rows = [_cells(each, now) for each in election.hosts]
    widths = [max(map(len, column)) for column in zip(TITLES, *rows)]
    yield Line(_row(TITLES, widths), "bold")
    for each, cells in zip(election.hosts, rows):
        yield Line(_row(cells, widths), STYLES.get(each.part, ""), "" if each.refused else each.reason)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"  {cell:{width}}" for cell, width in zip(cells, widths)) + "  "


def _cells(each: ElectionHost, now: float) -> Sequence[str]:
    age = "" if each.since is None else lasting(now - each.since)
    since = f"last seen {age} ago" if age and each.part == MISSING else age
    return each.host, each.part, each.position or "", each.member or "no member", since
