"""All stages of an import, one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.errors import BadUsage, listed
from kolla_mesos_start.kolla_ansible import (
    clusters,
    containers,
    emit,
    facts,
    given_files,
    graph,
    lift,
    recording,
    stand_ins,
)
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.graph import Places
from kolla_mesos_start.kolla_ansible.recording import Progress, Request, Task
from kolla_mesos_start.kolla_ansible.rules import Rules
from kolla_mesos_start.kolla_ansible.site import Site
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns

# Actions of kolla-ansible that can be recorded.
DEPLOY, UPGRADE = "deploy", "upgrade"
ACTIONS = (DEPLOY, UPGRADE)
# The only password that kolla-genpwd leaves without a value. Others would be `None` in config files.
BLANK = "docker_registry_password"


def look(request: Request, facts_path: Path | None, table: Rules) -> Site:
    """Read the configuration and the facts. Raises BadUsage, also for settings that are not supported."""
    config = request.config
    with tempfile.TemporaryDirectory(prefix="kolla-import-") as name:
        inventory = recording.inventory(request.environment, request.inventory, Path(name))
    settings = given_files.values(config / "globals.yml")
    passwords = given_files.values(config / "passwords.yml")
    empty = [name for name, value in source.flattened(passwords) if value is None and name != BLANK]
    if empty:
        raise BadUsage(f"{config / 'passwords.yml'}: {listed(empty)}: no value: run kolla-genpwd")
    for path in recording.globals_files(config):
        more = given_files.values(path)
        # Its value would be recorded, and be in the imported files.
        for name in sorted(more.keys() & passwords.keys()):
            raise BadUsage(f"{path}: {name} is in {config / 'passwords.yml'} too: keep it there only")
        settings = {**settings, **more}
    # Variables on ansible's command line, as globals.yml is, replace those of the inventory.
    of_hosts = {host: {**variables, **settings} for host, variables in inventory.items()}
    settings = next(iter(of_hosts.values()))
    unsupported = table.unsupported_settings(settings)
    if unsupported:
        raise BadUsage(f"{config / 'globals.yml'}: {'; '.join(unsupported)}")
    known = facts.read(facts_path, list(inventory))
    for each in known.values():
        facts.check_network(each, of_hosts[each.host])
    return Site(known, stand_ins.virtual_addresses(settings), passwords)


def record(request: Request, site: Site, progress: Progress) -> tuple[Sequence[Task], Sequence[Task]]:
    """Record twice, side by side, with different stand-ins."""
    with tempfile.TemporaryDirectory(prefix="kolla-import-") as name, ExitStack() as stack:
        recordings = []
        for run in range(2):
            directory = Path(name) / str(run)
            directory.mkdir()
            copied = recording.copy_playbooks(request.environment.playbooks, directory)
            each = recording.started(request, copied, directory, site.stand_ins(run), is_silent=bool(run))
            recordings.append(stack.enter_context(each))
        return recordings[0].tasks(progress), recordings[1].tasks()


def make(
    recorded: tuple[Sequence[Task], Sequence[Task]],
    site: Site,
    table: Rules,
    release: str,
    given: Mapping[str, object],
    action: str = DEPLOY,
) -> Imported:
    """Make the directory from two recordings; `given` is for launch.yml."""
    is_upgrade = action == UPGRADE
    first, second = site.stand_ins(0), site.stand_ins(1)
    passwords = stand_ins.flattened(site.passwords)
    lifters = (lift.Lifter(first, site.names, passwords), lift.Lifter(second, site.names, passwords))
    lifted, unlifted = lift.lift(*recorded, lifters)
    found, of_clusters = clusters.adapt(containers.sort(lifted, table, is_upgrade=is_upgrade), table)
    # In a lifted recording, an address is no longer there.
    raw, _ = clusters.adapt(containers.sort(recorded[0], table, is_upgrade=is_upgrade), table)
    derived = graph.derive(raw, table, _places(first), is_upgrade=is_upgrade)
    imported = Imported(
        site=site,
        rules=table,
        release=release,
        given=given,
        action=action,
        containers=found,
        clusters=of_clusters,
        graph=derived,
        unlifted=unlifted,
        against_order=graph.against_order(derived, found, is_upgrade=is_upgrade),
        real={stand_in: address for address, stand_in in first.addresses.items()},
        warnings=[
            f"{each.name}: the step waits for nothing: is a row in `needs` of --overrides missing?"
            for each in graph.without_needs(derived, found, table)
        ],
    )
    emit.emit(imported)
    return imported


def _places(used: StandIns) -> Places:
    """Where the hosts are in a recording."""
    addresses = {host: list(each.interfaces.values()) for host, each in used.facts.items()}
    names = {
        name: addresses[host][0]
        for host, each in used.facts.items()
        if addresses[host]
        for name in (host, each.hostname)
    }
    return Places(addresses, names, list(dict.fromkeys(used.overrides.values())))
