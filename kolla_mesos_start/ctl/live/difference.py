"""What publishing a directory would change, and which containers run something older then.

What belongs here: `kolla_mesos_ctl diff`, which is also `publish --dry-run`, and its output. `changes` finds
the differences, and hides secrets. What running containers have not read, according to ZooKeeper alone, is
found by `unread`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from kolla_mesos_start.ctl.directory import acl, changes, directory
from kolla_mesos_start.ctl.directory.acl import Acl
from kolla_mesos_start.ctl.directory.changes import CREATED, Change, shortened
from kolla_mesos_start.ctl.directory.directory import VARIABLES, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import counted, refuse
from kolla_mesos_start.ctl.directory.secrecy import Mask, is_variable
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.ctl.validate.rules import known_graph
from kolla_mesos_start.ctl.zk import acls, connection, containers, publication, published, services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import BEGUN, Container
from kolla_mesos_start.ctl.zk.publication import check_chroot
from kolla_mesos_start.ctl.zk.published import Nodes
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import AccessDenied, BadDefinition
from kolla_mesos_start.report import RESTART
from kolla_mesos_start.tree.znodes import Znodes

FEW = 3  # values of single hosts that are listed
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Difference(NamedTuple):
    """All differences. `only_prune` would be removed by --prune, `kept` would not, because it has
    containers. `users` are the services whose templates use a variable that --prune would remove. `wider`:
    the rights that acl.yml does not plan, by the path of the znode."""

    changed: Sequence[Change]
    only_prune: Sequence[str]
    users: Mapping[str, Sequence[str]]
    kept: Sequence[str]
    running_old: Sequence[OutdatedContainer]
    mask: Mask
    wider: Mapping[str, Acl]


def run(invocation: Invocation, source: Source) -> int:
    """0 if publishing would change nothing, else 1: also after an interrupted publication, or if clients have
    rights beyond acl.yml. With --prune (of `publish --dry-run`) a removal is a change too."""
    prune: bool = getattr(invocation.options, "prune", False)
    refuse(source.unreadable)
    client = invocation.client
    check_chroot(client, invocation.settings)
    try:
        znodes = invocation.require_deployment()
    except NotThere as error:  # Its name may be a typo.
        invocation.err.print(f"{error.reason}: everything is new")
        znodes = invocation.znodes
    mark = publication.interrupted(client, znodes)
    if mark:
        invocation.err.print(f"warning: {mark.problem}")
    before = published.nodes(client, znodes)
    deployment = source.with_published(before).deployment
    after = {**directory.nodes(deployment), **directory.definitions(deployment)}
    changed = changes.changes(before, after)
    removals, kept = published.prunable(client, znodes, before, deployment)
    only_prune = removals.written(before)
    found = Difference(
        changed,
        only_prune,
        users={node: _users(node, deployment) for node in only_prune if is_variable(node)},
        kept=kept,
        running_old=outdated(
            client,
            znodes,
            deployment,
            before,
            [*(change.node for change in changed), *(only_prune if prune else ())],
        ),
        mask=Mask(before, after, declared=source.hidden | client.read_restricted()),
        wider=_wider_acls(invocation, znodes, deployment, before),
    )
    if invocation.as_json:
        invocation.print_json(_as_json(found))
    else:
        _print(invocation, found, prune)
    return 1 if found.changed or found.wider or mark or (prune and found.only_prune) else 0


def _wider_acls(
    invocation: Invocation, znodes: Znodes, deployment: Deployment, before: Nodes
) -> Mapping[str, Acl]:
    """The rights that clients have beyond acl.yml, by path. Only the operator can see all of them."""
    plan = deployment.acl or invocation.client.read_plan()
    if plan is None or not before:
        return {}
    services = published.defined(before).union(directory.definitions(deployment))
    try:
        return acls.wider(invocation.client, znodes, plan.only(services))
    except AccessDenied as error:
        invocation.err.print(f"warning: existing ACLs are not compared with acl.yml: {error.reason}")
        return {}


def _users(node: str, deployment: Deployment) -> list[str]:
    """The services whose templates use the variable at a node."""
    place, _, name = node.rpartition("/")
    return [
        service.name
        for service in deployment.services
        if (place == VARIABLES or f"{place}/".startswith(f"{service.name}/{VARIABLES}/"))
        and name in services.used_variables(service.definition, service.files)
    ]


# -- containers that run something older ----------------------------------------------------------


class OutdatedContainer(NamedTuple):
    """A container that runs something older. `needed` is the published generation, if its image has another
    one; `follows`: the files of its daemon are refreshed."""

    service: str
    container: Container
    needed: str = ""
    follows: bool = False


def outdated(
    client: OperatorClient, znodes: Znodes, deployment: Deployment, before: Nodes, changed: Iterable[str]
) -> list[OutdatedContainer]:
    """The containers that run an older definition, or that a change at one of the nodes `changed` affects.

    Only what agents read of a definition counts. `before` is what was published before the change.
    """
    own = {service.name: service for service in deployment.services}
    texts = {name: b"\n".join([each.definition, *each.files.values()]) for name, each in own.items()}
    nodes = set(changed)
    affected = changes.affected(nodes - texts.keys(), texts)
    variables = {node.rpartition("/")[2] for node in nodes if is_variable(node)}
    found = containers.read(client, znodes, texts)
    current = connection.mzxids(client, map(znodes.service, found))
    old = []
    for name, existing in found.items():
        graph = _graph(znodes, deployment, own[name])
        needed = _generation(graph) if graph else ""
        is_followed = _is_followed(before.get(name, b""), own[name].definition, variables)
        for each in existing:
            if each.definition_zxid is None:  # It does not say what it runs.
                continue
            is_current = each.definition_zxid == current[znodes.service(name)]
            reads_the_same = graph.digest == each.digest if graph and each.digest else is_current
            if each.generation and needed not in ("", each.generation):
                old.append(OutdatedContainer(name, each, needed))
            elif name in affected or not reads_the_same or (not each.digest and name in nodes):
                follows = is_followed and each.stage in BEGUN and each.code != RESTART
                old.append(OutdatedContainer(name, each, follows=follows))
    return sorted(old, key=lambda each: (each.service, each.container.host, each.container.stage))


def _is_followed(old: bytes, new: bytes, variables: Set[str]) -> bool:
    """Whether a refresh of the daemon's files brings all changes; `variables` are those that have changed."""
    if not (services.follows(new) and services.follows(old or new)):
        return False
    before, after = (
        json.dumps({"service": {"daemon": _started_with(text)}}).encode() for text in (old or new, new)
    )
    return before == after and not services.used_variables(after, {}) & variables


def _started_with(definition: bytes) -> Mapping[str, object]:
    """The keys of a daemon that only its start applies."""
    daemon = json.loads(definition)["service"]["daemon"]
    others = ("files", "dependencies", "generations", "on_change")
    return {key: value for key, value in daemon.items() if key not in others}


def _graph(znodes: Znodes, deployment: Deployment, service: Service) -> Graph | None:
    """The graph of a service, if its definition is valid."""
    texts = {**deployment.variables, **service.variables.own}
    values = {name: data.decode(errors="replace") for name, data in texts.items()}
    with suppress(BadDefinition):
        return known_graph(load(service.definition), znodes._replace(service_name=service.name), values)
    return None


def _generation(graph: Graph) -> str:
    """The generation of its one-time commands; empty if they have none, or several."""
    generations = {command.generation for command in graph.commands if command.generation}
    return generations.pop() if len(generations) == 1 else ""


def show_outdated(out: Console, found: Sequence[OutdatedContainer]) -> None:
    """Print their names, so that somebody restarts them."""
    for follows, verb in (
        (False, "need a restart for the new version"),
        (True, "refresh their files without a restart"),
    ):
        named = [each for each in found if each.follows is follows]
        if named:
            out.print(f"these containers {verb}:")
        for service, each, needed, _ in named:
            image = f", its image is {each.generation}: start one of {needed}" if needed else ""
            out.print(Text(f"  {service} on {each.host}: {each.stage}{image}"))


# -- printing -------------------------------------------------------------------------------------


def _as_json(found: Difference) -> Any:
    return {
        "changes": [_change_as_json(each, found.mask) for each in found.changed],
        "only_prune": found.only_prune,
        "kept": found.kept,
        "running_old": [
            {
                "service": each.service,
                "host": each.container.host,
                "state": each.container.stage,
                "generation": each.container.generation,
                "needed": each.needed or None,
                "follows": each.follows,
            }
            for each in found.running_old
        ],
        "wider": {path: acl.shown(rights) for path, rights in found.wider.items()},
    }


def _change_as_json(change: Change, mask: Mask) -> Any:
    shown: dict[str, Any] = {"change": change.kind, "path": change.node}
    if change.is_variable:
        before, after = mask.value(change.node, change.before), mask.value(change.node, change.after)
        return {**shown, "before": before, "after": after}
    return {**shown, "diff": list(mask.lines(*change))}


def _print(invocation: Invocation, found: Difference, prune: bool) -> None:
    say = invocation.out.print
    for change in found.changed:
        for line in _lines(change, found.mask):
            say(Text(line, COLOURS.get(line.strip()[:1], "")))
    for words in _removals(found):
        removal = f"would remove {words}"
        say(Text(removal, "red") if prune else Text(f"only with --prune: {removal}", "dim"))
    for service in found.kept:
        say(Text(f"not even with --prune: {service}, which has containers", "dim"))
    for path, rights in found.wider.items():
        say(Text(f"would secure {path}: {acl.shown(rights)}, which acl.yml does not plan", "red"))
    show_outdated(invocation.out, found.running_old)
    created = sum(change.kind == CREATED for change in found.changed)
    removed = counted(len(found.only_prune), "znode")
    more = (f", {removed} to remove" if prune else f", {removed} only --prune would remove") * bool(
        found.only_prune
    )
    say(f"{created} to create, {len(found.changed) - created} to update{more}")


def _removals(found: Difference) -> list[str]:
    """The nodes, with the services that use them; many values of single hosts in one line."""
    nodes = found.only_prune
    values = {node: node.rsplit("/", 3) for node in nodes if f"/{VARIABLES}/" in node.rpartition("/")[0]}
    if len(values) <= FEW:
        return [_used(node, found.users.get(node)) for node in nodes]
    owners, _, _, names = (", ".join(dict.fromkeys(parts)) for parts in zip(*values.values()))
    of_hosts = f"{len(values)} values of single hosts of {owners}: {names}"
    return [*(_used(node, found.users.get(node)) for node in nodes if node not in values), of_hosts]


def _used(node: str, users: Sequence[str] | None) -> str:
    return f"{node}, which is used by {', '.join(users)}" if users else node


def _lines(change: Change, mask: Mask) -> Iterable[str]:
    verb = "would create" if change.kind == CREATED else "would update"
    if not change.is_variable:
        return [f"{verb} {change.node}", *(f"    {shortened(line)}" for line in mask.lines(*change))]
    after = shortened(mask.value(change.node, change.after) or "", repr)
    if change.before is None:
        return [f"{verb} {change.node}: {after}"]
    before = shortened(mask.value(change.node, change.before) or "", repr)
    return [f"{verb} {change.node}: {before} -> {after}"]
