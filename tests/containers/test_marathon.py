"""The apps of etc/marathon, and one that is generated, run as Mesos runs them: by what stands in their JSON.

What Marathon and Mesos do is done here by podman: Docker's containerizer keeps the image's ENTRYPOINT and
its process 1; Mesos' own one has neither, and leaves the task to root and the agent's process ids. What can't
be as it is in a cluster: images are the tests' own, and the port that is offered is a free one.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import formats
from tests import CHECKOUT
from tests.conftest import Deployment, connected
from tests.containers.images import Images
from tests.containers.podman import Container, Podman
from tests.containers.relay import Relay
from tests.examples.openstack import EXAMPLE
from tests.support.documents import literals, parsed, table
from tests.support.instances import Site
from tests.support.marathon import wrong
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

PLACE = "etc/marathon"
APPS: Mapping[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted((CHECKOUT / PLACE).glob("*.json"))
}
MEMCACHED, MARIADB = "infra/memcached/memcached", "infra/mariadb/mariadb"
CHROOT, DEPLOYMENT = "/openstack", "cloud"  # as the apps have them
SANDBOX = "/mnt/mesos/sandbox"
AGENT = "agent7.example.org"
CONTAINER_IP = "198.51.100.7"
MEMCACHED_UID = 42457  # as Kolla has it
LOOPBACK = {"KOLLA_PRIVATE_INTERFACE": "lo", "KOLLA_PUBLIC_INTERFACE": "lo"}

# -- what Marathon takes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", APPS)
def test_marathon_would_take_the_app(name: str) -> None:
    """Its fields are those that Marathon documents, each of its kind; its port is the example's."""
    assert wrong(APPS[name]) == []
    values = formats.values(EXAMPLE / "variables.yml")
    for definition in APPS[name]["portDefinitions"]:
        assert str(definition["port"]) == values[f"{name}_port"]


def test_every_app_is_told_of() -> None:
    """In a page that is shown as it is meant."""
    page = f"{PLACE}/README.rst"
    assert parsed(page)[1] == ""
    told = [name for row in table(page, "app") for name in literals(row[0])]
    assert sorted(told) == sorted(f"{name}.json" for name in APPS)


# -- what Marathon and Mesos do ----------------------------------------------------------------------


class Marathon:
    """Starts apps on the one agent that there is."""

    def __init__(self, podman: Podman, images: Images, directory: Path, master: str) -> None:
        self._podman, self._images, self._directory = podman, images, directory
        self._options = [f"--add-host=master.mesos:{master}", "--hostname=a-container"]
        self._containers: list[Container] = []
        self.offered = free_port()

    def host(self, path: str) -> Path:
        """Where the agent's file system has that path."""
        return self._directory / "host" / path.lstrip("/")

    def start(self, app: Mapping[str, Any], **environ: str) -> Container:
        """A task of the app, in a sandbox of its own."""
        sandbox = self._directory / str(len(self._containers))
        sandbox.mkdir()
        sandbox.chmod(0o777)
        image = re.sub(".*/([^:]*):.*", r"\1", app["container"]["docker"]["image"])
        options, words = self._launched(app)
        options += [
            f"--{each['key']}={each['value']}" for each in app["container"]["docker"].get("parameters", ())
        ]
        for each in app["container"].get("volumes", ()):
            place = self.host(each["hostPath"])
            options.append(f"--volume={place}:{each['containerPath']}:{each['mode'].lower()}")
        container = self._podman.run(
            self._images.agent(image),
            *words,
            environ={**self._environ(app), **LOOPBACK, **environ},
            volumes={sandbox: SANDBOX},
            options=[*self._options, *options],
        )
        self._containers.append(container)
        return container

    def _launched(self, app: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        if app["container"]["type"] == "DOCKER":
            # As for `docker run IMAGE args`, where `cmd` takes the place of ENTRYPOINT and is process 1.
            return ([], app["args"]) if "args" in app else (["--entrypoint=/bin/sh"], ["-c", app["cmd"]])
        entrypoint = json.dumps(["/bin/sh", "-c", app["cmd"]])
        return [f"--entrypoint={entrypoint}", "--user=root", "--pid=host", f"--workdir={SANDBOX}"], []

    def _environ(self, app: Mapping[str, Any]) -> dict[str, str]:
        """What the app says, then docs/docs/task-environment-vars.md, then Mesos."""
        ports = app.get("portDefinitions", app["container"].get("portMappings", ()))
        offered = {name: str(self.offered) for name in ("PORT", "PORT0", "PORTS")} if ports else {}
        return {
            **app["env"],
            **offered,
            **{f"PORT_{each['name'].upper()}": offered["PORT0"] for each in ports},
            "MARATHON_APP_ID": app["id"],
            "MARATHON_APP_VERSION": "2025-11-21T23:07:54.000Z",
            "MARATHON_APP_DOCKER_IMAGE": app["container"]["docker"]["image"],
            "MARATHON_APP_RESOURCE_CPUS": str(app["cpus"]),
            "MARATHON_APP_RESOURCE_MEM": str(app["mem"]),
            "MARATHON_APP_LABELS": "HAPROXY_GROUP",
            "MARATHON_APP_LABEL_HAPROXY_GROUP": "internal",
            "MESOS_TASK_ID": f"{app['id'].strip('/').replace('/', '_')}.4f1b9b2e-c72d-11f0-9d3a-70b3d5800001",
            "MESOS_SANDBOX": SANDBOX,
            "MESOS_CONTAINER_IP": CONTAINER_IP,
            "HOST": AGENT,
        }

    def health(self, app: Mapping[str, Any], container: Container) -> tuple[int, str]:
        """The app's own check, by a shell inside the container; its exit status and what it says."""
        (check,) = app["healthChecks"]
        done = container.exec("/bin/sh", "-c", check["command"]["value"])
        return done.returncode, done.stdout.strip()

    def becomes(self, app: Mapping[str, Any], container: Container, status: int, says: str) -> None:
        """Wait until the health check says so."""

        def is_so() -> bool:
            assert container.running, container.said
            found = self.health(app, container)
            return found[0] == status and found[1].startswith(says)

        eventually(is_so, f"{app['id']} {says}", every=0.1)

    def stop(self, app: Mapping[str, Any], container: Container) -> int:
        """SIGTERM, and the app's grace period in which it has to end by itself; the exit status."""
        grace = app["taskKillGracePeriodSeconds"]
        begun = time.monotonic()
        if app["container"]["type"] == "DOCKER":
            container.stop(grace)
        else:
            os.killpg(container.pid, signal.SIGTERM)
            eventually(lambda: not container.running, "it has ended", seconds=grace)
        assert time.monotonic() - begun < grace
        return container.status

    def end(self) -> None:
        for container in self._containers:
            print(container.said)
            container.remove()


@pytest.fixture(scope="module")
def master(shared_zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of master.mesos, whose port 2181 is ZooKeeper's; no other run of the tests has it."""
    address = ".".join(("127", *(str(random.randint(1, 254)) for _ in range(3))))
    relay = Relay(shared_zookeeper, address, 2181, tmp_path_factory.mktemp("master") / "log")
    yield address
    relay.kill()


@pytest.fixture(scope="module")
def zk(shared_zookeeper: Server) -> Iterator[KazooClient]:
    """The module's own, for the deployment outlives a test; its root is where the apps look for theirs."""
    shared_zookeeper.mend()
    with contextmanager(connected)(shared_zookeeper) as zk:
        zk.ensure_path(CHROOT)
        yield zk
        zk.delete(CHROOT, recursive=True)


@pytest.fixture(scope="module")
def marathon(
    podman: Podman,
    images: Images,
    zk: KazooClient,
    master: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Marathon]:
    marathon = Marathon(podman, images, tmp_path_factory.mktemp("sandboxes"), master)
    yield marathon
    marathon.end()


@pytest.fixture(scope="module")
def memcached(marathon: Marathon) -> Container:
    """A task of the app in the form of `cmd`; it is started before anything is published."""
    return marathon.start(APPS["memcached"])


@pytest.fixture(scope="module")
def tasks(marathon: Marathon) -> Container:
    """A task of the app in the form of `args`; so is this one."""
    return marathon.start(APPS["keystone-tasks"])


@pytest.fixture(scope="module")
def tree(marathon: Marathon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's directory, with the values of this machine."""
    tree = tmp_path_factory.mktemp("published") / "keystone"
    shutil.copytree(EXAMPLE, tree)
    values = {
        **formats.values(EXAMPLE / "variables.yml"),
        "memcached_port": marathon.offered,
        "mariadb_port": free_port(),
    }
    (tree / "variables.yml").write_text(json.dumps(values))
    return tree


@pytest.fixture(scope="module")
def site(
    memcached: Container, tasks: Container, tree: Path, shared_zookeeper: Server, zk: KazooClient
) -> Site:
    """The example, published, and its memcached as one sees it in the tree."""
    words = ["--deployment", DEPLOYMENT, "--hosts", shared_zookeeper.hosts + CHROOT]
    cli.run(["publish", str(tree), *words])
    return Site(Deployment(shared_zookeeper.hosts, f"{CHROOT}/kolla", DEPLOYMENT), zk, MEMCACHED)


# -- cmd, under Mesos' own containerizer ---------------------------------------------------------------


def test_a_container_that_waits_is_healthy(marathon: Marathon, memcached: Container) -> None:
    """Marathon would otherwise kill it; what it waits for is somebody else's."""
    marathon.becomes(APPS["memcached"], memcached, 0, "waiting for the definition")


def test_a_ready_daemon_is_healthy(marathon: Marathon, memcached: Container, site: Site) -> None:
    """It has found its ensemble by zk://, and below it what is published there."""
    marathon.becomes(APPS["memcached"], memcached, 0, "ready")
    # Its check has succeeded; that it is registered follows.
    eventually(lambda: len(site.instances()) == 1, "it is registered")


def test_no_entrypoint_and_no_shell_is_above_the_daemon(memcached: Container, site: Site) -> None:
    """The process that Mesos has started is the daemon, in the user's name that the definition gives."""
    process = psutil.Process(memcached.pid)
    assert process.cmdline()[0] == "memcached"
    assert process.uids().real == MEMCACHED_UID
    assert not process.children()


def test_the_daemon_is_in_the_sandbox(memcached: Container, site: Site) -> None:
    """Where Mesos keeps its output; the agent leaves nothing else there."""
    assert os.readlink(f"/proc/{memcached.pid}/cwd") == SANDBOX
    assert os.listdir(f"/proc/{memcached.pid}/cwd") == []


def test_what_mesos_knows_is_registered(marathon: Marathon, memcached: Container, site: Site) -> None:
    """The container's address, the agent's name and the port offered; the service by the app's id."""
    (instance,) = site.instances().values()
    told = {name: instance[name] for name in ("service", "host", "address", "ports")}
    assert told == {
        "service": MEMCACHED,
        "host": AGENT,
        "address": CONTAINER_IP,
        "ports": [marathon.offered],
    }
    assert site.instances(AGENT) == site.instances()


def make_room(marathon: Marathon, memcached: Container) -> None:
    """The first one has the port that others are offered too."""
    if memcached.running:
        marathon.stop(APPS["memcached"], memcached)


# -- cmd, under Docker's containerizer -----------------------------------------------------------------

IN_DOCKER = {
    **APPS["memcached"],
    "container": {**APPS["memcached"]["container"], "type": "DOCKER"},
    "taskKillGracePeriodSeconds": 5,
}


def test_a_cmd_takes_the_place_of_the_entrypoint(
    marathon: Marathon, memcached: Container, site: Site
) -> None:
    """By its exec the daemon is process 1 in the end, and ends by itself when it is told to."""
    make_room(marathon, memcached)
    container = marathon.start(IN_DOCKER)
    marathon.becomes(IN_DOCKER, container, 0, "ready")
    assert container.read("/proc/1/comm") == "memcached\n"
    assert marathon.stop(IN_DOCKER, container) == 0


# -- args, under Docker's containerizer ----------------------------------------------------------------


def test_a_task_that_waits_is_healthy(marathon: Marathon, tasks: Container, site: Site) -> None:
    """Behind the image's own ENTRYPOINT, in the image's user's name."""
    app = APPS["keystone-tasks"]
    marathon.becomes(app, tasks, 0, "waiting keystone_tasks/create_database waits for mariadb/daemon")
    words = tasks.read("/proc/1/cmdline").split("\0")
    assert (words[0], words[-2]) == ("dumb-init", "kolla_mesos_start")
    assert psutil.Process(tasks.pid).username() != "root"


def test_a_finished_task_stays_and_is_healthy(
    marathon: Marathon, podman: Podman, images: Images, tasks: Container, master: str, site: Site
) -> None:
    """Once there is a database, which is not of Marathon's; told to end, it ends well."""
    app = APPS["keystone-tasks"]
    environ = {**app["env"], **LOOPBACK, "KOLLA_APP_ID": f"/{DEPLOYMENT}/{MARIADB}"}
    options = [f"--add-host=master.mesos:{master}"]
    database = podman.run(images.agent("mariadb-server"), environ=environ, options=options)
    marathon.becomes(app, tasks, 0, "finished")
    assert (
        database.exec("mariadb", "-Ne", "SHOW DATABASES LIKE 'keystone'", user="root").stdout == "keystone\n"
    )
    assert marathon.stop(app, tasks) == 0
    assert marathon.health(app, tasks)[0] != 0
    database.remove()


# -- an app that is generated --------------------------------------------------------------------------


@pytest.fixture
def generated(marathon: Marathon, tree: Path, tmp_path: Path) -> Mapping[str, Any]:
    """That of memcached, with a secret, and a root that is read-only; the agent has what the notes say."""
    launch = yaml.safe_load((EXAMPLE / "launch.yml").read_text())
    launch["zookeeper"] = f"master.mesos:2181{CHROOT}"
    launch["services"][MEMCACHED].update(read_only=True, variables="secrets", network="own")
    (tree / "launch.yml").write_text(yaml.safe_dump(launch))
    words = [str(tree), "--deployment", DEPLOYMENT, "--output", str(tmp_path / "made")]
    assert cli.run(["manifests", "marathon", *words]) == 0
    secrets = marathon.host("/etc/kolla-secrets/secrets")
    secrets.mkdir(parents=True)
    (secrets / "password").write_text("a secret")
    app: Mapping[str, Any] = json.loads((tmp_path / "made" / "memcached.json").read_text())
    return app


def test_a_generated_app_is_ready_and_found_at_its_host(
    marathon: Marathon, memcached: Container, generated: Mapping[str, Any], site: Site
) -> None:
    """Without root, a capability, or a file that it could change; told to end it ends well."""
    make_room(marathon, memcached)
    eventually(lambda: not site.instances(), "nobody else is registered")
    container = marathon.start(generated)
    marathon.becomes(generated, container, 0, "ready")
    eventually(lambda: len(site.instances()) == 1, "it is registered")
    (instance,) = site.instances().values()
    assert (instance["address"], instance["ports"]) == (AGENT, [marathon.offered])
    inspected = container.inspected
    assert inspected["Config"]["User"] == str(MEMCACHED_UID)
    assert (inspected["EffectiveCaps"] or [], inspected["BoundingCaps"] or []) == ([], [])
    assert "no-new-privileges" in inspected["HostConfig"]["SecurityOpt"]
    assert inspected["HostConfig"]["ReadonlyRootfs"] is True
    assert container.exec("cat", "/etc/kolla-variables/password").stdout == "a secret"
    assert container.exec("touch", "/etc/kolla-variables/more", user="root").returncode != 0
    assert container.read("/proc/1/cmdline").startswith("dumb-init\0")
    assert marathon.stop(generated, container) == 0
