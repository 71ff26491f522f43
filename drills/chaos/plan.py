"""The plan of a chaos run, which depends on the seed only.

The outcome can differ between two runs of one plan, because processes and servers are not deterministic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drills.chaos import checker

DB, API, JOBS = "infra/db", "app/api", "app/jobs"
# Containers, by name: their service and their host. Two replicas of the API share a host.
CONTAINERS: Mapping[str, tuple[str, str]] = {
    "db-1": (DB, "h1"),
    "db-2": (DB, "h2"),
    "api-1": (API, "h1"),
    "api-2": (API, "h1"),
    "api-3": (API, "h2"),
    "jobs-1": (JOBS, "h1"),
    "jobs-2": (JOBS, "h2"),
}
RULES: Mapping[str, checker.Rule] = {
    "db/create": checker.Rule(),
    "db/daemon": checker.Rule(needs={"db/create": 1}),
    "api/schema": checker.Rule(needs={"db/daemon": 1}),
    "api/data": checker.Rule(needs={"api/schema": 1}),
    "api/cache": checker.Rule(per_host=True, needs={"api/schema": 1}),
    "api/daemon": checker.Rule(needs={"api/data": 1, "api/cache": 1}),
    "jobs/report": checker.Rule(needs={"api/daemon": 2}),
    "jobs/notice": checker.Rule(),
}
FLAVOURS = ("plain", "plain", "family", "fails-once")

# How often each is chosen.
TO_CONTAINERS = {
    "kill agent": 4,
    "freeze agent": 3,
    "kill guard": 2,
    "freeze guard": 2,
    "kill registrar": 1,
    "freeze registrar": 1,
    "kill container": 2,
    "freeze container": 3,
    "kill leader": 2,
    "cut link": 3,
    "freeze link": 3,
}
TO_SERVERS = {"kill server": 2, "freeze server": 3, "cut follower": 3}
TO_LEADER = {"desert leader": 1, "isolate leader": 1}
DURATION = 5.0  # seconds in which faults begin
BUSY = 0.6  # how many faults look for a container whose command runs
SERVERS = 3
ENSEMBLE = "ensemble"  # the target of what befalls the leader and both followers


class Planned(NamedTuple):
    """A fault: after `at` seconds, for `seconds`, to the first in `order` to whom it can be done then.

    `busy`: those first that run a one-time command.
    """

    at: float
    kind: str
    seconds: float
    busy: bool
    order: Sequence[str]


class Plan(NamedTuple):
    """`timeout`: of sessions. `work`: seconds and flavour of each command. `supervised`: containers."""

    seed: int
    timeout: int
    work: Mapping[str, tuple[float, str]]
    supervised: frozenset[str]
    faults: Sequence[Planned]


def plan(seed: int, shortest: int = 2) -> Plan:
    """The dice of one seed. `shortest`: the least session timeout that the servers grant."""
    dice = random.Random(seed)
    timeout = max(shortest, dice.choice((2, 2, 2, 3)))
    # Two outlast the lease of who is cut off, or was killed, so that somebody else can begin beside them.
    long = dice.sample(("api/schema", "api/data", "api/cache", "jobs/notice"), 2)
    work = {
        name: (
            round(dice.uniform(1.4, 2.0) * timeout if name in long else dice.uniform(0.1, 0.6), 2),
            dice.choice(FLAVOURS),
        )
        for name in RULES
        if not name.endswith("/daemon")
    }
    supervised = frozenset(name for name in CONTAINERS if dice.random() < 0.4)
    faults = [
        *(_fault(dice, TO_CONTAINERS, list(CONTAINERS), timeout) for _ in range(dice.randint(8, 12))),
        *(
            _fault(dice, TO_SERVERS, [str(n) for n in range(SERVERS)], timeout)
            for _ in range(dice.randint(0, 2))
        ),
    ]
    if dice.random() < 0.4:
        faults.append(_fault(dice, TO_LEADER, [ENSEMBLE], timeout)._replace(seconds=2.5 * timeout))
    return Plan(seed, timeout, work, supervised, sorted(faults))


def _fault(dice: random.Random, kinds: Mapping[str, int], targets: Sequence[str], timeout: int) -> Planned:
    [kind] = dice.choices(list(kinds), weights=list(kinds.values()))
    # A blink, a moment, and what no lease survives.
    seconds = dice.choice((dice.uniform(0.02, 0.4), dice.uniform(0.4, 1.4), dice.uniform(1.1, 1.6) * timeout))
    at = dice.uniform(0.2, DURATION)
    order = dice.sample(targets, len(targets))
    return Planned(round(at, 3), kind, round(seconds, 3), dice.random() < BUSY, order)
