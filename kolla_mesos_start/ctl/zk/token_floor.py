"""The token floor of a deployment: fencing tokens never decrease, even if the znodes that hold them are
removed.

What belongs here: raising the floor before a removal. Agents only read it (`tree.attempts`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import Changes, OperatorClient
from kolla_mesos_start.tree.states import MAX_FLOOR, decode_floor, decode_mark, largest_token
from kolla_mesos_start.tree.znodes import Znodes


def keep_tokens(client: OperatorClient, znodes: Znodes, paths: Iterable[str]) -> dict[str, int]:
    """Raise the floor to the largest token at `paths`, which are about to be removed.

    Returns the version of each `detail` among them. Remove only that version: the token of a later claim is
    not kept.
    """
    tokens, versions = [0], {}
    wanted = [path for path in paths if path.endswith("/detail") or _is_mark(path)]
    for path, znode in client.read(wanted).items():
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
    """Raise the floor to `token`, if it is lower."""
    path, token = znodes.token_floor, min(token, MAX_FLOOR)

    def plan() -> Changes | None:
        znode = client.read([path])[path]
        changes = Changes(client)
        changes.write(path, b"%d" % token, znode)
        return changes if decode_floor(znode) < token else None

    connection.apply(plan, f"{path} can't be raised")
