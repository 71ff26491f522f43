"""What keeps one service from being up, whatever the other services do.

Pure, a part of `causes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from kolla_mesos_start.ctl.live.election import ABSENT
from kolla_mesos_start.ctl.live.logs import LAUNCHER, see
from kolla_mesos_start.ctl.live.model import (
    CLOCK_STEP,
    Attempt,
    Cause,
    EndedStart,
    LiveService,
    LiveStep,
    service_node,
)
from kolla_mesos_start.ctl.live.rollouts import SLOW, is_slow, unproven, why_keep
from kolla_mesos_start.ctl.text import few, lasting
from kolla_mesos_start.ctl.zk.containers import BEGUN, DRAINING, IMAGE, PRESENT, Container
from kolla_mesos_start.definition.strings import DAEMON
from kolla_mesos_start.election import decide
from kolla_mesos_start.report import CHECK, REFRESH_FAILED
from kolla_mesos_start.tree.states import ERROR, NO_TIMEOUT, RETRY, RUNNING

NOT_REPLACED = 10.0  # seconds; a launcher starts a container again sooner
CHECK_FAILS = "the daemon runs: correct its configuration, or `ready` in its definition"
CORRECT_REFRESH = "; correct that and publish, or run `kolla_mesos_start refresh` in the container"
# What happened to a container that was ready, by `GoneContainer.why`, with the time since then.
GONE = {
    "ended": "its daemon ended {} ago",
    "killed": "it became ready {} ago; it or its registrar was killed, or its host was lost or its credential"
    " refused",
}
ELECTION_WAITS = "election waits"


def find(service: LiveService, now: float, published: float, with_images: bool) -> Iterator[Cause]:
    """The causes in one service.

    `published`: when the deployment was last changed. `with_images`: also containers whose image must be
    replaced.
    """
    where = (service_node(service.name),)
    if not service.definition_zxid:
        yield Cause("no definition", f"{service.name} has no definition: publish it", where)
    elif service.graph is None:
        text = f"the definition of {service.name} can't be read: {'; '.join(service.issues)}"
        yield Cause("unreadable", text, where)
    elif service.role_taken:
        text = f"{service.name}: its role {service.role} is claimed by {service.owner}; rename one of them"
        yield Cause("claimed", text, where)
    else:
        yield from _of_refreshes(service)
        yield from _of_restarts(service, now, with_images)
        elected = list(_of_election(service, now))
        yield from elected
        for each in service.containers:
            if each.stage == DRAINING:
                text = f"{service.daemon} on {each.host} has been draining for {lasting(now - each.since)}"
                yield Cause("draining", f"{text}: {each.reason}", (service.daemon,))
        if not service.is_up:
            steps = [step for step in service.steps if not step.done]
            found = [cause for step in steps for cause in _of_step(service, step, now)]
            yield from found
            yield from _of_containers(service, {each.kind for each in found + elected}, now, published)


# -- containers that run something older ------------------------------------------------------------------


def _of_refreshes(service: LiveService) -> Iterator[Cause]:
    """Refreshes that run or have failed."""
    path = service.daemon
    for each in service.containers:
        is_over = each.needs_restart and not each.keeps_old_files and not each.is_refreshing
        if each.stage == "ready" and each.reason and not is_over:
            kind = "refresh failed" if each.keeps_old_files else "refreshing"
            advice = CORRECT_REFRESH if each.code == REFRESH_FAILED else ""
            yield Cause(kind, f"{path} on {each.host} is ready; {each.reason}{advice}", (path,))
        elif each.is_refreshing:
            what = few(part.what for part in each.older)
            yield Cause("refreshing", f"{path} on {each.host} is about to be refreshed: {what}", (path,))


def _of_restarts(service: LiveService, now: float, with_images: bool) -> Iterator[Cause]:
    """Containers that must be restarted; those that run the same older parts together."""
    path = service.daemon
    groups: dict[tuple[str, ...], list[Container]] = defaultdict(list)
    for each in service.containers:
        if each.stage in BEGUN and each.needs_restart:
            groups[(why_keep(service, each, now), *(part.what for part in each.older))].append(each)
    for (keep, *_), containers in groups.items():
        kind = "restart" if not keep else "keep" if unproven(service, now)[0] else "starting"
        parts = containers[0].older
        older = [part.what for part in parts if part.kind != IMAGE]
        what = [f"an {part.what}" for part in parts if part.kind == IMAGE and with_images]
        since = min((part.since for part in parts if part.since), default=now)
        if older:
            ago = f"changed {lasting(now - since)} ago" if all(part.since for part in parts) else "removed"
            what.append(f"an older {few(older)} ({ago})")
        remedy = "restart it" if len(older) == len(parts) else "start one of the other image instead"
        if what:
            text = f"{path} on {_hosts(containers)} runs {' and '.join(what)}: {keep or remedy}"
            yield Cause(kind, text, (path,), at=since)


def of_older_definitions(service: LiveService) -> Iterator[Cause]:
    """Containers that wait for something that is no longer a dependency."""
    for each in service.containers:
        if each.stage == "waiting" and each.runs_older_definition:
            text = f"{service.name} on {each.host} waits by an older definition: restart it; {each.reason}"
            yield Cause("restart", text, (service_node(service.name),))


def _hosts(containers: Sequence[Container]) -> str:
    return few(sorted(each.host for each in containers))


# -- elections --------------------------------------------------------------------------------------------


def _of_election(service: LiveService, now: float) -> Iterator[Cause]:
    """What keeps the hosts of an election from bootstrapping or joining their cluster."""
    election, path, where = service.election, service.daemon, (service.daemon,)
    if election is None:
        return
    for each in service.containers:
        if each.code == decide.POSITION:
            text = f"{service.name} on {each.host} for {lasting(now - each.since)}: {each.reason}"
            yield Cause("no position", f"{text}; {see(service, each.host)}", where)
    for refusal in election.refused:
        yield Cause("election refused", f"{path}: {refusal}", where)
    if election.refused and not election.ready:
        return
    waiting = [each for each in election.candidates if not each.refused]
    failures = f"; {election.failures}" if election.failures else ""
    if election.missing or (election.unknown and waiting):
        since = election.since
        waits = "waits" if since is None else f"has waited for {lasting(now - since)}"
        here = ", ".join(f"{each.host} ({each.position})" for each in election.candidates)
        text = (
            f"{path} {waits} for an election: missing: {election.missing_hosts(now)};"
            f" {f'candidates: {here}' if here else 'there is no candidate'};"
            f" a missing host may have the newest data: start it{failures}"
        )
        yield Cause(ELECTION_WAITS, text, where)
    elif election.ready and waiting:
        hosts = ", ".join(each.host for each in waiting)
        yield Cause("electing", f"{path} on {hosts} is about to join the cluster: {election.text}", where)
    elif waiting or (election.snapshot.running and not election.ready):
        absent = [each for each in election.hosts if each.part == ABSENT]
        text = election.text
        if absent and election.code == decide.MISSING:
            hosts = ", ".join(f"{each.host} ({each.reason})" if each.reason else each.host for each in absent)
            text = f"not yet candidates: {hosts}"
        yield Cause("electing", f"{path}: {text}{failures}", where)


# -- steps ------------------------------------------------------------------------------------------------


def _of_step(service: LiveService, step: LiveStep, now: float) -> Iterator[Cause]:
    if step.command.is_daemon:
        yield from _of_daemon(service, step, now)
        return
    for attempt in step.attempts:
        if attempt.state in (ERROR, RETRY, RUNNING):
            yield _of_attempt(service, step, attempt, now)
    generations = {each.generation for each in service.live if each.generation}
    wanted = step.command.generation
    if wanted and generations and wanted not in generations:
        text = (
            f"{step.path} is for generation {wanted}, and the existing containers are of"
            f" {', '.join(sorted(generations))}: start one of the image of {wanted}"
        )
        yield Cause("generation", text, (step.path,))
    if step.superseded:
        text = f"{step.path}: a newer definition has run it since; restart the containers of {service.name}"
        yield Cause("superseded", text, (step.path,))


def _of_attempt(service: LiveService, step: LiveStep, attempt: Attempt, now: float) -> Cause:
    detail, age = attempt.detail, lasting(now - attempt.since)
    where = f" on {detail.host}" if detail.host else ""
    if attempt.state == RUNNING:
        if step.command.run_once and not attempt.contenders:
            text = f"{step.path}{where} began {age} ago and has no outcome; nobody holds its lock"
            return Cause("abandoned", text, (step.path,))
        lock = ", and holds its lock" if step.command.run_once else ""
        text = f"{step.path} has run{where} for {age} (attempt {detail.attempt or 1}){lock}"
        if step.command.timeout is None and now - attempt.since >= SLOW:
            text = f"{text}; {NO_TIMEOUT}"
        return Cause("running", text, (step.path,))
    # The attempts of all containers; the log of one has fewer.
    times = f" ({detail.attempt} attempts so far)" if detail.attempt > 1 else ""
    what = f"{detail.message or 'without a reason'}{times}"
    # A container that waits for its turn will try it next; one whose daemon has started will not.
    others = attempt.contenders or any(each.stage not in BEGUN for each in service.live)
    if attempt.state == RETRY or others:
        text = f"{step.path} failed{where} {age} ago and is tried again: {what}"
        log = see(service, detail.host, "")
        return Cause("failing", f"{text}; {log}" if log else text, (step.path,), at=attempt.since)
    log = see(service, detail.host, f"see the log of {service.name}{' there' if where else ''}")
    text = f"{step.path} failed{where} {age} ago: {what}; {log}, correct the cause, and start it again"
    return Cause("failed", text, (step.path,), at=attempt.since)


def _of_daemon(service: LiveService, step: LiveStep, now: float) -> Iterator[Cause]:
    """Containers that have started the daemon, or should have: the slow ones together, and the others."""
    may_start = all(other.done for other in service.steps if other is not step) and not step.unmet
    stages = ("starting", PRESENT) if may_start else ("starting",)
    slow = [each for each in service.containers if is_slow(each, now)]
    starting = [each for each in service.containers if each.stage in stages and each not in slow]
    if slow:
        first = min(slow, key=lambda each: each.since)
        text = f"{step.path} on {_hosts(slow)} is not ready for {lasting(now - first.since)}"
        why = first.reason or "its agent does not say why"
        if first.code == CHECK:
            why = f"{why}; {CHECK_FAILS}"
        log = see(service, first.host, f"see the log of {service.name}")
        yield Cause("not ready", f"{text}: {why}; {log}", (step.path,))
    if starting:
        first = min(starting, key=lambda each: each.since)
        why = f": {first.reason}" if first.reason else ""
        text = f"{step.path} on {_hosts(starting)} has been starting for {lasting(now - first.since)}{why}"
        yield Cause("starting", text, (step.path,))


# -- containers that are missing --------------------------------------------------------------------------


def _of_containers(service: LiveService, found: Set[str], now: float, published: float) -> Iterator[Cause]:
    """Which containers are missing, and why; `found` are the kinds of the causes that its steps have."""
    live, missing = service.live, service.missing
    hosts, ended = {each.host for each in live}, {each.host for each in service.ended}
    # The latest explain what is missing now; the containers of earlier ones have been replaced.
    left = {each.host: each.zxid for each in service.ended if each.host not in hosts}
    left.update({each.host: each.left for each in service.gone})
    recent = set(sorted(left, key=lambda host: -left[host])[: max(missing, 0)])
    for each in service.failed_starts:
        # A command that has failed has a cause of its own.
        has_failed = each.stage == "bootstrap" and found & {"failed", "failing"}
        if not has_failed and (each.host in hosts or each.host in recent):
            yield _of_end(service, each, now, published)
    if ELECTION_WAITS not in found:  # Otherwise the election names the missing hosts.
        yield from _of_gone(service, recent - ended, now)
    is_held = any(attempt.contenders for step in service.steps for attempt in step.attempts)
    # A container that holds a lock exists, although it writes what it is doing a moment later.
    missing -= is_held and not live
    is_known = found & {ELECTION_WAITS, "failed"}
    if missing > len(recent) and not is_known and (service.tells or not is_held):
        yield Cause("absent", _absence(service), (service_node(service.name),))


def _of_gone(service: LiveService, hosts: Set[str], now: float) -> Iterator[Cause]:
    """Containers on these hosts that were ready and have disappeared; those with the same reason together."""
    path = service.daemon
    for why, words in GONE.items():
        found = sorted(each for each in service.gone if each.why == why and each.host in hosts)
        if found:
            since, names = max(each.since for each in found), few(each.host for each in found)
            text = f"{path} on {names}: its container is gone; {words.format(lasting(now - since))}"
            at = since if why == "ended" else None  # When one was killed is unknown.
            text = f"{text}; {see(service, found[0].host)}, and start it again"
            yield Cause("gone", text, (path,), at=at)


def _of_end(service: LiveService, ended: EndedStart, now: float, published: float) -> Cause:
    where, age = (service_node(service.name),), now - ended.at
    text = f"{ended.command or service.name} on {ended.host} {ended.how(f' {lasting(age)} ago')}"
    if ended.times > 1:
        text = f"{text}; {ended.times} starts in a row have failed there"
    kind = "gave up" if ended.retriable else "ended"
    successors = [each for each in service.live if each.host == ended.host]
    is_alone = not successors and age >= NOT_REPLACED  # No launcher will start it again.
    # The problem may have been corrected; that shows when the next start goes on.
    if any(each.stage == "waiting" and now - each.since >= SLOW for each in successors):
        kind, text = "gave up", f"{text}; the next start has not reached this point yet"
    elif ended.stage == DAEMON:
        text = f"{text}; {see(service, ended.host, f'see the log of {service.name} there')}"
        if is_alone:
            kind, text = "ended", f"{text}, correct the cause, and start the container again"
    elif is_alone and not ended.retriable:
        is_changed = published > ended.at + CLOCK_STEP
        changed = f"the deployment was changed {lasting(now - published)} ago: start it again"
        text = f"{text}; {changed if is_changed else 'correct that, and start it again'}"
    return Cause(kind, text, where, at=ended.at)


def _absence(service: LiveService) -> str:
    if service.live:
        count = f"{len(service.live)} of {service.wanted} containers of {service.name} exist"
        return f"{count}: start the others"
    if not service.begun:
        return f"no container of {service.name} was ever started, or none has reached ZooKeeper: {LAUNCHER}"
    if service.is_task and not service.tells:
        return f"{service.name} was started, but none of its containers reports what it is doing"
    return f"no container of {service.name} is left: start it again"
