"""A published one-time command, and changes to its records.

What belongs here: finding the command, and changing its record under its lock. The change is one transaction,
which fails if a container has claimed the command or its definition has changed. The commands `rerun` and
`adopt` decide what is changed; the agent's `tree.states` says what a claim, a mark and a token are.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Callable, NamedTuple

from kolla_mesos_start.ctl.directory.directory import VARIABLES
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.text import NotThere, nearest, operator
from kolla_mesos_start.ctl.validate.rules import build_graph
from kolla_mesos_start.ctl.zk import connection, services
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.keys import early_texts
from kolla_mesos_start.definition.model import Command
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL, bad_path, bad_segment
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage
from kolla_mesos_start.render.context import variable_names
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import Detail, printable
from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.view import View, Znode, children_of, data_of
from kolla_mesos_start.zookeeper.wire import NoNodeError

SHOWN = 10  # one-time commands, in a message
MAX_SHOWN = 200  # bytes of what others have written, in a message
TRIES = 50  # A try fails only if a container has written between two requests.


class CommandRuns(AgentError):
    """A container runs the command, or is going to."""

    status = 1


class OneTime(NamedTuple):
    """A one-time command. `znodes` are those of its service and, if it runs once on each host, of a host.

    `definition` is the mzxid of the definition, `versions` are those of all znodes that the command is made
    from.
    """

    command: Command
    znodes: Znodes
    definition: int
    versions: Mapping[str, int]

    @property
    def at(self) -> CommandZnodes:
        return states.once_znodes(self.command, self.znodes)

    @property
    def what(self) -> str:
        """Its name, for a message."""
        host = f" on {self.znodes.host}" if self.command.run_once == LOCAL else ""
        generation = f" (generation {self.command.generation})" if self.command.generation else ""
        return f"{self.command.path}{host}{generation}"


class Record(NamedTuple):
    """What is recorded of a one-time command; `znodes` are all that were read, by their paths."""

    is_done: bool
    detail: Detail
    token: int
    """the largest one so far"""
    znodes: Mapping[str, Znode | None]


# -- finding --------------------------------------------------------------------------------------


def find(invocation: Invocation, path: str, host: str) -> OneTime:
    """The published one-time command `path` (`role/command`); NotThere or BadUsage if there is none."""
    if bad_path(path):
        raise BadUsage(f"{path!r}: expected ROLE/COMMAND{_candidates(invocation, path)}")
    if host and (bad_segment(host) or host == GLOBAL):
        raise BadUsage(f"--host: expected the name of a host, found {host!r}")
    znodes = invocation.require_deployment()
    service = services.find(invocation.client, znodes, path.partition("/")[0])
    found = _read(invocation, znodes._replace(service_name=service, host=host), path)
    if found.command.run_once == GLOBAL and host:  # Its generation is then the same for all hosts.
        found = _read(invocation, found.znodes._replace(host=""), path)
    elif found.command.run_once == LOCAL and not host:
        raise BadUsage(f"{path} runs once on each host: give --host")
    _check_owner(invocation.client, found.znodes)
    return found


def _candidates(invocation: Invocation, given: str) -> str:
    """The one-time commands of that role or name, or else all of the deployment, to end a message."""
    found = services.definitions(invocation.client, invocation.require_deployment()).items()
    known = [each for name, data in found for each in services.one_time_commands(name, data)]
    meant = [each for each in known if given in each.split("/")] or known
    more = f" and {len(meant) - SHOWN} more" if len(meant) > SHOWN else ""
    return f": {', '.join(meant[:SHOWN])}{more}" if meant else ", and no service has a one-time command"


def _read(invocation: Invocation, znodes: Znodes, path: str) -> OneTime:
    client = invocation.client
    definition = client.read([znodes.definition])[znodes.definition]
    if definition is None:
        raise NotThere(f"{znodes.definition} is not published any more")
    try:
        document = load(definition.data)
    except BadDefinition as error:
        raise BadDefinition([f"{znodes.definition}: {issue}" for issue in error.issues]) from error
    found = _variables(client, znodes, variable_names(early_texts(document)))
    values = {name: znode.data.decode(errors="replace") for name, (_, znode) in found.items()}
    values.update(invocation.given)
    graph = build_graph(document, znodes, values, missing_is_empty=invocation.settings.missing_is_empty)
    if graph is None:
        raise BadDefinition([f"{znodes.definition}: a template in it can be rendered by an agent only"])
    commands = {command.path: command for command in graph.steps}
    if path not in commands:
        raise NotThere(f"{znodes.service_name} has no command {path!r}{nearest(path, commands)}")
    if commands[path].run_once is None:
        raise BadUsage(f"{path} is no one-time command: it runs at each start of its container")
    versions = {place: znode.stat.version for place, znode in found.values()}
    versions[znodes.definition] = definition.stat.version
    return OneTime(commands[path], znodes, definition.stat.mzxid, versions)


def _variables(
    client: OperatorClient, znodes: Znodes, names: Collection[str]
) -> dict[str, tuple[str, Znode]]:
    """The places and the values of variables.

    Without a host, a variable that only hosts have gets the value of the first one, as in `status`.
    """
    wanted = {place: name for name in names for place in places(znodes, name)}
    found = dict(client.read(wanted))
    missing = set(names) - {wanted[place] for place, znode in found.items() if znode}
    if missing and not znodes.host:
        above = f"{znodes.definition}/{VARIABLES}"
        hosts = connection.children(client, [above])[above]
        more = {f"{above}/{host}/{name}": name for host in hosts for name in missing}
        wanted.update(more)
        found.update(client.read(more))
    used: dict[str, tuple[str, Znode]] = {}
    for place, name in wanted.items():  # Of several values the first one is used.
        if znode := found[place]:
            used.setdefault(name, (place, znode))
    return used


def _check_owner(client: OperatorClient, znodes: Znodes) -> None:
    """Raise BadDefinition if another service has claimed the role: the record is that of its command."""
    path = znodes.owner(GLOBAL, znodes.role)
    owner = connection.read(client, [path])[path]
    if owner and owner != znodes.service_name.encode():
        other = printable(owner[:MAX_SHOWN].decode(errors="replace"))
        raise BadDefinition([f"the role {znodes.role} is claimed by {other} ({path})"])


def read_record(client: OperatorClient, one: OneTime) -> Record:
    """What is recorded of the command."""
    at = one.at
    names = connection.children(client, [at.generations])[at.generations]
    floor = one.znodes.token_floor
    marks = [f"{at.generations}/{each}" for each in names]
    found = client.read([at.state, at.detail, *marks, floor])
    view = {children_of(at.generations): names, **{data_of(path): each for path, each in found.items()}}
    token = states.largest_token(found[at.detail], found[floor])
    is_done = states.is_done(one.command, one.znodes, View(view))
    return Record(is_done, states.decode_detail(found[at.detail]), token, found)


# -- the znodes of a command ----------------------------------------------------------------------


def command_nodes(znodes: Znodes, path: str, run_once: str) -> dict[str, bytes]:
    """The znodes of a one-time command, parents first, as agents create them."""
    nodes = {znodes.status: b""}
    for scope in (GLOBAL,) if run_once == GLOBAL else (GLOBAL, LOCAL):
        at = znodes.command(scope, path)
        below = [at.detail]
        below += [at.hosts] if scope == GLOBAL else []
        below += [at.lock, at.generations] if scope == run_once else []
        nodes[znodes.scope(scope)] = b""
        nodes[znodes.owner(scope, znodes.role)] = znodes.service_name.encode()
        nodes[at.state] = states.WAITING.encode()
        nodes.update(dict.fromkeys(below, b""))
    return nodes


# -- changing -------------------------------------------------------------------------------------


@contextmanager
def locked(client: OperatorClient, one: OneTime) -> Iterator[str]:
    """Hold the command's lock; yields the path of our contender. CommandRuns if a container holds it.

    Agents queue for the same lock: while we hold it, none of them can claim the command.
    """
    queues = Queues(client, operator())
    try:
        contender = connection.acquire(client, queues, one.at.lock)
    except NoNodeError as error:
        raise ChangedMeanwhile(f"{one.at.lock} was removed meanwhile; try again") from error
    if contender is None:
        raise CommandRuns(f"{one.what} runs now, or is about to{_holder(client, one)}; nothing was changed")
    yield contender
    # After an error the session's end releases it: to release it here may take as long as an outage.
    queues.give_back(one.at.lock)


def _holder(client: OperatorClient, one: OneTime) -> str:
    """Who is first in the queue."""
    live = [each for each, session in connection.owners(client, [one.at.lock]).items() if session]
    first = min(live, key=lambda each: each[-10:], default="")
    data = connection.read(client, [first])[first] if first else None
    return f" (the lock is held by {printable(data[:MAX_SHOWN].decode(errors='replace'))})" if data else ""


Plan = Callable[[Record, Changes], Detail]


def change(client: OperatorClient, one: OneTime, contender: str, plan: Plan) -> None:
    """Write the `detail` that `plan` returns for the record, and what it adds to the transaction.

    If a container writes to the command's znodes meanwhile, the record is read and planned again, as long as
    we hold the lock and the definition is the same.
    """
    with connection.unfinished(f"{one.what} may have been changed already; give the command once more"):
        _change(client, one, contender, plan)


def _change(client: OperatorClient, one: OneTime, contender: str, plan: Plan) -> None:
    for last in [False] * TRIES + [True]:
        record = read_record(client, one)
        transaction = Changes(client)
        transaction.check(contender, -1)
        for path, version in one.versions.items():
            transaction.check(path, version)
        data = plan(record, transaction).encoded()
        znode = record.znodes[one.at.detail]
        transaction.set_data(one.at.detail, data, znode.stat.version if znode else 0)
        try:
            connection.commit(transaction, one.what)
            return
        except Unanswered:
            if connection.read(client, [one.at.detail])[one.at.detail] == data:
                return
        except ChangedMeanwhile:
            if last or not _may_try_again(client, one, contender):
                raise


def _may_try_again(client: OperatorClient, one: OneTime, contender: str) -> bool:
    found = client.read([contender, *one.versions])
    same = all((each := found[path]) and each.stat.version == one.versions[path] for path in one.versions)
    return bool(same and found[contender])


def add_command(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The argument that names a one-time command."""
    parser.add_argument(
        "command",
        metavar="ROLE/COMMAND",
        nargs=None if required else "?",
        help="as in dependencies: keystone-api/db_sync",
    )
