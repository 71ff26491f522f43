"""The agent works on every Python of this machine, with the lowest versions that setup.py allows.

All other tests use one Python and the versions of `tests/requirements.txt`. The oldest and the newest Python
here run many agents. Those between import every module and run a few agents.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support import pins, pythons
from tests.support.arrangement import say, section

# Some wait for an environment.
pytestmark = pytest.mark.timeout(900)

PYTHONS = pythons.found()
TITLE = f"with {' '.join(pins.lowest())}"
# Real agents: templates, files, dependencies, one-time commands, daemons that become ready, and probes.
AGENTS = (
    "tests/agent/test_attacks.py",
    "tests/agent/test_check_and_health.py",
    "tests/agent/test_marathon.py",
    "tests/agent/test_rendering.py",
    # They take as long as all others, and only tell what ZooKeeper makes of a session.
    *("-k", "not a_session"),
)
# One agent from its start to its daemon, one that renders a template, and one that fails.
FEW_AGENTS = (
    "tests/agent/test_check_and_health.py::test_health_follows_a_container_through_all_its_stages",
    "tests/agent/test_rendering.py::test_all_missing_variables_and_files_are_named_together",
    "tests/agent/test_rendering.py::test_templates_can_list_members_and_instances",
)
# The operator's tool needs packages that these environments lack.
IMPORT_ALL = """\
import importlib, pathlib
for path in sorted(pathlib.Path("kolla_mesos_start").rglob("*.py")):
    if not {"ctl", "kolla_ansible"} & {*path.parts}:
        importlib.import_module(".".join(path.with_suffix("").parts))
"""
# What imports no package: where the oldest Python is that of the rest of the run, it was tested there.
GUARD = (
    ("tests/process/commands/test_guard.py",),
    ("tests/process/commands/test_guard_client.py", "tests/process/commands/test_lease.py"),
)
# All that needs neither the operator's packages nor a server, in parts that take as long as each other.
PARTS = (
    *(() if PYTHONS[0].minor == sys.version_info.minor else GUARD),
    (
        "tests/process/daemon",
        "tests/process/files",
        "tests/process/test_health.py",
        "tests/process/host/test_network.py",
        "tests/process/test_loop.py",
    ),
    (
        "tests/unit/definition",
        "tests/unit/render",
        "tests/unit/tree",
        "tests/unit/wait",
        "tests/process/test_log.py",
        "tests/unit/test_settings.py",
    ),
)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not `tmp_path`, whose name is that of the test: a socket's path must be short."""
    return tmp_path_factory.mktemp("p")


def test_no_python_is_missing() -> None:
    names = ", ".join(pythons.missing())
    assert not names, f"Python {names} is not on PATH or below ~/.pyenv: install it, with its module venv"


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: str(python.version))
def test_agents_work_with_the_lowest_versions(
    python: pythons.Python, pytestconfig: pytest.Config, place: Path
) -> None:
    """A wheel of each is there too: a container's image has no compiler."""
    lines = section(pytestconfig, TITLE)
    between = python not in (PYTHONS[0], PYTHONS[-1])
    if between:
        program = pythons.environment(python, CHECKOUT / ".cache", partial(say, pytestconfig))
        imported = subprocess.run(
            (program, "-c", IMPORT_ALL), cwd=CHECKOUT, stderr=subprocess.PIPE, text=True
        )
        assert imported.returncode == 0, imported.stderr
    tests = FEW_AGENTS if between else AGENTS
    lines.append(f"Python {python.version}, agents: {passed(python, tests, pytestconfig, place)}")


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
