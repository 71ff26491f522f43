"""What launch.yml says of containers: each key as it is meant, and each mistake by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.container_settings import ContainerSettings, Volume
from tests.support.publishing import write_files

LAUNCH = """\
tag: 2026.10
zookeeper: zk-1:2181,zk-2:2181/chroot
hosts: {control: [ctl-1]}
defaults:
  placement: control
  image: site/{{ role }}:{{ tag }}
  cpu: 0.25
  memory: 1Gi
  user: 42425
  read_only: true
  env: {A: 1, B: "2"}
services:
  web:
    cpu: 500m
    user: 0
    read_only: no
    network: host
    capabilities: [NET_ADMIN]
    ports: [80, "{{ port }}"]
    volumes:
      /data: 10Gi
      /keys: {shared: keys}
      /lib/modules: {host: /usr/lib/modules}
      /run/web: temporary
      /fast: {size: 2Gi, storage_class: fast}
    env: {B: 3}
    variables: site-passwords
    credential: site-zookeeper
"""
DAEMON = "service: {daemon: {command: sleep 9, ready: {alive: 0}}}\n"


def look(root: Path, launch: str = LAUNCH) -> tuple[directory.Deployment, list[str]]:
    """The directory with this launch.yml, and what is wrong in it."""
    write_files(
        root, launch_yml=launch, services__web__definition_yml=DAEMON, services__db__definition_yml=DAEMON
    )
    deployment, findings = directory.look(root)
    return deployment, [f"{each.place}: {each.message}" for each in findings]


def test_a_service_has_its_own_settings_and_else_the_defaults(tmp_path: Path) -> None:
    """Numbers in one unit; `env` is joined, all else is replaced."""
    deployment, wrong = look(tmp_path)
    assert (wrong, deployment.launch.zookeeper) == ([], "zk-1:2181,zk-2:2181/chroot")
    default = ContainerSettings(
        placement="control",
        image="site/{{ role }}:{{ tag }}",
        cpu=250,
        memory=1024,
        user=42425,
        read_only=True,
        env={"A": "1", "B": "2"},
    )
    assert deployment.launch.of("db") == default
    assert deployment.launch.of("web") == default._replace(
        cpu=500,
        user=0,
        read_only=False,
        network="host",
        capabilities=["NET_ADMIN"],
        ports=["80", "{{ port }}"],
        volumes=[
            Volume("/data", "kept", size=10240),
            Volume("/keys", "shared", "keys"),
            Volume("/lib/modules", "host", "/usr/lib/modules"),
            Volume("/run/web", "temporary"),
            Volume("/fast", "kept", size=2048, storage_class="fast"),
        ],
        env={"A": "1", "B": "3"},
        variables="site-passwords",
        credential="site-zookeeper",
    )


MISTAKES = {
    "a size of memory": ("memory: 1Gi", "memory: 1G", "8: defaults.memory: expected a size, such as 512Mi"),
    "processors": ("cpu: 500m", "cpu: lots", "14: services.web.cpu: expected a number of processors"),
    "no processor": ("cpu: 500m", "cpu: 0", "14: services.web.cpu: expected a number of processors"),
    "a user's name": ("user: 42425", "user: web", "9: defaults.user: expected a whole number"),
    "neither yes nor no": ("read_only: true", "read_only: 7", "10: defaults.read_only: expected true or"),
    "a network": ("network: host", "network: hots", "17: services.web.network: expected 'host' or 'own'"),
    "a capability": ("[NET_ADMIN]", "[CAP_NET_ADMIN]", "18: services.web.capabilities[0]: expected a capab"),
    "an unknown capability": (
        "[NET_ADMIN]",
        "[NET_ADMN]",
        "18: services.web.capabilities[0]: unknown capability NET_ADMN; nearest is 'NET_ADMIN'",
    ),
    "a tag that is a template": ("2026.10", "'{{ release }}'", "1: tag: expected the tag itself: a templ"),
    "one port": ('[80, "{{ port }}"]', "80", "19: services.web.ports: expected a list, found '80'"),
    "no protocol": ("[80,", "[53/sctp,", "19: services.web.ports[0]: expected a port (80, or 53/udp)"),
    "no port": (
        "[80,",
        "[80000,",
        "19: services.web.ports[0]: expected a port (80, or 53/udp), or a template of one",
    ),
    "a volume's size": ("10Gi", "10G", "21: services.web.volumes./data: expected its size (10Gi), `tempo"),
    "a volume's path": ("/data:", "data:", "21: services.web.volumes.data: expected an absolute path"),
    "an unknown volume": ("shared: keys", "share: keys", "22: services.web.volumes./keys.share: unknown key"),
    "a volume of nothing": ("{shared: keys}", "{}", "22: services.web.volumes./keys: expected its size"),
    "a size beside a place": (
        "{shared: keys}",
        "{size: 1Gi, shared: keys}",
        "22: services.web.volumes./keys.shared: unknown key; nearest is",
    ),
    "a size in braces": (
        "{shared: keys}",
        "{size: 1G}",
        "22: services.web.volumes./keys.size: expected its size",
    ),
    "a storage class": (
        "{shared: keys}",
        "{size: 1Gi, storage_class: Fast}",
        "22: services.web.volumes./keys.storage_class: expected the name of a storage class",
    ),
    "a volume by two names": (
        "{shared: keys}",
        "{shared: keys, volume: keys}",
        "22: services.web.volumes./keys: expected its size",
    ),
    "the name of a volume": (
        "{shared: keys}",
        "{volume: keys.volume}",
        "22: services.web.volumes./keys.volume: expected the name of a volume",
    ),
    "an unknown propagation": (
        "{host: /usr/lib/modules}",
        "{host: /usr/lib/modules, propagation: all}",
        "23: services.web.volumes./lib/modules.propagation: expected shared, rshared, slave, rslave",
    ),
    "the propagation of what is no path of the host": (
        "{shared: keys}",
        "{shared: keys, propagation: shared}",
        "22: services.web.volumes./keys.propagation: is only allowed for a path of the host",
    ),
    "a namespace of another container": (
        "network: host",
        "pid: web",
        "17: services.web.pid: expected 'host'",
    ),
    "a device": (
        "network: host",
        "devices: [kvm]",
        "17: services.web.devices[0]: expected a device of the host, such as /dev/kvm",
    ),
    "rights for a device": (
        "network: host",
        "devices: ['/dev/kvm:/dev/kvm:all']",
        "17: services.web.devices[0]: expected a device of the host, such as /dev/kvm",
    ),
    "a limit": (
        "network: host",
        "limits: {nofile: many}",
        "17: services.web.limits.nofile: expected a number",
    ),
    "a signal": ("network: host", "stop_signal: QUITE", "17: services.web.stop_signal: expected the name of"),
    "a signal that nothing survives": (
        "network: host",
        "stop_signal: KILL",
        "17: services.web.stop_signal: expected the name of a signal, one of HUP, INT, QUIT,",
    ),
    "a signal beyond the last": (
        "network: host",
        "stop_signal: RTMIN+31",
        "17: services.web.stop_signal: expected the name of a signal, one of HUP, INT, QUIT,",
    ),
    "a signal only for the agent": (
        "{A: 1",
        "{KOLLA_STOP_SIGNAL: QUIT",
        "11: defaults.env.KOLLA_STOP_SIGNAL: set `stop_signal` instead: the launcher needs it too",
    ),
    "a limit of no time": (
        "network: host",
        "start_timeout: 0",
        "17: services.web.start_timeout: expected a whole number from 1",
    ),
    "a limit with a unit": (
        "network: host",
        "start_timeout: 10m",
        "17: services.web.start_timeout: expected a whole number from 1",
    ),
    "a misspelt limit": (
        "network: host",
        "start_time_out: 9",
        "17: services.web.start_time_out: unknown key; nearest is 'start_timeout'",
    ),
    "a secret's name": ("site-passwords", "Site_Passwords", "27: services.web.variables: expected a name of"),
    "the agent's ZooKeeper": ("zk-2:2181", " zk-2", "2: zookeeper: expected h1:2181,h2:2181[/chroot]"),
    "an unknown key": ("  image:", "  imgae:", "6: defaults.imgae: unknown key; nearest is 'image'"),
    "no image": ("site/{{ role }}:{{ tag }}", "' '", "6: defaults.image: expected the name of an image"),
    "an unnamed variable": ("{A: 1", "{'=': 1", "11: defaults.env.=: expected the name of an environment"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    """And alone."""
    right, wrong, expected = MISTAKES[name]
    (found,) = look(tmp_path, LAUNCH.replace(right, wrong, 1))[1]
    assert found.startswith(f"launch.yml:{expected}"), found


def test_a_container_may_use_what_is_the_hosts(tmp_path: Path) -> None:
    more = """network: host
    new_privileges: true
    privileged: yes
    pid: host
    ipc: host
    cgroup: host
    limits: {nofile: 1024, memlock: "-1:-1", nproc: 1:2}
    security_options: [label=disable]
    devices: [/dev/kvm, /dev/tun:/dev/net/tun:rw]"""
    volumes = "{host: /usr/lib/modules, read_only: true, propagation: rslave}"
    launch = LAUNCH.replace("network: host", more).replace("{host: /usr/lib/modules}", volumes)
    deployment, wrong = look(tmp_path, launch)
    web = deployment.launch.of("web")
    assert wrong == []
    assert (web.new_privileges, web.privileged, web.pid, web.ipc, web.cgroup) == (True, True, *["host"] * 3)
    assert web.limits == {"nofile": "1024:1024", "memlock": "-1:-1", "nproc": "1:2"}
    assert web.security_options == ["label=disable"]
    assert web.devices == ["/dev/kvm", "/dev/tun:/dev/net/tun:rw"]
    assert Volume("/lib/modules", "host", "/usr/lib/modules", 0, True, "rslave") in (web.volumes or ())
