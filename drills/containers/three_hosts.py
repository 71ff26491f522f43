"""Three hosts of an import on this machine: a network and a storage of podman for each.

What lives here: importing, starting and killing. What runs there, and what must be true, is in
`start_galera.py` and `start_rabbitmq.py`. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from drills.containers.imported import ImportedImages
from drills.containers.start_import import adapt
from kolla_mesos_start.ctl import cli
from tests import CHECKOUT
from tests.containers.podman import Container, Podman
from tests.containers.relay import Relay
from tests.containers.test_quadlet import WITHOUT_SYSTEMD, generated, quadlet_generator
from tests.kolla_ansible import sites
from tests.kolla_ansible.installed import environment
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

GATEWAY, PREFIX = "10.213.7.1", 24
HOSTS = {"ctl-1": "10.213.7.11", "ctl-2": "10.213.7.12", "ctl-3": "10.213.7.13"}
INTERFACE, BRIDGE = "eth0", "kolla-import"
ZOOKEEPER = 2181
RECOVERY = 300.0  # seconds; both cores may be busy
GLOBALS = {
    "kolla_base_distro": "debian",
    "kolla_internal_vip_address": "10.213.7.100",
    "network_interface": INTERFACE,
    "neutron_external_interface": "eth1",
    "enable_openstack_core": False,
    "enable_fluentd": False,
    "enable_cron": False,
}


def imported(place: Path, tags: str, **settings: object) -> tuple[Path, Path]:
    """The configuration with these settings, and the directory that the tool makes from it."""
    venv, config, site = environment(print), place / "config", place / "site"
    config.mkdir()
    sites.make(venv, "all-in-one", config)
    (config / "globals.yml").write_text(yaml.safe_dump({**GLOBALS, **settings}))
    found = {"interface": INTERFACE, "cpus": 2, "memory": 400}
    facts = {"hosts": {host: {"address": address, **found} for host, address in HOSTS.items()}}
    (config / "facts.yml").write_text(yaml.safe_dump(facts))
    inventory = config / "inventory"
    inventory.write_text(
        inventory.read_text().replace("[control]\nctl-1\n", "\n".join(["[control]", *HOSTS, ""]))
    )
    tool = (sys.executable, CHECKOUT / "bin" / "kolla_mesos_ctl", "import", "kolla-ansible")
    where = ("--config", config, "--inventory", inventory, "--facts", config / "facts.yml")
    subprocess.run((*tool, "--ansible", venv, *where, "--tags", tags, "--output", site), check=True)
    return config, site


class ThreeHosts:
    """The containers of a daemon and its steps, and a launcher that starts those again that have failed."""

    def __init__(self, place: Path, images: ImportedImages, server: Server, daemon: str) -> None:
        self.place, self.images, self.server = place, images, server
        self.name = f"site_{daemon}"
        self.podmans: dict[str, Podman] = {}
        self.containers: dict[str, Container] = {}
        self.steps: list[Container] = []
        self.powered: set[str] = set()
        self.lock, self._over = threading.RLock(), threading.Event()
        self._launcher = threading.Thread(target=self._launch)

    def __enter__(self) -> ThreeHosts:
        _remove_network()
        _make_network()
        self.relay = Relay(self.server, GATEWAY, ZOOKEEPER, self.place / "relay.log")
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._over.set()
        if self._launcher.is_alive():
            self._launcher.join()
        if kind:
            for each in (*self.containers.values(), *self.steps):
                print(f"--- {each.id}: {each.said[-6000:]}")
        for podman in self.podmans.values():
            podman.end()
        self.relay.kill()
        _remove_network()

    def publish(self, config: Path, site: Path) -> None:
        """Publish the directory, and make the units."""
        launch = site / "launch.yml"
        adapt(launch, self.images)
        content: dict[str, Any] = yaml.safe_load(launch.read_text())
        content["zookeeper"] = self.relay.hosts
        content["defaults"]["env"] = dict.fromkeys(
            ("KOLLA_PRIVATE_INTERFACE", "KOLLA_PUBLIC_INTERFACE"), INTERFACE
        )
        launch.write_text(yaml.safe_dump(content))
        words, secrets = [str(site), "--deployment", "site"], str(config / "passwords.yml")
        cli.run(["publish", *words, "--hosts", self.server.hosts, "--secrets", secrets])
        cli.run(["manifests", "quadlet", *words, "--output", str(self.place / "made")])

    def start(self) -> None:
        """Start all units at once."""
        names = [f"--add-host={host}:{address}" for host, address in HOSTS.items()]
        for host in HOSTS:
            quadlets, own = self.place / "made" / host, self.place / host
            podman = self.podmans[host] = Podman(own, self.images.store)
            for name, unit in generated(quadlet_generator(), quadlets).items():
                if not name.startswith(self.name):
                    continue
                _, run, *argv = unit.argv(own)
                argv[argv.index("--network") + 1] = f"ns:/run/netns/kolla-{host}"
                podman(run, *names, *(word for word in argv if word not in (*WITHOUT_SYSTEMD, "--rm")))
                if name == self.name:
                    self.containers[host] = Container(podman, name)
                else:
                    self.steps.append(Container(podman, name))
        self.powered = set(HOSTS)
        self._launcher.start()

    def _launch(self) -> None:
        while not self._over.wait(0.5):
            with self.lock:
                for host in sorted(self.powered):
                    if not self.containers[host].running:
                        self.containers[host].start()
            for step in self.steps:
                if not step.running and step.status:
                    step.start()

    def await_steps(self) -> None:
        """Wait until all one-time steps have succeeded."""
        eventually(
            lambda: not any(step.running or step.status for step in self.steps), "the steps", seconds=RECOVERY
        )

    def kill_all(self) -> None:
        """KILL to process 1 of each at the same time: the kernel ends all others with it. They stay off."""
        with self.lock:
            self.powered.clear()
            for pid in [self.containers[host].pid for host in HOSTS]:
                if pid:  # 0: it has ended already.
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(each.running for each in self.containers.values()), "all are down")

    def power_on(self) -> None:
        """Start all again."""
        with self.lock:
            self.powered = set(HOSTS)

    def restart_empty(self, host: str, volume: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Kill the container of a host, give it an empty disk, and start it again."""
        with self.lock:
            self.containers[host].kill()
            inspected = self.podmans[host]("volume", "inspect", volume, "--format", "{{.Mountpoint}}")
            data = Path(inspected.stdout.strip())
            # Whatever podman prints: nothing outside of this host's own storage may be deleted.
            assert self.place / host in data.parents, f"{volume} of {host} is at {data}"
            for path in data.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            meanwhile()

    def await_all(self, is_back: Callable[[str], bool], what: str) -> float:
        """Wait until something is true of all hosts; how long it took."""
        begun = time.monotonic()
        eventually(lambda: all(map(is_back, HOSTS)), what, seconds=RECOVERY, every=0.5)
        return time.monotonic() - begun


def _make_network() -> None:
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("address", "add", f"{GATEWAY}/{PREFIX}", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for host, address in HOSTS.items():
        name = f"kolla-{host}"
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _ip("link", "set", name, "master", BRIDGE, "up")
        _ip("-n", name, "address", "add", f"{address}/{PREFIX}", "dev", INTERFACE)
        for interface in (INTERFACE, "lo"):
            _ip("-n", name, "link", "set", interface, "up")


def _remove_network() -> None:
    """Also after a run that was killed."""
    for words in (*(("netns", "delete", f"kolla-{host}") for host in HOSTS), ("link", "delete", BRIDGE)):
        _ip(*words, check=False)


def _ip(*words: str, check: bool = True) -> None:
    given: Sequence[str] = ("ip", *words)
    subprocess.run(given, check=check, stderr=None if check else subprocess.DEVNULL, timeout=60)
