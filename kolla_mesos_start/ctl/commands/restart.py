"""`kolla_mesos_ctl restart`: restart the daemons of a service, or print how its launcher does."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live import restarting
from kolla_mesos_start.ctl.live.cause import on_hosts
from kolla_mesos_start.ctl.live.logs import LogLocation
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.live.service_causes import why_keep
from kolla_mesos_start.ctl.text import NotThere, existing
from kolla_mesos_start.ctl.zk import event_record
from kolla_mesos_start.ctl.zk.containers import Container
from kolla_mesos_start.errors import BadUsage

OTHERS = 1  # exit status: some must be restarted by their launcher


def run(invocation: Invocation) -> int:
    """Restart the daemons that can be; 1 if a launcher must restart others."""
    service = named(mirror(invocation).deployment(), invocation.options.service)
    if service.is_task:
        raise BadUsage(f"{service.name} has no daemon; `rerun` is for its commands")
    wanted = _wanted(service, invocation.options.host)
    obstacles = {each.id: restarting.obstacle(service, each) for each in wanted}
    able = [each for each in wanted if not obstacles[each.id]]
    znodes = invocation.znodes._replace(service_name=service.name)
    silent = []
    if able:
        # Before they are asked: an event must not come after its effect.
        event_record.append(
            invocation.client,
            znodes,
            "restart",
            [service.daemon],
            services=[service.name],
            detail=f"on {on_hosts(able)}",
        )
        silent = restarting.restart(invocation.client, znodes, able)
    obstacles.update({each.id: f"it has not begun within {restarting.LIMIT:g} s" for each in silent})
    begun = [each for each in wanted if not obstacles[each.id]]
    if begun:
        print(f"{service.daemon} restarts on {on_hosts(begun)}{_width(service)}")
        print(f"to wait until all are ready again: kolla_mesos_ctl wait {service.role}")
    others = [each for each in wanted if obstacles[each.id]]
    for each in others:
        remedy = why_keep(service, each, time.time()) or _remedy(each)
        print(f"{service.name} on {each.host} does not restart: {obstacles[each.id]}; {remedy}")
    return 1 if others else 0


def _wanted(service: LiveService, host: str | None) -> Sequence[Container]:
    """The containers to restart; NotThere if there is none."""
    found = [each for each in service.live if host in (None, each.host)]
    if not found:
        where = f" on {host}{existing(host, {each.host for each in service.live})}" if host else ""
        raise NotThere(f"no container of {service.name} exists{where}")
    return found


def _width(service: LiveService) -> str:
    daemon = service.graph and service.graph.daemon
    return f", at most {daemon.width} at a time" if daemon and daemon.width else ""


def _remedy(container: Container) -> str:
    """How its launcher restarts it."""
    location = LogLocation(container.host, container.logs)
    if not location.restart:
        return "restart its container"
    where = "" if location.works_anywhere else f" on {container.host}"
    return f"restart its container{where}: {location.restart}"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="SERVICE", help="a service, by its name or role")
    parser.add_argument("--host", metavar="H", help="only on this host")


SUBCOMMAND = Subcommand(
    description="""\
Restart the daemons of a service without their containers: each agent renders the files again, and stops and
starts its daemon, at most `width` at a time and none after a failure, as after a publication. That needs
`on_change: {restart: true}` in the definition.

For all other containers the launcher's command is printed, if KOLLA_LOGS says which launcher it is. It is not
run: a container says it, and must not choose what is restarted. Status 1: there are such containers.
""",
    example="kolla_mesos_ctl restart keystone-api --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
