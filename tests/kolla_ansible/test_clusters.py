"""MariaDB and RabbitMQ on three hosts, and the clusters that are refused.

`golden` has the definitions that are made of a small recording. This writes them again::

    .venv/bin/python -m tests.kolla_ansible.test_clusters
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.commands.importing import CannotImport, refuse
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import clusters, containers, rules
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.site import Site
from tests import CHECKOUT
from tests.kolla_ansible import oracle
from tests.kolla_ansible.examples import CONFIG, Recorder, errors, imported, joined, load

GOLDEN = Path(__file__).with_name("golden")
EXAMPLE = CHECKOUT / "etc/examples/galera/services/infra/mariadb/files"
HOSTS = ("ctl-1", "ctl-2", "ctl-3")
SECRETS = {
    "database_password": "s3cret",
    "rabbitmq_cluster_cookie": "c00kie",
    "keystone_database_password": "k",
}
START = '{\n    "command": "/usr/bin/mariadbd-safe",\n    "config_files": []\n}\n'
GALERA = """\
[mysqld]
bind-address = {own}
wsrep_cluster_address = gcomm://{all}
wsrep_provider_options = gmcast.listen_addr=tcp://{own}:4567;
wsrep_sst_auth = root:{password}
innodb_flush_log_at_trx_commit = 0
"""
RABBIT = """\
listeners.tcp.1 = {own}:5672
cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config
cluster_formation.classic_config.nodes.0 = rabbit@ctl-1
"""


def recorded(run: int, site: Site, changed: Mapping[str, str]) -> list[Task]:
    """MariaDB, RabbitMQ and a client of both. `changed` are texts of files by their paths."""
    used = site.stand_ins(run)
    password, cookie = used.secrets["database_password"], used.secrets["rabbitmq_cluster_cookie"]
    addresses = {host: used.facts[host].interfaces["eth0"] for host in HOSTS}
    recorders = list(map(Recorder, HOSTS))
    for recorder in recorders:
        host, own = recorder.host, addresses[recorder.host]
        peers = ",".join(f"{each}:4567" for each in addresses.values())
        files = {
            "mariadb/config.json": START,
            "mariadb/galera.cnf": GALERA.format(own=own, all=peers, password=password),
            "rabbitmq/config.json": "{}\n",
            "rabbitmq/rabbitmq.conf": RABBIT.format(own=own),
            "keystone/keystone.conf": f"connection = mysql+pymysql://k:k@{addresses['ctl-1']}:3306/keystone\n",
        }
        for path, text in files.items():
            recorder.file(path, changed.get(f"{host}:{path}", text))
        recorder.daemon("kolla_toolbox")
        volumes = [f"{CONFIG}/mariadb/:/var/lib/kolla/config_files/:ro", "mariadb:/var/lib/mysql"]
        first = {"KOLLA_BOOTSTRAP": None, "DB_ROOT_PASSWORD": password, "DB_MAX_TIMEOUT": 120}
        if host == HOSTS[0]:
            recorder.bootstrap("bootstrap_mariadb", "mariadb", volumes=volumes, environment=first)
        recorder.daemon(
            "mariadb", "healthcheck.sh", volumes=volumes, environment={"KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS"}
        )
        login = {"login_host": own, "login_user": "root", "login_password": password}
        recorder.toolbox("mysql_query", {**login, "query": 'SHOW STATUS LIKE "wsrep_local_state_comment"'})
        if host == HOSTS[0]:
            recorder.toolbox("mysql_user", {**login, "name": "root_shard_0", "password": password})
        volumes = [f"{CONFIG}/rabbitmq/:/var/lib/kolla/config_files/:ro", "rabbitmq:/var/lib/rabbitmq/"]
        own_cookie = {"RABBITMQ_CLUSTER_COOKIE": cookie}
        recorder.bootstrap(
            "rabbitmq_bootstrap",
            "rabbitmq",
            volumes=volumes,
            environment={"KOLLA_BOOTSTRAP": None, **own_cookie},
        )
        recorder.daemon("rabbitmq", "healthcheck_rabbitmq", volumes=volumes, environment=own_cookie)
        flags = recorder.task("command", cmd="docker exec rabbitmq rabbitmqctl enable_feature_flag all")
        recorder.tasks[-1] = replace(flags, place="/playbooks/roles/keystone/tasks/flags.yml:1")
        recorder.daemon("keystone", f"healthcheck_curl http://{own}:5000")
    return joined(recorders)


def three_hosts(
    place: Path, overrides: str = "", changed: Mapping[str, str] | None = None
) -> tuple[Path, Imported]:
    """The directory, with what was found on the way."""
    return imported(place, HOSTS, lambda run, site: recorded(run, site, changed or {}), SECRETS, overrides)


def definition(site: Path, name: str) -> Any:
    return load(site / "services/openstack/keystone" / name / "definition.yml")


@pytest.mark.parametrize("name", ["mariadb", "rabbitmq"])
def test_the_definitions_are_those_of_the_repository(tmp_path: Path, name: str) -> None:
    site, _ = three_hosts(tmp_path)
    made = site / "services/openstack/keystone" / name / "definition.yml"
    assert made.read_text() == (GOLDEN / f"{name}.yml").read_text()


def test_the_directory_is_valid(tmp_path: Path) -> None:
    site, outcome = three_hosts(tmp_path)
    refuse(outcome)
    assert errors(site) == []
    assert not outcome.warnings


def test_the_files_differ_from_kolla_ansibles_only_in_the_listed_lines(tmp_path: Path) -> None:
    site, _ = three_hosts(tmp_path)
    found = oracle.rendered(site, tmp_path / "passwords.yml")
    peers = "192.0.2.10:4567,192.0.2.11:4567,192.0.2.12:4567"
    text = GALERA.format(own="192.0.2.11", all=peers, password="s3cret")
    text = text.replace(":4567;\n", ":4567;pc.recovery=false;gmcast.time_wait=PT1S\n")
    assert found["ctl-2", "mariadb/galera.cnf"] == text.replace("commit = 0", "commit = 1").encode()
    start = START.replace("/usr/bin/mariadbd-safe", "mariadbd")
    assert found["ctl-2", "mariadb/config.json"] == start.encode()
    discovery = "peer_discovery_classic_config\n"
    hint = f"{discovery}cluster_formation.target_cluster_size_hint = 3\n"
    text = RABBIT.format(own="192.0.2.11").replace(discovery, hint)
    assert found["ctl-2", "rabbitmq/rabbitmq.conf"] == text.encode()
    report = (site / "report.txt").read_text()
    assert report.count("  mariadb: galera.cnf: ") == 2 and report.count("  rabbitmq: rabbitmq.conf: ") == 1
    assert "  mariadb: galera.cnf: innodb_flush_log_at_trx_commit = 1 (an acknowledged row" in report


def test_a_value_of_the_operators_is_kept(tmp_path: Path) -> None:
    """Only kolla-ansible's own default loses rows of a cluster."""
    given = {
        f"{host}:mariadb/galera.cnf": "wsrep_provider_options=a=b\ninnodb_flush_log_at_trx_commit = 2\n"
        for host in HOSTS
    }
    site, outcome = three_hosts(tmp_path, changed=given)
    refuse(outcome)
    text = (site / "services/openstack/keystone/mariadb/files/galera.cnf").read_text()
    options = "wsrep_provider_options=a=b;pc.recovery=false;gmcast.time_wait=PT1S\n"
    assert text == f"{options}innodb_flush_log_at_trx_commit = 2\n"


def test_the_steps_of_the_cluster_are_gone_and_others_wait_for_it(tmp_path: Path) -> None:
    site, outcome = three_hosts(tmp_path)
    steps = {step.name for step in outcome.containers.steps}
    assert steps == {"keystone_toolbox", *(f"rabbitmq_exec_ctl_{number}" for number in (1, 2, 3))}
    users = definition(site, "keystone_toolbox")["commands"]["run"]
    assert users["dependencies"] == [{"path": "mariadb/daemon", "scope": "local"}]
    flags = definition(site, "rabbitmq_exec_ctl_1")["commands"]["run"]
    assert {"path": "rabbitmq/daemon", "count": 3} in flags["dependencies"]


def test_the_scripts_are_those_that_the_drills_test() -> None:
    """start.sh differs: Kolla's image has no directory beside the data."""
    for name in ("position.sh", "ready.sh"):
        own = clusters.DEFINITIONS / "galera" / name
        assert own.read_text() == (EXAMPLE / name).read_text()


MISTAKES = {
    "- a list\n": r"cluster\.yml: expected a mapping",
    "step: a\n": r"cluster\.yml: unknown key step .did you mean 'steps'",
    "steps: '['\n": r"cluster\.yml: steps: expected a regular expression",
    "lines: []\n": r"cluster\.yml: lines: expected a mapping",
    "lines: {galera.cnf: [{match: a}]}\n": r"lines of galera\.cnf, row 1: by is missing",
    "same: {galera.cnf: [a]}\n": r"same: expected a mapping to regular expressions",
}


def test_a_definition_of_the_operators_takes_the_place_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "cluster.yml").write_text("definition: {service: {daemon: {command: [sh, mine.sh]}}}\n")
    (own / "mine.sh").write_text("exec {{ mine }}\n")
    site, _ = three_hosts(tmp_path, f"clusters: [{{daemon: mariadb, definition: {own}}}]\n")
    daemon = definition(site, "mariadb")["service"]["daemon"]
    assert (daemon["command"], daemon["dependencies"]) == (["sh", "mine.sh"], ["bootstrap_mariadb/run"])
    assert (site / "services/openstack/keystone/mariadb/files/mine.sh").read_text() == "exec {{ mine }}\n"
    assert daemon["files"]["mine.sh"]["template"] is False
    for text, why in MISTAKES.items():
        (own / "cluster.yml").write_text(text)
        with pytest.raises(BadUsage, match=why):
            three_hosts(tmp_path, f"clusters: [{{daemon: mariadb, definition: {own}}}]\n")
    with pytest.raises(BadUsage, match="no definition absent: expected a path, or one of galera, rabbitmq"):
        three_hosts(tmp_path, f"clusters: [{{daemon: mariadb, definition: {tmp_path}/absent}}]\n")


def test_members_of_several_clusters_are_refused(tmp_path: Path) -> None:
    """As shards of the database: an election of all hosts would make one of them."""
    other = {"ctl-3:mariadb/galera.cnf": "wsrep_provider_options=\nwsrep_cluster_address = gcomm://other\n"}
    _, outcome = three_hosts(tmp_path, changed=other)
    with pytest.raises(
        CannotImport, match=r"galera\.cnf differs between ctl-1, ctl-2 and ctl-3 .* several clusters"
    ):
        refuse(outcome)


def test_a_file_without_the_line_that_has_to_change_is_refused(tmp_path: Path) -> None:
    given = {f"{host}:mariadb/config.json": '{"command": "mine"}\n' for host in HOSTS}
    _, outcome = three_hosts(tmp_path, changed=given)
    with pytest.raises(CannotImport, match=r"mariadb: config.json on ctl-1 has no line that matches"):
        refuse(outcome)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ovn_nb_db", "ovn-nb-db"),
        ("ovn_sb_db", "ovn-sb-db"),
        ("etcd", "etcd"),
        ("hacluster_corosync", "enable_hacluster"),
        ("hacluster_pacemaker", "enable_hacluster"),
    ],
)
def test_a_cluster_without_a_definition_is_refused_by_name(name: str, what: str) -> None:
    tasks: list[Task] = []
    for host in HOSTS:
        recorder = Recorder(host)
        recorder.daemon(name)
        tasks += recorder.tasks
    _, found = clusters.adapt(containers.sort(tasks, rules.read()), rules.read())
    (issue,) = found.issues
    assert issue.startswith(f"{name} on ctl-1, ctl-2, ctl-3 is a cluster") and what in issue
    _, alone = clusters.adapt(containers.sort(tasks[:2], rules.read()), rules.read())
    assert not alone.issues


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, False),
        ({"enable_octavia": "yes"}, True),
        ({"enable_octavia": "true", "octavia_provider_drivers": "amphora:Amphora provider, ovn:OVN"}, True),
        ({"enable_octavia": "true", "octavia_provider_drivers": "ovn:OVN provider"}, False),
        ({"enable_octavia": "true", "octavia_auto_configure": "no"}, False),
        ({"enable_octavia": "false"}, False),
    ],
)
def test_octavia_with_amphora_is_refused_unless_its_ids_are_given(
    settings: Mapping[str, str], is_refused: bool
) -> None:
    found = rules.read().unsupported_settings(settings)
    assert bool(found) == is_refused
    assert all("octavia_auto_configure: false" in each for each in found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        made, _ = three_hosts(Path(place))
        GOLDEN.mkdir(exist_ok=True)
        for each in ("mariadb", "rabbitmq"):
            text = (made / "services/openstack/keystone" / each / "definition.yml").read_text()
            (GOLDEN / f"{each}.yml").write_text(text)
    sys.exit()
