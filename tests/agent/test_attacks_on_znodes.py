"""What others can do to a deployment with an acl.yml: all that `tests.support.attacks` names is tried out.

The agents of the deployment are real. Of each attack all is there that it needs: a lock that is held, an
instance that refreshes, another one that waits for its turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from tests.conftest import Deployment, connected
from tests.ctl.test_acl import identity
from tests.support.agents import Agent, Containers
from tests.support.attacks import DB, MUST_BE_POSSIBLE, MUST_BE_REFUSED, STRANGER, TASK, WEB, Attack
from tests.support.publishing import write_files
from tests.support.secured import Secured, password
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import Server

OPERATOR = "operator"
HELD = "until test -e {{ directory }}/go; do sleep 0.1; done"
DEFINITIONS = {
    DB: {
        "commands": {
            "sync": {"command": "true", "run_once": True, "generation": "1"},
            "each": {"command": "true", "run_once": "host"},
        },
        "service": {
            "daemon": {
                "command": "sleep 600",
                "ready": {"alive": 0},
                "dependencies": ["db/sync", "db/each"],
                "files": {"conf": {"dest": "{{ directory }}/{{ kolla_hostname }}.conf"}},
                "on_change": {"command": HELD},
                "width": 1,
            }
        },
    },
    TASK: {"commands": {"schema": {"command": HELD, "run_once": True, "dependencies": ["db/daemon"]}}},
    WEB: {"service": {"daemon": {"command": "sleep 600", "ready": {"alive": 0}}}},
}
SECRET = "s3cret"


class Digests:
    """Identities on a server without TLS: users with a password; a stranger has none."""

    identity = staticmethod(identity)

    def __init__(self, server: Server, directory: Path) -> None:
        self.servers, self._directory = server, directory

    def environment(self, name: str) -> dict[str, str]:
        file = self._directory / f"{name}.auth"
        file.write_text(f"digest:{name}:{name}-password\n")
        return {"KOLLA_ZK_AUTH_FILE": str(file)}

    def options(self, name: str) -> dict[str, Any]:
        return {} if name == STRANGER else {"auth_data": [("digest", f"{name}:{name}-password")]}


class Certificates:
    """Identities under TLS: subjects. A stranger has one too: nobody can connect without."""

    def __init__(self, secured: Secured) -> None:
        self.servers = secured
        self.identity, self.environment, self.options = secured.identity, secured.environment, secured.options


class Attacked:
    """The deployment, its directory and its containers; `zk` is its operator."""

    def __init__(self, kind: Digests | Certificates, name: str, directory: Path) -> None:
        self.kind, self.directory = kind, directory
        self.deployment = Deployment(kind.servers.hosts, f"/attacked-by-{name}", "site")
        self.containers = Containers(directory / "c", self.deployment.environ)
        self.agents: list[Agent] = []
        self._clients: dict[str, tuple[KazooClient, Iterator[KazooClient]]] = {}

    @property
    def zk(self) -> KazooClient:
        return self.client(OPERATOR)

    def client(self, name: str) -> KazooClient:
        """One that stays, for each name."""
        if name not in self._clients:
            generator = connected(self.kind.servers, **self.kind.options(name))
            self._clients[name] = next(generator), generator
        return self._clients[name][0]

    def publish(self) -> None:
        acl = {
            "operator": self.kind.identity(OPERATOR),
            "services": {service: self.kind.identity(role(service)) for service in DEFINITIONS},
            "variables": {"secret": [DB]},
            "hosts": ["h1", "h2"],
        }
        values = {"secret": SECRET, "region": "one", "directory": str(self.directory)}
        root = write_files(self.directory / "site", acl_yml=json.dumps(acl), variables_yml=json.dumps(values))
        for service, definition in DEFINITIONS.items():
            own = dict.fromkeys(("variables__own", "variables__h1__own", "variables__h2__own"), "1")
            files = {"files__conf": "{{ secret }} {{ region }}"} if service == DB else {}
            place = root / "services" / service
            write_files(place, definition_json=json.dumps(definition), **own, **files)
        self.ctl("publish", str(root))

    def ctl(self, *words: str, status: int = 0) -> str:
        done = ctl(self.deployment, *words, status=status, **self.kind.environment(OPERATOR))
        return done.stdout + done.stderr

    def start(self) -> None:
        """All containers, until everything is there that can be attacked."""
        for service, host in ((DB, "h1"), (DB, "h2"), (TASK, "h1"), (WEB, "h1")):
            environ = self.kind.environment(role(service))
            self.agents.append(self.containers.start(service, host, KOLLA_GENERATION="1", **environ))
        for node, count in (("db/daemon/ready", 2), ("web/daemon/ready", 1), ("task/schema/lock", 1)):
            self._await(f"status/global/{node}", count)
        self.ctl("set", "region", "two")
        for name in ("slots", "queue"):
            self._await(f"status/global/db/daemon/refreshes/{name}", 1)

    def _await(self, node: str, count: int) -> None:
        def are_there() -> bool:
            assert all(agent.running for agent in self.agents)
            with suppress(NoNodeError):
                return len(self.zk.get_children(self.path(node))) == count
            return False

        eventually(are_there, f"{count} below {node}")

    def path(self, node: str) -> str:
        """Of a node of the table."""
        path = node if node.startswith("/") else f"{self.deployment.path}/{node}".rstrip("/")
        return path[:-1] + self.zk.get_children(path[:-2])[0] if path.endswith("*") else path

    def standing(self) -> dict[str, tuple[int, ...]]:
        """Every znode, with what a change would alter."""
        # The records of containers change all the time.
        return {
            path: (stat.czxid, stat.aversion, 0 if "/.containers/" in path else stat.mzxid)
            for path, (_, stat) in znodes(self.zk, self.deployment.path).items()
        }

    def try_out(self, attack: Attack) -> None:
        """Raises what ZooKeeper answers."""
        path = self.path(attack.node)
        if attack.verb == "end":
            self._end_session(attack.who, path)
        else:
            VERBS[attack.verb](self.client(attack.who), path)

    def _end_session(self, who: str, path: str) -> None:
        """That of an ephemeral: its password follows from its id."""
        session = self.client(who).exists(path).ephemeralOwner
        thief = connected(self.kind.servers, client_id=(session, password(session)), **self.kind.options(who))
        assert next(thief).client_id[0] == session
        next(thief, None)
        eventually(lambda: not self.owns(session, path), "it has ended")

    def owns(self, session: int, path: str) -> bool:
        stat = self.zk.exists(path)
        return stat is not None and stat.ephemeralOwner == session

    def end(self) -> None:
        self.containers.end()
        self.zk.delete(self.deployment.prefix, recursive=True)
        for _, generator in self._clients.values():
            next(generator, None)


def role(service: str) -> str:
    return service.rpartition("/")[2]


def fill(client: KazooClient, path: str) -> None:
    """Many requests of the largest size."""
    names = [f"{path}/filled-{number}" for number in range(10)]
    for name in names:
        client.create(name, b" " * 1_000_000)
    for name in names:
        client.delete(name)


def see(client: KazooClient, path: str) -> None:
    """What the server reveals of a znode that may not be read."""
    assert client.exists(path).data_length == len(SECRET)


VERBS: Mapping[str, Callable[[KazooClient, str], object]] = {
    "read": lambda client, path: client.get(path),
    "names": lambda client, path: client.get_children(path),
    "write": lambda client, path: client.set(path, b"done"),
    "make": lambda client, path: client.create(path, b"done"),
    "register": lambda client, path: client.create(path, b"{}", ephemeral=True),
    "keep": lambda client, path: client.create(path, b"", acl=CREATOR_ALL_ACL),
    "delete": lambda client, path: client.delete(path),
    "open": lambda client, path: client.set_acls(path, OPEN_ACL_UNSAFE),
    "fill": fill,
    "see": see,
}


@pytest.fixture(scope="module", params=["digest", "x509"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """The deployment, while its containers run."""
    directory = tmp_path_factory.mktemp("w")  # A socket's path must be short.
    kind: Digests | Certificates
    if request.param == "digest":
        kind = Digests(request.getfixturevalue("shared_zookeeper"), directory)
    else:
        kind = Certificates(request.getfixturevalue("shared_secured"))
    attacked = Attacked(kind, request.param, directory)
    try:
        attacked.publish()
        attacked.start()
        yield attacked
    finally:
        attacked.end()


def test_access_to_others_znodes_is_denied(attacked: Attacked) -> None:
    """To a service and to a stranger; nothing has changed afterwards."""
    before = attacked.standing()
    assert [attack for attack in MUST_BE_REFUSED if not is_refused(attacked, attack)] == []
    assert attacked.standing() == before
    assert all(agent.running for agent in attacked.agents)


def is_refused(attacked: Attacked, attack: Attack) -> bool:
    try:
        attacked.try_out(attack)
    except NoAuthError:
        return True
    return False


def test_what_is_documented_as_possible_is_possible(attacked: Attacked) -> None:
    """Operators have to know it."""
    for attack in MUST_BE_POSSIBLE:
        attacked.try_out(attack)


def test_a_service_that_locks_the_operator_out_is_named(attacked: Attacked) -> None:
    """Publishing fails; an identity that may delete below the role's status can repair it."""
    kept = attacked.path("status/global/web/kept")
    with pytest.raises(NoAuthError):
        attacked.zk.get(kept)
    assert kept in attacked.ctl("publish", str(attacked.directory / "site"), status=77)
    assert "1 of 1 ready" in attacked.ctl("status", "web", status=0)
    attacked.zk.delete(kept)


def test_the_services_continue_after_the_attacks(attacked: Attacked) -> None:
    """Held processes end, and a container that has lost its session has registered again."""
    (attacked.directory / "go").touch()
    assert attacked.agents[2].ends() == 0
    files = [attacked.directory / f"{host}.conf" for host in ("h1", "h2")]
    eventually(lambda: {file.read_text() for file in files} == {f"{SECRET} two"}, "the files have followed")
    attacked.ctl("wait", "--timeout", "60")
