"""Each right that an agent needs is taken away, one at a time: the agent names it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Permissions

from tests.conftest import Deployment, connected
from tests.ctl.test_acl import identity
from tests.support.agents import Agent, Containers
from tests.support.publishing import write_files
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

DB, WEB = "infra/db/db", "app/web"
# Definitions that need every right; `round` makes the one-time commands run again.
DEFINITIONS = {
    DB: {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0}}}},
    WEB: {
        "commands": {
            "once": {
                "command": "true",
                "run_once": True,
                "generation": "{{ round }}",
                "dependencies": ["db/daemon", {"members": DB}],
            },
            "each": {"command": "true", "run_once": "host", "generation": "{{ round }}"},
            "plain": {"command": "true"},
        },
        "service": {
            "daemon": {
                "command": "sleep 600",
                "ready": {"alive": 0},
                "dependencies": ["web/once"],
                "files": {"conf": {"dest": "{{ directory }}/conf"}},
                "env": {"REGION": "{{ region }}"},
            }
        },
    },
}
TEMPLATE = "{{ groups['db'] }} {{ ready_instances('infra/db/db') }} {{ local }}"
# The znode whose ACL lacks a right, the right, and the beginning of the path that is named, if it differs:
# the parent's ACL decides whether a znode may be created or deleted.
NEEDED = [
    (WEB, "r"),
    (".publication", "r"),
    (f"{WEB}/.acl", "r"),
    (f"{WEB}/variables/round", "r"),
    (f"{WEB}/variables/h1/local", "r"),
    ("variables/region", "r"),
    (f"{WEB}/files/conf", "r"),
    (f"{WEB}/.party", "c", f"{WEB}/.party/"),
    (f"{DB}/.party", "r"),
    (f"{DB}/.party/*", "r"),
    ("status/h1", "r"),
    ("status/global", "r"),
    ("status/global/db", "r"),
    ("status/global/db/daemon/ready", "r"),
    ("status/global/db/daemon/ready/*", "r"),
    ("status/global/web", "r"),
    ("status/global/web/once", "r"),
    ("status/global/web/once", "w"),
    ("status/global/web/once/lock", "r"),
    ("status/global/web/once/lock", "c", "status/global/web/once/lock/"),
    ("status/global/web/once/lock", "d", "status/global/web/once/lock/"),
    ("status/global/web/once/detail", "r"),
    ("status/global/web/once/detail", "w"),
    ("status/global/web/once/generations", "r"),
    ("status/global/web/once/generations", "c", "status/global/web/once/generations/"),
    ("status/global/web/once/hosts/h1", "r"),
    ("status/h1/web/each", "r"),
    ("status/h1/web/each", "w"),
    ("status/h1/web/each/detail", "r"),
    ("status/h1/web/each/detail", "w"),
    ("status/h1/web/plain", "w"),
    ("status/h1/web/plain/detail", "w"),
    ("status/h1/web/daemon", "r"),
    ("status/global/web/daemon", "r"),
]
# Where only the registrar needs to create: it warns, and tries again.
NEEDED_LATER = ["status/h1/web/daemon/ready", "status/global/web/daemon/ready"]
RIGHTS = {
    "r": (Permissions.READ, "read", "r (read)"),
    "w": (Permissions.WRITE, "written", "w (write)"),
    "c": (Permissions.CREATE, "created", "c (create)"),
    "d": (Permissions.DELETE, "deleted", "d (delete)"),
}


class Rights:
    """A deployment in which web has been started once, so that all its znodes exist."""

    def __init__(self, server: Server, zk: KazooClient, directory: Path) -> None:
        self.zk, self._directory = zk, directory
        self.deployment = Deployment(server.hosts, "/of-rights", "site")
        self.containers = Containers(directory / "c", self.deployment.environ)
        self._rounds = itertools.count(1)

    def _auth(self, name: str) -> str:
        file = self._directory / f"{name}.auth"
        file.write_text(f"digest:{name}:{name}-password\n")
        return str(file)

    def publish(self) -> None:
        acl = {
            "operator": identity("operator"),
            "services": {service: identity(role(service)) for service in DEFINITIONS},
            "hosts": ["h1"],
        }
        root = write_files(
            self._directory / "site",
            acl_yml=json.dumps(acl),
            variables_yml=json.dumps({"region": "one", "directory": str(self._directory)}),
        )
        for service, definition in DEFINITIONS.items():
            write_files(root / "services" / service, definition_json=json.dumps(definition))
        write_files(
            root / "services" / WEB, variables__round="0", variables__h1__local="1", files__conf=TEMPLATE
        )
        ctl(self.deployment, "publish", str(root), KOLLA_ZK_AUTH_FILE=self._auth("operator"))

    def start(self, service: str) -> Agent:
        """Start a container whose one-time commands run again."""
        number = str(next(self._rounds))
        self.zk.set(self.path(f"{WEB}/variables/round"), number.encode())
        auth = self._auth(role(service))
        return self.containers.start(service, "h1", KOLLA_ZK_AUTH_FILE=auth, KOLLA_GENERATION=number)

    def start_once(self) -> None:
        web = self.start(WEB)
        eventually(lambda: not web.running or web.health("--ready").returncode == 0, "web is ready")
        assert web.running
        self.end(web)

    def end(self, agent: Agent) -> None:
        agent.end()
        eventually(lambda: not self.zk.get_children(self.path(f"{WEB}/.party")), "it has gone")

    def path(self, node: str) -> str:
        path = f"{self.deployment.path}/{node}"
        return path[:-1] + self.zk.get_children(path[:-2])[0] if path.endswith("*") else path

    @contextmanager
    def without(self, path: str, letter: str) -> Iterator[None]:
        """Take this right from the service web."""
        before, _ = self.zk.get_acls(path)
        bit = RIGHTS[letter][0]
        lacking = [
            ACL(entry.perms & ~bit, entry.id) if entry.id.id.startswith("web:") else entry for entry in before
        ]
        assert lacking != before
        self.zk.set_acls(path, lacking)
        try:
            yield
        finally:
            self.zk.set_acls(path, before)


def role(service: str) -> str:
    return service.rpartition("/")[2]


def said(path: str, letter: str, named: str) -> str:
    """The expression for what an agent says of a right that it lacks."""
    _, done, right = RIGHTS[letter]
    acl = "its ACL" if letter in "rw" else f"the ACL of {path}"
    return rf"{re.escape(named)}\S* can't be {done}: NoAuthError: {acl} lacks the right {re.escape(right)}"


@pytest.fixture(scope="module")
def rights(shared_zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rights]:
    """The deployment; db runs in it."""
    for zk in connected(shared_zookeeper, auth_data=[("digest", "operator:operator-password")]):
        rights = Rights(shared_zookeeper, zk, tmp_path_factory.mktemp("w"))
        try:
            rights.publish()
            rights.start(DB)
            rights.start_once()
            yield rights
        finally:
            rights.containers.end()
            zk.delete(rights.deployment.prefix, recursive=True)


@pytest.mark.parametrize("row", NEEDED, ids=" ".join)
def test_a_missing_right_of_an_agent_is_named(rights: Rights, row: Sequence[str]) -> None:
    """With the znode, in the last line and the termination log."""
    node, letter, *other = row
    path = rights.path(node)
    with rights.without(path, letter):
        agent = rights.start(WEB)
        assert agent.ends() == 77
    rights.end(agent)
    named = rights.path(other[0]) if other else path
    assert re.match(said(path, letter, named), agent.ending["reason"])
    assert not agent.ending["retriable"]
    assert json.loads((agent.directory / "termination-log").read_text()) == agent.ending


def test_missing_rights_of_a_registrar_are_named(rights: Rights) -> None:
    """The daemon keeps running, and is registered when the rights are granted."""
    with ExitStack() as stack:
        for path in map(rights.path, NEEDED_LATER):
            stack.enter_context(rights.without(path, "c"))
        agent = rights.start(WEB)
        for path in map(rights.path, NEEDED_LATER):
            words = said(path, "c", f"{path}/") + "; retrying"
            eventually(lambda words=words: re.search(words, agent.said) or not agent.running, words)  # type: ignore[misc]
        assert agent.running
    eventually(lambda: all(map(rights.zk.get_children, map(rights.path, NEEDED_LATER))), "it is registered")
    rights.end(agent)


def test_a_missing_right_to_record_a_container_is_named(rights: Rights) -> None:
    """By the agent or by the registrar: the record is written at most once a second."""
    path = rights.path(f"{WEB}/.containers")
    with rights.without(path, "c"):
        agent = rights.start(WEB)
        eventually(lambda: re.search(said(path, "c", f"{path}/"), agent.said), "it is named")
        assert agent.running or agent.ends() == 77
    rights.end(agent)
