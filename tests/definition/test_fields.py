"""The JSON border: what is no JSON, or no definition's JSON, is told with its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.definition.fields import Document, Fields, Reading, Text, load
from kolla_mesos_start.errors import BadDefinition

BROKEN: list[tuple[bytes, list[str]]] = [
    (b"", ["bad JSON", "line 1 column 1"]),
    (b'{"a": 1,\n "b" 2}', ["bad JSON", "':' delimiter", "line 2 column 6"]),
    (b'{"a": 1,}', ["bad JSON", "line 1 column "]),
    (b'{"a": 1} x', ["bad JSON", "Extra data", "line 1 column 10"]),
    (b"{\n\n  'a': 1}", ["bad JSON", "double quotes", "line 3 column 3"]),
    (b'{"a": "tab\there"}', ["bad JSON", "control character, line 1 column 11"]),
    (b'{"a": {{ b }} }', ["bad JSON", "line 1 column 8"]),
    (b'{"a": "\xff"}', ["not UTF-8", "line 1 column 8"]),
    (b'{\n"a": "\xc3\xbc\xff"}', ["not UTF-8", "line 2 column 9"]),
    ('{"a": 1}'.encode("utf-16"), ["not UTF-8", "line 1 column 1"]),
    (b"[" * 200_000, ["nested too deep"]),
    (b'{"a":' * 200_000, ["nested too deep"]),
    (b'{"x": {"a": 1, "b": 2, "a": 3}}', ["x: the key 'a' is there more than once"]),
    (b'{"a": 1, "a": 1, "b": 1, "b": 1}', ["2 issues", "definition: the key 'a'", "the key 'b'"]),
    (b'{"a": {"b": [0, NaN]}}', ["a.b[1]: expected a number", "finite"]),
    (b'{"a": Infinity, "b": -Infinity}', ["2 issues", "a: expected", "b: expected", "finite"]),
    (b'{"a": 1e999}', ["a: expected", "finite"]),
    (b'{"a": ' + b"9" * 5000 + b"}", ["a: expected", "length"]),
    (b"null", ["expected a JSON object, found null"]),
    (b'["a"]', ["expected a JSON object, found a list"]),
    (b'"a"', ["expected a JSON object, found text"]),
    (b"12", ["expected a JSON object, found a number"]),
]


@pytest.mark.parametrize(("data", "words"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_definition_is_told_with_its_place(data: bytes, words: list[str]) -> None:
    """Bad syntax with line and column, a bad value with its label."""
    with pytest.raises(BadDefinition) as caught:
        load(data)
    for word in words:
        assert word in str(caught.value)


def test_a_byte_order_mark_is_no_fault() -> None:
    """Some editors put one in front."""
    assert load(b'\xef\xbb\xbf{"a": 1}') == Document({"a": 1})


@given(st.binary())
def test_no_bytes_end_in_anything_but_a_document_or_bad_definition(data: bytes) -> None:
    """Whatever stands at the znode."""
    try:
        assert isinstance(load(data), Document)
    except BadDefinition as error:
        assert str(error).encode()


@given(st.text('{}[]",:\\u0dD8aE+-.123 \nN\ufeff', max_size=30))
def test_no_text_ends_in_anything_but_a_document_or_bad_definition(text: str) -> None:
    """The same for text that is nearly JSON."""
    try:
        assert isinstance(load(text.encode("utf-8", "surrogatepass")), Document)
    except BadDefinition as error:
        assert str(error).encode()


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
    """Text that stands for a number is converted; all else leaves an issue and reads as the default."""
    read = fields(value, rendered="35")
    assert read.whole("key", None) == number
    assert bool(read.reading.issues) is (number is None)


SECONDS: list[tuple[object, object]] = [
    *((0, 0.0), (0.5, 0.5), ("0.5", 0.5), ("7", 7.0), ("{{ n }}", 35.0), (1_000_000_000, 1e9)),
    *((-0.5, None), ("-1", None), ("nan", None), ("inf", None), (True, None), ("5s", None), ([1], None)),
    *((1_000_000_001, None), (10**400, None), ("1e3", None), (".5", None)),
]


@pytest.mark.parametrize(("value", "number"), SECONDS)
def test_seconds_may_be_text_and_have_a_fraction(value: object, number: object) -> None:
    """No clock has to add up what it can't."""
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
    assert read.flag("key", True) is (True if flag is None else flag)
    assert bool(read.reading.issues) is (flag is None)


def test_null_is_the_default_only_where_that_is_none() -> None:
    """A key whose default is a number can't be null by mistake."""
    read = fields(None)
    assert (read.whole("key", None), read.seconds("key", None), read.word("key", None, len_form)) == (
        None,
    ) * 3
    assert read.reading.issues == []
    assert read.whole("key", 5) == 5
    assert read.reading.issues == ["x.key: expected a whole number from 0 to 1000000000, found null"]


def len_form(text: str) -> str | None:
    return None if len(text) < 4 else "expected something short"


@pytest.mark.parametrize("bad", ["a\0", "\ud800"])
def test_a_string_that_no_process_can_be_given_is_refused(bad: str) -> None:
    """NUL and half characters fail in exec, in files and in ZooKeeper alike."""
    document = load(json.dumps({"key": bad}).encode())
    for read in (fields(document.root["key"]), fields("{{ a }}", rendered=bad)):
        read.word("key", None, len_form)
        read.reading.final(Text("x", str(read.raw("key"))), len_form)
        assert len(read.reading.issues) == 2
        assert str(read.reading.issues).encode()


def test_what_a_template_gave_is_not_repeated() -> None:
    """It may hold a secret; what stands in the definition is shown, and cut."""
    read = fields("{{ password }}", rendered="s3cret")
    read.whole("key", 0)
    read.word("key", "", len_form)
    read.reading.final(Text("x.key", "{{ password }}"), len_form)
    assert len(read.reading.issues) == 3
    assert "s3cret" not in " ".join(read.reading.issues)
    assert all("its template gives something else" in issue for issue in read.reading.issues)
    read = fields("long" * 1000)
    read.word("key", "", len_form)
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
