"""Variables of an environment that no process can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.ctl.validate.rules import validate
from tests.ctl.sources import load
from tests.support.publishing import write_files


@pytest.mark.parametrize("name", ['""', "a=b", '"a\\0b"'])
def test_an_impossible_name_of_an_environment_variable_is_one_error(tmp_path: Path, name: str) -> None:
    """It is not reported as one that a shell drops, too."""
    definition = f"commands: {{one: {{command: 'a | b', env: {{{name}: '1'}}}}}}\n"
    write_files(tmp_path, services__a__definition_yml=definition)
    (found,) = validate(load(tmp_path).deployment)
    assert found.severity == "error" and "commands.one.env" in found.message
