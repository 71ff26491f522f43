"""`kolla_mesos_ctl rerun`: mark a one-time command as not done, so that it runs once more.

The last attempt stays recorded, because the next fencing token has to be greater than its token.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from functools import partial

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live import one_time
from kolla_mesos_start.ctl.live.one_time import OneTime, Record, add_command
from kolla_mesos_start.ctl.text import operator
from kolla_mesos_start.ctl.zk import connection, containers, event_record
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile, Changes, OperatorClient
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.tree.states import DONE, WAITING, Detail
from kolla_mesos_start.zookeeper.view import Znode


def run(invocation: Invocation) -> int:
    """Mark the command as waiting under its lock, and print which container to restart."""
    client, host = invocation.client, invocation.options.host or ""
    one = one_time.find(invocation, invocation.options.command, host)
    if one.command.run_once == GLOBAL and host:
        raise BadUsage(f"{one.what} runs once in the whole deployment: leave --host out")
    nodes = one_time.command_nodes(one.znodes, one.command.path, one.command.run_once or "")
    if connection.read(client, [one.at.state])[one.at.state] is None:
        print(f"{one.what} has never run; nothing was changed")
        return 0
    connection.create_together(client, nodes)
    with one_time.locked(client, one) as contender:
        record = one_time.read_record(client, one)
        if record.is_done:
            one_time.change(client, one, contender, partial(_take_back, client, one))
            event_record.append(client, one.znodes, "rerun", [one.what], services=[one.znodes.service_name])
    if one.command.run_once != GLOBAL:
        _take_back_everywhere(client, one)
    was = " is marked as not done;" if record.is_done else f" is not done{_ended(record.detail)}:"
    where = one.znodes.service_name + ("" if one.command.run_once == GLOBAL else f" on {one.znodes.host}")
    print(f"{one.what}{was} the next container of {where} that starts runs it")
    _print_containers(client, one, where)
    return 0


def _take_back(client: OperatorClient, one: OneTime, record: Record, transaction: Changes) -> Detail:
    at, path = one.at, one.command.path
    marks = [each for each in record.znodes if each.startswith(f"{at.generations}/")]
    if one.command.generation is not None:
        transaction.delete(at.generation(one.command.generation))
    _wait(transaction, at.state, record.znodes[at.state])
    hosts = one.znodes.command(GLOBAL, path).hosts
    if one.command.run_once == GLOBAL:
        # Each host on which it has passed has a copy of the state.
        names = connection.children(client, [one.znodes.status, hosts])
        copies = [f"{one.znodes.status}/{name}/{path}" for name in names[one.znodes.status] if name != GLOBAL]
        for copy, znode in client.read(copies).items():
            _wait(transaction, copy, znode)
        succeeded = names[hosts]
    else:
        names = connection.children(client, [hosts])
        succeeded = [name for name in names[hosts] if name == one.znodes.host]
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
    at = one.znodes.command(GLOBAL, one.command.path)

    def is_done_somewhere() -> bool:
        return bool(connection.children(client, [at.hosts])[at.hosts])

    znode = client.read([at.state])[at.state]
    if znode is None or znode.data != DONE.encode() or is_done_somewhere():
        return
    with suppress(ChangedMeanwhile):  # A container has recorded a new state.
        _write(client, at.state, WAITING, znode.stat.version)
        if is_done_somewhere():  # A container on another host has found `done` meanwhile, and kept it.
            _write(client, at.state, DONE, znode.stat.version + 1)


def _write(client: OperatorClient, path: str, text: str, version: int) -> None:
    transaction = Changes(client)
    transaction.set_data(path, text.encode(), version)
    connection.commit(transaction, f"{path} can't be written")


def _wait(transaction: Changes, path: str, znode: Znode | None) -> None:
    """Change `done` at `path` to `waiting`."""
    if znode is not None and znode.data == DONE.encode():
        transaction.set_data(path, WAITING.encode(), znode.stat.version)


def _ended(detail: Detail) -> str:
    """How the last attempt ended, for a message."""
    if detail.started is None:
        return ""
    if detail.finished is None:
        return f" (attempt {detail.attempt} on {detail.host} recorded no outcome)"
    return f" (attempt {detail.attempt} on {detail.host}: {detail.message})"


def _print_containers(client: OperatorClient, one: OneTime, where: str) -> None:
    """Print which container to start or restart."""
    service = one.znodes.service_name
    hosts = containers.hosts(client, one.znodes, [service]).get(service, [])
    if one.command.run_once != GLOBAL:
        hosts = [host for host in hosts if host == one.znodes.host]
    if hosts:
        print(f"restart a container of {where} to run it: {containers.on_hosts(hosts)} may be past it")
    else:
        print(f"start a container of {where}: there is none now")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_command(parser)
    parser.add_argument("--host", metavar="H", help="for a command that runs once on each host: this host")


SUBCOMMAND = Subcommand(
    description="""\
Mark a one-time command as not done (for its published generation, if it has one), under its lock. The next
container of its service that starts runs it, once. Status 1: a container runs it now.
""",
    example="kolla_mesos_ctl rerun keystone-api/db_sync",
    add_arguments=_add_arguments,
    run=run,
)
