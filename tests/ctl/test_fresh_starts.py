"""Each subcommand of the operator's tool as a process of its own: most tests fork one that has all imports.

`up`, `metrics` and `import` are started by their own tests; here they only print their help.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.cli import SUBCOMMANDS
from tests.conftest import Deployment
from tests.support.publishing import write_files
from tests.support.tool import TOOL, ctl, environ
from tests.support.waiting import LIMIT

DEFINITION = """
commands: {sync: {command: 'true', run_once: true}, position: {command: db}}
service: {daemon: {command: db, election: {position: db/position, members: 1, start: db}}}
"""
LAUNCH = "zookeeper: zk:2181\ndefaults: {image: db}\n"
# The arguments, and the exit status. DIR is a directory with one service, which is published.
STARTS: dict[str, tuple[str, int]] = {
    "validate": ("DIR", 0),
    "schema": ("", 0),
    "diff": ("DIR", 0),
    "publish": ("DIR", 0),
    "status": ("", 1),
    "explain": ("", 1),
    "wait": ("--timeout 0", 75),
    "events": ("", 0),
    "timeline": ("", 0),
    "metrics": ("--help", 0),
    "graph": ("", 0),
    "restart": ("db", 66),
    "rerun": ("db/sync", 0),
    "adopt": ("db/sync", 0),
    "elect": ("db", 1),
    "get": ("size", 0),
    "set": ("size 2", 0),
    "unset": ("size", 0),
    "remove": ("db --yes", 0),
    "reset": ("--yes", 0),
    "snapshot": ("OUT", 0),
    "restore": ("SNAPSHOT --deployment other", 0),
    "up": ("--help", 0),
    "manifests": ("compose DIR --output OUT", 0),
    "import": ("--help", 0),
    "completion": ("bash", 0),
}


def test_every_subcommand_is_started() -> None:
    assert [*STARTS] == [each.name for each in SUBCOMMANDS]


@pytest.mark.parametrize("name", STARTS)
def test_a_subcommand_imports_what_it_needs(deployment: Deployment, tmp_path: Path, name: str) -> None:
    files = {"services__infra__db__definition_yml": DEFINITION, "launch_yml": LAUNCH}
    root = write_files(tmp_path / "site", variables_yml="size: 1\n", **files)
    ctl(deployment, "publish", root, "--no-validate")
    ctl(deployment, "snapshot", tmp_path / "snapshot")
    places = {"DIR": root, "OUT": tmp_path / "out", "SNAPSHOT": tmp_path / "snapshot"}
    words = [str(places.get(word, word)) for word in STARTS[name][0].split()]
    argv = [sys.executable, str(TOOL), name, *words]
    done = subprocess.run(argv, env=environ(deployment), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == STARTS[name][1], done.stdout + done.stderr
