"""The record of what operators did: bounded, and readable whatever somebody has written there."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.ctl.zk.event_record import (
    MAX_DATA,
    MAX_ENTRIES,
    MAX_NAMES,
    MAX_TEXT,
    Entry,
    decode,
    encode,
)

ENTRY = Entry(1.5, "alice on web1", "set", ("a/web",), ("a/web/variables/size",), 1, "")


def test_entries_are_read_as_they_were_written() -> None:
    assert decode(encode([ENTRY, ENTRY._replace(at=2.0)])) == [ENTRY, ENTRY._replace(at=2.0)]


def test_the_oldest_entries_are_dropped() -> None:
    entries = [ENTRY._replace(at=float(number)) for number in range(MAX_ENTRIES + 7)]
    assert [each.at for each in decode(encode(entries))] == list(range(7, MAX_ENTRIES + 7))


def test_the_size_is_bounded() -> None:
    large = ENTRY._replace(names=("\u00e4" * MAX_TEXT,) * MAX_NAMES)
    entries = [large._replace(at=float(number)) for number in range(MAX_ENTRIES)]
    data = encode(entries)
    assert len(data) <= MAX_DATA
    assert decode(data)[-1].at == MAX_ENTRIES - 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{}",
        b"[1, null, {}]",
        b"[" * 100_000,
        b'[{"at": "x"}]',
        json.dumps([{**ENTRY._asdict(), "at": -1}]).encode(),
        json.dumps([{**ENTRY._asdict(), "names": 7}]).encode(),
        b" " * (MAX_DATA + 1),
    ],
)
def test_everything_else_is_left_out(data: bytes) -> None:
    assert decode(data) == []


def test_texts_are_cut_and_can_be_shown() -> None:
    data = json.dumps([{**ENTRY._asdict(), "by": "a\x1b[2J" + "b" * 999, "names": ["x"] * 999}]).encode()
    (entry,) = decode(data)
    assert entry.by.startswith("a\N{REPLACEMENT CHARACTER}[2J") and len(entry.by) == MAX_TEXT
    assert len(entry.names) == MAX_NAMES
