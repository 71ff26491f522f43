"""Which containers a draining daemon waits for, from what they publish."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kolla_mesos_start.daemon.drain import Follower, behind, follower, named
from kolla_mesos_start.report import CHECK, REFRESH_FAILED, REFRESH_PENDING, REFRESH_RUNNING, REFRESH_SETTLING

OURS = ("web/daemon", "site/web")


def znode(**fields: Any) -> bytes:
    """A container that lists the instances of `web`; `fields` replace its own."""
    facts = {"host": "edge1", "follows": True, "lists": {"web/daemon": "0x10"}, "state": "ready"}
    return json.dumps({**facts, **fields}).encode()


def test_a_container_that_lists_the_instance_is_waited_for() -> None:
    found = follower("haproxy", znode(lists={"web/daemon": "0x10", "db/daemon": "0x9"}), OURS)
    assert found == Follower("haproxy on edge1", {"web/daemon": 16}, False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'"lists"',
        b'["lists"]',
        b'{"lists"',
        znode(lists={}),
        znode(lists={"db/daemon": "0x10"}),
        znode(lists=["web/daemon"]),
        znode(lists="web/daemon"),
        znode(lists=7),
        znode(lists=None),
        znode(lists={"web/daemon": 16}),
        znode(lists={"web/daemon": "x"}),
        znode(follows=False),
        znode(follows=1),
        b'{"lists": ' + b"[" * 100_000,
    ],
)
def test_other_data_list_nothing(data: bytes) -> None:
    """It is written by other containers, and may be anything."""
    assert follower("haproxy", data, OURS) is None


@pytest.mark.parametrize(
    ("host", "shown"), [("a\nb", "?"), (None, "?"), (7, "?"), ("x" * 100, "x" * 64), ("\x1b[2J", "?")]
)
def test_names_of_others_are_printable_and_short(host: object, shown: str) -> None:
    found = follower("haproxy", znode(host=host), OURS)
    assert found is not None and found.name == f"haproxy on {shown}"


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, False),
        ({"code": REFRESH_RUNNING}, True),
        ({"code": REFRESH_SETTLING}, True),
        ({"code": REFRESH_FAILED}, True),
        ({"code": REFRESH_PENDING}, False),
        ({"state": "unready", "code": CHECK}, False),
        ({"state": "unready"}, True),
        ({"state": "starting"}, False),
        ({"lists": {"web/daemon": "0xf"}}, True),
        ({"lists": {"web/daemon": "0x11"}}, False),
        ({"lists": {"web/daemon": "0x10", "site/web": "0x10"}}, True),
    ],
)
def test_a_container_may_use_the_instance_until_it_has_refreshed(fields: dict[str, Any], waits: bool) -> None:
    """Rendered from a newer list, and with its daemon notified. When it left the members is not known yet."""
    found = follower("haproxy", znode(**fields), OURS)
    assert found is not None
    assert behind([found], {"web/daemon": 16}) == (["haproxy on edge1"] if waits else [])


def test_a_message_names_some() -> None:
    assert named(["a"]) == "a"
    assert named(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
