"""Kills the controllers of a whole OpenStack by hand: `python -m drills.openstack.blackout --rounds 5`.

There are three controllers, on addresses of the loopback interface, and two compute hosts. Clients
create projects and security groups all the time, and remember each one that was acknowledged. An odd
round is a blackout: all containers of all controllers are killed in a random order, and started again in
another one. In an even round one controller is killed, and comes back with empty disks. After each round
a server must boot, every row must be there, all members of the database must have the same tables, and
no one-time command may have run twice.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from drills.openstack.deployment import OpenStack
from drills.openstack.test_faults import boots
from tests import CHECKOUT
from tests.conftest import connected
from tests.examples import openstack
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

CONTROLLERS, COMPUTES = ["ctl-1", "ctl-2", "ctl-3"], ["cmp-1", "cmp-2"]
RECOVERY = 900.0  # seconds
REQUEST_LIMIT = 15.0  # seconds
# Seconds under load before a kill, and after the kill of one controller,
# whose sessions end meanwhile.
BEFORE, AFTER = 10.0, 90.0
LATEST_ERROR = 10.0  # seconds after the kill of one controller
KEYSTONE, GROUPS = "keystone", "neutron"
# The database is asked, not the API: Keystone lists no more than 1000 projects.
TABLES = {KEYSTONE: "keystone.project", GROUPS: "neutron.securitygroups"}
DATA = ("mariadb/var/lib/mysql", "rabbitmq/var/lib/rabbitmq")
LIFT_QUOTAS = """\
cloud.set_network_quotas("admin", security_group=-1, security_group_rule=-1)
cloud.set_compute_quotas("admin", instances=-1, cores=-1, ram=-1)
answer = None
"""
DATABASES = ("keystone", "glance", "placement", "neutron", "nova", "nova_api", "nova_cell0")
NUMBERS = itertools.count(1)  # of all rounds: Keystone refuses a name that exists


class Violation(Exception):
    """A promise that was broken."""


class Answer(NamedTuple):
    """A request: when it began and ended (seconds, by time.monotonic), and its status or its error."""

    began: float
    ended: float
    kind: str
    status: str
    is_good: bool


class Load:
    """Clients that create projects and security groups, one request after the other each."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.answers: list[Answer] = []
        self.acknowledged: dict[str, set[str]] = {KEYSTONE: set(), GROUPS: set()}
        self._ended = threading.Event()
        self._token = ""
        self._threads = [threading.Thread(target=self._create, args=(kind,)) for kind in self.acknowledged]

    def __enter__(self) -> Load:
        eventually(self._log_in, "a token")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _create(self, kind: str) -> None:
        while not self._ended.wait(0.05):
            name = f"load-{next(NUMBERS)}"
            path, body = self._resource(kind, name)
            began = time.monotonic()
            try:
                status, _ = self._post(kind, path, body)
                text = str(status)
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, type(error).__name__
            if status == 201:
                self.acknowledged[kind].add(name)
            self.answers.append(Answer(began, time.monotonic(), kind, text, status == 201))

    def _resource(self, kind: str, name: str) -> tuple[str, Mapping[str, Any]]:
        if kind == KEYSTONE:
            return "/v3/projects", {"project": {"name": name, "domain_id": "default"}}
        return "/v2.0/security-groups", {"security_group": {"name": name}}

    def _post(self, kind: str, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """The status of the answer, and the token in it."""
        port = int(self._values[f"{kind}_port"])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_LIMIT)
        with contextlib.closing(connection):
            headers = {"X-Auth-Token": self._token, "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("X-Subject-Token") or ""

    def _log_in(self) -> bool:
        user = {
            "name": "admin",
            "domain": {"id": "default"},
            "password": self._values["keystone_admin_password"],
        }
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
        body = {"auth": {"identity": identity, "scope": scope}}
        status, self._token = self._post(KEYSTONE, "/v3/auth/tokens", body)
        return status == 201


class Drill:
    """The deployment, its load, and what must hold after each round."""

    def __init__(self, cloud: OpenStack, seed: int) -> None:
        self.cloud = cloud
        self.dice = random.Random(seed)
        self.acknowledged: dict[str, set[str]] = {KEYSTONE: set(), GROUPS: set()}
        self._round = 0

    def first_start(self) -> str:
        began = time.monotonic()
        self.cloud.start(self.cloud.seed)
        restarts = self.cloud.await_up_as_a_launcher(RECOVERY)
        self._once = self.cloud.successes()
        boots(self.cloud, "first")
        self.cloud.ask(LIFT_QUOTAS)
        return f"first start: {time.monotonic() - began:.1f} s, restarts {dict(restarts)}"

    def round(self) -> str:
        self._round += 1
        done = self.lose_one() if self._round % 2 == 0 else self.blackout()
        self.check()
        return f"{self._round:3} {done}"

    def blackout(self) -> str:
        """Kill all containers of all controllers, and start them again in another order."""
        victims = self._containers(CONTROLLERS)
        with self._load() as load:
            time.sleep(BEFORE)
            for victim in self.dice.sample(victims, len(victims)):
                self.cloud.kill(victim)
            rows = sum(map(len, load.acknowledged.values()))
        for victim in self.dice.sample(victims, len(victims)):
            self.cloud.start_one(victim)
            time.sleep(self.dice.uniform(0, 0.3))
        began = time.monotonic()
        restarts = self.cloud.await_up_as_a_launcher(RECOVERY)
        up = time.monotonic() - began
        boots(self.cloud, f"round-{self._round}")
        booted = time.monotonic() - began
        return (
            f"blackout: all ready {up:.1f} s, a server {booted:.1f} s after the last start; "
            f"{rows} rows; restarts {dict(restarts)}"
        )

    def lose_one(self) -> str:
        """Kill one controller under load; it comes back later, with empty disks."""
        host = self.dice.choice(CONTROLLERS)
        victims = self._containers([host])
        with self._load() as load:
            time.sleep(BEFORE)
            killed = time.monotonic()
            for victim in victims:
                self.cloud.kill(victim)
            dead = time.monotonic()
            time.sleep(AFTER)
            answers = list(load.answers)
            for name in DATA:
                shutil.rmtree(self.cloud.directory / host / name)
            for victim in victims:
                shutil.rmtree(victim.root / "state", ignore_errors=True)
                self.cloud.start_one(victim)
            began = time.monotonic()
            restarts = self.cloud.await_up_as_a_launcher(RECOVERY)
            up = time.monotonic() - began
            returning = [each for each in load.answers[len(answers) :] if not each.is_good]
        bad = [each for each in answers if not each.is_good and each.ended > killed]
        latest = max((each.began - dead for each in bad), default=0.0)
        kinds = _kinds(bad, dead)
        if latest > LATEST_ERROR:
            raise Violation(
                f"{host}: a request that began {latest:.1f} s after the kill failed: {kinds[-20:]}"
            )
        last = max((each.ended - dead for each in bad), default=0.0)
        slowest = max(each.ended - each.began for each in answers)
        boots(self.cloud, f"round-{self._round}")
        return (
            f"lost {host} (kill took {dead - killed:.1f} s): {len(bad)} of {len(answers)} requests failed, "
            f"the last began {latest:.1f} s and ended {last:.1f} s after it: {kinds}; "
            f"the slowest took {slowest:.1f} s; back empty after {up:.1f} s, "
            f"{len(returning)} failed: {_kinds(returning, began)}; restarts {dict(restarts)}"
        )

    def check(self) -> None:
        """All members agree, every acknowledged row is there, and nothing ran twice."""
        eventually(lambda: len(set(map(self._tables, CONTROLLERS))) == 1, "the members have the same tables")
        for kind, names in self.acknowledged.items():
            found = self._sql(CONTROLLERS[0], f"SELECT name FROM {TABLES[kind]}").split()
            missing = sorted(names - set(found))
            if missing:
                raise Violation(f"{kind}: {len(missing)} of {len(names)} are missing: {missing[:5]}")
        twice = self.cloud.successes() - self._once
        if any(count > 0 for name, count in twice.items()):
            raise Violation(f"ran again: {dict(twice)}")

    @contextlib.contextmanager
    def _load(self) -> Iterator[Load]:
        with Load(self.cloud.values) as load:
            yield load
        for kind, created in load.acknowledged.items():
            self.acknowledged[kind] |= created

    def _containers(self, hosts: list[str]) -> list[Any]:
        return [each for each in self.cloud.containers if each.host in hosts]

    def _tables(self, host: str) -> str:
        """The checksums of all tables of a member."""
        schemas = ",".join(f"'{name}'" for name in DATABASES)
        names = self._sql(
            host,
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables "
            f"WHERE table_schema IN ({schemas}) AND table_type = 'BASE TABLE' ORDER BY 1",
        )
        return self._sql(host, f"CHECKSUM TABLE {', '.join(names.split())}")

    def _sql(self, host: str, query: str) -> str:
        """The lines that a member answers to a query."""
        config = self.cloud.directory / host / "mariadb/etc/mysql/galera.cnf"
        client = ("mariadb", f"--defaults-file={config}", "--user=root", "--batch", "--skip-column-names")
        return subprocess.check_output((*client, f"--execute={query}"), text=True)


def _kinds(answers: Iterable[Answer], since: float) -> list[str]:
    """Each answer, with the seconds from an instant to its begin and its end."""
    return [
        f"{each.kind} {each.status} {each.began - since:.1f}-{each.ended - since:.1f}" for each in answers
    ]


def three_controllers(directory: Path, programs: Path, zk: Any, hosts: str) -> OpenStack:
    """The deployment with a container of each service on each of its hosts."""
    launch = yaml.safe_load((openstack.WHOLE / "launch.yml").read_text())
    roles = {"control": CONTROLLERS, "compute": COMPUTES}
    placed = {}
    for service, given in launch["services"].items():
        role = roles[given.get("placement", "control")]
        placed[service] = role if given.get("replicas") == "each" else role[:1]
    cloud = OpenStack(directory, programs, zk, hosts, hosts=placed, controllers=len(CONTROLLERS))
    written = {**launch, "hosts": roles}
    (cloud.source / "launch.yml").write_text(yaml.safe_dump(written))
    return cloud


def main() -> int:
    """Run what the command line says; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m drills.openstack.blackout", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: any")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    openstack.install_packages(print, openstack.CLUSTER_PACKAGES)
    programs = openstack.environment(CHECKOUT / ".cache", openstack.WHOLE, print)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    with contextlib.ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(directory / "zookeeper"))
        zk = stack.enter_context(contextlib.contextmanager(connected)(ensemble))
        cloud = three_controllers(directory / "c", programs, zk, ensemble.hosts)
        stack.callback(cloud.end)
        zk.ensure_path(cloud.path)
        cloud.publish()
        drill = Drill(cloud, seed)
        try:
            print(drill.first_start(), flush=True)
            for _ in range(options.rounds):
                print(drill.round(), flush=True)
        except (Violation, AssertionError) as error:
            kind = "VIOLATION" if isinstance(error, Violation) else "NOT RECOVERED"
            print(f"{kind}, seed {seed}: {str(error)[:6000]}\nkept: {directory}")
            return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
