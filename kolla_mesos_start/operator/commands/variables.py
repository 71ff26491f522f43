"""`kolla_mesos_ctl get`, `set` and `unset`: one variable of a deployment.

What lives here: the three, and who has to be restarted after a change. Agents look at variables again only
for files of a daemon that has `on_change`. No message holds a value.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from getpass import getpass
from typing import NamedTuple

from kolla_mesos_start.definition.forms import GLOBAL, bad_segment
from kolla_mesos_start.errors import AgentError, BadUsage
from kolla_mesos_start.operator.deployment.container_variables import NAME
from kolla_mesos_start.operator.deployment.directory import FILES, MAX_DATA, Deployment, Service
from kolla_mesos_start.operator.deployment.findings import ERROR, DataSource, Finding
from kolla_mesos_start.operator.ensemble import (
    connection,
    containers,
    publication,
    published,
    services,
    status_records,
)
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.ensemble.publication import Held, ZnodeChange
from kolla_mesos_start.operator.ensemble.published import places
from kolla_mesos_start.operator.ensemble.publisher import Publisher
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.operator.terminal.suggestions import nearest
from kolla_mesos_start.operator.validation.rules import validate
from kolla_mesos_start.tree.znodes import Znodes

STANDARD_INPUT = "-"
NOT_SET = 1  # exit status


class StillNeeded(AgentError):
    """A service would not start without the value."""

    status = 1


# -- the three ------------------------------------------------------------------------------------


def run_get(invocation: Invocation) -> int:
    """Print the value that an agent would find."""
    znodes, name = _place(invocation)
    found = _values(invocation.client, places(znodes, name))
    if not found:
        if invocation.as_json:
            invocation.print_json({"name": name, "value": None, "path": None})
        return _not_set(invocation, znodes, name)
    _note_given(invocation, name)
    path, data = next(iter(found.items()))
    invocation.err.print(f"found at {path}", markup=False)
    if invocation.as_json:
        invocation.print_json({"name": name, "value": data.decode(errors="replace"), "path": path})
    else:
        # As it is: a console would replace tabs and cut control characters, and a locale may lack some.
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n")
    return 0


def run_set(invocation: Invocation) -> int:
    """Write one value, and say who has to be restarted to have it."""
    data = _value(invocation.options)
    znodes, name = _place(invocation)
    _note_given(invocation, name)
    path = places(znodes, name)[0]
    client = invocation.client
    with publication.locked(client, znodes) as lock:
        publisher = Publisher(client, znodes, published.nodes(client, znodes), lock)
        publisher.write({_node(znodes, path): data})
    if publisher.counts.by_change["unchanged"]:
        print(f"{path} has this value already{'' if data else ': it is empty'}")
        return 0
    if not data:
        print(f"{name} is empty now: templates get an empty text; `unset` would remove the value")
    _print_readers(invocation, _changed(invocation.client, znodes, name), "to use it")
    if znodes.host:
        _warn_of_host(invocation, znodes)
    return 0


def run_unset(invocation: Invocation) -> int:
    """Remove one value, and say which one holds now. StillNeeded where a service would not start then."""
    znodes, name = _place(invocation)
    with publication.locked(invocation.client, znodes) as lock:
        return _unset(invocation, lock, znodes, name)


def _unset(invocation: Invocation, lock: Held, znodes: Znodes, name: str) -> int:
    client = invocation.client
    path, *further = places(znodes, name)
    if path not in _values(client, [path]):
        return _not_set(invocation, znodes, name)
    changed = _changed(client, znodes, name)
    needing = _needing(invocation, changed)
    if needing and not invocation.options.force:
        raise StillNeeded(
            f"{'; '.join(needing.values())}: without a value the next start of its containers fails;"
            " set another value instead; nothing was changed"
        )
    lock.write([ZnodeChange(path, None)], {path: b""})
    print(f"removed {path}")
    left = next(iter(_values(client, further)), None)
    where = "the whole deployment" if not znodes.service_name else znodes.service_name
    where += f" on {znodes.host}" if znodes.host else ""
    print(f"the value of {left} holds now" if left else f"{name} has no value for {where} any more")
    for needs in needing.values():
        print(
            f"{needs} and has no value for it now: the next start of its containers fails; set it again first"
        )
    _print_readers(invocation, changed, "to use it" if left else "to do without it", needing)
    return 0


# -- places and values ----------------------------------------------------------------------------


def _node(znodes: Znodes, path: str) -> str:
    """The path below the deployment."""
    return path[len(znodes.deployment) + 1 :]


def _place(invocation: Invocation) -> tuple[Znodes, str]:
    """What the command line names: a service on a host, either may be empty, and a variable."""
    options = invocation.options
    service, host = options.service or "", options.host or ""
    if host and not service:
        raise BadUsage("--host: a value for one host belongs to a service; give --service too")
    for what, segment in (("VARIABLE", options.variable), ("--host", host or "any")):
        bad = bad_segment(segment)
        if bad:
            raise BadUsage(f"{what}: {bad}, found {segment!r}")
    znodes = invocation.require_deployment()
    if service:
        service = services.find(invocation.client, znodes, service)
    return znodes._replace(service_name=service, host=host), options.variable


def _values(client: OperatorClient, paths: Sequence[str]) -> dict[str, bytes]:
    """Those of `paths` where a value stands, in their order."""
    found = connection.read(client, paths)
    return {path: data for path in paths if (data := found[path]) is not None}


def _value(options: argparse.Namespace) -> bytes:
    """The value to write."""
    given = options.value
    data = _from_standard_input(options.variable) if given == STANDARD_INPUT else os.fsencode(given)
    if len(data) > MAX_DATA:
        raise BadUsage(f"the value has more than {MAX_DATA} bytes, which ZooKeeper does not take")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadUsage(f"the value is not UTF-8 text (byte {error.start})") from error
    return data


def _from_standard_input(name: str) -> bytes:
    """What is typed, or all there is without the newline that ends its last line."""
    if sys.stdin is None:
        raise BadUsage("-: standard input is closed, so there is no value to read")
    if sys.stdin.isatty():
        return os.fsencode(_typed(name))
    return sys.stdin.buffer.read(MAX_DATA + 2).removesuffix(b"\n")


def _typed(name: str) -> str:
    """Asked on the terminal, and not shown there: so twice."""
    try:
        value = getpass(f"value of {name} (not shown): ")
        if getpass("the same again: ") != value:
            raise BadUsage("the two values differ; nothing was changed")
    except EOFError as error:
        raise BadUsage("no value was typed; nothing was changed") from error
    return value


def _note_given(invocation: Invocation, name: str) -> None:
    if name in invocation.given:
        invocation.err.print(f"note: {name} is in {NAME}, whose value containers take", markup=False)


def _not_set(invocation: Invocation, znodes: Znodes, name: str) -> int:
    """Say where the variable was looked for, and what was probably meant."""
    looked_at = places(znodes, name)
    above = [path.rpartition("/")[0] for path in looked_at]
    names = connection.children(invocation.client, above).values()
    known = nearest(name, [each for found in names for each in found if each != name])
    where = looked_at if invocation.options.run is run_get else looked_at[:1]
    invocation.err.print(f"{name} is not set at {', nor at '.join(where)}{known}", markup=False)
    return NOT_SET


# -- who reads it ---------------------------------------------------------------------------------


class ChangedVariable(NamedTuple):
    """A variable whose value at one place is changed, `znodes` being of that place. `nodes` are published.

    The templates of `readers` name it; their containers that are there now are on `hosts`, by service.
    """

    znodes: Znodes
    name: str
    nodes: published.Nodes
    readers: Sequence[Service]
    hosts: Mapping[str, Sequence[str]]

    @property
    def path(self) -> str:
        return places(self.znodes, self.name)[0]

    @property
    def following(self) -> set[str]:
        return {service.name for service in self.readers if services.follows(service.definition)}

    def winners(self, service: str, hosts: Iterable[str]) -> dict[str, list[str]]:
        """The hosts by the place whose value wins there: the one that is changed, or a nearer one.

        Left out are the hosts that don't look at the changed place.
        """
        found: dict[str, list[str]] = {}
        for host in hosts:
            ordered = places(self.znodes._replace(service_name=service, host=host), self.name)
            if self.path in ordered:
                nearer = ordered[: ordered.index(self.path)]
                wins = next((each for each in nearer if _node(self.znodes, each) in self.nodes), self.path)
                found.setdefault(wins, []).append(host)
        return found


def _changed(client: OperatorClient, znodes: Znodes, name: str) -> ChangedVariable:
    nodes = published.nodes(client, znodes)
    readers = [
        service
        for service in published.deployment(nodes).services
        if service.definition and znodes.service_name in ("", service.name)
        if name in services.used_variables(service.definition, service.files)
    ]
    hosts = containers.hosts(client, znodes, [each.name for each in readers])
    return ChangedVariable(znodes, name, nodes, readers, hosts)


def _print_readers(
    invocation: Invocation, changed: ChangedVariable, why: str, but_for: Container[str] = ()
) -> None:
    """Say which containers have read the former value, and warn where no template names the variable."""
    if not changed.readers:
        what = changed.znodes.service_name or f"a service below {changed.znodes.deployment}"
        invocation.err.print(f"note: no template of {what} names {changed.name}", markup=False)
    for service in changed.readers:
        for line in reader_lines(changed, service.name, why) if service.name not in but_for else ():
            print(line)


def reader_lines(changed: ChangedVariable, service: str, why: str) -> Iterator[str]:
    """What the change means to the containers of a service that are there."""
    hosts = changed.hosts.get(service, ())
    found = changed.winners(service, hosts)
    for path, reached in found.items():
        if path == changed.path and service in changed.following:
            yield (
                f"{service} refreshes its files without a restart; other uses of the variable need one: "
                + containers.on_hosts(reached)
            )
        elif path == changed.path:
            yield f"restart {service} {why}: {containers.on_hosts(reached)}"
        else:
            yield f"{service} has a value of its own, which wins ({path}): {containers.on_hosts(reached)}"
    if hosts and not found:
        yield f"no container of {service} is on {changed.znodes.host} now: {containers.on_hosts(hosts)}"


def _warn_of_host(invocation: Invocation, znodes: Znodes) -> None:
    """Warn of a host that has never had a container of the service, where others have: it may be misspelt."""
    owners = status_records.roles(invocation.client, znodes)
    known = {path.split("/")[-2] for path, owner in owners.items() if owner == znodes.service_name}
    known |= set(
        containers.hosts(invocation.client, znodes, [znodes.service_name]).get(znodes.service_name, ())
    )
    known -= {GLOBAL}
    if known and znodes.host not in known:
        where = ", ".join(sorted(known)[: containers.SHOWN_HOSTS])
        near = nearest(znodes.host, known).strip(" ()")
        invocation.err.print(
            f"warning: no container of {znodes.service_name} has ever been on {znodes.host}"
            f" (they have been on {where}{near and f'; {near}'})",
            markup=False,
        )


# -- who needs it ---------------------------------------------------------------------------------


def _needing(invocation: Invocation, changed: ChangedVariable) -> dict[str, str]:
    """What needs the variable, by the service that would not start any more without the value."""
    before = published.deployment(changed.nodes)
    gone = _node(changed.znodes, changed.path)
    after = published.deployment({node: data for node, data in changed.nodes.items() if node != gone})
    found = {}
    for service in changed.readers:
        known = {*changed.hosts.get(service.name, ()), *service.variables.hosts, changed.znodes.host} - {""}
        hosts = changed.winners(service.name, known).get(changed.path, [])
        if known and not hosts:
            continue
        errors = [_errors(invocation, each, service.name, hosts) for each in (before, after)]
        where = [_where(each) for each in errors[1] if each not in errors[0]]
        if where:
            some = "" if known == set(hosts) else f" on {', '.join(sorted(hosts)[: containers.SHOWN_HOSTS])}"
            found[service.name] = f"{service.name}{some} needs {changed.name} ({'; '.join(where)})"
    return found


def _errors(invocation: Invocation, deployment: Deployment, name: str, hosts: Sequence[str]) -> list[Finding]:
    """What ends the containers of a service on these hosts, as `validate` finds it in what is published."""
    service = next(each for each in deployment.services if each.name == name)
    values = {host: service.variables.hosts.get(host, {}) for host in hosts}
    own = service._replace(variables=service.variables._replace(hosts=values))
    nodes = [name, *(f"{name}/{FILES}/{file}" for file in service.files)]
    findings = validate(
        deployment._replace(services=[own], sources={node: DataSource(node) for node in nodes}),
        deployment_id=invocation.settings.deployment_id,
        missing_is_empty=invocation.settings.missing_is_empty,
        given=invocation.given,
    )
    return [each for each in findings if each.severity == ERROR]


def _where(finding: Finding) -> str:
    what = finding.message.partition(" needs the variable ")[0]
    return f"{what} line {finding.line}" if finding.line else what


# -- the command line -----------------------------------------------------------------------------


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variable", metavar="VARIABLE")
    parser.add_argument(
        "--service", metavar="S", help="of this service, by its name or role, not of the whole deployment"
    )
    parser.add_argument("--host", metavar="H", help="of that service on this host only")


def _add_unset(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--force", action="store_true", help="though a service does not start without it")


def _add_get(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    add_format(parser)


def _add_set(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "value", metavar="VALUE", help="the value; - reads it from standard input, or asks for it"
    )


GET = Subcommand(
    description="""\
Print the value of a variable as an agent would find it: that of the host, else that of the service,
else that of the deployment. Where it was found is said on standard error. Status 1: it is not set.
""",
    example="kolla_mesos_ctl get debug --service openstack/keystone/keystone-api --host h1",
    add_arguments=_add_get,
    run=run_get,
)
SET = Subcommand(
    description="""\
Set a variable of the deployment, of a service, or of a service on a host. A container reads its
variables when it starts; a daemon with `on_change` refreshes its files without a restart. What has to be
restarted is printed. With - as VALUE it is read from standard input, so that no secret is in a command
line; on a terminal it is asked for and not shown.
""",
    example="kolla_mesos_ctl set database_password - < password",
    add_arguments=_add_set,
    run=run_set,
)
UNSET = Subcommand(
    description="""\
Remove a variable of the deployment, of a service, or of a service on a host, and say which value holds
now and what has to be restarted. Status 1: it is not set there, or a published service would not start
without it, so that nothing was changed.
""",
    example="kolla_mesos_ctl unset debug --service openstack/keystone/keystone-api",
    add_arguments=_add_unset,
    run=run_unset,
)
