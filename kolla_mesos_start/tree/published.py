"""Reads what publishers and other containers have written: definition, variables, files, members.

Related znodes are read between two reads of the definition and of the mark of the last publication. If one of
them has changed in between, everything is read again.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.definition.strings import DAEMON, GLOBAL, bad_segment, bad_service
from kolla_mesos_start.errors import AccessDenied, BadDefinition, DependenciesNotSatisfied
from kolla_mesos_start.log import PROGRESS_INTERVAL, Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.znodes import RESERVED
from kolla_mesos_start.zookeeper.client import text
from kolla_mesos_start.zookeeper.view import Znode, data_of
from kolla_mesos_start.zookeeper.wire import GetData

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Callable, Optional

    from kolla_mesos_start.report import Report
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.zookeeper.client import Client

    Facts = Mapping[str, Any]
    Stamp = tuple[int, int]
    State = tuple[Optional[int], ...]


log = Logger(__name__)


PATIENCE = 30.0  # seconds to wait for a publication that has begun
SOON = 1.0  # seconds until a missing definition is reported


class Changed(Exception):
    """Something else is published by now: start again by reading it."""


class Definition(NamedTuple):
    """The definition as it was read; `zxid` is that of its last change."""

    data: bytes
    zxid: int
    version: int


class Variables(NamedTuple):
    """The values of the variables that exist, and the stamp of each znode that was read.

    `state` is the state of publication after the read.
    """

    values: Mapping[str, str]
    stamps: Mapping[str, Stamp | None]
    state: State


class Published:
    """One deployment's tree, as one service reads it."""

    def __init__(self, client: Client, znodes: Znodes, source: str | None = None) -> None:
        """`source` is the path of the definition, if it is not the service's own znode."""
        self.client, self.znodes, self.source = client, znodes, source or znodes.definition
        self._watches = client.watches
        self._given_up = 0  # the zxid of a publication that did not finish in time

    def await_definition(self, report: Report, limit: float | None) -> Definition:
        """Wait for the definition; an empty one counts as missing.

        Raises DependenciesNotSatisfied after `limit` seconds.
        """
        path = self.znodes.definition
        ancestors = [data_of(self.znodes.deployment)]
        if self.client.session.servers.chroot:
            ancestors.append(data_of("/"))
        begun = now()
        due = begun + SOON
        deadline = float("inf") if limit is None else begun + limit
        marks: list[Any] = []
        ask = GetData(self.znodes.publication, False)  # Sent before the definition, so answered before it.
        self.client.session.request(ask, lambda value, error: marks.append(value and Znode(*value)))
        self._watches.kept = frozenset([data_of(path)])
        self._watches.watch(())
        # Whether it is published is not known yet.
        report.write("waiting", f"until the definition {path} is read")
        while True:
            self.client.loop.wait(lambda: self._published(path), min(deadline, due))
            znode = self._published(path)
            if znode is not None and marks and self._await_publication(marks.pop(), report):
                znode = self._published(path)
            if znode is not None:
                return Definition(znode.data, znode.stat.mzxid, znode.stat.version)
            # Only now, because most agents find their definition at once.
            self._watches.watch(ancestors)
            self.client.loop.wait(
                lambda: not self.client.connected or self._watches.fresh(), min(deadline, now() + SOON)
            )
            missing = self._missing(path)
            report.write("waiting", f"for the definition: {missing}")
            if now() >= deadline:
                raise DependenciesNotSatisfied(f"waited {now() - begun:.0f} s for the definition: {missing}")
            log.info("waiting for the definition for %.0f s: %s", now() - begun, missing)
            due = PROGRESS_INTERVAL + (begun if due == begun + SOON else due)

    def definition(self) -> Definition:
        """The definition that is published now. Raises BadDefinition if there is none."""
        path = self.source
        znode = self._read_published([self.znodes.publication, path])[path]
        if znode is None or not znode.data.strip():
            raise BadDefinition([f"{path} is not published"])
        return Definition(znode.data, znode.stat.mzxid, znode.stat.version)

    def _read_published(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        """Read these paths, which include the mark of the last publication; wait a while for an unfinished
        one.

        The mark is not recorded in `seen`: another service's publication changes nothing that was read.
        """
        paths, mark = tuple(paths), self.znodes.publication
        while True:
            found = self.client.read(paths, unrecorded=mark)
            if not self._await_publication(found[mark]):
                return found

    def _await_publication(self, mark: Znode | None, report: Report | None = None) -> bool:
        """Wait a while for an unfinished publication; whether there was one."""
        if self._is_over(mark):
            return False
        from kolla_mesos_start.tree.codec import unfinished

        assert mark is not None
        what = unfinished(mark.data)
        if what is None or mark.stat.mzxid == self._given_up:
            return False
        log.warning("%s; waiting for at most %g s", what, PATIENCE)
        if report:
            report.write("waiting", str(what))
        query, deadline = data_of(self.znodes.publication), min(now() + PATIENCE, self.client.deadline)
        watches, before = self._watches, set(self._watches.wanted)
        watches.watch({*before, query})
        if not self.client.loop.wait(
            lambda: watches.is_known(query) and self._is_over(watches.results[query]), deadline
        ):
            if deadline == self.client.deadline:
                raise DependenciesNotSatisfied(f"{what}, and the limit for dependencies has passed")
            log.warning("%s; continuing with what is published, which may be incomplete", what.problem)
            self._given_up = mark.stat.mzxid
        watches.watch(before)
        return True

    @staticmethod
    def _is_over(mark: Znode | None) -> bool:
        """Whether the publication has finished, as most have; without importing a parser."""
        return mark is None or b'"finished": null' not in mark.data

    def _published(self, path: str) -> Znode | None:
        znode: Znode | None = self._watches.results.get(data_of(path))
        return znode if znode is not None and znode.data.strip() else None

    def _missing(self, path: str) -> str:
        results = self._watches.results
        if not self.client.connected:
            return f"no connection to ZooKeeper to read the definition {path}"
        chroot = self.client.session.servers.chroot
        # Znodes that have not been read yet may exist.
        if chroot and results.get(data_of("/"), True) is None:
            return f"the chroot {chroot} is not there: correct KOLLA_ZK_HOSTS, or create it (no agent does)"
        if results.get(data_of(self.znodes.deployment), True) is None:
            return (
                f"the deployment {self.znodes.deployment} is not there, nor the definition {path}: correct"
                " KOLLA_APP_ID, or publish it"
            )
        return f"the definition {path} is not published yet: correct KOLLA_APP_ID, or publish it"

    def files(self, names: Iterable[str]) -> tuple[State, dict[str, bytes | None]]:
        """The state of publication before the read, and the content of each file, None if not published."""
        paths = {name: self.znodes.file(name) for name in names}
        found = self._read_published([*self._state_paths(), *paths.values()])
        return self._state(found), {
            name: znode.data if (znode := found[path]) else None for name, path in paths.items()
        }

    def variables(self, names: Collection[str]) -> Variables:
        """Each variable from its first place: host before service before deployment."""
        places = {name: self.znodes.variable(name) for name in names}
        # Requests are answered in their order, so the state is read after the variables in the same batch.
        wanted = [path for paths in places.values() for path in paths]
        found = self._read_published([*wanted, *self._state_paths()])
        values = {}
        for name, paths in places.items():
            for path in paths:
                znode = found[path]
                if znode is not None:
                    values[name] = text(path, znode.data)
                    break
        stamps = {path: stamp(found[path]) for paths in places.values() for path in paths}
        return Variables(values, stamps, self._state(found))

    def _state_paths(self) -> tuple[str, str]:
        return self.source, self.znodes.publication

    def _state(self, found: Mapping[str, Znode | None]) -> State:
        """A value that changes with the definition, and with each publication."""
        return tuple(znode.stat.mzxid if (znode := found[path]) else None for path in self._state_paths())

    def hosts_with(self, names: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Variables that have a value for other hosts of this service, with these hosts."""
        above = f"{self.znodes.definition}/variables"
        try:
            hosts = self.client.children([above])[above] or ()
            below = self.client.children(f"{above}/{host}" for host in hosts)
        except AccessDenied:
            return {}  # An agent may have access to its own variables only.
        found = {name: [host for host in hosts if name in (below[f"{above}/{host}"] or ())] for name in names}
        return {name: some for name, some in found.items() if some}

    # -- members ------------------------------------------------------------------------------------

    def members(self, service: str, private_interface: str) -> Sequence[Facts]:
        """The facts of each member present in the party of a service; see `codec.member`."""
        party = self.znodes.party(service)
        names = self.client.children([party])[party] or ()
        return self._members(party, names, private_interface)

    def parties(self, private_interface: str) -> Mapping[str, Sequence[Facts]]:
        """The facts of the members of every service of the deployment that has a party."""
        parties = {self.znodes.party(service): service for service in self._find_parties()}
        names = self.client.children(parties)
        return {
            service: self._members(party, names[party] or (), private_interface)
            for party, service in parties.items()
        }

    def _members(self, party: str, names: Sequence[str], private_interface: str) -> Sequence[Facts]:
        from kolla_mesos_start.tree.codec import member  # Few templates ask for members.

        read = partial(member, private_interface=private_interface)
        return self._facts((f"{party}/{name}" for name in names), read)

    def services(self, role: str) -> Sequence[str]:
        """The service that has claimed a role; otherwise all with a party, because kolla-mesos claimed no
        roles.
        """
        if bad_segment(role):
            return ()
        path = self.znodes.owner(GLOBAL, role)
        znode = self.client.read([path])[path]
        owner = znode.data.decode("utf-8", "replace") if znode else ""
        if owner.rsplit("/", 1)[-1] == role and not bad_service(owner):
            return (owner,)
        return [service for service in self._find_parties() if service.rsplit("/", 1)[-1] == role]

    def ready_instances(self, service: str) -> Sequence[Facts]:
        """The facts of each ready instance of a service's daemon, sorted by host and id."""
        from kolla_mesos_start.tree.codec import instance

        role = service.rsplit("/", 1)[-1]
        ready = self.znodes.command(GLOBAL, f"{role}/{DAEMON}").ready
        names = self.client.children([ready])[ready] or ()
        instances = self._facts((f"{ready}/{name}" for name in names), instance)
        return sorted(instances, key=lambda facts: facts["host"])

    def _find_parties(self) -> list[str]:
        """Every service with a party; if access is denied, every service that has claimed a role."""
        try:
            return sorted(name for name, children in self._walk() if ".party" in children)
        except AccessDenied:
            roles = self.znodes.scope(GLOBAL)
            names = self.client.children([roles])[roles] or ()
            found = self.client.read(f"{roles}/{name}" for name in names).values()
            owners = {znode.data.decode("utf-8", "replace") for znode in found if znode}
            return sorted(owner for owner in owners if not bad_service(owner))

    def _walk(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Every possible service, with its children, level by level; each level is read together."""
        level = [""]
        while level:
            below = self.client.children(
                self.znodes.service(name) if name else self.znodes.deployment for name in level
            )
            deeper = []
            for name in level:
                children = below[self.znodes.service(name) if name else self.znodes.deployment] or ()
                yield name, children
                deeper += [f"{name}/{child}".lstrip("/") for child in children if _is_service(name, child)]
            level = deeper

    def _facts(self, paths: Iterable[str], read: Callable[[bytes], Facts]) -> list[Facts]:
        """The valid facts; others are left out, with one warning for each."""
        from kolla_mesos_start.tree.codec import why_left_out

        facts: list[Facts] = []
        for path, znode in self.client.read(paths).items():
            if znode is None:
                continue  # It was deleted between the two reads.
            if why := why_left_out(znode, read):
                self.client.warn_once(f"{path} is left out: {why}")
            else:
                facts.append(read(znode.data))
        return facts


def stamp(znode: Znode | None) -> Stamp | None:
    """The version and mzxid of a znode. The version alone is not enough: it restarts with a new znode."""
    return (znode.stat.version, znode.stat.mzxid) if znode else None


def _is_service(parent: str, name: str) -> bool:
    """Whether a znode below a service or the deployment may be a service, or the parent of one."""
    return name not in RESERVED and not name.startswith(".")
