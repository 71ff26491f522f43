"""The token floor of a deployment: tokens never decrease, although the znodes that hold them are removed.

What lives here: raising the floor, before a removal. Agents only read it (`tree.attempts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from kolla_mesos_start.operator.ensemble import connection
from kolla_mesos_start.operator.ensemble.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    Unanswered,
)
from kolla_mesos_start.tree.states import MAX_FLOOR, decode_floor, decode_mark, largest_token
from kolla_mesos_start.tree.znodes import Znodes

TRIES = 50  # Each fails only if somebody else has raised the floor meanwhile, or the connection was lost.


def keep_tokens(client: OperatorClient, znodes: Znodes, paths: Iterable[str]) -> dict[str, int]:
    """Raise the floor to the largest token at `paths`, which are about to be removed.

    Returns the version of each `detail` among them. Remove that version only: a claim in between has a
    token that is not kept.
    """
    tokens, versions = [0], {}
    wanted = [path for path in paths if path.endswith("/detail") or _is_mark(path)]
    for path, znode in connection.znodes(client, wanted).items():
        if znode is not None and _is_mark(path):
            tokens.append(decode_mark(path, znode).token)
        elif znode is not None:
            tokens.append(largest_token(znode, None))
            versions[path] = znode.stat.version
    raise_floor(client, znodes, max(tokens))
    return versions


def _is_mark(path: str) -> bool:
    return path.rpartition("/")[0].endswith("/generations")


def raise_floor(client: OperatorClient, znodes: Znodes, token: int) -> None:
    """Have a floor of at least `token`."""
    path, token = znodes.token_floor, min(token, MAX_FLOOR)
    for last in [False] * TRIES + [True]:
        znode = connection.znodes(client, [path])[path]
        if decode_floor(znode) >= token:
            return
        transaction = Changes(client)
        if znode is None:
            transaction.create(path, b"%d" % token)
        else:
            transaction.set_data(path, b"%d" % token, znode.stat.version)
        with suppress(*() if last else (ChangedMeanwhile, Unanswered)):
            connection.commit(transaction, f"{path} can't be raised")
