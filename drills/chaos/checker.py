"""The judge of a chaos run: a history in, a verdict out.

Pure: nothing here runs, waits or looks at a clock. Who was first is told by the tokens of claims,
which are zxids; that two ran at the same time, by the instants at which the recorder saw them
begin and the kernel said that the last of their processes was gone. A rule of the guarantee has a
function of its own here, and yields one sentence for each breach of it. What the guarantee
excepts is counted, and only where a fault of the right kind is at the right place in the history.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

# How long a command may live after its whole container was thawed, or its agent was killed: both
# take milliseconds, and the machine is busy.
LATE = 1.0
# For how long a fault works on after it was mended: a connection is made anew, a leader elected.
AFTERMATH = 5.0

FREEZE_CONTAINER = "freeze container"
KILL_AGENT, KILL_CONTAINER = "kill agent", "kill container"
KILL_LEADER, KILL_GUARD, FREEZE_GUARD = "kill leader", "kill guard", "freeze guard"
# After these the agent may have given the guard up, and ended what it ran.
GUARD_HIT = (KILL_GUARD, FREEZE_GUARD, FREEZE_CONTAINER)
# After these a command that has come to its end may have no outcome, or a wrong one.
WINDOWS_OF_ONE = (
    *(KILL_AGENT, KILL_CONTAINER, KILL_LEADER, *GUARD_HIT),
    *("freeze agent", "cut link", "freeze link"),
)
WINDOWS_OF_ALL = ("kill server", "freeze server", "cut follower", "desert leader", "isolate leader")
# How agents may end: done, a command has failed, killed, stopped.
STATUSES = (0, 1, 128 + 9, 128 + 15)


class Rule(NamedTuple):
    """What is published of a command or a daemon. `needs`: of a daemon so many instances, of a command 1."""

    per_host: bool = False
    needs: Mapping[str, int] = {}


class Run(NamedTuple):
    """One run of a command or a daemon, as the recorder saw it. Times are seconds of CLOCK_BOOTTIME.

    `done`: when it said that its work is done, or that it is ready. `end`: when the last of its
    processes was gone. A daemon has no token.
    """

    name: str
    host: str
    container: str
    begin: float
    end: float
    done: float | None = None
    token: int = 0
    previous: str = ""


class Fault(NamedTuple):
    """What was done to a container or a server, and when that was taken back."""

    kind: str
    target: str
    begin: float
    end: float


class Exit(NamedTuple):
    """How an agent ended."""

    container: str
    status: int


class Final(NamedTuple):
    """What the tree says of a one-time command when all is over, on one host where it is that host's."""

    name: str
    host: str
    state: str
    token: int | None


class History(NamedTuple):
    """All that is known of one run of chaos.

    `longest_stale`: seconds for which an instance may still be counted after its end. `stuck`:
    containers that never came through. `unregistered`: daemons that lived and were not found.
    `unnoticed`: containers that took themselves for healthy without their registrar. `left`: what
    was still there when all was stopped.
    """

    rules: Mapping[str, Rule]
    runs: Sequence[Run]
    faults: Sequence[Fault]
    exits: Sequence[Exit]
    finals: Sequence[Final]
    longest_stale: float
    stuck: Sequence[str] = ()
    unregistered: Sequence[str] = ()
    unnoticed: Sequence[str] = ()
    left: Sequence[str] = ()


class Verdict(NamedTuple):
    """What was wrong, a sentence each, and the counts."""

    wrong: Sequence[str]
    counts: Mapping[str, int]


def judge(history: History) -> Verdict:
    """Hold a history against the guarantee."""
    counts: Counter[str] = Counter()
    wrong = [
        *_overlaps(history, counts),
        *_tokens(history),
        *_completions(history, counts),
        *_endings(history),
        *_outlived(history),
        *_dependencies(history),
        *_exits(history),
        *(f"{name} never came through" for name in history.stuck),
        *(f"{name} lives and is not registered" for name in history.unregistered),
        *(f"{name} is healthy without its registrar" for name in history.unnoticed),
        *(f"left over: {thing}" for thing in history.left),
    ]
    counts["attempts"] = sum(1 for run in history.runs if run.token)
    counts["told unfinished"] = sum(1 for run in history.runs if run.previous)
    counts["lost instances"] = len(history.unregistered)
    counts.update(fault.kind for fault in history.faults)
    counts.update(f"exit {exit.status}" for exit in history.exits)
    return Verdict(wrong, counts)


def _commands(history: History) -> dict[tuple[str, str], list[Run]]:
    """The runs of each one-time command in the order of their tokens, by name and host (or none)."""
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in sorted(history.runs, key=lambda run: run.token):
        if run.token:
            found[run.name, run.host if history.rules[run.name].per_host else ""].append(run)
    return found


def _overlaps(history: History, counts: Counter[str]) -> Iterator[str]:
    """Never two at the same time, but after a whole container was stopped and thawed."""
    for runs in _commands(history).values():
        for elder, younger in itertools.combinations(runs, 2):
            if max(elder.begin, younger.begin) >= min(elder.end, younger.end):
                continue
            if _was_thawed(history, elder, max(elder.begin, younger.begin)):
                counts["overlaps after a freeze"] += 1
            else:
                counts["overlaps"] += 1
                yield f"{_of(elder)} and {_of(younger)} ran at the same time"


def _was_thawed(history: History, late: Run, met: float) -> bool:
    """Whether its container was stopped as a whole when it `met` the other, and it ended upon waking."""
    return any(
        fault.begin <= met <= fault.end + LATE and late.end <= fault.end + LATE
        for fault in history.faults
        if fault.kind == FREEZE_CONTAINER and fault.target == late.container
    )


def _tokens(history: History) -> Iterator[str]:
    """Each attempt has a token of its own, and a later one has a larger one."""
    for token, times in Counter(run.token for run in history.runs if run.token).items():
        if times > 1:
            yield f"token {token} was given {times} times"
    for runs in _commands(history).values():
        for elder, younger in itertools.combinations(runs, 2):
            if elder.begin > younger.begin and not _was_thawed(history, elder, elder.begin):
                yield f"{_of(elder)} began after {_of(younger)}"


def _completions(history: History, counts: Counter[str]) -> Iterator[str]:
    """Each command came to its end once; where twice, a window was hit, and the next one was told."""
    found = _commands(history)
    for key in [(final.name, final.host) for final in history.finals]:
        runs = found.get(key, [])
        done = [run for run in runs if run.done is not None]
        counts["completed once"] += len(done) == 1
        if not done:
            yield f"{' on '.join(filter(None, key))} was lost: nobody has completed it"
        for run, again in zip(done, done[1:]):
            if _window(history, run, again):
                counts["windows hit"] += 1
            else:
                yield f"{_of(again)} completed again what {_of(run)} had"
        for run, following in zip(runs, runs[1:]):
            if run.done is None or following.previous:
                continue
            if _misjudged(history, run):
                counts["misjudged"] += 1
            else:
                yield f"{_of(following)} was not told that {_of(run)} left no outcome"


def _window(history: History, run: Run, again: Run) -> bool:
    """Whether something hit between the end of its work and the next claim: no outcome was written."""
    assert run.done is not None
    return any(
        fault.begin <= again.begin and run.done <= fault.end + AFTERMATH
        for fault in history.faults
        if (fault.kind in WINDOWS_OF_ONE and fault.target == run.container) or fault.kind in WINDOWS_OF_ALL
    )


def _misjudged(history: History, run: Run) -> bool:
    """Whether its leader was hit at the end of its work: then the agent takes it for a failure.

    Its outcome says so, and to the next attempt a failure is no news.
    """
    assert run.done is not None
    return any(
        fault.begin <= run.end + LATE and run.done <= fault.end + LATE
        for fault in history.faults
        if fault.kind == KILL_LEADER and fault.target == run.container
    )


def _endings(history: History) -> Iterator[str]:
    """What the tree says is what happened: done, by the last attempt, and never again once done."""
    found = _commands(history)
    for final in history.finals:
        where = " on ".join(filter(None, (final.name, final.host)))
        runs = found.get((final.name, final.host), [])
        if final.state != "done":
            yield f"{where} is {final.state or 'nowhere'} in the end"
        elif not any(run.token == final.token and run.done is not None for run in runs):
            yield f"{where} is done by token {final.token}, which has not completed it"
        elif runs[-1].token != final.token:
            yield f"{_of(runs[-1])} began although token {final.token} is done"


def _outlived(history: History) -> Iterator[str]:
    """No command outlives its agent."""
    for fault in history.faults:
        if fault.kind not in (KILL_AGENT, KILL_CONTAINER):
            continue
        for run in history.runs:
            lives = run.begin < fault.begin and run.end > fault.begin + LATE
            if run.container == fault.target and lives:
                yield f"{_of(run)} lived {run.end - fault.begin:.2f} s longer than its agent"


def _dependencies(history: History) -> Iterator[str]:
    """Nothing begins before what it depends on was done, or was ready in so many instances."""
    for run in history.runs:
        for name, count in history.rules[run.name].needs.items():
            ready = {
                other.container
                for other in history.runs
                if other.name == name
                and other.done is not None
                and other.done <= run.begin
                # What is done stays so, also on another host; an instance goes with its daemon.
                and (other.token or run.begin <= other.end + history.longest_stale)
            }
            if len(ready) < count:
                yield f"{_of(run)} began while it had {len(ready)} of {count} {name}"


def _exits(history: History) -> Iterable[str]:
    """No agent ends but for what has been done to it."""
    return (
        f"{exit.container} ended with {exit.status}" for exit in history.exits if exit.status not in STATUSES
    )


def _of(run: Run) -> str:
    return f"{run.name} ({run.container}{f', token {run.token}' if run.token else ''})"
