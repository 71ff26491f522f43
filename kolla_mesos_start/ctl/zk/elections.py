"""The records of elections in a deployment: which of them are lasting, and how an operator changes them.

    status/global/<role>/election/
      turn, decision, members/<host>    kept: they say which hosts have the data of the cluster
      candidates/<host>, running/<host> ephemeral
      override                          for one epoch

The records belong to the data on the disks of the hosts, which no operation of this tool removes or restores.
Each change is one transaction, which checks and sets `turn`, as the transitions of agents do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Callable

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.definition.strings import ELECTION, GLOBAL
from kolla_mesos_start.election.records import Decision, Override, decode, encode
from kolla_mesos_start.tree.znodes import ElectionZnodes, Znodes

EPHEMERAL = ("candidates", "running")  # the parents of what containers create

log = logging.getLogger(__name__)


def places(znodes: Znodes, role: str) -> list[str]:
    """The znodes below which the containers of a role create ephemerals in an election."""
    election = znodes._replace(service_name=role).election
    return [election.candidates, election.running]


def is_ephemeral(znodes: Znodes, path: str) -> bool:
    """Whether a container that takes part in an election holds the znode at this path."""
    parts = path[len(znodes.status) + 1 :].split("/")
    return len(parts) == 5 and parts[0] == GLOBAL and parts[2] == ELECTION and parts[3] in EPHEMERAL


def role_of(path: str) -> str | None:
    """The role to whose election a path below the deployment belongs; None if it belongs to none."""
    parts = path.split("/")
    is_part = len(parts) > 3 and parts[1] == GLOBAL and parts[3] == ELECTION
    return parts[2] if is_part else None


def roles(paths: Iterable[str]) -> set[str]:
    """The roles whose elections have one of these paths, which are below the deployment."""
    return {role for role in map(role_of, paths) if role is not None}


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> set[str]:
    """The roles whose elections differ in two records of a deployment."""
    return roles(path for path in {*before, *after} if before.get(path) != after.get(path))


# -- changes ----------------------------------------------------------------------------------------------


def override(client: OperatorClient, at: ElectionZnodes, turn: int, wanted: Override) -> None:
    """Write the operator's override for the next decision."""
    transaction = _transition(client, at, turn)
    if wanted.winner is not None:
        transaction.check(at.candidate(wanted.winner), -1)
    transaction.write(at.override, encode(wanted), client.read([at.override])[at.override])
    _commit(transaction, lambda: _is_recorded(client, at, wanted))


def _is_recorded(client: OperatorClient, at: ElectionZnodes, wanted: Override) -> bool:
    """Whether the override is recorded. Raises Unanswered if a decision was made meanwhile."""
    found = connection.read(client, [at.override, at.decision])
    word, decision = found[at.override], found[at.decision]
    if word == encode(wanted):
        return True
    if decision is not None and decode(Decision, at.decision, decision).epoch >= wanted.epoch:
        raise Unanswered(
            f"the connection to ZooKeeper was lost, and epoch {wanted.epoch} has been decided meanwhile:"
            " look at the election to see whether the winner is the host that you chose"
        )
    return False


def withdraw(client: OperatorClient, at: ElectionZnodes, turn: int) -> None:
    """Remove the operator's override."""
    transaction = _transition(client, at, turn)
    transaction.delete(at.override)
    _commit(transaction, lambda: _is_gone(client, at.override))


def forget(client: OperatorClient, at: ElectionZnodes, turn: int, host: str) -> None:
    """Remove a member."""
    transaction = _transition(client, at, turn)
    transaction.delete(at.member(host))
    _commit(transaction, lambda: _is_gone(client, at.member(host)))


def _is_gone(client: OperatorClient, path: str) -> bool:
    return connection.read(client, [path])[path] is None


def _transition(client: OperatorClient, at: ElectionZnodes, turn: int) -> Changes:
    """A transaction that fails if another transition has been made after `turn`."""
    transaction = Changes(client)
    transaction.set_data(at.turn, b"", turn)
    return transaction


def _commit(transaction: Changes, is_made: Callable[[], bool]) -> None:
    """Make the change, also if the connection is lost. `is_made` tells whether it has been made.

    The same transaction is sent again: it checks `turn`, so it can be applied only once.
    """
    was_lost = False
    try:
        while not _was_answered(transaction):
            was_lost = True
    except ChangedMeanwhile:
        if not (was_lost and is_made()):
            raise
    except KeyboardInterrupt:
        log.warning("it is unknown whether this was recorded: look at the election again")
        raise


def _was_answered(transaction: Changes) -> bool:
    """Send the transaction; false if the connection is lost meanwhile."""
    try:
        connection.commit(transaction, "the election is left as it is")
    except Unanswered:
        return False
    except ChangedMeanwhile as error:
        raise ChangedMeanwhile(
            "the election has changed meanwhile: look at it again; nothing was changed"
        ) from error
    return True
