"""What the position command may print."""

from __future__ import annotations

import pytest

from kolla_mesos_start.election.records import EXPECTED, Position, last_line, parse

GOOD = {
    "none": Position(None, None),
    "0": Position("", 0),
    "007": Position("", 7),
    str(2**64 - 1): Position("", 2**64 - 1),
    "6f1c-22:12269": Position("6f1c-22", 12269),
    "a b:1": Position("a b", 1),
    "none:1": Position("none", 1),
}
BAD = [
    *("", " ", "None", "none ", " none", "-1", "uuid:-1", "uuid:", ":5", "a:b:5", "1.5", "0x10", "1 ", "+1"),
    *(str(2**64), "ü:1", "a\t:1", "٣", "9" * 200, "g" * 127 + ":1", "uuid: 5"),
]


@pytest.mark.parametrize("line", GOOD)
def test_there_are_three_forms(line: str) -> None:
    """GROUP:NUMBER, NUMBER and none."""
    assert parse(line) == GOOD[line]


@pytest.mark.parametrize("line", BAD)
def test_every_other_output_is_an_error(line: str) -> None:
    """The message does not show it: the output may hold a secret."""
    with pytest.raises(ValueError, match="expected GROUP:NUMBER") as caught:
        parse(line)
    assert str(caught.value) == EXPECTED


@pytest.mark.parametrize("line", ["none", "7", "uuid:12"])
def test_a_position_is_shown_as_printed(line: str) -> None:
    """For `positions` in the decision."""
    assert str(parse(line)) == line


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b"uuid:5", "uuid:5"),
        (b"uuid:5\n", "uuid:5"),
        (b"Recovered\nuuid:5\n", "uuid:5"),
        (b"uuid:5\n\n", ""),
        (b"5\r\n", "5\r"),
        (b"\xff:1\n", "\ufffd:1"),
    ],
)
def test_the_last_line_counts(output: bytes, line: str) -> None:
    """Only the end of line after it is removed."""
    assert last_line(output) == line
