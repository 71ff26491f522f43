"""An operator's configuration of kolla-ansible, made from its own examples."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

GLOBALS = """\
kolla_base_distro: debian
kolla_internal_vip_address: 192.0.2.100
network_interface: eth0
neutron_external_interface: eth1
"""
# All services that one host can have together. The files of Octavia's amphora hold ids of a running cloud.
EVERYTHING = """\
neutron_plugin_agent: ovn
octavia_provider_drivers: "ovn:OVN provider"
gnocchi_backend_storage: file
ironic_dnsmasq_dhcp_ranges: [{range: "192.0.2.200,192.0.2.220"}]
"""
ENABLED = (
    *("aodh", "barbican", "blazar", "ceilometer", "central_logging", "cinder", "cinder_backend_nfs"),
    *("cloudkitty", "collectd", "cyborg", "designate", "etcd", "gnocchi", "gnocchi_statsd", "grafana"),
    *(
        "ironic",
        "ironic_neutron_agent",
        "magnum",
        "manila",
        "manila_backend_generic",
        "mariabackup",
        "masakari",
    ),
    *("mistral", "multipathd", "neutron_provider_networks", "neutron_qos", "neutron_trunk"),
    *("nova_serialconsole_proxy", "octavia", "opensearch", "osprofiler", "prometheus", "skyline", "tacker"),
    *("trove", "valkey", "watcher"),
)
# Files that kolla-ansible copies from the operator's directory.
COPIED = (
    *("nfs_shares", "ironic/ironic-agent.kernel", "ironic/ironic-agent.initramfs"),
    *("hacluster-corosync/authkey", "hacluster-pacemaker/authkey"),
)
CONTROL, COMPUTE = ("ctl-1", "ctl-2", "ctl-3"), ("cmp-1", "cmp-2")
# The hosts of the groups at the top of an inventory; all others are made of these.
DEPLOYMENTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "all-in-one": dict.fromkeys(
        ("control", "network", "compute", "storage", "monitoring", "deployment"), CONTROL[:1]
    ),
    "everything": dict.fromkeys(
        ("control", "network", "compute", "storage", "monitoring", "deployment"), CONTROL[:1]
    ),
    "multinode": {
        **dict.fromkeys(("control", "network", "storage"), CONTROL),
        **dict.fromkeys(("monitoring", "deployment"), CONTROL[:1]),
        "compute": COMPUTE,
    },
}
# The hosts with services of kolla-ansible's own inventories, which are used as they are.
INVENTORIES: Mapping[str, Sequence[str]] = {
    "all-in-one": ("localhost",),
    "multinode": (
        *("control01", "control02", "control03", "network01", "network02", "compute01", "storage01"),
        "monitoring01",
    ),
}
OWN = "own-"
NAMES = sorted([*DEPLOYMENTS, *(f"{OWN}{name}" for name in INVENTORIES)])


def make(venv: Path, deployment: str, config: Path) -> Path:
    """Write globals.yml, passwords.yml, the inventory and the facts into a directory."""
    share = venv / "share" / "kolla-ansible"
    (config / "globals.yml").write_text(GLOBALS)
    if deployment == "everything":
        _enable_everything(config)
    own = deployment[len(OWN) :] if deployment.startswith(OWN) else ""
    inventory = (share / "ansible" / "inventory" / (own or "all-in-one")).read_text()
    (config / "inventory").write_text(inventory if own else _with_hosts(inventory, DEPLOYMENTS[deployment]))
    hosts = hosts_of(deployment)
    lines = (
        f"  {host}: {{address: 192.0.2.{number}, interface: eth0, cpus: {number}, memory: {4096 * number}}}\n"
        for number, host in enumerate(hosts, start=11)
    )
    (config / "facts.yml").write_text("hosts:\n" + "".join(lines))
    shutil.copy(share / "etc_examples" / "kolla" / "passwords.yml", config)
    (config / "passwords.yml").chmod(0o600)
    subprocess.run((venv / "bin" / "kolla-genpwd", "-p", config / "passwords.yml"), check=True)
    return config


def hosts_of(deployment: str) -> Sequence[str]:
    """The hosts of the inventory that have services."""
    if deployment.startswith(OWN):
        return INVENTORIES[deployment[len(OWN) :]]
    return list(dict.fromkeys(host for each in DEPLOYMENTS[deployment].values() for host in each))


def _enable_everything(config: Path) -> None:
    with (config / "globals.yml").open("a") as settings:
        settings.write(EVERYTHING + "".join(f"enable_{name}: true\n" for name in ENABLED))
    for name in COPIED:
        path = config / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")


def _with_hosts(inventory: str, groups: Mapping[str, Sequence[str]]) -> str:
    for group, hosts in groups.items():
        inventory = re.sub(
            rf"^\[{group}\]\nlocalhost .*$", "\n".join([f"[{group}]", *hosts]), inventory, flags=re.MULTILINE
        )
    return inventory
