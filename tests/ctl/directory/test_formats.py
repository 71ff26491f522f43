"""YAML and JSON, as definitions and as values of variables."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Callable

import pytest
from ruamel.yaml import YAML

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.errors import BadDefinition
from tests.support.publishing import write_files


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("True", "True"),
        ("0644", "0644"),
        ("0o644", "0o644"),
        ("30:15", "30:15"),
        ("2026-11-21", "2026-11-21"),
        ("1_000", "1_000"),
        (".5", ".5"),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-1", -1),
        ("1.5", 1.5),
        ("3.10", "3.10"),
        ("1e3", "1e3"),
        ("-0", "-0"),
        ("'12'", "12"),
    ],
)
def test_a_plain_word_means_what_it_means_in_json(tmp_path: Path, written: str, value: object) -> None:
    """No octal, no sexagesimal, no dates and no `yes`: `perm: 0644` stays the text that is written."""
    path = write_files(tmp_path, d_yml=f"key: {written}\n") / "d.yml"
    assert json.loads(formats.definition(path)) == {"key": value}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("v.yml", "a: yes\nb: 0644\nc: 1.10\nd:\ne: ~\nf: ''\ng: true\n", "yes|0644|1.10||||true"),
        ("v.json", '{"a": "yes", "b": 12, "c": 1.10, "d": null, "e": false}', "yes|12|1.10||false"),
    ],
)
def test_a_variables_value_is_the_text_that_is_written(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    """A version 1.10 is not 1.1, and a file mode 0644 is not 420."""
    (tmp_path / name).write_text(content)
    assert (
        "|".join(formats.text(value) or "" for value in formats.values(tmp_path / name).values()) == expected
    )


def test_anchors_and_merges_work_in_definitions(tmp_path: Path) -> None:
    """What YAML has to say a thing once; a key of one's own wins over a merged one."""
    content = "x: &x {a: 1, b: 2}\ny: &y\n  <<: *x\n  b: 3\nz:\n  <<: *y\n  1: one\n"
    path = write_files(tmp_path, d_yml=content) / "d.yml"
    assert json.loads(formats.definition(path)) == {
        "x": {"a": 1, "b": 2},
        "y": {"a": 1, "b": 3},
        "z": {"a": 1, "b": 3, "1": "one"},
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' occurs more than once, line 3 column 1"),
        ("a: *b\n",
         "* at the beginning means an alias, and this one is unknown: put the whole value in quotes"),
        ("a: {{ b }}\n", "put a value that begins with {{ in quotes, line 1 column 5"),
        ("a: !!python/object:os.system {}\n", "bad YAML: ! at the beginning means a tag, which is unknown"),
        ("a: !!binary aGk=\n", "something that JSON can't express"),
        ("a: &a [*a]\n", "bad YAML: an alias inside of its own anchor, line 1 column 8"),
        ("a: \x01\n", "control characters"),
        ("[" * 5000, "nested too deep"),
        ("a: 1\nb: !!int x\n", "bad YAML: not a value of its tag, or too long, line 2 column 4"),
        ('a: !!int ""\n', "not a value of its tag"),
        ("a: !!bool maybe\n", "not a value of its tag"),
        ("a: !!timestamp 2026-13-01\n", "not a value of its tag"),
        ("a: !!timestamp x\n", "not a value of its tag"),
        (f"a: {'9' * 5000}\n", "or too long, line 1 column 4"),
        ('a: "\\U00110000"\n', "an impossible number after"),
        ('a: "\\UFFFFFFFF"\n', "an impossible number after"),
        (f"%YAML 1.{'9' * 5000}\n--- a\n", "impossible version after %YAML"),
    ],
)  # fmt: skip
def test_yaml_that_is_no_definition_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    """With line and column, where there is one."""
    path = write_files(tmp_path, d_yml=content) / "d.yml"
    with pytest.raises(BadDefinition) as caught:
        formats.definition(path)
    assert expected in caught.value.reason


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a:\n  b: 1\n   c: 2\n", "this line is indented further than the one above, which"),
        ("a:\n   b: 1\n  c: 2\n", "does not fit the mapping or list that begins on line 1: align"),
        ("x: 1\na:\n  - x\n  y: 2\n", "does not fit the mapping or list that begins on line 3: align"),
        ("a: 1\n- b\n", "does not fit the mapping or list that begins on line 1: align"),
        ("a:\n\tb: 1\n", "a tab: indent with spaces, line 2 column 1"),
        ("a: [1\nb: 2\n", "the [ of line 1 is not closed, or a comma is missing, line 2 column 2"),
        ("\na: {b: 1\n", "the { of line 2 is not closed, or a comma is missing, line 3 column 1"),
        ("\na: 'x\n", "the quote that begins on line 2 is not closed, line 3 column 1"),
        ("a: b: c\n", "a second ': ' in one line: put a value that contains ': ' in quotes, line 1 column 5"),
        ("a: {{ b }}/x\n", "a value that begins with {{ in quotes"),
        ("a: 'it's'\n", "text after the end of a value: remove it, or put the whole value in quotes"),
        ("a: 1\nb:2\nc: 3\n", "line 2 lacks a ': ' (a colon and a space) after its key"),
        ("a: @secret\n",
         "a value can't begin with %, @ or `: put the whole value in quotes, line 1 column 4"),
        ("a: {% if x %}\n", "a value can't begin with %, @ or `"),
        ("a: }\n", "a value can't begin with this character: put the whole value in quotes"),
        ("a: &\n", "& or * at the beginning needs a name: put the whole value in quotes"),
        ('a: "\\q"\n',
         "an unknown escape after a backslash: use single quotes, or write \\\\, line 1 column 6"),
        ("a: 1\n---\nb: 2\n", "a second document begins here (---): a file holds one, line 2 column 1"),
        ("a: - b\n", "a list item (- ) after other text: give it its own line"),
        ("a: >x\n y\n", "text after | or >: begin it on the next line, line 1 column 5"),
    ],
)  # fmt: skip
def test_mistakes_in_yaml_are_explained_in_plain_words(tmp_path: Path, content: str, expected: str) -> None:
    """With what to do; neither the parser's words nor a value."""
    path = write_files(tmp_path, d_yml=content) / "d.yml"
    with pytest.raises(BadDefinition) as caught:
        formats.definition(path)
    assert expected in caught.value.reason
    assert "<block" not in caught.value.reason and "secret" not in caught.value.reason


LEVELS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("first", "level"),
    [
        ("[lol, lol]", "[*{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}]"),
        ("{x: lol}", "{{k: *{0}, l: *{0}, m: *{0}, n: *{0}, o: *{0}}}"),
        ("{x: lol}", "{{<<: [*{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}]}}"),
        (f"[{'x' * 100_000}]", "[*{0}, *{0}, *{0}, *{0}]"),
    ],
)
@pytest.mark.parametrize("read", [formats.definition, formats.values])
def test_aliases_that_stand_for_too_much_are_refused(
    tmp_path: Path, read: Callable[[Path], object], first: str, level: str
) -> None:
    """A few lines can stand for more than any memory holds; the error says where they go too far."""
    lines = [f"a: &a {first}"]
    lines += [f"{n}: &{n} {level.format(before)}" for before, n in zip(LEVELS, LEVELS[1:])]
    path = write_files(tmp_path, d_yml="\n".join(lines)) / "d.yml"
    started = time.process_time()
    with pytest.raises(BadDefinition, match=r"aliases have more than 1000000 characters, line \d+ column"):
        read(path)
    assert time.process_time() - started < 10


def test_a_large_document_may_have_aliases(tmp_path: Path) -> None:
    """Only the size of expanded aliases is limited, far above usual files."""
    lines = ["x: &x {image: registry.example.org/kolla/service:2026.1, retries: 3}"]
    lines += [f"k{n}:\n  <<: *x\n  name: {'n' * 400}" for n in range(5000)]
    path = write_files(tmp_path, d_yml="\n".join(lines)) / "d.yml"
    found = json.loads(formats.definition(path))
    assert len(found) == 5001
    assert found["k4999"]["retries"] == 3


def test_a_definition_in_json_is_published_as_it_is(tmp_path: Path) -> None:
    """Then a line and column that an agent names are those of the operator's file."""
    path = write_files(tmp_path, d_json='{"a":\n 1}') / "d.json"
    assert formats.definition(path) == b'{"a":\n 1}'


ODD = {
    "plain": "aB3-_=",
    "empty": "",
    "truth": "yes",
    "number": "0123",
    "lines": "a\n  b\n\n",
    "quotes": "'\" #: {{ x }}",
    "controls": "\t\x00\x7f\x85\u2028",
    "wide": "é\U0001f511" + "x " * 200,
    "-": "- ",
    "<<": "*a",
}


@pytest.mark.parametrize(
    "before",
    ["", "# only a comment", "a: 1", "a: 1\r\n", "---\na: |\n  1\n", "\ufeffa: 1\n"],
)
def test_values_of_any_kind_can_be_added_to_yaml(tmp_path: Path, before: str) -> None:
    """What is there stays, byte for byte."""
    path = write_files(tmp_path, v_yml=before) / "v.yml"
    known = formats.values(path)
    more = formats.appended(before.encode(), ODD)
    assert more.startswith(before.encode())
    path.write_bytes(more)
    assert formats.values(path) == {**known, **ODD}


def test_a_value_that_is_there_already_is_not_added() -> None:
    with pytest.raises(BadDefinition, match="another run has just added a to it"):
        formats.appended(b"a: 1\n", {"a": "2"})


@pytest.mark.parametrize("before", ["{}\n", "{a: 1}", '{"a": "1"}', "a: |\n  1", "a: 1\n...\n", "- a\n"])
def test_nothing_is_added_where_that_would_change_what_is_there(before: str) -> None:
    with pytest.raises(BadDefinition, match="nothing can be added to it"):
        formats.appended(before.encode(), ODD)


@pytest.mark.parametrize(
    "text",
    ["1e3", "7912e34", "0o14", "0x1F", "-.5", "1_e3", "+0o7", "12:30:45", "y", "Y", "n", "N", "yes", "~"],
)
def test_a_text_is_one_to_whoever_reads_the_yaml(text: str) -> None:
    """PyYAML alone takes them for texts as they are: to YAML 1.2, and to kubectl, they are something else."""
    dumped = formats.dumped([{text: text}])
    assert dumped == f"---\n'{text}': '{text}'\n"
    assert YAML(typ="safe", pure=True).load(dumped) == {text: text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "$ANSIBLE_VAULT;1.1;AES256\n3661\n",
            "ansible-vault has encrypted it: decrypt a copy: ansible-vault decrypt",
        ),
        ("db: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3661\n", "a value that ansible-vault has encrypted"),
        ("a:\n  b: !vault x\n", "a value that ansible-vault has encrypted"),
        ("a: x\nsops:\n    mac: ENC[AES256_GCM,data:3661]\n", "sops decrypt passwords.yml >COPY"),
        ('{"sops": {\n\t"mac": "ENC[AES256_GCM,data:3661]"}}', "sops has encrypted it: decrypt a copy"),
        ("a=x\nsops_mac=ENC[AES256_GCM,data:3661]\n", "sops has encrypted it: decrypt a copy"),
    ],
)
def test_what_is_encrypted_is_named(tmp_path: Path, text: str, expected: str) -> None:
    """It would be published as it is; no cipher text is shown."""
    file = tmp_path / "passwords.yml"
    file.write_text(text)
    with pytest.raises(BadDefinition) as caught:
        formats.values(file)
    assert expected in str(caught.value.issues[0]) and "3661" not in str(caught.value.issues)


def test_a_file_that_is_still_encrypted_is_refused_behind_white_space(tmp_path: Path) -> None:
    """An editor or a template has added it."""
    path = tmp_path / "password"
    path.write_text("\ufeff\n  $ANSIBLE_VAULT;1.2;AES256;prod\n3661\n")
    with pytest.raises(BadDefinition, match="ansible-vault has encrypted it"):
        formats.read(path)


def test_a_value_in_a_file_that_is_still_encrypted_is_refused(tmp_path: Path) -> None:
    """Without the tag !vault it is a text like any other; also the value of a host."""
    path = tmp_path / "variables.yml"
    path.write_text("a: |\n  $ANSIBLE_VAULT;1.1;AES256\n  3661\nh1: {b: ' $ANSIBLE_VAULT;1.1 36'}\nc: ok\n")
    with pytest.raises(BadDefinition, match=r"(?s)a: ansible-vault.*h1\.b: ansible-vault"):
        formats.values(path)
