"""The JSON of a definition: bad syntax and bad values are reported with their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolla_mesos_start.definition.document import Document, load
from kolla_mesos_start.errors import BadDefinition

BROKEN: list[tuple[bytes, list[str]]] = [
    (b"", ["bad JSON", "line 1 column 1"]),
    (b'{"a": 1,\n "b" 2}', ["bad JSON", "expected a ':' after the name", "line 2 column 6"]),
    (b'{"a": 1,}', ["bad JSON", "a comma before ", "line 1 column "]),
    (b'{"a": 1} x', ["bad JSON", "text after the closing bracket", "line 1 column 10"]),
    (b"{\n\n  'a': 1}", ["bad JSON", "double quotes", "line 3 column 3"]),
    (b'{"a": "tab\there"}', ["bad JSON", "control character in a text: write \\n or \\t, line 1 column 11"]),
    (b'{"a": {{ b }} }', ["bad JSON", "line 1 column 8"]),
    (b'{"a": "\xff"}', ["not UTF-8", "line 1 column 8"]),
    (b'{\n"a": "\xc3\xbc\xff"}', ["not UTF-8", "line 2 column 9"]),
    ('{"a": 1}'.encode("utf-16"), ["not UTF-8", "line 1 column 1"]),
    (b"[" * 200_000, ["nested too deep"]),
    (b'{"a":' * 200_000, ["nested too deep"]),
    (b'{"x": {"a": 1, "b": 2, "a": 3}}', ["x: the key 'a' is there more than once"]),
    (b'{"a": 1, "a": 1, "b": 1, "b": 1}', ["2 issues", "definition: the key 'a'", "the key 'b'"]),
    (b'{"a": {"b": [0, NaN]}}', ["a.b[1]: expected a finite number"]),
    (b'{"a": Infinity, "b": -Infinity}', ["2 issues", "a: expected", "b: expected", "finite"]),
    (b'{"a": 1e999}', ["a: expected", "finite"]),
    (b'{"a": ' + b"9" * 5000 + b"}", ["a: expected", "300 characters"]),
    (b"null", ["expected a JSON object, found null"]),
    (b'["a"]', ["expected a JSON object, found a list"]),
    (b'"a"', ["expected a JSON object, found text"]),
    (b"12", ["expected a JSON object, found a number"]),
]


@pytest.mark.parametrize(("data", "words"), BROKEN, ids=range(len(BROKEN)))
def test_bad_json_is_refused_with_its_place(data: bytes, words: list[str]) -> None:
    """Bad syntax with line and column, a bad value with its label."""
    with pytest.raises(BadDefinition) as caught:
        load(data)
    for word in words:
        assert word in str(caught.value)


def test_a_byte_order_mark_is_ignored() -> None:
    """Some editors put one in front."""
    assert load(b'\xef\xbb\xbf{"a": 1}') == Document({"a": 1})


@given(st.binary())
def test_no_bytes_end_in_anything_but_a_document_or_bad_definition(data: bytes) -> None:
    """Whatever the znode holds."""
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
