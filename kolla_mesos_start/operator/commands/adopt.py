"""`kolla_mesos_ctl adopt`: records that a one-time command is done, without running it.

For what was bootstrapped by other means. What is written is what an agent writes after a success.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from functools import partial

from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.ensemble import connection, services
from kolla_mesos_start.operator.ensemble.connection import Changes, OperatorClient
from kolla_mesos_start.operator.invocation import Invocation, Subcommand
from kolla_mesos_start.operator.live import one_time
from kolla_mesos_start.operator.live.one_time import OneTime, Record, add_command
from kolla_mesos_start.operator.terminal.user import operator
from kolla_mesos_start.tree.states import DONE, Detail, encode_mark


def run(invocation: Invocation) -> int:
    """Record it under the lock; a deployment in which nothing has started yet gets the znodes for it."""
    client, options = invocation.client, invocation.options
    one = one_time.find(invocation, options.command, options.host or "")
    if not options.host:
        _check_uncounted(client, one)
    nodes = one_time.command_nodes(one.znodes, one.command.path, one.command.run_once or "")
    connection.create_together(client, nodes)
    with one_time.locked(client, one) as contender:
        record = one_time.read_record(client, one)
        if not record.is_done:
            one_time.change(client, one, contender, partial(_record, client, one, contender, options.host))
    if record.is_done:
        who = f": attempt {record.detail.attempt} on {record.detail.host}" if record.detail.host else ""
        print(f"{one.what} is done already{who}; {record.detail.message or 'nothing was changed'}")
    else:
        print(f"{one.what} is recorded as done, by {operator()}; no container runs it")
    return 0


def _check_uncounted(client: OperatorClient, one: OneTime) -> None:
    """BadUsage where a dependency counts the hosts on which the command has succeeded."""
    for service, definition in services.definitions(client, one.znodes).items():
        if one.command.path in services.counted_commands(definition):
            raise BadUsage(
                f"a dependency of {service} counts the hosts on which {one.command.path} has succeeded:"
                " give --host, the host on which it was done"
            )


def _record(
    client: OperatorClient,
    one: OneTime,
    contender: str,
    host: str | None,
    record: Record,
    transaction: Changes,
) -> Detail:
    at = one.at
    token = _token(client, contender, record)
    if one.command.generation is not None:
        transaction.create(at.generation(one.command.generation), encode_mark(token, one.definition))
    everywhere = one.znodes.command(GLOBAL, one.command.path)
    # A success on one host is one in the deployment.
    for path in dict.fromkeys((at.state, everywhere.state)):
        transaction.set_data(path, DONE.encode())
    # This machine may be no host of the deployment: nobody may count it.
    succeeded = f"{everywhere.hosts}/{host}"
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
    )


def _token(client: OperatorClient, contender: str, record: Record) -> int:
    """Larger than that of every attempt before; the next attempt's claim is younger than our contender."""
    znode = connection.znodes(client, [contender])[contender]
    return max(znode.stat.czxid if znode else 0, record.token + 1)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_command(parser)
    parser.add_argument(
        "--host",
        metavar="H",
        help="where it was done; needed where it runs once on each host, or its hosts are counted",
    )


SUBCOMMAND = Subcommand(
    description="""\
Record a one-time command (of its published generation, if it has one) as done without running it, under
its lock, with who did so and when: for what was bootstrapped by other means. It works before any
container has started. Status 1: a container runs it now.
""",
    example="kolla_mesos_ctl adopt keystone-api/db_sync",
    add_arguments=_add_arguments,
    run=run,
)
