"""What an instance leaves behind: the states of a daemon that has ended, with servers in memory."""

from __future__ import annotations

import pytest

from kolla_mesos_start.tree.presence import Presence, Registration
from kolla_mesos_start.zookeeper.ephemerals import OURS
from tests.support.in_memory import Servers, Session

STATE = "/kolla/site/status/global/api/daemon"
OWN = f"{STATE}/ready/own"


def presence_of(session: Session) -> Presence:
    shown = Registration("m", [], [(OWN, b"{}")], [], [STATE], [])
    return Presence(session, shown)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "ready", "later", "expected", "writes"),
    [
        (b"running", ["own"], False, b"waiting", 1),
        (b"running", [], False, b"waiting", 1),
        (b"running", ["own", "other"], False, b"running", 0),
        (b"running", ["own"], True, b"running", 2),
        (b"waiting", ["own"], False, b"waiting", 0),
        (None, [], False, None, 0),
    ],
    ids=["alone", "withdrawn", "another", "another comes meanwhile", "not running", "deleted"],
)
def test_the_state_of_a_daemon_that_has_ended(
    state: bytes | None, ready: list[str], later: bool, expected: bytes | None, writes: int
) -> None:
    """It is `waiting` where no other replica is ready; one that has just come finds `running`."""
    servers = Servers()
    session = Session(servers)
    if state is not None:
        servers.put(STATE, state)
        for name in ("", *ready):
            servers.put(f"{STATE}/ready/{name}".rstrip("/"))
    presence = presence_of(session)
    presence.end_states()
    while servers.step():
        if later and servers.znodes[STATE].data == b"waiting":
            servers.put(f"{STATE}/ready/other")
    found = servers.znodes.get(STATE)
    assert (found and found.data, found.version if found else 0) == (expected, writes)
    assert presence.states_ended


def test_a_state_that_is_read_when_the_daemon_ends_does_not_become_running() -> None:
    """The answer comes after the end: nobody would reset it."""
    servers = Servers()
    session = Session(servers)
    servers.put(STATE, b"waiting")
    presence = presence_of(session)
    for ephemeral in presence.ephemerals.all.values():
        ephemeral.owner, ephemeral.busy = OURS, True  # nothing is sent for it
    presence.show(ready=True)
    assert len(session.outbox) == 1
    presence.end_states()
    while servers.step():
        pass
    assert servers.znodes[STATE].version == 0


def test_an_instance_is_registered_after_the_record_of_its_container() -> None:
    """One that an election's transaction has registered already is not withdrawn for that."""
    session = Session(Servers())
    presence = presence_of(session)
    presence.show(True, recorded=False)
    assert not session.outbox
    presence.adopt({OWN: b"{}"})
    presence.show(True, recorded=False)
    assert presence.ephemerals.all[OWN].wanted
    presence.show(False, recorded=False)
    assert not presence.ephemerals.all[OWN].wanted
    presence.show(True, recorded=True)
    assert presence.ephemerals.all[OWN].wanted
