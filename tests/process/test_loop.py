"""Everything outside comes in through one poll(): descriptors, sources, timers and signals, on one thread."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

from kolla_mesos_start.loop import Loop, now

if TYPE_CHECKING:
    from kolla_mesos_start.loop import Interest

SOON = 0.05  # seconds
# Seconds that nothing here takes on the slowest machine. A wait that misses an event takes as long.
TOO_LONG = 20.0
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Signals are the process's own; they are as before afterwards."""
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    loop = Loop()
    yield loop
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    wakeup = signal.set_wakeup_fd(-1)
    if wakeup >= 0:
        os.close(wakeup)
        os.close(loop._wakeup)


class Pipe:
    """A pipe, and what `read` has got from it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.got: list[bytes] = []

    def read(self) -> None:
        self.got.append(os.read(self.reader, 100))

    def close(self) -> None:
        for name in ("reader", "writer"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)


@pytest.fixture
def pipes() -> Iterator[Callable[[], Pipe]]:
    """Makes pipes, and closes them."""
    with ExitStack() as stack:

        def make() -> Pipe:
            pipe = Pipe()
            stack.callback(pipe.close)
            return pipe

        yield make


class Note:
    """A source that notes each run of it, then calls `action`."""

    def __init__(
        self,
        interest: Interest = None,
        deadline: float = math.inf,
        action: Callable[[], object] = lambda: None,
    ) -> None:
        self.interest, self.deadline, self.action = interest, deadline, action
        self.runs: list[bool] = []

    def run(self, ready: bool) -> None:
        self.runs.append(ready)
        self.action()


def fail() -> None:
    raise ValueError("a handler")


def fails(before: Callable[[], object]) -> Callable[[], None]:
    """A handler that does this much, then raises."""

    def handler() -> None:
        before()
        fail()

    return handler


def rounds(loop: Loop, deadline: float) -> int:
    """Wait until the deadline; how often the loop came round."""
    count = 0

    def condition() -> bool:
        nonlocal count
        count += 1
        return False

    loop.wait(condition, deadline)
    return count


# -- the clock ------------------------------------------------------------------------------------


# -- wait and sleep -------------------------------------------------------------------------------


def test_what_is_due_runs_before_the_condition_is_asked(loop: Loop) -> None:
    """A signal or a timer that is due decides a wait that would not wait."""
    loop.call_at(now(), fail)
    with pytest.raises(ValueError, match="a handler"):
        loop.wait(lambda: True)
    assert loop.wait(lambda: True)


def test_a_wait_ends_when_something_makes_its_condition_true(loop: Loop, pipes: Callable[[], Pipe]) -> None:
    """The condition is asked again after whatever has run."""
    pipe = pipes()
    loop.listen(pipe.reader, pipe.read)
    os.write(pipe.writer, b"one")
    assert loop.wait(lambda: pipe.got) == [b"one"]


def test_a_wait_ends_at_its_deadline_with_the_last_value(loop: Loop) -> None:
    """Not before it, and at once if it has passed."""
    begun = now()
    assert loop.wait(lambda: 0, begun + SOON) == 0
    assert SOON <= now() - begun < TOO_LONG
    begun = now()
    for passed in (begun, begun - 1, -math.inf):
        assert loop.wait(lambda: False, passed) is False
    assert now() - begun < TOO_LONG


def test_what_has_come_by_the_deadline_counts(loop: Loop, pipes: Callable[[], Pipe]) -> None:
    """A process that was stopped, or busy, past a deadline still reads what came in time."""
    pipe = pipes()
    loop.listen(pipe.reader, pipe.read)
    os.write(pipe.writer, b"in time")
    assert loop.wait(lambda: pipe.got, now() - 1) == [b"in time"]
    note = Note((pipe.reader, select.POLLIN), action=pipe.read)
    loop.ignore(pipe.reader)
    loop.add(note)
    os.write(pipe.writer, b"this too")
    assert loop.wait(lambda: len(pipe.got) == 2, now() - 1) is True


def test_a_wait_does_not_spin_towards_its_deadline(loop: Loop) -> None:
    """poll() takes whole milliseconds: a timeout cut short would be polled hundreds of times."""
    assert rounds(loop, now() + 0.0309) <= 4


def test_sleep_runs_what_happens_and_lasts_as_long_as_it_says(loop: Loop, pipes: Callable[[], Pipe]) -> None:
    """It is a pause of the stage that calls it, not of the process."""
    pipe = pipes()
    loop.listen(pipe.reader, pipe.read)
    loop.call_at(now() + SOON / 2, lambda: os.write(pipe.writer, b"x"))
    begun = now()
    loop.sleep(SOON)
    assert SOON <= now() - begun < TOO_LONG
    assert pipe.got == [b"x"]


# -- timers ---------------------------------------------------------------------------------------


def test_timers_run_at_their_time_and_in_their_order(loop: Loop) -> None:
    """The earlier first, those of one instant as they were set; a timer may set another one."""
    ran: list[str] = []
    begun = now()
    loop.call_at(begun + 2 * SOON, lambda: ran.append("late"))
    loop.call_at(begun + SOON, lambda: ran.append("early"))
    loop.call_at(begun + SOON, lambda: ran.append("early too"))
    loop.call_at(begun + SOON, lambda: loop.call_at(begun + SOON, lambda: ran.append("from a timer")))
    loop.wait(lambda: "late" in ran, begun + TOO_LONG)
    assert ran == ["early", "early too", "from a timer", "late"]
    assert 2 * SOON <= now() - begun < TOO_LONG


@pytest.mark.parametrize("later", [1e6, 1e9, 1e300, math.inf])
def test_a_time_that_is_far_away_is_no_trouble(loop: Loop, pipes: Callable[[], Pipe], later: float) -> None:
    """No kernel call takes a timeout of years, and a definition may ask for one."""
    ran: list[str] = []
    pipe = pipes()
    loop.call_at(now() + later, lambda: ran.append("years later"))
    loop.add(Note(deadline=now() + later))
    loop.listen(pipe.reader, pipe.read)
    loop.call_at(now() + SOON, lambda: os.write(pipe.writer, b"soon"))
    assert loop.wait(lambda: pipe.got, now() + later) == [b"soon"]
    assert ran == []


# -- descriptors ----------------------------------------------------------------------------------


def test_a_readable_descriptor_is_read_until_it_is_ignored(loop: Loop, pipes: Callable[[], Pipe]) -> None:
    """The guard's messages come so."""
    pipe = pipes()
    loop.listen(pipe.reader, pipe.read)
    for number in range(3):
        os.write(pipe.writer, b"%d" % number)
        assert loop.wait(lambda number=number: len(pipe.got) > number)  # type: ignore[misc]
    loop.ignore(pipe.reader)
    os.write(pipe.writer, b"after")
    loop.sleep(0)
    assert pipe.got == [b"0", b"1", b"2"]


def test_a_descriptor_that_is_ignored_by_another_handler_is_left_alone(
    loop: Loop, pipes: Callable[[], Pipe]
) -> None:
    """Both are readable in one poll(); the handler that comes first closes the other's descriptor."""
    both = (pipes(), pipes())
    ran: list[Pipe] = []

    def take(ours: Pipe, other: Pipe) -> None:
        ran.append(ours)
        loop.ignore(ours.reader)
        loop.ignore(other.reader)
        other.close()

    for ours, other in (both, both[::-1]):
        loop.listen(ours.reader, lambda ours=ours, other=other: take(ours, other))  # type: ignore[misc]
        os.write(ours.writer, b"x")
    loop.sleep(0)
    assert len(ran) == 1


# -- sources --------------------------------------------------------------------------------------


def test_a_source_runs_with_whatever_happens_and_is_told_what_is_its_own(
    loop: Loop, pipes: Callable[[], Pipe]
) -> None:
    """`ready` is about its own descriptor; one that waits for nothing runs all the same."""
    its, others = pipes(), pipes()
    source, idle = Note((its.reader, select.POLLIN)), Note()
    for each in (source, idle):
        loop.add(each)
    loop.listen(others.reader, others.read)
    os.write(others.writer, b"x")
    loop.wait(lambda: others.got)
    assert (source.runs, idle.runs) == ([False], [False])
    source.action = its.read
    os.write(its.writer, b"x")
    loop.wait(lambda: its.got)
    assert (source.runs, idle.runs) == ([False, True], [False, False])


def test_a_source_waits_for_what_it_says_now(loop: Loop) -> None:
    """Its interest may change at every run: to read, to write, nothing at all."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                ours.send(b"x" * 65536)
        source = Note((ours.fileno(), select.POLLOUT))
        loop.add(source)
        assert not loop.wait(lambda: True in source.runs, now() + SOON), "the socket is full"
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            while theirs.recv(65536):
                pass
        assert loop.wait(lambda: True in source.runs, now() + TOO_LONG), "there is room to write"
        source.interest = (ours.fileno(), select.POLLIN)
        source.runs.clear()
        assert not loop.wait(lambda: True in source.runs, now() + SOON), "there is nothing to read"
        theirs.send(b"answer")
        assert loop.wait(lambda: True in source.runs, now() + TOO_LONG), "there is"
        source.interest = None
        source.runs.clear()
        loop.sleep(0)
        assert source.runs and True not in source.runs


def test_a_source_runs_at_its_deadline(loop: Loop) -> None:
    """Not before it, and with the deadline that it has by then."""
    begun = now()
    source = Note(deadline=begun + TOO_LONG)
    loop.add(source)
    loop.sleep(0)
    source.runs.clear()
    source.deadline = begun + SOON

    def postpone() -> None:
        source.deadline = math.inf

    source.action = postpone
    assert loop.wait(lambda: source.runs, begun + TOO_LONG) == [False]
    assert SOON <= now() - begun < TOO_LONG


def test_a_source_runs_no_longer_once_it_is_removed(loop: Loop, pipes: Callable[[], Pipe]) -> None:
    """Also when another source, or itself, removes it in the same round; its descriptor may be closed."""
    pipe = pipes()
    victim = Note((pipe.reader, select.POLLIN))

    def remove() -> None:
        loop.remove(victim)
        pipe.close()

    killer, last = Note(action=remove), Note()
    killer_once = Note(action=lambda: loop.remove(killer_once))
    for source in (killer_once, killer, victim, last):
        loop.add(source)
    os.write(pipe.writer, b"x")
    loop.sleep(0)
    assert victim.runs == []
    assert (killer_once.runs, killer.runs, last.runs) == ([False], [False], [False])
    loop.remove(killer)
    loop.sleep(0)
    assert (victim.runs, killer_once.runs, killer.runs) == ([], [False], [False])
    assert last.runs == [False, False]


# -- what raises ----------------------------------------------------------------------------------


def test_what_raises_comes_out_of_the_wait_and_nothing_else_is_lost(
    loop: Loop, pipes: Callable[[], Pipe]
) -> None:
    """That is how a stop signal ends the agent, which has to use the loop afterwards to clean up."""
    ran: list[object] = []
    readers = [pipes() for _ in range(3)]
    for pipe in readers:
        loop.listen(pipe.reader, fails(pipe.read))
        os.write(pipe.writer, b"x")
    own = pipes()
    source = Note((own.reader, select.POLLIN), action=lambda: source.runs[-1] and fails(own.read)())
    second = Note(action=lambda: ran.append("the second source"))
    loop.add(source)
    loop.add(second)
    os.write(own.writer, b"x")
    for number in range(2):
        loop.call_at(now(), fails(lambda number=number: ran.append(number)))  # type: ignore[misc]
    loop.on_signal(signal.SIGUSR1, lambda signum: fails(lambda: ran.append(signum))())
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    failures = 2 + 2 + len(readers) + 1  # signals, timers, readers, the source
    for _ in range(failures):
        with pytest.raises(ValueError, match="a handler"):
            loop.wait(lambda: False, now() + TOO_LONG)
    loop.sleep(0)
    assert ran == [signal.SIGUSR1, signal.SIGUSR1, 0, 1, "the second source"]
    assert [pipe.got for pipe in (*readers, own)] == [[b"x"]] * 4


# -- signals --------------------------------------------------------------------------------------


def test_a_signal_is_handled_inside_the_wait_and_nowhere_else(loop: Loop) -> None:
    """Not where it happens to interrupt the agent; each is counted, in the order in which they came."""
    got: list[int] = []
    for signum in SIGNALS:
        loop.on_signal(signum, got.append)
    for signum in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), signum)
    assert got == []
    assert loop.wait(lambda: len(got) == 3) is True
    assert got == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM]


def test_a_signal_just_before_the_loop_sleeps_wakes_it(loop: Loop) -> None:
    """It comes after the last look at the signals: only the descriptor that it writes to is left."""
    got: list[int] = []
    loop.on_signal(signal.SIGTERM, got.append)

    class Last(Note):
        @property
        def deadline(self) -> float:
            if not got:
                os.kill(os.getpid(), signal.SIGTERM)
            return math.inf

        @deadline.setter
        def deadline(self, value: float) -> None:
            pass

    loop.add(Last())
    begun = now()
    loop.wait(lambda: got, begun + TOO_LONG)
    assert now() - begun < TOO_LONG
    assert got == [signal.SIGTERM]


def test_a_signal_that_was_blocked_is_heard(loop: Loop) -> None:
    """The mask is inherited from the launcher; what came meanwhile is pending, and not lost."""
    got: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        # To this thread: the test's process may have others, which have not blocked it.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        loop.on_signal(signal.SIGTERM, got.append)
        assert loop.wait(lambda: got, now() + TOO_LONG) == [signal.SIGTERM]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def test_a_flood_of_signals_blocks_nobody_and_is_counted(
    loop: Loop, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than the wake-up pipe holds: nothing is lost, or said on standard error, and nothing spins."""
    got: list[int] = []
    loop.on_signal(signal.SIGUSR1, got.append)
    for _ in range(70_000):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert loop.wait(lambda: len(got) >= 70_000, now() + TOO_LONG) is True
    assert len(got) == 70_000
    assert rounds(loop, now() + SOON) <= 65536 / 4096 + 4
    assert rounds(loop, now() + SOON) <= 4, "the pipe is empty again"
    assert capfd.readouterr().err == ""


# -- reap -----------------------------------------------------------------------------------------


def test_reap_takes_every_child_that_has_ended_and_waits_for_none() -> None:
    """One SIGCHLD may stand for several; a child that runs is left alone, and no child is no error."""
    script = """
import os, signal
from kolla_mesos_start.processes import reap
assert reap() == []
statuses = []
for status in (0, 3):
    pid = os.fork() or os._exit(status)
    statuses.append((pid, status << 8))
killed = os.fork() or signal.pause()
os.kill(killed, signal.SIGKILL)
statuses.append((killed, signal.SIGKILL))
for pid, _ in statuses:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
runs = os.fork() or signal.pause()
assert sorted(reap()) == sorted(statuses)
assert reap() == []
os.kill(runs, signal.SIGKILL)
os.waitid(os.P_PID, runs, os.WEXITED | os.WNOWAIT)
assert reap() == [(runs, signal.SIGKILL)]
assert reap() == []
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TOO_LONG, env=environ)
