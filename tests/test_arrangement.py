"""The tests as CI systems run them: in the background, and in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import signal, subprocess
from tests.arrangement import section

def test_what_a_test_starts_can_be_interrupted():
    with subprocess.Popen(["sleep", "100"]) as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(50) == -signal.SIGINT

def test_a_line_is_told(pytestconfig):
    section(pytestconfig, "told").append("one line")
"""


@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["one process", "another process"])
def test_a_run_in_the_background_is_like_any_other(tmp_path: Path, processes: list[str]) -> None:
    """A shell without job control has SIGINT ignored there; and what is told comes from every process."""
    (tmp_path / "test_it.py").write_text(TESTS)
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    pytest_ = (sys.executable, "-m", "pytest", "-p", "tests.arrangement", *processes)
    done = subprocess.run(
        ("sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest_),
        cwd=tmp_path,
        env={**given, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "= told =" in done.stdout
    assert "\none line\n" in done.stdout
