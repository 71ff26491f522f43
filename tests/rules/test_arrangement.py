"""The tests as CI systems run them: in the background, and in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.arrangement import DIVIDED, FIRST, TOGETHER

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import signal, subprocess
import pytest
from tests.support.arrangement import section

@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_what_a_test_starts_can_be_interrupted(signum):
    with subprocess.Popen(["sleep", "20"]) as child:
        child.send_signal(signum)
        assert child.wait(50) == -signum

def test_a_line_is_told(pytestconfig):
    section(pytestconfig, "told").append("one line")

@pytest.fixture(scope="module")
def shared(pytestconfig):
    section(pytestconfig, "told").append("made once")

@pytest.mark.parametrize("number", range(8))
def test_a_fixture_is_shared(shared, number):
    pass
"""


@pytest.mark.parametrize("processes", [[], ["-n3"]], ids=["one process", "three"])
def test_a_run_in_the_background_is_like_any_other(tmp_path: Path, processes: list[str]) -> None:
    """A shell without job control has SIGINT ignored there, nohup SIGHUP; what is told comes from every
    process, once."""
    (tmp_path / "test_it.py").write_text(TESTS)
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    pytest_ = (sys.executable, "-m", "pytest", "-p", "tests.conftest", *processes)
    done = subprocess.run(
        ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *pytest_),
        cwd=tmp_path,
        env={**given, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "= told =" in done.stdout
    assert "failed: " not in done.stdout
    assert (done.stdout.count("\none line\n"), done.stdout.count("\nmade once\n")) == (1, 1)


def test_every_file_that_is_named_is_there() -> None:
    """Another name would go unnoticed: the run would only take longer."""
    files = (*FIRST, *DIVIDED, *(file for each in TOGETHER.values() for file in each))
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("file", DIVIDED)
def test_a_file_that_is_divided_shares_nothing(file: str) -> None:
    """Each process would make it again."""
    assert "fixture(scope=" not in (ROOT / file).read_text()


def test_a_failure_is_named_at_once(tmp_path: Path) -> None:
    """Before the other tests have run, and in a line of its own."""
    (tmp_path / "test_it.py").write_text("def test_fails():\n    assert 0\n\ndef test_passes():\n    pass\n")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-p", "tests.conftest"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    named = done.stdout.index("\nfailed: test_it.py::test_fails\n")
    assert named < done.stdout.index("[100%]")
