"""The judge of chaos runs: each claim holds for a good history, and fails for one that breaks it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drills.chaos.checker import (
    AFTERMATH,
    FREEZE_CONTAINER,
    FREEZE_GUARD,
    KILL_AGENT,
    KILL_GUARD,
    LATE,
    Exit,
    Fault,
    Final,
    History,
    Rule,
    Run,
    judge,
)
from drills.chaos.plan import CONTAINERS, ENSEMBLE, RULES, plan

SYNC, CACHE, DAEMON, REPORT = "api/sync", "api/cache", "api/daemon", "jobs/report"
FIRST = Run(SYNC, "h1", "api-1", begin=10.0, end=12.0, done=11.9, token=7)
CACHE_1 = Run(CACHE, "h1", "api-1", begin=12.5, end=13.0, done=12.9, token=8)
CACHE_2 = Run(CACHE, "h2", "api-2", begin=12.5, end=13.0, done=12.9, token=9)
DAEMON_1 = Run(DAEMON, "h1", "api-1", begin=14.0, end=30.0, done=14.1)
DAEMON_2 = Run(DAEMON, "h2", "api-2", begin=14.0, end=30.0, done=14.2)
REPORTED = Run(REPORT, "h1", "jobs-1", begin=15.0, end=16.0, done=15.9, token=20)
GOOD = History(
    rules={
        SYNC: Rule(),
        CACHE: Rule(per_host=True, needs={SYNC: 1}),
        DAEMON: Rule(needs={SYNC: 1, CACHE: 1}),
        REPORT: Rule(needs={DAEMON: 2}),
    },
    runs=[FIRST, CACHE_1, CACHE_2, DAEMON_1, DAEMON_2, REPORTED],
    faults=[],
    exits=[Exit("jobs-1", 0), Exit("jobs-2", 0)],
    finals=[
        Final(SYNC, "", "done", 7),
        Final(CACHE, "h1", "done", 8),
        Final(CACHE, "h2", "done", 9),
        Final(REPORT, "", "done", 20),
    ],
    longest_stale=5.0,
)
# Another replica that has run the first command before, and was cut short.
KILLED = Run(SYNC, "h2", "api-2", begin=8.0, end=9.0, token=5)
# One that had completed it before.
COMPLETED = KILLED._replace(done=8.9)
TOLD = FIRST._replace(previous="unfinished")


def history(*runs: Run, but: Sequence[Run] = (FIRST,), faults: Sequence[Fault] = ()) -> History:
    """The good one with other runs in place of some, and with faults."""
    return GOOD._replace(runs=[*(run for run in GOOD.runs if run not in but), *runs], faults=faults)


def freeze(begin: float, end: float, target: str = "api-2") -> Fault:
    return Fault(FREEZE_CONTAINER, target, begin, end)


def test_a_good_history_is_in_order_and_counted() -> None:
    """Each command once, daemons beside each other, a command of each host beside that of the other."""
    verdict = judge(GOOD)
    assert verdict.wrong == []
    assert verdict.counts == {
        "attempts": 4,
        "completed once": 4,
        "lost instances": 0,
        "told unfinished": 0,
    } | {"exit 0": 2}


EXCUSED = {
    "an attempt that was killed": (
        history(FIRST, KILLED, faults=[Fault(KILL_AGENT, "api-2", 8.99, 9.0)]),
        {},
    ),
    "an overlap by a container that was thawed": (
        history(TOLD, KILLED._replace(end=10.5), faults=[freeze(9.0, 10.4)]),
        {"overlaps after a freeze": 1},
    ),
    "a window": (
        history(TOLD, COMPLETED, faults=[Fault(KILL_AGENT, "api-2", 8.95, 8.95)]),
        {"windows hit": 1, "told unfinished": 1, "completed once": 3},
    ),
    "a window by a server": (
        history(TOLD, COMPLETED, faults=[Fault("freeze server", "0", 7.0, 9.5)]),
        {"windows hit": 1},
    ),
    "an instance that has just gone": (
        history(
            DAEMON_2._replace(end=14.5), but=[DAEMON_2], faults=[Fault("kill agent", "api-2", 14.5, 14.5)]
        ),
        {},
    ),
}


@pytest.mark.parametrize(("given", "counts"), EXCUSED.values(), ids=EXCUSED)
def test_what_the_guarantee_excepts_is_counted(given: History, counts: dict[str, int]) -> None:
    """With a fault of the right kind, at the right place and time, nothing is wrong."""
    verdict = judge(given)
    assert verdict.wrong == []
    assert {name: verdict.counts[name] for name in counts} == counts


BROKEN = {
    "two at the same time": (
        history(FIRST, KILLED._replace(end=10.1)),
        "api/sync (api-2, token 5) and api/sync (api-1, token 7) ran at the same time",
    ),
    "two at the same time, the elder inside the younger": (
        history(
            FIRST, KILLED._replace(begin=10.5, end=10.6), faults=[Fault(KILL_GUARD, "api-2", 10.0, 11.0)]
        ),
        "api/sync (api-2, token 5) and api/sync (api-1, token 7) ran at the same time",
    ),
    "two on one host": (
        history(CACHE_2._replace(host="h1", end=12.8, done=None), but=[CACHE_2]),
        "api/cache (api-1, token 8) and api/cache (api-2, token 9) ran at the same time",
    ),
    "an overlap beside the freeze of another": (
        history(TOLD, KILLED._replace(end=10.5), faults=[freeze(9.0, 10.4, "api-1")]),
        "ran at the same time",
    ),
    "an overlap before the freeze": (
        history(TOLD, KILLED._replace(end=10.5), faults=[freeze(10.2, 10.4)]),
        "ran at the same time",
    ),
    "one that goes on after it was thawed": (
        history(TOLD, KILLED._replace(end=10.45 + LATE), faults=[freeze(9.0, 10.4)]),
        "ran at the same time",
    ),
    "an overlap where only the agent was stopped": (
        history(TOLD, KILLED._replace(end=10.5), faults=[Fault("freeze agent", "api-2", 9.0, 10.4)]),
        "ran at the same time",
    ),
    "a token that does not grow": (
        history(TOLD, KILLED._replace(token=8)),
        "api/sync (api-1, token 7) began after api/sync (api-2, token 8)",
    ),
    "a token given twice": (history(TOLD, KILLED._replace(token=7)), "token 7 was given 2 times"),
    "nobody has completed it": (history(FIRST._replace(done=None)), "api/sync was lost"),
    "one host was left out": (history(but=[CACHE_2]), "api/cache on h2 was lost"),
    "completed twice, and nothing had happened": (
        history(TOLD, COMPLETED),
        "api/sync (api-1, token 7) completed again what api/sync (api-2, token 5) had",
    ),
    "completed twice, and the fault was elsewhere": (
        history(TOLD, COMPLETED, faults=[Fault(KILL_AGENT, "api-3", 8.95, 8.95)]),
        "completed again",
    ),
    "completed twice, and the fault was long over": (
        history(TOLD, COMPLETED, faults=[Fault(KILL_AGENT, "api-2", 3.0, 8.8 - AFTERMATH)]),
        "completed again",
    ),
    "completed twice, and the fault came later": (
        history(TOLD, COMPLETED, faults=[Fault(KILL_AGENT, "api-2", 10.1, 10.1)]),
        "completed again",
    ),
    "not told of a completion": (
        history(FIRST, COMPLETED, faults=[Fault(KILL_AGENT, "api-2", 8.95, 8.95)]),
        "api/sync (api-1, token 7) was not told that api/sync (api-2, token 5) left no outcome",
    ),
    "an end that the guard could not tell": (
        history(FIRST, COMPLETED, faults=[Fault(FREEZE_GUARD, "api-2", 8.5, 9.6)]),
        "was not told",
    ),
    "an end that the guard could not tell, since all were stopped": (
        history(FIRST, COMPLETED, faults=[freeze(7.0, 8.5)]),
        "was not told",
    ),
    "not told, though the guard was well by then": (
        history(FIRST, COMPLETED, faults=[Fault(FREEZE_GUARD, "api-2", 6.0, 8.8 - LATE)]),
        "was not told",
    ),
    "again once done": (
        history(FIRST, KILLED._replace(begin=13.0, end=13.1, token=21, previous="unfinished")),
        "api/sync (api-2, token 21) began although token 7 is done",
    ),
    "done by one that was killed": (
        GOOD._replace(runs=[KILLED, *GOOD.runs], finals=[GOOD.finals[0]._replace(token=5), *GOOD.finals[1:]]),
        "api/sync is done by token 5, which has not completed it",
    ),
    "not done in the tree": (
        GOOD._replace(finals=[*GOOD.finals[:-1], GOOD.finals[-1]._replace(state="running")]),
        "jobs/report is running in the end",
    ),
    "a command that outlives its agent": (
        history(FIRST, KILLED._replace(begin=7.0), faults=[Fault(KILL_AGENT, "api-2", 8.9 - LATE, 9.5)]),
        f"api/sync (api-2, token 5) lived {LATE + 0.1:.2f} s longer than its agent",
    ),
    "a dependent before what it needs": (
        history(FIRST._replace(begin=12.0, end=12.8, done=12.6)),
        "api/cache (api-1, token 8) began while it had 0 of 1 api/sync",
    ),
    "a dependent before enough are ready": (
        history(DAEMON_2._replace(done=15.1), but=[DAEMON_2]),
        "jobs/report (jobs-1, token 20) began while it had 1 of 2 api/daemon",
    ),
    "a dependent long after an instance has gone": (
        history(
            REPORTED._replace(begin=20.1, end=21.0, done=20.9),
            DAEMON_2._replace(end=15.0),
            but=[REPORTED, DAEMON_2],
        ),
        "jobs/report (jobs-1, token 20) began while it had 1 of 2 api/daemon",
    ),
    "a defect of the agent": (GOOD._replace(exits=[Exit("api-1", 70)]), "api-1 ended with 70"),
    "one that never came through": (GOOD._replace(stuck=["api-1"]), "api-1 never came through"),
    "a daemon that nobody finds": (
        GOOD._replace(unregistered=["api-1"]),
        "api-1 lives and is not registered",
    ),
    "a probe that sees nothing": (GOOD._replace(unnoticed=["api-1"]), "api-1 is healthy without"),
    "something left over": (GOOD._replace(left=["process sh (7)"]), "left over: process sh (7)"),
}


@pytest.mark.parametrize(("given", "sentence"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_guarantee_is_told(given: History, sentence: str) -> None:
    """A sentence names who and what; a breach may have others in its train."""
    told = judge(given).wrong
    assert [words for words in told if sentence in words], told


def test_a_seed_is_always_the_same_plan() -> None:
    """What happened to one seed can be done again; and seeds differ."""
    assert plan(7) == plan(7)
    assert len({repr(plan(seed).faults) for seed in range(50)}) == 50


def test_plans_touch_everything() -> None:
    """No kind of fault, no container and no server is left out for long."""
    plans = [plan(seed) for seed in range(200)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert len(kinds) == 16
    targets = {fault.order[0] for plan in plans for fault in plan.faults}
    assert targets == {*CONTAINERS, "0", "1", "2", ENSEMBLE}
    assert {name for plan in plans for name in plan.work} == {
        name for name in RULES if not name.endswith("/daemon")
    }
