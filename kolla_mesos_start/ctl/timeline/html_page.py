"""One page that shows how a start went. It loads nothing.

Pure, except that it reads the template and the script beside this file: a `StartReport` in, HTML out. All
text that containers have written (hosts, messages) is escaped, and the page runs only its own script.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from jinja2 import Environment

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import Finished, TimelineStep
from kolla_mesos_start.ctl.timeline.report import StartReport
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree.states import DONE, ERROR, RETRY

TEMPLATE = Path(__file__).with_name("timeline.html")
SCRIPT = Path(__file__).with_name("timeline.js")
TICKS = 8  # at most
FAILED = (ERROR, RETRY, "unready")
MAX_NAME = 40  # characters of a lane's name; the tooltip has the whole name


class PageStep(NamedTuple):
    """A step in the page. `begin` and `end` are places in percent; `kinds` are classes for the style sheet.

    `said` is a sentence about it. `waited`: how many seconds it waited; None if unknown. `after` is the step
    that it waited for longest, `needs` are the numbers of all.
    """

    number: int
    step: TimelineStep
    kinds: Sequence[str]
    begin: float
    end: float
    said: str
    waited: float | None
    after: str
    needs: Sequence[int]


class Lane(NamedTuple):
    """A container in the page: it waited from `appeared` until its last step began, at `busy` (places in
    percent). `said` is a sentence about it."""

    name: str
    steps: Sequence[PageStep]
    kinds: Sequence[str]
    appeared: float
    busy: float
    said: str


def page(report: StartReport) -> str:
    """The whole page."""
    script = SCRIPT.read_text(encoding="utf-8")
    began = report.began
    length = max(max((step.finished for step in report.steps), default=began) - began, 0.001)
    at = partial(_place, began, length)
    steps = list(_steps(report, at))
    lanes, numbers = list(_lanes(report, steps, at)), {each.step: each.number for each in steps}
    path = [numbers[step] for step in critical_path.critical_path(report.finished)]
    sizes = (digit * 10.0**power for power in range(-4, 9) for digit in (1, 2, 5))
    tick = next(each for each in sizes if length / each <= TICKS)  # a round number of seconds
    environment = Environment(autoescape=True, finalize=_printable, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=f"The start of {report.id}",
        note=report.note,
        figures=list(_figures(report, steps, len(lanes), len(path))),
        troubles=sum("trouble" in each.kinds for each in steps),
        tick=100 * tick / length,
        axis=[(100 * number * tick / length, number * tick) for number in range(int(length / tick) + 1)],
        lanes=lanes,
        steps=steps,
        links=[(steps[number], each) for each in steps for number in each.needs],
        critical=set(zip(path, path[1:])),
        began=began,
        names=min(max((len(lane.name) for lane in lanes), default=0) + 2, MAX_NAME),
        script=script,
        digest=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _place(began: float, length: float, instant: float) -> float:
    """The place of an instant, in percent."""
    return 100 * min(max(0.0, (instant - began) / length), 1.0)


def _steps(report: StartReport, at: Callable[[float], float]) -> Iterator[PageStep]:
    finished, critical = Finished(report.finished), set(critical_path.critical_path(report.finished))
    numbers = {step: number for number, step in enumerate(report.steps)}
    needs = {step: dict.fromkeys(critical_path.needed(step, finished)) for step in report.steps}
    last = {step: max(found, key=lambda each: each.finished, default=None) for step, found in needs.items()}
    held = Counter(last.values())
    for number, step in enumerate(report.steps):  # Two may be equal.
        has_failed, after = step.state in FAILED, last[step]
        kinds = ["critical"] * (step in critical) + ["trouble"] * (step.attempts > 1 or has_failed)
        kinds += ["failed"] if has_failed else ["open"] * (step.state != DONE)
        waited = critical_path.waiting(step, finished, report.began)
        name = f"{after.title} on {after.host}" if after else ""
        words = [step.again] if step.again else []
        if not step.is_instant and (step.state == DONE or step.duration):
            took = f"{'took' if step.state == DONE else 'not done after'} {step.duration:.2f} s"
            words = [took, *words]
            words += [f"began {waited:.2f} s after {name or 'the start'}"] if waited is not None else []
        elif not step.is_instant:
            words = []
        if held[step]:
            count = f"{held[step]} steps" if held[step] > 1 else "one step"
            words.append(f"the last that {count} waited for")
        words += [step.trouble] if step.trouble else []
        said = f"{step.title} on {step.host}: {'; '.join(words)}"
        places, others = (at(step.started), at(step.finished)), [numbers[each] for each in needs[step]]
        yield PageStep(number, step, kinds, *places, said, waited, step.again or name, others)


def _lanes(report: StartReport, steps: Sequence[PageStep], at: Callable[[float], float]) -> Iterator[Lane]:
    own: dict[str, list[PageStep]] = {}
    for each in steps:
        own.setdefault(each.step.container, []).append(each)
    for name, found in {**own, **{name: [] for name in report.appeared if name not in own}}.items():
        appeared = report.appeared.get(name, min((each.step.started for each in found), default=0.0))
        kinds = list(dict.fromkeys(kind for each in found for kind in each.kinds))
        busy = max((each.begin for each in found), default=100.0)
        yield Lane(name, found, kinds, at(appeared), busy, _said(report, name, appeared, found))


def _said(report: StartReport, lane: str, appeared: float, own: Sequence[PageStep]) -> str:
    """A sentence about a container."""
    words = [f"{lane}: there after {max(0.0, appeared - report.began):.2f} s"]
    worked = sum(each.step.duration for each in own)
    words.append(f"worked for {worked:.2f} s" if own else "it has run no command")
    if own and all(each.step.state == DONE for each in own):
        end = max(each.step.finished for each in own)
        words.append(f"waited for {max(0.0, end - appeared - worked):.2f} s")
        words.append(f"done after {end - report.began:.2f} s")
    return "; ".join(words + [f"{each.step.name} {each.step.trouble}" for each in own if each.step.trouble])


def _figures(
    report: StartReport, steps: Sequence[PageStep], lanes: int, path: int
) -> Iterator[tuple[str, str, str]]:
    """The most important figures: a number, what it is, and another number."""
    finished, done = report.finished, [each for each in steps if each.step.state == DONE]
    yield str(lanes), "containers", ""
    yield f"{len(finished)} of {len(steps)}", "steps done", ""
    if finished and all(each.waited is not None for each in done):
        idle = critical_path.overhead(finished, report.began)
        total = max(step.finished for step in finished) - report.began
        yield f"{total:.2f} s", "until the last of these was done", ""
        yield f"{total - idle:.2f} s", f"of work in {path} steps on the critical path,", f"{idle:.2f} s"
