"""Imports a Keystone from kolla-ansible, and starts all its containers at once until it issues a token.

It takes minutes of processor time for the images and the recording, and runs by hand only, as root::

    .venv/bin/python -m drills.containers.start_import
    .venv/bin/python -m drills.containers.start_import --adopt
    .venv/bin/python -m drills.containers.start_import --all

With --adopt, ZooKeeper then forgets everything, as if kolla-ansible had started the containers: all steps are
adopted, and a generated container replaces each of them, over the same volumes. The token has to stay valid.

With --all it is kolla-ansible's default all-in-one, on a host of its own (`own_host.py`), until a server is
ACTIVE. `WHOLE` below says what is left out.

The images are Kolla's own, and the agent is mounted into them. The quadlets are what `kolla_mesos_ctl
manifests` makes. Differences from a real host: images from this
machine, no systemd, lower limits of open files, and without --all no /dev and /run of the host in
kolla_toolbox.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from drills.containers.first_server import Cloud
from drills.containers.imported import ImportedImages
from drills.containers.whole import WholeImages
from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory.container_settings import AGENT
from kolla_mesos_start.ctl.manifests.model import FINAL
from kolla_mesos_start.ctl.manifests.quadlet import AGAIN
from tests import CHECKOUT
from tests.containers import own_host
from tests.containers.podman import Container, Podman
from tests.containers.test_quadlet import WITHOUT_SYSTEMD, Unit, generated, quadlet_generator
from tests.examples.keystone import issue_token, validate_token
from tests.kolla_ansible import sites
from tests.kolla_ansible.installed import environment
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

HOST = "ctl-1"
MADE = CHECKOUT / ".cache" / "agent"
ALL_UP = 1800  # seconds; both cores may be busy
LIMITS = {"nofile": "16384:16384", "nproc": "1000:1000"}


class Site(NamedTuple):
    """What is imported. `left_out` are paths of the host that its containers don't have here."""

    images: type[ImportedImages]
    interface: str
    address: str
    virtual: str
    settings: str
    tags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def keystone(self) -> str:
        return f"http://{self.virtual}:5000/v3"


GLOBALS = """\
kolla_base_distro: debian
kolla_internal_vip_address: {site.virtual}
network_interface: {site.interface}
neutron_external_interface: eth1
database_address: "{{{{ 'api' | kolla_address }}}}"
enable_proxysql: false
enable_fluentd: false
haproxy_max_connections: 4000
{site.settings}
"""
FACTS = "hosts:\n  {host}: {{address: {site.address}, interface: {site.interface}, cpus: 2, memory: 4096}}\n"
# HAProxy and memcached open files for their connections.
KEYSTONE = Site(
    ImportedImages,
    "lo",
    "127.0.0.11",
    "127.0.0.100",
    """\
enable_openstack_core: false
enable_keystone: true
enable_keepalived: false
enable_rabbitmq: false
enable_cron: false
""",
    ("--tags", "common,loadbalancer,mariadb,memcached,keystone"),
    ("/dev", "/run"),
)
# The machine has neither KVM nor a kernel with openvswitch, and no modules. The wrappers of neutron's agents
# start containers through podman's socket, and here is no service that has it. No limit may be raised.
WHOLE = Site(
    WholeImages,
    "eth0",
    "10.213.8.11",
    "10.213.8.100",
    """\
kolla_container_engine: podman
nova_compute_virt_type: qemu
ovs_datapath: netdev
neutron_agents_wrappers: false
qemu_max_files: 8192
qemu_max_processes: 1000
""",
    left_out=("/lib/modules",),
)
# In an order in which each has what it needs.
DAEMONS = ("mariadb", "memcached", "kolla-toolbox", "keystone-ssh", "keystone-fernet", "keystone", "haproxy")


def main() -> int:
    """Print how long it took until a token was issued, and how each container ended if it has."""
    parser = argparse.ArgumentParser(prog="drills.containers.start_import", description=__doc__)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--adopt", action="store_true", help="replace the containers as those of kolla-ansible")
    one.add_argument("--all", action="store_true", help="the default all-in-one instead of Keystone")
    options = parser.parse_args()
    what = WHOLE if options.all else KEYSTONE
    images = what.images(CHECKOUT / ".cache", print)
    images.make()
    if options.all and own_host.INSIDE not in os.environ:
        environment(print)
        quadlet_generator()
        make_agent()
        return own_host.enter(HOST, what.address, (sys.executable, "-m", __spec__.name, *sys.argv[1:]))
    with tempfile.TemporaryDirectory(prefix="import-") as name:
        place = Path(name)
        config, site = imported(place, what)
        podman, secrets = Podman(place / "podman", images.store), config / "passwords.yml"
        password = yaml.safe_load(secrets.read_text())["keystone_admin_password"]
        adapt(site / "launch.yml", images, what)
        try:
            with Server(place / "zookeeper") as server:
                units = published(site, secrets, server)
                if options.all:
                    return start_all(podman, units, place, what, server, password)
                containers = start(podman, units, place, what, password)
                status = settled(containers) if _ran(containers) else 1
            if status or not options.adopt:
                return status
            with Server(place / "empty") as server:
                units = published(site, secrets, server)
                words = ("adopt", "--list", str(site / "adopt.txt"), "--deployment", "site")
                cli.run([*words, "--hosts", server.hosts])
                return replace(podman, units, place, what, password)
        finally:
            podman.end()


def published(site: Path, secrets: Path, server: Server) -> Mapping[str, Unit]:
    """Publish the directory; the units of the host."""
    return generated(quadlet_generator(), publish(site, secrets, server.hosts, "quadlet") / HOST)


def publish(site: Path, secrets: Path, hosts: str, launcher: str) -> Path:
    """Publish the directory; that of the manifests."""
    words = [str(site), "--deployment", "site", "--secrets", str(secrets)]
    launch: dict[str, Any] = yaml.safe_load((site / "launch.yml").read_text())
    (site / "launch.yml").write_text(yaml.safe_dump({**launch, "zookeeper": hosts}))
    cli.run(["publish", *words, "--hosts", hosts])
    made = site.parent / "made"
    cli.run(["manifests", launcher, *words, "--output", str(made)])
    return made


def imported(place: Path, what: Site) -> tuple[Path, Path]:
    """The configuration, and the directory that the tool makes from it."""
    venv, config, site = environment(print), place / "config", place / "site"
    config.mkdir()
    sites.make(venv, "all-in-one", config)
    (config / "globals.yml").write_text(GLOBALS.format(site=what))
    (config / "facts.yml").write_text(FACTS.format(site=what, host=HOST))
    tool = (sys.executable, CHECKOUT / "bin" / "kolla_mesos_ctl", "import", "kolla-ansible")
    where = ("--config", config, "--inventory", config / "inventory", "--facts", config / "facts.yml")
    subprocess.run((*tool, "--ansible", venv, *where, *what.tags, "--output", site, "--adopt"), check=True)
    return config, site


def adapt(launch: Path, images: ImportedImages, what: Site = KEYSTONE, agent: str = "") -> None:
    """Use the images and the limits of this machine, and this image of the agent, or a directory with it."""
    if not agent and own_host.INSIDE not in os.environ:  # There, packages can't be downloaded.
        make_agent()
    content: dict[str, Any] = yaml.safe_load(launch.read_text())
    content["agent"] = agent or {"host": str(MADE)}
    content["defaults"]["env"] = dict.fromkeys(
        ("KOLLA_PRIVATE_INTERFACE", "KOLLA_PUBLIC_INTERFACE"), what.interface
    )
    for service in content["services"].values():
        service["image"] = images.kolla(service["image"].rpartition("/")[2].partition(":")[0])
        if "limits" in service:
            service["limits"] = LIMITS
        for path in what.left_out:
            service["volumes"].pop(path, None)
    launch.write_text(yaml.safe_dump(content))


def make_agent() -> None:
    """Make the directory that is mounted."""
    subprocess.run((sys.executable, CHECKOUT / "bin" / "agent-directory", MADE), check=True)


def start(
    podman: Podman, units: Mapping[str, Unit], place: Path, what: Site, password: str
) -> Mapping[str, Container]:
    """Start all units of the host, in the order of their names, and wait for a token."""
    begun = time.monotonic()
    containers = {name: started(podman, unit, place) for name, unit in units.items()}
    try:
        eventually(lambda: _has_token(what, password), "Keystone issues a token", seconds=300, every=0.5)
        print(f"a token after {time.monotonic() - begun:.1f} s", flush=True)
    except BaseException:
        for name, container in containers.items():
            print(f"--- {name}: {container.said}")
        raise
    return containers


def start_all(
    podman: Podman, units: Mapping[str, Unit], place: Path, what: Site, server: Server, password: str
) -> int:
    """Start all units of the host, wait for all containers, and boot a server; the exit status."""
    begun = time.monotonic()
    for unit in units.values():
        started(podman, unit, place)
    print(f"{len(units)} containers were started within {time.monotonic() - begun:.1f} s", flush=True)
    over = threading.Event()
    launcher = threading.Thread(target=restart, args=(podman, over))
    launcher.start()
    try:
        return boot(what, server.hosts, password, begun)
    finally:
        over.set()
        launcher.join()


def boot(what: Site, hosts: str, password: str, begun: float) -> int:
    """Wait for all containers, and boot a server; the exit status. `begun` is when they were started."""
    of_site = ("--deployment", "site", "--hosts", hosts)
    status, deadline = 1, begun + ALL_UP
    while status == 1 and time.monotonic() < deadline:  # A step has failed, and is started again.
        status = cli.run(["wait", "--timeout", str(ALL_UP), *of_site])
        time.sleep(AGAIN if status else 0)
    print(f"all up: {not status}, after {time.monotonic() - begun:.1f} s", flush=True)
    cli.run(["timeline", *of_site])
    if status:
        return status
    cloud = Cloud(what.virtual, password)
    cloud.look()
    found = cloud.boot()
    print(f"the server is {found['status']}, {time.monotonic() - begun:.1f} s after the start", flush=True)
    return 0


def restart(podman: Podman, over: threading.Event) -> None:
    """Start again what systemd would start again, and say so."""
    ended = ("ps", "--all", "--filter", "status=exited", "--format", "{{.Names}} {{.ExitCode}}")
    while not over.wait(AGAIN):
        for line in podman(*ended).stdout.splitlines():
            name, status = line.split()
            if int(status) not in (0, *FINAL):
                print(f"{name} has ended with status {status}: started again", flush=True)
                podman("start", name)


def started(podman: Podman, unit: Unit, place: Path) -> Container:
    """Start what systemd would start."""
    _, *argv = unit.argv(place)
    # The id of the container before is in a file, which podman refuses to replace.
    unused = (*WITHOUT_SYSTEMD, "--rm", f"--cidfile={place}/{unit.name}.cid")
    podman(*(word for word in argv if word not in unused))
    return Container(podman, unit.name)


def settled(containers: Mapping[str, Container]) -> int:
    """Wait until each step has ended; 1 if any container has failed."""
    steps = [each for name, each in containers.items() if name not in map(_unit_name, DAEMONS)]
    eventually(lambda: not any(each.running for each in steps), "all steps end", seconds=120, every=0.5)
    failed = [name for name, each in containers.items() if not each.running and each.status]
    print(f"{len(containers)} containers; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def replace(podman: Podman, units: Mapping[str, Unit], place: Path, what: Site, password: str) -> int:
    """Replace the running containers one by one, then start the steps, of which none may run."""
    token = issue_token(what.keystone, password)
    containers: dict[str, Container] = {}
    daemons = [_unit_name(each) for each in DAEMONS]
    for name in (*daemons, *(each for each in units if each not in daemons)):
        before = Container(podman, name)
        if name in daemons:
            before.stop()
        podman("rm", name)
        containers[name] = started(podman, units[name], place)
        if name in daemons:
            begun = time.monotonic()
            eventually(partial(_is_ready, containers[name]), f"{name} is ready", seconds=120, every=0.5)
            print(f"replaced {name}: ready after {time.monotonic() - begun:.1f} s")
    status = settled(containers)
    user = validate_token(what.keystone, token)["user"]["name"]
    print(f"the token of before is valid, for {user}; a new one is issued: {_has_token(what, password)}")
    return 1 if _ran(containers) else status


def _unit_name(daemon: str) -> str:
    return f"site_{daemon}"


def _is_ready(container: Container) -> bool:
    return container.exec(f"{AGENT}/bin/kolla_mesos_start", "health", "--ready").returncode == 0


def _ran(containers: Mapping[str, Container]) -> list[str]:
    """The containers whose agent has started a one-time command."""
    found = [name for name, each in containers.items() if "/run: starting" in each.said]
    print(f"steps that ran: {', '.join(found) or 'none'}")
    return found


def _has_token(what: Site, password: str) -> bool:
    try:
        return bool(issue_token(what.keystone, password))
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
