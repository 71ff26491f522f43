"""Which instance refreshes next: the decision, and whole rollouts with everything in memory."""

from __future__ import annotations

import random

import pytest

from kolla_mesos_start.daemon.rollout import Slot, blocking_reason
from kolla_mesos_start.report import REFRESH_FAILED, REFRESH_PENDING, REFRESH_STUCK
from tests.daemon.fleet import DAEMON, QUEUE, SLOTS, Fleet
from tests.daemon.fleet import fleet as fleet

BUSY, FAILED = Slot("a", "", 10, False, 0), Slot("b", "it failed", 10, False, 0)
OLD = Slot("c", "it failed long ago", 5, True, 0)


@pytest.mark.parametrize(
    ("slots", "width", "change", "expected", "stuck"),
    [
        ([], 1, 7, "", False),
        ([BUSY], 1, 7, "1 of at most 1 instances refresh now", False),
        ([BUSY], 1, 99, "1 of at most 1 instances refresh now", False),
        ([BUSY], 2, 7, "", False),
        ([FAILED], 5, 7, "it failed: no other instance", True),
        ([FAILED], 5, 11, "", False),
        ([FAILED], 5, 10, "", False),
        ([OLD], 1, 7, "", False),
        ([OLD, BUSY], 1, 7, "1 of at most 1", False),
        ([OLD, BUSY, FAILED], 9, 7, "it failed: no other instance", True),
    ],
)
def test_why_an_instance_can_not_refresh(
    slots: list[Slot], width: int, change: int, expected: str, stuck: bool
) -> None:
    """Too many others refresh, or one has failed with what is published."""
    found, found_stuck = blocking_reason(slots, width, change)
    assert found.startswith(expected) and bool(found) == bool(expected)
    assert found_stuck == stuck


@pytest.mark.parametrize("width", [1, 2, 5])
def test_at_most_width_instances_refresh_at_a_time(fleet: Fleet, width: int) -> None:
    """Each holds its slot until its daemon is ready again."""
    instances = fleet.starts(5, width)
    most, instances[2].takes = 0, 5.0
    fleet.publish("new")
    for _ in range(300):
        fleet.settle(0.1)
        most = max(most, len(fleet.held))
        assert len(fleet.held) >= sum(each.is_rendering for each in instances)
    assert most == width
    assert fleet.heard() == [["new"]] * 5
    assert (fleet.slots, fleet.servers.children(QUEUE)) == ([], [])


@pytest.mark.parametrize("seed", range(30))
def test_lost_connections_and_any_order_of_messages_lose_no_refresh(fleet: Fleet, seed: int) -> None:
    """Connections are lost before and after the server applies requests, and sessions expire."""
    chance = random.Random(seed)
    instances = fleet.starts(4, width := chance.choice((1, 2)))

    def step() -> bool:
        for each in instances:
            if each.session.connected and chance.random() < 0.01:
                each.session.lose(chance.randrange(3))
            elif not each.session.connected and chance.random() < 0.3:
                each.session.connect(expired=chance.random() < 0.3)
                if f"/kolla/site/web/.party/{each.name}" not in fleet.servers.znodes:
                    fleet.servers.put(f"/kolla/site/web/.party/{each.name}", b"", each.session.id)
        did = fleet.servers.step(chance.choice)
        assert sum(each.is_rendering for each in instances) <= width
        return did

    for text in ("two", "poison", "three", "poison", "four"):
        fleet.publish(text)
        fleet.settle(chance.choice((0.5, 1.2, 3.0, 30.0)), step)
    fleet.settle(30.0, step)
    for each in instances:
        if not each.session.connected:
            each.session.connect()
    fleet.settle(90.0)
    assert [each.heard[-1:] for each in instances] == [["four"]] * 4
    assert (fleet.slots, fleet.servers.children(QUEUE)) == ([], [])


def test_after_a_failed_refresh_no_other_instance_begins(fleet: Fleet) -> None:
    """Until something newer is published. Only the first of those that wait knows the failure."""
    instances = fleet.starts(3)
    fleet.publish("poison")
    fleet.settle(60)
    assert sum(each.refreshes for each in instances) == 1
    codes = [REFRESH_FAILED, REFRESH_PENDING, REFRESH_STUCK]
    assert sorted(each.refresher.code for each in instances) == codes
    (stuck,) = (each for each in instances if each.refresher.code == REFRESH_STUCK)
    words = ": its check refuses the new content: no other instance refreshes until that one is ready again"
    assert words in stuck.refresher.reason
    (pending,) = (each for each in instances if each.refresher.code == REFRESH_PENDING)
    assert pending.refresher.reason.endswith("1 instances wait before this one")
    fleet.publish("fixed")
    fleet.settle(60)
    assert fleet.heard() == [["fixed"]] * 3
    assert ([each.refresher.reason for each in instances], fleet.slots) == ([""] * 3, [])


@pytest.mark.parametrize("reconnect", [False, True])
def test_failures_with_older_files_do_not_block_a_fix(fleet: Fleet, reconnect: bool) -> None:
    """Also if they are recorded, or recorded again after an outage, when the fix is published already."""
    instances = fleet.starts(3, width=2)
    fleet.publish("poison")
    fleet.settle(3.0 if reconnect else 1.2)
    fleet.publish("fixed")
    for each in instances if reconnect else ():
        each.session.lose()
        each.session.connect()
    fleet.settle(60)
    assert (fleet.heard(), fleet.slots) == ([["fixed"]] * 3, [])


def test_a_failed_instance_may_refresh_again_by_hand(fleet: Fleet) -> None:
    """Its success releases the others."""
    instances = fleet.starts(2)
    fleet.publish("poison")
    fleet.settle(10)
    (failed,) = (each for each in instances if each.refreshes)
    rendered, failed.render = failed.render, lambda instance: rendered(instance)._replace(failure="")  # type: ignore[union-attr]
    failed.ask()
    fleet.settle(10)
    assert fleet.slots == [next(each.name for each in instances if each is not failed)]


def test_an_instance_that_dies_in_its_refresh_blocks_the_others(fleet: Fleet) -> None:
    """Until something newer is published; then its slot is removed."""
    instances = fleet.starts(3)
    fleet.publish("new")
    fleet.settle(1.2)
    (dead,) = (each for each in instances if each.is_rendering)
    dead.die()
    fleet.settle(60)
    words = f"the instance on {dead.name} has not come back from its refresh"
    assert sum(words in each.refresher.reason for each in fleet.instances) == 1
    assert (fleet.heard(), fleet.slots) == ([[], []], [dead.name])
    fleet.publish("fixed")
    fleet.settle(60)
    assert (fleet.heard(), fleet.slots) == ([["fixed"]] * 2, [])


def test_the_others_continue_when_a_dead_instance_is_back(fleet: Fleet) -> None:
    """Once its daemon is ready, its registrar deletes the slot."""
    instances = fleet.starts(2)
    fleet.publish("new")
    fleet.settle(1.2)
    (dead,) = (each for each in instances if each.is_rendering)
    dead.die()
    fleet.settle(10)
    back = fleet.start(dead.name, 1)
    fleet.settle(10)
    assert (back.file, fleet.instances[0].heard) == ("new", [])
    fleet.servers.remove(f"{SLOTS}/{dead.name}")
    fleet.settle(10)
    assert (fleet.instances[0].heard, fleet.slots) == (["new"], [])


def test_an_instance_that_dies_in_the_queue_blocks_nobody(fleet: Fleet) -> None:
    """Its contender goes with its session, and the next one looks again."""
    instances = fleet.starts(3)
    fleet.publish("new")
    fleet.settle(1.2)
    queue = sorted(fleet.servers.children(QUEUE), key=lambda name: name[-10:])
    next(each for each in instances if each.name == queue[0].partition("-")[0]).die()
    fleet.settle(30)
    assert (fleet.heard(), fleet.slots) == ([["new"]] * 2, [])


def test_an_instance_that_is_not_ready_after_its_refresh_keeps_its_slot(fleet: Fleet) -> None:
    """For the others its files may be wrong. A newer publication reaches it all the same."""
    first, other = fleet.starts(2)
    first.takes = other.takes = 1e6
    fleet.publish("new")
    fleet.settle(60)
    sick, waiting = (first, other) if first.heard else (other, first)
    assert (sick.heard, waiting.heard) == (["new"], [])
    assert waiting.refresher.reason.endswith("1 of at most 1 instances refresh now")
    first.takes = other.takes = 1.0
    fleet.publish("fixed")
    fleet.settle(60)
    assert (sick.heard, waiting.heard) == (["new", "fixed"], ["fixed"])
    assert fleet.slots == []


def test_what_nobody_can_read_blocks_no_later_publication(fleet: Fleet) -> None:
    """A slot without an instance counts as failed, and is removed once it is older."""
    fleet.starts(1)
    put = fleet.servers.put
    for slot, data in {"nobody": b"\xff\x00 \x1b[31m", "failed": b"failed \xff\n" + b"x" * 10_000}.items():
        put(f"{SLOTS}/{slot}", data)
    put(f"{QUEUE}/garbage")
    fleet.publish("new")
    fleet.settle(10)
    assert (fleet.heard(), fleet.slots) == ([["new"]], [])


def test_a_denied_place_in_the_queue_is_shown_and_tried_again(fleet: Fleet) -> None:
    (instance,) = fleet.starts(1)
    fleet.servers.put(QUEUE)
    fleet.servers.denied.add(QUEUE)
    fleet.publish("new")
    fleet.settle(10)
    assert "ZooKeeper refuses a turn in" in instance.refresher.reason
    assert instance.refresher.code == REFRESH_STUCK
    fleet.servers.denied.clear()
    fleet.publish("newer")
    fleet.settle(10)
    assert (instance.heard, fleet.slots) == (["newer"], [])


def test_a_deleted_service_is_waited_for_without_polling(fleet: Fleet) -> None:
    """Another container, or a publication, creates its states again."""
    (instance,) = fleet.starts(1)
    fleet.servers.remove(DAEMON)
    fleet.publish("new")
    fleet.settle(10)
    assert "the states of its service were removed" in instance.refresher.reason
    before = fleet.servers.requests
    fleet.settle(3600)
    assert fleet.servers.requests == before
    fleet.servers.put(DAEMON)
    fleet.settle(10)
    assert (instance.heard, fleet.slots) == (["new"], [])
