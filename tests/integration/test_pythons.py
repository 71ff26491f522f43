"""The agent does its work on every Python of this machine, with the lowest versions that setup.py allows.

The rest of the run has one Python, and the versions of `tests/requirements.txt`. A Python that is not on
this machine is no failure; which were there is told below the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT, pins, pythons
from tests.arrangement import say, section

# Some wait for an environment.
pytestmark = pytest.mark.timeout(900)

PYTHONS = pythons.found()
TITLE = f"with {' '.join(pins.lowest())}"
# Real agents: templates, files, dependencies, one-time commands, daemons that become ready, and probes.
AGENTS = (
    "tests/integration/test_attacks.py",
    "tests/integration/test_check_and_health.py",
    "tests/integration/test_marathon.py",
    "tests/integration/test_rendering.py",
    # They take as long as all others, and only tell what ZooKeeper makes of a session.
    *("-k", "not a_session"),
)
# What imports no package: where the oldest Python is that of the rest of the run, it was tested there.
GUARD = (
    ("tests/commands/test_guard.py",),
    ("tests/commands/test_guard_client.py", "tests/commands/test_lease.py"),
)
# All that needs neither the operator's packages nor a server, in parts that take as long as each other.
PARTS = (
    *(() if PYTHONS[0].minor == sys.version_info.minor else GUARD),
    (
        "tests/daemon",
        "tests/files",
        "tests/test_health.py",
        "tests/host/test_network.py",
        "tests/test_loop.py",
    ),
    (
        "tests/definition",
        "tests/render",
        "tests/tree",
        "tests/wait",
        "tests/test_log.py",
        "tests/test_settings.py",
    ),
)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not `tmp_path`, whose name is that of the test: a socket's path must be short."""
    return tmp_path_factory.mktemp("p")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: str(python.version))
def test_agents_work_with_the_lowest_versions(
    python: pythons.Python, pytestconfig: pytest.Config, place: Path
) -> None:
    """A wheel of each is there too: a container's image has no compiler."""
    lines = section(pytestconfig, TITLE)
    if python is PYTHONS[0] and pythons.missing():
        lines.append(f"not run, since not on this machine: Python {', '.join(pythons.missing())}")
    lines.append(f"Python {python.version}, agents: {passed(python, AGENTS, pytestconfig, place)}")


@pytest.mark.parametrize("part", PARTS, ids=" ".join)
def test_the_parts_of_the_agent_work_with_the_oldest_python(
    part: Sequence[str], pytestconfig: pytest.Config, place: Path
) -> None:
    """And with the lowest versions."""
    oldest = PYTHONS[0]
    text = f"Python {oldest.version}, {' '.join(part)}: {passed(oldest, part, pytestconfig, place)}"
    section(pytestconfig, TITLE).append(text)


def passed(python: pythons.Python, tests: Sequence[str], config: pytest.Config, place: Path) -> str:
    """How many of the tests pass with this Python; an error unless all do."""
    program = pythons.environment(python, CHECKOUT / ".cache", partial(say, config))
    done = subprocess.run(
        (program, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={place}", *tests),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (last,) = re.findall(r"^=*\s*(\d+ passed.* in .*?)[\s=]*$", done.stdout, re.MULTILINE)
    return str(last)
