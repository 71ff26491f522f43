"""How long a start took, and how long it had to take: the critical path.

Pure: steps with their times in, text out. The critical path is found backwards: from the step that ended
last, to the last step that it needed, and so on. The time between its steps is the cost of ordering them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import zip_longest
from typing import NamedTuple

from kolla_mesos_start.ctl.zk.containers import PARTY, PRESENT
from kolla_mesos_start.tree.states import DONE

PAGE = 100  # characters in a line
WIDTH, LEAST = 60, 20  # characters for the whole start: at most, and at least
LEGEND = ". waits   # runs, on the critical path   + runs   = ready"
# A step can't have waited for one that ended after it began: that was a later run. A little does
# not count, because times are rounded, and come from several clocks.
INACCURACY = 0.1


class Need(NamedTuple):
    """`count` finished steps of one name; only on `host`, if one is given."""

    name: str
    count: int = 1  # type: ignore[assignment]  # The word of definitions; tuple.count is not used.
    host: str | None = None


class TimelineStep(NamedTuple):
    """One command or daemon. Times are seconds since the epoch; a daemon is finished when it is ready.

    `again` says why these are not the times of the first start (empty if they are). `state` is `done`, or
    what it is doing; `message` is that of the last attempt.
    """

    name: str  # role/command
    host: str
    needs: tuple[Need, ...]
    started: float
    finished: float
    again: str = ""
    state: str = DONE
    attempts: int = 1
    message: str = ""

    @property
    def duration(self) -> float:
        return self.finished - self.started

    @property
    def is_instant(self) -> bool:
        """Whether only the end is known, because a daemon always takes some time."""
        return self.is_daemon and not self.duration

    @property
    def container(self) -> str:
        """The name of the container that it ran in."""
        return f"{self.name.partition('/')[0]}@{self.host}"

    @property
    def is_daemon(self) -> bool:
        return self.name.endswith("/daemon")

    @property
    def is_presence(self) -> bool:
        """Whether it is no command, but the appearance of a container."""
        return self.name.endswith(f"/{PARTY}")

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"{self.name.partition('/')[0]} is present" if self.is_presence else self.name

    @property
    def trouble(self) -> str:
        """What went wrong; empty if nothing did."""
        state = "not ready, and its container does not say why" if self.state == PRESENT else self.state
        words = [state] if state != DONE else []
        if self.attempts > 1:
            words.append(f"{self.attempts} attempts")
        if self.message and self.state != DONE:
            words.append(self.message)
        return ", ".join(words)


class Finished:
    """Finished steps by name and host, to find them quickly."""

    def __init__(self, steps: Iterable[TimelineStep] = ()) -> None:
        self._steps: dict[tuple[str, str | None], list[TimelineStep]] = defaultdict(list)
        self._times: dict[tuple[str, str | None], list[float]] = defaultdict(list)
        for step in sorted(steps, key=lambda each: each.finished):
            self.add(step)

    def add(self, step: TimelineStep) -> None:
        """Add a step that finished after all others of its name."""
        for key in ((step.name, None), (step.name, step.host)):
            self._steps[key].append(step)
            self._times[key].append(step.finished)

    def last(self, need: Need, until: float = math.inf) -> TimelineStep | None:
        """The step that satisfied the need, of those that finished by `until`; the last one if there are too
        few."""
        key = need.name, need.host
        if key not in self._steps:
            return None
        count = min(need.count, bisect_right(self._times[key], until))
        return self._steps[key][count - 1] if count else None


def needed(step: TimelineStep, finished: Finished) -> list[TimelineStep]:
    """The steps that had to finish before this one: for each need the last one."""
    found = (finished.last(need, step.started + INACCURACY) for need in step.needs)
    return [each for each in found if each is not None]


def earliest_start(step: TimelineStep, finished: Finished, began: float) -> float:
    """When the step could have started: when the last step that it needs finished, or at once."""
    return max((other.finished for other in needed(step, finished)), default=began)


def waiting(step: TimelineStep, finished: Finished, began: float) -> float | None:
    """How many seconds later it started than it could have. None if unknown: it, or a step that it needed,
    ran again later."""
    if step.again or needs_came_later(step, finished):
        return None
    return max(0.0, step.started - earliest_start(step, finished, began))


def needs_came_later(step: TimelineStep, finished: Finished) -> bool:
    """Whether only a later run is known of something that it needed."""
    found = (finished.last(need) for need in step.needs)
    return any(each is not None and each.finished > step.started + INACCURACY for each in found)


def critical_path(steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """The chain of steps that decided when the last one could finish, earliest first.

    Steps that ran again later are ignored: they say nothing about the start.
    """
    first = [step for step in steps if not step.again]
    finished = Finished(first)
    path = sorted(first, key=lambda each: each.finished)[-1:]
    while path and (before := needed(path[-1], finished)):
        path.append(max(before, key=lambda each: each.finished))
    return path[::-1]


def overhead(steps: Sequence[TimelineStep], began: float) -> float:
    """The seconds in which no step of the critical path was running."""
    path = critical_path(steps)
    return path[-1].finished - began - sum(step.duration for step in path)


def draw(steps: Sequence[TimelineStep], began: float, columns: int = PAGE) -> str:
    """A lane for each container, a line for each step, and the sums. Times are in seconds.

    `*` marks the critical path. `wait` is the time between the end of what a step needs and its start.
    `columns` is the longest line that fits.
    """
    path, finished = set(critical_path(steps)), Finished(steps)
    total = max(step.finished for step in steps) - began
    ordered = sorted(steps, key=lambda each: (each.started, each.finished))
    label = max(len(step.container) for step in steps)
    width = max(LEAST, min(WIDTH, columns - label - 4))
    lines = [
        f"  {'':{label}} 0{f'{total:.2f} s':>{width - 1}}",
        *(f"  {name:{label}} {lane}" for name, lane in lanes(ordered, path, began, width)),
        f"  {LEGEND}",
    ]
    names = {step: f"{step.title} ({step.host})" for step in ordered}
    label = max(map(len, names.values()))
    lines += ["", f"  {'':{label}} {'start':>6} {'end':>6} {'wait':>5} {'work':>6}"]
    for step, name in names.items():
        begin, end = step.started - began, step.finished - began
        waited = waiting(step, finished, began)
        wait = "" if waited is None else f"{waited:.2f}"
        start, work = ("", "") if step.is_instant else (f"{begin:.2f}", f"{step.duration:.2f}")
        times = f"{start:>6} {end:6.2f} {wait:>5} {work:>6}  {step.again}"
        lines.append(f"{'*' if step in path else ' '} {name:{label}} {times}".rstrip())
    if all(waiting(step, finished, began) is not None for step in steps):
        worked = total - overhead(steps, began)
        lines.append(f"the whole start {total:.2f}; the work on its critical path (*) {worked:.2f}")
    return "\n".join(lines)


def lanes(
    steps: Sequence[TimelineStep], path: Set[TimelineStep], began: float, width: int
) -> Iterator[tuple[str, str]]:
    """For each container its name, and `width` characters that show what it did (see LEGEND)."""
    scale = width / (max(step.finished for step in steps) - began)

    def column(instant: float) -> int:
        return min(max(0, int((instant - began) * scale)), width - 1)

    by_container: dict[str, list[TimelineStep]] = {}
    for step in steps:
        by_container.setdefault(step.container, []).append(step)
    for container, own in by_container.items():
        # What a container did before it was restarted, or ready again, is unknown.
        lane = [" " if own[0].again else "."] * width
        for step, following in zip_longest(own, own[1:]):
            begin, end = column(step.started), column(step.finished)
            lane[begin : end + 1] = ("#" if step in path else "+") * (end + 1 - begin)
            # A daemon that is ready stays; a task ends with its last command.
            waits = following and not following.again
            after = "=" if step.is_daemon else "." if waits else " "
            lane[end + 1 :] = after * (width - end - 1)
        yield container, "".join(lane).rstrip()
