"""Registers an instance in ZooKeeper: its presence, and that it is ready."""

from __future__ import annotations

import time
from contextlib import suppress

from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.report import utc, with_texts
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.ephemerals import NONE, OTHER, OURS, Ephemerals
from kolla_mesos_start.zookeeper.session import perform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.zookeeper.session import Requests, Session

RUNNING, WAITING = b"running", b"waiting"


class Registration(NamedTuple):
    """The znodes of an instance, as (path, data).

    `presence` exists while it runs, `ready` while it is ready (JSON objects; `since` is added). `parents`,
    outermost first, are created if they are missing. `states` become `running`, for people. `acl`:
    (permission bits, scheme, id) of all new znodes; the znode `recorded_acl` has it, if it may change. `past`
    is removed once the daemon runs, `past_when_ready` once it is ready. `ended`: the znode that records how a
    daemon ended that was never ready. `member`: the id of the container.
    """

    member: str
    presence: Sequence[tuple[str, bytes]]
    ready: Sequence[tuple[str, bytes]]
    parents: Sequence[tuple[str, bytes]]
    states: Sequence[str]
    acl: Sequence[tuple[int, str, str]]
    past: Sequence[str] = ()
    past_when_ready: Sequence[str] = ()
    ended: str = ""
    recorded_acl: str = ""


class Presence:
    """Keeps the registration of one instance up to date."""

    def __init__(self, session: Session, shown: Registration) -> None:
        # One list for all who create znodes: it follows what is published.
        acl = [wire.ACL(perms, wire.Id(scheme, name)) for perms, scheme, name in shown.acl]
        acl = acl or list(wire.OPEN_ACL_UNSAFE)
        if shown.recorded_acl:
            from kolla_mesos_start.zookeeper.followed_acl import FollowedAcl

            FollowedAcl(session, shown.recorded_acl, acl)
        self.ephemerals = Ephemerals(session, acl, shown.parents)
        self._session, self._shown, self.acl = session, shown, acl
        for path, data in shown.presence:
            self.ephemerals.keep(path, data).unsure()
        self._instances = [self.ephemerals.keep(path, data) for path, data in shown.ready]
        for instance in self._instances:
            instance.wanted = False  # The agent has deleted what an earlier run of the container left.
        for path in shown.past:
            self.ephemerals.discard(path)
        self._ready = self._states_due = self.was_ready = False
        self._running = 0  # requests of `_send` that are not done

    @property
    def denied(self) -> str:
        """Why ZooKeeper refuses to register the daemon as ready; empty if it does not."""
        return next((each.denied for each in self._instances if each.wanted and each.denied), "")

    @property
    def withdrawn(self) -> bool:
        """Whether the ready instances of this daemon are deleted."""
        return all(instance.owner in (NONE, OTHER) for instance in self._instances)

    def show(self, ready: bool, *, recorded: bool = True) -> None:
        """Publish whether the daemon is ready; call it after every event.

        `recorded`: whether others can see what the container runs. It is not registered before that.
        """
        if ready != self._ready and (recorded or not ready):
            self._change(ready, self.ready_data())
        self.ephemerals.run()
        if self._states_due and self._session.connected and all(e.owner == OURS for e in self._instances):
            self._states_due = False
            for path in self._shown.states:
                self._send(self._write_running(path))

    def ready_data(self) -> dict[str, bytes]:
        """The znodes of a daemon that is ready now, in `global` and in `local`."""
        return {path: with_texts(data, since=utc(time.time())) for path, data in self._shown.ready}

    def adopt(self, data: dict[str, bytes]) -> None:
        """The ready instances were created by a transaction of this session: keep them."""
        self._change(True, data)
        for instance in self._instances:
            instance.unsure()
            instance.written = instance.data

    def write_again(self) -> None:
        """Write the ready instances again, to prove to others that the daemon is ready now."""
        for instance in self._instances:
            instance.written = None

    def _change(self, ready: bool, data: dict[str, bytes]) -> None:
        self._ready = self._states_due = ready
        if not self.was_ready:
            self.was_ready = True
            for path in self._shown.past_when_ready:
                self.ephemerals.discard(path)
        for instance in self._instances:
            instance.wanted, instance.not_before = ready, 0.0
            instance.data = data[instance.path]

    def _write_running(self, path: str) -> Requests:
        try:
            data, stat = yield wire.GetData(path, False)
        except wire.ConnectionLoss:
            self._states_due = self._ready
            return
        # The daemon may have ended meanwhile, and its state may be reset already.
        if self._ready and data != RUNNING:
            # If another replica has changed it since, its state is newer. It is only for people.
            yield wire.SetData(path, RUNNING, stat.version)

    def write_end(self, ending: bytes) -> None:
        """Record that the daemon ended and was never ready."""
        self.ephemerals.all.pop(self._shown.ended, None)  # The record of an earlier start may still be there.
        self._send(self._write_end(ending))

    def _write_end(self, ending: bytes) -> Requests:
        with suppress(wire.KazooException):
            yield wire.Create(self._shown.ended, ending, self.acl, 0)
        yield wire.SetData(self._shown.ended, ending, -1)

    def end_states(self) -> None:
        """Reset the states of the ended daemon to `waiting`, unless another replica is ready."""
        self._ready = self._states_due = False
        for path in self._shown.states:
            self._send(self._end_state(path))

    @property
    def states_ended(self) -> bool:
        """Whether all requests of `write_end` and `end_states` are answered."""
        return not self._running

    def _end_state(self, path: str) -> Requests:
        own, ready = {instance.path for instance in self._instances}, f"{path}/ready"

        def others(names: Sequence[str]) -> bool:
            return any(f"{ready}/{name}" not in own for name in names)

        data, stat = yield wire.GetData(path, False)
        if data != RUNNING or others((yield wire.GetChildren(ready, False))):
            return
        yield wire.SetData(path, WAITING, stat.version)
        # A replica that became ready between the read and the write has found `running`, and changed nothing.
        # A later one finds `waiting`.
        if others((yield wire.GetChildren(ready, False))):
            yield wire.SetData(path, RUNNING, stat.version + 1)

    def _send(self, steps: Requests) -> None:
        """Make these requests until one fails: another writer was faster, or the znode does not exist."""

        def counted() -> Requests:
            self._running += 1
            with suppress(wire.KazooException):
                yield from steps
            self._running -= 1

        perform(self._session, counted())
