"""One page that shows how a start went, with nothing to be loaded from anywhere.

Pure, but for the template beside this file: a `Past` in, HTML out. What containers have written (hosts,
messages) is escaped, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from kolla_mesos_start.operator import timeline
from kolla_mesos_start.operator.past import Event, Past, advice, trouble
from kolla_mesos_start.operator.timeline import Step
from kolla_mesos_start.tree.states import DONE

TEMPLATE = Path(__file__).with_name("timeline.html")
TICKS = 8  # at most
MAX_NAME = 40  # characters of a lane's name; the whole name is its tooltip


class Shown(NamedTuple):
    """What the parts of the page have in common. `lanes` are containers, `scale` is the length in seconds,
    `numbers` are those of the steps in the page."""

    past: Past
    scale: float
    lanes: Sequence[str]
    path: Sequence[Step]
    needs: Mapping[Step, Sequence[Step]]
    numbers: Mapping[Step, int]

    def at(self, instant: float) -> float:
        """Where an instant is, from 0 to 1."""
        return min(max(0.0, (instant - self.past.began) / self.scale), 1.0)


def page(past: Past) -> str:
    """The whole page."""
    shown = _shown(past)
    end = max((step.finished for step in past.finished), default=past.began)
    summary = (
        f"{len(shown.lanes)} containers, {len(past.finished)} steps done in {end - past.began:.1f} s;"
        f" {timeline.overhead(past.finished, past.began) if past.finished else 0:.1f} s of that went into no"
        " step of the critical path."
    )
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"The start of {past.id}"),
        summary=escape(summary),
        advice=escape(advice(past)),
        axis="".join(_axis(shown)),
        lanes="\n".join(_lane(shown, lane) for lane in shown.lanes),
        links="".join(_links(shown)),
        rows="\n".join(_row(shown, number, event) for number, event in enumerate(past.events)),
        count=len(shown.lanes),
        names=min(max(map(len, shown.lanes), default=0) + 2, MAX_NAME),
    )


def _shown(past: Past) -> Shown:
    steps = [event.step for event in past.events]
    end = max((step.finished for step in steps), default=past.began)
    finished = sorted(past.finished, key=lambda step: step.finished)
    path = timeline.critical_path(finished) if finished else []
    needs = {step: timeline.needed(step, finished) for step in steps}
    lanes = list(dict.fromkeys(step.container for step in steps))
    numbers = {step: number for number, step in enumerate(steps)}
    return Shown(past, max(end - past.began, 0.001), lanes, path, needs, numbers)


def _axis(shown: Shown) -> Iterator[str]:
    """Round numbers of seconds."""
    sizes = (digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    size = next(each for each in sizes if shown.scale / each <= TICKS)
    for tick in range(int(shown.scale / size) + 1):
        yield f'<span style="left:{100 * tick * size / shown.scale:.3f}%">{tick * size:g} s</span>'


def _lane(shown: Shown, lane: str) -> str:
    """What one container did: it waits until its first step, and a daemon stays ready."""
    own = [(number, each) for number, each in enumerate(shown.past.events) if each.step.container == lane]
    first = min(event.step.started for _, event in own)
    last = max(event.step.started for _, event in own)
    parts = [_part("wait", shown.at(shown.past.appeared.get(lane, first)), shown.at(last))]
    for number, event in own:
        if event.step.name.endswith("/daemon") and event.state == DONE:
            parts.append(_part("ready", shown.at(event.step.finished), 1.0))
        parts.append(_bar(shown, number, event))
    name, track = escape(lane), "".join(parts)
    return f'<div class="lane"><b title="{name}">{name}</b><div class="track">{track}</div></div>'


def _part(kind: str, begin: float, end: float) -> str:
    return f'<i class="{kind}" {_place(begin, end)}></i>'


def _place(begin: float, end: float) -> str:
    return f'style="left:{100 * begin:.3f}%;width:{100 * (end - begin):.3f}%"'


def _bar(shown: Shown, number: int, event: Event) -> str:
    words = ["bar", *_kinds(shown, event)]
    place = _place(shown.at(event.step.started), shown.at(event.step.finished))
    said = escape(_said(shown, event))
    return f'<button class="{" ".join(words)}" data-step="{number}" title="{said}" {place}></button>'


def _kinds(shown: Shown, event: Event) -> Iterator[str]:
    if event.step in shown.path:
        yield "critical"
    if event.attempts > 1 or event.state in ("error", "retry", "unready"):
        yield "trouble"
    if event.state != DONE:
        yield "open"


def _said(shown: Shown, event: Event) -> str:
    """A step in a sentence."""
    step = event.step
    said = f"{step.name} on {step.host}: {step.duration:.2f} s"
    last = _last(shown, step)
    if last:
        said += f", after {last.name} on {last.host}"
    problem = trouble(event)
    return f"{said}; {problem}" if problem else said


def _last(shown: Shown, step: Step) -> Step | None:
    """What it waited for longest."""
    return max(shown.needs[step], key=lambda each: each.finished, default=None)


def _links(shown: Shown) -> Iterator[str]:
    """From the end of each step to the begin of those that waited for it."""
    rows = {lane: index + 0.5 for index, lane in enumerate(shown.lanes)}
    pairs = set(zip(shown.path, shown.path[1:]))
    for step, before in shown.needs.items():
        for each in dict.fromkeys(before):
            kind = ' class="critical"' if (each, step) in pairs else ""
            begin, end = 1000 * shown.at(each.finished), 1000 * shown.at(step.started)
            curve = f"M{begin:.1f} {rows[each.container]} L{end:.1f} {rows[step.container]}"
            yield f'<path{kind} data-to="{shown.numbers[step]}" d="{curve}"/>'


def _row(shown: Shown, number: int, event: Event) -> str:
    step, last = event.step, _last(shown, event.step)
    numbers = " ".join(str(shown.numbers[each]) for each in dict.fromkeys(shown.needs[step]))
    waited = step.started - (last.finished if last else shown.past.began)
    times = (step.started - shown.past.began, step.finished - shown.past.began, waited, step.duration)
    cells = [
        f"<td>{escape(step.name)}<td>{escape(step.host)}",
        *(f'<td class="number">{each:.2f}' for each in times),
        f"<td>{escape(f'{last.name} on {last.host}') if last else ''}",
        f'<td class="bad">{escape(trouble(event))}',
    ]
    kind = ' class="critical"' if step in shown.path else ""
    said = escape(_said(shown, event))
    return f'<tr{kind} data-step="{number}" data-needs="{numbers}" data-said="{said}">{"".join(cells)}</tr>'
