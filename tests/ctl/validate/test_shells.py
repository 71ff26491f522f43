"""What a shell or jinja2 would drop without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.ctl.validate.rules import validate
from tests.ctl.sources import load
from tests.publishing import write_files


def warnings(directory: Path, definition: str, file: str = "") -> list[str]:
    """The messages about a service with this definition, each with its line in a file, if it is about one."""
    write_files(directory, services__a__definition_yml=definition, services__a__files__run=file)
    return [f"{each.line}: {each.message}" for each in validate(load(directory).deployment)]


SHELL = "commands: {one: {command: %s, env: {%s: '1'}}}\n"
SETTING = "service: {daemon: {command: [a], env: {a.b: '1'}, %s}}\n"


@pytest.mark.parametrize(
    "command", ["'echo $HOME'", "[sh, -c, env]", "[/bin/dash, -c, env]", "[ash, run]", "'a | b'"]
)
@pytest.mark.parametrize("name", ["a.b", "1a", "a-b", "é"])
def test_a_variable_that_a_shell_drops_is_named(tmp_path: Path, command: str, name: str) -> None:
    (found,) = warnings(tmp_path, SHELL % (command, name))
    assert f"the shell of one may drop '{name}', which is no name in a shell" in found


def test_each_variable_that_a_shell_drops_is_named(tmp_path: Path) -> None:
    found = warnings(tmp_path, "commands: {one: {command: 'a | b', env: {a.b: '1', ok: '1', c.d: '1'}}}\n")
    assert [name for name in ("a.b", "ok", "c.d") if any(f"drop '{name}'" in each for each in found)] == [
        "a.b",
        "c.d",
    ]


@pytest.mark.parametrize("name", ['""', "a=b", '"a\\0b"'])
def test_an_impossible_name_is_one_error(tmp_path: Path, name: str) -> None:
    (found,) = warnings(tmp_path, SHELL % ("'a | b'", name))
    assert "drop" not in found


@pytest.mark.parametrize(
    "setting",
    [
        "ready: {command: 'echo $x'}",
        "on_change: {command: [sh, -c, x]}",
        "before_stop: {command: 'a | b'}",
        "files: {run: {dest: /run/a, check: 'a | b'}}",
    ],
)
def test_other_commands_of_a_daemon_may_run_a_shell_too(tmp_path: Path, setting: str) -> None:
    (found,) = warnings(tmp_path, SETTING % setting)
    assert "the shell of daemon may drop 'a.b'" in found


@pytest.mark.parametrize("command", ["env", "[env]", "[bash, -c, env]"])
def test_without_dash_no_variable_is_dropped(tmp_path: Path, command: str) -> None:
    assert warnings(tmp_path, SHELL % (command, "a.b")) == []


def test_a_name_of_a_shell_is_no_mistake(tmp_path: Path) -> None:
    assert warnings(tmp_path, SHELL % ("'echo $a_1'", "a_1")) == []


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
