"""Blackouts of etc/examples/galera: all pods are deleted by force while clients write rows."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from drills.blackout.members import EXAMPLE, SERVICE
from drills.blackout.writers import CREATE, TABLE, Writer
from tests.examples.openstack import SYSTEM_PATH, install_packages
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import NODES
from tests.kubernetes.site import PASSWORD, Site
from tests.stack.conftest import alone
from tests.support.arrangement import say
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(2400)  # The first test waits for the images and for Kubernetes.

MEMBERS = [f"mariadb-{number}" for number in range(len(NODES))]
SYNCED = {"wsrep_cluster_status": "Primary", "wsrep_cluster_size": "3", "wsrep_local_state": "4"}
STATUS = f"SHOW STATUS WHERE Variable_name IN {tuple(SYNCED)}"
ROUNDS = {"host": 2, "own": 3}


@pytest.fixture(scope="module", params=ROUNDS)
def site(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """The example on the nodes' network, or on the pods' own one."""
    with alone():
        install_packages(partial(say, pytestconfig), {"mariadb-client": "mariadb"})
    network = request.param
    cluster.provide_volumes(len(NODES))
    # Only a privileged namespace lets a pod into the network of its node.
    security = {"host": "privileged", "own": "restricted"}[network]
    site = Site(cluster, f"galera-{network}", EXAMPLE, tmp_path_factory.mktemp("galera"), security=security)
    if network == "host":  # These nodes have the names in the example, and other addresses.
        site.variables({"galera_members": ""})
    # Without Dockerfile.snippet, only root could write in /etc/mysql.
    site.service(SERVICE, network=network, volumes={"/etc/mysql": "temporary"})
    try:
        yield site
    finally:
        site.end()


class PodWriter(Writer):
    """A client of the pods, wherever they are now."""

    def __init__(self, site: Site, number: int) -> None:
        super().__init__(number, dict.fromkeys(MEMBERS, Path()), seed=number)
        self._site = site

    def address(self, host: str) -> Sequence[str]:
        return address(self._site, host)


def address(site: Site, member: str) -> Sequence[str]:
    """How a client reaches a pod; without an address it is refused at once."""
    found = site.pods().get(member, {}).get("status", {}).get("podIP", "127.0.0.1")
    return (f"--host={found}", "--user=root", f"--password={PASSWORD}", "--connect-timeout=3")


def sql(site: Site, member: str, statement: str) -> list[list[str]]:
    words = ("mariadb", *address(site, member), "--batch", "--skip-column-names", f"--execute={statement}")
    done = subprocess.run(words, env={"PATH": SYSTEM_PATH}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def await_members(site: Site) -> None:
    """Three synced members of one cluster, each on a node of its own."""
    eventually(lambda: site.ready("mariadb") == set(NODES), "three ready pods", seconds=180, every=0.5)

    def synced() -> bool:
        return all(dict(sql(site, each, STATUS)) == SYNCED for each in MEMBERS)

    eventually(synced, "three synced members", every=0.5)


def rows(site: Site, member: str) -> set[tuple[int, int]]:
    # Reads what all members had committed before.
    query = f"SET SESSION wsrep_sync_wait = 1; SELECT writer, number FROM {TABLE}"
    return {(int(writer), int(number)) for writer, number in sql(site, member, query)}


def test_no_blackout_loses_a_row(site: Site, measured: list[str]) -> None:
    """The pods come back and form their cluster without help."""
    begun = time.monotonic()
    site.apply(*site.manifests())
    site.publish()
    await_members(site)
    times = [time.monotonic() - begun]
    sql(site, MEMBERS[0], CREATE)
    acknowledged: set[tuple[int, int]] = set()
    for number in range(ROUNDS[site.name.rpartition("-")[2]]):
        writers = [PodWriter(site, 2 * number + each) for each in (1, 2)]
        for writer in writers:
            writer.start()
        try:
            eventually(lambda: all(len(each.acknowledged) > 50 for each in writers), "rows")  # noqa: B023
            begun = time.monotonic()
            site.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
            await_members(site)
            times.append(time.monotonic() - begun)
        finally:
            for writer in writers:
                writer.stop()
        acknowledged |= {(each.number, row) for each in writers for row in each.acknowledged}
        tables = [rows(site, member) for member in MEMBERS]
        assert tables[1:] == tables[:-1]
        assert acknowledged <= tables[0]
    first, *others = (f"{each:.0f} s" for each in times)
    formed = f"three members after {first}, after blackouts {', '.join(others)}"
    measured.append(f"{site.name}: {formed}; {len(acknowledged)} rows")
