"""Credentials that are replaced while daemons run: nothing restarts, and all goes on under the new ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import make_digest_acl

from tests.conftest import Deployment, connected
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import write_files
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import Server

DB, WEB = "infra/db", "app/web"
OLD, NEW = "old", "new"  # the passwords
FOLLOWS = "on_change: {command: 'true'}, width: 1, files: {conf: {dest: '{{ directory }}/CONF'}}"
DAEMON = f"service: {{daemon: {{command: sleep 600, ready: {{alive: 0}}, {FOLLOWS}}}}}\n"


def identity(name: str, password: str) -> str:
    found: str = make_digest_acl(name, f"{name}-{password}").id.id
    return f"digest:{found}"


class Rotated:
    """A deployment in which everybody has a credential in a file of their own."""

    def __init__(self, deployment: Deployment, root: Path, containers: Containers, zk: KazooClient) -> None:
        self.deployment, self.root, self.containers, self.zk = deployment, root, containers, zk
        self.home = root.parent
        values = {"region": "one", "directory": str(self.home)}
        write_files(root, variables_yml=json.dumps(values))
        for service in (DB, WEB):
            name = service.rpartition("/")[2]
            definition = DAEMON.replace("CONF", f"{name}.conf")
            content = "{{ region }} {{ groups['db'] | length }}"
            write_files(root / "services" / service, definition_yml=definition, files__conf=content)
        self.replace_files(OLD)

    def replace_files(self, *passwords: str) -> None:
        """What a launcher does with mounted files: the credentials of everybody are these."""
        for name in ("operator", "db", "web"):
            stage = self.home / "stage"
            stage.write_text("".join(f"digest:{name}:{name}-{each}\n" for each in passwords))
            stage.replace(self.home / f"{name}.auth")

    def operator_has_both(self) -> None:
        lines = "".join(f"digest:operator:operator-{password}\n" for password in (OLD, NEW))
        (self.home / "operator.auth").write_text(lines)

    def publish(self, *passwords: str, region: str = "one", name: str = "operator", status: int = 0) -> str:
        """Publish the identities with these passwords."""
        plan = {
            "operator": [identity("operator", each) for each in passwords],
            "services": {
                DB: [identity("db", each) for each in passwords],
                WEB: [identity("web", each) for each in passwords],
            },
            "hosts": ["h1"],
        }
        write_files(self.root, acl_yml=json.dumps(plan))
        return self.ctl("publish", str(self.root), "--set", f"region={region}", status=status)

    def ctl(self, *words: str, status: int = 0) -> str:
        auth = str(self.home / "operator.auth")
        done = ctl(self.deployment, *words, status=status, KOLLA_ZK_AUTH_FILE=auth)
        return done.stdout + done.stderr

    def start(self, service: str, **environ: str) -> Agent:
        auth = str(self.home / f"{service.rpartition('/')[2]}.auth")
        more = {"KOLLA_ZK_AUTH_FILE": auth, "KOLLA_ZK_SESSION_TIMEOUT": "4", **environ}
        return self.containers.start(service, "h1", **more)

    def site(self, service: str) -> Site:
        return Site(self.deployment, self.zk, service)

    def follows(self, text: str, name: str = "web") -> None:
        conf = self.home / f"{name}.conf"
        eventually(lambda: conf.exists() and conf.read_text() == text, f"{conf} holds {text!r}")

    def identities(self) -> set[str]:
        """Those that any ACL of the deployment names."""
        found = set()
        for path in znodes(self.zk, self.deployment.path):
            with suppress(NoNodeError):  # Containers write meanwhile.
                found |= {f"{each.id.scheme}:{each.id.id}" for each in self.zk.get_acls(path)[0]}
        return found


@pytest.fixture
def rotated(deployment: Deployment, tmp_path: Path, containers: Containers, zk: KazooClient) -> Rotated:
    for password in (OLD, NEW):  # What looks and cleans up sees everything.
        zk.add_auth("digest", f"operator:operator-{password}")
    found = Rotated(deployment, tmp_path / "site", containers, zk)
    found.publish(OLD)
    return found


def expire(zk: KazooClient, server: Server, path: str) -> None:
    """End the sessions of the ephemerals below `path` from outside, as their expiry would."""
    from tests.support.secured import password

    for name in zk.get_children(path):
        session = zk.exists(f"{path}/{name}").ephemeralOwner
        thief = KazooClient(server.hosts, client_id=(session, password(session)))
        thief.start()
        thief.stop()
        thief.close()


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_digest_is_replaced_under_running_daemons(rotated: Rotated, zookeeper: Server, mode: str) -> None:
    """Both are published, then files are replaced, then the new one alone is published."""
    agents = [rotated.start(service, KOLLA_START_MODE=mode) for service in (DB, WEB)]
    rotated.follows("one 1")
    before = [set(rotated.site(service).await_instances(1)) for service in (DB, WEB)]
    rotated.publish(OLD, NEW)
    rotated.replace_files(NEW)
    for agent in agents:
        agent.says("our credential, certificate or CA was replaced")
    rotated.publish(NEW)
    assert rotated.identities() == {identity(name, NEW) for name in ("operator", "db", "web")}
    assert [set(rotated.site(service).await_instances(1)) for service in (DB, WEB)] == before
    rotated.ctl("set", "region", "two")
    rotated.follows("two 1")
    # What is created from now on has the new ACL, although the daemons have started with the old one.
    ready = f"{rotated.site(WEB).daemon()}/ready"
    expire(rotated.zk, zookeeper, ready)
    eventually(lambda: set(rotated.site(WEB).instances()) == before[1], "it is registered again")
    assert rotated.identities() == {identity(name, NEW) for name in ("operator", "db", "web")}
    rotated.ctl("set", "region", "three")
    rotated.follows("three 1")
    assert all(agent.running for agent in agents)
    assert "would secure" not in rotated.ctl("diff", str(rotated.root), status=1)
    for leaked in connected(zookeeper):
        leaked.add_auth("digest", f"web:web-{OLD}")
        with pytest.raises(NoAuthError):
            leaked.get(f"{rotated.deployment.path}/{WEB}")


def test_the_file_may_be_replaced_after_the_digest(rotated: Rotated) -> None:
    """Then daemons and waiting agents are without rights for a while: they wait, and go on by themselves."""
    daemon = rotated.start(WEB)
    rotated.follows("one 0")
    waiting = rotated.start(DB, KOLLA_ZK_SESSION_TIMEOUT="2")
    rotated.site(DB).await_instances(1)
    rotated.follows("one 1")
    rotated.publish(OLD, NEW)  # The operator keeps both.
    rotated.operator_has_both()
    rotated.publish(NEW, region="two")
    daemon.says("NoAuthError")
    assert (rotated.home / "web.conf").read_text() == "one 1"
    rotated.replace_files(NEW)
    rotated.follows("two 1")
    rotated.site(WEB).await_instances(1)
    assert daemon.running and waiting.running


def test_an_agent_that_waits_follows_a_replaced_digest(rotated: Rotated) -> None:
    """In whichever order: what it was granted before is not the end of its start."""
    write_files(
        rotated.root / "services" / WEB,
        definition_yml=DAEMON.replace("CONF", "web.conf").replace(
            "ready:", "dependencies: [{members: infra/db, count: 1}], ready:"
        ),
    )
    rotated.publish(OLD)
    agent = rotated.start(WEB)
    eventually(lambda: rotated.site(WEB).containers, "it is shown")
    rotated.operator_has_both()
    rotated.publish(NEW, region="two")
    rotated.ctl("set", "size", "1", "--service", WEB)
    rotated.replace_files(NEW)
    rotated.start(DB)
    rotated.follows("two 1")
    rotated.site(WEB).await_instances(1)
    assert agent.running


def test_a_file_that_is_damaged_or_gone_changes_nothing(rotated: Rotated, zookeeper: Server) -> None:
    """The last credential stays in use, also for a new session, and that is said."""
    agent = rotated.start(WEB)
    rotated.site(WEB).await_instances(1)
    file = rotated.home / "web.auth"
    for damage in (lambda: file.write_text("web\n"), file.unlink):
        damage()
        expire(rotated.zk, zookeeper, f"{rotated.site(WEB).daemon()}/ready")
        rotated.site(WEB).await_instances(1)
    agent.says("KOLLA_ZK_AUTH_FILE: expected scheme:credential in each line")
    agent.says("KOLLA_ZK_AUTH_FILE can't be read: No such file or directory")
    assert f"web-{OLD}" not in agent.said
    file.write_text(f"digest:web:web-{OLD}\n")
    rotated.ctl("set", "region", "two")
    rotated.follows("two 0")
