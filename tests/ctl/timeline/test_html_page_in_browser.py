"""The page of `timeline --html` in a real browser: it loads nothing, fits its window, and is of use in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from kolla_mesos_start.ctl.timeline.critical_path import Need, TimelineStep
from kolla_mesos_start.ctl.timeline.html_page import page as html
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.timeline.report import StartReport
from tests.ctl.trees import NOW, ZNODES, container, definition, view

CHROMIUM = "/usr/bin/chromium-headless-shell"
WIDE, NARROW = 1200, 400
Open = Callable[..., Page]

DATABASE = TimelineStep("database/daemon", "db-1", (), 0.1, 2.0)
SCHEMA = TimelineStep("api/schema", "web-1", (Need("database/daemon"),), 2.5, 3.5)
FIRST = TimelineStep("api/daemon", "web-1", (Need("api/schema"),), 4.0, 5.0)
SECOND = TimelineStep("api/daemon", "web-2", (Need("api/schema"),), 4.0, 6.0)
TIDY = TimelineStep("tidy/tidy", "db-1", (Need("database/daemon"),), 2.1, 3.0)
FRONT = TimelineStep("front/daemon", "edge", (Need("api/daemon", 3),), 6.0, 6.2)


SMALL = StartReport(
    "site",
    0.0,
    {step.container: 0.0 for step in (DATABASE, SCHEMA, SECOND, FRONT)},
    (
        DATABASE,
        TIDY._replace(attempts=3),
        SCHEMA,
        FIRST,
        SECOND,
        FRONT._replace(state="unready", message="tcp 80: refused"),
    ),
)


def large(services: int, replicas: int) -> StartReport:
    """A chain of services: each has a one-time command, and replicas that become ready one after another."""
    steps = []
    for number in range(services):
        role, begin = f"keystone-service-{number}", 3.0 * number
        before = (Need(f"keystone-service-{number - 1}/daemon", replicas),) if number else ()
        steps.append(
            TimelineStep(f"{role}/bootstrap", "controller-0.example", before, begin + 0.1, begin + 1)
        )
        for replica in range(replicas):
            end = begin + 1.5 + replica / replicas
            need = (Need(f"{role}/bootstrap"),)
            steps.append(
                TimelineStep(f"{role}/daemon", f"controller-{replica}.example", need, begin + 1.1, end)
            )
    appeared = {step.container: 0.01 * number for number, step in enumerate(steps)}
    return StartReport("site", 0.0, appeared, tuple(steps))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a start, which may ask for nothing but itself, and complain of nothing."""
    contexts, asked, said = [], [], []

    def open_page(past: StartReport, width: int = WIDE, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        file = tmp_path / "start.html"
        file.write_text(html(past), encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert (set(asked), said) == ({(tmp_path / "start.html").as_uri()}, [])


def bar(page: Page, words: str) -> Locator:
    """By the beginning of what it says."""
    return page.locator(f'.bar[title^="{words}:"]')


def marked(page: Page, word: str) -> list[str]:
    """The steps whose bars have a class."""
    titles = [each.get_attribute("title") or "" for each in page.locator(f".bar.{word}").all()]
    return [title.partition(":")[0] for title in titles]


class Box(NamedTuple):
    """Where something is in the window."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def boxes(page: Page, query: str) -> list[Box]:
    """Of all that can be seen, or scrolled to."""
    found = page.locator(query).evaluate_all(
        """found => found.map(each => each.getBoundingClientRect()).filter(each => each.width)
          .map(each => [each.left, each.top, each.right, each.bottom])"""
    )
    return [Box(*each) for each in found]


def box(page: Page, query: str) -> Box:
    (found,) = boxes(page, query)
    return found


def shown_lanes(page: Page) -> list[str]:
    return page.locator(".lane:visible .name").all_text_contents()


def test_a_bar_shows_which_steps_waited(opened: Open) -> None:
    page = opened(SMALL)
    bar(page, "api/schema on web-1").click()
    assert page.locator("#said").inner_text() == (
        "api/schema on web-1: took 1.00 s; began 0.50 s after database/daemon on db-1;"
        " the last that 2 steps waited for"
    )
    assert marked(page, "chosen") == ["api/schema on web-1"]
    assert marked(page, "linked") == [
        "database/daemon on db-1",
        "api/schema on web-1",
        "api/daemon on web-1",
        "api/daemon on web-2",
    ]
    assert page.locator("path.chosen").count() == 3
    assert page.locator("tbody tr.chosen a").all_inner_texts() == ["api/schema"]


def test_a_lane_selects_the_steps_of_its_container(opened: Open) -> None:
    page = opened(SMALL)
    page.get_by_role("button", name="api@web-1", exact=True).click()
    assert page.locator("#said").inner_text() == (
        "api@web-1: there after 0.00 s; worked for 2.00 s; waited for 3.00 s; done after 5.00 s"
    )
    assert marked(page, "chosen") == ["api/schema on web-1", "api/daemon on web-1"]
    assert page.locator("tbody tr.chosen a").all_inner_texts() == ["api/schema", "api/daemon"]
    assert len({track.left for track in boxes(page, ".track")}) == 1


def test_problems_can_be_shown_alone(opened: Open) -> None:
    """Retries and steps that are not ready, with their containers."""
    page = opened(SMALL)
    page.get_by_label("what failed or was tried again (2)").check()
    assert shown_lanes(page) == ["tidy@db-1", "front@edge"]
    assert page.locator("tbody tr:visible .bad").all_inner_texts() == [
        "3 attempts",
        "unready, tcp 80: refused",
    ]
    assert bar(page, "tidy/tidy on db-1").inner_text() == "tidy x3"
    page.get_by_label("all containers").check()
    assert len(shown_lanes(page)) == 5


# Where a line begins and ends in the window.
ENDS = """each => [0, each.getTotalLength()].map(length => {
  const point = each.getPointAtLength(length).matrixTransform(each.getScreenCTM());
  return [point.x, point.y];
})"""


def test_the_critical_path_can_be_shown_alone(opened: Open) -> None:
    """Its containers move together, and the lines follow."""
    page = opened(SMALL)
    page.get_by_label("the critical path").check()
    assert shown_lanes(page) == ["database@db-1", "api@web-1", "api@web-2"]
    assert marked(page, "critical") == [
        "database/daemon on db-1",
        "api/schema on web-1",
        "api/daemon on web-2",
    ]
    links = page.locator("path.critical").all()
    assert len(links) == 2
    for link in links:
        begin, end = link.evaluate(ENDS)
        first, last = (
            box(page, f'.bar[data-steps="{link.get_attribute(each)}"]') for each in ("data-from", "data-to")
        )
        assert begin == pytest.approx([first.right, first.middle], abs=1)
        assert end == pytest.approx([last.left, last.middle], abs=1)


def test_the_keyboard_is_enough(opened: Open) -> None:
    """For the choice of lanes, the chart, and the links of the table."""
    page = opened(SMALL)
    focused = page.locator(":focus")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert shown_lanes(page) == ["database@db-1", "api@web-1", "api@web-2"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    assert focused.inner_text() == "database@db-1"
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert (focused.get_attribute("title") or "").startswith("api/daemon on web-1: ")
    assert page.locator("#said").inner_text() == focused.get_attribute("title")
    assert focused.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    assert (focused.get_attribute("title") or "").startswith("api/daemon on web-1: ")
    page.keyboard.press("Tab")  # the table, which may be wider than the window
    page.keyboard.press("Tab")
    assert focused.inner_text() == "database/daemon"
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("title", re.compile("^database/daemon on db-1: "))
    assert page.url.endswith("#step-0")


def test_a_link_shows_a_hidden_step(opened: Open) -> None:
    page = opened(SMALL)
    page.get_by_label("what failed or was tried again (2)").check()
    page.evaluate("location.hash = 'step-2'")
    page.locator(".bar.chosen").wait_for()
    assert marked(page, "chosen") == ["api/schema on web-1"]


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("past", [SMALL, large(10, 10)], ids=["small", "large"])
def test_everything_fits_the_window(opened: Open, past: StartReport, width: int) -> None:
    """Only the table scrolls sideways, and no label covers another."""
    page = opened(past, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names, tracks, ticks = boxes(page, ".name"), boxes(page, ".track"), boxes(page, "#axis span")
    assert len(names) == len({event.container for event in past.steps})
    assert len(ticks) >= 3 and ticks[-1].right <= width
    for name, track in zip(names, tracks):
        assert name.right <= track.left if width == WIDE else name.bottom <= track.top
    assert all(above.bottom <= below.top for above, below in zip(names, names[1:]))
    assert all(left.right <= right.left for left, right in zip(ticks, ticks[1:]))
    assert min(track.right - track.left for track in tracks) > width / 3


# The nearest background that is not transparent.
HOSTILE = (
    "</title></script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    '"&amp;\x1b[31m\u202e\0\ud800'
)
SHOWN = HOSTILE.translate(dict.fromkeys(map(ord, "\x1b\u202e\0\ud800"), "\N{REPLACEMENT CHARACTER}"))


def test_names_and_messages_of_containers_stay_text(opened: Open) -> None:
    tree = {"web": definition(), "web/.containers/1": container("unready", HOSTILE, host=HOSTILE)}
    history = HistoryReader(ZNODES)
    past = history.report(view(history, tree), NOW + 10)
    page = opened(past)
    assert shown_lanes(page) == [f"web@{SHOWN}"]
    assert page.locator("td.bad").inner_text() == f"unready, {SHOWN}"
    page.locator(".bar").click()
    assert SHOWN in page.locator("#said").inner_text()
    assert page.evaluate("[document.scripts.length, document.images.length, window.ran]") == [1, 0, None]


def test_the_page_runs_only_its_own_script_and_loads_nothing(browser: Browser, tmp_path: Path) -> None:
    """Even if something were not escaped."""
    file = tmp_path / "start.html"
    file.write_text(
        html(SMALL).replace("<h1>", "<script>window.ran = 1</script><img src='file:///dev/null'><h1>")
    )
    with browser.new_context() as context:
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.goto(file.as_uri())
        assert page.evaluate("[document.scripts.length, window.ran]") == [2, None]
        assert len(said) == 2 and all("Content Security Policy" in each for each in said)
        bar(page, "api/schema on web-1").click()
        assert marked(page, "chosen") == ["api/schema on web-1"]


def test_a_restarted_container_is_marked(opened: Open) -> None:
    again = SECOND._replace(started=40.0, finished=42.0, again="started again")
    page = opened(SMALL._replace(steps=(DATABASE, SCHEMA, FIRST, again)))
    expect(page.locator("#note")).to_contain_text("This is not one start (api@web-2 was started again)")
    row = page.locator("tbody tr", has_text="started again")
    expect(row.locator("td")).to_have_text(
        ["api/daemon", "web-2", "40.00", "42.00", "", "2.00", "started again", ""]
    )
    assert marked(page, "critical") == [
        "database/daemon on db-1",
        "api/schema on web-1",
        "api/daemon on web-1",
    ]
    assert "critical path" not in page.locator(".figures").inner_text()
