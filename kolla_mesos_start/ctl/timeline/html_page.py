"""One page that shows how a start went. It loads nothing.

Pure, except that it reads the template and the script beside this file: a `StartReport` in, HTML out. All
text that containers have written (hosts, messages) is escaped, and the page runs only its own script.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import Finished, TimelineStep
from kolla_mesos_start.ctl.timeline.report import Event, StartReport, note, trouble
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY, printable

TEMPLATE = Path(__file__).with_name("timeline.html")
SCRIPT = Path(__file__).with_name("timeline.js")
TICKS = 8  # at most
FAILED = (ERROR, RETRY, "unready")
MAX_NAME = 40  # characters of a lane's name; the tooltip has the whole name


class PageData(NamedTuple):
    """What several parts of the page use. `lanes` are the containers, with their events by number; `scale` is
    the length in seconds; `last` is the step that each step waited for longest, and `held` counts these;
    `numbers` are the numbers of the steps in the page."""

    report: StartReport
    scale: float
    lanes: Mapping[str, Mapping[int, Event]]
    path: Sequence[TimelineStep]
    critical: Set[TimelineStep]
    finished: Finished
    needs: Mapping[TimelineStep, Sequence[TimelineStep]]
    last: Mapping[TimelineStep, TimelineStep | None]
    held: Mapping[TimelineStep | None, int]
    numbers: Mapping[TimelineStep, int]

    def at(self, instant: float) -> float:
        """The place of an instant, in percent."""
        return 100 * min(max(0.0, (instant - self.report.began) / self.scale), 1.0)

    def waited(self, step: TimelineStep) -> float | None:
        """How many seconds it waited; None if unknown."""
        return critical_path.waiting(step, self.finished, self.report.began)


def page(report: StartReport) -> str:
    """The whole page."""
    shown, script, tick = _shown(report), SCRIPT.read_text(encoding="utf-8"), _tick(report)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=_text(f"The start of {report.id}"),
        note=_text(note(report)),
        figures="".join(f"<li><b>{value}</b> {words}</li>" for value, words in _figures(shown)),
        troubles=sum("trouble" in _kinds(shown, event) for event in report.events),
        tick=f"{100 * tick / shown.scale:.4f}",
        axis="".join(_axis(shown, tick)),
        lanes="\n".join(_lane(shown, name, own) for name, own in shown.lanes.items()),
        links="".join(_links(shown)),
        rows="\n".join(_row(shown, number, event) for number, event in enumerate(report.events)),
        names=min(max(map(len, shown.lanes), default=0) + 2, MAX_NAME),
        script=script,
        digest=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def _shown(report: StartReport) -> PageData:
    steps = [event.step for event in report.events]
    finished = Finished(report.finished)
    path = critical_path.critical_path(report.finished)
    needs = {step: list(dict.fromkeys(critical_path.needed(step, finished))) for step in steps}
    last = {step: max(needs[step], key=lambda each: each.finished, default=None) for step in steps}
    numbers = {step: number for number, step in enumerate(steps)}
    held = Counter(last.values())
    return PageData(
        report, _scale(report), _lanes(report), path, set(path), finished, needs, last, held, numbers
    )


def _lanes(report: StartReport) -> dict[str, dict[int, Event]]:
    lanes: dict[str, dict[int, Event]] = {}
    for number, event in enumerate(report.events):
        lanes.setdefault(event.step.container, {})[number] = event
    return {**lanes, **{name: {} for name in report.appeared if name not in lanes}}


def _scale(report: StartReport) -> float:
    end = max((event.step.finished for event in report.events), default=report.began)
    return max(end - report.began, 0.001)


def _tick(report: StartReport) -> float:
    """A round number of seconds."""
    sizes = (digit * 10.0**power for power in range(-4, 9) for digit in (1, 2, 5))
    return next(each for each in sizes if _scale(report) / each <= TICKS)


def _axis(shown: PageData, tick: float) -> Iterator[str]:
    for number in range(int(shown.scale / tick) + 1):
        yield f'<span style="left:{100 * number * tick / shown.scale:.3f}%">{number * tick:g} s</span>'


def _figures(shown: PageData) -> Iterator[tuple[str, str]]:
    """The most important figures."""
    finished, began = shown.report.finished, shown.report.began
    yield str(len(shown.lanes)), "containers"
    yield f"{len(finished)} of {len(shown.report.events)}", "steps done"
    if finished and all(shown.waited(step) is not None for step in finished):
        idle = critical_path.overhead(finished, began)
        total = max(step.finished for step in finished) - began
        yield f"{total:.2f} s", "until the last of these was done"
        between = f"of work in {len(shown.path)} steps on the critical path, <b>{idle:.2f} s</b> between them"
        yield f"{total - idle:.2f} s", between


def _text(words: str) -> str:
    """Text that others have written, escaped."""
    return escape(printable(words))


# -- lanes --------------------------------------------------------------------------------------------------


def _lane(shown: PageData, lane: str, own: Mapping[int, Event]) -> str:
    """What one container did: it waited until its last step began, and its daemon stayed ready."""
    began = [event.step.started for event in own.values()]
    appeared = shown.report.appeared[lane] if lane in shown.report.appeared else min(began)
    parts = [_part("wait", shown.at(appeared), shown.at(max(began)) if began else 100.0)]
    for number, event in own.items():
        if event.step.name.endswith("/daemon") and event.state == DONE:
            parts.append(_part("ready", shown.at(event.step.finished), 100.0))
        parts.append(_bar(shown, number, event))
    words = dict.fromkeys(kind for event in own.values() for kind in _kinds(shown, event))
    said = _text(_said_of_lane(shown, lane, appeared, list(own.values())))
    name = f'<button class="name" tabindex="-1" {_steps(*own)} title="{said}">{_text(lane)}</button>'
    return f'<div class="{" ".join(["lane", *words])}">{name}<div class="track">{"".join(parts)}</div></div>'


def _said_of_lane(shown: PageData, lane: str, appeared: float, own: Sequence[Event]) -> str:
    """A sentence about a container."""
    words = [f"{lane}: there after {max(0.0, appeared - shown.report.began):.2f} s"]
    worked = sum(event.step.duration for event in own)
    words.append(f"worked for {worked:.2f} s" if own else "it has run no command")
    if own and all(event.state == DONE for event in own):
        end = max(event.step.finished for event in own)
        words.append(f"waited for {max(0.0, end - appeared - worked):.2f} s")
        words.append(f"done after {end - shown.report.began:.2f} s")
    words += [f"{event.step.name} {trouble(event)}" for event in own if trouble(event)]
    return "; ".join(words)


def _steps(*numbers: int) -> str:
    """The attribute by which the script finds the steps of an element."""
    return f'data-steps="{" ".join(map(str, numbers))}"'


def _part(kind: str, begin: float, end: float) -> str:
    return f'<i class="{kind}" {_place(begin, end)}></i>'


def _place(begin: float, end: float) -> str:
    return f'style="left:{begin:.3f}%;width:{end - begin:.3f}%"'


def _bar(shown: PageData, number: int, event: Event) -> str:
    words = " ".join(["bar", *_kinds(shown, event)])
    place = _place(shown.at(event.step.started), shown.at(event.step.finished))
    label = _text("present" if event.step.is_presence else event.step.name.rpartition("/")[2]) + (
        f" x{event.attempts}" if event.attempts > 1 else ""
    )
    return (
        f'<button class="{words}" tabindex="-1" {_steps(number)}'
        f' title="{_text(_said(shown, event))}" {place}><span>{label}</span></button>'
    )


def _kinds(shown: PageData, event: Event) -> Iterator[str]:
    if event.step in shown.critical:
        yield "critical"
    failed = event.state in FAILED
    if event.attempts > 1 or failed:
        yield "trouble"
    if failed:
        yield "failed"
    elif event.state != DONE:
        yield "open"


def _said(shown: PageData, event: Event) -> str:
    """A sentence about a step."""
    step, last, held = event.step, shown.last[event.step], shown.held[event.step]
    words = []
    if step.is_instant:
        words += [step.again] if step.again else []
    elif event.state == DONE or step.duration:
        words.append(f"{'took' if event.state == DONE else 'not done after'} {step.duration:.2f} s")
        after = f"{last.title} on {last.host}" if last else "the start"
        waited = shown.waited(step)
        words += [step.again] if step.again else []
        words += [f"began {waited:.2f} s after {after}"] if waited is not None else []
    if held:
        words.append(
            f"the last that {held} steps waited for" if held > 1 else "the last that one step waited for"
        )
    if trouble(event):
        words.append(trouble(event))
    return f"{step.title} on {step.host}: {'; '.join(words)}"


def _links(shown: PageData) -> Iterator[str]:
    """Lines from the end of each step to the beginning of those that waited for it."""
    pairs = set(zip(shown.path, shown.path[1:]))
    for step, before in shown.needs.items():
        for each in before:
            kind = ' class="critical"' if (each, step) in pairs else ""
            steps = f'data-from="{shown.numbers[each]}" data-to="{shown.numbers[step]}"'
            begin, end = 10 * shown.at(each.finished), 10 * shown.at(step.started)
            yield f'<path{kind} {steps} data-begin="{begin:.1f}" data-end="{end:.1f}"/>'


# -- the table ----------------------------------------------------------------------------------------------


def _row(shown: PageData, number: int, event: Event) -> str:
    step, last = event.step, shown.last[event.step]
    start, took = "", ""
    if not step.is_instant:
        start, took = f"{step.started - shown.report.began:.2f}", f"{step.duration:.2f}"
    end = f"{step.finished - shown.report.began:.2f}"
    waited = shown.waited(step)
    wait = "" if waited is None else f"{waited:.2f}"
    cells = [
        f'<td><a href="#step-{number}">{_text(step.title)}</a><td>{_text(step.host)}',
        *(f'<td class="number">{each}' for each in (start, end, wait, took)),
        f"<td>{_text(step.again or (f'{last.title} on {last.host}' if last else ''))}",
        f'<td class="bad">{_text(trouble(event))}',
    ]
    words = " ".join(_kinds(shown, event))
    return f'<tr class="{words}" {_steps(number)}>{"".join(cells)}</tr>'
