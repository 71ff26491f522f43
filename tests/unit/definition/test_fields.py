"""The values of a definition by their kind: numbers, seconds, booleans, texts."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.definition.document import Fields, Reading, load
from kolla_mesos_start.definition.strings import Text


def fields(value: object, rendered: str = "") -> Fields:
    return Fields(Reading(lambda text: rendered), "x", {"key": value}, ["key"])


NUMBERS: list[tuple[object, object]] = [
    *((0, 0), (7, 7), ("7", 7), (" 7 ", 7), ("{{ n }}", 35)),
    *((-1, None), ("-1", None), (7.5, None), ("7.5", None), ("", None), ("7x", None), ("1_000", None)),
    *((True, None), (False, None), ([], None), ({}, None), ("0x10", None), ("\u0667", None)),
    *((10**30, None), ("9" * 5000, None), ("1e3", None), ("{{ n }} ", 35)),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS)
def test_a_whole_number_may_be_text(value: object, number: object) -> None:
    """Text that is a number is converted; all else is an issue, and reads as the default."""
    read = fields(value, rendered="35")
    assert read.integer("key", None) == number
    assert bool(read.reading.issues) is (number is None)


SECONDS: list[tuple[object, object]] = [
    *((0, 0.0), (0.5, 0.5), ("0.5", 0.5), ("7", 7.0), ("{{ n }}", 35.0), (1_000_000_000, 1e9)),
    *((-0.5, None), ("-1", None), ("nan", None), ("inf", None), (True, None), ("5s", None), ([1], None)),
    *((1_000_000_001, None), (10**400, None), ("1e3", 1000.0), (".5", None)),
]


@pytest.mark.parametrize(("value", "number"), SECONDS)
def test_seconds_may_be_text_and_have_a_fraction(value: object, number: object) -> None:
    """The limit is one that every clock can add."""
    read = fields(value, rendered="35")
    assert read.seconds("key", None) == number
    assert bool(read.reading.issues) is (number is None)


FLAGS: list[tuple[object, object]] = [
    *((True, True), (False, False), ("true", True), ("False", False), ("yes", True), (" no\n", False)),
    *((1, None), (0, None), ("1", None), ("", None), ("on", None), (None, None), ([], None)),
]


@pytest.mark.parametrize(("value", "flag"), FLAGS)
def test_a_boolean_may_be_text(value: object, flag: object) -> None:
    """As jinja2 or YAML spell it; a number is no boolean."""
    read = fields(value)
    assert read.boolean("key", True) is (True if flag is None else flag)
    assert bool(read.reading.issues) is (flag is None)


def test_null_is_the_default_only_where_that_is_none() -> None:
    """A key whose default is a number can't be null by mistake."""
    read = fields(None)
    assert (read.integer("key", None), read.seconds("key", None), read.early("key", None, len_form)) == (
        None,
    ) * 3
    assert read.reading.issues == []
    assert read.integer("key", 5) == 5
    assert read.reading.issues == ["x.key: expected a whole number from 0 to 1000000000, found null"]


def len_form(text: str) -> str | None:
    return None if len(text) < 4 else "expected something short"


@pytest.mark.parametrize("bad", ["a\0", "\ud800"])
def test_a_string_that_no_process_can_receive_is_refused(bad: str) -> None:
    """NUL and lone surrogates fail in exec, in files and in ZooKeeper."""
    document = load(json.dumps({"key": bad}).encode())
    for read in (fields(document.root["key"]), fields("{{ a }}", rendered=bad)):
        read.early("key", None, len_form)
        read.reading.resolve(Text("x", str(read.raw("key"))), len_form)
        assert len(read.reading.issues) == 2
        assert str(read.reading.issues).encode()


def test_the_result_of_a_template_is_not_shown() -> None:
    """It may hold a secret. The text of the definition itself is shown, but cut."""
    read = fields("{{ password }}", rendered="s3cret")
    read.integer("key", 0)
    read.early("key", "", len_form)
    read.reading.resolve(Text("x.key", "{{ password }}"), len_form)
    assert len(read.reading.issues) == 3
    assert "s3cret" not in " ".join(read.reading.issues)
    assert all("its template rendered to something else" in issue for issue in read.reading.issues)
    read = fields("long" * 1000)
    read.early("key", "", len_form)
    assert "'longlong" in read.reading.issues[0]
    assert len(read.reading.issues[0]) < 200


def test_a_key_that_would_garble_a_message_is_quoted() -> None:
    """Whatever the keys of a definition hold, the message is one line of text that can be encoded."""
    reading = Reading(lambda text: "")
    Fields(reading, "x", {"": 0, "a\nb": 0, "\ud800": 0, "k" * 100_000: 0}, ["known"])
    assert [issue.split(":")[0][:10] for issue in reading.issues] == [
        "x.''",
        r"x.'a\nb'",
        r"x.'\ud800'",
        "x.kkkkkkkk",
    ]
    assert all(
        len(issue) < 200 and issue.endswith("unknown key; nearest is 'known'") for issue in reading.issues
    )
