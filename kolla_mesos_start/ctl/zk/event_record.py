"""The record of publications and of operators' actions: the only events that leave no other trace.

    <deployment>/.events        JSON: a list of entries, the oldest first; only the operator may write it

An entry has names and counts, never a value. The list is bounded: the oldest entries are dropped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.text import operator
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import (
    ChangedMeanwhile,
    Changes,
    OperatorClient,
    log,
)
from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree.znodes import Znodes

MAX_ENTRIES = 200
MAX_DATA = 64 * 1024  # bytes of all entries
MAX_NAMES = 20  # in an entry
MAX_TEXT = 200  # characters of each text


class Entry(NamedTuple):
    """An action of an operator. `at`: seconds since the epoch, by the operator's clock.

    `services` are those that it concerns; empty: all. `names` are what it is about: changed znodes below the
    deployment, a command, hosts; `total` is how many there are in all. `detail`: in a few words, how.
    """

    at: float
    by: str
    action: str
    services: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    total: int = 0
    detail: str = ""


def append(
    client: OperatorClient,
    znodes: Znodes,
    action: str,
    names: Sequence[str] = (),
    *,
    services: Iterable[str] = (),
    detail: str = "",
) -> None:
    """Record an action that is done, or about to be. A lost record is only logged."""
    entry = Entry(time.time(), operator(), action, tuple(services), tuple(names), len(names), detail)
    try:
        merge(client, znodes, [entry])
    except (AccessDenied, ChangedMeanwhile) as error:
        log.warning("`events` will not show this: %s", error.reason)


def merge(client: OperatorClient, znodes: Znodes, entries: Sequence[Entry]) -> None:
    """Add entries to the record, by their time."""
    path = znodes.events

    def plan() -> Changes | None:
        # If ours was applied and only the reply was lost, the entries are among those found.
        znode = client.read([path])[path]
        found = {*decode(znode.data)} if znode else set()
        changes = Changes(client)
        changes.write(path, encode(sorted(found.union(new), key=lambda each: each.at)), znode)
        return changes if new - found else None

    new = {*map(_bounded, entries)}
    connection.apply(plan, f"{path} can't be written")


def encode(entries: Sequence[Entry]) -> bytes:
    """The newest entries, as many as there may be."""
    kept = [json.dumps(each._asdict()) for each in entries[-MAX_ENTRIES:]]
    while sum(len(each) + 2 for each in kept) > MAX_DATA:
        del kept[0]
    return f"[{', '.join(kept)}]".encode()


def decode(data: bytes) -> list[Entry]:
    """The entries; those that no tool has written are left out."""
    try:
        found = json.loads(data) if len(data) <= MAX_DATA else []
    except (ValueError, RecursionError):
        return []
    entries = map(_entry, found if isinstance(found, list) else [])
    return [each for each in entries if each is not None]


def _entry(found: Any) -> Entry | None:
    try:
        entry = Entry(
            at=float(found["at"]),
            by=str(found["by"]),
            action=str(found["action"]),
            services=tuple(map(str, found["services"])),
            names=tuple(map(str, found["names"])),
            total=int(found["total"]),
            detail=str(found["detail"]),
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return _bounded(entry) if 0 <= entry.at < 1e11 else None


def _bounded(entry: Entry) -> Entry:
    return entry._replace(
        by=_text(entry.by),
        action=_text(entry.action),
        services=tuple(map(_text, entry.services[:MAX_NAMES])),
        names=tuple(map(_text, entry.names[:MAX_NAMES])),
        detail=_text(entry.detail),
    )


def _text(text: str) -> str:
    return printable(text[:MAX_TEXT])
