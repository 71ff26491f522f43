"""How the tests are shared among processes: what stays together, what begins first, what is told at the end.

What lives here: hooks of pytest and of pytest-xdist, which `tests/conftest.py` passes on. Nothing here
knows what a test does. Every process has its own ZooKeeper servers, podman storage and directories; what
is made once for all of them (images, Keystone's programs) is made behind a file's lock.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

# Sections below the tests: their titles, and their lines.
SECTIONS = pytest.StashKey["dict[str, list[str]]"]()
# What takes longest begins first, so that no process is left alone with it at the end: the images and
# Keystone's programs, which are made or installed where they are missing, then what waits most.
FIRST = (
    "tests/functional/test_keystone.py",
    "tests/containers/test_kubernetes.py",
    "tests/integration/test_quickstart.py",
)
# What costs so much to start that one process has it for all.
ALONE = ("shared_ensemble",)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SECTIONS] = {}
    # A shell ignores it for what it starts in the background, as CI systems do. Every program that a test
    # starts would inherit that, and could not be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group what shares something, and put first what takes long."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    files = {_file(item) for item in functions if _shares(item)}
    for item in functions:
        if any(name in item.fixturenames for name in ALONE):
            item.add_marker(pytest.mark.xdist_group("ensemble"))
        elif _file(item) in files:
            item.add_marker(pytest.mark.xdist_group(_file(item)))
    items.sort(key=_place)


def _shares(item: pytest.Function) -> bool:
    """Whether it has a fixture in common with others of its file."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(each.scope in ("module", "package") for found in definitions for each in found)


def _place(item: pytest.Item) -> int:
    return FIRST.index(_file(item)) if _file(item) in FIRST else len(FIRST)


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath).as_posix()


# -- sections: processes other than the first one hand them over --------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["sections"] = session.config.stash[SECTIONS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process has ended; where it was killed it has handed over nothing."""
    for title, lines in getattr(node, "workeroutput", {}).get("sections", {}).items():
        section(node.config, title).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Whether the tests have passed or not."""
    for title, lines in config.stash[SECTIONS].items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def section(config: pytest.Config, title: str) -> list[str]:
    """The lines of this section, to be added to."""
    return config.stash[SECTIONS].setdefault(title, [])


def say(config: pytest.Config, text: str) -> None:
    """Tell now what takes long; the standard output of the other processes goes nowhere."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n-- {text}", file=sys.stderr, flush=True)
