"""What a command does with a deployment grows as the deployment does, and not with its square.

The steps of the interpreter are counted, not the time: that is the same on a busy machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Callable

import pytest

from kolla_mesos_start.ctl.commands import status
from kolla_mesos_start.ctl.live import causes, graph
from kolla_mesos_start.ctl.timeline import html_page
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.timeline.report import lines
from tests.ctl.trees import NOW, ZNODES, container, definition, deployment, one_time, view

SMALL, LARGE, GROWTH = 8, 32, 4  # services: so many times as many
REPLICAS = 3


def tree(services: int, *, is_up: bool) -> dict[str, Any]:
    """A chain of services, each with a command that runs once, and with a host for each of its containers."""
    return {path: value for number in range(services) for path, value in _service(number, is_up=is_up)}


def _service(number: int, *, is_up: bool) -> Iterator[tuple[str, Any]]:
    role = f"s{number}"
    before = [{"path": f"s{number - 1}/daemon", "count": REPLICAS}] if number else []
    yield role, definition(commands={"sync": one_time(*before)}, instances=REPLICAS)
    at = f"status/global/{role}"
    yield at, role
    yield f"{at}/sync", "done" if is_up or not number else "waiting"
    detail = {"attempt": 1, "host": f"{role}-0", "started": NOW, "finished": NOW + 1, "state": "done"}
    yield f"{at}/sync/detail", json.dumps(detail) if is_up or not number else ""
    for replica in range(REPLICAS):
        host = f"{role}-{replica}"
        yield f"status/{host}/{role}", role
        yield f"{role}/.containers/{host}__party__", container("ready" if is_up else "waiting", host=host)
        if is_up:
            yield f"{at}/daemon/ready/{host}__party__", "{}"


def steps_of(work: Callable[[], object]) -> int:
    """How many instructions of Python a call takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def read(services: int, *, is_up: bool) -> Callable[[], object]:
    """What all commands do with the znodes: make one record of all."""
    history = HistoryReader(ZNODES)
    found = view(history, tree(services, is_up=is_up))
    return lambda: history.deployment(found)


def draw(services: int, *, is_up: bool) -> Callable[[], object]:
    """The graph and the status of the deployment, and why it is not up."""
    made = deployment(tree(services, is_up=is_up))
    now = NOW + 9
    return lambda: (
        list(graph.text(graph.of(made))),
        status.fitting(made, now, 80, 9999),
        causes.find(made, now),
    )


def tell(services: int, *, is_up: bool) -> Callable[[], object]:
    """Its timeline, as text and as a page."""
    history = HistoryReader(ZNODES)
    found = view(history, tree(services, is_up=is_up))

    def work() -> None:
        past = history.report(found, NOW + 9)
        list(lines(past, 100))
        html_page.page(past)

    return work


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "waiting"])
@pytest.mark.parametrize("work", [read, draw, tell])
def test_the_work_grows_linearly(work: Callable[..., Callable[[], object]], is_up: bool) -> None:
    small, large = (steps_of(work(services, is_up=is_up)) for services in (SMALL, LARGE))
    assert large < 1.3 * GROWTH * small
