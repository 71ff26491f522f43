"""The records of elections under `snapshot`, `restore`, `reset` and `remove`.

They belong to the data on the disks of the hosts: only `remove` removes them, and `restore` never replaces
them by older ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.publishing import publish
from tests.support.tool import ctl
from tests.support.walking import znodes

DAEMON = {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0.1}}}}
ROLE = "status/global/db"


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient) -> Deployment:
    """A deployment with the service infra/db."""
    publish(deployment, "infra/db", DAEMON)
    return deployment


def formed(zk: KazooClient, site: Deployment, epoch: int, *members: str) -> dict[str, bytes]:
    """Record an election of infra/db that these members have won together, as agents do."""
    positions = dict.fromkeys(members, f"group:{epoch}")
    decision = {"epoch": epoch, "winner": members[0], "group": "group", "value": epoch, "state": "formed"}
    nodes = {
        ROLE: b"infra/db",
        f"{ROLE}/election": b"",
        f"{ROLE}/election/turn": b"",
        f"{ROLE}/election/decision": json.dumps({**decision, "positions": positions}).encode(),
        f"{ROLE}/election/candidates": b"",
        f"{ROLE}/election/running": b"",
        f"{ROLE}/election/members": b"",
        **{f"{ROLE}/election/members/{host}": b'{"epoch": 1, "state": "joined"}' for host in members},
    }
    for path, data in nodes.items():
        zk.ensure_path(f"{site.path}/{path}")
        zk.set(f"{site.path}/{path}", data)
    return nodes


def recorded(zk: KazooClient, site: Deployment, path: str = ROLE) -> dict[str, bytes]:
    """The znode at `path`, and everything below it."""
    found = znodes(zk, f"{site.path}/{path}")
    return {each[len(site.path) + 1 :]: data for each, (data, _) in found.items()}


def test_a_snapshot_contains_decision_and_members(zk: KazooClient, site: Deployment, tmp_path: Path) -> None:
    """Not what ends with a container or an epoch. It is restored after the loss of an ensemble."""
    kept, file = formed(zk, site, 3, "h1", "h2", "h3"), str(tmp_path / "site.tar")
    zk.create(f"{site.path}/{ROLE}/election/candidates/h1", b"{}", ephemeral=True)
    zk.create(f"{site.path}/{ROLE}/election/override", b'{"epoch": 4}')
    ctl(site, "snapshot", file)
    zk.delete(site.path, recursive=True)
    ctl(site, "restore", file)
    assert recorded(zk, site) == kept
    assert "is already as in" in ctl(site, "restore", file).stdout


def test_an_older_election_is_not_restored(zk: KazooClient, site: Deployment, tmp_path: Path) -> None:
    """Its members may lack a host that has newer data now."""
    formed(zk, site, 3, "h1", "h2", "h3")
    file = str(tmp_path / "site.tar")
    ctl(site, "snapshot", file)
    zk.delete(f"{site.path}/{ROLE}/election/members/h3")
    kept = formed(zk, site, 5, "h1", "h2", "h4")
    zk.set(f"{site.path}/infra/db", b"")  # As if it was pruned.
    said = ctl(site, "restore", file, "--yes").stderr
    assert "the record of the election of db stays as it is now\n" in said
    assert recorded(zk, site) == kept
    assert "is already as in" in ctl(site, "restore", file).stdout


@pytest.mark.parametrize("words", [[], ["--force"]])
def test_reset_keeps_elections(zk: KazooClient, site: Deployment, words: list[str]) -> None:
    """Otherwise a cluster could be bootstrapped from hosts that do not have the newest data."""
    kept = formed(zk, site, 3, "h1", "h2", "h3")
    zk.create(f"{site.path}/{ROLE}/sync", b"done")
    zk.create(f"{site.path}/status/h1")
    said = ctl(site, "reset", "--yes", *words).stdout
    assert said.endswith("kept the records of elections, which belong to the data of the hosts: db\n")
    assert recorded(zk, site, "status") == {"status": b"", "status/global": b"", **kept}


def test_reset_by_force_keeps_what_runs(zk: KazooClient, site: Deployment) -> None:
    """A daemon keeps running: nobody else may be elected beside it."""
    formed(zk, site, 3, "h1", "h2", "h3")
    running = f"{site.path}/{ROLE}/election/running/h1"
    zk.create(running, b"{}", ephemeral=True)
    ctl(site, "reset", "--yes", "--force")
    assert zk.exists(running)


def test_remove_says_that_the_election_goes_too(zk: KazooClient, site: Deployment) -> None:
    formed(zk, site, 3, "h1", "h2", "h3")
    said = ctl(site, "remove", "infra/db", "--yes").stderr
    assert said == (
        "the record of its election is removed too (members: h1, h2, h3): the next election trusts the data"
        " of every host\n"
    )
    assert recorded(zk, site) == {}


def test_remove_is_refused_while_a_host_takes_part(zk: KazooClient, site: Deployment) -> None:
    """Even if nothing else shows its container."""
    kept = formed(zk, site, 3, "h1", "h2", "h3")
    zk.create(f"{site.path}/{ROLE}/election/candidates/h1", b"{}", ephemeral=True)
    said = ctl(site, "remove", "infra/db", "--yes", status=1).stderr
    assert f"a container holds {site.path}/{ROLE}/election/candidates: stop them first" in said
    assert recorded(zk, site).keys() == {*kept, f"{ROLE}/election/candidates/h1"}


def test_reset_of_a_host_leaves_it_a_member(zk: KazooClient, site: Deployment) -> None:
    kept = formed(zk, site, 3, "h1", "h2", "h3")
    zk.ensure_path(f"{site.path}/status/h1/db/daemon")
    ctl(site, "reset", "--host", "h1", "--yes")
    assert recorded(zk, site) == kept
