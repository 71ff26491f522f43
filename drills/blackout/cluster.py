"""Three controllers with real agents and real MariaDB servers.

Starts, kills, disconnects and queries them. `drill.py` chooses the events.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from drills.blackout.members import EXAMPLE, HOSTS, SERVICE, Ports, Refused, sql, values
from drills.chaos.run import Link
from kolla_mesos_start.ctl.up.containers import end_all, processes_of
from tests.conftest import Deployment
from tests.examples.openstack import SYSTEM_PATH
from tests.support.local_deployment import LocalDeployment
from tests.support.tool import operator_client, run_ctl
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble, free_port

SESSION_TIMEOUT = 4  # seconds
LAUNCHER = 0.2  # seconds between two looks of the launcher
RECOVERY = 180.0  # seconds for three synced members
SHUTDOWN, WITHOUT_LOG = 0x8004587D, 2  # ext4's ioctl, and its flag: what was not synced is lost
DISK = 700 * 2**20  # bytes of a disk that can lose its power


class Cluster(LocalDeployment):
    """The Galera example, each container with its own link to ZooKeeper, and a launcher that restarts it.

    `has_disks`: each host's data are on a file system of their own, which loses at a power cut what was not
    synced. This needs root.
    """

    def __init__(
        self,
        directory: Path,
        zk: KazooClient,
        ensemble: Ensemble,
        *,
        has_disks: bool = False,
        exec_hosts: Sequence[str] = (),
        **more: object,
    ) -> None:
        self.zk, self.ensemble, self.more = zk, ensemble, values(Ports.free(), **more)
        place = ("/kolla-blackout", "blackout")
        environ = {
            "PATH": SYSTEM_PATH,
            "HOME": str(directory),
            "KOLLA_ZK_HOSTS": ensemble.hosts,
            "KOLLA_ZK_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
        }
        directory.mkdir(parents=True, mode=0o755)
        super().__init__(EXAMPLE, directory, operator_client(zk, *place), environ, *place)
        # mariabackup receives on all addresses of the machine, so each host needs a port of its own.
        self.hosts = {
            host: self.add(SERVICE, host, values={"galera_transfer_port": free_port()}) for host in HOSTS
        }
        self.links = {host: Link(ensemble, directory / f"{host}.link") for host in HOSTS}
        for host, container in self.hosts.items():
            container.environ["KOLLA_ZK_HOSTS"] = self.links[host].hosts
            container.environ["KOLLA_START_MODE"] = "exec" if host in exec_hosts else "supervise"
        self.has_disks = has_disks
        self.powered: set[str] = set()
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._launcher = threading.Thread(target=self._launch)

    @property
    def values(self) -> dict[str, object]:
        return self.more

    def __enter__(self) -> Cluster:
        self.zk.ensure_path(self.path)
        if self.has_disks:
            for host in HOSTS:
                self._make_disk(host)
        self.publish()
        self._launcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._launcher.join()
        self.end()
        for link in self.links.values():
            link.kill()
        self.client.close()
        if self.has_disks:
            for host in HOSTS:
                self._is_unmounted(host)
        with suppress(KazooException):
            self.zk.delete(self.prefix, recursive=True)

    # -- the launcher -------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start each container that has power and does not run."""
        while not self._over.wait(LAUNCHER):
            with self._lock:
                for host in sorted(self.powered):
                    if not self.hosts[host].running:
                        self.hosts[host].restart()

    def power_on(self, *hosts: str) -> None:
        with self._lock:
            self.powered |= set(hosts)

    def kill(self, *hosts: str) -> None:
        """KILL all processes of these hosts, which stay off. With disks they lose what was not synced."""
        with self._lock:
            self.powered -= set(hosts)
            for host in hosts if self.has_disks else ():
                self._cut_power(host)
            for host in hosts:
                container = self.hosts[host]
                end_all(container.run_dir)
                if container.running:
                    container.wait()
        for host in hosts if self.has_disks else ():
            self._await_unmounted(host)
            self._mount(host)
            joining = self.volume(host) / "joining"
            if joining.exists():
                joining.write_text("another boot\n")

    def stop(self, host: str) -> None:
        """TERM, as a launcher stops a container; KILL after its grace period. It stays off."""
        with self._lock:
            self.powered.discard(host)
            container = self.hosts[host]
            if not container.running:
                return
            os.kill(container.pid, signal.SIGTERM)
        with suppress(AssertionError):
            eventually(lambda: not container.running, f"{host} stops", seconds=20)
        end_all(container.run_dir)
        container.wait()

    def restart_processes(self, host: str) -> None:
        """KILL all processes of a host; its launcher starts it again."""
        self.kill(host)
        self.power_on(host)

    def signal(self, host: str, signum: int) -> None:
        """A signal to all processes of a host, as a frozen machine."""
        for pid in processes_of(self.hosts[host].run_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    # -- disks ----------------------------------------------------------------------------------------

    def volume(self, host: str) -> Path:
        return self.hosts[host].root / "var/lib/mysql"

    def wipe(self, host: str) -> None:
        """An empty disk."""
        for path in self.volume(host).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _make_disk(self, host: str) -> None:
        image = self._image(host)
        with image.open("wb") as file:
            file.truncate(DISK)
        subprocess.run(("mkfs.ext4", "-q", image), check=True, timeout=60)
        self.volume(host).mkdir(parents=True)
        self._mount(host)

    def _image(self, host: str) -> Path:
        return self.directory / f"{host}.disk"

    def _mount(self, host: str) -> None:
        # The journal is written when somebody syncs, not every five seconds.
        options = "loop,commit=300"
        subprocess.run(("mount", "-o", options, self._image(host), self.volume(host)), check=True, timeout=60)

    def _cut_power(self, host: str) -> None:
        """Nothing more reaches the disk from this moment on."""
        fd = os.open(self.volume(host), os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_LOG))
        finally:
            os.close(fd)

    def _await_unmounted(self, host: str) -> None:
        """A file system that another mount namespace still has would be mounted again without power."""
        eventually(lambda: self._is_unmounted(host), f"the disk of {host} is free", every=0.1)
        eventually(lambda: not self._is_attached(host), f"nobody has the disk of {host}", every=0.1)

    def _is_attached(self, host: str) -> bool:
        words = ("losetup", "--associated", self._image(host))
        return bool(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)

    def _is_unmounted(self, host: str) -> bool:
        """Unmount it; a process that has just ended may still keep it busy."""
        done = subprocess.run(("umount", self.volume(host)), stderr=subprocess.DEVNULL, timeout=60)
        return done.returncode == 0

    # -- asking ---------------------------------------------------------------------------------------

    def socket(self, host: str) -> Path:
        return self.hosts[host].root / "run/mysqld/mysqld.sock"

    def status(self, host: str) -> dict[str, str]:
        """Galera's variables; empty while the server does not answer."""
        with suppress(Refused):
            return {row[0]: row[-1] for row in sql(self.socket(host), "SHOW STATUS LIKE 'wsrep%'", seconds=5)}
        return {}

    def is_synced(self, host: str, size: int = len(HOSTS)) -> bool:
        found = self.status(host)
        return (
            found.get("wsrep_cluster_status") == "Primary"
            and found.get("wsrep_local_state") == "4"
            and found.get("wsrep_cluster_size") == str(size)
        )

    @property
    def primaries(self) -> list[str]:
        """The hosts that say that they are members of a working cluster."""
        return [host for host in HOSTS if self.status(host).get("wsrep_cluster_status") == "Primary"]

    def await_synced(self, seconds: float = RECOVERY) -> None:
        def all_synced() -> bool:
            return all(self.is_synced(host) for host in HOSTS)

        eventually(all_synced, "three synced members", seconds=seconds, every=0.2)

    def await_ready(self, seconds: float = RECOVERY) -> None:
        """Until ZooKeeper lists three ready instances, too."""

        def all_ready() -> bool:
            with suppress(KazooException):
                ready = self.zk.get_children(f"{self.path}/status/global/mariadb/daemon/ready")
                return len(ready) == len(HOSTS)
            return False

        eventually(all_ready, "three ready instances", seconds=seconds, every=0.2)

    def record(self, name: str) -> dict[str, Any]:
        """A znode of the election; empty if there is none, or nobody answers."""
        with suppress(NoNodeError, KazooException, ValueError):
            found: dict[str, Any] = json.loads(self.zk.get(self.election(name))[0])
            return found
        return {}

    def election(self, name: str) -> str:
        return f"{self.path}/status/global/mariadb/election/{name}"

    def winner_after(self, epoch: int, seconds: float = RECOVERY) -> str:
        """The winner of the first decision after this epoch."""

        def decided() -> str:
            decision = self.record("decision")
            return str(decision["winner"]) if decision.get("epoch", 0) > epoch else ""

        return eventually(decided, "a decision", seconds=seconds, every=0.005)

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the operator's tool."""
        return run_ctl(Deployment(self.ensemble.hosts, self.prefix, self.id), *words)

    @property
    def epoch(self) -> int:
        return int(self.record("decision").get("epoch", 0))

    def container_log(self, host: str) -> str:
        return self.hosts[host].log_end()
