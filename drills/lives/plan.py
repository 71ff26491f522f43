"""The plan of a life, which depends on its seed only.

Uniformly random instants find little: each act waits for an event, and happens within milliseconds of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

STOP_GRACE = 1.5  # seconds

# What can be waited for: what the daemon and the commands around it say, and lines of the agent's log.
AFTER_A_CHANGE = {
    "check begun": 4,
    "check ended": 4,
    "read": 2,
    "term": 5,
    "gone": 5,
    "begin": 4,
    "draining": 3,
    "before_stop begun": 3,
    "before_stop ended": 3,
    "some of its processes": 4,
    "": 2,
}
# How often each act is chosen; those below END the life.
ACTS = {
    "change": 10,
    "changes": 4,
    "silence": 2,
    "expire": 1,
    "kill refresher": 1,
    "hide interpreter": 1,
}
ENDS = {"stop signal": 6, "stop": 3, "killed stop": 2, "kill daemon": 1, "": 4}
# In some lives also: a refresh by hand, and a stop before the daemon has begun.
MORE = {"refresh": 4, "early stop signal": 1, "early stop": 1}
AFTER_THE_END = {"": 6, "change": 2, "stop signal": 3, "stop": 1, "silence": 1}


class Act(NamedTuple):
    """`what` is done `delay` seconds after the next event `after` (empty: at once); `seconds`: a silence."""

    after: str
    delay: float
    what: str
    seconds: float


class Plan(NamedTuple):
    """One life. Seconds: `check` (0: none), `drain`, and `before_stop` (negative: none)."""

    seed: int
    supervised: bool
    on_change: str
    kind: str
    check: float
    drain: float
    before_stop: float
    elects: bool
    has_width: bool
    acts: Sequence[Act]


def plan(seed: int) -> Plan:
    """The dice of one seed."""
    dice = random.Random(seed)
    supervised = dice.random() < 0.75
    on_changes = ["signal", "command", *(["restart"] * 4 if supervised else [])]
    kinds = ["obeys", "slow", "stubborn", *(["family"] * 2 if supervised else []), "ends"]
    on_change = dice.choice(on_changes)
    kind = dice.choice(kinds)
    check = dice.choice((0.0, 0.2, 0.8, 2.0))
    drain = dice.choice((0.0, 0.0, 0.3, 1.0))
    before_stop = dice.choice((-1.0, -1.0, 0.0, 0.4))
    elects, has_width = dice.random() < 0.25, dice.random() < 0.25
    drains = bool(drain or before_stop >= 0)
    acts = [_act(dice, ACTS, "begin")]
    acts += [_act(dice, ACTS) for _ in range(dice.randint(0, 4))]
    end = _act(dice, ENDS)
    if end.what:
        acts.append(end if drains or end.what.split()[-1] != "stop" else end._replace(what="stop signal"))
        extra = _act(dice, AFTER_THE_END)
        if extra.what and (drains or extra.what != "stop"):
            acts.append(extra)
    if not elects:
        acts = [act for act in acts if act.what != "hide interpreter"]
    more = random.Random(-seed - 1)
    if more.random() < 0.3:
        acts = _with(more, _act(more, MORE), acts, drains)
    return Plan(seed, supervised, on_change, kind, check, drain, before_stop, elects, has_width, tuple(acts))


def _with(dice: random.Random, act: Act, acts: list[Act], drains: bool) -> list[Act]:
    if act.what == "refresh":
        place = dice.randint(1, len(acts))
        return [*acts[:place], act, *acts[place:]]
    what = act.what[len("early ") :] if drains else "stop signal"
    return [Act("", round(dice.uniform(0, 1.5), 4), what, act.seconds), *acts]


def _act(dice: random.Random, kinds: dict[str, int], after: str | None = None) -> Act:
    [what] = dice.choices(list(kinds), weights=list(kinds.values()))
    if after is None:
        [after] = dice.choices(list(AFTER_A_CHANGE), weights=list(AFTER_A_CHANGE.values()))
    longest = dice.choice((0.0, 0.003, 0.03, 0.3, 1.2))
    return Act(after, round(dice.uniform(0, longest), 4), what, round(dice.uniform(0.5, 4.0), 2))
