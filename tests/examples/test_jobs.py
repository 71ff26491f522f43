"""The definitions and programs of the example that bin/quickstart runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.definition.document import load
from tests import EXAMPLES

EXAMPLE = EXAMPLES / "quickstart"


def test_every_dependency_of_the_example_is_there() -> None:
    """The definitions are read without an issue, and name each other rightly."""
    deployment = directory.read(EXAMPLE)
    assert [service.name for service in deployment.services] == [
        "jobs/api",
        "jobs/database",
        "jobs/front",
        "jobs/worker",
    ]
    for service in deployment.services:
        load(service.definition)
        assert service.files


def test_a_second_schema_is_an_error(tmp_path: Path) -> None:
    """Nothing is pretended: were the one-time command run twice, the second run would fail."""
    database = EXAMPLE / "services" / "jobs" / "database" / "files" / "database.py"
    api = EXAMPLE / "services" / "jobs" / "api" / "files" / "api.py"
    statements = f"""
import sys; sys.path[:0] = [{str(database.parent)!r}, {str(api.parent)!r}]
import api, database
database.FILE = {str(tmp_path / "jobs.sqlite")!r}
database.execute(api.SCHEMA)
database.execute(api.SCHEMA)
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", statements], capture_output=True, text=True, timeout=60
    )
    assert "table jobs already exists" in done.stderr
