"""The deployment under test: the Keystone example on this machine, and what the tests ask of it.

Counts the runs of commands. `tests/support/keystone.py` creates and starts the deployment. The tests have the
assertions.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import AGENT, LocalContainer
from tests.examples.openstack import SYSTEM_PATH
from tests.stack.command_lines import CommandLines
from tests.support.keystone import Keystone
from tests.support.local_deployment import LocalDeployment
from tests.support.tool import operator_client
from tests.support.waiting import eventually

NOTED = Path(__file__).with_name("noted")
START_LIMIT = 300.0  # seconds: ten times what it takes on two cores that do nothing else


class Run(NamedTuple):
    """One run of a one-time command's program, as the program itself has noted it."""

    host: str
    token: str
    program: str
    arguments: str


class Cloud(Keystone):
    """The containers and their deployment."""

    def __init__(
        self,
        directory: Path,
        programs: Path,
        zk: KazooClient,
        zookeeper_hosts: str,
        report: list[str],
        **more: str,
    ) -> None:
        """`more`: by what the operator is known to ZooKeeper."""
        self.report = report
        self.journal = directory / "journal"
        environ = {
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "PATH": f"{self._noting(directory / 'bin', programs)}:{programs}:{SYSTEM_PATH}",
            "KOLLA_ZK_HOSTS": zookeeper_hosts,
            "KOLLA_LOG_FORMAT": "json",
            # By default each check of a password costs a quarter of a second of a processor, so that
            # passwords can't be guessed.
            "OS_IDENTITY__PASSWORD_HASH_ROUNDS": "4",
        }
        self.zk, place = zk, ("/kolla-functional", "cloud")
        super().__init__(directory, operator_client(zk, *place, **more), environ, *place)
        self.command_lines = CommandLines(self.secrets.needles())
        self.seed = int(os.environ.get("KOLLA_TEST_SEED") or random.randrange(10**6))

    def _noting(self, directory: Path, programs: Path) -> Path:
        return noting(directory, self.journal, ("keystone-manage", "mariadb", "mariadb-install-db"), programs)

    @contextmanager
    def up(self) -> Iterator[None]:
        """Meanwhile it is published, was started all at once, and is up; nothing of it stays."""
        self.report.append(f"order of the start: KOLLA_TEST_SEED={self.seed}")
        with published(self, self.zk):
            self.start(self.seed)
            self.await_start()
            yield
            self.stop()

    def await_start(self) -> None:
        """Wait until every replica is ready and the task has ended."""
        self.eventually(lambda: self.broken or self.is_up, "Keystone is up", seconds=START_LIMIT)
        assert not self.broken, log_ends(self)

    def eventually(self, condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
        """Wait until `condition()` is true; past `seconds` fail with what the containers say."""
        try:
            eventually(condition, what, seconds=seconds, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log_ends(self)}") from None

    def stop(self) -> dict[str, int]:
        """Stop what runs, the users of a service before the service; exit statuses by name.

        Replicas take a while, so all of them begin at once.
        """
        for replica in self.replicas:
            if replica.running:
                os.kill(replica.pid, signal.SIGTERM)
        order = (self.tasks, *self.replicas, self.memcached, self.mariadb)
        statuses = {each.name: stop(each) for each in order if each.running}
        self.eventually(lambda: not self.processes(), "no process of theirs is left")
        return statuses

    # -- asking ---------------------------------------------------------------------------------

    def members(self, service: str) -> list[str]:
        return self.children(f"{self.path}/{service}/.party")

    def state(self, command: str, scope: str = "global") -> str:
        data, _ = self.zk.get(f"{self.path}/status/{scope}/{command}")
        return str(data, "utf-8")

    def runs(self) -> list[Run]:
        """Every run of a one-time command's program, in the order of their starts."""
        return [Run(*line.split("\t")) for line in self.journal.read_text().splitlines()]


def log_ends(deployment: LocalDeployment) -> str:
    """The end of each container's log."""
    return "\n".join(
        f"--- {each.name} (status {each.status}): {each.log_end()}" for each in deployment.containers
    )


@contextmanager
def published(deployment: LocalDeployment, zk: KazooClient) -> Iterator[None]:
    """Publish a deployment; afterwards show the logs, end all containers and remove the deployment."""
    zk.ensure_path(deployment.path)
    try:
        deployment.publish()
        yield
    finally:
        print(log_ends(deployment))
        deployment.end()
        deployment.client.close()
        zk.delete(deployment.prefix, recursive=True)


def noting(directory: Path, journal: Path, names: Sequence[str], programs: Path) -> Path:
    """A directory in front of PATH: the programs of one-time commands, each noting its own runs."""
    directory.mkdir(mode=0o755)
    # The servers' own users write into it as well.
    journal.touch()
    journal.chmod(0o666)
    script = NOTED.read_text().replace("@JOURNAL@", str(journal))
    script = script.replace("@PATH@", f"{programs}:{SYSTEM_PATH}")
    for name in names:
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)
    return directory


# -- what can be done to a container ------------------------------------------------------------------


def stop(container: LocalContainer) -> int:
    """SIGTERM, as a launcher would; the exit status."""
    if container.status is None:
        os.kill(container.pid, signal.SIGTERM)
    return container.wait(90)  # uWSGI that has just begun to start ends after its 60 s for requests.


def health(container: LocalContainer, *arguments: str) -> tuple[int, str]:
    """Status and output of `kolla_mesos_start health` in the container."""
    done = subprocess.run(
        (*AGENT, "health", *arguments), env=container.environ, stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.returncode, done.stdout.strip()
