"""Sessions that wait for a one-time command as agents do, many of them in one process.

    python -m drills.benchmarks.sessions HOSTS PREFIX APP_ID COUNT HOST_PREFIX

Each is what an agent is up to its wait: a loop with a session, watches, a place in the queue, here
in a thread. What is not there: a process of its own, with guard, signals, and what a container does
next.
Says `standing` once all wait, one of them anywhere having claimed the command, which is concluded
at a line on the standard input; then in JSON when each was told to go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from kazoo.security import OPEN_ACL_UNSAFE

from kolla_mesos_start.health import StateFile
from kolla_mesos_start.log import configure
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.render.prepare import Preparer
from kolla_mesos_start.report import Report
from kolla_mesos_start.settings import Settings, parse
from kolla_mesos_start.tree.attempts import Attempts, Outcome
from kolla_mesos_start.tree.published import Published
from kolla_mesos_start.tree.states import DONE
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.wait.waiting import Waiting
from kolla_mesos_start.zookeeper.client import Client
from kolla_mesos_start.zookeeper.session import Servers

if TYPE_CHECKING:
    from kolla_mesos_start.health import Stage

LIFETIME = 120  # seconds, ten times of what is needed
HELD = 0.1  # seconds between two looks of the holder for the word to go on; its session lives meanwhile

go = threading.Event()


class Standing(StateFile):
    """Learns from what a probe would be told that the agent waits for another one's run."""

    def __init__(self) -> None:
        super().__init__("", -1)
        self.reached = threading.Event()

    def write(self, stage: Stage, text: str, started: float | None = None) -> None:
        if "is running it" in text:
            self.reached.set()


class Session(threading.Thread):
    """One agent up to its first turn; `went_on` is when it was told that the command is done."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self.standing = Standing()
        self.went_on: float | None = None
        self._settings = settings

    def run(self) -> None:
        settings = self._settings
        hosts = [host.rpartition(":") for host in settings.hosts.split(",")]
        servers = Servers([(host, int(port)) for host, _, port in hosts], settings.chroot)
        client = Client(servers, settings.session_timeout, OPEN_ACL_UNSAFE, Loop())
        client.connect(LIFETIME)
        znodes = Znodes(settings.prefix, settings.deployment_id, settings.service_name, settings.host)
        preparer = Preparer(settings, Published(client, znodes), dict)
        report = Report(self.standing)
        definition = preparer.published.await_definition(report, None)
        graph, stamps = preparer.read_graph(definition)
        tree = StatusTree(client, znodes, graph, definition.zxid, stamps)
        tree.ensure()
        turn = next(iter(Waiting(tree, report, None)))
        if turn.contender is None:
            self.went_on = time.time()
            return
        attempts = Attempts(tree)
        claim = attempts.claim(turn.command, turn.contender)
        self.standing.reached.set()
        while not go.is_set():
            client.loop.wait(go.is_set, now() + HELD)
        attempts.conclude(turn.command, claim, turn.contender, Outcome(DONE, 0, "done"))


def fail(defect: threading.ExceptHookArgs) -> None:
    sys.excepthook(defect.exc_type, defect.exc_value or defect.exc_type(), defect.exc_traceback)
    os._exit(1)


def main() -> None:
    """All sessions; a defect of one ends them all, and so does waiting for ever."""
    threading.excepthook = fail
    signal.alarm(LIFETIME)
    configure("warning", json_lines=False)
    hosts, prefix, app_id, count, host = sys.argv[1:]
    environ = {"KOLLA_ZK_HOSTS": hosts, "KOLLA_SYSTEM_PREFIX": prefix, "KOLLA_APP_ID": app_id}
    sessions = [Session(parse({**environ, "KOLLA_HOSTNAME": f"{host}-{n}"})) for n in range(int(count))]
    for session in sessions:
        session.start()
    for session in sessions:
        session.standing.reached.wait()
    print("standing", flush=True)
    sys.stdin.readline()
    go.set()
    for session in sessions:
        session.join()
    print(json.dumps([session.went_on for session in sessions if session.went_on]), flush=True)
    threading.Event().wait()  # to be killed


main()
