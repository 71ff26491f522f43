"""`kolla_mesos_ctl rerun` and `adopt`: mark one-time commands as not done, or as done.

A record is changed under the command's lock, in one transaction, which fails if a container has claimed the
command or its definition has changed. The agent's `tree.states` says what a claim, a mark and a token are.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

from kolla_mesos_start.ctl.directory.directory import VARIABLES
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.subcommand import argument, subcommand
from kolla_mesos_start.ctl.text import NotThere, few, nearest, operator
from kolla_mesos_start.ctl.validate.rules import build_graph
from kolla_mesos_start.ctl.zk import connection, containers, event_record, services
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, Changes, OperatorClient, Unanswered
from kolla_mesos_start.ctl.zk.published import places
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.keys import early_texts
from kolla_mesos_start.definition.model import Command
from kolla_mesos_start.definition.strings import GLOBAL, LOCAL, bad_path, bad_segment
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage
from kolla_mesos_start.log import printable
from kolla_mesos_start.render.context import variable_names
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import DONE, WAITING, Detail, encode_mark
from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
from kolla_mesos_start.zookeeper.lock import Queues
from kolla_mesos_start.zookeeper.view import View, Znode, children_of, data_of
from kolla_mesos_start.zookeeper.wire import NoNodeError

SHOWN = 10  # one-time commands, in a message
MAX_SHOWN = 200  # bytes of what others have written, in a message
TRIES = 50  # A try fails only if a container has written between two requests.
COMMAND = "as in dependencies: keystone-api/db_sync"


class CommandRuns(AgentError):
    """A container runs the command, or is going to."""

    status = 1


class OneTime(NamedTuple):
    """A one-time command. `znodes` are those of its service and, if it runs once on each host, of a host.

    `definition_zxid` is the mzxid of its definition, `versions` are those of all znodes that it is made from.
    """

    command: Command
    znodes: Znodes
    definition_zxid: int
    versions: Mapping[str, int]

    @property
    def is_global(self) -> bool:
        """Whether it runs once in the whole deployment, not on each host."""
        return self.command.run_once == GLOBAL

    @property
    def at(self) -> CommandZnodes:
        return states.once_znodes(self.command, self.znodes)

    @property
    def everywhere(self) -> CommandZnodes:
        """Its znodes in the scope of the deployment."""
        return self.znodes.command(GLOBAL, self.command.path)

    @property
    def what(self) -> str:
        """Its name, for a message."""
        host = "" if self.is_global else f" on {self.znodes.host}"
        generation = f" (generation {self.command.generation})" if self.command.generation else ""
        return f"{self.command.path}{host}{generation}"


class Record(NamedTuple):
    """What is recorded of a one-time command; `znodes` are all that were read, by their paths."""

    is_done: bool
    detail: Detail
    token: int
    """the largest one so far"""
    znodes: Mapping[str, Znode | None]


# -- rerun ----------------------------------------------------------------------------------------


@subcommand(
    "kolla_mesos_ctl rerun keystone-api/db_sync",
    argument("command", metavar="ROLE/COMMAND", help=COMMAND),
    argument("--host", metavar="H", help="for a command that runs once on each host: this host"),
)
def rerun(invocation: Invocation) -> int:
    """Mark a one-time command as not done (for its published generation, if it has one), under its lock. The
    next container of its service that starts runs it, once. Status 1: a container runs it now.
    """
    client, host = invocation.client, invocation.options.host or ""
    one = find(invocation, invocation.options.command, host)
    if one.is_global and host:
        raise BadUsage(f"{one.what} runs once in the whole deployment: leave --host out")
    if connection.read(client, [one.at.state])[one.at.state] is None:
        print(f"{one.what} has never run; nothing was changed")
        return 0
    record = change(client, one, "rerun", partial(_take_back, client, one))
    if not one.is_global:
        _take_back_everywhere(client, one)
    was = " is marked as not done;" if record.is_done else f" is not done{_ended(record.detail)}:"
    service = one.znodes.service_name
    where = service if one.is_global else f"{service} on {one.znodes.host}"
    print(f"{one.what}{was} the next container of {where} that starts runs it")
    hosts = containers.hosts(client, one.znodes, [service]).get(service, [])
    hosts = [each for each in hosts if one.is_global or each == one.znodes.host]
    if hosts:
        print(f"restart a container of {where} to run it: {containers.on_hosts(hosts)} may be past it")
    else:
        print(f"start a container of {where}: there is none now")
    return 0


def _take_back(
    client: OperatorClient, one: OneTime, contender: str, record: Record, transaction: Changes
) -> Detail:
    """The last attempt stays recorded, because the next fencing token has to be greater than its token."""
    at, hosts = one.at, one.everywhere.hosts
    marks = [each for each in record.znodes if each.startswith(f"{at.generations}/")]
    if one.command.generation is not None:
        transaction.delete(at.generation(one.command.generation))
    done = {at.state: record.znodes[at.state]}
    names = connection.children(client, [one.znodes.status, hosts])
    succeeded = [name for name in names[hosts] if one.is_global or name == one.znodes.host]
    if one.is_global:  # Each host on which it has passed has a copy of the state.
        scopes = [name for name in names[one.znodes.status] if name != GLOBAL]
        done.update(client.read([f"{one.znodes.status}/{name}/{one.command.path}" for name in scopes]))
    for path, znode in done.items():
        if znode is not None and znode.data == DONE.encode():
            transaction.set_data(path, WAITING.encode(), znode.stat.version)
    # A success for another generation counts too where dependencies count hosts.
    for name in succeeded if len(marks) < 2 else ():
        transaction.delete(f"{hosts}/{name}")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    message = f"taken back by {operator()} at {when}"
    if record.detail.adopted:  # Then no container has run it, which stays recorded.
        message = f"adopted by {record.detail.adopted}, {message}"
    return record.detail._replace(message=message, taken_back=operator())


def _take_back_everywhere(client: OperatorClient, one: OneTime) -> None:
    """Mark the command as waiting in the deployment if it is no longer done on any host."""
    at = one.everywhere

    def is_done_somewhere() -> bool:
        return bool(connection.children(client, [at.hosts])[at.hosts])

    def write(text: str, version: int) -> None:
        transaction = Changes(client)
        transaction.set_data(at.state, text.encode(), version)
        connection.commit(transaction, f"{at.state} can't be written")

    znode = client.read([at.state])[at.state]
    if znode is None or znode.data != DONE.encode() or is_done_somewhere():
        return
    with suppress(ChangedMeanwhile):  # A container has recorded a new state.
        write(WAITING, znode.stat.version)
        if is_done_somewhere():  # A container on another host has found `done` meanwhile, and kept it.
            write(DONE, znode.stat.version + 1)


def _ended(detail: Detail) -> str:
    """How the last attempt ended, for a message."""
    if detail.started is None:
        return ""
    how = " recorded no outcome" if detail.finished is None else f": {detail.message}"
    return f" (attempt {detail.attempt} on {detail.host}{how})"


# -- adopt ----------------------------------------------------------------------------------------


@subcommand(
    "kolla_mesos_ctl adopt keystone-api/db_sync",
    argument("command", metavar="ROLE/COMMAND", nargs="?", help=COMMAND),
    argument(
        "--list",
        metavar="FILE",
        type=Path,
        help="a file with a ROLE/COMMAND on each line, such as adopt.txt of `import --adopt`",
    ),
    argument(
        "--host",
        metavar="H",
        help="where it was done; required if it runs once on each host, or if its hosts are counted",
    ),
)
def adopt(invocation: Invocation) -> int:
    """Record a one-time command (for its published generation, if it has one) as done without running it,
    for a service that was bootstrapped by other means. The record has your name and the time. It works
    before any container has started. With --list, all names are checked before the first is recorded.
    Status 1: a container runs it now.
    """
    options = invocation.options
    if bool(options.command) == bool(options.list):
        raise BadUsage("give either ROLE/COMMAND or --list FILE")
    paths = [options.command] if options.command else _listed(options.list)
    found = [find(invocation, path, options.host or "") for path in paths]
    client = invocation.client
    if not options.host:
        for one in found:
            _check_uncounted(client, one)
    for one in found:
        record = change(client, one, "adopt", partial(_record, client, one, options.host))
        last = record.detail
        if record.is_done:
            ran = f": attempt {last.attempt} on {last.host}" if last.host and not last.adopted else ""
            print(f"{one.what} is already done{ran}; {last.message or 'nothing was changed'}")
        else:
            print(f"{one.what} is recorded as done, by {operator()}; no container runs it")
    return 0


def _listed(file: Path) -> Sequence[str]:
    """The commands in a file, one on each line; empty lines and comments are left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"--list {file} can't be read: {getattr(error, 'strerror', error)}") from error
    found = [line for line in (each.partition("#")[0].strip() for each in lines) if line]
    if not found:
        raise BadUsage(f"{file} names no command: write ROLE/COMMAND on each line")
    return found


def _check_uncounted(client: OperatorClient, one: OneTime) -> None:
    """BadUsage if a dependency counts the hosts on which the command has succeeded."""
    for service, definition in services.definitions(client, one.znodes).items():
        if one.command.path in services.counted_commands(definition):
            raise BadUsage(
                f"a dependency of {service} counts the hosts on which {one.command.path} has succeeded:"
                " give --host, the host on which it was done"
            )


def _record(
    client: OperatorClient,
    one: OneTime,
    host: str | None,
    contender: str,
    record: Record,
    transaction: Changes,
) -> Detail:
    """The record that an agent writes after a success."""
    at, znode = one.at, client.read([contender])[contender]
    # Greater than the token of every earlier attempt, and less than the next one.
    token = max(znode.stat.czxid if znode else 0, record.token + 1)
    if one.command.generation is not None:
        transaction.create(at.generation(one.command.generation), encode_mark(token, one.definition_zxid))
    # A success on one host counts for the deployment.
    for path in dict.fromkeys((at.state, one.everywhere.state)):
        transaction.set_data(path, DONE.encode())
    # This machine may not be a host of the deployment, so it must not be counted.
    succeeded = f"{one.everywhere.hosts}/{host}"
    if host and connection.read(client, [succeeded])[succeeded] is None:
        transaction.create(succeeded)
    now = time.time()
    return Detail(
        attempt=record.detail.attempt,
        claim=os.urandom(16).hex(),
        host=host or socket.gethostname(),
        generation=one.command.generation,
        started=now,
        finished=now,
        state=DONE,
        token=token,
        message=f"adopted by {operator()}",
        adopted=operator(),
    )


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
    return f": {few(meant, SHOWN)}" if meant else ", and no service has a one-time command"


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
    commands = {command.path: command for command in graph.all_commands}
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


def _recorded(client: OperatorClient, one: OneTime) -> Record:
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


def _nodes(one: OneTime) -> dict[str, bytes]:
    """The znodes of a one-time command, parents first, as agents create them."""
    znodes = one.znodes
    nodes = {znodes.status: b""}
    for scope in (GLOBAL,) if one.is_global else (GLOBAL, LOCAL):
        at = znodes.command(scope, one.command.path)
        below = [at.detail]
        below += [at.hosts] if scope == GLOBAL else []
        below += [at.lock, at.generations] if scope == one.command.run_once else []
        nodes[znodes.scope(scope)] = b""
        nodes[znodes.owner(scope, znodes.role)] = znodes.service_name.encode()
        nodes[at.state] = WAITING.encode()
        nodes.update(dict.fromkeys(below, b""))
    return nodes


# -- changing -------------------------------------------------------------------------------------


def change(
    client: OperatorClient, one: OneTime, action: str, plan: Callable[[str, Record, Changes], Detail]
) -> Record:
    """Change the record of a command under its lock, unless it is as wanted; returns what it was before.

    `plan` gets our contender, the record and a transaction, to which it adds, and returns the new detail. The
    znodes above the record are created if no container has ever started.
    """
    connection.create_together(client, _nodes(one))
    with locked(client, one) as contender:
        record = _recorded(client, one)
        if record.is_done == (action == "rerun"):
            with connection.unfinished(
                f"{one.what} may have been changed already; give the command once more"
            ):
                _write(client, one, contender, plan)
            event_record.append(client, one.znodes, action, [one.what], services=[one.znodes.service_name])
    return record


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
    znode = connection.holder(client, one.at.lock)
    who = printable(znode.data[:MAX_SHOWN].decode(errors="replace")) if znode else ""
    return f" (the lock is held by {who})" if who else ""


def _write(
    client: OperatorClient, one: OneTime, contender: str, plan: Callable[[str, Record, Changes], Detail]
) -> None:
    """If a container writes to the command's znodes meanwhile, the record is read and planned again, as long
    as we hold the lock and the definition is the same."""
    for last in [False] * TRIES + [True]:
        record, transaction = _recorded(client, one), Changes(client)
        transaction.check(contender, -1)
        for path, version in one.versions.items():
            transaction.check(path, version)
        data = plan(contender, record, transaction).encoded()
        znode = record.znodes[one.at.detail]
        transaction.set_data(one.at.detail, data, znode.stat.version if znode else 0)
        try:
            connection.commit(transaction, one.what)
            return
        except Unanswered:
            if connection.read(client, [one.at.detail])[one.at.detail] == data:
                return
        except ChangedMeanwhile:
            found = client.read([contender, *one.versions])
            versions = {path: (each := found[path]) and each.stat.version for path in one.versions}
            if last or not found[contender] or versions != one.versions:
                raise
