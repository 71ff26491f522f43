"""Distributes the tests among processes, and prints sections below the results.

These are hooks of pytest and pytest-xdist, which `tests/conftest.py` imports. Every process has its own
ZooKeeper servers, podman storage and directories. Images and Keystone's programs are made once for all
processes, under a file lock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Sections below the results: titles and lines.
SECTIONS = pytest.StashKey["dict[str, list[str]]"]()
# The slowest files begin first, so that none of them is left over at the end.
FIRST = (
    "tests/stack/blackout/test_position.py",
    "tests/stack/blackout/test_blackout.py",
    "tests/stack/test_keystone.py",
    "tests/stack/test_upgrade.py",
    "tests/stack/test_quickstart.py",
    "tests/agent/test_pythons.py",
)
# Left out of `bin/test` without --full: files, folders, or what their names begin with. Whole stacks, other
# Pythons, faults for minutes, Kubernetes, and all containers but an image.
FULL = (
    "tests/kubernetes/",
    "tests/stack/blackout/",
    "tests/containers/test_agent_alone.py",
    "tests/containers/test_compose.py",
    "tests/containers/test_hard_conditions.py",
    "tests/containers/test_kolla_build.py",
    "tests/containers/test_marathon.py",
    "tests/containers/test_podman_secrets.py",
    "tests/containers/test_quadlet.py",
    "tests/containers/test_tripleo.py",
    "tests/containers/test_with_kolla_start.py",
    "tests/stack/test_chaos.py",
    "tests/stack/test_lives.py",
    "tests/stack/test_loadbalancer.py",
    "tests/stack/test_migration.py",
    "tests/stack/test_new_passwords.py",
    "tests/stack/test_whole_openstack.py",
    "tests/stack/test_rolling_restart.py",
    "tests/stack/test_upgrade.py",
    "tests/kolla_ansible/test_import.py",
    "tests/kolla_ansible/test_imported_upgrade.py",
    "tests/agent/test_pythons.py",
    "tests/stack/test_quickstart.py",
)
# Then these folders, and all others after them. `preparation.py` makes what they need in the meantime.
# Short tests come last, so that all processes end at the same time.
ORDER = (
    "tests/kubernetes/",
    "tests/stack/",
    "tests/agent/",
    "tests/ctl/test_",
    "tests/server/",
    "tests/containers/",
)
# Files and folders that share servers which are slow to start: one process runs them all.
TOGETHER = {
    "a Kubernetes": ("tests/kubernetes/",),
    "an ensemble": (
        "tests/agent/test_boot.py",
        "tests/server/test_session.py",
        "tests/server/test_zookeeper.py",
    ),
    "a secured ensemble": (
        "tests/stack/test_keystone.py",
        "tests/agent/test_secrets.py",
        "tests/agent/test_secured.py",
    ),
}
# Slow files whose tests share nothing: any idle process runs the next test. Other files are not divided.
DIVIDED = (
    "tests/process/commands/test_guard.py",
    "tests/process/commands/test_guard_client.py",
    "tests/containers/test_hard_conditions.py",
    "tests/containers/test_images.py",
    "tests/process/daemon/test_readiness.py",
    "tests/unit/definition/test_schema.py",
    "tests/fuzz/test_agents.py",
    "tests/agent/test_assembled.py",
    "tests/agent/test_endings.py",
    "tests/agent/test_exec.py",
    "tests/agent/test_one_time.py",
    "tests/agent/test_pythons.py",
    "tests/agent/test_refresh.py",
    "tests/agent/test_registrar.py",
    "tests/agent/test_supervise.py",
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
    # A shell ignores SIGINT for background jobs (CI systems use these), and nohup ignores SIGHUP. Every
    # program that a test starts would inherit this, and could not be interrupted.
    for signum in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda number, frame: None)


@pytest.hookimpl(tryfirst=True)  # `-m` selects by marks afterwards.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files; containers come after the tests of whole agents, short tests at the end.

    The tests of FULL get a mark.
    """
    for item in items:
        if _file(item).startswith(FULL):
            item.add_marker("full")
    items.sort(key=lambda item: _place(_file(item)))


def _place(file: str) -> tuple[int, int]:
    """Where a file's tests are in the order: the slow files, the tests of agents, containers, the rest."""
    if file in FIRST:
        return 0, FIRST.index(file)
    folders = [number for number, folder in enumerate(ORDER) if file.startswith(folder)]
    return 1, folders[0] if folders else len(ORDER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distribute groups of tests in the order of the items."""
    # pytest-xdist's own marks for that (3.8) do nothing with pytest 9.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def group(test: str) -> str:
    """The group of a test: one process runs all tests of a group."""
    file = test.partition("::")[0]
    if file in DIVIDED:
        return test
    return next((name for name, files in TOGETHER.items() if file.startswith(files)), file)


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath).as_posix()


# -- output: failures at once, sections at the end ----------------------------------------------------


class Failures:
    """Prints the name of a test as soon as it fails; pytest prints the reason minutes later, at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and reporter:
            reporter.line("")  # The cursor may be behind the dots of other processes.
            reporter.write_line(f"failed: {report.nodeid}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["sections"] = session.config.stash[SECTIONS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the sections of a process that has ended; one that was killed has none."""
    for title, lines in getattr(node, "workeroutput", {}).get("sections", {}).items():
        section(node.config, title).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the sections, whether or not the tests have passed."""
    for title, lines in config.stash[SECTIONS].items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def section(config: pytest.Config, title: str) -> list[str]:
    """The lines of this section, to which tests append."""
    return config.stash[SECTIONS].setdefault(title, [])


def say(config: pytest.Config, text: str) -> None:
    """Print a line at once: that something slow begins. Standard output of other processes is not shown."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n-- {text}", file=sys.stderr, flush=True)
