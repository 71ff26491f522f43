"""The agent's side of the guard, with a real Loop; agents that are killed are real processes."""

from __future__ import annotations

import ctypes
import os
import py_compile
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import psutil
import pytest

from kolla_mesos_start import processes
from kolla_mesos_start.commands import guard as guard_module
from kolla_mesos_start.commands import guard_client
from kolla_mesos_start.commands.guard_client import Ended, Guard
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.loop import Loop, now
from tests.support.guarded import (
    HANDSHAKE_TIMEOUT,
    PATH,
    PATIENT_BOOT,
    SLEEP,
    TREES,
    lives,
    read_output,
    state,
)
from tests.support.waiting import eventually

PR_GET_CHILD_SUBREAPER = 37
REPOSITORY = str(Path(__file__).parents[3])

# An agent that runs one command with a deadline in so many seconds (0: none), prints what it sees, and ends.
AGENT = """
import sys
sys.path.insert(0, {repository!r})
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.processes import reap
from kolla_mesos_start.commands import guard as module
from kolla_mesos_start.commands.guard_client import Guard
import os, signal
module.LATE_TIMEOUT = module.KILL_TIMEOUT  # as PATIENT_BOOT
loop = Loop()
guard = Guard(loop, "shop/api")
guard.start()
loop.wait(lambda: guard.ready)
print("guard", guard.pid, flush=True)
{body}
"""
RUN = """
deadline = now() + {seconds} if {seconds} else None
guard.spawn(["/bin/sh", "-c", {script!r}], dict(os.environ), deadline=deadline)
loop.wait(lambda: guard.ended)
print(guard.ended.status, guard.ended.reason, flush=True)
"""


class Agent:
    """An agent as a process of its own, and the output of it and its commands."""

    def __init__(self, body: str, *wrapped: str) -> None:
        code = AGENT.format(repository=REPOSITORY, body=body)
        self.output, stdout = os.pipe()
        self.process = subprocess.Popen([*wrapped, sys.executable, "-c", code], stdout=stdout)
        os.close(stdout)
        self.pid = self.process.pid
        self.text = b""

    def read(self, until: Callable[[str], object] = lambda text: False) -> str:
        """The output so far, when `until` is true of it, or when no process can write any more."""
        self.text = read_output(self.output, self.text, lambda text: until(text.decode()))
        return self.text.decode()

    def guard(self) -> int:
        """The pid of its guard."""
        return int(self.read(lambda text: "\n" in text).split()[1])

    def pids(self, count: int) -> list[int]:
        """The first `count` pids that its command prints."""
        text = self.read(lambda text: len(text[: text.rfind("\n") + 1].split()) >= count + 2)
        return [int(word) for word in text.split()[2 : count + 2]]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.output)


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    """Agents in this list are killed after the test."""
    made: list[Agent] = []
    yield made
    for agent in made:
        agent.close()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def guard(loop: Loop) -> Iterator[Guard]:
    """A guard of this process. After the test the process has no new children and is no subreaper."""
    before = psutil.Process().children()
    with patch.object(guard_client, "BOOT", PATIENT_BOOT):
        guard = Guard(loop, "shop/api")
        guard.start()
    yield guard
    guard.close()
    assert set(psutil.Process().children()) <= set(before)
    assert not subreaper()


def subreaper() -> bool:
    """Whether this process is one."""
    answer = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0
    return bool(answer.value)


def await_end(loop: Loop, guard: Guard) -> Ended:
    ended = loop.wait(lambda: guard.ended, now() + HANDSHAKE_TIMEOUT)
    assert ended is not None, "the end was not reported"
    return ended


def run(loop: Loop, guard: Guard, script: str, **more: Any) -> Ended:
    guard.spawn(["/bin/sh", "-c", script], PATH, **more)
    return await_end(loop, guard)


def started(guard: Guard, path: Path, script: str, count: int, **more: Any) -> list[int]:
    """Start a script whose `{out}` is a file for pids; returns them once there are `count`."""
    guard.spawn(["/bin/sh", "-c", f"exec > {path}; {script}"], PATH, **more)
    eventually(lambda: path.exists() and len(path.read_text().split()) >= count, "it has written its pids")
    return [int(word) for word in path.read_text().split()]


# -- the way there and back -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected", "status", "failure"),
    [
        ("exit 0", Ended("exited", 0), 0, ""),
        ("exit 41", Ended("exited", 41), 41, "exit status 41"),
        ("kill -KILL $$", Ended("exited", -9), 137, "killed by SIGKILL"),
        ("exit 143", Ended("exited", 143), 143, "exit status 143"),
    ],
)
def test_the_end_as_the_agent_sees_it(
    loop: Loop, guard: Guard, script: str, expected: Ended, status: int, failure: str
) -> None:
    """The status is that of a shell."""
    ended = run(loop, guard, script)
    assert (ended, ended.status, ended.failure) == (expected, status, failure)
    assert not guard.running


@pytest.mark.parametrize(
    ("argv", "status"),
    [(["/nonexistent"], 127), (["/etc/passwd/x"], 127), (["/etc/passwd"], 126), (["a\0b"], 126)],
)
def test_a_failed_start_has_the_status_of_a_shell(
    loop: Loop, guard: Guard, argv: list[str], status: int
) -> None:
    """127 if it does not exist, 126 if it can't be executed."""
    guard.spawn(argv, PATH)
    ended = await_end(loop, guard)
    assert (ended.status, ended.reason, ended.at) == (status, "spawn-failed", "program")
    assert ended.failure.startswith("could not be started: ")


def test_a_megabyte_of_environment(loop: Loop, guard: Guard) -> None:
    """More than the socket holds, sent before the guard is ready."""
    env = {**PATH, **{f"VARIABLE_{number}": "x" * 100_000 for number in range(10)}}
    guard.spawn(["/bin/sh", "-c", "exit ${#VARIABLE_9}"], {**env, "VARIABLE_9": "x" * 77})
    assert await_end(loop, guard).status == 77


def test_left_overs_are_logged(
    loop: Loop, guard: Guard, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the name of the command, and nothing of its text."""
    ended = run(loop, guard, "PASSWORD=hunter2 sleep 1000 & exit 0", name="keystone/db_sync")
    assert ended == Ended("exited", 0)
    (line,) = capfd.readouterr().err.splitlines()
    assert " WARNING " in line
    assert "keystone/db_sync has ended but left 1 processes running" in line
    assert "hunter2" not in line


def test_two_commands_at_a_time_are_refused(loop: Loop, guard: Guard) -> None:
    """The second one is refused, the first one goes on."""
    guard.spawn(["/bin/sh", "-c", "sleep 0.2; exit 6"], PATH)
    with pytest.raises(AgentError, match=r"nova/db_sync can't be started"):
        guard.spawn(["/bin/true"], PATH, name="nova/db_sync")
    assert await_end(loop, guard).status == 6


# -- the deadline ---------------------------------------------------------------------------------


def test_a_deadline_that_is_not_extended_kills(loop: Loop, guard: Guard, tmp_path: Path) -> None:
    """An extended deadline kills only when it is reached."""
    first = now() + 5.0
    (pid,) = started(guard, tmp_path / "pid", SLEEP, 1, deadline=first)
    guard.extend(first + 1.0)
    assert await_end(loop, guard) == Ended("deadline", -9)
    assert now() >= first + 1.0
    assert not lives(pid)


def test_the_agent_kills_at_the_deadline_if_the_guard_is_stopped(
    loop: Loop, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent kills guard and command itself, since the lease ends."""
    # On a busy machine, killed processes may need longer than that to end.
    monkeypatch.setattr(guard_module, "LATE_TIMEOUT", guard_module.KILL_TIMEOUT)
    deadline = now() + 4.0
    script, count = TREES["double fork and setsid"]
    pids = started(guard, tmp_path / "pids", script, count, deadline=deadline)
    os.kill(guard.pid, signal.SIGSTOP)
    assert await_end(loop, guard) == Ended("lost")
    assert now() >= deadline
    assert not guard.process
    assert not any(map(lives, [*pids, guard.pid]))


# -- agents that die ------------------------------------------------------------------------------


def test_kill_9_of_the_whole_group_of_the_agent_ends_its_command(agents: list[Agent]) -> None:
    """As by `timeout -s KILL` or a supervisor: the guard is not in that group."""
    script, count = TREES["double fork and setsid"]
    agents.append(agent := Agent(RUN.format(script=script, seconds=0), "setsid"))
    pids = agent.pids(count)
    assert os.getpgid(agent.pid) == agent.pid
    os.killpg(agent.pid, signal.SIGKILL)
    eventually(lambda: not any(map(lives, pids)) and state(agent.guard()) in ("", "Z"), "all have ended")


def test_a_whole_container_that_continues_after_its_deadline(agents: list[Agent]) -> None:
    """Agent, guard and command are stopped and continued together: the command is killed at once."""
    agents.append(agent := Agent(RUN.format(script=SLEEP, seconds=3.0)))
    (pid,) = agent.pids(1)
    everybody = [agent.pid, agent.guard(), pid]
    for one in everybody:
        os.kill(one, signal.SIGSTOP)
    thaw = now() + 3.2
    eventually(lambda: now() >= thaw, "the deadline has passed", every=0.05)
    assert [state(one) for one in everybody] == ["T", "T", "T"]
    for one in reversed(everybody):
        os.kill(one, signal.SIGCONT)
    eventually(lambda: not lives(pid), "it is killed", every=0.005)
    assert agent.read().splitlines()[-1].split()[0] == "137"


# -- a guard that dies ----------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_kill_9_of_the_guard_ends_the_command(loop: Loop, guard: Guard, tmp_path: Path, tree: str) -> None:
    """The orphans become children of the agent, which kills them and can start another guard."""
    script, count = TREES[tree]
    pids = started(guard, tmp_path / "pids", script, count)
    os.kill(guard.pid, signal.SIGKILL)
    assert await_end(loop, guard) == Ended("lost")
    assert not any(map(lives, [*pids, guard.pid]))
    assert run(loop, guard, "exit 8").status == 8


def test_a_guard_that_dies_without_a_command_is_noticed(loop: Loop, guard: Guard) -> None:
    """There is no end to report; the next command gets another one."""
    loop.wait(lambda: guard.ready, now() + HANDSHAKE_TIMEOUT)
    os.kill(guard.pid, signal.SIGKILL)
    assert loop.wait(lambda: not guard.process, now() + HANDSHAKE_TIMEOUT)
    assert guard.ended is None
    assert run(loop, guard, "exit 8").status == 8


def test_a_command_for_a_dead_guard_is_lost(loop: Loop, guard: Guard) -> None:
    """Sending the command finds that the guard is dead; the report is the same."""
    os.kill(guard.pid, signal.SIGKILL)
    eventually(lambda: state(guard.pid) == "Z", "the guard is dead")
    assert run(loop, guard, "true").failure == "killed: its guard process died"
    assert not guard.process


def test_a_dead_guard_that_is_noticed_twice_is_reported_once(loop: Loop, guard: Guard) -> None:
    """An extension can't be sent, and end of file is seen in the same round of the loop."""
    guard.spawn(["/bin/sleep", "1000"], PATH, deadline=now() + 1000)
    reader, writer = os.pipe()

    def renew() -> None:
        os.read(reader, 1)
        guard.extend(now() + 1000)

    loop.listen(reader, renew)
    os.write(writer, b"x")
    os.kill(guard.pid, signal.SIGKILL)
    eventually(lambda: state(guard.pid) == "Z", "the guard is dead")
    assert await_end(loop, guard).reason == "lost"
    loop.ignore(reader)
    os.close(reader)
    os.close(writer)


def test_a_process_that_cannot_be_killed_ends_the_agent(
    loop: Loop, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 70: only the end of the container can end that process."""
    monkeypatch.setattr(processes, "try_call", lambda *call: None)
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        with pytest.raises(AgentError, match="can't be killed") as raised:
            guard_client.end_children(now() + 0.1)
        assert raised.value.status == 70
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ([(0, 0)], True),
        ([(7, 0), (0, 0)], True),
        # One ends between two looks: that says nothing of the others.
        ([(0, 0), (7, 0), (0, 0)], True),
        ([(7, 0), ChildProcessError()], False),
        ([ChildProcessError()], False),
    ],
)
def test_whoever_ends_meanwhile_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], left: bool
) -> None:
    """Otherwise a process of a lost command would live on."""
    waitpid = Mock(side_effect=answers)
    monkeypatch.setattr(os, "waitpid", waitpid)
    assert processes.has_children() is left


# -- what the agent is, and leaves ----------------------------------------------------------------


def test_the_agent_is_a_subreaper_only_while_it_has_a_guard(loop: Loop) -> None:
    """The setting survives exec, and a daemon may wait for ever for children that it does not know."""
    assert not subreaper()
    guard = Guard(loop, "shop/api")
    guard.start()
    assert subreaper()
    guard.close()
    assert not subreaper()
    guard.close()


def test_close_ends_the_guard_and_what_it_runs(loop: Loop, guard: Guard, tmp_path: Path) -> None:
    """The daemon inherits no process."""
    script, count = TREES["ignoring signals"]
    pids = started(guard, tmp_path / "pids", script, count)
    guard.close()
    assert not guard.process
    assert not any(map(lives, [*pids, guard.pid]))


def test_close_does_not_wait_for_a_guard_that_is_stopped(
    loop: Loop, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed like its command."""
    monkeypatch.setattr(guard_module, "KILL_TIMEOUT", 0.3)
    (pid,) = started(guard, tmp_path / "pid", SLEEP, 1)
    os.kill(guard.pid, signal.SIGSTOP)
    guard.close()
    assert not lives(pid)
    assert not lives(guard.pid)


def test_close_leaves_an_unkillable_process_to_the_guard(loop: Loop, guard: Guard) -> None:
    """The agent must end at once, before other containers may start the command."""
    guard.ended = Ended("deadline", unkillable=True)
    os.kill(guard.pid, signal.SIGSTOP)
    with pytest.raises(AgentError, match="can't be started"):
        guard.spawn(["/bin/true"], PATH)
    began, process = now(), guard.process
    assert process
    guard.close()
    assert now() - began < 30
    os.kill(guard.pid, signal.SIGCONT)
    assert process.wait() == 0  # It sees the end of file.


def test_a_guard_that_cannot_be_started_is_an_error(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the cause; there is no traceback."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(AgentError, match="can't be started: /nonexistent/python: No such file"):
        Guard(loop, "shop/api").start()


def test_a_stopped_guard_with_a_full_socket_is_given_up(loop: Loop, guard: Guard, tmp_path: Path) -> None:
    """A full socket does not block the agent, which has a lease to watch."""
    (pid,) = started(guard, tmp_path / "pid", SLEEP, 1, deadline=now() + 1000)
    os.kill(guard.pid, signal.SIGSTOP)
    began = now()
    while guard.process:
        guard.extend(now() + 1000)
        assert now() - began < HANDSHAKE_TIMEOUT
    assert not lives(pid)
    assert guard.ended is not None
    assert guard.ended.reason == "lost"


def test_the_guard_does_not_get_the_environment(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are not visible in one more process; the linker's variables are passed on."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    guard = Guard(loop, "shop/api")
    guard.start()
    assert loop.wait(lambda: guard.ready, now() + HANDSHAKE_TIMEOUT)
    assert Path(f"/proc/{guard.pid}/environ").read_bytes() == b"LD_LIBRARY_PATH=/nonexistent\0"
    guard.close()


def test_the_guard_starts_from_cached_byte_code(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image holds this byte code. A script has none: Python would compile the guard at each start."""
    module = tmp_path / "kolla_mesos_start" / "commands" / "guard.py"
    module.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    (module.parents[1] / "__init__.py").touch()
    module.write_bytes(Path(guard_module.__file__).read_bytes())
    (module.parents[1] / "processes.py").write_bytes(Path(processes.__file__).read_bytes())
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    module.write_text("raise SystemExit('the source was compiled')")
    monkeypatch.setattr(guard_module, "__file__", str(module))
    guard = Guard(loop, "shop/api")
    guard.start()
    assert loop.wait(lambda: guard.ready or not guard.process, now() + HANDSHAKE_TIMEOUT)
    assert guard.ready
    guard.close()


def test_a_proc_of_another_namespace_is_an_error(loop: Loop, agents: list[Agent]) -> None:
    """The guard could not see which processes to kill, so it refuses to work."""
    body = ""
    agents.append(agent := Agent(body, "sh", "-c", 'exec unshare --pid --fork "$@" 2>&1', "sh"))
    assert "/proc: is not that of this pid namespace" in agent.read()
