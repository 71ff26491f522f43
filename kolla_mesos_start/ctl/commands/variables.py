"""`kolla_mesos_ctl get`, `set` and `unset`: one variable of a deployment. No message holds a value."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Container
from contextlib import suppress
from getpass import getpass

from kolla_mesos_start.ctl.directory.changes import shortened
from kolla_mesos_start.ctl.directory.container_variables import NAME
from kolla_mesos_start.ctl.directory.directory import MAX_DATA
from kolla_mesos_start.ctl.directory.secrecy import HIDDEN, Mask
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand, add_format
from kolla_mesos_start.ctl.live import variables
from kolla_mesos_start.ctl.live.variables import ChangedVariable
from kolla_mesos_start.ctl.text import existing, nearest, printable
from kolla_mesos_start.ctl.zk import publication, published, services
from kolla_mesos_start.ctl.zk.publication import Held, ZnodeChange
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.ctl.zk.publisher import Publisher
from kolla_mesos_start.definition.strings import bad_segment, untidy, value_of
from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage, listed
from kolla_mesos_start.tree.znodes import Znodes

STANDARD_INPUT = "-"
NOT_SET = 1  # exit status


class StillNeeded(AgentError):
    """A service would not start without the value."""

    status = 1


# -- the three commands ---------------------------------------------------------------------------


def run_get(invocation: Invocation) -> int:
    """Print the value that an agent would use; without a name those of all variables, secrets hidden."""
    if invocation.options.variable is None:
        return _list(invocation)
    znodes, name = _place(invocation)
    _check_host(invocation, znodes)
    found = variables.values(invocation.client, places(znodes, name))
    if not found:
        if invocation.as_json:
            invocation.print_json({"name": name, "value": None, "path": None})
        return _not_set(invocation, znodes, name)
    _note_given(invocation, name)
    path, data = next(iter(found.items()))
    invocation.err.print(f"found at {path}")
    with suppress(AccessDenied):  # An agent's identity may read its own variables only.
        readers = [each.name for each in variables.changed(invocation.client, znodes, name).readers]
        invocation.err.print(f"read by {listed(readers) if readers else 'no published service'}")
    if invocation.as_json:
        invocation.print_json({"name": name, "value": data.decode(errors="replace"), "path": path})
    else:
        _write(data)
    return 0


def _write(value: bytes) -> None:
    """Print the value, unchanged unless a terminal would interpret it: a locale may lack characters."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        value = printable(value.decode(errors="backslashreplace")).encode(errors="backslashreplace")
    sys.stdout.buffer.write(value + b"\n")


def _list(invocation: Invocation) -> int:
    """Print all variables, each with its value and with the place where an agent finds it."""
    znodes, client = _znodes(invocation), invocation.client
    _check_host(invocation, znodes)
    found = variables.every_value(client, znodes)
    nodes = {variables.node(znodes, path): data for path, data in found.items()}
    mask = Mask(nodes, declared=client.restricted)
    rows = {each.rpartition("/")[2]: (mask.value(each, data), each) for each, data in nodes.items()}
    rows.update(dict.fromkeys(invocation.given, (HIDDEN, NAME)))  # They may all be secrets.
    if invocation.as_json:
        listed = [{"name": name, "value": rows[name][0], "origin": rows[name][1]} for name in sorted(rows)]
        invocation.print_json(listed)
        return 0
    width = max(map(len, rows), default=0)
    for name in sorted(rows):
        value, origin = rows[name]
        invocation.out.out(f"{name:{width}}  {shortened(value or '', repr)}  {origin}")
    return 0


def run_set(invocation: Invocation) -> int:
    """Write one value, and print which containers need a restart to use it."""
    data = _value(invocation.options)
    znodes, name = _place(invocation)
    _note_given(invocation, name)
    if what := untidy(data.decode()):
        invocation.err.print(f"warning: {name} {what}, which becomes a part of what uses it")
    path, client = places(znodes, name)[0], invocation.client
    with publication.locked(client, znodes, action="set") as lock:
        publisher = Publisher(client, znodes, published.nodes(client, znodes), lock)
        publisher.write({variables.node(znodes, path): data})
    if publisher.counts.by_change["unchanged"]:
        print(f"{path} already has this value{'' if data else ': it is empty'}")
        return 0
    if not data:
        print(f"{name} is empty now: templates get an empty text; `unset` would remove the value")
    _print_readers(invocation, variables.changed(client, znodes, name), "to use it")
    warning = variables.unknown_host(client, znodes) if znodes.host else ""
    if warning:
        invocation.err.print(warning)
    return 0


def run_unset(invocation: Invocation) -> int:
    """Remove one value, and print which one is used now. StillNeeded if a service could not start then."""
    znodes, name = _place(invocation)
    with publication.locked(invocation.client, znodes, action="unset") as lock:
        return _unset(invocation, lock, znodes, name)


def _unset(invocation: Invocation, lock: Held, znodes: Znodes, name: str) -> int:
    client = invocation.client
    path, *further = places(znodes, name)
    if path not in variables.values(client, [path]):
        return _not_set(invocation, znodes, name)
    changed = variables.changed(client, znodes, name)
    needing = variables.needing(invocation, changed)
    if needing and not invocation.options.force:
        raise StillNeeded(
            f"{'; '.join(needing.values())}: without a value the next start of its containers fails;"
            " set another value instead; nothing was changed"
        )
    lock.write([ZnodeChange(path, None)], {path: b""})
    lock.changes.append(variables.node(znodes, path))
    print(f"removed {path}")
    left = next(iter(variables.values(client, further)), None)
    where = znodes.service_name or "the whole deployment"
    where += f" on {znodes.host}" if znodes.host else ""
    print(f"the value of {left} is used now" if left else f"{name} no longer has a value for {where}")
    for needs in needing.values():
        print(f"{needs} and has no value now: the next start of its containers fails; set it again first")
    _print_readers(invocation, changed, "to use it" if left else "to do without it", needing)
    return 0


# -- places and values ----------------------------------------------------------------------------


def _place(invocation: Invocation) -> tuple[Znodes, str]:
    """The place and the variable of the command line."""
    _check("VARIABLE", invocation.options.variable)
    return _znodes(invocation), invocation.options.variable


def _znodes(invocation: Invocation) -> Znodes:
    """The place of the command line; the service and the host may be empty."""
    service, host = invocation.options.service or "", invocation.options.host or ""
    if host and not service:
        raise BadUsage("--host: a value for one host belongs to a service; give --service too")
    _check("--host", host or "any")
    znodes = invocation.require_deployment()
    if service:
        service = services.find(invocation.client, znodes, service)
    return znodes._replace(service_name=service, host=host)


def _check_host(invocation: Invocation, znodes: Znodes) -> None:
    if znodes.host:
        variables.check_host(invocation.client, znodes)


def _check(what: str, segment: str) -> None:
    bad = bad_segment(segment)
    if bad:
        raise BadUsage(f"{what}: {bad}, found {segment!r}")


def _value(options: argparse.Namespace) -> bytes:
    """The value to write."""
    given = options.value
    data = _from_standard_input(options.variable) if given == STANDARD_INPUT else os.fsencode(given)
    if len(data) > MAX_DATA:
        raise BadUsage(f"the value is longer than ZooKeeper allows ({MAX_DATA} bytes)")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadUsage(f"the value is not UTF-8 text (byte {error.start})") from error
    return data


def _from_standard_input(name: str) -> bytes:
    """The typed value, or the value in standard input."""
    if sys.stdin is None:
        raise BadUsage("-: standard input is closed, so there is no value to read")
    if sys.stdin.isatty():
        return os.fsencode(_typed(name))
    return value_of(sys.stdin.buffer.read(MAX_DATA + 2))


def _typed(name: str) -> str:
    """Ask twice on the terminal, which does not show what is typed."""
    try:
        value = getpass(f"value of {name} (not shown): ")
        if getpass("the same again: ") != value:
            raise BadUsage("the two values differ; nothing was changed")
    except EOFError as error:
        raise BadUsage("no value was typed; nothing was changed") from error
    return value


def _note_given(invocation: Invocation, name: str) -> None:
    if name in invocation.given:
        invocation.err.print(f"note: {name} is in {NAME}; containers use that value")


def _not_set(invocation: Invocation, znodes: Znodes, name: str) -> int:
    """Print where the variable was looked for, and the names of those that are set there."""
    looked_at = places(znodes, name)
    where = looked_at if invocation.options.run is run_get else looked_at[:1]
    above = [path.rpartition("/")[0] for path in where]
    found = [path.rpartition("/") for path in variables.every_value(invocation.client, znodes)]
    known = existing(name, [each for parent, _, each in found if parent in above])
    invocation.err.print(f"{name} is not set at {', nor at '.join(where)}{known}")
    return NOT_SET


def _print_readers(
    invocation: Invocation, changed: ChangedVariable, why: str, without: Container[str] = ()
) -> None:
    """Print which containers have read the old value; warn if no template uses the variable."""
    if not changed.readers:
        what = changed.znodes.service_name or f"a service below {changed.znodes.deployment}"
        remedy = "" if invocation.options.run is run_unset else f"; {_unset_command(changed)} removes it"
        note = f"note: no template of {what} uses {changed.name}{nearest(changed.name, changed.used)}{remedy}"
        invocation.err.print(note)
    for service in changed.readers:
        for line in changed.effects(service, why) if service.name not in without else ():
            print(line)


def _unset_command(changed: ChangedVariable) -> str:
    service, host = changed.znodes.service_name, changed.znodes.host
    words = [changed.name, *(("--service", service) if service else ()), *(("--host", host) if host else ())]
    return f"`kolla_mesos_ctl unset {shlex.join(words)}`"


# -- the command line -----------------------------------------------------------------------------


def _add_place(parser: argparse.ArgumentParser, *, may_be_all: bool = False) -> None:
    if may_be_all:
        parser.add_argument(
            "variable", metavar="VARIABLE", nargs="?", help="by default all variables are listed"
        )
    else:
        parser.add_argument("variable", metavar="VARIABLE")
    parser.add_argument(
        "--service", metavar="S", help="a service, by its name or role; by default the whole deployment"
    )
    parser.add_argument("--host", metavar="H", help="only for that service on this host")


def _add_unset(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--force", action="store_true", help="even if a service can't start without it")


def _add_get(parser: argparse.ArgumentParser) -> None:
    _add_place(parser, may_be_all=True)
    add_format(parser)


def _add_set(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "value", metavar="VALUE", help="the value; - reads it from standard input, or asks for it"
    )


GET = Subcommand(
    description="""\
Print the value of a variable as an agent would find it: the value for the host, else for the service, else
for the deployment. Its place is printed to standard error. Status 1: it is not set.

Without VARIABLE, list all variables that an agent would find there, each with its value and its place below
the deployment. Values are hidden if their name looks like a secret, if acl.yml restricts the variable, or if
they are in KOLLA_VARIABLES_DIR.
""",
    example="kolla_mesos_ctl get debug --service openstack/keystone/keystone-api --host h1",
    add_arguments=_add_get,
    run=run_get,
)
SET = Subcommand(
    description="""\
Set a variable of the deployment, of a service, or of a service on a host. A container reads its
variables when it starts; a daemon with `on_change` refreshes its files without a restart. The containers
that need a restart are listed. With - as VALUE the value is read from standard input, which keeps secrets out
of command lines; on a terminal it is asked for and not shown.
""",
    example="kolla_mesos_ctl set database_password - < password",
    add_arguments=_add_set,
    run=run_set,
)
UNSET = Subcommand(
    description="""\
Remove a variable of the deployment, of a service, or of a service on a host. The value that is used now and
the containers that need a restart are printed. Status 1: it is not set there, or a published service could
not start without it, so nothing was changed.
""",
    example="kolla_mesos_ctl unset debug --service openstack/keystone/keystone-api",
    add_arguments=_add_unset,
    run=run_unset,
)
