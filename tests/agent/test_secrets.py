"""No secret shows anywhere but where it was put: a whole deployment with failures in it, then a search.

Once with a credential; and once under TLS, where each service has a certificate of its own and `acl.yml` says
who may read what: then the search goes through all that the others can read, too.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.zk import acls, connection
from kolla_mesos_start.settings import parse
from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import Deployment, connected, made
from tests.support.agents import Agent, Containers
from tests.support.secured import Secured
from tests.support.tool import TOOL, environ
from tests.support.waiting import eventually
from tests.support.walking import znodes

# What is planted, by where it stands. Each is found by its text alone, in whatever surrounds it.
VARIABLE = "S3cretOfTheVariable"
HOST_VARIABLE = "S3cretOfTheHost"
FILE = "S3cretOfTheFile"
MOUNTED = "S3cretOfTheMountedFile"
COMMAND = "S3cretOfTheCommandText"
ENV = "S3cretOfTheEnv"
CHECK = "S3cretOfTheReadinessCheck"
PASSWORD = "S3cretOfZooKeeper"
OUTPUT = "S3cretThatACommandPrints"
LAUNCHER = "S3cretOfTheLauncher"
SECRETS = (VARIABLE, HOST_VARIABLE, FILE, MOUNTED, COMMAND, ENV, CHECK, PASSWORD, OUTPUT, LAUNCHER)

ENVIRONMENT = {"LITERAL": ENV, "RENDERED": "{{ password }} {{ key }}"}
TEXT = f": {COMMAND} {{{{ password }}}};"  # What every command begins with; a shell makes nothing of it.


def command(text: str, **more: Any) -> dict[str, Any]:
    return {"command": TEXT + text, "env": ENVIRONMENT, **more}


def task(text: str, **more: Any) -> dict[str, Any]:
    return {"commands": {"go": command(text, **more)}}


def with_file(**more: Any) -> dict[str, Any]:
    """A task with a file that can't be written."""
    return task("true", files={"conf": {"dest": "/dev/null/conf", **more}})


# Templates that can't be rendered, each for a reason that could show what `password` holds.
CONTENTS = {
    "divides": "{{ 1 // (password | length - password | length) }}",
    "adds": "{{ password + 1 }}",
    "calls": "{{ password() }}",
    "formats": "{{ password % 1 }}",
    "filters": "{{ password | nosuchfilter }}",
    "breaks": "{{ password ",
    "includes": "{% include password %}",
    "raises": "{{ [][password] }}{{ {}[password].x }}{{ nothing }}",
    "attributes": "{{ password.nothing.more }}",
    "sandbox": "{{ password.__class__.__mro__ }}{{ password.format.__globals__ }}",
    "bytes": "{{ undecodable }}",
}
# Services that end unhappily, with secrets beside what is wrong; and the exit status of each.
FAILURES: Mapping[str, tuple[int, dict[str, Any] | bytes]] = {
    "exits": (1, task(f"echo {OUTPUT}; echo {OUTPUT} >&2; exit 3", retries=1, delay=0.01)),
    "hangs": (1, task("sleep 100", timeout=0.2, run_once=True)),
    "dies": (1, task("kill -9 $$", run_once=True)),
    "absent": (1, {"commands": {"go": {"command": ["/nowhere/go", COMMAND], "env": ENVIRONMENT}}}),
    "rendered_absent": (1, {"commands": {"go": {"command": ["/nowhere/{{ password }}"]}}}),
    "no_daemon": (127, {"service": {"daemon": {"command": ["/nowhere/daemon", COMMAND]}}}),
    "no_rendered_daemon": (127, {"service": {"daemon": {"command": ["/nowhere/{{ password }}"]}}}),
    "bad_daemon": (126, {"service": {"daemon": {"command": ["/etc/passwd", COMMAND], "env": ENVIRONMENT}}}),
    "unwritable": (73, with_file()),
    **{service: (78, with_file()) for service in CONTENTS},
    "number": (65, task("true", retries="{{ password }}")),
    "timeout": (65, task("true", timeout="{{ password }}")),
    "flag": (65, task("true", run_once="{{ password }}")),
    "perm": (65, with_file(perm="{{ password }}")),
    "quoting": (65, {"commands": {"go": {"command": f"echo '{COMMAND}"}}}),
    "json": (
        65,
        b'{"commands": {"go": {"command": "'
        + COMMAND.encode()
        + b'", "env": {"A": "'
        + ENV.encode()
        + b"}}}",
    ),
    "value": (
        65,
        {"commands": {"go": {"command": COMMAND, "env": {"A": [ENV]}, "files": {"a": ENV}}}},
    ),
    "key": (65, {"commands": {"go": {"command": COMMAND, "environment": {"A": ENV}}}}),
}


DATABASE, OTHER, KILLED = "infra/db", "infra/other", "infra/killed"
# As whom agents connect, where that is by certificate, and what such a certificate may read in ZooKeeper.
IDENTITIES = {DATABASE: "db", OTHER: "other", KILLED: "killed", **dict.fromkeys(FAILURES, "failing")}
MAY_READ = {
    "other": (),
    "stranger": (),
    "killed": (VARIABLE, FILE, COMMAND, ENV),
    "failing": (VARIABLE, FILE, COMMAND, ENV, OUTPUT),
}


class Run:
    """A deployment that has run, and everything that it has left behind or shown meanwhile.

    `secured` is its ensemble where that wants certificates.
    """

    def __init__(
        self,
        zk: KazooClient,
        deployment: Deployment,
        containers: Containers,
        directory: Path,
        secured: Secured | None,
    ) -> None:
        self.zk, self.deployment, self.containers, self.directory = zk, deployment, containers, directory
        self.secured = secured
        self.left: list[int] = []
        self.processes: dict[str, bytes] = {}
        self.environments: dict[str, bytes] = {}
        self.agents: dict[str, Agent] = {}
        auth = directory / "auth"
        auth.write_text(f"digest:agent:{PASSWORD}\n")
        mounted = directory / "mounted"
        mounted.write_text(MOUNTED + " {{ password }}")
        digest = make_digest_acl("agent", PASSWORD, all=True)
        zk.add_auth("digest", f"agent:{PASSWORD}")
        self.environ = {
            "KOLLA_LOGLEVEL": "debug",
            "KOLLA_ZK_AUTH_FILE": str(auth),
            **({} if secured else {"KOLLA_ZK_ACL": f"digest:{digest.id.id}:cdrwa"}),
            "KOLLA_ZK_SESSION_TIMEOUT": "4",
            "LAUNCHER_TOKEN": LAUNCHER,
        }

    def identity(self, name: str) -> Mapping[str, str]:
        """The variables with somebody's certificate."""
        return self.secured.environment(name) if self.secured else {}

    @property
    def keys(self) -> list[str]:
        """A line of each key: a secret as well."""
        names = {*IDENTITIES.values(), "operator"} if self.secured else ()
        return [Path(self.identity(name)["KOLLA_ZK_KEY"]).read_text().splitlines()[1] for name in names]

    def secure(self) -> None:
        """Have `acl.yml` followed, as `publish` does."""
        if not self.secured:
            return
        services = {service: self.secured.identity(name) for service, name in IDENTITIES.items()}
        readers = [service for service in services if service != OTHER]
        variables = {"password": readers, "undecodable": readers}
        plan = Plan(self.secured.identity("operator"), services, variables, ["web1"])
        settings = parse({**self.deployment.environ("operator"), **self.identity("operator")})
        znodes = Znodes(settings.prefix, settings.deployment_id, "", "")
        client = connection.connect(settings)
        client.use_plan(plan)
        acls.make(client, znodes, plan, {})
        acls.secure(client, znodes, plan)
        client.close()

    def found(self, data: bytes, but: tuple[str, ...] = ()) -> list[str]:
        """The secrets in some data."""
        return [each for each in (*SECRETS, *self.keys) if each.encode() in data and each not in but]

    def publish(self, service: str, definition: dict[str, Any] | bytes, **files: str) -> None:
        """Definitions that are wrong too: the operator's tool would refuse them."""
        data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
        path = f"{self.deployment.path}/{service}"
        self.zk.ensure_path(path)
        for name, content in files.items():
            self.zk.create(f"{path}/files/{name}", content.encode(), makepath=True)
        self.zk.set(path, data)

    def start(self, service: str, **environ: str) -> Agent:
        name = f"{service.replace('/', '-')}-{len(self.agents)}"
        temporary = self.directory / "tmp" / name
        temporary.mkdir(parents=True)
        given = {**self.environ, **self.identity(IDENTITIES[service]), "TMPDIR": str(temporary), **environ}
        self.agents[name] = self.containers.start(service, **given)
        return self.agents[name]

    def note(self, who: str, pid: int) -> None:
        """What anybody on the host can see of a process now, and what its user can."""
        process = Path("/proc") / str(pid)
        self.processes[who] = (process / "cmdline").read_bytes() + (process / "comm").read_bytes()
        files = []
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # It has been closed since.
                files.append(os.fsencode(os.readlink(descriptor)))
        self.processes[f"{who}'s files"] = b"\n".join(files)
        self.environments[who] = (process / "environ").read_bytes()


@pytest.fixture(scope="module", params=["credential", "certificates"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The deployment, when all of it has happened."""
    directory = tmp_path_factory.mktemp("secrets")
    secured = request.getfixturevalue("shared_secured") if request.param == "certificates" else None
    servers = secured or request.getfixturevalue("shared_zookeeper")
    servers.mend()
    for zk in connected(servers, **(secured.options() if secured else {})):
        for deployment in made(servers, zk):
            containers = Containers(directory / "containers", deployment.environ)
            try:
                run = Run(zk, deployment, containers, directory, secured)
                happen(run)
                yield run
            finally:
                containers.end()


def happen(run: Run) -> None:
    variables = f"{run.deployment.path}/variables"
    run.zk.create(f"{variables}/password", VARIABLE.encode(), makepath=True)
    run.zk.create(f"{variables}/undecodable", VARIABLE.encode() + b"\xff", makepath=True)
    key = f"{run.deployment.path}/{DATABASE}/variables/web1/key"
    run.zk.create(key, HOST_VARIABLE.encode(), makepath=True)
    run.zk.create(f"{variables}/key", b"", makepath=True)
    publish_database(run)
    run.publish(OTHER, {"commands": {"go": {"command": "true"}}})
    publish_killed(run)
    for service, (_, definition) in FAILURES.items():
        run.publish(service, definition, conf=FILE + CONTENTS.get(service, ""))
    run.secure()
    database = start_database(run)
    kill_one(run)
    set_a_variable(run)
    look_at_refresh(run, database.registrar)
    bad_credentials = run.directory / "bad"
    bad_credentials.write_text(PASSWORD)
    agents = [(status, run.start(service)) for service, (status, _) in FAILURES.items()]
    agents += [
        (64, run.start(DATABASE, KOLLA_ZK_AUTH_FILE=str(bad_credentials))),
        (64, run.start(DATABASE, KOLLA_ZK_AUTH_FILE=PASSWORD, KOLLA_ZK_KEY=PASSWORD)),
        (64, run.start(DATABASE, KOLLA_ZK_ACL=f"digest:agent:{PASSWORD}:cdrwa")),
        (64, run.start(DATABASE, KOLLA_ZK_HOSTS=f"agent:{PASSWORD}@{run.deployment.hosts}")),
        (77, run.start(DATABASE, KOLLA_ZK_AUTH_FILE=wrong_credentials(run))),
    ]
    for status, agent in agents:
        assert agent.ends() == status, agent.said


def wrong_credentials(run: Run) -> str:
    """Of a scheme that the server does not know, so that it refuses the session."""
    path = run.directory / "wrong"
    path.write_text(f"nosuch:{PASSWORD}\n")
    return str(path)


def publish_database(run: Run) -> None:
    files = {
        "conf": {"dest": str(run.directory / "etc" / "conf")},
        "raw": {"dest": str(run.directory / "etc" / "raw"), "template": False},
        "mounted": {
            "dest": str(run.directory / "etc" / "mounted"),
            "mounted": str(run.directory / "mounted"),
        },
    }
    told = run.directory / "told"
    once = command("[ -e tried ] || { touch tried; exit 3; }; touch up; until [ -e go ]; do sleep 0.02; done")
    definition = {
        "commands": {"setup": {**once, "run_once": True, "retries": 1, "delay": 0.01, "files": files}},
        "service": {
            "daemon": {
                **command("exec sleep 100"),
                "ready": {"command": f": {CHECK}; [ -e good ]", "interval": 0.05},
                "files": {"followed": {"dest": str(run.directory / "etc" / "followed")}},
                "on_change": {"command": f"touch {told}; until [ -e {told}.seen ]; do sleep 0.02; done"},
            }
        },
    }
    conf = FILE + " {{ password }} {{ key }}"
    run.publish(DATABASE, definition, conf=conf, raw=FILE, followed=conf)


def start_database(run: Run) -> Agent:
    """A service that comes up, with a one-time command that fails at first; looked at on its way."""
    agent = run.start(DATABASE)
    eventually((agent.directory / "up").exists, "the command runs")
    run.note("agent", agent.pid)
    (guard,) = psutil.Process(agent.pid).children()
    run.note("guard", guard.pid)
    run.note("command", guard.children()[0].pid)
    (agent.directory / "go").touch()
    eventually(lambda: agent.registrar, "the registrar")
    (agent.directory / "good").touch()
    eventually(lambda: agent.health("--ready").returncode == 0, "the daemon is ready")
    run.note("registrar", agent.registrar)
    run.note("daemon", agent.pid)
    assert (run.directory / "etc" / "conf").read_text() == f"{FILE} {VARIABLE} {HOST_VARIABLE}"
    assert (run.directory / "etc" / "mounted").read_text() == f"{MOUNTED} {VARIABLE}"
    return agent


def look_at_refresh(run: Run, registrar: int) -> None:
    """The variable that was set is in a file of the daemon, which is being told."""
    eventually((run.directory / "told").exists, "the daemon is told of its new file")
    # Beside it the registrar has its checks for children, ever new ones.
    (refresh,) = (each for each in psutil.Process(registrar).children() if is_refresh(each))
    run.note("refresh", refresh.pid)
    (run.directory / "told.seen").touch()
    eventually(lambda: not refresh.is_running(), "the refresh is over")
    assert (run.directory / "etc" / "followed").read_text() == f"{FILE} {VARIABLE} {VARIABLE} {HOST_VARIABLE}"


def is_refresh(process: psutil.Process) -> bool:
    try:
        return any("refresh" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def publish_killed(run: Run) -> None:
    check = (
        f"touch {run.directory}/checks; until [ -e {run.directory}/go ]; do sleep 0.02; done; test -s {{}}"
    )
    file = {"dest": str(run.directory / "killed" / "conf"), "check": check}
    run.publish(KILLED, task("true", files={"conf": file}), conf=FILE + " {{ password }}")


def kill_one(run: Run) -> None:
    """Kill an agent that has begun to write a file; the next start is a good one."""
    agent = run.start(KILLED)
    eventually((run.directory / "checks").exists, "the new file is checked")
    agent.signal(signal.SIGKILL)
    agent.process.wait()
    run.left = [path.stat().st_mode for path in (run.directory / "killed").iterdir()]
    (run.directory / "go").touch()
    agent.restart()
    assert agent.ends() == 0, agent.said


def set_a_variable(run: Run) -> None:
    """By the operator's tool, from its standard input."""
    given = {**run.environ, **run.identity("operator")}
    with subprocess.Popen(
        (sys.executable, TOOL, "set", "password", "-"),
        env=environ(run.deployment, **given),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as tool:
        run.note("tool", tool.pid)
        said, _ = tool.communicate(f"{VARIABLE} {VARIABLE}".encode())
    assert tool.returncode == 0, said
    assert run.found(said) == []


def test_no_secret_is_in_a_log(run: Run) -> None:
    """At level debug, with every kind of failure; what a command prints itself is there once."""
    found = {name: run.found(agent.log.read_bytes(), but=(OUTPUT,)) for name, agent in run.agents.items()}
    assert {name: secrets for name, secrets in found.items() if secrets} == {}
    printed = {name: agent.said.count(OUTPUT) for name, agent in run.agents.items() if OUTPUT in agent.said}
    assert list(printed.values()) == [4]  # two attempts, each on both streams


def test_no_secret_is_in_a_termination_log(run: Run) -> None:
    """Kubernetes shows it to whoever may look at pods."""
    logs = [agent.directory / "termination-log" for agent in run.agents.values()]
    written = [path.read_bytes() for path in logs if path.exists()]
    assert len(written) == len(run.agents) - 2  # Two have ended well, or not at all.
    assert [run.found(data) for data in written] == [[]] * len(written)


def test_no_secret_is_in_a_znode_of_the_agent(run: Run) -> None:
    """Neither in the status tree nor in a party; only publishers have put any."""

    services = {f"{run.deployment.path}/{service}" for service in IDENTITIES}
    found = znodes(run.zk, run.deployment.path, but=("variables", "files"))
    paths = found.keys() - services
    assert {path for path in paths if run.found(found[path][0]) or run.found(path.encode())} == set()
    # Where most could be: what became of the command that failed, and of the one that could not be started.
    for service in ("exits", "absent", "hangs", "dies"):
        detail = json.loads(run.zk.get(f"{run.deployment.path}/status/global/{service}/go/detail")[0])
        assert detail["state"] == "error"


def test_no_secret_is_in_a_file_of_the_agent(run: Run) -> None:
    """Its run and state directories, and wherever temporary files go."""
    directories = [agent.directory / name for agent in run.agents.values() for name in ("run", "state")]
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    assert len(files) >= len(FAILURES)
    assert [path for path in files if run.found(path.read_bytes())] == []
    assert [path for path in (run.directory / "tmp").rglob("*") if path.is_file()] == []


def test_no_secret_of_a_service_can_be_read_by_others(run: Run) -> None:
    """Nor by whoever has a certificate of no service; a service can read its own, and what all share."""
    names = MAY_READ if run.secured else ()
    assert {name: secrets_read_by(run, name) for name in names} == {name: {*MAY_READ[name]} for name in names}


def secrets_read_by(run: Run, name: str) -> set[str]:
    """The secrets in all of the deployment that a certificate may read."""
    assert run.secured
    with contextmanager(connected)(run.secured, **run.secured.options(name)) as zk:
        readable = list(read(zk, run.deployment.prefix))
    return {secret for path, data in readable for secret in run.found(path.encode() + data)}


def read(zk: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """What a client may read at a path and below it."""
    with suppress(NoAuthError):
        yield path, zk.get(path)[0]
    children = []
    with suppress(NoAuthError):
        children = zk.get_children(path)
    for name in children:
        yield from read(zk, f"{path}/{name}")


def test_what_a_killed_agent_leaves_is_for_its_own_user_only(run: Run) -> None:
    """Until the next start, which removes it."""
    assert [stat.filemode(mode) for mode in run.left] == ["-rw-------"]
    assert [path.name for path in (run.directory / "killed").iterdir()] == ["conf"]


@pytest.mark.parametrize("who", ["agent", "guard", "registrar", "refresh", "tool"])
def test_no_secret_can_be_seen_in_a_process(run: Run, who: str) -> None:
    """Neither in its arguments nor in its environment, but for what the launcher gave to the container."""
    assert run.found(run.processes[who]) == []
    assert run.found(run.environments[who], but=(LAUNCHER,)) == []
    # What was handed over in memory is gone: its descriptor would be an open book to the user.
    # (What a refresh reports holds names only.)
    assert b"memfd" not in run.processes[f"{who}'s files"].replace(b"memfd:report", b"")


@pytest.mark.parametrize("who", ["guard", "registrar"])
def test_our_helpers_are_not_given_the_environment_of_the_container(run: Run, who: str) -> None:
    """They have no use for it: commands and checks get theirs from the agent."""
    assert run.found(run.environments[who]) == []
    assert b"KOLLA_ZK_" not in run.environments[who]


@pytest.mark.parametrize("who", ["command", "daemon"])
def test_commands_and_daemon_are_not_told_where_our_credentials_are(run: Run, who: str) -> None:
    """They get what the launcher and the definition give them, and no way to ours."""
    found = run.environments[who].split(b"\0")
    assert f"LITERAL={ENV}".encode() in found
    assert f"RENDERED={VARIABLE} {HOST_VARIABLE}".encode() in found
    assert f"LAUNCHER_TOKEN={LAUNCHER}".encode() in found
    assert b"KOLLA_CONFIG_STRATEGY=COPY_ALWAYS" in found
    assert not [entry for entry in found if entry.startswith(b"KOLLA_ZK_AUTH_FILE")]
