"""One cause that keeps a deployment from being up, and the kinds of causes.

What belongs here: the record, and what all modules that find causes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.zk.containers import Container

# For each kind: whether somebody has to act, and whether it stays so until somebody does.
KINDS: Mapping[str, tuple[bool, bool]] = {
    "failed": (True, True),
    "failing": (True, False),
    "running": (False, False),
    "abandoned": (True, False),
    "not ready": (True, False),
    "starting": (False, False),
    "draining": (False, False),
    "ended": (True, True),
    "gave up": (True, False),
    "absent": (True, False),
    "generation": (True, False),
    "superseded": (True, False),
    "no definition": (True, True),
    "unreadable": (True, True),
    "no provider": (True, True),
    "outside": (True, False),
    "unanswered": (False, False),
    "too many": (True, False),
    "elsewhere": (True, False),
    "gone": (True, False),
    "refresh failed": (True, True),
    "restart": (True, False),
    "keep": (True, False),
    "refreshing": (False, False),
    "claimed": (True, True),
    "cycle": (True, True),
    "no position": (True, False),
    "electing": (False, False),
    "election waits": (True, False),
    "election refused": (True, True),
    "publishing": (False, False),
    "left out": (False, False),
    "unfinished": (True, True),
}
OF_ALL = ("publishing", "unfinished")  # kinds that concern every service
# Kinds that a single look may find by mistake: znodes that change together are read one after the other.
MAY_SEEM = frozenset(("absent", "abandoned", "elsewhere", "gone", "election waits", "election refused"))
CLOCK_STEP = 1.0  # seconds; containers write times in whole ones
SHOWN = 3  # names in a line


class Cause(NamedTuple):
    """`nodes` are the steps and services where it is; `blocks` are chains of steps, each of which waits for
    the one before it. A chain after the first begins at the step where it branches off.

    `at`: when it began (seconds since the epoch); None if that is unknown, or does not matter.
    """

    kind: str
    text: str
    nodes: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    at: float | None = None

    @property
    def is_stuck(self) -> bool:
        return KINDS[self.kind][0]

    @property
    def is_final(self) -> bool:
        return KINDS[self.kind][1]

    @property
    def touches(self) -> frozenset[str]:
        """All nodes where it is, or that it blocks."""
        return frozenset(self.nodes).union(*self.blocks)


def service_node(service: str) -> str:
    """The node of a service; no path of a step can be equal to it."""
    return f"service {service}"


def on_hosts(containers: Sequence[Container]) -> str:
    """The hosts of containers, for a line."""
    return listed(sorted(each.host for each in containers))


def listed(found: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(found)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
