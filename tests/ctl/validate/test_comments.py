"""What jinja2 would drop without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.ctl.validate.rules import validate
from tests.ctl.sources import load
from tests.support.publishing import write_files


def warnings(directory: Path, definition: str, file: str = "") -> list[str]:
    """The messages about a service with this definition, each with its line in a file, if it is about one."""
    write_files(directory, services__a__definition_yml=definition, services__a__files__run=file)
    return [f"{each.line}: {each.message}" for each in validate(load(directory).deployment)]


FILE = "commands: {one: {command: 'true', files: {run: {dest: /run/a%s}}}}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/sh\na=1\necho ${#a}\n# b #}\n", 3),
        ("echo ${#a[@]} {# c #}\n", 1),
        ("{# c #}\n{#FS.NAME}\n{# c #}\n", 2),
        ('a "{#{ENV[1]}}" #}\n', 1),
    ],
)
def test_the_length_in_a_shell_is_named_as_a_comment(tmp_path: Path, text: str, line: int) -> None:
    (found,) = warnings(tmp_path, FILE % "", text)
    assert found.startswith(f"{line}: file run: {{# begins a comment of jinja2 here")
    assert "{% raw %}" in found and "template: false" in found


def test_a_comment_without_an_end_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, FILE % "", "a\necho ${#a}\n")
    assert found.startswith(
        "2: file run: {# begins a comment that is not closed: add '#}', or write {% raw %}"
    )


def test_the_length_in_a_command_is_named_too(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, "commands:\n  one:\n    command: |\n      true\n      echo ${#a} #}\n")
    assert "commands.one.command: {# begins a comment" in found and "template: false" not in found


@pytest.mark.parametrize(
    "text",
    [
        "{# a comment #}\n",
        "{% raw %}${#a}{% endraw %}\n",
        "a$ {# ${#a} #}\n",
        "echo $#\n",
        "{#{{ a }}#}{#a#}{#- b -#}\n",
    ],
)
def test_a_comment_or_raw_text_is_no_mistake(tmp_path: Path, text: str) -> None:
    assert warnings(tmp_path, FILE % "", text) == []


def test_a_file_that_is_no_template_may_hold_everything(tmp_path: Path) -> None:
    assert warnings(tmp_path, FILE % ", template: false", "echo ${#a}\n") == []
