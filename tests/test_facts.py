"""The facts that a child finds: the same ones, the same errors, and no child that stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, {repository!r})
from kolla_mesos_start import facts, settings
given = settings.parse({{"KOLLA_ZK_HOSTS": "zk", "KOLLA_APP_ID": "/site/web", **{environ!r}}})
{before}
await_facts = facts.HostFacts(given)
{between}
try:
    found = await_facts()
    print(found["address"], "psutil" in sys.modules, await_facts() is found)
except Exception as error:
    print(type(error).__name__, error)
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child is left")
except ChildProcessError:
    print("no child is left")
print(sorted(os.listdir("/proc/self/fd")) == ["0", "1", "2", "3"])
"""


def run(environ: dict[str, str], before: str = "", between: str = "") -> list[str]:
    """What a process says that has its facts found by a child."""
    repository = str(Path(__file__).parent.parent)
    program = PROGRAM.format(repository=repository, environ=environ, before=before, between=between)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}


def test_a_child_finds_them_so_that_the_agent_never_imports_psutil() -> None:
    """Its import runs beside kazoo's; what it has found is asked for once."""
    assert run(LOOPBACK) == ["127.0.0.1 False True", "no child is left", "True"]


def test_what_the_child_met_is_met_again() -> None:
    """Its error is raised where the facts are wanted, as if there were no child."""
    error, *rest = run({**LOOPBACK, "KOLLA_PRIVATE_INTERFACE": "nosuch0"})
    assert error.startswith("BadEnvironment environment: 1 issue: KOLLA_PRIVATE_INTERFACE=nosuch0")
    assert rest == ["no child is left", "True"]


def test_it_does_without_a_child_that_somebody_has_stopped() -> None:
    """A frozen child must not keep the container from starting; it is ended."""
    before = (
        "fork = os.fork\ndef stopped():\n    child = fork()\n    if not child: os.kill(os.getpid(), 19)\n"
    )
    before += "    return child\nos.fork = stopped"
    assert run(LOOPBACK, before) == ["127.0.0.1 True True", "no child is left", "True"]


def test_it_does_without_a_child_that_somebody_has_reaped_or_killed() -> None:
    """SIGCHLD is answered by reaping whoever has ended; and anybody can be killed."""
    for signum in (9, 15):
        between = f"child = int(open('/proc/thread-self/children').read())\nos.kill(child, {signum})\n"
        between += "os.waitpid(child, 0)"
        found, *rest = run(LOOPBACK, between=between)
        assert found.startswith("127.0.0.1 ")
        assert rest == ["no child is left", "True"]


def test_it_does_without_a_process_where_there_is_no_room_for_one() -> None:
    """A limit on processes is met where it matters, not here."""
    before = "def fork():\n    raise BlockingIOError(11, 'no room')\nos.fork = fork"
    assert run(LOOPBACK, before) == ["127.0.0.1 True True", "no child is left", "True"]
