"""Host facts from a child: the same facts and errors as without it, and no child is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, {repository!r})
from kolla_mesos_start import settings
from kolla_mesos_start.host.facts import HostFacts
given = settings.parse({{"KOLLA_ZK_HOSTS": "zk", "KOLLA_APP_ID": "/site/web", **{environ!r}}})
{before}
facts = HostFacts(given)
{between}
try:
    found = facts()
    print(found["address"], "kolla_mesos_start.host.netlink" in sys.modules, facts() is found)
except Exception as error:
    print(type(error).__name__, error)
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child is left")
except ChildProcessError:
    print("no child is left")
print(sorted(os.listdir("/proc/self/fd")) == ["0", "1", "2", "3"])
"""
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


def run(environ: dict[str, str], before: str = "", between: str = "") -> list[str]:
    """The output of a process that collects its facts in a child."""
    repository = str(Path(__file__).parents[2])
    program = PROGRAM.format(repository=repository, environ=environ, before=before, between=between)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_agent_itself_does_not_look() -> None:
    assert run(LOOPBACK) == ["127.0.0.1 False True", "no child is left", "True"]


def test_an_error_in_the_child_is_raised_in_the_agent() -> None:
    error, *rest = run({**LOOPBACK, "KOLLA_PRIVATE_INTERFACE": "nosuch0"})
    assert error.startswith("NoAddress environment: 1 issue: KOLLA_PRIVATE_INTERFACE=nosuch0")
    assert rest == ["no child is left", "True"]


def test_a_stopped_child_is_killed_and_not_waited_for() -> None:
    before = (
        "fork = os.fork\ndef stopped():\n    child = fork()\n    if not child: os.kill(os.getpid(), 19)\n"
        "    return child\nos.fork = stopped"
    )
    assert run(LOOPBACK, before) == ["127.0.0.1 True True", "no child is left", "True"]


def test_a_child_may_be_killed_and_reaped_by_others() -> None:
    """The loop reaps all children on SIGCHLD."""
    for signum in (9, 15):
        between = f"child = int(open('/proc/thread-self/children').read())\nos.kill(child, {signum})\n"
        between += "os.waitpid(child, 0)"
        found, *rest = run(LOOPBACK, between=between)
        assert found.startswith("127.0.0.1 ")
        assert rest == ["no child is left", "True"]


def test_without_a_child_the_agent_collects_the_facts_itself() -> None:
    """The process limit may be reached."""
    before = "def fork():\n    raise BlockingIOError(11, 'no room')\nos.fork = fork"
    assert run(LOOPBACK, before) == ["127.0.0.1 True True", "no child is left", "True"]
