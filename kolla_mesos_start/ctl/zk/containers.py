"""The existing containers of a service: the only module that reads what they write while they exist.

    <service>/.containers/<id>          what the container is doing
    <service>/.party/<id>               its facts, for services that list the members of this one
    <role>/daemon/ready/<id>            its daemon is ready

All three are ephemeral. What belongs here: reading them, and what a container says of itself. A container of
an older agent has no `.containers/<id>`; its stage is PRESENT. Only `read` and `hosts` ask ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.directory.acl import BY_AGENTS
from kolla_mesos_start.ctl.text import few
from kolla_mesos_start.ctl.zk import elections
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.strings import DAEMON, GLOBAL, LOCAL
from kolla_mesos_start.log import printable
from kolla_mesos_start.report import (
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
    RESTART,
)
from kolla_mesos_start.settings import LOGS_LIMIT
from kolla_mesos_start.tree.codec import instance, why_left_out
from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
from kolla_mesos_start.zookeeper.view import Znode
from kolla_mesos_start.zookeeper.wire import ZnodeStat

PARTY, CONTAINERS = NAMES = BY_AGENTS  # below a service
HELD = ("lock", "ready")  # below a command: where containers contend, and where they are ready
DRAINING = "draining"
PRESENT = "present"  # the stage of a container that does not say what it is doing
BEGUN = ("starting", "unready", "ready", DRAINING)  # stages of a container that has started its daemon
UNKNOWN_HOST = "?"
SHOWN_HOSTS = 5  # in a message
SUFFIX = "__party__"  # Names of older agents end with it.
DEFINITION, VARIABLE, FILE, IMAGE = "definition", "variable", "file", "image"


class Older(NamedTuple):
    """An older part that a container runs; a newer one was published at `since` (seconds since the epoch;
    0: it was removed, and when is unknown).

    `kind` is DEFINITION, VARIABLE, FILE or IMAGE; `name` says which. `is_followed`: a refresh of the daemon's
    files brings the newer one.
    """

    kind: str
    name: str
    is_followed: bool
    since: float

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Container(NamedTuple):
    """One existing container. `since` is when its stage began (seconds since the epoch); `ready`: it is among
    the ready instances. `definition` is the mzxid that it runs, `digest` that of what an agent reads of the
    definition, `read` the zxid up to which it has read; None: unknown. `follows`: its files are refreshed
    after a change. `code` is the topic of `reason`, see `report`. `outside`: why external services have not
    answered. `older` is filled in by `live.unread`. `is_settling`: it is ready, but has not written yet what
    its daemon has read. `logs`: how to read its log, as it says itself. `written`: when it has last written
    what it is doing. `optional`: its files that need no content, but had one."""

    id: str
    host: str
    stage: str
    command: str
    reason: str
    since: float
    definition_zxid: int | None
    digest: str | None
    generation: str | None
    ready: bool
    read: int | None = None
    follows: bool = False
    older: tuple[Older, ...] = ()
    code: str = ""
    outside: Mapping[str, str] = MappingProxyType({})
    is_settling: bool = False
    logs: str = ""
    written: float = 0.0
    optional: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether it may still do something."""
        return self.stage not in ("ended", "finished")

    @property
    def keeps_old_files(self) -> bool:
        """Whether its daemon is ready with old files, and no refresh is under way."""
        return self.stage == "ready" and self.code == REFRESH_FAILED

    @property
    def needs_restart(self) -> bool:
        """Whether it runs something older that no refresh replaces."""
        return any(self.code == RESTART or not (self.follows and each.is_followed) for each in self.older)

    @property
    def is_refreshing(self) -> bool:
        """Whether a refresh of its files is due or running."""
        if self.keeps_old_files:
            return False
        codes = (REFRESH_PENDING, REFRESH_RUNNING, REFRESH_SETTLING)
        is_running = self.stage == "ready" and self.code in codes
        return is_running or (bool(self.older) and not self.needs_restart)

    @property
    def runs_older_definition(self) -> bool:
        return any(each.kind == DEFINITION for each in self.older)

    @property
    def is_current(self) -> bool:
        """Whether it runs what is published."""
        return not (self.older or self.is_refreshing or self.keeps_old_files)


# -- paths ------------------------------------------------------------------------------------------------


def places(znodes: Znodes) -> Sequence[str]:
    """The parents of what the containers of a service write below it, the more detailed one first."""
    return znodes.containers, znodes.party(znodes.service_name)


def daemon(znodes: Znodes, scope: str = GLOBAL) -> CommandZnodes:
    """The znodes of a service's daemon."""
    return znodes.command(scope, f"{znodes.role}/{DAEMON}")


def exists_while_container_does(znodes: Znodes, path: str) -> bool:
    """Whether a container holds the znode at this path."""
    parent = path.rsplit("/", 2)[1]
    if path.startswith(f"{znodes.status}/"):
        # scope, role, command, parent, name: a role may have the name of such a parent.
        is_held = path[len(znodes.status) :].count("/") == 5 and parent in HELD
        return is_held or elections.is_ephemeral(znodes, path)
    return parent in NAMES


def says_what_it_does(znodes: Znodes, view: View) -> bool:
    """Whether the containers of a service write what they are doing; older agents do not."""
    return CONTAINERS in view.names(znodes.definition)


# -- what is read ----------------------------------------------------------------------------------------


def _paths(znodes: Znodes, view: View) -> Mapping[str, str]:
    """For each container, the znode with the most information about it."""
    found: dict[str, str] = {}
    for place in places(znodes):
        for name in view.held(place):
            found.setdefault(container_id(name), f"{place}/{name}")
    return found


def left_out(znodes: Znodes, view: View) -> Iterator[str]:
    """What counts for nothing among what containers have written, and why."""
    decoders: dict[str, Callable[[bytes], object]] = dict.fromkeys(places(znodes), bytes)
    decoders[daemon(znodes).ready] = instance
    for place, read in decoders.items():
        for path in (f"{place}/{name}" for name in view.names(place)):
            if (znode := view.znode(path)) and (why := why_left_out(znode, read)):
                yield f"{path}: {why}"


def containers(znodes: Znodes, view: View) -> list[Container]:
    """The containers of a service."""
    above = daemon(znodes).ready
    instances = ((name, view.znode(f"{above}/{name}")) for name in view.names(above))
    ready = {container_id(name) for name, znode in instances if znode and not why_left_out(znode, instance)}
    found = ((each, path, view.znode(path)) for each, path in _paths(znodes, view).items())
    # One may have gone between two reads.
    return [
        _container(each, znode, view.json_object(path), each in ready) for each, path, znode in found if znode
    ]


def container_id(name: str) -> str:
    """The id of the container that has a znode of this name."""
    return name.removesuffix(SUFFIX)


def _container(name: str, znode: Znode, fields: Mapping[str, Any], is_ready: bool) -> Container:
    stage, reason, code = (text(fields, key) for key in ("state", "reason", "code"))
    # What it is doing is written up to a second after it has joined or left the ready instances.
    is_settling = is_ready and stage in ("waiting", "bootstrapping")
    if is_ready and stage != "ready":
        stage, reason, code = "ready", "", ""
    elif stage == "ready" and not is_ready:
        stage = "unready"
    outside, optional = fields.get("outside"), fields.get("optional")
    return Container(
        id=name,
        host=text(fields, "host") or UNKNOWN_HOST,
        stage=stage or PRESENT,
        command=text(fields, "command"),
        reason=reason,
        since=_instant(fields.get("since"), znode.stat.ctime / 1000),
        definition_zxid=_zxid(text(fields, "definition")),
        digest=text(fields, "digest") or None,
        generation=text(fields, "generation") or None,
        ready=is_ready,
        read=_zxid(text(fields, "read")),
        follows=fields.get("follows") is True,
        code=code,
        outside={key: text(outside, key) for key in outside} if isinstance(outside, dict) else {},
        is_settling=is_settling,
        logs=log_location(fields),
        written=znode.stat.mtime / 1000,
        optional=tuple(each for each in optional if isinstance(each, str))
        if isinstance(optional, list)
        else (),
    )


def text(fields: Mapping[str, Any], key: str) -> str:
    """A text that a container has written, fit to be shown; empty if it is something else."""
    value = fields.get(key)
    return printable(value) if isinstance(value, str) else ""


def log_location(fields: Mapping[str, Any]) -> str:
    """How to read a container's log, as it says itself; a text that is too long is ignored."""
    found = text(fields, "logs")
    return found if len(found) <= LOGS_LIMIT else ""


def _zxid(value: str) -> int | None:
    try:
        return int(value, 16)
    except ValueError:
        return None


def _instant(value: object, otherwise: float) -> float:
    """Seconds since the epoch, from a number or from the form in which instances write it."""
    if isinstance(value, (int, float)) and 0 < value < 1e11:
        return float(value)
    try:
        return datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return otherwise


# -- what the timeline needs besides ----------------------------------------------------------------------


class Presence(NamedTuple):
    """When a container appeared on a host (seconds since the epoch); `is_member`: as a member of its
    party."""

    host: str
    at: float
    is_member: bool


def presences(znodes: Znodes, view: View) -> Iterator[Presence]:
    """When each container of a service appeared; one that is a member too comes twice."""
    for place in places(znodes):
        for path in (f"{place}/{each}" for each in view.held(place)):
            if znode := view.znode(path):
                host = text(view.json_object(path), "host") or UNKNOWN_HOST
                yield Presence(host, znode.stat.ctime / 1000, place != znodes.containers)


def ready_since(znodes: Znodes, view: View) -> dict[str, float]:
    """When each ready container became ready (seconds since the epoch), by its id."""
    parent = daemon(znodes).ready
    found = {container_id(name): view.stat(f"{parent}/{name}") for name in view.names(parent)}
    return {each: stat.ctime / 1000 for each, stat in found.items() if stat}


def had_more_members(znodes: Znodes, view: View) -> bool:
    """Whether a service has had more containers than it has now."""
    return has_lost_children(view.stat(places(znodes)[1]))


def ready_on_host(znodes: Znodes, view: View) -> ZnodeStat | None:
    """The stat of the parent of what the ready containers on a host write: it counts them."""
    return view.stat(daemon(znodes, LOCAL).ready)


def has_lost_children(stat: ZnodeStat | None) -> bool:
    """Whether more znodes were created below a znode than exist now: it counts creations and deletions."""
    return stat is not None and stat.cversion > stat.numChildren


# -- several services, read once --------------------------------------------------------------------------


def read(
    client: OperatorClient, znodes: Znodes, services: Iterable[str], *, stages: bool = True
) -> dict[str, list[Container]]:
    """The containers of each of these services that has any. Without `stages` it is not read which of them
    are ready: that is enough to know which exist, and on which hosts."""
    own = [znodes._replace(service_name=name) for name in sorted(services)]
    view = View()
    paths = [path for each in own for path in places(each)]
    view.refresh(client, [*paths, *(daemon(each).ready for each in own if stages)])
    return {each.service_name: found for each in own if (found := containers(each, view))}


def hosts(client: OperatorClient, znodes: Znodes, services: Iterable[str]) -> dict[str, list[str]]:
    """For each of these services that has containers the host of each; the id of one whose host is
    unknown."""
    return {
        name: sorted(printable(each.id) if each.host == UNKNOWN_HOST else each.host for each in found)
        for name, found in read(client, znodes, services, stages=False).items()
    }


def on_hosts(hosts: Sequence[str]) -> str:
    """The number of containers and their hosts, for a message."""
    count = "1 container" if len(hosts) == 1 else f"{len(hosts)} containers"
    return f"{count} on {few(sorted(set(hosts)), SHOWN_HOSTS)}"
