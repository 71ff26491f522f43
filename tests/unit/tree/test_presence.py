"""What an instance leaves behind: the states of a daemon that has ended, by a session that answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData, SetData
from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.tree.presence import Presence, Registration
from kolla_mesos_start.zookeeper.ephemerals import OURS

STATE = "/kolla/site/status/global/api/daemon"
STAT = ZnodeStat(1, 1, 0, 0, 4, 0, 0, 0, 0, 0, 1)


class Session:
    """Answers each request at once, from one znode and the children that it finds the next time."""

    id, former, connected = 7, set[int](), True

    def __init__(self, state: bytes | None, *children: list[str]) -> None:
        self._state, self._children = state, list(children)
        self.written: list[tuple[bytes, int]] = []
        # Requests that are answered later; None: they are answered at once.
        self.pending: list[tuple[Any, Callable[[Any, KazooException | None], object]]] | None = None

    def on_connected(self, handler: Callable[[], object]) -> None:
        pass

    def on_watch(self, handler: Callable[[str], object]) -> None:
        pass

    def request(self, operation: Any, done: Callable[[Any, KazooException | None], object]) -> None:
        if self.pending is not None:
            self.pending.append((operation, done))
        elif isinstance(operation, SetData):
            self.written.append((operation.data, operation.version))
            done(STAT, None)
        elif self._state is None:
            done(None, NoNodeError())
        elif isinstance(operation, GetData):
            done((self._state, STAT), None)
        else:
            assert isinstance(operation, GetChildren)
            done(self._children.pop(0), None)


@pytest.mark.parametrize(
    ("state", "children", "written"),
    [
        (b"running", [["own"], ["own"]], [(b"waiting", 4)]),
        (b"running", [[], []], [(b"waiting", 4)]),
        (b"running", [["own", "other"]], []),
        (b"running", [["own"], ["own", "other"]], [(b"waiting", 4), (b"running", 5)]),
        (b"waiting", [["own"]], []),
        (None, [], []),
    ],
    ids=["alone", "withdrawn", "another", "another comes meanwhile", "not running", "deleted"],
)
def test_the_state_of_a_daemon_that_has_ended(
    state: bytes | None, children: list[list[str]], written: list[tuple[bytes, int]]
) -> None:
    """It is `waiting` where no other replica is ready; one that has just come finds `running`."""
    session = Session(state, *children)
    shown = Registration("m", [], [(f"{STATE}/ready/own", b"{}")], [], [STATE], [])
    presence = Presence(session, shown)  # type: ignore[arg-type]
    presence.end_states()
    assert session.written == written
    assert presence.states_ended


def test_a_state_that_is_read_when_the_daemon_ends_does_not_become_running() -> None:
    """The answer comes after the end: nobody would reset it."""
    session = Session(b"waiting", [])
    shown = Registration("m", [], [(f"{STATE}/ready/own", b"{}")], [], [STATE], [])
    presence = Presence(session, shown)  # type: ignore[arg-type]
    for ephemeral in presence.ephemerals.all.values():
        ephemeral.owner, ephemeral.busy = OURS, True  # nothing is sent for it
    session.pending = []
    presence.show(ready=True)
    presence.end_states()
    asked, session.pending = session.pending, None
    for operation, done in asked:
        session.request(operation, done)
    assert isinstance(asked[0][0], GetData)
    assert session.written == []


def test_an_instance_is_registered_after_the_record_of_its_container() -> None:
    """One that an election's transaction has registered already is not withdrawn for that."""
    session = Session(None)
    session.pending = []
    path = f"{STATE}/ready/own"
    presence = Presence(session, Registration("m", [], [(path, b"{}")], [], [STATE], []))  # type: ignore[arg-type]
    presence.show(True, recorded=False)
    assert not session.pending
    presence.adopt({path: b"{}"})
    presence.show(True, recorded=False)
    assert presence.ephemerals.all[path].wanted
    presence.show(False, recorded=False)
    assert not presence.ephemerals.all[path].wanted
    presence.show(True, recorded=True)
    assert presence.ephemerals.all[path].wanted
