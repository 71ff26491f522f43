"""`kolla_mesos_ctl diff`: what publishing a directory would change, and who would still run the old.

What lives here: the command and how it prints. What differs, and what must be hidden, is in `changes`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from rich.text import Text

from kolla_mesos_start.operator import changes, connection, directory, layouts, published
from kolla_mesos_start.operator.changes import CREATED, Change, Mask
from kolla_mesos_start.operator.directory import Deployment
from kolla_mesos_start.operator.findings import counted
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.operator.publish import refuse
from kolla_mesos_start.tree.znodes import Znodes

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Container(NamedTuple):
    """A container, as it says itself what it does; `definition` is the mzxid of the one that it runs."""

    service: str
    host: str
    state: str
    definition: int | None


class Difference(NamedTuple):
    """All that there is to say. `only_prune` is what would be removed, `kept` has containers."""

    changed: Sequence[Change]
    only_prune: Sequence[str]
    kept: Sequence[str]
    running_old: Sequence[Container]
    mask: Mask


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    layouts.add_arguments(parser)
    add_format(parser)


def run(invocation: Invocation) -> int:
    """0 if publishing would write nothing, else 1."""
    deployment, unreadable = layouts.read(invocation.options, invocation.settings.deployment_id)
    refuse(unreadable)
    znodes = invocation.require_deployment()
    found = difference(invocation.client, znodes, deployment)
    if invocation.as_json:
        invocation.print_json(_as_json(found))
    else:
        _print(invocation, found)
    return 1 if found.changed else 0


SUBCOMMAND = Subcommand(
    name="diff",
    summary="show what publishing a directory would change",
    description="""\
Show what publishing a directory would change, and the containers that would still run the old.

Values whose names say that they are secrets are hidden, wherever they stand. What only
`publish --prune` would remove is listed, and is no difference. The exit status is 1 if anything differs.
""",
    example="kolla_mesos_ctl diff etc/examples/keystone --deployment site",
    add_arguments=_add_arguments,
    run=run,
)


# -- reading --------------------------------------------------------------------------------------


def difference(client: KazooClient, znodes: Znodes, deployment: Deployment) -> Difference:
    """What publishing the directory would change."""
    before = published.nodes(client, znodes)
    after = {**directory.nodes(deployment), **directory.definitions(deployment)}
    changed = changes.changes(before, after)
    gone = published.gone(before, deployment)
    kept = published.with_containers(client, znodes, gone)
    removals = published.removals(before, deployment, gone - kept)
    texts = {
        service.name: b"\n".join([service.definition, *service.files.values()])
        for service in deployment.services
    }
    affected = changes.affected(changed, texts)
    old = [
        each
        for each, is_current in containers(client, znodes, texts)
        if each.service in affected or not is_current
    ]
    only_prune = [*removals.removed, *removals.emptied]
    return Difference(changed, only_prune, sorted(kept), sorted(old), Mask(before, after))


def containers(client: KazooClient, znodes: Znodes, services: Iterable[str]) -> list[tuple[Container, bool]]:
    """The containers that run a definition of these services, and whether it is the one that is published."""
    places = {f"{znodes.service(service)}/.containers": service for service in services}
    ids = connection.children(client, places)
    paths = {f"{place}/{each}": service for place, service in places.items() for each in ids[place]}
    current = connection.mzxids(client, map(znodes.service, set(paths.values())))
    found = []
    for path, data in connection.read(client, paths).items():
        container = _container(paths[path], data)
        if container is not None and container.definition is not None:
            found.append((container, container.definition == current[znodes.service(container.service)]))
    return found


def _container(service: str, data: bytes | None) -> Container | None:
    """A container from what it wrote; None if it is gone, or wrote something else."""
    try:
        fact = json.loads(data or b"null")
        definition = int(fact["definition"], 16) if fact["definition"] else None
        return Container(service, _plain(fact["host"]), _plain(fact["state"]), definition)
    except (ValueError, TypeError, KeyError):
        return None


def _plain(text: object) -> str:
    """A text from strangers for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


# -- printing -------------------------------------------------------------------------------------


def _as_json(found: Difference) -> Any:
    return {
        "changes": [_change_as_json(each, found.mask) for each in found.changed],
        "only_prune": found.only_prune,
        "kept": found.kept,
        "running_old": [
            {"service": each.service, "host": each.host, "state": each.state} for each in found.running_old
        ],
    }


def _change_as_json(change: Change, mask: Mask) -> Any:
    shown: dict[str, Any] = {"change": change.kind, "path": change.node}
    if change.is_variable:
        before, after = mask.value(change.node, change.before), mask.value(change.node, change.after)
        return {**shown, "before": before, "after": after}
    return {**shown, "diff": list(mask.lines(change))}


def _print(invocation: Invocation, found: Difference) -> None:
    say = invocation.out.print
    for change in found.changed:
        for line in _lines(change, found.mask):
            say(Text(line, COLOURS.get(line.strip()[:1], "")))
    for node in found.only_prune:
        say(Text(f"only with --prune: removed {node}", "dim"))
    for service in found.kept:
        say(Text(f"not even with --prune: {service}, which has containers", "dim"))
    if found.running_old:
        say("containers that run what is older, until they are started again:")
        for each in found.running_old:
            say(Text(f"  {each.service} on {each.host}: {each.state}"))
    created = sum(change.kind == CREATED for change in found.changed)
    pruned = (
        f", {counted(len(found.only_prune), 'znode')} only --prune would remove" if found.only_prune else ""
    )
    say(f"{created} to create, {len(found.changed) - created} to update{pruned}")


def _lines(change: Change, mask: Mask) -> Iterable[str]:
    if not change.is_variable:
        return [f"{change.kind} {change.node}", *(f"    {line}" for line in mask.lines(change))]
    after = mask.value(change.node, change.after)
    if change.before is None:
        return [f"{change.kind} {change.node}: {after!r}"]
    return [f"{change.kind} {change.node}: {mask.value(change.node, change.before)!r} -> {after!r}"]
