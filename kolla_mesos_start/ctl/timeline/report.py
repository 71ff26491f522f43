"""How a start went: its steps, and what they mean in words.

Pure; `reader` reads the steps from ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kolla_mesos_start.ctl.text import few, wrapped
from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.timeline.critical_path import TimelineStep
from kolla_mesos_start.tree.states import DONE


class StartReport(NamedTuple):
    """All steps since `began`, in the order in which they began; and when each container appeared."""

    id: str
    began: float
    appeared: Mapping[str, float]
    steps: tuple[TimelineStep, ...]

    @property
    def finished(self) -> list[TimelineStep]:
        """The steps of which a critical path may consist."""
        return [step for step in self.steps if step.state == DONE]

    @property
    def note(self) -> str:
        """Why the times are not those of one start; empty if they are."""
        again = dict.fromkeys(f"{step.container} was {step.again}" for step in self.steps if step.again)
        return f"This is not one start ({few(again)})." if again else ""


def lines(report: StartReport, columns: int) -> Iterator[str]:
    """The lanes and the steps, and problems."""
    steps = report.finished
    took_time = any(step.finished > report.began for step in steps)
    if not took_time and not report.note:
        yield "nothing has been done yet: see `kolla_mesos_ctl explain`"
        return
    if took_time:
        yield critical_path.draw(steps, report.began, columns)
    for step in report.steps:
        if step.trouble:
            yield wrapped(f"  {step.name} ({step.host}): {step.trouble}", columns, "    ")
    if report.note:
        yield wrapped(report.note, columns, "")


def as_json(report: StartReport) -> Mapping[str, object]:
    """For programs; the help of `timeline` documents the shape."""
    path = set(critical_path.critical_path(report.finished))
    steps = [
        {
            "command": step.name,
            "host": step.host,
            "state": step.state,
            "started": None if step.is_instant else step.started,
            "finished": step.finished,
            "attempts": step.attempts,
            "message": step.message or None,
            "again": step.again or None,
            "critical": step in path,
        }
        for step in report.steps
    ]
    return {"deployment": report.id, "began": report.began, "steps": steps}
