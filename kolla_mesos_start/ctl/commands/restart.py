"""`kolla_mesos_ctl restart`: restart the daemons of a service, or print how its launcher does."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live.cause import on_hosts
from kolla_mesos_start.ctl.live.logs import LogLocation
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.live.service_causes import why_keep
from kolla_mesos_start.ctl.text import NotThere, existing
from kolla_mesos_start.ctl.zk import publication, published
from kolla_mesos_start.ctl.zk.containers import BEGUN, Container
from kolla_mesos_start.ctl.zk.publisher import Publisher
from kolla_mesos_start.definition.strings import RESTARTED
from kolla_mesos_start.errors import BadUsage

OTHERS = 1  # exit status: some must be restarted by their launcher


def run(invocation: Invocation) -> int:
    """Restart the daemons that can be; 1 if a launcher must restart others."""
    service = named(mirror(invocation).deployment(), invocation.options.service)
    if service.is_task:
        raise BadUsage(f"{service.name} has no daemon; `rerun` is for its commands")
    wanted = _wanted(service, invocation.options.host)
    obstacles = {each.id: _obstacle(service, each) for each in wanted}
    hosts = {each.host for each in wanted if not obstacles[each.id]}
    if hosts:
        client, znodes, when = invocation.client, invocation.znodes, str(time.time()).encode()
        with publication.locked(client, znodes, action="restart") as lock:
            publisher = Publisher(client, znodes, published.nodes(client, znodes), lock)
            publisher.write({f"{service.name}/variables/{host}/{RESTARTED}": when for host in sorted(hosts)})
    begun = [each for each in wanted if not obstacles[each.id]]
    if begun:
        print(f"{service.daemon} restarts on {on_hosts(begun)}{_width(service)}")
        print(f"to wait until all are ready again: kolla_mesos_ctl wait {service.role}")
    others = [each for each in wanted if obstacles[each.id]]
    for each in others:
        remedy = why_keep(service, each, time.time()) or _remedy(each)
        print(f"{service.name} on {each.host} does not restart: {obstacles[each.id]}; {remedy}")
    return 1 if others else 0


def _obstacle(service: LiveService, container: Container) -> str:
    """Why the container's own agent can't restart its daemon; empty if it can."""
    on_change = service.graph and service.graph.daemon and service.graph.daemon.on_change
    if container.stage not in BEGUN:
        return "its daemon is not started"
    if not (on_change and on_change.kind == "restart"):
        return "its definition has no on_change: {restart: true}"
    if not container.follows:
        return "its files are not refreshed (KOLLA_CONFIG_STRATEGY=COPY_ONCE, or started without on_change)"
    return "it runs something older that only a new start replaces" if container.needs_restart else ""


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
Restart the daemons of a service without their containers: set the variable `restarted` for each host, which a
daemon with `on_change: {restart: true}` follows. Each agent renders the files again, and stops and starts its
daemon, at most `width` at a time, as after a publication.

For all other containers the launcher's command is printed, if KOLLA_LOGS says which launcher it is. It is not
run: a container says it, and must not choose what is restarted. Status 1: there are such containers.
""",
    example="kolla_mesos_ctl restart keystone-api --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
