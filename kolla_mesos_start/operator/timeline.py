"""How long a start took, and how long it had to take: the critical path.

Pure: steps with their times in, text out. The critical path is found backwards: from the step that
ended last, to the step that it needed and that ended last, and so on. The time between its steps is
what ordering them has cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

PAGE = 100  # characters in a line
WIDTH, LEAST = 60, 20  # characters for the whole start, where there is room; and at least
LEGEND = ". waits   # runs, on the critical path   + runs   = ready"
# A step can't have waited for what ended later than it began: that is a later run. So many seconds later do
# not count, since times are rounded, and come from several clocks.
INACCURACY = 0.1


class Need(NamedTuple):
    """`count` finished steps of one name; only on `host`, if one is given."""

    name: str
    count: int = 1  # type: ignore[assignment]  # The word of definitions; tuple.count is not used.
    host: str | None = None

    def is_met_by(self, step: Step) -> bool:
        """Whether the step is one of them."""
        return step.name == self.name and self.host in (None, step.host)


class Step(NamedTuple):
    """One command or daemon. Times are seconds since the epoch; a daemon is finished when it is ready.

    `again` says why these are not the times of the first start (empty if they are).
    """

    name: str  # role/command
    host: str
    needs: tuple[Need, ...]
    started: float
    finished: float
    again: str = ""

    @property
    def duration(self) -> float:
        return self.finished - self.started

    @property
    def is_instant(self) -> bool:
        """Whether only the end is known: no daemon is ready at once."""
        return self.name.endswith("/daemon") and not self.duration

    @property
    def container(self) -> str:
        """The name of the container that it ran in."""
        return f"{self.name.partition('/')[0]}@{self.host}"

    @property
    def is_presence(self) -> bool:
        """Whether it says only that a container is there."""
        return self.name.rpartition("/")[2].startswith(".")

    @property
    def title(self) -> str:
        """What it is called in words for people: a presence is no command."""
        return f"{self.name.partition('/')[0]} is present" if self.is_presence else self.name


def needed(step: Step, steps: Iterable[Step]) -> list[Step]:
    """The steps that had to finish before this one: for each of its needs, the last that it required."""
    in_time = [each for each in steps if each.finished <= step.started + INACCURACY]
    in_order = sorted(in_time, key=lambda each: each.finished)
    groups = ([each for each in in_order if need.is_met_by(each)][: need.count] for need in step.needs)
    return [group[-1] for group in groups if group]


def earliest_start(step: Step, steps: Iterable[Step], began: float) -> float:
    """When the step could have started: when the last step that it needs finished, or at once."""
    return max((other.finished for other in needed(step, steps)), default=began)


def waiting(step: Step, steps: Sequence[Step], began: float) -> float | None:
    """How long after it could have started it did, in seconds. None where that is not known any more: it, or
    what it needed, came again later."""
    if step.again or needs_came_later(step, steps):
        return None
    return max(0.0, step.started - earliest_start(step, steps, began))


def needs_came_later(step: Step, steps: Sequence[Step]) -> bool:
    """Whether something that it needed is known only by a later run."""
    return any(_came_later(need, step, steps) for need in step.needs)


def _came_later(need: Need, step: Step, steps: Iterable[Step]) -> bool:
    found = sorted(each.finished for each in steps if need.is_met_by(each))[: need.count]
    return bool(found) and found[-1] > step.started + INACCURACY


def critical_path(steps: Sequence[Step]) -> list[Step]:
    """The chain of steps that decided when the last one could finish, earliest first.

    Not through what came later again: that says nothing of the start. Empty if nothing else is left.
    """
    first = [step for step in steps if not step.again]
    path = sorted(first, key=lambda each: each.finished)[-1:]
    while path and (before := needed(path[0], first)):
        path.insert(0, max(before, key=lambda each: each.finished))
    return path


def overhead(steps: Sequence[Step], began: float) -> float:
    """Seconds of the whole start that no step of its critical path was running."""
    path = critical_path(steps)
    return path[-1].finished - began - sum(step.duration for step in path)


def gains(steps: Sequence[Step], began: float) -> dict[Step, float]:
    """For each step of the critical path: how many seconds earlier all would have been finished without it.

    Everything else begins as long after what it needs as it did.
    """
    in_order = sorted(steps, key=lambda each: each.finished)
    before = {step: needed(step, in_order) for step in in_order}
    end = in_order[-1].finished
    return {
        step: end - max(_without(step, before, began).values())
        for step in critical_path(in_order)
        if step.duration > 0
    }


def _without(left_out: Step, before: Mapping[Step, Sequence[Step]], began: float) -> dict[Step, float]:
    """When each step would have been finished if one had taken no time."""
    ends: dict[Step, float] = {}
    for step in sorted(before, key=lambda each: each.started):
        waited_for = before[step]
        pause = step.started - max((each.finished for each in waited_for), default=began)
        begin = max((ends.get(each, each.finished) for each in waited_for), default=began) + pause
        ends[step] = begin + (0.0 if step == left_out else step.duration)
    return ends


def draw(steps: Sequence[Step], began: float, columns: int = PAGE) -> str:
    """A lane for each container, a line for each step, and the sums. Times are in seconds.

    `*` marks the critical path. `wait` is the time between the end of what a step needs and its start.
    `columns` is the longest line that fits.
    """
    path = critical_path(steps)
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
        waited = waiting(step, steps, began)
        wait = "" if waited is None else f"{waited:.2f}"
        start, work = ("", "") if step.is_instant else (f"{begin:.2f}", f"{step.duration:.2f}")
        times = f"{start:>6} {end:6.2f} {wait:>5} {work:>6}  {step.again}"
        lines.append(f"{'*' if step in path else ' '} {name:{label}} {times}".rstrip())
    if all(waiting(step, steps, began) is not None for step in steps):
        worked = total - overhead(steps, began)
        lines.append(f"the whole start {total:.2f}; the work on its critical path (*) {worked:.2f}")
    return "\n".join(lines)


def lanes(steps: Sequence[Step], path: Sequence[Step], began: float, width: int) -> Iterator[tuple[str, str]]:
    """For each container its name, and `width` characters that say what it did when (see LEGEND)."""
    scale = width / (max(step.finished for step in steps) - began)

    def column(instant: float) -> int:
        return min(max(0, int((instant - began) * scale)), width - 1)

    for container in dict.fromkeys(step.container for step in steps):
        own = [step for step in steps if step.container == container]
        # What a container that was started again did before is not known.
        lane = [" " if own[0].again else "."] * width
        for step in own:
            begin, end = column(step.started), column(step.finished)
            lane[begin : end + 1] = ("#" if step in path else "+") * (end + 1 - begin)
            # A daemon that is ready stays; a task ends with its last command.
            after = "=" if step.name.endswith("/daemon") else " " if step == own[-1] else "."
            lane[end + 1 :] = after * (width - end - 1)
        yield container, "".join(lane).rstrip()
