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
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.ctl.zk.view import read_tree
from kolla_mesos_start.definition.strings import ELECTION, GLOBAL
from kolla_mesos_start.election.records import Decision, Override, decode, encode
from kolla_mesos_start.tree.znodes import ElectionZnodes, Znodes
from kolla_mesos_start.zookeeper.view import Znode

EPHEMERAL = ("candidates", "running")  # the parents of what containers create
PATIENCE = 30.0  # seconds

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


def roots(client: OperatorClient, znodes: Znodes) -> dict[str, str]:
    """The znode of each election by its role."""
    scope = znodes.scope(GLOBAL)
    names = connection.children(client, [scope])[scope]
    found = {role: znodes._replace(service_name=role).election.top for role in names}
    there = connection.read(client, found.values())
    return {role: path for role, path in found.items() if there[path] is not None}


def members(client: OperatorClient, znodes: Znodes) -> dict[str, Sequence[str]]:
    """The hosts that are recorded as members, by the role; without elections that have none."""
    places = {f"{path}/members": role for role, path in roots(client, znodes).items()}
    names = connection.children(client, places)
    return {role: names[path] for path, role in places.items() if names[path]}


def records(client: OperatorClient, roots: Iterable[str]) -> dict[str, bytes]:
    """The lasting znodes of the elections at these paths that have had a decision, each of one moment."""
    found: dict[str, bytes] = {}
    left, begun = list(roots), time.monotonic()
    while left:
        if time.monotonic() > begun + PATIENCE:
            raise ChangedMeanwhile(f"{left[0]} keeps changing while it is read; try again later")
        turns = [ElectionZnodes(root).turn for root in left]
        before = connection.mzxids(client, turns)  # Every transition changes it.
        nodes = read_tree(client, left)
        after = connection.mzxids(client, turns)
        for root, turn in zip(left, turns):
            if before[turn] == after[turn]:
                found.update(_lasting(ElectionZnodes(root), nodes))
        left = [root for root, turn in zip(left, turns) if before[turn] != after[turn]]
    return found


def _lasting(at: ElectionZnodes, nodes: Mapping[str, Znode]) -> dict[str, bytes]:
    decision = nodes.get(at.decision)
    if decision is None or not decision.data:
        return {}
    left_out = (f"{at.candidates}/", f"{at.running}/")
    return {
        path: znode.data
        for path, znode in nodes.items()
        if f"{path}/".startswith(f"{at.top}/") and not path.startswith(left_out) and path != at.override
    }


# -- changes ----------------------------------------------------------------------------------------------


def override(client: OperatorClient, at: ElectionZnodes, turn: int, wanted: Override) -> None:
    """Write the operator's override for the next decision."""
    transaction = _transition(client, at, turn)
    if wanted.winner is not None:
        transaction.check(at.candidate(wanted.winner), -1)
    if connection.read(client, [at.override])[at.override] is None:
        transaction.create(at.override, encode(wanted))
    else:
        transaction.set_data(at.override, encode(wanted))
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
