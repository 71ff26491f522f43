"""Imports MariaDB on three hosts from kolla-ansible, and kills all its containers while rows are written.

It takes minutes of processor time for the images and the recording, and runs by hand only, as root::

    .venv/bin/python -m drills.containers.start_galera --rounds 4

The quadlets are what `kolla_mesos_ctl manifests` makes. After each start there must be one cluster of three,
bootstrapped by one decision, and each acknowledged row on each host. In each second round one host loses its
data, too. Differences from real hosts: each has a network of its own on this machine, this program starts a
container again that has ended, and buffers are small.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from kazoo.client import KazooClient

from drills.containers.imported import ImportedImages
from drills.containers.three_hosts import HOSTS, ThreeHosts, imported
from tests import CHECKOUT
from tests.conftest import connected
from tests.support.zookeeper import Server

TAGS = "common,mariadb"
BOOTSTRAPS = "Running command: 'mariadbd --wsrep-new-cluster"
SYNCED = {"wsrep_cluster_status": "Primary", "wsrep_local_state": "4", "wsrep_cluster_size": "3"}
TABLE = "drill.written"


def main() -> int:
    """Print how long each start took; an error ends it with the logs."""
    parser = argparse.ArgumentParser(prog="python -m drills.containers.start_galera", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="how often all are killed (default 4)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="default: any")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    images = ImportedImages(CHECKOUT / ".cache", print)
    images.make()
    with tempfile.TemporaryDirectory(prefix="import-") as name, Server(Path(name) / "zookeeper") as server:
        place = Path(name)
        config, site = imported(place, TAGS, mariadb_innodb_log_file_size_mb=48)
        password = yaml.safe_load((config / "passwords.yml").read_text())["database_password"]
        client = contextmanager(connected)(server)
        with client as zk, ThreeHosts(place, images, server, "mariadb") as hosts:
            hosts.publish(config, site)
            Drill(hosts, zk, password, random.Random(options.seed)).run(options.rounds)
    return 0


class Refused(Exception):
    """The server does not answer, or answers with an error."""


class Drill:
    """What happens to the cluster, and what must be true afterwards."""

    def __init__(self, hosts: ThreeHosts, zk: KazooClient, password: str, dice: random.Random) -> None:
        self.hosts, self.zk, self.password, self.dice = hosts, zk, password, dice
        self.numbers: Iterator[int] = itertools.count()
        self.acknowledged: list[int] = []

    def run(self, rounds: int) -> None:
        """The first start, and then so many blackouts."""
        self.hosts.start()
        seconds = self.await_synced()
        print(f"first start: {seconds:.1f} s", flush=True)
        self.check_elections(1)
        self.hosts.await_steps()
        for host in HOSTS:
            users = {row[0] for row in self.sql(host, "SELECT User FROM mysql.global_priv WHERE Host = '%'")}
            assert {"root", "root_shard_0", "monitor"} <= users, users
        self.sql("ctl-1", f"CREATE DATABASE drill; CREATE TABLE {TABLE} (id BIGINT PRIMARY KEY)")
        for number in range(1, rounds + 1):
            seconds = self.blackout()
            what = self.lose_disk() if number % 2 == 0 else ""
            self.check_elections(number + 1)
            self.check_rows()
            rows, winner = len(self.acknowledged), self.decision["winner"]
            print(f"{number}: synced after {seconds:.1f} s, {winner} won, {rows} rows{what}", flush=True)

    def blackout(self) -> float:
        """Kill all while rows are written, and start them again; the seconds until all are synced."""
        over = threading.Event()
        writers = [threading.Thread(target=self.write, args=(host, over)) for host in HOSTS]
        for writer in writers:
            writer.start()
        time.sleep(self.dice.uniform(2, 6))
        self.hosts.kill_all()
        over.set()
        for writer in writers:
            writer.join()
        self.hosts.power_on()
        return self.await_synced()

    def lose_disk(self) -> str:
        """One host loses its data while the others run."""
        host = self.dice.choice(sorted(HOSTS))
        self.hosts.restart_empty(host, "mariadb")
        return f"; {host} synced with an empty disk after {self.await_synced():.1f} s"

    def write(self, host: str, over: threading.Event) -> None:
        """Insert rows until the end; those that are acknowledged are remembered."""
        while not over.is_set():
            row = next(self.numbers)
            with suppress(Refused):
                self.sql(host, f"INSERT INTO {TABLE} VALUES ({row})", 5)
                self.acknowledged.append(row)

    # -- what must be true --------------------------------------------------------------------------

    def check_elections(self, count: int) -> None:
        """So many decisions, and as many bootstraps."""
        containers = self.hosts.containers.values()
        bootstraps = sum(container.said.count(BOOTSTRAPS) for container in containers)
        assert (self.decision["epoch"], bootstraps) == (count, count), (self.decision, bootstraps)

    def check_rows(self) -> None:
        """The same rows on all hosts, with all acknowledged ones."""
        tables = [{int(row[0]) for row in self.sql(host, f"SELECT id FROM {TABLE}")} for host in HOSTS]
        assert tables[0] == tables[1] == tables[2], "the tables differ"
        lost = set(self.acknowledged) - tables[0]
        assert not lost, f"{len(lost)} acknowledged rows are lost: {sorted(lost)[:10]}"

    # -- asking -------------------------------------------------------------------------------------

    @property
    def decision(self) -> Mapping[str, Any]:
        """The last decision of the election."""
        path = "/kolla/site/status/global/mariadb/election/decision"
        found: Mapping[str, Any] = json.loads(self.zk.get(path)[0])
        return found

    def await_synced(self) -> float:
        """Wait for a cluster of three; how long it took."""
        return self.hosts.await_all(self.is_synced, "three synced members")

    def is_synced(self, host: str) -> bool:
        """Whether it is a member of a cluster of three."""
        with suppress(Refused):
            found = {row[0]: row[-1] for row in self.sql(host, "SHOW STATUS LIKE 'wsrep%'", 5)}
            return SYNCED.items() <= found.items()
        return False

    def sql(self, host: str, statement: str, seconds: float = 20) -> list[list[str]]:
        """The rows of a statement; Refused if it fails."""
        words = ("mariadb", "--no-defaults", f"--host={HOSTS[host]}", "--user=root", "--connect-timeout=5")
        given = ("--batch", "--skip-column-names", f"--execute={statement}")
        environ = {"PATH": os.environ["PATH"], "MYSQL_PWD": self.password}
        try:
            done = subprocess.run((*words, *given), capture_output=True, timeout=seconds, env=environ)
        except subprocess.TimeoutExpired as error:
            raise Refused(f"no answer within {seconds:g} s") from error
        if done.returncode:
            raise Refused(done.stderr.decode(errors="replace").strip())
        return [line.split("\t") for line in done.stdout.decode().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
