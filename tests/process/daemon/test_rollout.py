"""Which instance refreshes next: the decision, and whole rollouts with everything in memory."""

from __future__ import annotations

import random

import pytest

from kolla_mesos_start.daemon.handoff import Refreshed
from kolla_mesos_start.daemon.rollout import instances_in, number, obstacle
from kolla_mesos_start.report import REFRESH_FAILED, REFRESH_PENDING
from tests.process.daemon.fleet import DAEMON, QUEUE, READY, SERVICE, SLOTS, Fleet, Instance, render
from tests.process.daemon.fleet import fleet as fleet


@pytest.mark.parametrize(
    ("refreshing", "ready", "wanted", "width", "is_ready", "expected"),
    [
        ("", "bc", 3, 1, True, ""),
        ("b", "bc", 3, 1, True, "1 of at most 1 instances refresh"),
        ("b", "bc", 3, 2, True, ""),
        ("b", "c", 3, 2, True, ""),
        ("b", "", 3, 2, True, "1 of 3 instances not ready"),
        ("", "c", 3, 1, True, "1 of 3 instances not ready"),
        ("", "c", 3, 1, False, ""),
        ("b", "c", 3, 1, False, "1 of at most 1"),
        ("", "", 3, 2, False, ""),
        ("", "bcd", 3, 1, True, ""),
        ("d", "bcd", 3, 1, True, "1 of at most 1"),
        ("", "", 1, 1, True, ""),
    ],
)
def test_why_an_instance_can_not_refresh(
    refreshing: str, ready: str, wanted: int, width: int, is_ready: bool, expected: str
) -> None:
    """Too many others refresh or are not ready; one that is not ready itself has nothing to lose."""
    found = obstacle(refreshing, ready, wanted, width, is_ready)
    assert found.startswith(expected) and bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("instances", "expected"),
    [("3", 3), ('"3"', 3), ("null", 1), ('"{{ replicas }}"', "replicas"), ('"{{ a + 1 }}"', 1), ("[]", 1)],
)
def test_how_many_instances_are_wanted(instances: str, expected: int | str) -> None:
    assert instances_in(b'{"service": {"instances": %s}}' % instances.encode()) == expected


@pytest.mark.parametrize("definition", [b"", b"[]", b"{}", b'{"service": 7}', b"[" * 100_000])
def test_a_definition_without_a_number_wants_one_instance(definition: bytes) -> None:
    assert instances_in(definition) == 1


@pytest.mark.parametrize(("text", "expected"), [("12", 12), ("", 1), ("-3", 1), ("x", 1), ("9" * 6, 1)])
def test_a_text_that_is_no_number_counts_as_one(text: str, expected: int) -> None:
    assert number(text) == expected


@pytest.mark.parametrize("width", [1, 2, 5])
def test_at_most_width_instances_refresh_at_a_time(fleet: Fleet, width: int) -> None:
    """Each holds its slot until its daemon is ready again."""
    instances = fleet.starts(5, width)
    most, instances[2].takes = 0, 5.0
    fleet.publish("new")
    for _ in range(300):
        fleet.settle(0.1)
        most = max(most, len(fleet.slots))
        assert len(fleet.slots) >= sum(each.is_rendering for each in instances)
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


def test_a_refresh_that_fails_to_render_does_not_stop_the_others(fleet: Fleet) -> None:
    """Each tries, and keeps its files: nothing has got worse."""
    instances = fleet.starts(3)
    fleet.publish("poison")
    fleet.settle(60)
    assert [each.refreshes for each in instances] == [1, 1, 1]
    assert {each.refresher.code for each in instances} == {REFRESH_FAILED}
    fleet.publish("fixed")
    fleet.settle(60)
    assert fleet.heard() == [["fixed"]] * 3
    assert ([each.refresher.reason for each in instances], fleet.slots) == ([""] * 3, [])


def test_a_killed_refresh_is_run_again_before_any_other(fleet: Fleet) -> None:
    """Some of its files may be new, and some old."""
    instances, begun = fleet.starts(3), list[str]()

    def killed_once(instance: Instance) -> Refreshed | None:
        begun.append(instance.name)
        return None if len(begun) == 1 else render(instance)

    for each in instances:
        each.render = killed_once
    fleet.publish("new")
    fleet.settle(60)
    assert begun[0] == begun[1] and sorted(begun[1:]) == ["w1", "w2", "w3"]


def test_a_replaced_container_counts_by_its_replacement(fleet: Fleet) -> None:
    """It dies in its refresh: no other instance begins until another one is ready in its place."""
    instances = fleet.starts(3)
    fleet.publish("new")
    fleet.settle(1.2)
    (dead,) = (each for each in instances if each.is_rendering)
    dead.die()
    fleet.settle(60)
    waiting = [each.refresher.reason for each in fleet.instances]
    assert sum("1 of 3 instances not ready" in reason for reason in waiting) == 1
    assert (fleet.heard(), fleet.slots) == ([[], []], [])
    fleet.publish("newer")
    fleet.settle(60)
    assert fleet.heard() == [[], []]
    fleet.start("another", 1)
    fleet.settle(60)
    assert (fleet.heard(), fleet.slots) == ([["newer"], ["newer"], []], [])


@pytest.mark.parametrize("variable", [False, True])
def test_fewer_wanted_instances_let_a_rollout_continue(fleet: Fleet, variable: bool) -> None:
    """One was removed, and the number is published afterwards."""
    instances = fleet.starts(3)
    if variable:
        fleet.servers.put("/kolla/site/variables/replicas", b"3\n")
        fleet.servers.put(SERVICE, b'{"service": {"instances": "{{ replicas }}"}}')
    instances[0].die()
    fleet.publish("new")
    fleet.settle(30)
    assert fleet.heard() == [[], []]
    if variable:
        fleet.servers.put("/kolla/site/variables/replicas", b"2\n")
    else:
        fleet.servers.put(SERVICE, b'{"service": {"instances": 2}}')
    fleet.settle(30)
    assert fleet.heard() == [["new"], ["new"]]


def test_instances_that_are_not_ready_refresh_one_after_the_other(fleet: Fleet) -> None:
    """The new files may be what makes them ready; the last one, which is ready, waits for them."""
    instances = fleet.starts(3)
    for each in instances[:2]:
        each.confirm(1e9)
    fleet.settle(10)
    for each in instances:
        each.takes = 1.0
    fleet.publish("fixed")
    for _ in range(100):
        fleet.settle(0.1)
        assert len(fleet.slots) <= 1
    assert fleet.heard() == [["fixed"]] * 3


def test_a_refresh_by_hand_does_not_wait_and_is_seen_by_others(fleet: Fleet) -> None:
    first, other = fleet.starts(2)
    first.takes = other.takes = 20.0
    fleet.publish("new")
    fleet.settle(3)
    waiting = other if first.heard else first
    waiting.ask()
    fleet.settle(3)
    assert fleet.heard() == [["new"], ["new"]]
    assert fleet.slots == ["w1", "w2"]
    fleet.settle(60)
    assert (fleet.slots, fleet.servers.children(QUEUE)) == ([], [])


def test_an_instance_that_dies_in_the_queue_does_not_hold_its_place(fleet: Fleet) -> None:
    """Its contender goes with its session, and the next one looks again."""
    instances = fleet.starts(4, width=2)
    fleet.servers.put(SERVICE, b'{"service": {"instances": 3}}')
    fleet.publish("new")
    fleet.settle(1.2)
    queue = sorted(fleet.servers.children(QUEUE), key=lambda name: name[-10:])
    next(each for each in instances if each.name == queue[0].partition("-")[0]).die()
    fleet.settle(30)
    assert (fleet.heard(), fleet.slots) == ([["new"]] * 3, [])


def test_an_instance_that_is_not_ready_after_its_refresh_keeps_its_slot(fleet: Fleet) -> None:
    """For the others its files may be wrong. A newer publication reaches it all the same."""
    first, other = fleet.starts(2)
    first.takes = other.takes = 1e6
    fleet.publish("new")
    fleet.settle(60)
    sick, waiting = (first, other) if first.heard else (other, first)
    assert (sick.heard, waiting.heard) == (["new"], [])
    assert waiting.refresher.reason.endswith("1 of at most 1 instances refresh now")
    assert waiting.refresher.code == REFRESH_PENDING
    first.takes = other.takes = 1.0
    fleet.publish("fixed")
    fleet.settle(60)
    assert (sick.heard, waiting.heard) == (["new", "fixed"], ["fixed"])
    assert fleet.slots == []


def test_what_no_session_owns_is_nobody(fleet: Fleet) -> None:
    """As in a copied tree: no slot, no place in the queue, no instance."""
    instances = fleet.starts(2)
    for path in (f"{SLOTS}/nobody", f"{SLOTS}/w1", f"{QUEUE}/garbage", f"{QUEUE}/nobody-0000000000"):
        fleet.servers.put(path, b"\xff\x00 \x1b[31m")
    fleet.publish("new")
    fleet.settle(10)
    assert (fleet.heard(), fleet.slots) == ([["new"]] * 2, ["nobody"])
    instances[0].die()
    fleet.servers.put(f"{READY}/nobody")
    fleet.publish("newer")
    fleet.settle(10)
    assert fleet.heard() == [["new"]]


def test_a_denied_place_in_the_queue_is_shown_and_tried_again(fleet: Fleet) -> None:
    (instance,) = fleet.starts(1)
    fleet.servers.put(QUEUE)
    fleet.servers.denied.add(QUEUE)
    fleet.publish("new")
    fleet.settle(10)
    assert "ZooKeeper refuses a turn in" in instance.refresher.reason
    assert instance.refresher.code == REFRESH_FAILED
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
