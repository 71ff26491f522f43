"""Every order of what three hosts can do, with crashes and lost sessions: a search through all states.

The znodes and the transactions are modelled; `decide` is the real one. Three hosts with data of different
age and their processes: at each point any host may become a candidate, decide, join, start its daemon, form
the cluster, crash, or lose its session while its process continues with what it knew.

Promises: never two processes that bootstrap different epochs and serve at the same time; never a winner below
the largest number of all hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kolla_mesos_start.election import decide
from kolla_mesos_start.election.decide import Elected, Join, Snapshot
from kolla_mesos_start.election.records import Candidate, Decision, Member, Running

HOSTS = ("a", "b", "c")
MOST_EPOCHS = 3
OFF, CANDIDATE, CHOSEN, STARTED, READY = "off", "candidate", "chosen", "started", "ready"


class Host(NamedTuple):
    """A host: what its process does, its epoch and role, whether its session lives, and its data."""

    process: str = OFF
    epoch: int = 0
    role: str = ""
    session: bool = False
    value: int = 0


class World(NamedTuple):
    """All znodes and processes."""

    hosts: tuple[Host, ...]
    epoch: int = 0
    winner: str = ""
    formed: bool = False
    ever: bool = False
    joined: tuple[bool | None, ...] = (None, None, None)  # of each member: None is no member
    crashes: int = 0


def snapshot(world: World, host: int) -> Snapshot:
    """What a host reads."""
    decision = None
    if world.epoch:
        state = "formed" if world.formed else "bootstrapping"
        decision = Decision(world.epoch, world.winner, "g", 1, {}, state, world.ever)
    each = dict(zip(HOSTS, world.hosts))
    running = {
        name: Running(one.epoch, one.role, "starting")
        for name, one in each.items()
        if one.session and one.process in (CHOSEN, STARTED, READY)
    }
    ready = [name for name, one in each.items() if one.session and one.process == READY]
    return Snapshot(
        wanted=len(HOSTS),
        decision=decision,
        members={
            name: Member(1, "joined" if joined else "joining")
            for name, joined in zip(HOSTS, world.joined)
            if joined is not None
        },
        candidates={
            name: Candidate("g", one.value)
            for name, one in each.items()
            if one.session and one.process == CANDIDATE
        },
        running=running,
        ready=ready,
        # An answer comes from a living instance only; the znode of a dead one is not written again.
        answered=bool(ready),
    )


def changed(world: World, index: int, host: Host, **more: object) -> World:
    hosts = (*world.hosts[:index], host, *world.hosts[index + 1 :])
    return world._replace(hosts=hosts, **more)  # type: ignore[arg-type]


def steps(world: World) -> Iterator[World]:
    """Every state that can follow."""
    for index, host in enumerate(world.hosts):
        if host.process == OFF:
            yield changed(world, index, Host(CANDIDATE, session=True, value=host.value))
        elif world.crashes:
            yield changed(world, index, Host(value=host.value), crashes=world.crashes - 1)
        if host.session and host.process != OFF and world.crashes:
            yield changed(world, index, host._replace(session=False), crashes=world.crashes - 1)
        yield from transitions(world, index, host)


def transitions(world: World, index: int, host: Host) -> Iterator[World]:
    """What the host's own process does next."""
    name = HOSTS[index]
    if host.process == CANDIDATE and not host.session:
        yield changed(world, index, host._replace(session=True))
    elif host.process == CANDIDATE:
        yield from decisions(world, index, host)
    elif host.process == CHOSEN:
        # The transaction right before the start; without it, over again.
        holds = host.session and host.epoch == world.epoch
        yield changed(world, index, host._replace(process=STARTED) if holds else Host(OFF, value=host.value))
    elif (host.process == STARTED and not host.session) or (host.process == READY and not host.session):
        # The registrar of a daemon whose session has expired.
        if host.epoch == world.epoch:
            yield changed(world, index, host._replace(session=True))
        else:
            yield changed(world, index, Host(OFF, value=host.value))
    elif host.process == STARTED:
        joined = tuple(True if HOSTS[each] == name else one for each, one in enumerate(world.joined))
        # A winner adds an event; a joiner gets all data of the ready instances.
        others = [one.value for one in world.hosts if one.process == READY and one.session]
        value = host.value + 1 if host.role == "first" else max([host.value, *others])
        ready = host._replace(process=READY, value=value)
        yield changed(world, index, ready, joined=joined, formed=True, ever=True)


def decisions(world: World, index: int, host: Host) -> Iterator[World]:
    name = HOSTS[index]
    verdict = decide.decide(snapshot(world, index), name)
    if isinstance(verdict, Elected) and verdict.decision.epoch <= MOST_EPOCHS:
        assert verdict.winner == name
        newest = max(one.value for one in world.hosts)
        assert host.value == newest, f"{name} wins with older data: {world}"
        others = [one for one in world.hosts if one.process in (STARTED, READY)]
        assert not others, f"{name} bootstraps beside a running daemon: {world}"
        states = {each: member.state == "joined" for each, member in verdict.members.items()}
        joined = tuple(states.get(each, one) for each, one in zip(HOSTS, world.joined))
        chosen = host._replace(process=CHOSEN, epoch=verdict.decision.epoch, role="first")
        epoch = verdict.decision.epoch
        yield changed(world, index, chosen, epoch=epoch, winner=name, formed=False, joined=joined)
    elif isinstance(verdict, Join):
        joined = tuple(False if HOSTS[each] == name else one for each, one in enumerate(world.joined))
        chosen = host._replace(process=CHOSEN, epoch=world.epoch, role="join")
        yield changed(world, index, chosen, joined=joined)


def check(world: World) -> None:
    """The promises, in one state."""
    serving = {host.epoch for host in world.hosts if host.process == READY}
    first = [host for host in world.hosts if host.process in (STARTED, READY) and host.role == "first"]
    assert len(serving) <= 1, f"two clusters: {world}"
    assert len(first) <= 1, f"two bootstraps: {world}"


def search(start: World) -> set[World]:
    """All states that can be reached."""
    seen, left = {start}, [start]
    while left:
        world = left.pop()
        check(world)
        for following in steps(world):
            if following not in seen:
                seen.add(following)
                left.append(following)
    return seen


def test_no_order_of_events_bootstraps_two_clusters_or_older_data() -> None:
    """From hosts with data of different age; the newest one may crash like any other."""
    start = World(tuple(Host(value=value) for value in (1, 3, 2)), crashes=4)
    seen = search(start)
    # The search has been everywhere: several epochs, and clusters of three.
    assert max(world.epoch for world in seen) == MOST_EPOCHS
    assert any(all(host.process == READY for host in world.hosts) for world in seen)
