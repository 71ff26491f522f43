"""Variables that a shell would drop without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ctl.sources import findings
from tests.support.publishing import write_files

SHELL = "commands: {one: {command: %s, env: {%s: '1'}}}\n"
SETTING = "service: {daemon: {command: [a], env: {a.b: '1'}, %s}}\n"


def warnings(directory: Path, definition: str) -> list[str]:
    """The messages about a service with this definition."""
    write_files(directory, services__a__definition_yml=definition, services__a__files__run="")
    return [each.message for each in findings(directory)]


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
