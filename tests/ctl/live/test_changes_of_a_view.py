"""A deployment that is read again after a change is the same as one that is read for the first time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk.view import View
from tests.ctl.trees import ZNODES, container, definition, fired, one_time, view

HOSTS, ROLES = ("h1", "h2"), ("db", "api", "web")
STATES = ("waiting", "bootstrapping", "starting", "ready")
STEPS = 120


def possible() -> dict[str, Sequence[Any]]:
    """What may be at each path; None is nothing."""
    found: dict[str, Sequence[Any]] = {
        "variables/size": [None, "1", "2"],
        ".publication": [None, {"what": "publication", "by": "x", "begun": "now", "finished": None}],
    }
    for before, role in zip((None, *ROLES), ROLES):
        needed = [f"{before}/daemon"] if before else []
        sync = one_time(*needed)
        tagged = one_time(*needed, generation="{{ size }}")
        at = f"status/global/{role}"
        found[f"app/{role}"] = [
            definition(*needed, commands={"sync": sync}, instances=2),
            definition(*needed, commands={"sync": tagged}),
            "unreadable: [",
            None,
        ]
        found[f"{at}/sync"] = ["waiting", "running", "done"]
        found[f"{at}/sync/detail"] = ["", {"attempt": 1, "started": 1.0, "state": "running"}]
        for host in HOSTS:
            found[f"status/{host}/{role}"] = [None, role]
            found[f"status/{host}/{role}/daemon"] = [None, "running"]
            found[f"app/{role}/.containers/{host}"] = [
                None,
                *(container(state, host=host, read="0x3e7", definition="3e8") for state in STATES),
            ]
            found[f"status/{host}/{role}/daemon/ready"] = [""]
            found[f"status/{host}/{role}/daemon/ready/1"] = [None, "{}"]
            found[f"{at}/daemon/ready/{host}"] = [None, "{}"]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_would_be_read(seed: int) -> None:
    """After any sequence of changes; only the paths whose watches fire are read again."""
    choose, values = random.Random(seed), possible()
    live, known = DeploymentReader(ZNODES), View()
    chosen = {path: each[-1] for path, each in values.items()}
    tree: dict[str, Any] = {}
    for _ in range(STEPS):
        for path in choose.sample(sorted(values), choose.choice((1, 1, 1, 5))):
            chosen[path] = choose.choice(values[path])
        before, tree = tree, {path: value for path, value in chosen.items() if value is not None}
        stale = fired(before, tree) or [ZNODES.deployment]
        again, fresh = live.deployment(view(live, tree, found=known, stale=stale)), DeploymentReader(ZNODES)
        assert again == fresh.deployment(view(fresh, tree))
