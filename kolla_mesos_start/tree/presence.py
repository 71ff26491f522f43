"""Registers an instance in ZooKeeper: its presence, and that it is ready."""

from __future__ import annotations

import time

from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.report import utc, with_texts
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.ephemerals import NONE, OTHER, OURS, Ephemerals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kolla_mesos_start.zookeeper.session import Session

RUNNING, WAITING = b"running", b"waiting"


class Registration(NamedTuple):
    """The znodes of an instance, as (path, data).

    `presence` exists while it runs, `ready` while it is ready (JSON objects; `since` is added). `parents`,
    outermost first, are created if they are missing. `states` become `running`, for people. `acl`:
    (permission bits, scheme, id) of all new znodes. `past` is removed once the daemon runs, `past_when_ready`
    once it is ready. `ended`: the znode that records how a daemon ended that was never ready. `turns`: where
    instances take turns to refresh.
    """

    presence: Sequence[tuple[str, bytes]]
    ready: Sequence[tuple[str, bytes]]
    parents: Sequence[tuple[str, bytes]]
    states: Sequence[str]
    acl: Sequence[tuple[int, str, str]]
    past: Sequence[str] = ()
    past_when_ready: Sequence[str] = ()
    ended: str = ""
    turns: str = ""


class Presence:
    """Keeps the registration of one instance up to date."""

    def __init__(self, session: Session, shown: Registration) -> None:
        acl = [
            wire.ACL(perms, wire.Id(scheme, name)) for perms, scheme, name in shown.acl
        ] or wire.OPEN_ACL_UNSAFE
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
        self._unanswered = 0

    @property
    def member(self) -> tuple[str, str]:
        """The znode of its party, and its id."""
        party, _, member = self._shown.presence[0][0].rpartition("/")
        return party, member

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
                self._write_state(path)

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

    def _write_state(self, path: str) -> None:
        def on_read(value: Any, error: Exception | None) -> None:
            if not self._ready:
                return  # The daemon has ended meanwhile, and its state may be reset already.
            if isinstance(error, wire.ConnectionLoss):
                self._states_due = True
            elif not error and value[0] != RUNNING:
                # If another replica has changed it since, its state is newer. It is only for people.
                self._session.request(
                    wire.SetData(path, RUNNING, value[1].version), lambda value, error: None
                )

        self._session.request(wire.GetData(path, False), on_read)

    def write_end(self, ending: bytes) -> None:
        """Record that the daemon ended and was never ready."""
        path = self._shown.ended
        self.ephemerals.all.pop(path, None)  # The record of an earlier start may still be being deleted.
        self._ask(wire.Create(path, ending, self.acl, 0), lambda value: None)
        self._ask(wire.SetData(path, ending, -1), lambda value: None)

    def end_states(self) -> None:
        """Reset the states of the ended daemon to `waiting`, unless another replica is ready."""
        self._ready = self._states_due = False
        for path in self._shown.states:
            self._end_state(path)

    @property
    def states_ended(self) -> bool:
        """Whether all requests of `write_end` and `end_states` are answered."""
        return not self._unanswered

    def _end_state(self, path: str) -> None:
        own = {instance.path for instance in self._instances}
        ready = f"{path}/ready"
        versions: list[int] = []

        def others(names: Sequence[str]) -> bool:
            return any(f"{ready}/{name}" not in own for name in names)

        def on_state(value: Any) -> None:
            if value[0] == RUNNING:
                versions.append(value[1].version)

        def on_ready(names: Sequence[str]) -> None:
            if versions and not others(names):
                self._ask(wire.SetData(path, WAITING, versions[0]), lambda value: None)
                self._ask(wire.GetChildren(ready, False), on_ready_again)

        def on_ready_again(names: Sequence[str]) -> None:
            # A replica that became ready between the read and the write has found `running`, and changed
            # nothing. A later one finds `waiting`.
            if others(names):
                self._ask(wire.SetData(path, RUNNING, versions[0] + 1), lambda value: None)

        self._ask(wire.GetData(path, False), on_state)
        self._ask(wire.GetChildren(ready, False), on_ready)

    def _ask(self, operation: Any, on_answer: Callable[[Any], object]) -> None:
        """Send a request; its answer is dropped if another writer was faster, or the znode does not exist."""

        def on_reply(value: Any, error: Exception | None) -> None:
            self._unanswered -= 1
            if not error:
                on_answer(value)

        self._unanswered += 1
        self._session.request(operation, on_reply)
