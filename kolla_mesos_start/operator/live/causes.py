"""Why a deployment is not up: the causes, and what each of them blocks.

Pure: a `LiveDeployment` in, `Cause`s out. A cause is what would stay so if everything else were well; what
merely waits for others has none, and stands in what they block. The nodes of the graph are steps
(`role/command`) and services; an edge leads from what blocks to what is blocked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from kolla_mesos_start.definition.forms import DAEMON, LOCAL
from kolla_mesos_start.definition.model import Dependency, External, Members
from kolla_mesos_start.operator.live.reader import (
    PRESENT,
    Attempt,
    Container,
    EndedStart,
    Gone,
    LiveDeployment,
    LiveService,
    LiveStep,
)
from kolla_mesos_start.operator.live.unread import BEGUN
from kolla_mesos_start.operator.terminal.durations import lasting
from kolla_mesos_start.operator.terminal.suggestions import nearest
from kolla_mesos_start.report import CHECK, REFRESH_FAILED
from kolla_mesos_start.tree.states import ERROR, NO_TIMEOUT, RETRY, RUNNING, Unmet

# What is met: whether somebody has to do something, and whether nothing will mend it by itself.
KINDS: Mapping[str, tuple[bool, bool]] = {
    "failed": (True, True),
    "failing": (True, False),
    "running": (False, False),
    "abandoned": (True, False),
    "not ready": (True, False),
    "starting": (False, False),
    "ended": (True, True),
    "gave up": (True, False),
    "absent": (True, False),
    "generation": (True, False),
    "superseded": (True, False),
    "no definition": (True, True),
    "unreadable": (True, True),
    "no provider": (True, True),
    "outside": (True, False),
    "unanswered": (False, False),
    "too many": (True, False),
    "elsewhere": (True, False),
    "gone": (True, False),
    "refresh failed": (True, True),
    "restart": (True, False),
    "refreshing": (False, False),
    "claimed": (True, True),
    "cycle": (True, True),
    "publishing": (False, False),
    "unfinished": (True, True),
}
OF_ALL = ("publishing", "unfinished")  # what concerns every service
SLOW = 10.0  # seconds; an agent logs a daemon that takes longer to become ready
TOO_FEW = "is wanted: lower `count`, or raise `instances` in the definition of that service"
CHECK_FAILS = "the daemon runs: correct its configuration, or `ready` in its definition"
NOT_REPLACED = 10.0  # seconds; a launcher starts a container again sooner
SHOWN = 3  # hosts that a line names
CLOCK_STEP = 1.0  # seconds; containers say since when in whole ones
IMAGE = "image of generation"
# Why a container that was ready is there no more, and for how long.
GONE = {
    "refresh": "it has not come back from its refresh, begun {} ago",
    "ended": "its daemon ended {} ago",
    "killed": "it became ready {} ago; it or its registrar was killed, or its host was lost",
}
# What may only seem so: znodes that change together are read one after the other.
MAY_SEEM = frozenset(("absent", "abandoned", "elsewhere", "gone"))
MEND_REFRESH = "; mend that and publish, or run `kolla_mesos_start refresh` in the container"


class Cause(NamedTuple):
    """`nodes` is where it is; `blocks` are chains of steps, a later one begins where it branches off.

    `at`: when it came about (seconds since the epoch); None: that is not known, or does not matter.
    """

    kind: str
    text: str
    nodes: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    at: float | None = None

    @property
    def is_stuck(self) -> bool:
        return KINDS[self.kind][0]

    @property
    def is_final(self) -> bool:
        return KINDS[self.kind][1]

    @property
    def touches(self) -> frozenset[str]:
        """All nodes that it is at, or blocks."""
        return frozenset(self.nodes).union(*self.blocks)


def find(deployment: LiveDeployment, now: float) -> list[Cause]:
    """All causes: what is stuck first; of that what came about since the last publication, before what is
    older, and before what only needs a restart; and what blocks most before the rest."""
    edges = _edges(deployment)
    found = [*_cycles(edges), *_missing(deployment)]
    # What waits for a generation names the containers of other ones.
    with_images = all(cause.kind != "generation" for cause in found)
    for service in deployment.services.values():
        found += _of_service(service, now, with_images)
    causes = [cause._replace(blocks=tuple(_chains(cause, edges))) for cause in found]
    touched = frozenset().union(*(cause.touches for cause in causes))
    for service in deployment.services.values():
        if not service.is_up and not nodes(service) & touched:
            causes += _of_older(service)

    def rank(cause: Cause) -> tuple[object, ...]:
        is_old = cause.at is not None and cause.at + CLOCK_STEP < deployment.published
        age = 2 if cause.kind == "restart" else 1 if is_old else 0
        return (not cause.is_stuck, age, -len(cause.touches), cause.nodes[0], cause.kind)

    return [*_publication(deployment), *sorted(causes, key=rank)]


def _publication(deployment: LiveDeployment) -> Iterator[Cause]:
    """What is published may be half of it, so that nothing else is worth a look before."""
    publication = deployment.publication
    if publication.problem:
        kind = "publishing" if publication.is_running else "unfinished"
        yield Cause(kind, publication.problem, ("publication",))


def confirmed(found: Iterable[Cause], again: Iterable[Cause]) -> list[Cause]:
    """The causes of a second look, without what may only seem so and was not there in the first one."""
    before = {(cause.kind, cause.nodes) for cause in found}
    return [cause for cause in again if cause.kind not in MAY_SEEM or (cause.kind, cause.nodes) in before]


# -- what waits for what --------------------------------------------------------------------------------


def _edges(deployment: LiveDeployment) -> Mapping[str, list[str]]:
    """For each node those that it blocks."""
    edges: dict[str, list[str]] = defaultdict(list)
    roles = deployment.roles
    for service in deployment.services.values():
        if service.role_taken:  # Its steps have the names of another one's.
            continue
        open_steps = [step for step in service.steps if not step.done]
        for step in [step for step in service.steps if step.done and open_steps]:
            for unmet in _standing(service, step):
                edges[_target(unmet, roles)].append(open_steps[-1].path)
        for step in open_steps:
            for unmet in step.unmet:
                edges[_target(unmet, roles)].append(step.path)
            if step.command.is_daemon:  # It comes last.
                for other in open_steps[:-1]:
                    if step.path not in edges[other.path]:
                        edges[other.path].append(step.path)
            # Commands can be done by any container; each counts as an instance of the daemon.
            if step.command.is_daemon or not any(each.is_live for each in service.containers):
                edges[_node(service.name)].append(step.path)
    return edges


def _standing(service: LiveService, step: LiveStep) -> Sequence[Unmet]:
    """What it waits for. What is done is still passed by containers: some say that they wait before it."""
    if not step.done:
        return step.unmet
    return [each for each in step.unmet if isinstance(each.dependency, External) and not service.is_up]


def _node(service: str) -> str:
    """The node of a service, which no step's path can be."""
    return f"service {service}"


def _target(unmet: Unmet, roles: Mapping[str, LiveService]) -> str:
    """The node that a dependency waits for; itself, as text, if there is none."""
    dependency = unmet.dependency
    if isinstance(dependency, Members):
        return _node(dependency.service)
    if isinstance(dependency, External):
        return dependency.what
    service = roles.get(dependency.role)
    if service and service.graph is None:
        return _node(service.name)
    return dependency.path if service and _step(service, dependency.path) else f"-> {dependency.path}"


def _step(service: LiveService, path: str) -> LiveStep | None:
    return next((step for step in service.steps if step.path == path), None)


def _chains(cause: Cause, edges: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """What it blocks, each step once; without recursion, since a chain may be as long as a deployment."""
    seen = set(cause.nodes)
    for node in cause.nodes:
        trail = [(node, iter(edges.get(node, ())))]
        chain: list[str] = []
        while trail:
            step = next(trail[-1][1], None)
            if step is None:
                trail.pop()
                if chain:
                    yield tuple(chain)
                chain = []
            elif step not in seen:
                seen.add(step)
                if not chain and len(trail) > 1:
                    chain.append(trail[-1][0])
                chain.append(step)
                trail.append((step, iter(edges.get(step, ()))))


def _cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[Cause]:
    """Every cycle once, in the direction in which one waits for the other."""
    left = {node: set(blocked) for node, blocked in edges.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            path: list[str] = error.args[1]  # Each is blocked by the next, and the last is the first.
            first = path.index(min(path))
            path = path[first:-1] + path[:first] + [path[first]]
            left[path[1]].discard(path[0])
            yield Cause(
                "cycle",
                f"a cycle, in which each waits for the next: {' -> '.join(path)}; remove a dependency",
                tuple(path[:-1]),
            )


# -- dependencies that can't be met ---------------------------------------------------------------------


def _missing(deployment: LiveDeployment) -> Iterator[Cause]:
    """What no published service provides, or not as it is asked for; each once."""
    found: dict[tuple[str, tuple[str, ...]], Cause] = {}
    roles = deployment.roles
    for service in deployment.services.values():
        for step in service.steps:
            for unmet in _standing(service, step):
                cause = _mismatch(service, step, unmet, deployment, roles)
                if cause:
                    found.setdefault((cause.kind, cause.nodes), cause)
    for kind, nodes in found:
        if kind != "unanswered" or ("outside", nodes) not in found:
            yield found[kind, nodes]


def _mismatch(
    waiting: LiveService,
    step: LiveStep,
    unmet: Unmet,
    deployment: LiveDeployment,
    roles: Mapping[str, LiveService],
) -> Cause | None:
    dependency = unmet.dependency
    if isinstance(dependency, Members):
        return _no_members(step, dependency, deployment)
    if isinstance(dependency, External):
        # What the step waits for inside may be just what answers there: a load balancer and its backends.
        alone = all(isinstance(each.dependency, External) for each in step.unmet)
        kind = "outside" if alone else "unanswered"
        return Cause(kind, f"{dependency.what}: {unmet.found}", (dependency.what,))
    node = _target(unmet, roles)
    service = roles.get(dependency.role)
    if service is None:
        others = roles.keys() - {step.path.partition("/")[0]}
        why = f"no service has the role {dependency.role!r}{nearest(dependency.role, others)}"
        return Cause("no provider", f"{step.path}: {why}", (node,))
    if service.graph is None:
        return None  # The service's own cause says why.
    target = _step(service, dependency.path)
    if target is None:
        names = [each.command.name for each in service.steps]
        why = f"{service.name} has no {dependency.name!r}{nearest(dependency.name, names)}"
        return Cause("no provider", f"{step.path}: {why}", (node,))
    if target.done and dependency.scope == LOCAL and _is_beside(service, waiting):
        return None  # It became ready this moment: one of its two znodes was read a little earlier.
    return _asked_otherwise(step, unmet, dependency, service, target)


def _is_beside(service: LiveService, waiting: LiveService) -> bool:
    """Whether the daemon of a service is ready on every host on which the other one waits."""
    ready = {each.host for each in service.containers if each.ready}
    return {each.host for each in waiting.containers if each.is_live} <= ready


def _asked_otherwise(
    step: LiveStep, unmet: Unmet, dependency: Dependency, service: LiveService, target: LiveStep
) -> Cause | None:
    """Something that its service has, but not in the number, generation or place that is asked for."""
    wants = dependency.generation
    if wants is not None and target.command.is_daemon:
        # Nobody is to replace them before all else is done, such as the migration.
        return _of_generation(step, unmet, dependency, service) if step.unmet == (unmet,) else None
    if wants is not None and wants != target.command.generation:
        has = target.command.generation or "none"
        text = f"{step.path} waits for generation {wants} of {target.path}, whose definition has {has}"
        return Cause("generation", text, (step.path,))
    if target.command.is_daemon and (dependency.count or 1) > service.wanted:
        text = (
            f"{step.path} waits for {dependency.count} ready instances of {target.path}, and {service.wanted}"
        )
        return Cause("too many", f"{text} {TOO_FEW}", (step.path,))
    if target.done:
        where = " on its own host" if dependency.scope == LOCAL else ""
        return Cause(
            "elsewhere", f"{step.path} waits for {dependency.path}{where}: {unmet.found}", (step.path,)
        )
    return None


def _of_generation(
    step: LiveStep, unmet: Unmet, dependency: Dependency, service: LiveService
) -> Cause | None:
    """Instances of one generation that can't be there, or somebody of another one beside them."""
    wants = dependency.generation
    live = [each for each in service.containers if each.is_live]
    if wants not in {each.generation for each in live}:
        there = ", ".join(sorted({each.generation or "none" for each in live})) or "none at all"
        text = f"{step.path} waits for {dependency.path} of generation {wants}, and its containers are of "
        return Cause("generation", f"{text}{there}: start some of the image of {wants}", (step.path,))
    if sum(each.ready and each.generation == wants for each in live) >= (dependency.count or 1):
        text = f"{step.path} waits: {unmet.found}: start it with the image of {wants}, or stop it"
        return Cause("generation", text, (step.path,))
    others = [each for each in live if each.generation != wants]
    if others and len(live) - len(others) < (dependency.count or 1):
        text = f"{step.path} waits for {dependency.path}: {unmet.found}; replace the containers of other"
        return Cause("generation", f"{text} generations, on {_hosts(others)}", (step.path,))
    return None


def _no_members(step: LiveStep, members: Members, deployment: LiveDeployment) -> Cause | None:
    service = deployment.services.get(members.service)
    if service is None:
        why = f"there is no service {members.service!r}{nearest(members.service, deployment.services)}"
        return Cause("no provider", f"{step.path}: {why}", (_node(members.service),))
    if service.definition and members.count > service.wanted:
        text = f"{step.path} waits for {members.count} members of {service.name}, and {service.wanted}"
        return Cause("too many", f"{text} {TOO_FEW}", (step.path,))
    return None


# -- one service ----------------------------------------------------------------------------------------


def _of_service(service: LiveService, now: float, with_images: bool) -> Iterator[Cause]:
    """What keeps it from being up, whatever the others do."""
    if not service.definition:
        yield Cause("no definition", f"{service.name} has no definition: publish it", (_node(service.name),))
    elif service.graph is None:
        text = f"the definition of {service.name} can't be read: {'; '.join(service.issues)}"
        yield Cause("unreadable", text, (_node(service.name),))
    elif service.role_taken:
        text = f"{service.name}: its role {service.role} is claimed by {service.owner}; rename one of them"
        yield Cause("claimed", text, (_node(service.name),))
    else:
        yield from _of_refreshes(service, now)
        yield from _of_restarts(service, now, with_images)
        if not service.is_up:
            yield from _of_what_is_missing(service, now)


def _of_what_is_missing(service: LiveService, now: float) -> Iterator[Cause]:
    found = [cause for step in service.steps if not step.done for cause in _of_step(service, step, now)]
    yield from found
    yield from _of_containers(service, {cause.kind for cause in found}, now)


def _of_refreshes(service: LiveService, now: float) -> Iterator[Cause]:
    """What the registrars of ready daemons say of their files; and who does not come back from a refresh."""
    path = f"{service.role}/{DAEMON}"
    if not service.is_up or not all(each.is_current for each in service.containers):
        yield from _of_gone(service, [each for each in service.gone if each.why == "refresh"], now)
    for each in service.containers:
        is_over = each.needs_restart and not each.keeps_old_files and not each.is_refreshing
        if each.stage == "ready" and each.reason and not is_over:
            kind = "refresh failed" if each.keeps_old_files else "refreshing"
            advice = MEND_REFRESH if each.code == REFRESH_FAILED else ""
            yield Cause(kind, f"{path} on {each.host} is ready; {each.reason}{advice}", (path,))
        elif each.is_refreshing:
            what = _listed(other.what for other in each.behind)
            yield Cause("refreshing", f"{path} on {each.host} is about to be refreshed: {what}", (path,))


def _of_gone(service: LiveService, gone: Sequence[Gone], now: float) -> Iterator[Cause]:
    """Containers that were ready, and are not there any more; those of one kind together."""
    path = f"{service.role}/{DAEMON}"
    for why, words in GONE.items():
        found = [each for each in gone if each.why == why]
        if found:
            since = max(each.since for each in found)
            hosts = _listed(sorted(each.host for each in found))
            text = f"{path} on {hosts}: its container is gone; {words.format(lasting(now - since))}"
            kind = "refresh failed" if why == "refresh" else "gone"
            # When it was killed is not known.
            at = since if why == "ended" else None
            yield Cause(kind, f"{text}; see its log, and start it again", (path,), at=at)


def _of_restarts(service: LiveService, now: float, with_images: bool) -> Iterator[Cause]:
    """The containers that run what is older than what is published, until somebody restarts them."""
    path = f"{service.role}/{DAEMON}"
    groups: dict[tuple[str, ...], list[Container]] = defaultdict(list)
    for each in service.containers:
        if each.stage in BEGUN and each.needs_restart:
            groups[tuple(behind.what for behind in each.behind)].append(each)
    for names, containers in groups.items():
        older = [name for name in names if not name.startswith(IMAGE)]
        what = [f"an {name}" for name in names if with_images and name.startswith(IMAGE)]
        since = min(behind.since for behind in containers[0].behind)
        if older:
            what.append(f"an older {_listed(older)} (changed {lasting(now - since)} ago)")
        remedy = "restart it" if len(older) == len(names) else "start one of the other image instead"
        if what:
            text = f"{path} on {_hosts(containers)} runs {' and '.join(what)}: {remedy}"
            yield Cause("restart", text, (path,), at=since)


def _of_older(service: LiveService) -> Iterator[Cause]:
    """Who waits for what is not asked for any more, where all that is asked for is there."""
    for each in service.containers:
        if each.stage == "waiting" and each.runs_older_definition:
            text = f"{service.name} on {each.host} waits by an older definition: restart it; {each.reason}"
            yield Cause("restart", text, (_node(service.name),))


def _of_step(service: LiveService, step: LiveStep, now: float) -> Iterator[Cause]:
    if step.command.is_daemon:
        yield from _of_daemon(service, step, now)
        return
    for attempt in step.attempts:
        if attempt.state in (ERROR, RETRY, RUNNING):
            yield _of_attempt(service, step, attempt, now)
    generations = {each.generation for each in service.containers if each.is_live and each.generation}
    wanted = step.command.generation
    if wanted and generations and wanted not in generations:
        there = ", ".join(sorted(generations))
        text = f"{step.path} is for generation {wanted}, and the containers that are there are of {there}"
        text += f": start one of the image of {wanted}"
        yield Cause("generation", text, (step.path,))
    if step.superseded and not step.done:
        text = f"{step.path}: a newer definition has run it since; restart the containers of {service.name}"
        yield Cause("superseded", text, (step.path,))


def _of_attempt(service: LiveService, step: LiveStep, attempt: Attempt, now: float) -> Cause:
    detail, age = attempt.detail, lasting(now - attempt.since)
    where = f" on {detail.host}" if detail.host else ""
    if attempt.state == RUNNING:
        if step.command.run_once and not attempt.contenders:
            text = f"{step.path}{where} began {age} ago and has no outcome; nobody holds its lock any more"
            return Cause("abandoned", text, (step.path,))
        lock = ", and holds its lock" if step.command.run_once else ""
        text = f"{step.path} has run{where} for {age} (attempt {detail.attempt or 1}){lock}"
        if step.command.timeout is None and now - attempt.since >= SLOW:
            text = f"{text}; {NO_TIMEOUT}"
        return Cause("running", text, (step.path,))
    # Of all containers together: more than the log of this one says.
    times = f" ({detail.attempt} attempts in all)" if detail.attempt > 1 else ""
    what = f"{detail.message or 'without a reason'}{times}"
    # One that waits for its turn will try it next; a daemon that has begun is past it.
    others = attempt.contenders or any(
        each.is_live and each.stage not in BEGUN for each in service.containers
    )
    if attempt.state == RETRY or others:
        text = f"{step.path} failed{where} {age} ago and is tried again: {what}"
        return Cause("failing", text, (step.path,), at=attempt.since)
    log = f"see the log of {service.name}{' there' if where else ''}"
    text = f"{step.path} failed{where} {age} ago: {what}; {log}, correct the cause, and start it again"
    return Cause("failed", text, (step.path,), at=attempt.since)


def _of_daemon(service: LiveService, step: LiveStep, now: float) -> Iterator[Cause]:
    """Its containers that have begun the daemon, or should have; those of one kind together."""
    begun = all(other.done for other in service.steps if other is not step) and not step.unmet
    slow, starting = [], []
    for each in service.containers:
        if each.stage == "unready" or (each.stage == "starting" and each.reason and now - each.since >= SLOW):
            slow.append(each)
        elif each.stage == "starting" or (each.stage == PRESENT and begun):
            starting.append(each)
    if slow:
        first = min(slow, key=lambda each: each.since)
        text = f"{step.path} on {_hosts(slow)} is not ready for {lasting(now - first.since)}"
        why = first.reason or "its agent does not say why"
        if first.code == CHECK:
            why = f"{why}; {CHECK_FAILS}"
        yield Cause("not ready", f"{text}: {why}; see the log of {service.name}", (step.path,))
    if starting:
        first = min(starting, key=lambda each: each.since)
        text = f"{step.path} on {_hosts(starting)} has been starting for {lasting(now - first.since)}"
        yield Cause("starting", text, (step.path,))


def _hosts(containers: Sequence[Container]) -> str:
    return _listed(sorted(each.host for each in containers))


def _listed(found: Iterable[str]) -> str:
    """As many names as a line has room for."""
    names = list(found)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _of_containers(service: LiveService, found: set[str], now: float) -> Iterator[Cause]:
    """Who is not there, and why."""
    live = [each for each in service.containers if each.is_live]
    missing = (1 if service.is_task else service.wanted) - len(live)
    hosts = {each.host for each in live}
    # The youngest explain who is missing now; older ones are of containers that others have replaced.
    left = {each.host: each.zxid for each in service.ended if each.host not in hosts}
    left.update({each.host: each.left for each in service.gone})
    recent = set(sorted(left, key=lambda host: -left[host])[: max(missing, 0)])
    ended = {each.host for each in service.ended}
    gone = [each for each in service.gone if each.host in recent - ended and each.why != "refresh"]
    for each in ends(service):
        # A command that has failed says so itself.
        says = each.stage == "bootstrap" and found.intersection(("failed", "failing"))
        if not says and (each.host in hosts or each.host in recent):
            yield _of_end(service, each, now)
    yield from _of_gone(service, gone, now)
    held = any(attempt.contenders for step in service.steps for attempt in step.attempts)
    # Who holds a lock is there, though it says what it does a moment later.
    missing -= held and not live
    if missing > len(recent) and "failed" not in found and (service.tells or not held):
        yield Cause("absent", _absence(service, len(live)), (_node(service.name),))


def ends(service: LiveService) -> list[EndedStart]:
    """How starts went wrong that no later one has got past, whether one is under way now or not."""
    live = [each for each in service.containers if each.is_live]
    is_complete = len(live) >= (1 if service.is_task else service.wanted)
    standing = []
    for ended in service.ended:
        successors = [each for each in live if each.host == ended.host]
        # One that ended elsewhere has been replaced if nobody is missing.
        if not (any(_is_past(each, ended) for each in successors) if successors else is_complete):
            standing.append(ended)
    return standing


def _is_past(container: Container, ended: EndedStart) -> bool:
    """Whether a container shows by what it does that it has got past what `ended` another one.

    It may have done so before: then it shows nothing. What it waits for again, or runs again, it says itself.
    """
    if ended.retriable and ended.stage in ("wait", "bootstrap"):
        return True
    past = ("unready", "ready") if ended.stage == DAEMON else BEGUN
    return container.stage in past and container.since + CLOCK_STEP >= ended.at


def _of_end(service: LiveService, ended: EndedStart, now: float) -> Cause:
    where, age = (_node(service.name),), now - ended.at
    text = f"{ended.command or service.name} on {ended.host} {ended.how(f' {lasting(age)} ago')}"
    successors = [each for each in service.containers if each.host == ended.host and each.is_live]
    # What is wrong may have been mended since; it will show when that one goes on.
    if any(_waits(each, now) for each in successors):
        return Cause("gave up", f"{text}; the next start has not come so far yet", where, at=ended.at)
    if ended.stage == DAEMON:
        text = f"{text}; see the log of {service.name} there"
        if not successors and age >= NOT_REPLACED:  # There is no launcher, or it does not try any more.
            text = f"{text}, correct the cause, and start the container again"
            return Cause("ended", text, where, at=ended.at)
    return Cause("gave up" if ended.retriable else "ended", text, where, at=ended.at)


def _waits(container: Container, now: float) -> bool:
    return container.stage == "waiting" and now - container.since >= SLOW


def _absence(service: LiveService, live: int) -> str:
    if live:
        return f"{live} of {service.wanted} containers of {service.name} are there: start the others"
    if not service.begun:
        return f"no container of {service.name} was ever started, or none has reached ZooKeeper: see its log"
    if service.is_task and not service.tells:
        return f"{service.name} was started, and no container of it says what it does"
    return f"no container of {service.name} is left: start it again"


def nodes(service: LiveService) -> frozenset[str]:
    """Where a service stands in the graph."""
    return frozenset([_node(service.name), *(step.path for step in service.steps)])


def concerning(causes: Iterable[Cause], service: LiveService) -> list[Cause]:
    """Those that keep one service from being up."""
    return [cause for cause in causes if cause.kind in OF_ALL or nodes(service) & cause.touches]
