"""`kolla_mesos_ctl get`, `set` and `unset`: one variable of a deployment.

What lives here: the three, and who has to be restarted after a change. A container reads its variables
when it starts, so nothing that runs is touched. No message holds a value.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from kazoo.client import KazooClient

from kolla_mesos_start.definition.forms import bad_segment
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator import connection, published, services
from kolla_mesos_start.operator.directory import MAX_DATA
from kolla_mesos_start.operator.invocation import Invocation, Subcommand, add_format, nearest
from kolla_mesos_start.operator.publish import Publisher
from kolla_mesos_start.tree.znodes import Znodes

STANDARD_INPUT = "-"
NOT_SET = 1  # exit status


# -- the three ------------------------------------------------------------------------------------


def run_get(invocation: Invocation) -> int:
    """Print the value that an agent would find."""
    znodes, name = _place(invocation)
    found = _values(invocation.client, places(znodes, name))
    if not found:
        if invocation.as_json:
            invocation.print_json({"name": name, "value": None, "path": None})
        return _not_set(invocation, znodes, name)
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
    data = _value(invocation.options.value)
    znodes, name = _place(invocation)
    path = places(znodes, name)[0]
    publisher = Publisher(invocation.client, znodes, published.nodes(invocation.client, znodes))
    publisher.write({path[len(znodes.deployment) + 1 :]: data})
    if publisher.counts.by_change["unchanged"]:
        print(f"{path} has this value already")
    else:
        _print_readers(invocation, znodes, name)
    return 0


def run_unset(invocation: Invocation) -> int:
    """Remove one value, and say which one holds now."""
    znodes, name = _place(invocation)
    path, *further = places(znodes, name)
    if path not in _values(invocation.client, [path]):
        return _not_set(invocation, znodes, name)
    connection.remove(invocation.client, path)
    print(f"removed {path}")
    left = _values(invocation.client, further)
    print(f"the value of {next(iter(left))} holds now" if left else f"{name} has no value any more")
    _print_readers(invocation, znodes, name)
    return 0


# -- places and values ----------------------------------------------------------------------------


def places(znodes: Znodes, name: str) -> Sequence[str]:
    """Where a variable may stand for a service on a host, the first one wins; either may be empty."""
    return [path for path in znodes.variable(name) if "//" not in path]


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
        services.require(invocation.client, znodes, service)
    return znodes._replace(service_name=service, host=host), options.variable


def _values(client: KazooClient, paths: Sequence[str]) -> dict[str, bytes]:
    """Those of `paths` where a value stands, in their order."""
    found = connection.read(client, paths)
    return {path: data for path in paths if (data := found[path]) is not None}


def _value(given: str) -> bytes:
    """The value to write. That of standard input is without the newline that ends its last line."""
    data = os.fsencode(given)
    if given == STANDARD_INPUT:
        if sys.stdin is None:
            raise BadUsage("-: standard input is closed, so there is no value to read")
        read = sys.stdin.buffer.read(MAX_DATA + 2)
        data = read[:-1] if read.endswith(b"\n") else read
    if len(data) > MAX_DATA:
        raise BadUsage(f"the value has more than {MAX_DATA} bytes, which ZooKeeper does not take")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadUsage(f"the value is not UTF-8 text (byte {error.start})") from error
    return data


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


def _print_readers(invocation: Invocation, znodes: Znodes, name: str) -> None:
    """Say which containers have read the former value, and warn where no template names the variable."""
    client = invocation.client
    definitions = services.definitions(client, znodes)
    wanted = [znodes.service_name] if znodes.service_name else list(definitions)
    readers = [each for each in wanted if name in _used(client, znodes, each, definitions[each])]
    if not readers:
        what = znodes.service_name or f"a service below {znodes.deployment}"
        invocation.err.print(f"note: no template of {what} names {name}", markup=False)
    for service, hosts in services.containers(client, znodes, readers).items():
        reached = list(
            _reached(client, znodes._replace(service_name=service), places(znodes, name)[0], hosts)
        )
        if reached:
            print(f"restart {service} to use it: {services.on_hosts(reached)}")
        else:
            print(f"{service} has a value of its own, which wins")


def _used(client: KazooClient, znodes: Znodes, service: str, definition: bytes) -> frozenset[str]:
    above = f"{znodes.service(service)}/files"
    names = connection.children(client, [above])[above]
    files = connection.read(client, [f"{above}/{name}" for name in names])
    return services.used_variables(definition, {path: data or b"" for path, data in files.items()})


def _reached(client: KazooClient, znodes: Znodes, path: str, hosts: Sequence[str]) -> Iterator[str]:
    """Those of a service's hosts on which no nearer place than `path` has a value."""
    name = path.rpartition("/")[2]
    for host in hosts:
        ordered = places(znodes._replace(host=host), name)
        if path in ordered and not _values(client, ordered[: ordered.index(path)]):
            yield host


# -- the command line -----------------------------------------------------------------------------


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variable", metavar="VARIABLE")
    parser.add_argument("--service", metavar="S", help="of this service, not of the whole deployment")
    parser.add_argument("--host", metavar="H", help="of that service on this host only")


def _add_get(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    add_format(parser)


def _add_set(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("value", metavar="VALUE", help="the value; - reads it from standard input")


GET = Subcommand(
    name="get",
    summary="print the value of a variable, as an agent would find it",
    description="""\
Print the value of a variable as an agent would find it: that of the host, else that of the service,
else that of the deployment. Where it was found is said on standard error. Status 1: it is not set.
""",
    example="kolla_mesos_ctl get keystone_workers --service openstack/keystone/keystone-api --host web1",
    add_arguments=_add_get,
    run=run_get,
)
SET = Subcommand(
    name="set",
    summary="set a variable of the deployment, of a service, or of a service on a host",
    description="""\
Set a variable of the deployment, of a service, or of a service on a host. A container reads its
variables when it starts: what has to be restarted is printed. With - as VALUE it is read from standard
input, so that no secret is in a command line.
""",
    example="kolla_mesos_ctl set database_password - < password",
    add_arguments=_add_set,
    run=run_set,
)
UNSET = Subcommand(
    name="unset",
    summary="remove a variable of the deployment, of a service, or of a service on a host",
    description="""\
Remove a variable of the deployment, of a service, or of a service on a host, and say which value holds
now and what has to be restarted. Status 1: it is not set there.
""",
    example="kolla_mesos_ctl unset debug --service openstack/keystone/keystone-api",
    add_arguments=_add_place,
    run=run_unset,
)
SUBCOMMANDS = (GET, SET, UNSET)
