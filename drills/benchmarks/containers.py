"""Containers of a whole deployment, many of them in one process: from the connection to the ready daemon.

    python -m drills.benchmarks.containers DEPLOYMENT HOSTS SERVICES EACH WORK SHARES DIRECTORY crowd<SHARE>

Each runs the agent's own stages and then, as its registrar does, attaches to its session once more and
registers the daemon. What is not there: processes. A command takes WORK seconds of the loop's timer, a
daemon is ready so long after its start, and nothing is written but the container's id.
Says `standing` once all wait, `ready` once all are ready; then, at a line on the standard input, in JSON
what each has sent and received and when its turns came.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from kazoo.security import OPEN_ACL_UNSAFE

from drills.benchmarks.deployment import TIMEOUT, service
from drills.benchmarks.one_poll import OnePoll
from kolla_mesos_start.commands.bootstrap import Bootstrap
from kolla_mesos_start.commands.guard_client import Ended
from kolla_mesos_start.daemon.identity import register
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.log import configure
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.render.prepare import Preparer
from kolla_mesos_start.report import Report
from kolla_mesos_start.settings import Settings, parse
from kolla_mesos_start.tree.presence import Presence, Registration
from kolla_mesos_start.tree.published import Published
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.wait.waiting import Waiting
from kolla_mesos_start.zookeeper import client as clients
from kolla_mesos_start.zookeeper.ephemerals import OURS
from kolla_mesos_start.zookeeper.session import PING_XID, Servers, Session
from kolla_mesos_start.zookeeper.wire import int_struct

if TYPE_CHECKING:
    from kolla_mesos_start.health import Stage
    from kolla_mesos_start.zookeeper.client import Client

LIFETIME = 900  # seconds, three times of what is needed
PING = int_struct.pack(PING_XID)  # how the answer to a ping begins
# What differs from container to container in a path.
NAMES = {
    re.compile(r"\brole\d+"): "<role>",
    re.compile(r"\bnode\d+"): "<host>",
    re.compile(r"[0-9a-f]{32}\S*"): "<id>",
}


class Traffic:
    """What one container has asked, and the bytes of it and of the answers."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()  # by kind and path
        self.sent = self.received = 0


class Counted(Session):
    """A session that counts, pings aside: their number is that of the seconds."""

    traffic: Traffic

    def _send(self, operation: Any, xid: int | None = None) -> None:
        before = len(self._outbox)
        super()._send(operation, xid)
        first = operation.operations[0] if hasattr(operation, "operations") else operation
        kind = type(operation).__name__ + " watch" * getattr(operation, "watcher", False)
        if kind == "Ping":
            return
        self.traffic.requests[kind, getattr(first, "path", "")] += 1
        self.traffic.sent += len(self._outbox) - before

    def _frame(self) -> bytes | None:
        frame = super()._frame()
        if frame and frame[:4] != PING:
            self.traffic.received += 4 + len(frame)
        return frame


class Waits(StateFile):
    """Learns from what a probe would be told that the container waits for its first turn."""

    def __init__(self, waits: threading.Semaphore) -> None:
        super().__init__("", -1)
        self.begun = False
        self._waits = waits

    def write(self, stage: Stage, text: str, started: float | None = None) -> None:
        if self.begun and stage == "waiting":
            self.begun = False
            self._waits.release()


class Timer:
    """In place of the guard process: each command ends well after so many seconds."""

    gone = False

    def __init__(self, loop: Loop, work: float) -> None:
        self.ended: Ended | None = None
        self._loop, self._work = loop, work

    def spawn(self, *words: object, **more: object) -> None:
        self.ended = None
        self._loop.call_at(now() + self._work, self._end)

    def extend(self, deadline: float) -> None:
        pass

    def _end(self) -> None:
        self.ended = Ended("exited", 0)


class Container:
    """One container of service `number`; `turns` are (command, asked at, came at, whether done already)."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        work: float,
        waits: threading.Semaphore,
        ready: threading.Semaphore,
    ) -> None:
        self.traffic = Traffic()
        self.turns: list[tuple[str, float, float, bool]] = []
        self.number = number
        self._settings, self._work, self._ready = settings, work, ready
        self._state_file = Waits(waits)

    def run(self) -> None:
        try:
            self._be_registrar(*self._be_agent())
        except BaseException as defect:
            sys.excepthook(type(defect), defect, defect.__traceback__)
            os._exit(1)

    def _be_agent(self) -> tuple[Client, Registration]:
        settings = self._settings
        host, _, port = settings.hosts.rpartition(":")
        client = clients.Client(
            Servers([(host, int(port))], settings.chroot), settings.session_timeout, OPEN_ACL_UNSAFE, Loop()
        )
        client.session.traffic = self.traffic  # type: ignore[attr-defined]
        client.connect(LIFETIME)
        znodes = Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host)
        preparer = Preparer(settings, Published(client, znodes), self._facts)
        report = Report(self._state_file)
        definition = preparer.published.await_definition(report, None)
        graph, versions = preparer.read_graph(definition)
        tree = StatusTree(client, znodes, graph, definition.zxid, versions)
        tree.start()
        bootstrap = Bootstrap(tree)
        bootstrap.guard = Timer(client.loop, self._work)  # type: ignore[assignment]
        registration = register(settings, tree, self._facts, report)
        assert registration is not None
        self._state_file.begun = True
        waiting = Waiting(tree, report, None)
        turns = iter(waiting)
        while True:
            asked = time.time()
            turn = next(turns)
            self.turns.append((turn.command.name, asked, time.time(), turn.already_done))
            prepared = preparer.prepare(turn.command)
            if turn.command.is_daemon:
                client.loop.wait(lambda: client.session.flush() and not client.ephemerals.discarding)
                return client, registration
            if bootstrap.run(prepared, turn):
                waiting.passed(turn.command)

    def _be_registrar(self, client: Client, registration: Registration) -> None:
        left = client.session
        left.abandon()
        session = Counted(left.servers, TIMEOUT, session_id=left.id, password=left.password, zxid=left.zxid)
        session.traffic = self.traffic
        presence = Presence(session, registration)
        loop = Loop()
        loop.add(session)
        loop.add(presence.ephemerals)
        started = now()
        loop.call_at(started + self._work, lambda: None)

        def shown() -> bool:
            presence.show(now() >= started + self._work)
            return all(presence.ephemerals.all[path].owner == OURS for path, _ in registration.ready)

        loop.wait(shown)
        self._ready.release()
        while True:
            loop.wait(lambda: presence.show(ready=True))

    def _facts(self) -> dict[str, object]:
        """Of the size that they are on a host with one interface."""
        settings = self._settings
        return {
            "ansible_hostname": settings.host,
            "api_interface": "eth0",
            "private_interface": "eth0",
            "host": settings.host,
            "service": settings.service_name,
            "address": settings.address,
            "private_address": settings.address,
            "ports": [5000],
            "ansible_eth0": {"ipv4": {"address": settings.address}, "ipv6": []},
        }

    def report(self) -> dict[str, Any]:
        traffic = self.traffic
        return {
            "number": self.number,
            "requests": sum(traffic.requests.values()),
            "sent": traffic.sent,
            "received": traffic.received,
            "turns": self.turns,
        }


def kinds(containers: list[Container], deployment: str) -> list[tuple[str, int]]:
    """How many requests of each kind, on paths without what differs from container to container."""
    found: Counter[str] = Counter()
    for container in containers:
        for (kind, path), count in container.traffic.requests.items():
            place = path and (path[len(deployment) :] or "/")
            for name, word in NAMES.items():
                place = name.sub(word, place)
            found[f"{kind} {place}".strip()] += count
    return found.most_common()


def main() -> None:
    """All containers of this share; a defect of one ends them all, and so does waiting for ever."""
    signal.alarm(LIFETIME)
    gc.disable()  # As in an agent, and there is nothing to collect: but there are many objects to look at.
    configure("warning", json_lines=False)
    clients.Session = Counted  # type: ignore[attr-defined]
    deployment, hosts, services, each, work, shares, directory, share = sys.argv[1:]
    prefix, _, deployment_id = deployment.rpartition("/")
    waits, ready = threading.Semaphore(0), threading.Semaphore(0)
    containers = []
    for place in range(int(share[5:]), int(services) * int(each), int(shares)):
        number, host = divmod(place, int(each))
        environ = {
            "KOLLA_ZK_HOSTS": hosts,
            "KOLLA_ZK_SESSION_TIMEOUT": str(TIMEOUT),
            "KOLLA_SYSTEM_PREFIX": prefix,
            "KOLLA_APP_ID": f"/{deployment_id}/{service(number)}",
            "KOLLA_HOSTNAME": f"node{host:03}",
            "KOLLA_STATE_DIR": f"{directory}/{place}",
            "KOLLA_ADDRESS": f"10.{number}.{host >> 8}.{host & 255}",
        }
        containers.append(Container(number, parse(environ), float(work), waits, ready))
    OnePoll().start([container.run for container in containers])
    for semaphore, word in ((waits, "standing"), (ready, "ready")):
        for _ in containers:
            semaphore.acquire()
        print(word, flush=True)
    sys.stdin.readline()
    report = {"containers": [each.report() for each in containers], "kinds": kinds(containers, deployment)}
    print(json.dumps(report), flush=True)
    threading.Event().wait()  # to be killed


main()
