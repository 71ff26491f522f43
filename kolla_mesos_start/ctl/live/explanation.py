"""What keeps a deployment from being up, in words that several commands print."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.invocation import Line
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live.logs import LAUNCHER
from kolla_mesos_start.ctl.live.model import MAY_SEEM, Cause, LiveDeployment, LiveService, service_node

COLUMN = 12  # characters of what comes before the text


def read_and_explain(read: Callable[[], LiveDeployment]) -> tuple[LiveDeployment, list[Cause]]:
    """The deployment, and why it is not up. It is read twice if a single look may be wrong."""
    deployment = read()
    found = causes.find(deployment, time.time())
    if any(cause.kind in MAY_SEEM for cause in found):
        deployment = read()
        found = causes.confirmed(found, causes.find(deployment, time.time()))
    return deployment, found


def lines(
    deployment: LiveDeployment, found: Sequence[Cause], services: Sequence[LiveService]
) -> Iterator[Line]:
    """Each cause with what it blocks, and then what is up. What an earlier cause blocks is not repeated."""
    shown: set[str] = set()
    absent = [cause for cause in found if cause.kind == "absent"]
    has_begun = any(each.begun or each.containers for each in deployment.services.values())
    if len(absent) > 1 and not has_begun:
        what = f"no container of {counted(len(absent), 'service')} was ever started, or none has reached"
        yield _line("ROOT CAUSE", "bold red", f"{what} ZooKeeper: start them, or {LAUNCHER}")
    else:
        absent = []
    for cause in (each for each in found if each not in absent):
        head, style = ("ROOT CAUSE", "bold red") if cause.is_stuck else (cause.kind, "cyan")
        yield _line(head, style, cause.text)
        chains = [chain for chain in cause.blocks if not _is_own(chain, cause, deployment)]
        # A branch that begins at a step shown before has been shown there, too.
        new = [chain for number, chain in enumerate(chains) if number == 0 or chain[0] not in shown]
        for number, chain in enumerate(new):
            known = next((at for at, path in enumerate(chain) if path in shown), len(chain))
            labels = [_label(path, deployment) for path in chain[: known + 1]]
            labels += ["..."] if known + 1 < len(chain) else []
            yield _line("" if number else "  blocks", "yellow", " <- ".join(labels))
        shown.update(path for chain in chains for path in chain)
    touched = frozenset().union(*(cause.touches for cause in found))
    for service in services:
        if not service.is_up and not causes.nodes(service) & touched:
            yield _line("starting", "cyan", f"{service.name}: nothing that it waits for is stuck")
    up = [f"{service.role} {service.ready} of {service.wanted}" for service in services if service.is_up]
    if up:  # In one line: a hundred lines would move the causes off the screen.
        yield _line("up", "green", ", ".join(up))


def _is_own(chain: Sequence[str], cause: Cause, deployment: LiveDeployment) -> bool:
    """Whether a chain is only a step of the service where the cause is."""
    service = deployment.roles[chain[0].partition("/")[0]]
    return len(chain) == 1 and service_node(service.name) in cause.nodes


def _line(head: str, style: str, text: str) -> Line:
    return Line(f"{head:{COLUMN}}", style, text)


def _label(path: str, deployment: LiveDeployment) -> str:
    """A step; for a daemon with several instances, how many are ready."""
    service = deployment.roles[path.partition("/")[0]]
    if path == service.daemon and service.wanted > 1:
        return f"{path} ({service.ready} of {service.wanted} ready)"
    return path


def cause_data(cause: Cause) -> dict[str, Any]:
    """A cause for a program."""
    return {
        "kind": cause.kind,
        "stuck": cause.is_stuck,
        "final": cause.is_final,
        "text": cause.text,
        "blocks": [list(chain) for chain in cause.blocks],
    }
