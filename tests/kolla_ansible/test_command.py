"""`kolla_mesos_ctl import`: what is refused before the recording, which takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator import cli


def run(*words: str | Path) -> int:
    return cli.run(["import", "kolla-ansible", *map(str, words)])


def test_another_directory_is_refused_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with pytest.raises(BadUsage, match="is not empty"):
        run("--ansible", tmp_path / "absent", "--inventory", tmp_path / "absent", "--output", tmp_path)
