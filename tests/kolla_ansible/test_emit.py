"""The directory that two recordings become."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl.commands.importing import CannotImport, adoption, refuse
from kolla_mesos_start.ctl.directory import directory as deployments
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.kolla_ansible import directory, facts, importing, rules
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.launch_settings import CAPABILITIES
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.site import Site
from tests.kolla_ansible import oracle
from tests.kolla_ansible.examples import Recorder

HOSTS = ("ctl-1", "ctl-2")
FACTS = "hosts:\n" + "".join(
    f"  {host}: {{address: 192.0.2.1{n}, interface: eth0, cpus: 4, memory: 8192}}\n"
    for n, host in enumerate(HOSTS)
)
# MariaDB is imported as it is: see test_clusters.py.
ALONE = "clusters: [{daemon: mariadb, instead: null}]\n"
OUTSIDE = "addresses: [{name: .*keystone, port: 6379, on: null, reason: ours}]\n"
PASSWORDS = "keystone_database_password: s3cret\nunused_password: other\n"


def recorded(run: int, site: Site) -> list[Task]:
    """Keystone on two hosts, with stand-ins."""
    used = site.stand_ins(run)
    password = used.secrets["keystone_database_password"]
    addresses = {host: used.facts[host].interfaces["eth0"] for host in HOSTS}
    tasks: list[Task] = []
    for host in HOSTS:
        recorder = Recorder(host)
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
        start = len(tasks)
        tasks += (replace(task, number=start + task.number) for task in recorder.tasks)
    return tasks


def imported(place: Path, overrides: Path | None = None) -> tuple[Path, Imported]:
    """The directory, with what was found on the way."""
    (place / "facts.yml").write_text(FACTS)
    (place / "passwords.yml").write_text(PASSWORDS)
    if overrides is None:
        overrides = place / "alone.yml"
        overrides.write_text(ALONE)
    passwords = yaml.safe_load(PASSWORDS)
    site = Site(facts.read(place / "facts.yml", HOSTS), {}, passwords)
    outcome = importing.make(
        (recorded(0, site), recorded(1, site)), site, rules.read(overrides), "22.2.0", "zk-1:2181"
    )
    directory.write(place / "site", outcome.emitted)
    return place / "site", outcome


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_files_are_those_of_each_host_with_the_real_values(tmp_path: Path) -> None:
    site, _ = imported(tmp_path)
    found = oracle.rendered(site, tmp_path / "passwords.yml")
    url = "mysql+pymysql://keystone:s3cret@192.0.2.10:3306/keystone"
    wanted = f"[database]\nconnection = {url}\n[a]\nhost = ctl-2\n"
    assert found["ctl-2", "keystone/keystone.conf"] == wanted.encode()
    assert found["ctl-1", "keystone/conf.d/own.conf"] == b"bind = 192.0.2.10\n{% literal %}\n"
    assert found["ctl-2", "keystone/conf.d/own.conf"] == b"bind = 192.0.2.11\n{% literal %}\n"


def test_a_number_that_depends_on_the_cpus_is_a_value_of_each_host_and_listed(tmp_path: Path) -> None:
    site, _ = imported(tmp_path)
    mariadb = site / "services/openstack/keystone/mariadb"
    assert (mariadb / "files/galera.cnf").read_text() == "threads = {{ galera_cnf_1 }}\n"
    assert {host: values["galera_cnf_1"] for host, values in load(mariadb / "variables.yml").items()} == {
        "ctl-1": "4",
        "ctl-2": "4",
    }
    assert (
        oracle.rendered(site, tmp_path / "passwords.yml")["ctl-2", "mariadb/galera.cnf"] == b"threads = 4\n"
    )
    report = (site / "report.txt").read_text()
    assert "CPUs or the memory of a host:\n  openstack/keystone/mariadb: galera_cnf_1\n" in report


def errors(site: Path) -> list[str]:
    """What `kolla_mesos_ctl validate` finds."""
    deployment = deployments.read(site)
    secrets = dict.fromkeys(deployment.secrets, b"s3cret")
    deployment = deployment._replace(variables={**deployment.variables, **secrets})
    return [each.message for each in validate(deployment) if each.severity == "error"]


def test_the_directory_is_valid_and_has_the_used_secrets_by_name_only(tmp_path: Path) -> None:
    site, outcome = imported(tmp_path)
    assert errors(site) == []
    assert not (outcome.unlifted or outcome.against_order)
    assert load(site / "secrets.yml") == {"keystone_database_password": "password"}
    assert not [path for path in site.rglob("*") if path.is_file() and "s3cret" in path.read_text()]


def test_a_daemon_has_its_files_its_dependencies_and_its_check(tmp_path: Path) -> None:
    definition = load(imported(tmp_path)[0] / "services/openstack/keystone/keystone/definition.yml")
    daemon = definition["service"]["daemon"]
    assert (definition["service"]["instances"], daemon["command"]) == (2, "kolla_start")
    assert daemon["dependencies"] == ["mariadb/daemon", "keystone_toolbox/run", "bootstrap_keystone/run"]
    assert daemon["files"]["conf.d.own.conf"] == {"dest": "/var/lib/kolla/config_files/conf.d/own.conf"}
    assert daemon["ready"]["command"] == "healthcheck_curl http://{{ own_address }}:5000"
    # A step that waits for MariaDB creates the user of its healthcheck.
    mariadb = load(tmp_path / "site/services/openstack/keystone/mariadb/definition.yml")["service"]["daemon"]
    assert mariadb["ready"]["command"] == "mariadb-admin ping"


def test_a_step_runs_once_for_each_tag_and_shares_the_files_of_its_daemon(tmp_path: Path) -> None:
    site, _ = imported(tmp_path)
    step = site / "services/openstack/keystone/bootstrap_keystone"
    command = load(step / "definition.yml")["commands"]["run"]
    assert (command["run_once"], command["generation"], command["command"]) == (True, "2026.1", "kolla_start")
    assert command["env"] == {"KOLLA_SERVICE_NAME": "bootstrap-keystone", "KOLLA_BOOTSTRAP": None}
    shared = site / "services/openstack/keystone/keystone/files/keystone.conf"
    assert (step / "files/keystone.conf").is_symlink() and shared.is_file()


def test_the_modules_of_kolla_toolbox_are_a_playbook_with_templates_for_secrets(tmp_path: Path) -> None:
    step = imported(tmp_path)[0] / "services/openstack/keystone/keystone_toolbox"
    text = (step / "files/steps.yml").read_text()
    # Neither a number nor a template of ansible, whatever the password is.
    assert "password: !unsafe {{ keystone_database_password | tojson }}\n" in text
    assert '{{ "{{" }} not ours }}' in text
    command = load(step / "definition.yml")["commands"]["run"]
    # `publish` compares commands, not files, to say that a step has changed and does not run again.
    line = r"sudo -E kolla_set_configs && ansible-playbook -i localhost, -c local /tmp/steps-[0-9a-f]{8}\.yml"
    assert re.fullmatch(line, command["command"][2])


def test_a_daemon_of_a_host_without_the_step_waits_for_what_it_needs_anyway(tmp_path: Path) -> None:
    needs = """needs:
    - {name: nova_libvirt, on: mariadb, reason: ours}
    - {name: nova_libvirt, on: openvswitch_toolbox_ctl_1, local: true, reason: ours}
    """
    (tmp_path / "rules.yml").write_text(f"{ALONE}{needs}")
    site, _ = imported(tmp_path, tmp_path / "rules.yml")
    service = site / "services/openstack/keystone/nova_libvirt"
    daemon = load(service / "definition.yml")["service"]["daemon"]
    assert daemon["dependencies"] == ["mariadb/daemon", "{{ after_openvswitch }}"]
    assert {host: each["after_openvswitch"] for host, each in load(service / "variables.yml").items()} == {
        "ctl-1": "openvswitch_toolbox_ctl_1/run",
        "ctl-2": "mariadb/daemon",
    }
    assert errors(site) == []


@pytest.mark.parametrize(
    ("step", "module", "user"),
    [
        ("keystone/keystone_toolbox", "mysql_db", None),
        ("keystone/keystone_toolbox_2", "rabbitmq_user", "rabbitmq"),
        ("openvswitch/openvswitch_toolbox_ctl_2", "openvswitch_bridge", "root"),
    ],
)
def test_a_module_of_kolla_toolbox_runs_as_its_user(
    tmp_path: Path, step: str, module: str, user: str | None
) -> None:
    """Rabbitmqctl refuses all others, and the socket of Open vSwitch is root's."""
    site = imported(tmp_path)[0]
    command = load(site / f"services/openstack/{step}/definition.yml")["commands"]["run"]
    assert module in (site / f"services/openstack/{step}/files/steps.yml").read_text()
    assert (command.get("user"), command["files"]["steps.yml"].get("owner")) == (user, user)
    # The image's own user may neither become another one nor read the other's files.
    assert load(site / "launch.yml")["services"][f"openstack/{step}"].get("user") == (0 if user else None)


def test_a_command_inside_a_container_precedes_its_daemon_in_each_start(tmp_path: Path) -> None:
    site, outcome = imported(tmp_path)
    definition = load(site / "services/openstack/keystone/nova_libvirt/definition.yml")
    user = "echo {{ keystone_database_password }} | saslpasswd2 -c -p -a libvirt nova"
    assert definition["commands"] == {
        "inside": {
            "command": ["bash", "-c", f"sudo -E kolla_set_configs && set -o pipefail && {user}"],
            "env": {"KOLLA_SERVICE_NAME": "nova-libvirt"},
        }
    }
    assert "run_once" not in definition["commands"]["inside"]
    assert not [step for step in outcome.containers.steps if step.image_of == "nova_libvirt"]


def test_a_pipe_into_a_container_becomes_a_step_with_all_of_it_unless_the_host_is_needed(
    tmp_path: Path,
) -> None:
    site, _ = imported(tmp_path)
    command = load(site / "services/openstack/keystone/keystone_exec/definition.yml")["commands"]["run"]
    line = "set -o pipefail && echo {{ keystone_database_password }} | set-it"
    assert command["command"] == ["bash", "-c", f"sudo -E kolla_set_configs && {line}"]
    (line,) = [line for line in (site / "report.txt").read_text().splitlines() if "Copy it" in line]
    assert line.startswith("  ctl-1: Copy it (/playbooks/roles/keystone/tasks/main.yml:")
    assert line.endswith(
        "a part of its command is for the host, and only the rest for keystone: run it by hand"
    )


def test_a_command_without_a_shell_stays_one(tmp_path: Path) -> None:
    """A shell would change a password such as pa$$word."""
    (tmp_path / "facts.yml").write_text(FACTS)
    site = Site(facts.read(tmp_path / "facts.yml", HOSTS), {}, {"admin_password": "s3cret"})
    recordings = []
    for run in range(2):
        recorder = Recorder()
        recorder.daemon("keystone")
        secret = site.stand_ins(run).secrets["admin_password"]
        recorder.task("command", cmd=f"docker exec keystone bootstrap 'a b' {secret}\n")
        recordings.append(recorder.tasks)
    outcome = importing.make((recordings[0], recordings[1]), site, rules.read(), "", None)
    directory.write(tmp_path / "site", outcome.emitted)
    command = load(tmp_path / "site/services/openstack/keystone/keystone_exec/definition.yml")["commands"][
        "run"
    ]
    line = 'sudo -E kolla_set_configs && exec "$@"'
    assert command["command"] == ["bash", "-c", line, "bash", "bootstrap", "a b", "{{ admin_password }}"]


def test_hosts_are_discovered_until_all_are_there(tmp_path: Path) -> None:
    """nova-compute is ready as soon as it is connected, and registers its service later."""
    step = imported(tmp_path)[0] / "services/openstack/keystone/nova_conductor_exec"
    (_, _, command) = load(step / "definition.yml")["commands"]["run"]["command"]
    assert command == (
        "sudo -E kolla_set_configs && until nova-manage cell_v2 discover_hosts --by-service || exit; "
        '[ "$(nova-manage cell_v2 list_hosts | grep -cE "[|] *(ctl-1|ctl-2) *[|]")" -ge 2 ]; do sleep 5; done'
    )


def test_launch_yml_has_hosts_images_and_rights(tmp_path: Path) -> None:
    launch = load(imported(tmp_path)[0] / "launch.yml")
    assert (launch["tag"], launch["zookeeper"]) == ("2026.1", "zk-1:2181")
    mariadb = launch["services"]["openstack/keystone/mariadb"]
    assert launch["hosts"][mariadb["placement"]] == list(HOSTS)
    assert mariadb["image"] == "quay.io/kolla/mariadb:{{ tag }}"
    assert (mariadb["replicas"], mariadb["privileged"], mariadb["limits"]) == (
        "each",
        True,
        {"nofile": "1:2", "nproc": "3:4"},
    )
    assert mariadb["devices"] == ["/dev/kvm"]
    assert mariadb["volumes"]["/var/lib/kolla/config_files"] == "temporary"
    assert mariadb["volumes"]["/var/log/kolla"] == {"volume": "kolla_logs"}


def of_two_hosts(place: Path, change: Callable[[Recorder, int], None]) -> tuple[Any, Any, str]:
    """launch.yml's part, the definition and the report of a daemon that differs on two hosts."""
    (place / "facts.yml").write_text(FACTS)
    site = Site(facts.read(place / "facts.yml", HOSTS), {}, {})
    tasks: list[Task] = []
    for number, host in enumerate(HOSTS, start=1):
        recorder = Recorder(host)
        change(recorder, number)
        start = len(tasks)
        tasks += (replace(task, number=start + task.number) for task in recorder.tasks)
    outcome = importing.make((tasks, tasks), site, rules.read(), "22.2.0", "zk-1:2181")
    directory.write(place / "site", outcome.emitted)
    services = load(place / "site/launch.yml")["services"]
    definition = load(place / "site/services/openstack/keystone/swift/definition.yml")
    return (
        services["openstack/keystone/swift"],
        definition["service"]["daemon"],
        (place / "site/report.txt").read_text(),
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


def test_devpts_is_no_volume(tmp_path: Path) -> None:
    """An empty volume there would leave libvirt without terminals."""
    service = load(imported(tmp_path)[0] / "launch.yml")["services"]["openstack/keystone/nova_libvirt"]
    assert service["volumes"] == {"/dev": {"host": "/dev"}}


def test_agents_with_the_run_of_the_host_have_a_directory_of_their_own(tmp_path: Path) -> None:
    """All steps of kolla_toolbox run beside it, and an agent refuses the directory of another one."""
    services = load(imported(tmp_path)[0] / "launch.yml")["services"]
    having = {name.rpartition("/")[2] for name, each in services.items() if "env" in each}
    assert having == {
        *("kolla_toolbox", "keystone_toolbox", "keystone_toolbox_2"),
        *("openvswitch_toolbox_ctl_1", "openvswitch_toolbox_ctl_2"),
    }
    assert services["openstack/keystone/kolla_toolbox"]["env"] == {
        "KOLLA_RUN_DIR": "/var/lib/kolla_mesos_start/run"
    }


def test_an_agent_that_starts_containers_writes_their_files_on_the_host(tmp_path: Path) -> None:
    """A wrapper gives them /etc/kolla/<service> of the host, with the service of KOLLA_SERVICE_NAME."""
    site, _ = imported(tmp_path)
    path = "openstack/keystone/neutron_dhcp_agent"
    daemon = load(site / "services" / path / "definition.yml")["service"]["daemon"]
    assert daemon["env"]["KOLLA_SERVICE_NAME"] == "neutron-dhcp-agent"
    volumes = load(site / "launch.yml")["services"][path]["volumes"]
    assert volumes["/var/lib/kolla/config_files"] == {"host": "/etc/kolla/neutron_dhcp_agent"}
    report = (site / "report.txt").read_text()
    assert "neutron_dhcp_agent: create /etc/kolla/neutron_dhcp_agent on its hosts, for the user" in report


def test_the_report_says_what_is_left_and_what_is_not_supported(tmp_path: Path) -> None:
    report = (imported(tmp_path)[0] / "report.txt").read_text()
    assert "  mariadb: volumes_from: launch.yml has no such setting\n" in report
    assert "  ctl-1, ctl-2: sysctl: name net.ipv4.ip_forward, value 1 (Setting sysctl values)\n" in report
    assert "ctl-1: command: /playbooks/roles/keystone/tasks/main.yml:" in report and "load" not in report
    for name in ("own.key", "ceph.client.nova.keyring"):
        assert f"/keystone/files/{name}: holds a key as it is in your configuration: " in report
    assert "other.conf: holds" not in report
    assert (
        "keystone: other.conf:1 backend_url: nothing listens at 192.0.2.10:6379, 192.0.2.11:6379\n" in report
    )


def test_a_cluster_is_refused_with_its_hosts_unless_a_rule_accepts_it(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("clusters: [{daemon: mariadb, instead: keep it on one host}]\n" + OUTSIDE)
    _, outcome = imported(tmp_path, own)
    (issue,) = outcome.clusters.issues
    assert (
        issue == "mariadb on ctl-1, ctl-2 is a cluster, and can't be imported as one yet: keep it on one host"
    )
    with pytest.raises(CannotImport, match="mariadb on ctl-1, ctl-2"):
        refuse(outcome)
    own.write_text(ALONE + OUTSIDE)
    _, accepted = imported(tmp_path, own)
    refuse(accepted)


def test_an_address_without_a_listener_is_refused_unless_a_part_is_imported(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text(ALONE)
    _, outcome = imported(tmp_path, own)
    why = r"keystone: other.conf:1 backend_url: nothing listens at 192.0.2.10:6379: add a row to `listeners`"
    with pytest.raises(CannotImport, match=why):
        refuse(outcome)
    refuse(outcome, "keystone")


def test_imported_json_has_the_origin_of_files_and_the_reason_of_edges(tmp_path: Path) -> None:
    record = json.loads((imported(tmp_path)[0] / "imported.json").read_bytes())
    assert {
        "name": "keystone",
        "on": "mariadb",
        "reason": "keystone.conf:2 connection",
        "hard": True,
    } in record["edges"]
    (origin, *_) = record["services"]["openstack/keystone/keystone"]
    assert (origin["host"], origin["path"]) == ("ctl-1", "/etc/kolla/keystone/keystone.conf")


def test_all_steps_are_listed_for_adopt_in_their_order(tmp_path: Path) -> None:
    lines = adoption(imported(tmp_path)[1]).decode().splitlines()
    assert [line.partition("  # ")[0] for line in lines] == [
        "openvswitch_toolbox_ctl_1/run",
        "keystone_toolbox/run",
        "keystone_toolbox_2/run",
        "bootstrap_keystone/run",
        "keystone_exec/run",
        "nova_conductor_exec/run",
        "openvswitch_toolbox_ctl_2/run",
    ]
