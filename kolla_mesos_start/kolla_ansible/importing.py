"""All stages of an import, one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.errors import BadUsage, listed
from kolla_mesos_start.kolla_ansible import (
    clusters,
    emit,
    facts,
    given_files,
    graph,
    lift,
    recording,
    stand_ins,
)
from kolla_mesos_start.kolla_ansible import containers as sorting
from kolla_mesos_start.kolla_ansible.clusters import Clusters
from kolla_mesos_start.kolla_ansible.containers import Containers
from kolla_mesos_start.kolla_ansible.emitted import Emitted, Imported, Names
from kolla_mesos_start.kolla_ansible.facts import HostFacts
from kolla_mesos_start.kolla_ansible.graph import Edge, Graph, Places
from kolla_mesos_start.kolla_ansible.lift import Unlifted
from kolla_mesos_start.kolla_ansible.recording import Progress, Request, Task
from kolla_mesos_start.kolla_ansible.rules import Rules
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns

# Actions of kolla-ansible that can be recorded.
DEPLOY, UPGRADE = "deploy", "upgrade"
ACTIONS = (DEPLOY, UPGRADE)
# The only password that kolla-genpwd leaves without a value. Others would be `None` in config files.
BLANK = "docker_registry_password"


@dataclass(frozen=True)
class Site:
    """What is known before the recording: the hosts' facts, virtual addresses and passwords.yml."""

    facts: Mapping[str, HostFacts]
    virtual: Mapping[str, str]
    passwords: Mapping[str, object]


@dataclass(frozen=True)
class Outcome:
    """The result of an import, and its problems."""

    emitted: Emitted
    containers: Containers
    graph: Graph
    unlifted: Sequence[Unlifted]
    against_order: Sequence[Edge]
    clusters: Sequence[str]
    unresolved: Sequence[str]
    warnings: Sequence[str]


def record(request: Request, site: Site, progress: Progress) -> tuple[Sequence[Task], Sequence[Task]]:
    """Record twice, side by side, with different stand-ins."""
    with tempfile.TemporaryDirectory(prefix="kolla-import-") as name, ExitStack() as stack:
        recordings = []
        for run in range(2):
            directory = Path(name) / str(run)
            directory.mkdir()
            copied = recording.copy_playbooks(request.environment.playbooks, directory)
            used = stand_ins_of(run, site)
            each = recording.started(request, copied, directory, used, is_silent=bool(run))
            recordings.append(stack.enter_context(each))
        return recordings[0].tasks(progress), recordings[1].tasks()


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
    unsupported = table.unsupported_settings(settings)
    if unsupported:
        raise BadUsage(f"{config / 'globals.yml'}: {'; '.join(unsupported)}")
    return Site(facts.read(facts_path, inventory), stand_ins.virtual_addresses(settings), passwords)


def stand_ins_of(run: int, site: Site) -> StandIns:
    """The stand-ins of one of the two recordings."""
    return stand_ins.make(run, site.passwords, site.facts, site.virtual)


def make(
    recorded: tuple[Sequence[Task], Sequence[Task]],
    site: Site,
    table: Rules,
    release: str,
    zookeeper: str | None,
    action: str = DEPLOY,
) -> Outcome:
    """Make the directory from two recordings."""
    first, second = recorded
    is_upgrade = action == UPGRADE
    names, used = address_names(site), (stand_ins_of(0, site), stand_ins_of(1, site))
    passwords = stand_ins.flattened(site.passwords)
    lifters = (lift.Lifter(used[0], names, passwords), lift.Lifter(used[1], names, passwords))
    lifted, unlifted = lift.lift(first, second, lifters)
    raw, _ = _sorted(first, table, is_upgrade=is_upgrade)
    found, of_clusters = _sorted(lifted, table, is_upgrade=is_upgrade)
    derived = graph.derive(raw, table, places_of(site, used[0]), is_upgrade=is_upgrade)
    own, own_values = own_names(site, names)
    real = {stand_in: address for address, stand_in in used[0].addresses.items()}
    warnings = [
        f"{each.name}: the step waits for nothing: is a row in `needs` of --overrides missing?"
        for each in graph.without_needs(derived, found, table)
    ]
    imported = Imported(
        containers=found,
        graph=derived,
        names=Names(
            {name: each for each, name in names.items()}, stand_ins.kinds(site.passwords), own, own_values
        ),
        rules=table,
        release=release,
        zookeeper=zookeeper,
        action=action,
        refused=list(map(_not_lifted, unlifted)),
        real=real,
        warnings=warnings,
        clusters=of_clusters,
    )
    return Outcome(
        emitted=emit.emit(imported),
        containers=found,
        graph=derived,
        unlifted=unlifted,
        against_order=graph.against_order(derived, found, is_upgrade=is_upgrade),
        clusters=of_clusters.issues,
        unresolved=list(dict.fromkeys(each.shown(real) for each in derived.unresolved)),
        warnings=warnings,
    )


def _sorted(tasks: Sequence[Task], table: Rules, *, is_upgrade: bool) -> tuple[Containers, Clusters]:
    """The containers of a recording, with the definitions of its clusters."""
    dropped, inside = ([str(row["match"]) for row in rows] for rows in (table.dropped, table.inside))
    found = sorting.sort(tasks, recording.CONFIG_DIRECTORY, dropped, inside, is_upgrade=is_upgrade)
    return clusters.adapt(found, table)


def _not_lifted(each: Unlifted) -> str:
    where = f"{each.what}:{each.line}" if each.line else each.what
    return f"{each.host}: {where} holds a value made from a secret, an address, or the size of the host"


def address_names(site: Site) -> Mapping[str, str]:
    """The variable of each real address. A virtual address that is a host's own is the host's."""
    names = {address: name for name, address in site.virtual.items()}
    for host, each in site.facts.items():
        for number, (interface, address) in enumerate(each.interfaces.items()):
            variable = lift.variable("address", host, *([interface] if number else []))
            while variable in names.values():  # Another host's, whose name has other punctuation.
                variable += "_"
            names[address] = variable
    return names


def own_names(
    site: Site, names: Mapping[str, str]
) -> tuple[Mapping[str, lift.OwnNames], Mapping[str, Mapping[str, str]]]:
    """The names of each host for itself, and the values of these variables."""
    own, values = {}, {}
    for host, each in site.facts.items():
        variables = {
            lift.variable(lift.OWN_ADDRESS, *([interface] if number else [])): address
            for number, (interface, address) in enumerate(each.interfaces.items())
        }
        own[host] = lift.OwnNames(
            {variable: names[address] for variable, address in variables.items()}, each.hostname
        )
        values[host] = {**variables, lift.OWN_HOSTNAME: each.hostname, lift.OWN_HOST: host}
    return own, values


def places_of(site: Site, used: StandIns) -> Places:
    """Where the hosts are in a recording."""
    addresses = {host: list(each.interfaces.values()) for host, each in used.facts.items()}
    names = {
        name: addresses[host][0]
        for host, each in used.facts.items()
        if addresses[host]
        for name in (host, each.hostname)
    }
    return Places(addresses, names, list(dict.fromkeys(used.overrides.values())))
