"""`kolla_mesos_ctl adopt`: record one-time commands as done without running them.

The record is the one that an agent writes after a success.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live import one_time
from kolla_mesos_start.ctl.live.one_time import OneTime, Record, add_command
from kolla_mesos_start.ctl.text import operator
from kolla_mesos_start.ctl.zk import connection, event_record, services
from kolla_mesos_start.ctl.zk.connection import Changes, OperatorClient
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.tree.states import DONE, Detail, encode_mark


def run(invocation: Invocation) -> int:
    """Find all commands first, so that a wrong name changes nothing; then record each."""
    options = invocation.options
    if bool(options.command) == bool(options.list):
        raise BadUsage("give either ROLE/COMMAND or --list FILE")
    paths = [options.command] if options.command else _listed(options.list)
    found = [one_time.find(invocation, path, options.host or "") for path in paths]
    if not options.host:
        for one in found:
            _check_uncounted(invocation.client, one)
    for one in found:
        _adopt(invocation, one)
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


def _adopt(invocation: Invocation, one: OneTime) -> None:
    """Write the record under the lock, with the znodes above it if no container has ever started."""
    client, options = invocation.client, invocation.options
    nodes = one_time.command_nodes(one.znodes, one.command.path, one.command.run_once or "")
    connection.create_together(client, nodes)
    with one_time.locked(client, one) as contender:
        record = one_time.read_record(client, one)
        if not record.is_done:
            one_time.change(client, one, contender, partial(_record, client, one, contender, options.host))
            event_record.append(client, one.znodes, "adopt", [one.what], services=[one.znodes.service_name])
    if record.is_done:
        last = record.detail
        ran = f": attempt {last.attempt} on {last.host}" if last.host and not last.adopted else ""
        print(f"{one.what} is already done{ran}; {last.message or 'nothing was changed'}")
    else:
        print(f"{one.what} is recorded as done, by {operator()}; no container runs it")


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
    # A success on one host counts for the deployment.
    for path in dict.fromkeys((at.state, everywhere.state)):
        transaction.set_data(path, DONE.encode())
    # This machine may not be a host of the deployment, so it must not be counted.
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
        adopted=operator(),
    )


def _token(client: OperatorClient, contender: str, record: Record) -> int:
    """Greater than the token of every earlier attempt, and less than the next one."""
    znode = client.read([contender])[contender]
    return max(znode.stat.czxid if znode else 0, record.token + 1)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_command(parser, required=False)
    parser.add_argument(
        "--list",
        metavar="FILE",
        type=Path,
        help="a file with a ROLE/COMMAND on each line, such as adopt.txt of `import --adopt`",
    )
    parser.add_argument(
        "--host",
        metavar="H",
        help="where it was done; required if it runs once on each host, or if its hosts are counted",
    )


SUBCOMMAND = Subcommand(
    description="""\
Record a one-time command (for its published generation, if it has one) as done without running it, for a
service that was bootstrapped by other means. The record has your name and the time. It works before any
container has started. With --list, all names are checked before the first is recorded. Status 1: a container
runs it now.
""",
    example="kolla_mesos_ctl adopt keystone-api/db_sync",
    add_arguments=_add_arguments,
    run=run,
)
