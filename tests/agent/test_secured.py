"""A deployment on a secured ensemble of three servers: each service has its own certificate, and no more.

What holds on a server without TLS is tested elsewhere. Here it has to hold while leaders die, sessions expire
and certificates are replaced.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.errors import NoConnection
from kolla_mesos_start.settings import parse
from kolla_mesos_start.zookeeper.session import GRANT
from tests.conftest import Deployment, connected
from tests.ctl.test_acl import world
from tests.support.agents import Agent, Containers
from tests.support.certificates import Authority
from tests.support.instances import Site
from tests.support.publishing import write_files
from tests.support.secured import Secured
from tests.support.tool import TOOL, ctl, environ
from tests.support.waiting import LIMIT, eventually

DB, TASK, WEB = "infra/db/db", "app/task", "app/web/web"
DEFINITIONS = {
    DB: """\
commands:
  sync: {command: 'true', run_once: true, generation: '1'}
service: {daemon: {command: sleep 600, ready: {alive: 0}, dependencies: [db/sync],
  files: {conf: {dest: "{{ directory }}/db.conf"}}}}
""",
    # It notes the beginning and the end of each run.
    TASK: """\
commands:
  schema: {run_once: true, dependencies: [db/daemon],
    command: "echo $KOLLA_FENCING_TOKEN >> {{ directory }}/begun;
              until test -e {{ directory }}/go; do sleep 0.02; done;
              echo $KOLLA_FENCING_TOKEN >> {{ directory }}/ended"}
""",
    WEB: """\
service: {daemon: {command: sleep 600, ready: {alive: 0}, on_change: {command: 'true'}, width: 1,
  dependencies: [task/schema, {members: infra/db/db}],
  files: {conf: {dest: "{{ directory }}/web.conf"}}}}
""",
}
FILES = {DB: "{{ secret }}", WEB: "{{ groups['db'] | length }} {{ region }}"}


class Whole:
    """The deployment: its directory, in which `directory` is where containers write, and its containers."""

    def __init__(self, deployment: Deployment, secured: Secured, root: Path, containers: Containers) -> None:
        self.deployment, self.secured, self.root, self._containers = deployment, secured, root, containers
        self.directory = root.parent

    def write(self) -> None:
        """What is to be published."""
        acl = {
            "operator": self.secured.identity("operator"),
            "services": {service: self.secured.identity(role(service)) for service in DEFINITIONS},
            "variables": {"secret": [DB]},
            "hosts": ["h1", "h2"],
        }
        values = {"secret": "s3cret", "region": "one", "directory": str(self.directory)}
        write_files(self.root, acl_yml=json.dumps(acl), variables_yml=json.dumps(values))
        for service, definition in DEFINITIONS.items():
            files = {"files__conf": FILES[service]} if service in FILES else {}
            write_files(self.root / "services" / service, definition_yml=definition, **files)

    def ctl(self, *words: str, status: int = 0) -> str:
        """What the tool prints, run by the operator."""
        done = ctl(self.deployment, *words, status=status, **self.secured.environment("operator"))
        return done.stdout + done.stderr

    def start(self, service: str, host: str = "h1", words: Sequence[str] = (), **environ: str) -> Agent:
        """A container with the certificate of its service."""
        identity = self.secured.environment(role(service))
        given = {"KOLLA_GENERATION": "1", **identity, **environ}
        return self._containers.start(service, host, words=words, **given)

    def go(self) -> None:
        """Let the task end."""
        (self.directory / "go").touch()

    def noted(self, name: str) -> list[str]:
        """The fencing tokens of the runs that have `begun`, or `ended`."""
        path = self.directory / name
        return path.read_text().split() if path.exists() else []

    def follows(self, text: str) -> None:
        """Wait until web's file holds this."""
        conf = self.directory / "web.conf"
        eventually(lambda: conf.exists() and conf.read_text() == text, f"{conf} holds {text!r}")


def role(service: str) -> str:
    return service.rpartition("/")[2]


@pytest.fixture
def whole(
    secured_deployment: Deployment, secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Whole]:
    """The deployment, published with its acl.yml."""
    directory = tmp_path_factory.mktemp("w")  # A socket's path must be short.
    containers = Containers(directory / "c", secured_deployment.environ)
    whole = Whole(secured_deployment, secured, directory / "site", containers)
    whole.write()
    whole.ctl("publish", str(whole.root))
    yield whole
    containers.end()


def test_everybody_is_known_by_a_certificate(secured: Secured, secured_zk: KazooClient) -> None:
    """Whoever has none can't connect, and nobody gets what is another's."""
    path = "/of-web"
    secured_zk.create(path, b"", acl=[make_acl("x509", "CN=web", all=True)])
    for name, may in (("web", True), ("db", False)):
        for client in connected(secured, **secured.options(name)):
            if may:
                assert client.get(path)[0] == b""
            else:
                with pytest.raises(NoAuthError):
                    client.get(path)
    assert [server.mode for server in secured.servers].count("leader") == 1
    secured_zk.delete(path)
    (ca, *_) = secured.environment("web").values()
    environ = {"KOLLA_ZK_HOSTS": secured.hosts, "KOLLA_APP_ID": "/a/b", "KOLLA_ZK_CONNECT_TIMEOUT": "1"}
    with pytest.raises(NoConnection, match="wants a client certificate"):
        connection.connect(parse({**environ, "KOLLA_ZK_CA": ca}))


def test_a_session_can_be_ended_from_outside(secured: Secured, secured_zk: KazooClient) -> None:
    """Only its id has to be known; its owner opens another one."""
    before, _ = secured_zk.client_id
    secured.expire(before)
    eventually(lambda: secured_zk.client_id and secured_zk.client_id[0] not in (0, before), "another session")


def test_nobody_joins_the_quorum_with_the_certificate_of_a_service(secured: Secured, tmp_path: Path) -> None:
    """An observer that no server knows joins, and is sent everything; but the quorum has a CA of its own."""
    secured.quorum.issue("another")
    secured.environment("web")
    with secured.observer(tmp_path / "another", secured.quorum.directory / "another-both.pem") as observer:
        eventually(lambda: observer.mode == "observer", "it has joined")
    with secured.observer(tmp_path / "web", secured.directory / "web-both.pem") as observer:
        eventually(
            lambda: observer.mode or "Received fatal alert" in observer.said(), "it joins, or is refused"
        )
        assert not observer.mode


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_each_service_needs_its_own_certificate_only(
    whole: Whole, secured_zk: KazooClient, mode: str
) -> None:
    """From the start to a refresh; and the operator all commands of the tool."""
    db, *others = [whole.start(service, KOLLA_START_MODE=mode) for service in DEFINITIONS]
    whole.go()
    assert "web: 1 of 1 ready" in whole.ctl("wait", "--timeout", "100")
    assert others[0].ends() == 0
    assert (whole.directory / "db.conf").read_text() == "s3cret"
    whole.follows("1 one")
    assert "not up" not in whole.ctl("status")
    assert "ROOT CAUSE" not in whole.ctl("explain")
    whole.ctl("set", "region", "two")
    whole.follows("1 two")
    whole.ctl("rerun", "task/schema")
    assert whole.start(TASK).ends() == 0
    assert len(whole.noted("ended")) == 2
    assert world(secured_zk, whole.deployment.path) == []
    assert "would secure" not in whole.ctl("diff", str(whole.root), status=1)
    assert all(agent.running for agent in (db, others[1]))


def test_another_services_certificate_is_not_enough(whole: Whole) -> None:
    """The agent ends, and names the znode."""
    agent = whole.start(DB, **whole.secured.environment("web"))
    assert agent.ends() == 77
    assert f"{whole.deployment.path}/{DB} can't be read: NoAuthError" in agent.ending["reason"]
    assert agent.ending["reason"].endswith(f"; connected as the certificate in KOLLA_ZK_CERT: {GRANT}")


def test_check_says_who_it_is(whole: Whole) -> None:
    """And whom it talks to."""
    check = whole.start(DB, words=["check"])
    assert check.ends() == 1
    first = check.said.splitlines()[0].split()
    assert first[2] in whole.secured.hosts.split(",")
    assert first[3:] == ["over", "TLS,", *["as", "the", "certificate", "in", "KOLLA_ZK_CERT"]]


def test_the_leader_dies_while_a_one_time_command_runs(whole: Whole) -> None:
    """The others elect another one: the command ends once, and all go on."""
    db, web = whole.start(DB), whole.start(WEB)
    tasks = [whole.start(TASK, host) for host in ("h1", "h2")]
    eventually(lambda: whole.noted("begun"), "the command runs")
    leader = whole.secured.leader
    leader.kill()
    others = [server for server in whole.secured.servers if server is not leader]
    eventually(lambda: any(server.mode == "leader" for server in others), "there is another leader")
    whole.go()
    assert [task.ends() for task in tasks] == [0, 0]
    assert len(whole.noted("ended")) == 1
    assert whole.noted("begun")[-1:] == whole.noted("ended")
    whole.follows("1 one")
    assert "web: 1 of 1 ready" in whole.ctl("wait", "--timeout", "100")
    assert db.running and web.running


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_who_has_lost_the_session_registers_again(whole: Whole, secured_zk: KazooClient, mode: str) -> None:
    """A daemon's registrar or supervisor, and an agent that waits; all under the same identity."""
    db, web = (Site(whole.deployment, secured_zk, service) for service in (DB, WEB))
    agents = [whole.start(service, KOLLA_START_MODE=mode) for service in (DB, WEB)]

    places = (db.party, web.party, db.containers_path, web.containers_path, f"{db.daemon()}/ready")

    def sessions() -> set[int]:
        """Those of what containers have registered, if all of it is there."""
        found = [owners(secured_zk, place) for place in places]
        return set().union(*found) if all(found) else set()

    before = eventually(sessions, "all is registered")
    assert len(before) == len(agents)
    for session in before:
        whole.secured.expire(session)
    eventually(lambda: (now := sessions()) and not now & before, "all is registered again")
    whole.go()
    whole.start(TASK)
    whole.follows("1 one")
    assert world(secured_zk, whole.deployment.path) == []


@pytest.fixture
def waiting(whole: Whole) -> Iterator[subprocess.Popen[str]]:
    """The tool, which waits until all is up, and has connected."""
    process = subprocess.Popen(
        [sys.executable, TOOL, "wait", "--timeout", "600"],
        env=environ(whole.deployment, **whole.secured.environment("operator")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert process.stdout and process.stdout.readline(), "it shows how far all is"
            yield process
        finally:
            process.kill()


def test_certificates_and_cas_are_replaced_while_everything_runs(
    whole: Whole, secured_zk: KazooClient, waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    """First both CAs are trusted, then every certificate is of the new one, then the old one is not trusted.

    Each process takes what is in its files at its next connection: registrar, supervisor, agent and tool; so
    does a refresh. Only a container whose files were forgotten is refused, and says why.
    """
    secured = whole.secured
    whole.start(DB, KOLLA_START_MODE="supervise")
    whole.start(DB, "h2")
    task = whole.start(TASK)
    eventually(lambda: whole.noted("begun"), "the command runs")
    whole.start(WEB)
    forgotten = copied(secured.environment("task"), ("KOLLA_ZK_CERT", "KOLLA_ZK_KEY"), tmp_path)
    old, new = secured.authority, Authority(secured.directory, "new-ca")
    secured.trust(old, new)
    secured.restart_each()
    secured.reissue(new)
    secured.restart_each()
    secured.trust(new)
    secured.restart_each()
    left = whole.start(TASK, "h2", **forgotten, KOLLA_ZK_CONNECT_TIMEOUT="1")
    assert left.ends() == 69
    assert "the server refuses the certificate in KOLLA_ZK_CERT" in left.ending["reason"]
    whole.go()
    assert task.ends() == 0
    whole.follows("2 one")
    assert waiting.wait(LIMIT) == 0
    whole.ctl("set", "region", "two")
    whole.follows("2 two")
    ready = f"{Site(whole.deployment, secured_zk, DB).daemon()}/ready"
    before = owners(secured_zk, ready)
    for session in before:
        secured.expire(session)
    eventually(
        lambda: len(now := owners(secured_zk, ready)) == len(before) == 2 and not now & before,
        "both have registered again",
    )


def owners(zk: KazooClient, path: str) -> set[int]:
    """The sessions of what is registered below `path`, if that is there."""
    names = zk.get_children(path) if zk.exists(path) else ()
    return {stat.ephemeralOwner for name in names if (stat := zk.exists(f"{path}/{name}"))}


def copied(files: Mapping[str, str], names: Sequence[str], directory: Path) -> dict[str, str]:
    """The same variables; the files of those with these names are copies in another directory."""
    return {**files, **{name: shutil.copy(files[name], str(directory)) for name in names}}
