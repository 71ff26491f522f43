"""How the tests are shared among processes: what stays together, what begins first, what is told at the end.

What lives here: hooks of pytest and of pytest-xdist, which `tests/conftest.py` passes on. Nothing here
knows what a test does. Every process has its own ZooKeeper servers, podman storage and directories; what
is made once for all of them (images, Keystone's programs) is made behind a file's lock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Sections below the tests: their titles, and their lines.
SECTIONS = pytest.StashKey["dict[str, list[str]]"]()
# What takes longest begins first, so that no process is left alone with it at the end: the images and
# Keystone's programs, which are made or installed where they are missing, then what waits most.
FIRST = (
    "tests/functional/test_keystone.py",
    "tests/functional/test_secured_keystone.py",
    "tests/functional/test_upgrade.py",
    "tests/containers/test_kubernetes.py",
    "tests/integration/test_quickstart.py",
    "tests/integration/test_pythons.py",
)
# What costs so much to start that one process has it for all.
TOGETHER = {
    "an ensemble": (
        "tests/integration/test_boot.py",
        "tests/integration/test_session.py",
        "tests/integration/test_zookeeper.py",
    ),
    "a secured ensemble": (
        "tests/functional/test_secured_keystone.py",
        "tests/integration/test_secrets.py",
        "tests/integration/test_secured.py",
    ),
}
# Files that take long and whose tests share nothing: one by one, to whoever is idle. All others stay whole.
DIVIDED = (
    "tests/commands/test_guard.py",
    "tests/commands/test_guard_client.py",
    "tests/containers/test_hard_conditions.py",
    "tests/containers/test_images.py",
    "tests/containers/test_interrupted.py",
    "tests/daemon/test_readiness.py",
    "tests/definition/test_schema.py",
    "tests/fuzz/test_agents.py",
    "tests/integration/test_assembled.py",
    "tests/integration/test_endings.py",
    "tests/integration/test_exec.py",
    "tests/integration/test_one_time.py",
    "tests/integration/test_pythons.py",
    "tests/integration/test_refresh.py",
    "tests/integration/test_registrar.py",
    "tests/integration/test_supervise.py",
)


# A busy machine may take a second for anything.
settings.register_profile("busy", deadline=None)
settings.register_profile("long", deadline=None, max_examples=4000)  # for tests/fuzz: a million inputs
settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[SECTIONS] = {}
    if hasattr(config, "workerinput"):
        # Sockets lie there, and a socket's path must be short: `0`, not `popen-gw0`.
        place = Path(config.option.basetemp)
        config.option.basetemp = str(place.with_name(place.name.rpartition("gw")[2]))
    else:
        config.pluginmanager.register(Failures(config))
    # Python 3.13 would start programs with it, in whom a signal of the C library's own is then ignored; a
    # test that wants to see none ignored would have to know that.
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]
    # A shell ignores SIGINT for what it starts in the background, as CI systems do, and nohup SIGHUP. Every
    # program that a test starts would inherit that, and could not be interrupted.
    for signum in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda number, frame: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes long."""
    items.sort(key=lambda item: FIRST.index(_file(item)) if _file(item) in FIRST else len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out what stays together as one, in the order of the items."""
    # pytest-xdist's own marks for that (3.8) do nothing with pytest 9.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def group(test: str) -> str:
    """The name of what one process does alone: the same for tests that stay together."""
    file = test.partition("::")[0]
    if file in DIVIDED:
        return test
    return next((name for name, files in TOGETHER.items() if file in files), file)


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath).as_posix()


# -- what is told: failures at once; sections at the end, which the other processes hand over ---------


class Failures:
    """Names a test as soon as it has failed; pytest says why at the end, which may be minutes away."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and reporter:
            reporter.line("")  # pytest does not know of the dots of the other processes.
            reporter.write_line(f"failed: {report.nodeid}", red=True)


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
