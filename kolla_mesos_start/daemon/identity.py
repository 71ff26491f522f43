"""Registers this container in ZooKeeper: its id, its presence, and its instance.

A restarted container keeps its id, and so replaces the registration of its previous run.
"""

from __future__ import annotations

import json
import os
import re
import stat

from kolla_mesos_start.definition.strings import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.health import O_CAREFUL, refuse_strangers, replace
from kolla_mesos_start.log import Logger
from kolla_mesos_start.report import status_znode
from kolla_mesos_start.tree.presence import Registration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Callable

    from kolla_mesos_start.report import Report
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.status import StatusTree
    from kolla_mesos_start.tree.znodes import Znodes


log = Logger(__name__)

_MEMBER = re.compile("[0-9a-f]{32}__party__")


def register(
    settings: Settings, tree: StatusTree, facts: Callable[[], Mapping[str, Any]], report: Report
) -> Registration | None:
    """Register this container's state, and its presence if it will run a daemon; None for a task.

    Both are ephemerals of the agent's session; the registrar registers the rest later. `facts` are the
    host's.
    """
    znodes, ephemerals = tree.znodes, tree.client.ephemerals
    # Tasks are not counted, so it does not matter if one is shown twice for a moment.
    complain = log.warning if tree.graph.daemon else log.debug
    member, used_before = identity(settings.state_dir, complain)
    ephemerals.parents = [(znodes.containers, b"")]
    path = f"{znodes.containers}/{member}"
    shown = status_znode(
        settings.host, tree.definition_zxid, tree.graph.digest, settings.generation, settings.logs, path
    )
    report.show(ephemerals, shown)
    if tree.graph.daemon is None:
        return None
    found = facts()
    daemons = [znodes.command(scope, f"{znodes.role}/{DAEMON}") for scope in (GLOBAL, LOCAL)]
    instance = {
        "host": settings.host,
        "address": found["address"],
        "ports": list(settings.ports),
        "service": settings.service_name,
        "generation": settings.generation,
    }
    data = json.dumps(instance).encode()
    registration = Registration(
        member=member,
        presence=[(f"{znodes.party(settings.service_name)}/{member}", json.dumps(found).encode())],
        ready=[(f"{daemon.ready}/{member}", data) for daemon in daemons],
        parents=_parents(znodes),
        states=[daemon.state for daemon in daemons],
        acl=[(acl.perms, acl.id.scheme, acl.id.id) for acl in tree.client.acl],
        recorded_acl=znodes.recorded_acl if settings.follows_acl else "",
    )
    ephemerals.parents = registration.parents
    if used_before:
        for path, _ in registration.ready:
            ephemerals.discard(path)
    for path, data in registration.presence:
        ephemerals.keep(path, data)
    ephemerals.run()
    return registration


def _parents(znodes: Znodes) -> Sequence[tuple[str, bytes]]:
    """The znodes above the ephemerals, outermost first; they are created again if they are deleted."""
    parents = [(znodes.containers, b""), (znodes.party(znodes.service_name), b""), (znodes.status, b"")]
    for scope in (GLOBAL, LOCAL):
        daemon = znodes.command(scope, f"{znodes.role}/{DAEMON}")
        parents += [
            (znodes.scope(scope), b""),
            (znodes.owner(scope, znodes.role), znodes.service_name.encode()),
            (daemon.state, b"waiting"),
            (daemon.ready, b""),
        ]
    return parents


def identity(state_dir: str, complain: Callable[..., object]) -> tuple[str, bool]:
    """The id of this container, and whether an earlier run of the container has used it.

    A restarted container keeps its id, and so replaces its own older member. If the id can't be
    stored, each run has a new one, and `complain` (a method of the log) says why.
    """
    path = f"{state_dir}/registration"
    try:
        known = _read(path)
        if _MEMBER.fullmatch(known):
            return known, True
        if known:
            complain("%s does not hold the id of a member: writing a new one", path)
    except OSError as error:
        complain(
            "%s can't be read (%s): registering under a new id; the old member stays until its session"
            " times out",
            path,
            error.strerror,
        )
    # The suffix is that of kazoo's Party, which counts only members with it.
    fresh = f"{os.urandom(16).hex()}__party__"
    try:
        _write(path, fresh + "\n")
    except OSError as error:
        complain(
            "%s can't be written (%s): after a restart the old member stays until its session times out:"
            " let this user write in KOLLA_STATE_DIR",
            path,
            error.strerror,
        )
    return fresh, False


def _read(path: str) -> str:
    refuse_strangers(os.path.dirname(path))
    # Anything that is not a regular file is replaced.
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return ""
    except FileNotFoundError:
        return ""
    with open(os.open(path, os.O_RDONLY | O_CAREFUL), "rb") as file:
        return file.read(100).decode("ascii", "replace").strip()


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    refuse_strangers(os.path.dirname(path))
    replace(path, text.encode("ascii"))
