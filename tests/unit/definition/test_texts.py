"""Texts of variables: which of them have something at their ends that nobody sees."""

from __future__ import annotations

import pytest

from kolla_mesos_start.definition.strings import untidy


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("s3cret\r", "ends with a carriage return, as in files of Windows"),
        ("s3cret\r\n\n", "ends with a carriage return, as in files of Windows"),
        ("a\r\nb\n", "has a carriage return, as in files of Windows"),
        ("\ufeffs3cret", "begins with a byte order mark"),
        ("s3cret\n", "ends with a newline"),
        ("s3cret\n\n", "ends with a newline"),
        (" s3cret", "begins with a blank"),
        ("s3cret\t", "ends with a blank"),
        (" s3cret\u00a0", "begins and ends with a blank"),
        ("s3 cret", ""),
        ("two\nlines\n", ""),
        ("", ""),
        (" ", ""),
        ("\n", ""),
    ],
)
def test_what_nobody_sees_in_a_value_is_named(value: str, what: str) -> None:
    assert untidy(value) == what
