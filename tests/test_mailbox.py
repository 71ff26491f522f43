"""All that happens outside runs on the main thread, inside `wait`, in the order in which it came."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from kolla_mesos_start.mailbox import Mailbox, now

SOON = 0.05  # seconds
PATIENCE = 10.0


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


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


def test_what_is_posted_runs_in_its_order_on_the_waiting_thread(mailbox: Mailbox) -> None:
    """From another thread, before and during the wait; nothing runs before somebody waits."""
    ran: list[object] = []
    threads = []

    def note(what: object) -> None:
        ran.append(what)
        threads.append(threading.current_thread())

    for number in range(3):
        mailbox.post(lambda number=number: note(number))  # type: ignore[misc]
    assert ran == []
    thread = from_a_thread(*(lambda n=n: mailbox.post(lambda: note(n)) for n in range(3, 1000)))
    assert mailbox.wait(lambda: len(ran) == 1000, now() + PATIENCE)
    thread.join()
    assert ran == list(range(1000))
    assert set(threads) == {threading.main_thread()}


def test_a_wait_ends_with_the_value_of_its_condition(mailbox: Mailbox) -> None:
    """What is true already is not waited for; else it is looked at again after whatever has run."""
    assert mailbox.wait(lambda: "there") == "there"
    found: list[str] = []
    mailbox.post(lambda: found.append("posted"))
    assert mailbox.wait(lambda: found) == ["posted"]


def test_a_wait_ends_at_its_deadline(mailbox: Mailbox) -> None:
    """With the last value, not before, and at once if the deadline has passed."""
    begun = now()
    assert mailbox.wait(lambda: 0, begun + SOON) == 0
    assert SOON <= now() - begun < PATIENCE
    begun = now()
    assert mailbox.wait(lambda: False, begun - 1) is False
    assert now() - begun < PATIENCE


def test_what_has_come_by_the_deadline_counts(mailbox: Mailbox) -> None:
    """An event that is there at the deadline is looked at before the wait gives up."""
    found: list[int] = []
    mailbox.post(lambda: found.append(1))
    assert mailbox.wait(lambda: found, now() - 1) == [1]


def test_timers_run_at_their_time_and_in_their_order(mailbox: Mailbox) -> None:
    """The earlier first, those of one instant as they were set; a timer may set another one."""
    ran: list[str] = []
    begun = now()
    mailbox.call_at(begun + 2 * SOON, lambda: ran.append("late"))
    mailbox.call_at(begun + SOON, lambda: ran.append("early"))
    mailbox.call_at(begun + SOON, lambda: ran.append("early too"))
    mailbox.call_at(begun + SOON, lambda: mailbox.call_at(begun + SOON, lambda: ran.append("from a timer")))
    mailbox.wait(lambda: "late" in ran, begun + PATIENCE)
    assert ran == ["early", "early too", "from a timer", "late"]
    assert 2 * SOON <= now() - begun < PATIENCE


@pytest.mark.parametrize("later", [1e6, 1e9, float("inf")])
def test_a_time_that_is_far_away_is_no_trouble(mailbox: Mailbox, later: float) -> None:
    """No kernel call takes a timeout of years, and a definition may ask for one."""
    found: list[int] = []
    mailbox.call_at(now() + later, lambda: found.append(2))
    thread = from_a_thread(lambda: time.sleep(SOON), lambda: mailbox.post(lambda: found.append(1)))
    assert mailbox.wait(lambda: found, now() + later) == [1]
    thread.join()


def test_what_a_handler_raises_comes_out_of_the_wait_and_the_rest_is_kept(mailbox: Mailbox) -> None:
    """That is how a stop signal ends the agent; nothing that came with it is lost."""
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("the first")

    mailbox.post(fail)
    mailbox.post(lambda: ran.append("second"))
    with pytest.raises(ValueError, match="the first"):
        mailbox.wait(lambda: False)
    assert mailbox.wait(lambda: ran) == ["second"]


def test_a_readable_descriptor_is_read_until_it_is_ignored(mailbox: Mailbox) -> None:
    """The guard's messages come so."""
    reader, writer = os.pipe()
    got: list[bytes] = []
    try:
        mailbox.listen(reader, lambda: got.append(os.read(reader, 100)))
        os.write(writer, b"one")
        assert mailbox.wait(lambda: got, now() + PATIENCE) == [b"one"]
        mailbox.ignore(reader)
        os.write(writer, b"two")
        mailbox.wait(lambda: False, now() + SOON)
        assert got == [b"one"]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_signal_wakes_the_wait_and_is_handled_inside_it(mailbox: Mailbox) -> None:
    """Not where it happens to interrupt the agent: each one is counted, also those that come at once."""
    got: list[int] = []
    mailbox.on_signal(signal.SIGUSR1, got.append)
    mailbox.on_signal(signal.SIGTERM, got.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert got == []
    thread = from_a_thread(lambda: time.sleep(SOON), lambda: os.kill(os.getpid(), signal.SIGTERM))
    mailbox.wait(lambda: signal.SIGTERM in got, now() + PATIENCE)
    thread.join()
    assert got == [signal.SIGUSR1, signal.SIGTERM]


def test_a_flood_of_events_blocks_nobody(mailbox: Mailbox) -> None:
    """More than a pipe holds, posted while nobody waits: kazoo's threads must not hang."""
    ran: list[int] = []
    thread = from_a_thread(*[lambda: mailbox.post(lambda: ran.append(1))] * 100_000)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    mailbox.wait(lambda: len(ran) == 100_000, now() + PATIENCE)
    assert len(ran) == 100_000
