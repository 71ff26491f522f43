"""`kolla_mesos_ctl status`: the services of a deployment, and what each of their containers is doing.

Makes the rows and fits them into the terminal. `live.reader` reads the deployment.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.live import Live
from rich.text import Text

from kolla_mesos_start.ctl.invocation import Invocation, Line, joined, show
from kolla_mesos_start.ctl.live import election, rollouts
from kolla_mesos_start.ctl.live.logs import see
from kolla_mesos_start.ctl.live.mirror import Mirror, mirror, named
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.rollouts import why_keep
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.text import NotThere, existing, few, lasting
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.definition.strings import DAEMON
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.report import CHECK
from kolla_mesos_start.tree.states import ERROR, RETRY, RUNNING

TICK = 1.0  # seconds: the unit in which durations are shown
COLOURS = {
    "ready": "green",
    "finished": "green",
    "waiting": "yellow",
    "bootstrapping": "cyan",
    "starting": "cyan",
    "draining": "cyan",
    RUNNING: "cyan",
    RETRY: "yellow",
}


@subcommand(
    "kolla_mesos_ctl status --watch --deployment site",
    argument("service", metavar="SERVICE", nargs="?", help="only this service, by its name or role"),
    argument("--host", metavar="H", help="only the containers on this host"),
    argument("--watch", action="store_true", help="redraw after every change, until Ctrl-C"),
    FORMAT,
)
def status(invocation: Invocation) -> int:
    """Show the services of a deployment with their ready and wanted instances, and what each container is
    doing and for how long.

    Each container has its generation, and lists what has changed since it started: its definition, variables
    or files (by name), or its image. "restart it" means that it needs a restart to get the changes; "keep it"
    that the new version is not ready on another host yet, so that this container may be the last one that
    works; "refreshing" that on_change applies them. `--format json` has the zxids. The exit status is 0 if
    all are up, else 1.

    During a rollout the line of a service says how many of its containers run what is published, which
    refresh, which have failed or need a restart, and for how long. With --host, as many instances are wanted
    as there are containers on that host.
    """
    options = invocation.options
    if options.watch:
        _watch(invocation)
    deployment = _chosen(mirror(invocation), options)
    if invocation.as_json:
        invocation.print_json(as_data(deployment))
    else:
        services = _ordered(deployment)
        head = Line(headline(deployment, options.host), "bold")
        show(invocation.out, [head, Line(""), *_listed(services, services, time.time())])
    return 0 if deployment.is_up else 1


def _chosen(source: Mirror, options: argparse.Namespace) -> LiveDeployment:
    """What the command line asks for. NotThere suggests another host."""
    deployment, host = source.deployment(), options.host
    services = deployment.services
    if options.service is not None:
        service = named(deployment, options.service)
        services = {service.name: service}
    if host is not None:
        hosts = {each for service in services.values() for each in service.hosts}
        services = {name: each.on_host(host) for name, each in services.items() if host in each.hosts}
        if not services:
            raise NotThere(f"no container is on {host}{existing(host, hosts)}")
    return deployment._replace(services=services)


def _watch(invocation: Invocation) -> None:
    """Redraw after every change, until Ctrl-C."""
    out, options = invocation.out, invocation.options
    if invocation.as_json or not out.is_terminal:
        raise BadUsage("--watch needs a terminal; leave it out, or see `wait`")
    source = mirror(invocation, watching=True)
    deployment = _chosen(source, options)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(fitting(deployment, time.time(), out.width, out.height, options.host), refresh=True)
            if source.wait(TICK):
                try:
                    deployment = _chosen(source, options)
                except NotThere:  # It may come back: a container that restarts is absent for a moment.
                    deployment = source.deployment()._replace(services={})


# -- fitting into a terminal ----------------------------------------------------------------------------


def fitting(deployment: LiveDeployment, now: float, width: int, height: int, host: str | None = None) -> Text:
    """The lines that fit a terminal: services that are not up come first, and are shortened last."""
    services, height = _ordered(deployment), height - 2
    down = [service for service in services if not service.is_up]
    up = [service for service in services if service.is_up]
    ways: Sequence[Callable[[], Sequence[Line]]] = (
        lambda: _listed(services, services, now),
        lambda: _listed(services, down, now),
        lambda: [*_listed(down, down, now), *_grid(up, width)],
        lambda: [*_listed(down, (), now), *_grid(up, width)],
        lambda: _crowded(down, up, now, width, height),
    )
    for way in ways:
        lines = way()
        if len(lines) <= height:
            break
    else:
        lines = [*lines[: height - 1], Line("...", "dim")]
    folded = joined(line.folded(width) for line in lines)
    if folded.plain.count("\n") >= height:
        folded = joined(line.cut(width) for line in lines)
    return joined([Line(headline(deployment, host), "bold").cut(width), Text(), folded])


def _crowded(
    down: Sequence[LiveService], up: Sequence[LiveService], now: float, width: int, height: int
) -> Sequence[Line]:
    """Names in columns; in the remaining lines the services that do not only wait for others."""
    room = max(height - len(_grid(down, width)) - len(_grid(up, width)), 0)
    shown = [each for each in down if {row.cells[1] for row in _rows(each, now)} != {"waiting"}][:room]
    others = [each for each in down if each not in shown]
    return [*_listed(shown, (), now), *_grid(others, width), *_grid(up, width)]


def headline(deployment: LiveDeployment, host: str | None) -> str:
    """How many services are up; of those on a host, if one is chosen."""
    services = list(deployment.services.values())
    where = f"{deployment.id} on {host}" if host else deployment.id
    text = f"{where}: {sum(service.is_up for service in services)} of {len(services)} services up"
    text = text if services or not host else f"{where}: there is no container now"
    return "; ".join(filter(None, [text, *rollouts.summary(services), deployment.publication.problem]))


def _ordered(deployment: LiveDeployment) -> Sequence[LiveService]:
    return sorted(deployment.services.values(), key=lambda service: (service.is_up, _numbered(service.name)))


def _numbered(name: str) -> Sequence[tuple[str, int]]:
    """To sort names so that node-9 comes before node-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _grid(services: Sequence[LiveService], width: int) -> Sequence[Line]:
    """Names in columns, each with the number of ready and wanted instances."""
    cells = [f"{each.role} {each.ready}/{each.wanted}" for each in services]
    if not cells:
        return []
    column = max(map(len, cells)) + 2
    across = max(width // column, 1)
    style = "green" if services[0].is_up else "yellow"
    rows = [cells[first : first + across] for first in range(0, len(cells), across)]
    return [Line(""), *(Line("".join(f"{cell:{column}}" for cell in row).rstrip(), style) for row in rows)]


# -- lines ----------------------------------------------------------------------------------------------


def _listed(services: Sequence[LiveService], whole: Sequence[LiveService], now: float) -> list[Line]:
    """A line for each service, and one for each container of those in `whole`.

    Of other services that are not up, the line says what most of their unready containers are doing.
    """
    names = max((len(service.name) for service in services), default=0)
    rows = {service.name: [*_rows(service, now)] for service in whole}
    shown = [row for each in rows.values() for row in each]
    widths = [max((len(row.cells[column]) for row in shown), default=0) for column in range(4)]
    lines = []
    for service in services:
        head = _head(service, names, now)
        if service.name not in rows and not service.is_up and service.graph is not None:
            unready = [row for row in _rows(service, now) if row.cells[1] not in ("ready", "finished")]
            found = service.election
            doing = Counter(row.doing for row in unready).most_common(1)
            if doing:
                most = found.progress if found and found.is_going_on else doing[0][0]
                head = head._replace(rest=f"{head.rest or ' '}{': ' if head.rest else ' '}{most}")
        lines += [head, *(row.line(widths) for row in rows.get(service.name, ()))]
    return lines


def _head(service: LiveService, width: int, now: float) -> Line:
    if not service.definition_zxid:
        return Line(f"{service.name:{width}}  no definition is published", "bold red")
    if service.graph is None:
        return Line(f"{service.name:{width}}  unreadable: ", "bold red", "; ".join(service.issues))
    state = f"{service.name:{width}}  {service.ready} of {service.wanted} {service.what}"
    # During a rollout "all ready" alone would be misleading.
    rollout = rollouts.state(service)
    state = state if rollout.is_over else f"{state}, {rollout.words(now)}"
    style = "bold green" if service.is_up and rollout.is_over else "bold yellow"
    stages = Counter(container.stage for container in service.containers)
    counts = (
        "" if stages.keys() <= {"ready"} else ", ".join(f"{n} {each}" for each, n in stages.most_common())
    )
    return Line(state, style, f"  {counts}" if counts else "")


class StatusRow(NamedTuple):
    """A row of a service: the name, state, duration and generation; what it is doing; how to read its log."""

    cells: tuple[str, str, str, str]
    doing: str
    style: str
    log: str = ""

    def line(self, widths: Sequence[int]) -> Line:
        """The cells in columns."""
        cells = "".join(f"  {cell:{width}}" for cell, width in zip(self.cells, widths) if width)
        return Line(f"{cells}  ", self.style, "; ".join(filter(None, (self.doing, self.log))))


def _rows(service: LiveService, now: float) -> Iterator[StatusRow]:
    election = service.election
    if election and election.is_going_on:
        since = "" if election.since is None else lasting(now - election.since)
        style = "red" if election.refused else COLOURS["waiting"]
        yield StatusRow(("election", election.state, since, ""), election.progress, style)
    for container in sorted(service.containers, key=lambda each: (_numbered(each.host), each.id)):
        yield _container(service, container, now)
    if service.is_up:
        return
    if service.definition_zxid and not (service.containers or service.ended):
        why = "all its containers are gone" if service.begun else "no container was ever started"
        yield StatusRow(("-", "absent", "", ""), why, "red")
    for ended in service.ended:
        status = "" if ended.status is None else f" (the agent's exit status: {ended.status})"
        doing = f"{ended.command or ended.stage}: {ended.reason}{status}"
        if ended.stage == DAEMON:
            doing = f"{ended.command} {ended.how()}"
        cells = (ended.host, "ended", lasting(now - ended.at), "")
        yield StatusRow(cells, doing, "red", see(service, ended.host, ""))
    for step in service.steps:
        for attempt in step.attempts if not (step.done or step.command.is_daemon) else ():
            if attempt.state in (RUNNING, RETRY, ERROR):
                detail = attempt.detail
                where = f"attempt {detail.attempt} on {detail.host}" if detail.host else ""
                doing = f"{where}: {detail.message}" if detail.message else where
                log = see(service, detail.host, "") if attempt.state == ERROR else ""
                cells = (step.command.name, attempt.state, lasting(now - attempt.since), "")
                yield StatusRow(cells, doing, COLOURS.get(attempt.state, "red"), log)


def _container(service: LiveService, container: Container, now: float) -> StatusRow:
    runs = ", ".join(filter(None, (container.generation, _age(service, container, now))))
    reason, command = container.reason, container.command
    doing = reason if command in reason else f"{command}: {reason}" if reason else command
    style = COLOURS.get(container.stage, "red")
    cells = (container.host, container.stage, lasting(now - container.since), runs)
    is_failing = container.stage == "unready" or container.code == CHECK
    return StatusRow(cells, doing, style, see(service, container.host, "") if is_failing else "")


def _age(service: LiveService, container: Container, now: float) -> str:
    """The older things that it runs and the remedy; `current` if other containers run older ones."""
    if container.older:
        remedy = "refreshing" if container.is_refreshing else ""
        if container.needs_restart:
            remedy = "keep it, see explain" if why_keep(service, container, now) else "restart it"
        return f"older {few(each.what for each in container.older)}{remedy and f' ({remedy})'}"
    mixed = container.definition_zxid and any(each.older for each in service.containers)
    return "current" if mixed else ""


# -- for programs ---------------------------------------------------------------------------------------


def as_data(deployment: LiveDeployment) -> dict[str, Any]:
    """The status as data for a program."""
    mark = deployment.publication.mark
    return {
        "deployment": deployment.id,
        "up": deployment.is_up,
        "unfinished_publication": mark and {"by": mark.by, "begun": mark.begun},
        "services": [_service_data(service) for service in deployment.services.values()],
    }


def _service_data(service: LiveService) -> dict[str, Any]:
    return {
        "name": service.name,
        "up": service.is_up,
        "ready": service.ready,
        "wanted": service.wanted,
        "definition": f"{service.definition_zxid:x}" if service.definition_zxid else None,
        "issues": list(service.issues),
        "rollout": rollouts.state(service).data(),
        "containers": [_container_data(container) for container in service.containers],
        "commands": [
            {
                "path": step.path,
                "done": step.done,
                "states": {each.scope: each.state for each in step.attempts},
            }
            for step in service.steps
            if not step.command.is_daemon
        ],
        "ended": [ended._asdict() for ended in service.ended],
        "election": service.election and election.as_data(service.election),
    }


def _container_data(container: Container) -> dict[str, Any]:
    data = container._asdict()
    behind, *_ = [data.pop(name) for name in ("older", "definition_zxid", "is_settling", "written")]
    refresh = "failed" if container.keeps_old_files else "pending" if container.is_refreshing else None
    return {
        **data,
        "definition": _hex(container.definition_zxid),
        "read": _hex(container.read),
        "stale": bool(behind),
        "older": [each.what for each in behind],
        "needs_restart": container.needs_restart,
        "refresh": refresh,
    }


def _hex(zxid: int | None) -> str | None:
    return None if zxid is None else f"{zxid:x}"
