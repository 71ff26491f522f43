"""Attacks and accidents that once broke an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import PROGRAM, Containers
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

TASK = {"commands": {"only": {"command": "true"}}}
DAEMON = {"service": {"daemon": {"command": ["true"]}}}


@pytest.mark.parametrize(("words", "status"), [((), 64), (("health",), 1), (("check",), 64)])
def test_a_full_disk_under_the_log_changes_no_status(
    words: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *words],
            env={"PATH": os.environ["PATH"], "KOLLA_RUN_DIR": str(tmp_path)},
            stdout=full,
            stderr=full,
            check=False,
        )
    assert done.returncode == status


@pytest.mark.parametrize("kind", ["garbage", "path", "fifo", "link", "hard link"])
def test_a_broken_registration_file_is_replaced(
    deployment: Deployment, containers: Containers, tmp_path: Path, kind: str
) -> None:
    """It would end or block the container at every restart, or make it write elsewhere."""
    publish(deployment, "web", DAEMON)
    registration = tmp_path / "state" / "registration"
    registration.parent.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    if kind == "fifo":
        os.mkfifo(registration)
    elif kind == "link":
        registration.symlink_to(precious)
    elif kind == "hard link":
        os.link(precious, registration)
    else:
        registration.write_bytes(b"\377x" if kind == "garbage" else b"a/b c\n../../x")
    agent = containers.start("web", KOLLA_STATE_DIR=str(registration.parent))
    assert agent.ends() == 0
    assert registration.read_text().endswith("__party__\n")
    assert (precious.read_text(), precious.stat().st_mode & 0o777) == ("precious", 0o600)


def test_a_state_directory_of_another_user_is_not_used(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The container runs under a new id, and logs why."""
    publish(deployment, "web", DAEMON)
    tmp_path.chmod(0o1777)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4711, 4711)
    agent = containers.start("web", KOLLA_STATE_DIR=str(state))
    assert agent.ends() == 0
    assert os.listdir(state) == []
    assert f"{state}/registration can't be written (it belongs to uid 4711, not to uid 0" in agent.said


def test_a_detail_that_is_too_deep_is_ignored(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    publish(deployment, "web", {"commands": {"only": {"command": "true", "run_once": True}}})
    zk.create(f"{deployment.path}/status/global/web/only/detail", b"[" * 100_000, makepath=True)
    assert containers.start("web").ends() == 0


STRANGERS = {
    "newline": {"private_address": "10.6.6.6\nforged = 1", "ansible_hostname": "x", "api_interface": "x"},
    "type": {"private_address": {"forged": 1}, "ansible_hostname": "x", "api_interface": "x"},
    "interface": {"ansible_hostname": "x", "api_interface": "x", "ansible_x": "forged"},
    "nobody": {},
    "list": ["forged"],
}


def test_bad_facts_of_a_member_reach_no_file(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Such a member is left out, with one warning that names it."""
    template = """\
{{ groups }} {{ groups.db }} {{ hostvars.keys() | list }}
{{ list_ips_by_service('infra/db') }} {{ list_ips_by_service('infra/db') }}
{% for one in ready_instances('infra/db') %}{{ one.host }} {{ one.address }}:{{ one.ports[0] }}{% endfor %}"""
    dest = tmp_path / "conf"
    command = {"command": "true", "dependencies": ["db/daemon"], "files": {"conf": {"dest": str(dest)}}}
    publish(deployment, "web", {"commands": {"go": command}}, files={"conf": template})
    publish(deployment, "infra/db", {"service": {"daemon": {"command": "sleep 100", "ready": {"alive": 0}}}})
    party = f"{deployment.path}/infra/db/.party"
    ready = f"{deployment.path}/status/global/db/daemon/ready"
    bad = {
        **{f"{party}/{name}": json.dumps(facts).encode() for name, facts in STRANGERS.items()},
        f"{party}/deep": b"[" * 100_000,
        f"{party}/long": b" " * 900_000,
        f"{ready}/newline": json.dumps(
            {"host": "a\nforged = 1", "address": "10.6.6.6", "ports": [1], "service": "forged"}
        ).encode(),
    }
    containers.start("infra/db", KOLLA_ADDRESS="192.0.2.1", KOLLA_PORTS="3306")
    # Before: a stranger's instance satisfies the dependency like any other.
    eventually(lambda: zk.exists(ready) and zk.get_children(ready), "the database is ready")
    for path, data in bad.items():
        zk.create(path, data, makepath=True)
    agent = containers.start("web", "web2")
    assert agent.ends() == 0
    text = dest.read_text()
    assert "forged" not in text and "10.6.6.6" not in text
    address = text.splitlines()[1].split()[0]
    assert text.splitlines() == [
        f"{{'db': ['{address}']}} ['{address}'] ['{address}']",
        f"{address} {address}",
        "web1 192.0.2.1:3306",
    ]
    warnings = [line for line in agent.said.splitlines() if "is left out" in line]
    assert sorted(line.split(": ")[1].split()[0] for line in warnings) == sorted(bad)
    assert "forged" not in agent.said and "10.6.6.6" not in agent.said


def test_many_entries_of_one_container_cost_others_little(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Each is read once, and the log names the first few."""
    many = 2000
    publish(
        deployment,
        "web",
        {"commands": {"go": {"command": "true", "dependencies": [{"members": "infra/db", "count": 1}]}}},
    )
    party = f"{deployment.path}/infra/db/.party"
    zk.ensure_path(party)
    for first in range(0, many, 500):
        entries = zk.transaction()
        for number in range(first, first + 500):
            entries.create(f"{party}/{number}", b"{}")
        entries.commit()
    before = zookeeper.packets()
    agent = containers.start("web")
    agent.says("waits for members of infra/db: 0 of 1 present")
    assert zookeeper.packets() - before < 2 * many
    assert agent.said.count("is left out") == 10 and len(agent.said.splitlines()) < 40
    assert f"{party}: at least 1024 more are left out" in agent.said


def test_a_foreign_state_is_cut_and_escaped(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """A znode may hold a megabyte, and control characters."""
    needs = ["db/sync", "db/setup"]
    command = {"command": "true", "dependencies": needs, "run_once": True}
    publish(deployment, "web", {"commands": {"only": command}})
    for path in needs:
        state = f"{deployment.path}/status/global/{path}"
        zk.create(state, b"\x1b[2Jerror\n" * 90_000, makepath=True)
        message = {"attempt": 3, "host": "h\n" * 99, "message": "m\r\n" * 99, "finished": 1.5, "started": 1}
        zk.create(f"{state}/detail", json.dumps(message).encode())
    agent = containers.start("web", KOLLA_WAIT_TIMEOUT="1")
    assert agent.ends() == 75
    assert len(agent.said) < 10_000
    assert all(line.isprintable() for line in agent.said.splitlines())
    assert agent.ending["reason"].isprintable()
    assert "db/setup" in agent.ending["reason"] and "attempt 3 on h" in agent.ending["reason"]


def test_a_request_that_zookeeper_refuses_is_no_defect(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """The role's znode is an ephemeral, which can have no children."""
    publish(deployment, "web", TASK)
    zk.create(f"{deployment.path}/status/global/web", b"web", ephemeral=True, makepath=True)
    agent = containers.start("web")
    assert agent.ends() == 69
    why = "its parent is an ephemeral znode: remove that (NoChildrenForEphemeralsError)"
    refused = f"{deployment.path}/status/global/web/only: ZooKeeper refuses it: {why}"
    assert agent.ending["reason"] == refused
    assert agent.ending["retriable"]
