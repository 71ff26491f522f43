"""How a start went: the events, and what they mean in words.

Pure; `reader` reads the events from ZooKeeper.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import TimelineStep
from kolla_mesos_start.ctl.zk.containers import PRESENT
from kolla_mesos_start.tree.states import DONE

NAMED = 3  # containers that a message names


class Event(NamedTuple):
    """A step that is done, or not yet (`state` is not `done`), the number of attempts, and the message of the
    last one."""

    step: TimelineStep
    state: str
    attempts: int
    message: str


class StartReport(NamedTuple):
    """All events since `began`, in the order in which they began; and when each container appeared."""

    id: str
    began: float
    appeared: Mapping[str, float]
    events: tuple[Event, ...]

    @property
    def finished(self) -> list[TimelineStep]:
        """The steps of which a critical path may consist."""
        return [event.step for event in self.events if event.state == DONE]


def lines(report: StartReport, columns: int) -> Iterator[str]:
    """The lanes and the steps, and problems."""
    steps = report.finished
    took_time = any(step.finished > report.began for step in steps)
    if not took_time and not any(event.step.again for event in report.events):
        yield "nothing has been done yet: see `kolla_mesos_ctl explain`"
        return
    if took_time:
        yield critical_path.draw(steps, report.began, columns)
    for event in report.events:
        if trouble(event):
            yield from _wrapped(f"  {event.step.name} ({event.step.host}): {trouble(event)}", columns)
    yield from _wrapped(note(report), columns)


def as_json(report: StartReport) -> Mapping[str, object]:
    """For programs; the help of `timeline` documents the shape."""
    path = set(critical_path.critical_path(report.finished))
    steps = [
        {
            "command": event.step.name,
            "host": event.step.host,
            "state": event.state,
            "started": None if event.step.is_instant else event.step.started,
            "finished": event.step.finished,
            "attempts": event.attempts,
            "message": event.message or None,
            "again": event.step.again or None,
            "critical": event.step in path,
        }
        for event in report.events
    ]
    return {"deployment": report.id, "began": report.began, "steps": steps}


def _wrapped(words: str, columns: int) -> list[str]:
    """Wrapped lines. Names are not broken, so that they can be copied."""
    indent = "    " if words.startswith(" ") else ""
    return textwrap.wrap(
        words, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def trouble(event: Event) -> str:
    """What went wrong; empty if nothing did."""
    state = "not ready, and its container does not say why" if event.state == PRESENT else event.state
    words = [state] if state != DONE else []
    if event.attempts > 1:
        words.append(f"{event.attempts} attempts")
    if event.message and event.state != DONE:
        words.append(event.message)
    return ", ".join(words)


def note(report: StartReport) -> str:
    """Why the times are not those of one start; empty if they are."""
    again = dict.fromkeys(
        f"{event.step.container} was {event.step.again}" for event in report.events if event.step.again
    )
    more = f", and {len(again) - NAMED} more" if len(again) > NAMED else ""
    return f"This is not one start ({', '.join([*again][:NAMED])}{more})." if again else ""
