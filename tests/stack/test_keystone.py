"""MariaDB, memcached and three Keystones, all started at the same moment, order themselves.

The ensemble is secured, and each container has the rights of its service alone. While they start the leader
of the ensemble dies, and every certificate is replaced. One deployment serves all tests of this file. A test
that breaks something mends it, but the last one, which stops everything.
"""

from __future__ import annotations

import configparser
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote

import psutil
import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.zk.publication import Counts
from tests.conftest import Deployment, connected
from tests.ctl.test_acl import world
from tests.examples.keystone import API, HOSTS, MARIADB, MEMCACHED, TASKS
from tests.examples.openstack import EXAMPLE
from tests.stack.cloud import START_LIMIT, Cloud, health, stop
from tests.stack.command_lines import CommandLines
from tests.support.arrangement import section
from tests.support.processes import command_line, environment
from tests.support.publishing import write_files
from tests.support.secured import OPERATOR, Secured
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import HOST

# The first test waits for packages, for Keystone's installation and for the start.
pytestmark = pytest.mark.timeout(900)

CLOCK_GRAIN = 0.1  # seconds: times of several clocks
READERS = {
    "mariadb_root_password": [MARIADB, TASKS],
    "keystone_database_password": [TASKS, API],
    "keystone_admin_password": [API],
}


def name(service: str) -> str:
    """As whom its containers connect."""
    return service.rpartition("/")[2]


class SecuredCloud(Cloud):
    """The containers, each with the certificate of its service alone."""

    def __init__(
        self, directory: Path, programs: Path, zk: KazooClient, secured: Secured, report: list[str]
    ) -> None:
        directory.mkdir(mode=0o755)
        super().__init__(directory, programs, zk, secured.hosts, report, **secured.environment(OPERATOR))
        self.secured = secured
        self._values = super().values
        self.deployment = Deployment(secured.hosts, self.prefix, self.id)
        for container in self.containers:
            container.environ.update(secured.environment(name(container.service)))
            container.environ["KOLLA_ZK_SESSION_TIMEOUT"] = "30"  # No command is given up for an election.

    @property
    def values(self) -> Mapping[str, object]:
        return self._values

    def publish(self) -> Counts:
        """As the operator does."""
        self.source = self._written()
        self.ctl("publish", str(self.source))
        return super().publish()  # It finds nothing left to publish.

    def _written(self) -> Path:
        """The example with the values of this machine, and with an acl.yml."""
        root = self.directory / "site"
        shutil.copytree(self.source, root)
        services = (MARIADB, MEMCACHED, TASKS, API)
        acl = {
            "operator": self.secured.identity(OPERATOR),
            "services": {service: self.secured.identity(name(service)) for service in services},
            "variables": READERS,
            "hosts": HOSTS,
        }
        values = yaml.safe_load((root / "variables.yml").read_text())
        values |= {each: str(value) for each, value in self.values.items()}
        write_files(root, acl_yml=json.dumps(acl), variables_yml=yaml.safe_dump(values))
        for container, own in self._own_values.items():
            place = root / "services" / container.service / "variables" / container.host
            place.mkdir(parents=True)
            for each, value in own.items():
                (place / each).write_text(str(value))
        return root

    def await_start(self) -> None:
        """While the database is migrated the leader dies; then everybody has another certificate."""
        self.eventually(self._migrates, "the database is migrated", seconds=START_LIMIT)
        self.secured.leader.kill()
        self.secured.reissue(self.secured.authority)
        self.secured.mend()
        self.secured.restart_each()
        super().await_start()

    def _migrates(self) -> bool:
        return any("db_sync" in run.arguments for run in self.runs())

    def ctl(self, *words: str) -> str:
        """What the tool prints, run by the operator."""
        return ctl(self.deployment, *words, status=0, **self.secured.environment(OPERATOR)).stdout


@pytest.fixture(scope="module")
def cloud(
    shared_secured: Secured, programs: Path, place: Path, pytestconfig: pytest.Config
) -> Iterator[SecuredCloud]:
    """The deployment, published, started all at once, and up."""
    shared_secured.mend()
    report = section(pytestconfig, "start of MariaDB, memcached and three Keystones")
    with contextmanager(connected)(shared_secured, **shared_secured.options()) as zk:
        cloud = SecuredCloud(place / "secured", programs, zk, shared_secured, report)
        cloud.command_lines.start()
        try:
            with cloud.up():
                cloud.report.append(critical_path.draw(cloud.steps(), cloud.started_at))
                yield cloud
        finally:
            cloud.command_lines.stop()


class Once(NamedTuple):
    """A one-time command: where its state stands, and how its program is called."""

    command: str
    scope: str
    program: str
    argument: str


ONCE = (
    Once("mariadb/bootstrap", HOSTS[0], "mariadb-install-db", "--skip-test-db"),
    Once("keystone-api/fernet_setup", "global", "keystone-manage", "fernet_setup"),
    Once("keystone-api/credential_setup", "global", "keystone-manage", "credential_setup"),
    Once("keystone-api/db_sync", "global", "keystone-manage", "db_sync"),
    Once("keystone-api/bootstrap", "global", "keystone-manage", "bootstrap"),
)


def runs_of(cloud: Cloud, once: Once) -> list[str]:
    """The fencing tokens of the command's runs."""
    return [
        run.token
        for run in cloud.runs()
        if run.program == once.program and once.argument in run.arguments.split()
    ]


def test_each_replica_accepts_the_token_that_another_issued(cloud: SecuredCloud) -> None:
    """Same database, same keys: files and one-time commands reached every host."""
    for issuer, known in zip(HOSTS, (*HOSTS[1:], HOSTS[0])):
        token = cloud.issue_token(issuer)
        assert cloud.validate_token(known, token)["user"]["name"] == "admin"
    with pytest.raises(HTTPError, match="401"):
        cloud.validate_token(HOSTS[1], token[:40] + "AAAA" + token[44:])
    assert "keystone-api: 3 of 3 ready" in cloud.ctl("wait", "keystone-api=3", "--timeout", "60")
    assert "ROOT CAUSE" not in cloud.ctl("explain")


@pytest.mark.parametrize("once", ONCE, ids=lambda once: str(once.command))
def test_a_one_time_command_ran_once(cloud: Cloud, once: Once) -> None:
    """Three replicas wanted it; its own program was called once, by the attempt that `detail` tells of."""
    detail = cloud.detail(once.command, once.scope)
    assert runs_of(cloud, once) == [str(detail["token"])]
    assert (detail["attempt"], detail["status"], detail["state"]) == (1, 0, "done")
    assert cloud.state(once.command, once.scope) == "done"


def test_the_task_made_the_database_and_its_user_in_this_order(cloud: Cloud) -> None:
    """Two calls of the database's client, by a container that then ended with 0."""
    calls = [run.token for run in cloud.runs() if run.program == "mariadb"]
    details = [cloud.detail(f"keystone_tasks/{name}") for name in ("create_database", "create_user")]
    database, user = (calls.index(str(detail["token"])) for detail in details)
    assert database < user
    assert len(calls) == sum(detail["attempt"] for detail in details)
    assert [detail["state"] for detail in details] == ["done", "done"]
    assert cloud.tasks.status == 0


def test_the_migration_is_marked_for_its_release(cloud: Cloud) -> None:
    """The same release does not migrate again; the next one does."""
    marks = cloud.zk.get_children(f"{cloud.path}/status/global/keystone-api/db_sync/generations")
    assert marks == [yaml.safe_load((EXAMPLE / "variables.yml").read_text())["keystone_release"]]


def test_a_replica_has_its_config_with_mode_and_owner(cloud: Cloud) -> None:
    """Whoever ran the one-time commands: the files are written in each container."""
    directory = cloud.replicas[1].root / "etc" / "keystone"
    assert {path.name: described(path) for path in directory.iterdir()} == dict.fromkeys(
        ("keystone.conf", "keys.conf", "uwsgi.ini"),
        ("-rw-r-----", cloud.users.keystone, cloud.users.keystone_group),
    )
    config = parsed(directory / "keystone.conf")
    user, _, address = config["database"]["connection"].rpartition("@")
    assert address.startswith(f"{HOST}:")
    assert unquote(user.partition("keystone:")[2]) == cloud.secrets.keystone_database_password
    assert config["cache"]["memcache_servers"].startswith(f"{HOST}:")
    assert parsed(directory / "uwsgi.ini")["uwsgi"]["http-socket"] == f"{HOST}:{cloud.ports[HOSTS[1]]}"


def described(path: Path) -> tuple[str, str, str]:
    return stat.filemode(path.stat().st_mode), path.owner(), path.group()


def parsed(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(path.read_text())
    return parser


def test_the_database_runs_as_its_own_user_and_alone_can_read_its_files(cloud: Cloud) -> None:
    """`user` and `owner` of the definition: the agent was started by root and gave it up."""
    assert Path(f"/proc/{cloud.mariadb.pid}").owner() == cloud.users.mariadb
    for name in ("my.cnf", "init.sql"):
        path = cloud.mariadb.root / "etc" / "mysql" / name
        assert stat.filemode(path.stat().st_mode) == "-rw-------"
        assert path.owner() == cloud.users.mariadb


def test_ready_instances_tell_where_they_can_be_reached(cloud: Cloud) -> None:
    """Three replicas on one address: by host and by port they differ."""
    instances = cloud.ready(API).values()
    assert {(each["host"], each["address"], tuple(each["ports"])) for each in instances} == {
        (host, HOST, (port,)) for host, port in cloud.ports.items()
    }
    assert len(cloud.members(API)) == len(HOSTS)


def test_a_daemon_has_the_agents_process_id_and_is_healthy(cloud: Cloud) -> None:
    """exec: the process that the launcher started is now the daemon itself."""
    programs = {MARIADB: "mariadbd", MEMCACHED: "memcached", API: "uwsgi"}
    for container in (cloud.mariadb, cloud.memcached, *cloud.replicas):
        assert programs[container.service] in command_line(container.pid)
        status, line = health(container, "--ready")
        assert (status, line.partition(" ")[0]) == (0, "ready")


def test_nothing_starts_before_what_it_needs(cloud: Cloud) -> None:
    """Every command and daemon began after all that its definition makes it depend on was done."""
    steps = cloud.steps()
    finished = critical_path.Finished(steps)
    assert {need.name for step in steps for need in step.needs} <= {step.name for step in steps}
    early = [
        f"{step.name} on {step.host} at {step.started:.3f}, {before.name} done at {before.finished:.3f}"
        for step in steps
        for before in critical_path.needed(step, finished)
        if step.started < before.finished - CLOCK_GRAIN
    ]
    assert not early


def test_nothing_can_be_read_that_acl_yml_does_not_plan(cloud: SecuredCloud) -> None:
    """Not by the world, and a password not by the services that do not need it."""
    assert world(cloud.zk, cloud.path) == []
    for service in (MARIADB, MEMCACHED, TASKS, API):
        for client in connected(cloud.secured, **cloud.secured.options(name(service))):
            for variable, readers in READERS.items():
                assert may_read(client, f"{cloud.path}/variables/{variable}") == (service in readers)


def may_read(client: KazooClient, path: str) -> bool:
    try:
        client.get(path)
    except NoAuthError:
        return False
    return True


def test_a_restarted_replica_passes_through_what_is_done(cloud: Cloud) -> None:
    """Stopped and started again: nothing runs a second time, no file is touched, and it serves again.

    It ends once it has answered a request that had begun before.
    """
    replica = cloud.replicas[-1]
    runs, files = cloud.runs(), fingerprints(replica)
    with closing(HTTPConnection(HOST, cloud.ports[replica.host], timeout=60)) as client:
        begin_request(cloud, client)
        os.kill(replica.pid, signal.SIGTERM)
        cloud.eventually(lambda: "graceful shutdown" in replica.log_end(), "uwsgi is stopping")
        client.send(b"{}")
        assert client.getresponse().status == 400, "no body of such a request"
    assert stop(replica) == 0
    cloud.eventually(lambda: len(cloud.ready(API)) == len(HOSTS) - 1, "its instance is gone")
    replica.start()
    cloud.eventually(lambda: len(cloud.ready(API)) == len(HOSTS), "it is ready again", seconds=120)
    assert cloud.runs() == runs
    assert fingerprints(replica) == files
    assert len(cloud.members(API)) == len(HOSTS)
    assert cloud.validate_token(replica.host, cloud.issue_token(HOSTS[0]))["user"]["name"] == "admin"


def begin_request(cloud: Cloud, client: HTTPConnection) -> None:
    """Send a request but for its body; a worker of the replica has taken it."""
    client.putrequest("POST", "/v3/auth/tokens")
    client.putheader("Content-Type", "application/json")
    client.putheader("Content-Length", "2")
    client.endheaders()
    port = client.sock.getsockname()[1]

    def taken() -> bool:
        return any(
            each.raddr and each.raddr.port == port
            for pid in cloud.processes()
            for each in psutil.Process(pid).net_connections()
        )

    cloud.eventually(taken, "a worker has the request")


def fingerprints(container: LocalContainer) -> dict[str, tuple[int, int]]:
    """Of each config file what changes with every writing."""
    files = (container.root / "etc" / "keystone").iterdir()
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_dependents_see_that_the_database_was_killed(cloud: Cloud) -> None:
    """kill -9 of the database: the registrar sees it at once; who needs it waits for it."""
    os.kill(cloud.mariadb.pid, signal.SIGKILL)
    cloud.mariadb.wait()
    cloud.eventually(lambda: not cloud.ready(MARIADB), "the instance is gone", seconds=5)
    runs = cloud.runs()
    cloud.tasks.start()
    cloud.eventually(lambda: waits_for_the_database(cloud), "a dependent says that it waits for the database")
    cloud.mariadb.start()
    cloud.eventually(lambda: cloud.ready(MARIADB), "the database is back")
    assert cloud.tasks.wait() == 0
    assert cloud.runs() == runs, "what was done is not done again"
    cloud.eventually(lambda: accepted(cloud, HOSTS[1]), "Keystone reaches the database again")


def waits_for_the_database(cloud: Cloud) -> bool:
    status, line = health(cloud.tasks)
    return status == 0 and line.startswith("waiting") and "mariadb/daemon" in line


def accepted(cloud: Cloud, host: str) -> bool:
    try:
        return bool(cloud.issue_token(host))
    except HTTPError:
        return False


def test_no_secret_shows_anywhere(cloud: Cloud) -> None:
    """Not in a log, a state, an argument; not in a znode, but for the variables that hold it."""
    planted = {path: data for path, (data, _) in znodes(cloud.zk, cloud.path).items()}
    public = {
        path: data for path, data in planted.items() if not {"variables", "files"} & set(path.split("/"))
    }
    assert shown(cloud, planted) == {
        f"{name} in {cloud.path}/variables/{name}" for name in cloud.secrets._fields
    }
    assert len(public) > 50
    assert shown(cloud, public) == set()
    assert shown(cloud, local_files(cloud)) == set()
    assert shown(cloud, environments(cloud)) == set()
    seen = cloud.command_lines.seen.copy()  # it goes on looking
    for program in (
        "bin/kolla_mesos_start",
        "commands.guard",
        "keystone-manage",
        "mariadbd",
        "uwsgi",
    ):
        assert any(program in line for line in seen), f"never saw the arguments of {program}"
    assert cloud.command_lines.found == set()


def shown(cloud: Cloud, places: Mapping[str, bytes]) -> set[str]:
    """Which secret shows where."""
    return {
        f"{name} in {place}"
        for place, data in places.items()
        for name, needle in cloud.secrets.needles().items()
        if needle.encode() in data
    }


def local_files(cloud: Cloud) -> dict[str, bytes]:
    """What the containers have left on disk: logs, the agents' state; not config files, not the database."""
    hidden = {"etc", "mysql"}
    places = [place for each in cloud.containers for place in (each.root, each.run_dir)]
    paths = (path for place in places for path in place.rglob("*") if not hidden & set(path.parts))
    found = {str(path): path.read_bytes() for path in paths if path.is_file()}
    assert all(str(each.log) in found for each in cloud.containers)
    return found


def environments(cloud: Cloud) -> dict[str, bytes]:
    """The environment of every process that runs now: the password of a command was for it alone."""
    return {command_line(pid): environment(pid).encode() for pid in cloud.processes()}


def test_arguments_are_searched_well(cloud: Cloud) -> None:
    """A process with a secret in its arguments would have been found above."""
    search = CommandLines(cloud.secrets.needles())
    secret = cloud.secrets.keystone_admin_password
    with subprocess.Popen(("sh", "-c", "read line", secret), stdin=subprocess.PIPE) as leaking:
        # Not at once: for a moment after exec a process has no arguments yet.
        eventually(search.look, "the process is found")
        leaking.communicate(b"\n")
    assert search.found == {"keystone_admin_password in the arguments of sh"}


def test_everything_stops_and_leaves_nothing(cloud: SecuredCloud) -> None:
    """SIGTERM to each container: clean exits; no instance, no member stays."""
    assert set(cloud.stop().values()) == {0}
    # The server that is asked may be behind the one that has ended the sessions.
    for service in (MARIADB, MEMCACHED, API):
        cloud.eventually(lambda: not cloud.ready(service), f"no instance of {service} stays")  # noqa: B023
        cloud.eventually(lambda: not cloud.members(service), f"no member of {service} stays")  # noqa: B023
