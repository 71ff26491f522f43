"""Dependencies from the configuration, each with its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kolla_mesos_start.kolla_ansible import containers, graph, rules
from kolla_mesos_start.kolla_ansible.graph import Edge, Graph, Places
from tests.kolla_ansible.examples import Recorder

OWN, VIRTUAL = "198.18.1.1", "198.18.1.2"
PLACES = Places({"ctl-1": [OWN]}, {"ctl-1": OWN}, [VIRTUAL])
RULES = rules.read()
HAPROXY = f"""\
frontend keystone_front
    bind {VIRTUAL}:5000
    default_backend keystone_back
backend keystone_back
    server ctl-1 {OWN}:5000 check
"""
DATABASE = f"[database]\nconnection = mysql+pymysql://keystone:secret@{OWN}:3306/keystone\n"


def keystone() -> Recorder:
    """MariaDB, HAProxy and Keystone, with the steps between them."""
    recorder = Recorder()
    recorder.file("haproxy/services.d/keystone.cfg", HAPROXY)
    recorder.daemon("haproxy")
    recorder.daemon("mariadb")
    recorder.daemon("memcached", "healthcheck_listen memcached 11211")
    login = {"login_host": "ctl-1", "login_port": "3306"}
    recorder.toolbox("mysql_db", {**login, "name": "keystone"})
    recorder.toolbox("mysql_user", {**login, "name": "keystone", "host": "%", "priv": "keystone.*:ALL"})
    recorder.file("keystone/keystone.conf", f"{DATABASE}[cache]\nmemcache_servers = {OWN}:11211\n")
    recorder.bootstrap("bootstrap_keystone", "keystone")
    recorder.daemon("keystone", f"healthcheck_curl http://{OWN}:5000")
    recorder.file("glance_api/glance.conf", f"[keystone_authtoken]\nauth_url = http://{VIRTUAL}:5000\n")
    recorder.daemon("glance_api", f"healthcheck_curl http://{OWN}:9292")
    return recorder


def derived(recorder: Recorder, table: rules.Rules = RULES) -> tuple[Graph, containers.Containers]:
    found = containers.sort(recorder.tasks, table)
    return graph.derive(found, table, PLACES), found


def edges(found: Graph, name: str) -> dict[str, Edge]:
    return {edge.on: edge for edge in found.edges.get(name, ())}


def test_a_daemon_waits_for_its_database_cache_and_migration() -> None:
    found, _ = derived(keystone())
    assert {on: edge.reason for on, edge in edges(found, "keystone").items()} == {
        "mariadb": "keystone.conf:2 connection",
        "memcached": "keystone.conf:4 memcache_servers",
        "keystone_toolbox": "keystone.conf:2 uses the database keystone",
        "bootstrap_keystone": "keystone.conf:2 uses the database keystone",
    }


def test_a_step_waits_for_the_database_that_its_arguments_name() -> None:
    found, _ = derived(keystone())
    assert edges(found, "keystone_toolbox")["mariadb"].is_hard


def test_a_step_waits_for_the_step_that_creates_the_user_it_logs_in_as() -> None:
    """ProxySQL knows the administrator of each cluster by this name, and not root."""
    recorder = Recorder()
    recorder.daemon("mariadb")
    login = {"login_host": OWN, "login_port": "3306"}
    recorder.toolbox("mysql_user", {**login, "login_user": "root", "name": "root_shard_0"}, "mariadb")
    recorder.toolbox("mysql_db", {**login, "login_user": "root_shard_0", "name": "keystone"})
    found, _ = derived(recorder)
    reason = edges(found, "keystone_toolbox")["mariadb_toolbox"].reason
    assert reason == "it logs in to the database as root_shard_0"


def test_an_endpoint_behind_the_load_balancer_is_a_soft_dependency() -> None:
    found, _ = derived(keystone())
    assert {on: edge.is_hard for on, edge in edges(found, "glance_api").items()} == {
        "haproxy": False,
        "keystone": False,
    }


def test_a_daemon_that_is_started_again_is_there_since_the_first_time() -> None:
    """The role of OVN's databases runs twice, and each answer to the recorder is that of a fresh host."""
    recorder = keystone()
    recorder.task("command", cmd="docker exec memcached flush")
    recorder.daemon("memcached", "healthcheck_listen memcached 11211")
    assert not graph.against_order(*derived(recorder))


def test_an_address_without_a_listener_is_named_with_its_place() -> None:
    recorder = keystone()
    recorder.file("glance_api/other.conf", f"\n[a]\nbackend_url = redis://{OWN}:6379\n")
    (unresolved,) = derived(recorder)[0].unresolved
    assert unresolved.name == "glance_api"
    assert unresolved.connection.place == "other.conf:3 backend_url"


def test_an_address_with_two_daemons_is_named_with_both() -> None:
    recorder = keystone()
    recorder.daemon("other", "healthcheck_listen other 11211")
    names = {each.name: each for each in derived(recorder)[0].unresolved}
    assert names["keystone"].shown({OWN: "192.0.2.11"}) == (
        "keystone: keystone.conf:4 memcache_servers: memcached and other listen at 192.0.2.11:11211"
    )


@pytest.mark.parametrize("on, edge", [("memcached", ["memcached"]), (None, [])])
def test_a_rule_resolves_an_address(on: str | None, edge: list[str]) -> None:
    recorder = keystone()
    recorder.file("glance_api/other.conf", f"backend_url = redis://{OWN}:6379\n")
    table = rules.Rules(RULES, addresses=[{"name": "glance_api", "port": 6379, "on": on, "reason": "ours"}])
    found, _ = derived(recorder, table)
    assert not found.unresolved
    assert [each.on for each in found.edges["glance_api"] if each.is_hard] == edge


def test_a_step_without_needs_is_found_unless_a_rule_expects_it() -> None:
    recorder = keystone()
    recorder.bootstrap("bootstrap_mariadb", "mariadb")
    recorder.toolbox("command", {"cmd": "true"}, "other")
    found, sorted_tasks = derived(recorder)
    assert [step.name for step in graph.without_needs(found, sorted_tasks, RULES)] == ["other_toolbox"]


def test_rules_by_name_are_in_the_graph() -> None:
    """Of a daemon, and of a step by its module: the recorded role is the one that needs the users."""
    recorder = Recorder()
    for name in ("rabbitmq", "placement_api", "nova_compute"):
        recorder.daemon(name)
    recorder.toolbox("rabbitmq_user", {"user": "openstack"}, "nova", user="rabbitmq")
    found, _ = derived(recorder)
    assert "placement_api" in edges(found, "nova_compute")
    assert "rabbitmq" in edges(found, "nova_toolbox")


def test_a_rule_of_the_operator_adds_a_dependency() -> None:
    table = rules.Rules(RULES, needs=[{"name": "glance_.*", "on": "memcached", "reason": "ours"}])
    assert edges(derived(keystone(), table)[0], "glance_api")["memcached"].reason == "ours"


def test_the_agent_of_open_vswitch_starts_after_its_bridges() -> None:
    """It ends if one is missing; and ovs-vsctl waits for openvswitch_vswitchd."""
    recorder = Recorder()
    for name in ("openvswitch_db", "openvswitch_vswitchd"):
        recorder.daemon(name)
    recorder.toolbox("openvswitch_bridge", {"bridge": "br-ex"}, "openvswitch", user="root")
    recorder.daemon("neutron_openvswitch_agent")
    recorder.daemon("openvswitch_vswitchd")  # A handler starts it again after the step.
    found, sorted_tasks = derived(recorder)
    assert not graph.against_order(found, sorted_tasks)
    assert set(edges(found, "openvswitch_toolbox")) == {"openvswitch_db", "openvswitch_vswitchd"}
    assert edges(found, "neutron_openvswitch_agent")["openvswitch_toolbox"].is_local


def test_a_cycle_is_a_dependency_against_the_recorded_order() -> None:
    needs = [{"name": "mariadb", "on": "keystone", "reason": "ours"}]
    (edge,) = graph.against_order(*derived(keystone(), rules.Rules(RULES, needs=needs)))
    assert (edge.name, edge.on) == ("mariadb", "keystone")


EXECS = {
    "docker exec keystone kolla_keystone_bootstrap a b": ("keystone", "kolla_keystone_bootstrap a b", {}, ""),
    'docker exec -e A=1 -e B="2" etcd etcdctl get': ("etcd", "etcdctl get", {"A": "1", "B": "2"}, ""),
    """docker exec -e A="b c" -e D='e f'g x ls""": ("x", "ls", {"A": "b c", "D": "e fg"}, ""),
    "docker exec -e A=\ue000(b ~ c) | d\ue001 x ls": ("x", "ls", {"A": "\ue000(b ~ c) | d\ue001"}, ""),
    "set -o pipefail && docker exec -it x ls": ("x", "set -o pipefail && ls", {}, ""),
    "echo a\ue000b | c\ue001 | docker exec -i x cat | sort": (
        "x",
        "echo a\ue000b | c\ue001 | cat | sort",
        {},
        "",
    ),
    "podman exec -t -u root x ls": ("x", "ls", {}, "-u root"),
    "cat /etc/a | docker exec -i x tee": ("x", "cat /etc/a | tee", {}, "cat /etc/a |"),
    "echo $(hostname) | docker exec x cat": ("x", "echo $(hostname) | cat", {}, "echo $(hostname) |"),
    "docker exec x ls && docker exec y ls": ("x", "ls &&", {}, "a second container"),
}


@pytest.mark.parametrize("command", EXECS)
def test_an_exec_has_a_line_for_its_container_and_perhaps_a_part_for_the_host(command: str) -> None:
    recorder = Recorder()
    recorder.task("shell", cmd=command)
    assert containers.executed(recorder.tasks[0]) == containers.Executed(*EXECS[command])
    recorder.task("shell", cmd="sysctl -n a")
    assert containers.executed(recorder.tasks[1]) is None


def test_a_command_that_needs_the_host_is_no_step_and_not_forgotten() -> None:
    recorder = keystone()
    for name in ("keystone", "unknown"):
        recorder.task("shell", f"Into {name}", cmd=f"cat /a | docker exec {name} tee /b")
    recorder.task("command", "In unknown", argv=["docker", "exec", "unknown", "ls"])
    _, found = derived(recorder)
    assert [task.name for task in found.outside] == ["Into keystone", "Into unknown", "In unknown"]
    assert not [step for step in found.steps if step.kind is containers.Kind.EXEC]


def test_the_words_of_a_command_stay_words() -> None:
    recorder = Recorder()
    recorder.task("command", argv=["docker", "exec", "x", "sh", "-c", "ls /a b"])
    found = containers.executed(recorder.tasks[0])
    assert found and found.line == "sh -c 'ls /a b'"


def test_a_command_on_a_host_is_left_to_the_operator_unless_it_only_looks() -> None:
    recorder = keystone()
    recorder.task("command", "Load it", cmd="modprobe it")
    recorder.task("command", "IPv6", _raw_params="/usr/sbin/sysctl -n net.ipv6.conf.all.disable_ipv6")
    recorder.task("command", "Address", cmd="ip -4 -o addr show dev eth0")
    _, found = derived(recorder)
    assert [task.name for task in found.left] == ["Load it"]


def test_a_look_is_no_step() -> None:
    recorder = keystone()
    recorder.daemon("rabbitmq")
    recorder.task("command", "Waiting", "rabbitmq", _raw_params="docker exec rabbitmq rabbitmqctl wait /a")
    recorder.task(
        "command", "Flags", "rabbitmq", _raw_params="docker exec rabbitmq rabbitmqctl enable_feature_flag all"
    )
    _, found = derived(recorder)
    assert not found.left
    (step,) = (step for step in found.steps if step.name == "rabbitmq_exec")
    assert [task.name for task in step.tasks] == ["Flags"]


def test_hosts_that_do_the_same_are_steps_side_by_side() -> None:
    """However ansible has interleaved them: by tasks here, after they were put in order."""
    recorder = Recorder()
    places = ("first.yml:1", "first.yml:2", "last.yml:1")
    for place in places:
        for host in ("ctl-1", "cmp-1") if place != places[-1] else ("ctl-1",):
            recorder.host = host
            recorder.toolbox("command", {"cmd": place}, "openvswitch")
            recorder.tasks[-1] = replace(recorder.tasks[-1], place=place)
    for host in ("cmp-1", "ctl-1"):
        recorder.host = host
        recorder.bootstrap("bootstrap_keystone", "keystone")
        recorder.tasks[-1] = replace(recorder.tasks[-1], place="bootstrap.yml:1")
    recorder.toolbox("command", {"cmd": "end"}, "openvswitch")
    found, sorted_tasks = derived(recorder)
    assert [(step.name, len(step.tasks)) for step in sorted_tasks.steps] == [
        ("openvswitch_toolbox_ctl_1", 3),
        ("openvswitch_toolbox_cmp_1", 2),
        ("bootstrap_keystone_cmp_1", 1),
        ("bootstrap_keystone_ctl_1", 1),
        ("openvswitch_toolbox", 1),
    ]
    assert "openvswitch_toolbox_cmp_1" not in found.edges
    assert set(edges(found, "openvswitch_toolbox")) == {
        "openvswitch_toolbox_ctl_1",
        "openvswitch_toolbox_cmp_1",
    }
