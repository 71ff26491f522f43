"""What a reply holds, by the request that it answers; and what is none."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kazoo.exceptions import KazooException, RolledBackError

from kolla_mesos_start.zookeeper.wire import (
    CheckVersion,
    Create,
    Delete,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Transaction,
    answer,
)
from tests.support.replies import END, NAMES, STAT, result, text

NOTHING = struct.pack("!i", -1)
CREATE = Create("/a", b"", [], 0)


@pytest.mark.parametrize(
    ("operation", "reply", "expected"),
    [
        (GetData("/a", False), text(b"x") + STAT, b"x"),
        (GetData("/a", False), NOTHING + STAT, b""),
        (GetChildren2("/a", False), NAMES + STAT, ["a", "\u00e9"]),
    ],
    ids=["data", "no data", "children"],
)
def test_what_a_znode_holds(operation: Any, reply: bytes, expected: object) -> None:
    """Without data it is empty: so `create PATH` of zkCli makes it."""
    assert answer(operation, reply, 0)[0] == expected


@pytest.mark.parametrize(
    ("operation", "reply"),
    [
        (GetData("/a", False), b"\0\0"),
        (GetData("/a", False), struct.pack("!i", 2**31 - 1) + STAT),
        (GetChildren("/a", False), struct.pack("!i", 2**31 - 1)),
        (GetChildren("/a", False), struct.pack("!i", 1) + NOTHING),
        (GetChildren("/a", False), struct.pack("!i", 1) + text(b"\xff")),
        (GetChildren2("/a", False), NOTHING),
        (GetChildren2("/a", False), struct.pack("!i", 1) + NOTHING + STAT),
        (CREATE, NOTHING),
        (Transaction([CREATE]), END),
        (Transaction([CREATE]), result(1, NOTHING) + END),
        (Transaction([CREATE]), result(2) + END),
        (Transaction([SetData("/a", b"", -1)]), result(2) + END),
        (Transaction([Delete("/a", -1)]), result(2) + result(2) + END),
        (Transaction([Delete("/a", -1)]), result(2)),
    ],
)
def test_what_is_no_answer_to_the_request(operation: Any, reply: bytes) -> None:
    """Its callers could not use it: a name that is none, fewer results than operations."""
    with pytest.raises(ValueError, match="not a ZooKeeper server"):
        answer(operation, reply, 0)


def test_an_error_that_is_newer_than_kazoo_is_one() -> None:
    """In a transaction too."""
    errors = [result(-1, struct.pack("!i", code), code) for code in (0, -998)]
    rolled_back, unknown = answer(
        Transaction([Delete("/a", -1), CheckVersion("/a", -1)]), b"".join([*errors, END]), 0
    )
    assert type(rolled_back) is RolledBackError and type(unknown) is KazooException
