"""The directory that two recordings become.

`golden/site.txt` has all files of one. This writes it again::

    .venv/bin/python -m tests.kolla_ansible.test_emit
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.commands.importing import CannotImport, adoption, refuse
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.launch_settings import CAPABILITIES
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.site import Site
from tests.kolla_ansible import oracle
from tests.kolla_ansible.examples import Recorder, errors, imported, joined, load

GOLDEN = Path(__file__).with_name("golden") / "site.txt"
HOSTS = ("ctl-1", "ctl-2")
# MariaDB is imported as it is: see test_clusters.py.
ALONE = "clusters: [{daemon: mariadb, instead: null}]\n"
OUTSIDE = "addresses: [{name: .*keystone, port: 6379, on: null, reason: ours}]\n"
PASSWORDS = {"keystone_database_password": "s3cret", "unused_password": "other"}


def recorded(run: int, site: Site) -> list[Task]:
    """Keystone on two hosts, with stand-ins."""
    used = site.stand_ins(run)
    password = used.secrets["keystone_database_password"]
    addresses = {host: used.facts[host].interfaces["eth0"] for host in HOSTS}
    recorders = list(map(Recorder, HOSTS))
    for recorder in recorders:
        host = recorder.host
        recorder.daemon("kolla_toolbox", volumes=["/run/:/run/:shared"])
        recorder.toolbox("openvswitch_bridge", {"bridge": "br-ex"}, "openvswitch", user="root")
        recorder.daemon(
            "mariadb",
            "healthcheck.sh --connect",
            privileged=True,
            devices=["/dev/kvm"],
            volumes_from=["other"],
            dimensions={
                "ulimits": {"nofile": {"soft": 1, "hard": 2}, "RLIMIT_NPROC": {"soft": 3, "hard": 4}}
            },
        )
        if host == HOSTS[0]:
            login = {"login_host": addresses[host], "login_password": "{{ not ours }}", "name": "keystone"}
            recorder.toolbox("mysql_db", login)
            recorder.toolbox("mysql_user", {**login, "password": password})
            recorder.toolbox("rabbitmq_user", {"user": "openstack"}, user="rabbitmq")
        url = f"mysql+pymysql://keystone:{password}@{addresses[HOSTS[0]]}:3306/keystone"
        recorder.file("keystone/keystone.conf", f"[database]\nconnection = {url}\n[a]\nhost = {host}\n")
        workers = used.facts[host].values["processor_vcpus"]
        recorder.file("mariadb/galera.cnf", f"threads = {workers}\n")
        recorder.file("keystone/other.conf", f"backend_url = redis://{addresses[host]}:6379\n")
        recorder.file("keystone/own.key", "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n")
        ceph = "[client.nova]\n\tkey = AQBvV2RkAAAAABAAq0mO5HjYbMfdZ3Yl6ks4Qw==\n"
        recorder.file("keystone/ceph.client.nova.keyring", ceph)
        recorder.file("keystone/conf.d/own.conf", f"bind = {addresses[host]}\n{{% literal %}}\n")
        if host == HOSTS[0]:
            recorder.bootstrap("bootstrap_keystone", "keystone")
        recorder.daemon("keystone", f"healthcheck_curl http://{addresses[host]}:5000")
        recorder.daemon("nova_libvirt", volumes=["/dev:/dev", "devpts:/dev/pts"])
        recorder.daemon("nova_conductor")
        recorder.daemon("nova_compute")
        recorder.daemon("neutron_dhcp_agent", environment={"KOLLA_NEUTRON_WRAPPERS": "true"})
        sasl = f"echo {password} | docker exec -i nova_libvirt saslpasswd2 -c -p -a libvirt nova\n"
        recorder.task("shell", "Create user", "nova-cell", cmd=f"set -o pipefail && {sasl}")
        if host == HOSTS[0]:
            command = f"set -o pipefail && echo {password} | docker exec -i keystone set-it\n"
            recorder.task("shell", "Set it", cmd=command)
            discover = "docker exec -t nova_conductor nova-manage cell_v2 discover_hosts --by-service"
            recorder.task("command", "Discover", _raw_params=discover)
            recorder.task("shell", "Copy it", cmd="cat /etc/it | docker exec -i keystone tee /it")
        recorder.task("sysctl", "Setting sysctl values", name="net.ipv4.ip_forward", value=1)
        recorder.task("command", "Load it", cmd=f"load {password}")
    return joined(recorders)


def keystone(place: Path, overrides: str = ALONE) -> tuple[Path, Imported]:
    """The directory, with what was found on the way."""
    return imported(place, HOSTS, recorded, PASSWORDS, overrides)


def contents(site: Path) -> str:
    """All published files, and the targets of links, each below its path."""
    paths = sorted(path for path in site.rglob("[!.]*") if path.is_file() and path.name != "imported.json")
    return "".join(
        f"=== {path.relative_to(site)}{f' -> {os.readlink(path)}' if path.is_symlink() else ''}\n"
        f"{'' if path.is_symlink() else path.read_text()}"
        for path in paths
    )


def test_the_directory_is_that_of_the_repository(tmp_path: Path) -> None:
    """Reasons for what is in it, where they are not obvious.

    MariaDB's check is `mariadb-admin ping`, because a step that waits for MariaDB creates the user of its
    healthcheck. In steps.yml, a password is neither a number nor a template of ansible, whatever it is. Its
    dest has a digest, because `publish` compares commands, not files, to say that a step has changed. A
    module is tried again, as by kolla-ansible, because several steps may create one project at once. Steps
    of Open vSwitch are root's, whose socket it is; rabbitmqctl refuses all users but its own. nova_libvirt's
    user is added inside each container, before its daemon. nova-compute registers some time after it is
    ready, so hosts are discovered until all are listed. An empty volume at /dev/pts would leave libvirt
    without terminals. Agents with the host's /run have a directory of their own. neutron_dhcp_agent starts
    containers, so it writes their files on the host.
    """
    assert contents(keystone(tmp_path)[0]) == GOLDEN.read_text()


def test_the_files_are_those_of_each_host_with_the_real_values(tmp_path: Path) -> None:
    site, _ = keystone(tmp_path)
    found = oracle.rendered(site, tmp_path / "passwords.yml")
    url = "mysql+pymysql://keystone:s3cret@192.0.2.10:3306/keystone"
    wanted = f"[database]\nconnection = {url}\n[a]\nhost = ctl-2\n"
    assert found["ctl-2", "keystone/keystone.conf"] == wanted.encode()
    assert found["ctl-1", "keystone/conf.d/own.conf"] == b"bind = 192.0.2.10\n{% literal %}\n"
    assert found["ctl-2", "keystone/conf.d/own.conf"] == b"bind = 192.0.2.11\n{% literal %}\n"


def test_the_directory_is_valid_and_has_the_used_secrets_by_name_only(tmp_path: Path) -> None:
    site, outcome = keystone(tmp_path)
    assert errors(site) == []
    assert not (outcome.unlifted or outcome.against_order)
    assert load(site / "secrets.yml") == {"keystone_database_password": "password"}
    assert not [path for path in site.rglob("*") if path.is_file() and "s3cret" in path.read_text()]


def test_a_daemon_of_a_host_without_the_step_waits_for_what_it_needs_anyway(tmp_path: Path) -> None:
    needs = """needs:
    - {name: nova_libvirt, on: mariadb, reason: ours}
    - {name: nova_libvirt, on: openvswitch_toolbox_ctl_1, local: true, reason: ours}
    """
    site, _ = keystone(tmp_path, ALONE + needs)
    service = site / "services/openstack/keystone/nova_libvirt"
    daemon = load(service / "definition.yml")["service"]["daemon"]
    assert daemon["dependencies"] == ["mariadb/daemon", "{{ after_openvswitch }}"]
    assert {host: each["after_openvswitch"] for host, each in load(service / "variables.yml").items()} == {
        "ctl-1": "openvswitch_toolbox_ctl_1/run",
        "ctl-2": "mariadb/daemon",
    }
    assert errors(site) == []


def test_a_command_without_a_shell_stays_one(tmp_path: Path) -> None:
    """A shell would change a password such as pa$$word."""

    def recorded(run: int, site: Site) -> list[Task]:
        recorder = Recorder()
        recorder.daemon("keystone")
        secret = site.stand_ins(run).secrets["admin_password"]
        recorder.task("command", cmd=f"docker exec keystone bootstrap 'a b' {secret}\n")
        return recorder.tasks

    site, _ = imported(tmp_path, HOSTS, recorded, {"admin_password": "s3cret"})
    run = load(site / "services/openstack/keystone/keystone_exec/definition.yml")["commands"]["run"]
    line = 'sudo -E kolla_set_configs && exec "$@"'
    assert run["command"] == ["bash", "-c", line, "bash", "bootstrap", "a b", "{{ admin_password }}"]


def of_two_hosts(place: Path, change: Callable[[Recorder, int], None]) -> tuple[Any, Any, str]:
    """launch.yml's part, the definition and the report of a daemon that differs on two hosts."""

    def recorded(run: int, site: Site) -> list[Task]:
        recorders = list(map(Recorder, HOSTS))
        for number, recorder in enumerate(recorders, start=1):
            change(recorder, number)
        return joined(recorders)

    site, _ = imported(place, HOSTS, recorded)
    services = load(site / "launch.yml")["services"]
    definition = load(site / "services/openstack/keystone/swift/definition.yml")
    return (
        services["openstack/keystone/swift"],
        definition["service"]["daemon"],
        (site / "report.txt").read_text(),
    )


def test_a_number_that_differs_between_hosts_is_a_variable(tmp_path: Path) -> None:
    def change(recorder: Recorder, number: int) -> None:
        recorder.daemon("swift", "true", timeout=number, environment={"WORKERS": number})

    _, daemon, _ = of_two_hosts(tmp_path, change)
    assert daemon["env"]["WORKERS"] == "{{ setting_1 }}"
    assert daemon["ready"] == {"command": "true", "timeout": "{{ setting_2 }}", "fall": 3}
    values = load(tmp_path / "site/services/openstack/keystone/swift/variables.yml")
    assert values == {f"ctl-{n}": {"setting_1": str(n), "setting_2": str(n)} for n in (1, 2)}


def test_a_container_that_differs_between_hosts_is_that_of_the_first_and_reported(tmp_path: Path) -> None:
    """launch.yml has no values of single hosts."""

    def change(recorder: Recorder, number: int) -> None:
        recorder.daemon(
            "swift",
            volumes=[f"/data{number}:/srv"],
            dimensions={"mem_limit": f"{number}g"},
            cap_add=["CAP_NET_ADMIN", "NET_RAW"],  # Some capabilities begin with CAP_.
            tmpfs=[None, "", "/run:size=1g", "/tmp"],  # An empty entry is a setting that is off.
        )

    launch, _, report = of_two_hosts(tmp_path, change)
    assert launch["volumes"] == {"/srv": {"host": "/data1"}, "/run": "temporary", "/tmp": "temporary"}
    assert launch["capabilities"] == [*CAPABILITIES, "NET_ADMIN"]
    assert "swift: tmpfs /run: launch.yml has no option size=1g\n" in report
    assert "swift: volumes of ctl-2 differ from those of ctl-1, which are used\n" in report
    assert "swift: mem_limit 1g: launch.yml has no such limit" in report
    assert "\ue000" not in report + str(launch)


def test_a_service_with_a_tag_of_its_own_has_its_own_generation(tmp_path: Path) -> None:
    """With nova_tag in globals.yml: otherwise a new one would not run the migrations again."""

    def change(recorder: Recorder, number: int) -> None:
        recorder.daemon("memcached")
        recorder.daemon("kolla_toolbox")
        if number == 1:
            recorder.toolbox("mysql_db", {"name": "swift"})
            recorder.bootstrap("bootstrap_swift", "swift", image="quay.io/kolla/swift:hotfix")
        recorder.daemon("swift", image="quay.io/kolla/swift:hotfix")

    launch, _, _ = of_two_hosts(tmp_path, change)
    assert (launch["image"], launch["env"]) == ("quay.io/kolla/swift:hotfix", {"KOLLA_GENERATION": "hotfix"})
    services = tmp_path / "site/services/openstack/keystone"
    run = load(services / "bootstrap_swift/definition.yml")["commands"]["run"]
    assert run["generation"] == "hotfix"
    assert run["dependencies"] == [{"path": "keystone_toolbox/run", "generation": "any"}]
    assert errors(tmp_path / "site") == []


def test_a_row_of_the_operator_has_the_user_of_another_image(tmp_path: Path) -> None:
    def recorded(run: int, site: Site) -> list[Task]:
        recorder = Recorder()
        recorder.daemon("swift")
        return recorder.tasks

    site, _ = imported(tmp_path, HOSTS, recorded, overrides="users: [{image: swift, user: 160}]")
    assert load(site / "launch.yml")["services"]["openstack/keystone/swift"]["user"] == 160
    assert "`user`" not in (site / "report.txt").read_text()


def test_a_file_that_is_copied_into_a_directory_is_written_for_each_host(tmp_path: Path) -> None:
    def change(recorder: Recorder, number: int) -> None:
        recorder.task("file", path="/etc/kolla/swift/certs")
        task = recorder.file("swift/certs", f"{number}\n")
        recorder.tasks[-1] = replace(task, args={"src": "/etc/kolla/certificates/ca.pem"})
        recorder.daemon("swift")

    _, daemon, _ = of_two_hosts(tmp_path, change)
    assert daemon["files"] == {"certs.ca.pem": {"dest": "/var/lib/kolla/config_files/certs/ca.pem"}}
    record = json.loads((tmp_path / "site/imported.json").read_bytes())
    origins = record["services"]["openstack/keystone/swift"]
    assert [each["path"] for each in origins] == ["/etc/kolla/swift/certs/ca.pem"] * 2


def test_two_files_whose_names_would_be_the_same_are_both_written(tmp_path: Path) -> None:
    def change(recorder: Recorder, number: int) -> None:
        for path in ("swift/a/b", "swift/a.b"):
            recorder.file(path, f"{path}\n")
        recorder.daemon("swift")

    _, daemon, _ = of_two_hosts(tmp_path, change)
    assert {each["dest"].rpartition("files/")[2] for each in daemon["files"].values()} == {"a/b", "a.b"}


def test_a_cluster_is_refused_with_its_hosts_unless_a_rule_accepts_it(tmp_path: Path) -> None:
    _, outcome = keystone(tmp_path, "clusters: [{daemon: mariadb, instead: keep it on one host}]\n" + OUTSIDE)
    (issue,) = outcome.clusters.issues
    assert (
        issue == "mariadb on ctl-1, ctl-2 is a cluster, and can't be imported as one yet: keep it on one host"
    )
    with pytest.raises(CannotImport, match="mariadb on ctl-1, ctl-2"):
        refuse(outcome)
    _, accepted = keystone(tmp_path, ALONE + OUTSIDE)
    refuse(accepted)


def test_an_address_without_a_listener_is_refused_unless_a_part_is_imported(tmp_path: Path) -> None:
    _, outcome = keystone(tmp_path)
    why = r"keystone: other.conf:1 backend_url: nothing listens at 192.0.2.10:6379: add a row to `listeners`"
    with pytest.raises(CannotImport, match=why):
        refuse(outcome)
    refuse(outcome, "keystone")


def test_imported_json_has_the_origin_of_files_and_the_reason_of_edges(tmp_path: Path) -> None:
    record = json.loads((keystone(tmp_path)[0] / "imported.json").read_bytes())
    assert {
        "name": "keystone",
        "on": "mariadb",
        "reason": "keystone.conf:2 connection",
        "hard": True,
    } in record["edges"]
    (origin, *_) = record["services"]["openstack/keystone/keystone"]
    assert (origin["host"], origin["path"]) == ("ctl-1", "/etc/kolla/keystone/keystone.conf")


def test_all_steps_are_listed_for_adopt_in_their_order(tmp_path: Path) -> None:
    lines = adoption(keystone(tmp_path)[1]).decode().splitlines()
    assert [line.partition("  # ")[0] for line in lines] == [
        "openvswitch_toolbox_ctl_1/run",
        "keystone_toolbox/run",
        "keystone_toolbox_2/run",
        "bootstrap_keystone/run",
        "keystone_exec/run",
        "nova_conductor_exec/run",
        "openvswitch_toolbox_ctl_2/run",
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        GOLDEN.write_text(contents(keystone(Path(place))[0]))
