"""All that happens outside runs on the main thread, inside `wait`, in the order in which it came."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from kolla_mesos_start.loop import Loop, now

SOON = 0.05  # seconds
HANDSHAKE_TIMEOUT = 10.0


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Signals are the process's own; each test leaves them as they were."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


def from_a_thread(*actions: object) -> threading.Thread:
    """A thread that performs the actions, one after the other, and has begun to."""

    def perform() -> None:
        for action in actions:
            assert callable(action)
            action()

    thread = threading.Thread(target=perform)
    thread.start()
    return thread


def test_what_is_posted_runs_in_its_order_on_the_waiting_thread(loop: Loop) -> None:
    """From another thread, before and during the wait; nothing runs before somebody waits."""
    ran: list[object] = []
    threads = []

    def note(what: object) -> None:
        ran.append(what)
        threads.append(threading.current_thread())

    for number in range(3):
        loop.post(lambda number=number: note(number))  # type: ignore[misc]
    assert ran == []
    thread = from_a_thread(*(lambda n=n: loop.post(lambda: note(n)) for n in range(3, 1000)))
    assert loop.wait(lambda: len(ran) == 1000, now() + HANDSHAKE_TIMEOUT)
    thread.join()
    assert ran == list(range(1000))
    assert set(threads) == {threading.main_thread()}


def test_a_wait_ends_with_the_value_of_its_condition(loop: Loop) -> None:
    """What is true already is not waited for; else it is looked at again after whatever has run."""
    assert loop.wait(lambda: "there") == "there"
    found: list[str] = []
    loop.post(lambda: found.append("posted"))
    assert loop.wait(lambda: found) == ["posted"]


def test_a_wait_ends_at_its_deadline(loop: Loop) -> None:
    """With the last value, not before, and at once if the deadline has passed."""
    begun = now()
    assert loop.wait(lambda: 0, begun + SOON) == 0
    assert SOON <= now() - begun < HANDSHAKE_TIMEOUT
    begun = now()
    assert loop.wait(lambda: False, begun - 1) is False
    assert now() - begun < HANDSHAKE_TIMEOUT


def test_what_has_come_by_the_deadline_counts(loop: Loop) -> None:
    """An event that is there at the deadline is looked at before the wait gives up."""
    found: list[int] = []
    loop.post(lambda: found.append(1))
    assert loop.wait(lambda: found, now() - 1) == [1]


def test_timers_run_at_their_time_and_in_their_order(loop: Loop) -> None:
    """The earlier first, those of one instant as they were set; a timer may set another one."""
    ran: list[str] = []
    begun = now()
    loop.call_at(begun + 2 * SOON, lambda: ran.append("late"))
    loop.call_at(begun + SOON, lambda: ran.append("early"))
    loop.call_at(begun + SOON, lambda: ran.append("early too"))
    loop.call_at(begun + SOON, lambda: loop.call_at(begun + SOON, lambda: ran.append("from a timer")))
    loop.wait(lambda: "late" in ran, begun + HANDSHAKE_TIMEOUT)
    assert ran == ["early", "early too", "from a timer", "late"]
    assert 2 * SOON <= now() - begun < HANDSHAKE_TIMEOUT


@pytest.mark.parametrize("later", [1e6, 1e9, float("inf")])
def test_a_time_that_is_far_away_is_no_trouble(loop: Loop, later: float) -> None:
    """No kernel call takes a timeout of years, and a definition may ask for one."""
    found: list[int] = []
    loop.call_at(now() + later, lambda: found.append(2))
    thread = from_a_thread(lambda: time.sleep(SOON), lambda: loop.post(lambda: found.append(1)))
    assert loop.wait(lambda: found, now() + later) == [1]
    thread.join()


def test_what_a_handler_raises_comes_out_of_the_wait_and_the_rest_is_kept(loop: Loop) -> None:
    """That is how a stop signal ends the agent; nothing that came with it is lost."""
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("the first")

    loop.post(fail)
    loop.post(lambda: ran.append("second"))
    with pytest.raises(ValueError, match="the first"):
        loop.wait(lambda: False)
    assert loop.wait(lambda: ran) == ["second"]


def test_a_readable_descriptor_is_read_until_it_is_ignored(loop: Loop) -> None:
    """The guard's messages come so."""
    reader, writer = os.pipe()
    got: list[bytes] = []
    try:
        loop.listen(reader, lambda: got.append(os.read(reader, 100)))
        os.write(writer, b"one")
        assert loop.wait(lambda: got, now() + HANDSHAKE_TIMEOUT) == [b"one"]
        loop.ignore(reader)
        os.write(writer, b"two")
        loop.wait(lambda: False, now() + SOON)
        assert got == [b"one"]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_signal_wakes_the_wait_and_is_handled_inside_it(loop: Loop) -> None:
    """Not where it happens to interrupt the agent: each one is counted, also those that come at once."""
    got: list[int] = []
    loop.on_signal(signal.SIGUSR1, got.append)
    loop.on_signal(signal.SIGTERM, got.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert got == []
    thread = from_a_thread(lambda: time.sleep(SOON), lambda: os.kill(os.getpid(), signal.SIGTERM))
    loop.wait(lambda: signal.SIGTERM in got, now() + HANDSHAKE_TIMEOUT)
    thread.join()
    assert got == [signal.SIGUSR1, signal.SIGTERM]


def test_a_flood_of_events_blocks_nobody(loop: Loop) -> None:
    """More than a pipe holds, posted while nobody waits: kazoo's threads must not hang."""
    ran: list[int] = []
    thread = from_a_thread(*[lambda: loop.post(lambda: ran.append(1))] * 100_000)
    thread.join(HANDSHAKE_TIMEOUT)
    assert not thread.is_alive()
    loop.wait(lambda: len(ran) == 100_000, now() + HANDSHAKE_TIMEOUT)
    assert len(ran) == 100_000
