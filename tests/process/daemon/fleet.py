"""Instances of one daemon that are refreshed, with ZooKeeper, processes and the clock in memory.

Real are the decisions (`Refresher`, `Rollout`) and the socket for refreshes by hand. Each instance has one
file, which is rendered from the znode FILE; a refresh takes half a second.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.daemon import refresher as module
from kolla_mesos_start.daemon.handoff import Refreshed, Refreshing
from kolla_mesos_start.daemon.refresher import SETTLE, Refresher
from kolla_mesos_start.daemon.rollout import Rollout
from kolla_mesos_start.tree.znodes import Znodes
from tests.support.in_memory import Servers, Session

SERVICE = "/kolla/site/web"
FILE = f"{SERVICE}/files/web.conf"
DAEMON = "/kolla/site/status/global/web/daemon"
SLOTS, QUEUE, READY = f"{DAEMON}/refreshes/slots", f"{DAEMON}/refreshes/queue", f"{DAEMON}/ready"
RENDERING = 0.5  # seconds
KILLED = "killed"

Render = Callable[["Instance"], "Refreshed | None"]


def render(instance: Instance) -> Refreshed | None:
    """As `refresh.refresh` with a file whose text is that of its znode; `poison` is refused by its check."""
    found = instance.fleet.servers.znodes.get(FILE)
    text = found.data.decode() if found else ""
    seen = {(FILE, False): found.mzxid if found else None}
    if text == KILLED:
        return None
    if text == "poison":
        return Refreshed(seen, "its check refuses the new content")
    written = ["web.conf"] if text != instance.file else []
    instance.file = text
    return Refreshed(seen, "", written=written, constants=text.encode(), kind="signal", signal="HUP")


class InMemoryRefresher(Refresher):
    """A refresher whose agents are no processes: they end after a while, or when they are let go."""

    def begin(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.report: Refreshed | None = None
        self.ends_at = math.inf
        self.notified: list[object] = []  # what each refresh was told that the daemon was notified of

    def _render(self) -> Any:
        self.notified.append(None if self._not_notified else dict(self._order.digests))
        self.child, self.ends_at = object(), math.inf  # type: ignore[assignment]
        try:
            while self.ends_at > self.clock():
                yield None
        finally:
            self.child, self.ends_at = None, math.inf
        self._not_notified = self._not_notified or self.report is None
        failed = 78 if self.report and self.report.failure else 0
        return self.report, -9 if self.report is None else failed, "killed"


class Loop:
    """The descriptors and timers of one instance."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def listen(self, fd: int, handler: Callable[[], object]) -> None:
        self.readers[fd] = handler

    def ignore(self, fd: int) -> None:
        del self.readers[fd]  # KeyError, as in the real one

    def call_at(self, when: float, handler: Callable[[], object]) -> None:
        self.timers.append((when, handler))


class Instance:
    """One container: its refresher, its daemon, and what an operator sees."""

    def __init__(self, fleet: Fleet, name: str, width: int | None) -> None:
        self.fleet, self.name = fleet, name
        self.session, self.loop = Session(fleet.servers), Loop()
        self.readiness = self.report = self
        self.reporter = self
        self.file = ""
        self.heard: list[str] = []  # what its file contained each time that the daemon was notified
        self.deaf = ""  # why the daemon can't be notified
        self.takes = SETTLE  # seconds from a notification until the daemon is ready
        self.held = False  # whether a refresh hangs in the check of its file
        self.render: Render = render
        self.constants = b""
        self._ready_at = -math.inf
        render(self)
        data = fleet.servers.znodes.get(FILE)
        seen = {(FILE, False): data.mzxid if data else None}
        znodes = Znodes("/kolla", "site", "web", name)
        order = Refreshing(width, znodes, seen, {}, {}, 7)
        self.run_dir = fleet.place / name
        self.run_dir.mkdir(exist_ok=True)
        rollout = None if width is None else Rollout(self.session, (), znodes, name, width)  # type: ignore[arg-type]
        self.refresher = InMemoryRefresher(self, order, str(self.run_dir), rollout)  # type: ignore[arg-type]
        self.refresher.begin(lambda: fleet.clock)
        self.session.connect()

    # -- the daemon, as its registrar controls it ---------------------------------------------------------

    def notify(self, kind: str, signame: str) -> str:
        if not self.deaf:
            self.heard.append(self.file)
        return self.deaf

    def renew(self, constants: bytes) -> None:
        self.constants = constants

    def confirm(self, after: float) -> None:
        self._ready_at = max(after, self.fleet.clock + self.takes)

    @property
    def ready(self) -> bool:
        return self.fleet.clock >= self._ready_at

    confirmed = ready

    def _register(self) -> None:
        """Keep the ready instance, as `tree.presence` does: in the present session, while it is ready."""
        znodes, path = self.fleet.servers.znodes, f"{READY}/{self.name}"
        is_there = path in znodes and znodes[path].owner == self.session.id
        if READY in znodes and self.session.connected and is_there != self.ready:
            if path in znodes:
                self.fleet.servers.remove(path)
            if self.ready:
                self.fleet.servers.put(path, b"", self.session.id)

    def close(self) -> None:
        """End the refresher, and close the connections of its clients, as the end of its process does."""
        self.refresher.close()
        for connection in (*self.refresher._asking, *self.refresher._served):
            connection.close()

    # -- events -------------------------------------------------------------------------------------------

    def die(self) -> None:
        """The container ends; its session expires."""
        self.close()
        self.session.lose()
        self.fleet.servers.expire(self.session.id)
        self.fleet.instances.remove(self)

    def ask(self) -> socket.socket:
        """Ask for a refresh by hand; the answer comes on this connection."""
        asking = socket.socket(socket.AF_UNIX)
        self.fleet.clients.append(asking)
        asking.connect(f"{self.run_dir}/refresh")
        return asking

    @property
    def refreshes(self) -> int:
        """How many have begun."""
        return len(self.refresher.notified)

    @property
    def is_rendering(self) -> bool:
        return self.refresher.child is not None

    @property
    def deadline(self) -> float:
        self._time_process()
        daemon = self._ready_at if self._ready_at > self.fleet.clock else math.inf
        timers = [when for when, _ in self.loop.timers]
        return min(self.refresher.deadline, self.refresher.ends_at, daemon, *timers, math.inf)

    def _time_process(self) -> None:
        if self.is_rendering and self.refresher.ends_at == math.inf and not self.held:
            self.refresher.ends_at = self.fleet.clock + RENDERING
            self.refresher.report = self.render(
                self
            )  # It reads at its beginning; what changes later is not in it.

    def run(self) -> bool:
        """Handle what is due; returns whether anything was."""
        self._time_process()
        due = [timer for timer in self.loop.timers if timer[0] <= self.fleet.clock]
        self.loop.timers = [timer for timer in self.loop.timers if timer not in due]
        ready = select.select(list(self.loop.readers), [], [], 0)[0]
        for handler in [handler for _, handler in due] + [self.loop.readers[fd] for fd in ready]:
            handler()
        ends = self.is_rendering and self.refresher.ends_at <= self.fleet.clock
        self.refresher.run(False)
        self._register()
        return bool(due or ready or ends)


class Fleet:
    """All instances of a daemon."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.clock = 1000.0
        self.servers = Servers()
        self.instances: list[Instance] = []
        self.clients: list[socket.socket] = []
        self.servers.put(READY)
        self.publish("old")

    def start(self, name: str = "w1", width: int | None = None) -> Instance:
        """A container whose daemon is ready, with the published file."""
        instance = Instance(self, name, width)
        self.instances.append(instance)
        self.settle()
        return instance

    def starts(self, count: int, width: int | None = 1) -> list[Instance]:
        """So many are wanted."""
        self.servers.put(SERVICE, b'{"service": {"instances": %d}}' % count)
        return [self.start(f"w{number}", width) for number in range(1, count + 1)]

    def publish(self, text: str) -> None:
        self.servers.put(FILE, text.encode())

    def settle(self, seconds: float = 0.0, step: Callable[[], bool] | None = None) -> None:
        """Handle all events of so many seconds, in their order."""
        until = self.clock + seconds
        while True:
            while self._handled(step or self.servers.step):
                pass
            due = min((each.deadline for each in self.instances), default=math.inf)
            if due > until:
                break
            self.clock = max(self.clock, due)
        self.clock = until

    def _handled(self, step: Callable[[], bool]) -> bool:
        # As in the loop of the registrar, each source runs after each event.
        return any([*[each.run() for each in list(self.instances)], step()])

    @property
    def slots(self) -> list[str]:
        """Instances that refresh."""
        return self.servers.children(SLOTS)

    def heard(self) -> list[list[str]]:
        return [each.heard for each in self.instances]


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("f"))
    monkeypatch.setattr(module, "now", lambda: fleet.clock)
    yield fleet
    for instance in fleet.instances:
        instance.close()
    for client in fleet.clients:
        client.close()
