"""`kolla_mesos_ctl get`, `set`, `unset` and `restart`: variables of a deployment. No message holds a value.

Agents read variables when they start. Later they read them again only for the files of a daemon that has
`on_change`.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from getpass import getpass
from typing import NamedTuple

from kolla_mesos_start.ctl.directory.changes import shortened
from kolla_mesos_start.ctl.directory.directory import FILES, MAX_DATA, VARIABLES, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import ERROR, DataSource, Finding
from kolla_mesos_start.ctl.directory.secrecy import HIDDEN, Mask
from kolla_mesos_start.ctl.directory.source import VARIABLES_DIR
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import logs
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.live.model import LiveService
from kolla_mesos_start.ctl.live.rollouts import why_keep
from kolla_mesos_start.ctl.subcommand import FORMAT, argument, subcommand
from kolla_mesos_start.ctl.text import NotThere, escaped, existing, few, nearest
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.zk import connection, containers, publication, published, services, status_records
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.containers import BEGUN, SHOWN_HOSTS, on_hosts
from kolla_mesos_start.ctl.zk.publication import Publisher, ZnodeChange
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.definition.strings import (
    GLOBAL,
    RESTARTED,
    bad_segment,
    is_encrypted,
    untidy,
    value_of,
)
from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage, listed
from kolla_mesos_start.tree.znodes import Znodes

STANDARD_INPUT = "-"
FAILED = 1  # exit status: not set, or some must be restarted by their launcher
SERVICE = argument(
    "--service", metavar="S", help="a service, by its name or role; by default the whole deployment"
)
HOST = argument("--host", metavar="H", help="only for that service on this host")
PLACE = (argument("variable", metavar="VARIABLE"), SERVICE, HOST)


class StillNeeded(AgentError):
    """A service would not start without the value."""

    status = 1


# -- the commands ---------------------------------------------------------------------------------


@subcommand(
    "kolla_mesos_ctl get debug --service openstack/keystone/keystone-api --host h1",
    argument("variable", metavar="VARIABLE", nargs="?", help="by default all variables are listed"),
    SERVICE,
    HOST,
    FORMAT,
)
def get(invocation: Invocation) -> int:
    """Print the value of a variable as an agent would find it: the value for the host, else for the
    service, else for the deployment. Its place is printed to standard error. Status 1: it is not set.

    Without VARIABLE, list all variables that an agent would find there, each with its value and its place
    below the deployment. Values are hidden if their name looks like a secret, if acl.yml restricts the
    variable, or if they are in KOLLA_VARIABLES_DIR.
    """
    name, znodes = invocation.options.variable, _place(invocation)
    client = invocation.client
    if znodes.host:
        _check_host(client, znodes)
    if name is None:
        return _list(invocation, znodes)
    looked_at = places(znodes, name)
    found = _values(client, looked_at)
    if not found:
        if invocation.as_json:
            invocation.print_json({"name": name, "value": None, "path": None})
        return _not_set(invocation, znodes, looked_at)
    _note_given(invocation)
    path, data = next(iter(found.items()))
    invocation.err.print(f"found at {path}")
    with suppress(AccessDenied):  # An agent's identity may read its own variables only.
        is_shared = path == looked_at[-1]  # Then other services read this value, too.
        where = znodes._replace(service_name="", host="") if is_shared else znodes
        readers = [each.name for each in _changed(client, where, name).readers]
        invocation.err.print(f"read by {listed(readers) if readers else 'no published service'}")
    if invocation.as_json:
        invocation.print_json({"name": name, "value": data.decode(errors="replace"), "path": path})
        return 0
    sys.stdout.flush()
    # Unchanged, unless a terminal would interpret it: a locale may lack characters.
    if sys.stdout.isatty():
        data = escaped(data.decode(errors="backslashreplace")).encode(errors="backslashreplace")
    sys.stdout.buffer.write(data + b"\n")
    return 0


def _list(invocation: Invocation, znodes: Znodes) -> int:
    """Print all variables, each with its value and with the place where an agent finds it."""
    nodes = {_node(znodes, path): data for path, data in _every_value(invocation.client, znodes).items()}
    mask = Mask(nodes, declared=invocation.client.read_restricted())
    rows = {each.rpartition("/")[2]: (mask.value(each, data), each) for each, data in nodes.items()}
    rows.update(dict.fromkeys(invocation.given, (HIDDEN, VARIABLES_DIR)))  # They may all be secrets.
    if invocation.as_json:
        invocation.print_json(
            [{"name": name, "value": rows[name][0], "origin": rows[name][1]} for name in sorted(rows)]
        )
        return 0
    width = max(map(len, rows), default=0)
    for name in sorted(rows):
        value, origin = rows[name]
        invocation.out.out(f"{name:{width}}  {shortened(value or '', repr)}  {origin}")
    return 0


@subcommand(
    "kolla_mesos_ctl set database_password - < password",
    *PLACE,
    argument("value", metavar="VALUE", help="the value; - reads it from standard input, or asks for it"),
)
def set_(invocation: Invocation) -> int:
    """Set a variable of the deployment, of a service, or of a service on a host. A container reads its
    variables when it starts; a daemon with `on_change` refreshes its files without a restart. The
    containers that need a restart are listed. With - as VALUE the value is read from standard input, which
    keeps secrets out of command lines; on a terminal it is asked for and not shown.
    """
    name, data, znodes = invocation.options.variable, _value(invocation), _place(invocation)
    client = invocation.client
    _note_given(invocation)
    if what := untidy(data.decode()):
        invocation.err.print(f"warning: {name} {what}, which becomes a part of what uses it")
    path = places(znodes, name)[0]
    with publication.locked(client, znodes, action="set") as lock:
        publisher = Publisher(client, znodes, published.nodes(client, znodes), lock)
        publisher.write({_node(znodes, path): data})
    if publisher.counts["unchanged"]:
        print(f"{path} already has this value{'' if data else ': it is empty'}")
        return 0
    if not data:
        print(f"{name} is empty now: templates get an empty text; `unset` would remove the value")
    changed = _changed(client, znodes, name)
    where = {"--service": znodes.service_name, "--host": znodes.host}
    command = shlex.join([name, *(word for option in where.items() if option[1] for word in option)])
    _print_readers(invocation, changed, "to use it", f"; `kolla_mesos_ctl unset {command}` removes it")
    if znodes.host:
        _warn_of_unknown_host(invocation, znodes)
    return 0


@subcommand(
    "kolla_mesos_ctl unset debug --service openstack/keystone/keystone-api",
    *PLACE,
    argument("--force", action="store_true", help="even if a service can't start without it"),
)
def unset(invocation: Invocation) -> int:
    """Remove a variable of the deployment, of a service, or of a service on a host. The value that is used
    now and the containers that need a restart are printed. Status 1: it is not set there, or a published
    service could not start without it, so nothing was changed.
    """
    name, znodes = invocation.options.variable, _place(invocation)
    client = invocation.client
    path, *further = places(znodes, name)
    with publication.locked(client, znodes, action="unset") as lock:
        if path not in _values(client, [path]):
            return _not_set(invocation, znodes, [path])
        changed = _changed(client, znodes, name)
        needing = _needing(invocation, changed)
        if needing and not invocation.options.force:
            raise StillNeeded(
                f"{'; '.join(needing.values())}: without a value the next start of its containers fails;"
                " set another value instead; nothing was changed"
            )
        gone, above = [path], path.rpartition("/")[0]
        if znodes.host and len(connection.children(client, [above])[above]) == 1:
            gone.append(above)  # Without a value it would look like a variable.
        lock.write([ZnodeChange(each, None) for each in gone], dict.fromkeys(gone, b""))
        lock.changes.append(_node(znodes, path))
        print(f"removed {path}")
        left = next(iter(_values(client, further)), None)
        where = znodes.service_name or "the whole deployment"
        where += f" on {znodes.host}" if znodes.host else ""
        print(f"the value of {left} is used now" if left else f"{name} no longer has a value for {where}")
        for needs in needing.values():
            print(f"{needs} and has no value now: the next start of its containers fails; set it again first")
        _print_readers(invocation, changed, "to use it" if left else "to do without it", without=needing)
    return 0


@subcommand(
    "kolla_mesos_ctl restart keystone-api --deployment site",
    argument("service", metavar="SERVICE", help="a service, by its name or role"),
    argument("--host", metavar="H", help="only on this host"),
)
def restart(invocation: Invocation) -> int:
    """Restart the daemons of a service without their containers: set the variable `restarted` for each
    host, which a daemon with `on_change: {restart: true}` follows. Each agent renders the files again, and
    stops and starts its daemon, at most `width` at a time, as after a publication.

    For all other containers the launcher's command is printed, if KOLLA_LOGS says which launcher it is. It
    is not run: a container says it, and must not choose what is restarted. Status 1: there are such
    containers.
    """
    service, host = (
        named(mirror(invocation).deployment(), invocation.options.service),
        invocation.options.host,
    )
    if service.is_task:
        raise BadUsage(f"{service.name} has no daemon; `rerun` is for its commands")
    wanted = [each for each in service.live if host in (None, each.host)]
    if not wanted:
        where = f" on {host}{existing(host, {each.host for each in service.live})}" if host else ""
        raise NotThere(f"no container of {service.name} exists{where}")
    obstacles = [(each, _obstacle(service, each)) for each in wanted]
    hosts = sorted(each.host for each, obstacle in obstacles if not obstacle)
    if hosts:
        client, znodes, when = invocation.client, invocation.znodes, str(time.time()).encode()
        with publication.locked(client, znodes, action="restart") as lock:
            publisher = Publisher(client, znodes, published.nodes(client, znodes), lock)
            publisher.write({f"{service.name}/{VARIABLES}/{each}/{RESTARTED}": when for each in hosts})
        daemon = service.graph and service.graph.daemon
        width = f", at most {daemon.width} at a time" if daemon and daemon.width else ""
        print(f"{service.daemon} restarts on {few(hosts)}{width}")
        print(f"to wait until all are ready again: kolla_mesos_ctl wait {service.role}")
    others = [(each, obstacle) for each, obstacle in obstacles if obstacle]
    for each, obstacle in others:
        remedy = why_keep(service, each, time.time()) or logs.restart(each.host, each.logs)
        print(f"{service.name} on {each.host} does not restart: {obstacle}; {remedy}")
    return FAILED if others else 0


def _obstacle(service: LiveService, container: containers.Container) -> str:
    """Why the container's own agent can't restart its daemon; empty if it can."""
    on_change = service.graph and service.graph.daemon and service.graph.daemon.on_change
    if container.stage not in BEGUN:
        return "its daemon is not started"
    if not (on_change and on_change.kind == "restart"):
        return "its definition has no on_change: {restart: true}"
    if not container.follows:
        return "its files are not refreshed (KOLLA_CONFIG_STRATEGY=COPY_ONCE, or started without on_change)"
    return "it runs something older that only a new start replaces" if container.needs_restart else ""


# -- places and values ----------------------------------------------------------------------------


def _place(invocation: Invocation) -> Znodes:
    """The place of the command line; the service and the host may be empty."""
    options = invocation.options
    service, host = options.service or "", options.host or ""
    _check("VARIABLE", "any" if options.variable is None else options.variable)
    if host and not service:
        raise BadUsage("--host: a value for one host belongs to a service; give --service too")
    _check("--host", host or "any")
    znodes = invocation.require_deployment()
    if service:
        znodes = znodes._replace(service_name=services.find(invocation.client, znodes, service), host=host)
        _check_kind(invocation.client, znodes, options.variable)
    return znodes


def _check_kind(client: OperatorClient, znodes: Znodes, name: str | None) -> None:
    """BadUsage for a host in place of a variable, or the reverse: both have znodes at the same place."""
    one = znodes.host or name
    path = f"{znodes.definition}/{VARIABLES}/{one}"
    znode = client.read([path])[path] if one else None
    if znode is None:
        return
    if znode.data and znodes.host:
        raise BadUsage(f"--host: {one!r} is no host, but a variable of {znodes.service_name} ({path})")
    if znode.stat.numChildren and not (znode.data or znodes.host):
        raise BadUsage(
            f"{one!r} is no variable, but a host with values of {znodes.service_name} ({path}): give VARIABLE"
            f" and --host {one}"
        )


def _check(what: str, segment: str) -> None:
    bad = bad_segment(segment)
    if bad:
        raise BadUsage(f"{what}: {bad}, found {segment!r}")


def _value(invocation: Invocation) -> bytes:
    """The value to write."""
    given, name = invocation.options.value, invocation.options.variable
    if given != STANDARD_INPUT:
        data = os.fsencode(given)
    elif sys.stdin is None:
        raise BadUsage("-: standard input is closed, so there is no value to read")
    elif sys.stdin.isatty():
        data = os.fsencode(_typed(name))
    else:
        data = value_of(sys.stdin.buffer.read(MAX_DATA + 2))
    if len(data) > MAX_DATA:
        raise BadUsage(f"the value is longer than ZooKeeper allows ({MAX_DATA} bytes)")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadUsage(f"the value is not UTF-8 text (byte {error.start})") from error
    if is_encrypted(data):
        raise BadUsage("the value is still encrypted by ansible-vault: give the decrypted one")
    return data


def _typed(name: str) -> str:
    """Ask twice on the terminal, which does not show what is typed."""
    try:
        value = getpass(f"value of {name} (not shown): ")
        if getpass("the same again: ") != value:
            raise BadUsage("the two values differ; nothing was changed")
    except EOFError as error:
        raise BadUsage("no value was typed; nothing was changed") from error
    return value


def _values(client: OperatorClient, paths: Sequence[str]) -> dict[str, bytes]:
    """The existing values at these paths, in the same order."""
    found = connection.read(client, paths)
    return {path: data for path in paths if (data := found[path]) is not None}


def _every_value(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """The value of each variable that an agent would find at this place, by its path, sorted by name."""
    above = [path.rpartition("/")[0] for path in places(znodes, "any")]
    names = connection.children(client, above)
    found = client.read([f"{parent}/{name}" for parent in above for name in names[parent]])
    nearest: dict[str, tuple[str, bytes]] = {}
    for path, znode in found.items():
        # A parent of a host's values is a value only if it has data.
        if znode and (znode.data or not znode.stat.numChildren):
            nearest.setdefault(path.rpartition("/")[2], (path, znode.data))
    return dict(nearest[name] for name in sorted(nearest))


def _node(znodes: Znodes, path: str) -> str:
    """The path below the deployment."""
    return path[len(znodes.deployment) + 1 :]


# -- what is printed besides ----------------------------------------------------------------------


def _note_given(invocation: Invocation) -> None:
    name = invocation.options.variable
    if name in invocation.given:
        invocation.err.print(f"note: {name} is in {VARIABLES_DIR}; containers use that value")


def _not_set(invocation: Invocation, znodes: Znodes, looked_at: Sequence[str]) -> int:
    """Print where the variable was looked for, and the names of those that are set there."""
    name, above = invocation.options.variable, [path.rpartition("/")[0] for path in looked_at]
    found = [path.rpartition("/") for path in _every_value(invocation.client, znodes)]
    known = existing(name, [each for parent, _, each in found if parent in above])
    invocation.err.print(f"{name} is not set at {', nor at '.join(looked_at)}{known}")
    return FAILED


def _print_readers(
    invocation: Invocation,
    changed: ChangedVariable,
    why: str,
    remedy: str = "",
    without: Container[str] = (),
) -> None:
    """Print which containers have read the old value; warn if no template uses the variable."""
    if not changed.readers:
        what = changed.znodes.service_name or f"a service below {changed.znodes.deployment}"
        near = nearest(changed.name, changed.used)
        invocation.err.print(f"note: no template of {what} uses {changed.name}{near}{remedy}")
    for service in changed.readers:
        for line in changed.effects(service, why) if service.name not in without else ():
            print(line)


# -- hosts ----------------------------------------------------------------------------------------


def _hosts_of(client: OperatorClient, znodes: Znodes) -> tuple[set[str], set[str]]:
    """The hosts where the service has ever had a container; and those where any service has."""
    name = znodes.service_name
    owners = status_records.roles(client, znodes)
    present = set(containers.hosts(client, znodes, [name]).get(name, ()))
    own = {path.split("/")[-2] for path, owner in owners.items() if owner == name} | present
    return own - {GLOBAL}, {path.split("/")[-2] for path in owners} - {GLOBAL} | present


def _check_host(client: OperatorClient, znodes: Znodes) -> None:
    """NotThere if nothing is recorded of this host. Before anything is recorded every host is possible."""
    above = f"{znodes.definition}/{VARIABLES}"
    names = connection.children(client, [above])[above]
    found = client.read([f"{above}/{name}" for name in names])
    with_values = {path.rpartition("/")[2] for path, each in found.items() if each and each.stat.numChildren}
    known = _hosts_of(client, znodes)[1] | with_values
    if known and znodes.host not in known:
        raise NotThere(f"nothing is recorded of the host {znodes.host!r}{existing(znodes.host, known)}")


def _warn_of_unknown_host(invocation: Invocation, znodes: Znodes) -> None:
    """Warn if the service has had containers, but never on this host: its name may be misspelt."""
    known, _ = _hosts_of(invocation.client, znodes)
    if known and znodes.host not in known:
        where, near = ", ".join(sorted(known)[:SHOWN_HOSTS]), nearest(znodes.host, known).strip(" ()")
        invocation.err.print(
            f"warning: no container of {znodes.service_name} has ever been on {znodes.host}"
            f" (they have been on {where}{near and f'; {near}'})"
        )


# -- what a change means --------------------------------------------------------------------------


class ChangedVariable(NamedTuple):
    """A variable that is changed at the place of `znodes`. `nodes` are the published values.

    The templates of `readers` use it; `hosts` has the hosts of their present containers by service. `used`
    are all variables that templates use there.
    """

    znodes: Znodes
    name: str
    nodes: published.Nodes
    readers: Sequence[Service]
    hosts: Mapping[str, Sequence[str]]
    used: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        return places(self.znodes, self.name)[0]

    def by_winner(self, service: str, hosts: Iterable[str]) -> dict[str, list[str]]:
        """The hosts by the place whose value they use: the changed one, or one that has precedence.

        Hosts that do not look at the changed place are left out.
        """
        found: dict[str, list[str]] = {}
        for host in hosts:
            ordered = places(self.znodes._replace(service_name=service, host=host), self.name)
            if self.path in ordered:
                nearer = ordered[: ordered.index(self.path)]
                wins = next((each for each in nearer if _node(self.znodes, each) in self.nodes), self.path)
                found.setdefault(wins, []).append(host)
        return found

    def effects(self, service: Service, why: str) -> Iterator[str]:
        """Lines that say what the change means to the present containers of a service."""
        name, hosts = service.name, self.hosts.get(service.name, ())
        found = self.by_winner(name, hosts)
        for path, reached in found.items():
            where = on_hosts(reached)
            if path != self.path:
                yield f"{name} has its own value at {path}, which takes precedence: {where}"
            elif services.follows(service.definition):
                yield (
                    f"{name} refreshes its files without a restart;"
                    f" other uses of the variable need one: {where}"
                )
            else:
                yield f"restart {name} {why}: {where}"
        if hosts and not found:
            yield f"no container of {name} is on {self.znodes.host} now: {on_hosts(hosts)}"


def _changed(client: OperatorClient, znodes: Znodes, name: str) -> ChangedVariable:
    """Read the services that use a variable at this place."""
    nodes = published.nodes(client, znodes)
    uses = [
        (service, services.used_variables(service.definition, service.files))
        for service in published.deployment(nodes).services
        if service.definition and znodes.service_name in ("", service.name)
    ]
    readers = [service for service, names in uses if name in names]
    used = frozenset().union(*(names for _, names in uses))
    hosts = containers.hosts(client, znodes, [each.name for each in readers])
    return ChangedVariable(znodes, name, nodes, readers, hosts, used)


# -- which services need the value --------------------------------------------------------------------


def _needing(invocation: Invocation, change: ChangedVariable) -> dict[str, str]:
    """Why services could not start without the changed value, by their names."""
    gone = _node(change.znodes, change.path)
    before = published.deployment(change.nodes)
    after = published.deployment({each: data for each, data in change.nodes.items() if each != gone})
    found = {}
    for service in change.readers:
        known = {*change.hosts.get(service.name, ()), *service.variables.hosts, change.znodes.host} - {""}
        hosts = change.by_winner(service.name, known).get(change.path, [])
        if known and not hosts:
            continue
        errors, without = (_errors(invocation, each, service.name, hosts) for each in (before, after))
        where = [_where(each, service.name) for each in without if each not in errors]
        if where:
            some = "" if known == set(hosts) else f" on {', '.join(sorted(hosts)[:SHOWN_HOSTS])}"
            found[service.name] = f"{service.name}{some} needs {change.name} ({'; '.join(where)})"
    return found


def _errors(invocation: Invocation, deployment: Deployment, name: str, hosts: Sequence[str]) -> list[Finding]:
    """The errors of a published service on these hosts."""
    service = next(each for each in deployment.services if each.name == name)
    own = {host: service.variables.hosts.get(host, {}) for host in hosts}
    service = service._replace(variables=service.variables._replace(hosts=own))
    nodes = [name, *(f"{name}/{FILES}/{file}" for file in service.files)]
    findings = validate(
        deployment._replace(services=[service], sources={each: DataSource(each) for each in nodes}),
        deployment_id=invocation.settings.deployment_id,
        missing_is_empty=invocation.settings.missing_is_empty,
        given=invocation.given,
    )
    return [each for each in findings if each.severity == ERROR]


def _where(finding: Finding, service: str) -> str:
    """The template with the error: the label of a text in the definition, or a file."""
    template = finding.label or f"file {finding.file.removeprefix(f'{service}/{FILES}/')}"
    return f"{template} line {finding.line}" if finding.line else template
