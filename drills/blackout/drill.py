"""Blackouts of a whole cluster: an event, the recovery without help, and a check of the tables on all hosts.

This module has the events and the checker. The seed decides which event comes when; how the processes react
can differ between two runs.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Callable, NamedTuple

from drills.blackout.cluster import RECOVERY, SESSION_TIMEOUT, Cluster
from drills.blackout.members import HOSTS, SERVICE, sql
from drills.blackout.writers import CREATE, TABLE, Writer
from kolla_mesos_start.ctl.live.election import CANDIDATE
from kolla_mesos_start.election.records import FORMED
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

LOOK_TIMEOUT = 60.0  # seconds for something that happens during a recovery
EXPLAINED = 5.0  # seconds until `explain` names a missing host


class Violation(Exception):
    """A promise that was not kept."""


class Round(NamedTuple):
    """One blackout: what was done, and how it ended.

    `formed` and `seconds`: from the last power-on to a working cluster, and to three synced members.
    """

    event: str
    formed: float
    seconds: float
    rows: int


class Drill:
    """A cluster with two writers, and its blackouts."""

    def __init__(self, cluster: Cluster, ensemble: Ensemble, seed: int) -> None:
        self.cluster, self.ensemble, self.seed = cluster, ensemble, seed
        self.dice = random.Random(seed)
        self.acknowledged: dict[int, set[int]] = defaultdict(set)
        self.first_start = 0.0
        self._writers: list[Writer] = []
        self._last_on = 0.0
        self._count = 0

    def form(self) -> None:
        """The first start of all, at the same moment."""
        began = time.monotonic()
        self.cluster.power_on(*HOSTS)
        self.cluster.await_synced()
        self.first_start = time.monotonic() - began
        self.cluster.await_ready()
        sql(self.cluster.socket(HOSTS[0]), CREATE)

    # -- one round ------------------------------------------------------------------------------------

    def round(self, event: str) -> Round:
        """One blackout and its recovery."""
        self._start_writers()
        time.sleep(self.dice.uniform(0.5, 2.0))
        self._last_on, epoch = 0.0, self.cluster.epoch
        try:
            EVENTS[event](self)
            if not self._last_on:
                self._all_on()
            eventually(lambda: self._works(epoch), "a working cluster", seconds=RECOVERY, every=0.1)
            formed = time.monotonic() - self._last_on
            self.cluster.await_synced()
            seconds = time.monotonic() - self._last_on
            self.cluster.await_ready()
        finally:
            self._stop_writers()
        return Round(event, formed, seconds, self.check())

    def _works(self, before: int) -> bool:
        """Whether a cluster was formed after that epoch, or never went."""
        decision = self.cluster.record("decision")
        is_new = decision.get("epoch", 0) > before and decision["state"] == FORMED
        return is_new or all(map(self.cluster.is_synced, HOSTS))

    def _start_writers(self) -> None:
        sockets = {host: self.cluster.socket(host) for host in HOSTS}
        for _ in range(2):
            self._count += 1
            writer = Writer(self._count, sockets, self.seed)
            self._writers.append(writer)
            writer.start()

    def _stop_writers(self) -> None:
        for writer in self._writers:
            writer.stop()
            self.acknowledged[writer.number] |= writer.acknowledged
        self._writers.clear()

    def _all_on(self) -> None:
        hosts = self._shuffled()
        for host in hosts:
            self.cluster.power_on(host)
            self._last_on = time.monotonic()
            time.sleep(self.dice.choice((0.0, 0.0, self.dice.uniform(0, 2))))

    def _shuffled(self) -> list[str]:
        return self.dice.sample(HOSTS, len(HOSTS))

    def _kill_all(self, longest: float = 0.0) -> None:
        if not longest:
            self.cluster.kill(*self._shuffled())
            return
        for host in self._shuffled():
            self.cluster.kill(host)
            time.sleep(self.dice.uniform(0, longest))

    # -- the checker ------------------------------------------------------------------------------------

    def check(self) -> int:
        """Compare the tables of all hosts, and look for each acknowledged row; how many rows there are."""
        tables = {host: self._rows(host) for host in HOSTS}
        first = tables[HOSTS[0]]
        for host, rows in tables.items():
            if rows != first:
                differing = sorted(rows ^ first)
                raise Violation(
                    f"the tables of {host} and {HOSTS[0]} differ in {len(differing)} rows: {differing[:5]}"
                )
        acknowledged = {
            (writer, number) for writer, numbers in self.acknowledged.items() for number in numbers
        }
        lost = sorted(acknowledged - first)
        if lost:
            raise Violation(f"{len(lost)} acknowledged rows are lost: {lost[:5]} ... {lost[-5:]}")
        groups = {self.cluster.status(host).get("wsrep_cluster_state_uuid") for host in HOSTS}
        if len(groups) != 1:
            raise Violation(f"different clusters: {groups}")
        columns = {host: str(sql(self.cluster.socket(host), f"SHOW CREATE TABLE {TABLE}")) for host in HOSTS}
        if len(set(columns.values())) != 1:
            raise Violation(f"the definitions of the table differ: {columns}")
        return len(first)

    def _rows(self, host: str) -> set[tuple[int, int]]:
        # Reads what all members had committed before.
        query = f"SET SESSION wsrep_sync_wait = 1; SELECT writer, number, v = REPEAT('x', 150) FROM {TABLE}"
        found = sql(self.cluster.socket(host), query, seconds=60)
        broken = [row for row in found if row[2] != "1"]
        if broken:
            raise Violation(f"damaged rows on {host}: {broken[:5]}")
        return {(int(writer), int(number)) for writer, number, _ in found}

    # -- events -------------------------------------------------------------------------------------------

    def at_once(self) -> None:
        self._kill_all()

    def in_some_order(self) -> None:
        self._kill_all(3.0)

    def one_before(self) -> None:
        """It has old data: the others served for some time without it."""
        host = self.dice.choice(HOSTS)
        self.cluster.kill(host)
        time.sleep(self.dice.uniform(6, 10))
        self._kill_all(1.0)

    def graceful(self) -> None:
        """All are stopped, as before a maintenance."""
        for host in self._shuffled():
            self.cluster.stop(host)
            time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 2))))

    def graceful_then_killed(self) -> None:
        one, *others = self._shuffled()
        self.cluster.stop(one)
        time.sleep(self.dice.uniform(0, 4))
        for host in others:
            self.cluster.kill(host)

    def two_killed(self) -> None:
        """The third one is left without a majority."""
        one, other, _ = self._shuffled()
        self.cluster.kill(one)
        self.cluster.kill(other)
        self.cluster.power_on(one, other)
        self._last_on = time.monotonic()

    def one_missing(self) -> None:
        """Nobody bootstraps the cluster without it, however long it takes."""
        self._kill_all(1.0)
        missing, *others = self._shuffled()
        epoch = self.cluster.epoch
        self.cluster.power_on(*others)
        until = time.monotonic() + self.dice.uniform(8, 15)
        self._await_candidates(2)
        self._check_explained(missing)
        while time.monotonic() < until:
            if self.cluster.primaries:
                raise Violation(f"{self.cluster.primaries} formed a cluster without {missing}")
            time.sleep(0.3)
        if self.cluster.epoch != epoch:
            raise Violation(f"there was a decision without {missing}")
        self._all_on()

    def _await_candidates(self, count: int) -> None:
        path = self.cluster.election("candidates")
        eventually(
            lambda: len(self.cluster.zk.get_children(path)) == count,
            f"{count} candidates",
            seconds=LOOK_TIMEOUT,
        )

    def _check_explained(self, missing: str) -> None:
        """`explain` names the missing host at the latest 5 s after the others are candidates."""
        until = time.monotonic() + EXPLAINED
        while True:
            asked = time.monotonic()
            said = self.cluster.ctl("explain").stdout
            if f"missing: {missing}" in said:
                return
            if asked > until:
                raise Violation(f"explain does not name {missing}: {said}")

    def empty_disk(self) -> None:
        """A host is replaced, and there is a blackout as soon as it has joined."""
        host = self.dice.choice(HOSTS)
        self.cluster.kill(host)
        self.cluster.wipe(host)
        self.cluster.power_on(host)
        self.cluster.await_synced()
        self.cluster.await_ready()
        self._kill_all(1.0)

    def interrupted_transfer(self) -> None:
        """A blackout while a replaced host gets the data."""
        host = self.dice.choice(HOSTS)
        self.cluster.kill(host)
        self.cluster.wipe(host)
        self.cluster.power_on(host)
        mark = self.cluster.volume(host) / "data/sst_in_progress"
        eventually(mark.exists, f"a transfer to {host}; {self.cluster.container_log(host)}", every=0.01)
        time.sleep(self.dice.uniform(0, 3))
        self._kill_all(self.dice.choice((0.0, 1.0)))

    def winner_killed(self) -> None:
        """At a random moment: right after the decision, before it is ready, or while the others join."""
        self._kill_all(1.0)
        epoch = self.cluster.epoch
        self._all_on()
        for _ in range(self.dice.choice((1, 1, 2))):
            winner = self.cluster.winner_after(epoch)
            epoch = self.cluster.epoch
            time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 0.6), self.dice.uniform(0, 6))))
            self.cluster.restart_processes(winner)
            self._last_on = time.monotonic()
            if self.cluster.record("decision").get("state") == "formed":
                break

    def winner_frozen(self) -> None:
        """For longer than its session lasts."""
        self._kill_all()
        epoch = self.cluster.epoch
        self._all_on()
        winner = self.cluster.winner_after(epoch)
        time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 1))))
        self.cluster.signal(winner, signal.SIGSTOP)
        time.sleep(self.dice.uniform(3, 9))
        self.cluster.signal(winner, signal.SIGCONT)
        self._last_on = time.monotonic()

    def joiner_frozen(self) -> None:
        """For longer than its session lasts, while it joins."""
        self._kill_all()
        epoch = self.cluster.epoch
        self._all_on()
        joiner = self.dice.choice([host for host in HOSTS if host != self.cluster.winner_after(epoch)])
        eventually(
            lambda: self.cluster.record(f"running/{joiner}"), f"{joiner} runs", seconds=RECOVERY, every=0.01
        )
        time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 1), self.dice.uniform(0, 5))))
        self.cluster.signal(joiner, signal.SIGSTOP)
        time.sleep(self.dice.uniform(SESSION_TIMEOUT + 1, SESSION_TIMEOUT + 6))
        self.cluster.signal(joiner, signal.SIGCONT)
        self._last_on = time.monotonic()

    def zookeeper_and_winner_killed(self) -> None:
        """ZooKeeper loses its power together with the winner of the recovery."""
        self._kill_all(1.0)
        epoch = self.cluster.epoch
        self._all_on()
        winner = self.cluster.winner_after(epoch)
        time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 0.6), self.dice.uniform(0, 6))))
        for server in self.ensemble.servers:
            server.kill()
        self.cluster.kill(winner)
        time.sleep(self.dice.uniform(0, 3))
        self.ensemble.mend()
        time.sleep(self.dice.choice((0.0, self.dice.uniform(0, 3))))
        self.cluster.power_on(winner)
        self._last_on = time.monotonic()

    def zookeeper_killed(self) -> None:
        """ZooKeeper loses its power too, and comes back before or after the hosts."""
        for server in self.ensemble.servers:
            server.kill()
        self._kill_all(1.0)
        if self.dice.random() < 0.5:
            self._all_on()
        time.sleep(self.dice.uniform(0, 3))
        self.ensemble.mend()
        if not self._last_on:
            self._all_on()
        self._last_on = time.monotonic()

    def partitioned(self) -> None:
        """A host serves without ZooKeeper until its session has expired; then others are killed."""
        host, *others = self._shuffled()
        link = self.cluster.links[host]
        link.freeze()
        try:
            time.sleep(self.dice.uniform(5, 9))
            if self.dice.random() < 0.5:
                for other in others:
                    self.cluster.kill(other)
                epoch = self.cluster.epoch
                self.cluster.power_on(*others)
                time.sleep(self.dice.uniform(2, 8))
                if self.cluster.epoch != epoch:
                    raise Violation(f"there was a decision without {host}, which runs")
            else:
                self._kill_all(1.0)
        finally:
            link.thaw()

    def again_in_recovery(self) -> None:
        self._kill_all(1.0)
        self._all_on()
        time.sleep(self.dice.uniform(1, 8))
        self._last_on = 0.0
        self._kill_all(1.0)

    def schema_change(self) -> None:
        """A migration is interrupted: Galera withdraws its saved state on all hosts meanwhile."""
        host = self.dice.choice(HOSTS)
        statements = f"ALTER TABLE {TABLE} FORCE; " * 200
        with subprocess.Popen(
            ("mariadb", f"--socket={self.cluster.socket(host)}", f"--execute={statements}"),
            stderr=subprocess.DEVNULL,
        ) as client:
            time.sleep(self.dice.uniform(0.2, 1.5))
            self._kill_all()
            client.kill()

    def override(self) -> None:
        """A host will never come back with its data. The operator says so; it comes back empty."""
        lost, *others = self._shuffled()
        self.cluster.kill(lost)
        time.sleep(8)
        for host in others:
            self.cluster.kill(host)
        self.cluster.power_on(*others)
        self._await_candidates(2)
        shown = json.loads(self.cluster.ctl("elect", SERVICE, "--format", "json").stdout)
        positions = {each["host"]: each["position"] for each in shown["hosts"] if each["part"] == CANDIDATE}
        newest = max(positions, key=lambda host: int(positions[host].rpartition(":")[2]))
        words = ("elect", SERVICE, "--winner", newest, "--without", lost, "--yes")
        done = self.cluster.ctl(*words)
        if done.returncode:
            raise Violation(f"{' '.join(words)}: {done.stderr}")
        eventually(lambda: all(self.cluster.is_synced(host, 2) for host in others), "two members", every=0.2)
        self.cluster.wipe(lost)
        self.cluster.power_on(lost)
        self._last_on = time.monotonic()


EVENTS: dict[str, Callable[[Drill], None]] = {
    name: getattr(Drill, name)
    for name in (
        *("at_once", "in_some_order", "one_before", "graceful", "graceful_then_killed", "two_killed"),
        *("one_missing", "empty_disk", "interrupted_transfer", "winner_killed", "winner_frozen"),
        *("joiner_frozen", "zookeeper_and_winner_killed", "zookeeper_killed", "partitioned"),
        *("again_in_recovery", "schema_change", "override"),
    )
}


def plan(seed: int, rounds: int, only: Sequence[str] = ()) -> list[str]:
    """The events: each of them before any comes again."""
    dice = random.Random(f"plan {seed}")
    names = list(only or EVENTS)
    found: list[str] = []
    while len(found) < rounds:
        found += dice.sample(names, len(names))
    return found[:rounds]
