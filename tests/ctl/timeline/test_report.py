"""How a start went, for trees of znodes; and the page that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import Need, TimelineStep
from kolla_mesos_start.ctl.timeline.html_page import page
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.timeline.report import StartReport, lines
from tests.ctl.trees import NOW, ZNODES, container, definition, one_time, view

HOSTILE = "<script>\"'&"
# The clock of the container that ran the command is a minute wrong.
DETAIL = {"attempt": 2, "host": "h1", "started": NOW - 60, "finished": NOW - 57, "state": "done"}
TREE: dict[str, Any] = {
    "db": definition(),
    "db/.containers/1": container("ready", host="h1"),
    "status/global/db/daemon/ready/1": "{}",
    "job": definition(commands={"sync": one_time("db/daemon", retries=1)}, daemon=False),
    "status/global/job/sync": "done",
    "status/global/job/sync/detail": DETAIL,
    "web": definition({"members": "job"}, "job/sync", commands={"make": {"command": "true"}}, instances=2),
    "web/.containers/1": container("ready", host="w1"),
    "web/.containers/2": container("unready", "tcp 80: refused", host=HOSTILE),
    "web/.party/1": {"host": "w1"},
    "status/global/web/daemon/ready/1": "{}",
    "status/w1/web/make/detail": {**DETAIL, "host": "w1", "started": NOW, "finished": NOW + 1, "attempt": 1},
}
TIMES = {
    "db/.containers/1": NOW,
    "web/.containers/1": NOW + 0.5,
    "web/.containers/2": NOW + 0.5,
    "web/.party/1": NOW + 0.5,
    "status/global/db/daemon/ready/1": NOW + 2,
    "status/global/job/sync/detail": NOW + 5.5,
    "status/w1/web/make/detail": NOW + 2,
    "status/global/web/daemon/ready/1": NOW + 7,
}


def past(tree: dict[str, Any] = TREE) -> StartReport:
    history = HistoryReader(ZNODES)
    return history.report(view(history, tree, TIMES), NOW + 10)


def test_times_are_those_of_the_servers() -> None:
    """Except the duration of an attempt. A daemon starts when its needs are satisfied."""
    found = {
        (event.name, event.host): (event.started - NOW, event.finished - NOW, event.state)
        for event in past().steps
    }
    assert found == {
        ("db/daemon", "h1"): (0, 2, "done"),
        ("job/sync", "h1"): (2.5, 5.5, "done"),
        ("web/make", "w1"): (1, 2, "done"),
        ("web/daemon", "w1"): (5.5, 7, "done"),
        ("web/daemon", HOSTILE): (5.5, 10, "unready"),
    }


def test_the_critical_path_goes_through_services() -> None:
    path = critical_path.critical_path(past().finished)
    assert [step.name for step in path] == ["db/daemon", "job/sync", "web/daemon"]


def test_retries_and_daemons_that_are_not_ready_are_named() -> None:
    said = [event.trouble for event in past().steps if event.trouble]
    assert said == ["2 attempts", "unready, tcp 80: refused"]


def test_the_text_has_lanes_steps_and_problems() -> None:
    text = "\n".join(lines(past(), 100))
    assert re.search(r"^  job@h1 +\.+#+", text, re.MULTILINE)
    assert "\n  job/sync (h1): 2 attempts\n" in text


@pytest.mark.parametrize(
    "tree", [{}, {"db": definition()}, {"db": definition(), "db/.containers/1": container("waiting")}]
)
def test_an_empty_start_is_not_drawn(tree: dict[str, Any]) -> None:
    assert list(lines(past(tree), 80)) == ["nothing has been done yet: see `kolla_mesos_ctl explain`"]
    assert "</b> steps done" in page(past(tree))


class Page(HTMLParser):
    """What the page holds: tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str, word: str = "") -> Iterator[dict[str, str | None]]:
        for name, attributes in self.tags:
            if name == tag and word in [*(attributes.get("class") or "").split(), ""]:
                yield attributes


def test_the_page_has_a_bar_and_a_row_for_each_step() -> None:
    """With the critical path, the step that it waited for, and problems."""
    found = Page(page(past()))
    said = [unescape(bar["title"] or "") for bar in found.all("button", "bar")]
    assert sorted(said) == sorted(
        [
            "db/daemon on h1: took 2.00 s; began 0.00 s after the start; the last that one step waited for",
            "web/make on w1: took 1.00 s; began 1.00 s after the start",
            "job/sync on h1: took 3.00 s; began 0.50 s after db/daemon on h1;"
            " the last that 2 steps waited for; 2 attempts",
            "web/daemon on w1: took 1.50 s; began 0.00 s after job/sync on h1",
            f"web/daemon on {HOSTILE}: not done after 4.50 s; began 0.00 s after job/sync on h1;"
            " unready, tcp 80: refused",
        ]
    )
    assert len(list(found.all("button", "critical"))) == 3
    assert len(list(found.all("tr", "critical"))) == 3
    assert len(list(found.all("path", "critical"))) == 2
    assert len(list(found.all("button", "trouble"))) == 2


def test_equal_steps_have_a_row_and_a_bar_each() -> None:
    """Two containers of a host have the same name. What needs them is linked to one of them."""
    twin = TimelineStep("db/daemon", "h1", (), 0, 2)
    other, last = twin._replace(host="h2"), TimelineStep("web/daemon", "h1", (Need("db/daemon", 2),), 3, 4)
    found = Page(page(StartReport("site", 0, {}, (twin, twin, other, last))))
    rows = [row["data-steps"] for row in found.all("tr") if "data-steps" in row]
    assert rows == ["0", "1", "2", "3"]
    assert sorted(bar["data-steps"] or "" for bar in found.all("button", "bar")) == rows
    assert [lane["data-steps"] for lane in found.all("button", "name")] == ["0 1", "2", "3"]
    assert [(link["data-from"], link["data-to"]) for link in found.all("path", "critical")] == [("1", "3")]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("done", "bar critical trouble"),
        ("running", "bar trouble open"),
        ("retry", "bar trouble failed"),
        ("error", "bar trouble failed"),
    ],
)
def test_a_retry_is_not_a_failure(state: str, words: str) -> None:
    tree = {**TREE, "status/global/job/sync/detail": {**DETAIL, "state": state}}
    bars = list(Page(page(past(tree))).all("button", "bar"))
    assert [bar["class"] for bar in bars if (bar["title"] or "").startswith("job/sync ")] == [words]


def test_a_waiting_container_has_no_steps() -> None:
    tree = {**TREE, "web/.containers/2": container("waiting", "for job/sync", host="w2")}
    (event,) = (event for event in past(tree).steps if event.state == "waiting")
    assert event.duration == 0
    assert event.finished == NOW + 10
    assert 'title="web/daemon on w2: waiting, for job/sync"' in page(past(tree))


def past_with(
    counts: dict[str, tuple[int, int]], times: dict[str, float], tree: dict[str, Any]
) -> StartReport:
    """`counts`: of znodes, what ZooKeeper says of the names below them: how often they changed, how many."""
    history = HistoryReader(ZNODES)
    found = view(history, tree, {**TIMES, **times}, counts=counts)
    return history.report(found, NOW + 100)


ON_HOST = {"status/w1/web/daemon/ready/1": "{}"}


def test_a_restarted_container_is_marked() -> None:
    """With the commands that it has run since; it says so."""
    later = {
        "web/.containers/1": NOW + 50,
        "web/.party/1": NOW + 50,
        "status/w1/web/make/detail": NOW + 52,
        "status/global/web/daemon/ready/1": NOW + 57,
    }
    found = past_with({"web/.party": (3, 1)}, later, {**TREE, **ON_HOST})
    again = {event.name: event.again for event in found.steps if event.again}
    assert again == {"web/make": "started again", "web/daemon": "started again"}
    said = "This is not one start (web@w1 was started again)."
    assert found.note == said
    assert lines_end(found) == said
    text = unescape(page(found))
    assert said in text
    assert "web/daemon on w1: took 5.00 s; started again" in text
    assert "critical path, <b>" not in text


def lines_end(found: StartReport) -> str:
    return "\n".join(lines(found, 200)).splitlines()[-1]


def test_a_missing_member_marks_no_other() -> None:
    found = past_with({"web/.party": (3, 1)}, {}, {**TREE, **ON_HOST})
    assert not any(event.again for event in found.steps)


def test_a_daemon_that_was_ready_again_has_no_duration() -> None:
    count = {"status/w1/web/daemon/ready": (3, 1)}
    found = past_with(count, {"status/global/web/daemon/ready/1": NOW + 57}, {**TREE, **ON_HOST})
    (step,) = (event for event in found.steps if event.again)
    assert (step.name, step.again, step.duration) == ("web/daemon", "ready again", 0)
    assert "not one start (web@w1 was ready again)" in found.note


def test_a_command_with_too_many_attempts_was_run_again() -> None:
    tree = {**TREE, "status/global/job/sync/detail": {**DETAIL, "attempt": 3}}
    assert "not one start (job@h1 was run again)" in past(tree).note


def test_members_are_shown_in_words() -> None:
    web = definition({"members": "db"})
    tree = {**TREE, "db/.party/1": {"host": "h1"}, "web": web, "web/.party/9": {"host": "w9"}}
    found = past(tree)
    text = "\n".join(lines(found, 100))
    assert " db is present (h1) " in text
    assert "  web/daemon (w9): not ready, and its container does not say why" in text
    shown = unescape(page(found))
    assert "db is present on h1: " in shown
    assert ".party" not in text + shown


@pytest.mark.parametrize("columns", [80, 64])
def test_sentences_fit_the_terminal(columns: int) -> None:
    host = "a-host-with-a-long-name.of-a-region.example"
    said = [line for each in list(lines(past(one_host(host)), columns))[1:] for line in each.splitlines()]
    assert max(map(len, said)) <= columns
    assert past(one_host(host)).note in " ".join(said)
    assert f"job/sync ({host}): 2 attempts" in " ".join(" ".join(said).split())


def one_host(host: str) -> dict[str, Any]:
    return {**TREE, "status/global/job/sync/detail": {**DETAIL, "host": host}}


@pytest.mark.parametrize(("changes", "duration"), [(3, 5), (5, 0)])
def test_a_container_that_may_have_been_ready_twice_has_no_duration(changes: int, duration: int) -> None:
    later = {"web/.containers/1": NOW + 50, "web/.party/1": NOW + 50, "status/w1/web/make/detail": NOW + 52}
    later["status/global/web/daemon/ready/1"] = NOW + 57
    counts = {"web/.party": (3, 1), "status/w1/web/daemon/ready": (changes, 1)}
    found = past_with(counts, later, {**TREE, **ON_HOST})
    (step,) = (each for each in found.steps if each.name == "web/daemon" and each.again)
    assert step.duration == duration


def test_a_daemon_whose_need_ran_again_later_has_no_start() -> None:
    tree = {**TREE, "web": definition("db/daemon"), "status/h1/db/daemon/ready/1": "{}"}
    found = past_with(
        {"status/h1/db/daemon/ready": (3, 1)}, {"status/global/db/daemon/ready/1": NOW + 50}, tree
    )
    assert re.search(r"^[ *] web/daemon \(w1\) +7\.00$", "\n".join(lines(found, 80)), re.MULTILINE)
