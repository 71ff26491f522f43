"""A walk over znodes, for tests that look at everything below a path."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat


def znodes(zk: KazooClient, path: str, *, but: tuple[str, ...] = ()) -> dict[str, tuple[bytes, ZnodeStat]]:
    """Everything at and below a path, parents first; without names in `but` and what is below them.

    A znode that is deleted during the walk, as ephemeral ones are when their session ends, is left out.
    """
    found = {}
    try:
        found[path] = zk.get(path)
        names = sorted(zk.get_children(path))
    except NoNodeError:
        return found
    for name in names:
        if name not in but:
            found.update(znodes(zk, f"{path}/{name}", but=but))
    return found
