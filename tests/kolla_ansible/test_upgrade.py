"""A recorded upgrade as a rolling upgrade: what waits for which containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.site import Site
from tests.kolla_ansible.examples import Recorder, errors, imported, load

HOSTS = ("ctl-1", "ctl-2")
DATABASE = "[database]\nconnection = mysql+pymysql://{name}:x@{address}:3306/{name}\n"
ALL_NEW = {"generation": "2026.1", "count": 2, "exclusive": True}


def recorded(run: int, site: Site) -> list[Task]:
    """Keystone, RabbitMQ, Nova and Open vSwitch, as kolla-ansible upgrades them on two hosts."""
    address = site.stand_ins(run).facts["ctl-1"].interfaces["eth0"]
    tasks: list[Task] = []

    def at(host: str, role: str) -> Recorder:
        recorder = Recorder(host)
        recorder.role = role
        recorder.tasks = tasks
        return recorder

    def once(name: str, of: str, variable: str) -> None:
        recorder.bootstrap(name, of, environment={variable: None})

    def each(role: str, *names: str) -> None:
        for host in HOSTS:
            for name in names:
                at(host, role).daemon(name)

    flags = "docker exec rabbitmq rabbitmqctl enable_feature_flag all"
    for host in HOSTS:
        for name in ("keystone", "nova_api", "nova_conductor"):
            content = DATABASE.format(name=name.partition("_")[0], address=address)
            at(host, "x").file(f"{name}/{name}.conf", content)
    each("kolla_toolbox", "kolla_toolbox")
    recorder = at("ctl-1", "mariadb")
    recorder.daemon("mariadb")
    once("upgrade_mariadb", "mariadb", "KOLLA_UPGRADE")
    recorder = at("ctl-1", "rabbitmq")
    recorder.task("command", "Flags before", _raw_params=flags)
    each("rabbitmq", "rabbitmq")
    recorder.task("command", "Flags after", _raw_params=flags)
    recorder = at("ctl-1", "keystone")
    once("init_upgrade_database", "keystone", "KOLLA_UPGRADE")
    each("keystone", "keystone")
    recorder.toolbox("openstack.cloud.project", {"name": "service"}, "glance")
    once("finish_upgrade_database", "keystone", "KOLLA_FINISH_UPGRADE")
    recorder = at("ctl-1", "openvswitch")
    each("openvswitch", "openvswitch_db")
    recorder.toolbox("openvswitch_db", {"table": "Open_vSwitch"})
    recorder = at("ctl-1", "nova")
    once("nova_upgrade_checks", "nova_api", "KOLLA_UPGRADE_CHECK")
    recorder.task("kolla_container", "Stopping old nova_api", action="stop_container", name="nova_api")
    once("nova_api_bootstrap", "nova_api", "KOLLA_UPGRADE")
    each("nova", "nova_api")
    each("nova-cell", "nova_conductor", "nova_compute")
    once("nova_api_online_data_migrations", "nova_api", "KOLLA_OSM")
    at("ctl-1", "nova-cell").bootstrap("nova_cell_online", "nova_conductor", environment={"KOLLA_OSM": None})
    return tasks


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site, outcome = imported(tmp_path_factory.mktemp("upgrade"), HOSTS, recorded, action="upgrade")
    assert (outcome.against_order, outcome.unresolved) == ([], [])
    return site


def definition(site: Path, service: str) -> Any:
    content = load(site / f"services/openstack/{service}/definition.yml")
    return content["service"]["daemon"] if "service" in content else content["commands"]["run"]


def test_a_new_daemon_waits_for_the_migration_that_expands(site: Path) -> None:
    assert "init_upgrade_database/run" in definition(site, "keystone/keystone")["dependencies"]


def test_a_step_after_a_daemon_waits_until_no_older_container_is_left(site: Path) -> None:
    finish = definition(site, "keystone/finish_upgrade_database")
    assert finish["generation"] == "2026.1"
    assert {"path": "keystone/daemon", **ALL_NEW} in finish["dependencies"]
    flags = definition(site, "rabbitmq/rabbitmq_exec")
    assert flags["dependencies"] == [{"path": "rabbitmq/daemon", **ALL_NEW}]
    mariadb = definition(site, "mariadb/upgrade_mariadb")["dependencies"]
    assert mariadb == [{"path": "mariadb/daemon", **ALL_NEW, "count": 1}]


def test_an_online_migration_waits_for_all_that_use_the_database_and_for_its_role(site: Path) -> None:
    waits = definition(site, "nova/nova_api_online_data_migrations")["dependencies"]
    exclusive = [each["path"] for each in waits if isinstance(each, dict) and each.get("exclusive")]
    assert exclusive == ["nova_api/daemon", "nova_conductor/daemon"]
    waits = definition(site, "nova-cell/nova_cell_online")["dependencies"]
    assert {"path": "nova_compute/daemon", **ALL_NEW} in waits


def test_older_containers_of_what_a_migration_needs_new_do_not_start(site: Path) -> None:
    """But for the release that a variable names while the upgrade runs."""
    listed = ["{{ release_before | default('2026.1') }}", "2026.1"]
    for path in ("keystone/keystone", "nova-cell/nova_conductor", "nova-cell/nova_compute"):
        assert definition(site, path)["generations"] == listed
    assert "generations" not in definition(site, "openvswitch/openvswitch_db")


def test_a_step_that_talks_to_keystone_waits_for_it(site: Path) -> None:
    assert definition(site, "glance/glance_toolbox")["dependencies"] == ["keystone/daemon"]


def test_a_step_on_a_host_waits_for_the_new_daemon_of_this_host(site: Path) -> None:
    waits = definition(site, "openvswitch/openvswitch_toolbox")["dependencies"]
    assert waits == [{"path": "openvswitch_db/daemon", "scope": "local", "generation": "2026.1"}]


def test_a_check_with_warnings_has_succeeded(site: Path) -> None:
    assert definition(site, "nova/nova_upgrade_checks")["succeeds"] == [0, 1]


def test_what_is_done_to_older_containers_is_left_to_the_operator(site: Path) -> None:
    report = (site / "report.txt").read_text()
    assert "ctl-1: in the running container, before it is replaced: Flags before" in report
    assert "ctl-1: in the running container, before it is replaced: Stopping old nova_api" in report
    assert "Flags after" not in report
    assert report.startswith("Imported from upgrade of kolla-ansible 22.2.0: ")


def test_the_directory_is_valid(site: Path) -> None:
    assert errors(site) == []
    assert json.loads((site / "imported.json").read_text())["action"] == "upgrade"
