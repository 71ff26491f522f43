"""Where containers run: what `launch.yml` means, and what is wrong with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.validate.rules import validate
from tests.support.publishing import write_files

ETC = Path(__file__).parents[3] / "etc"
LAUNCH = """\
tag: 2026.10
hosts:
  control: [ctl-1, ctl-2]
  compute: [cmp-1, cmp-2, cmp-3]
defaults: {placement: control}
services:
  a/agent: {placement: compute, replicas: each}
  a/hosts:
    placement: compute
    replicas: each
  a/web: {}
try: [". $site/rc", look]
"""
TASK = "commands: {look: {command: 'true'}}\n"


def site(root: Path, launch: str = LAUNCH, **more: str) -> Path:
    """A directory with four services, of which `db` is not named."""
    daemon = "service: {daemon: {command: sleep 9, ready: {alive: 0}}, instances: %d}\n"
    files: dict[str, str] = {
        "launch_yml": launch,
        "services__a__agent__definition_yml": daemon % 1,
        "services__a__hosts__definition_yml": TASK,
        "services__a__web__definition_yml": daemon % 2,
        "services__db__definition_yml": daemon % 1,
        **more,
    }
    return write_files(root, **files)


def published(deployment: Deployment, service: str) -> Any:
    return json.loads(directory.definitions(deployment)[service])


def test_a_role_has_its_hosts_and_each_of_them_a_container(tmp_path: Path) -> None:
    """Where it says so; then as many are wanted as it has hosts. A task is done or not."""
    deployment = directory.read(site(tmp_path))
    hosts = {name: "".join(deployment.launch.hosts_of(name)) for name in ("a/agent", "a/web", "db")}
    assert hosts == {"a/agent": "cmp-1cmp-2cmp-3", "a/web": "ctl-1ctl-2", "db": "ctl-1ctl-2"}
    assert deployment.launch.tag == "2026.10"
    assert deployment.launch.suggested == [". $site/rc", "look"]
    wanted = {each: published(deployment, each)["service"]["instances"] for each in ("a/agent", "a/web")}
    assert wanted == {"a/agent": 3, "a/web": 2}
    assert published(deployment, "a/hosts") == {"commands": {"look": {"command": "true"}}}


def test_it_is_read_and_neither_published_nor_left_out(tmp_path: Path) -> None:
    """And nothing is wrong with it."""
    deployment = directory.read(site(tmp_path))
    assert deployment.left_out == ()
    assert not [node for node in directory.nodes(deployment) if "launch" in node]
    assert validate(deployment) == []


def test_a_directory_without_one_is_as_it_was(tmp_path: Path) -> None:
    """No placement, no tag."""
    site(tmp_path)
    (tmp_path / "launch.yml").unlink()
    deployment = directory.read(tmp_path)
    assert deployment.launch.tag is None
    assert deployment.launch.hosts_of("a/agent") == ()
    assert published(deployment, "a/agent")["service"]["instances"] == 1


def test_a_definition_that_can_not_be_read_is_named_all_the_same(tmp_path: Path) -> None:
    """JSON with its own line, not that of what would have been published."""
    root = site(tmp_path, services__a__agent__definition_json='{"service": {}, "service": {}}')
    (root / "services/a/agent/definition.yml").unlink()
    deployment, _ = directory.look(root)
    assert "more than once" in "".join(each.message for each in validate(deployment))


MISTAKES = {
    "an unknown key": ("tag: 2026.10", "tags: x", 1, "tags: unknown key; nearest is 'tag'"),
    "an unknown key of a service": ("  a/web: {}", "  a/web: {port: 1}", 11, "a/web.port: unknown key"),
    "an unknown service": ("  a/web:", "  a/wbe:", 11,
     "a/wbe: is no service of the directory; nearest is 'a/web'"),
    "an unknown role": ("placement: compute\n", "placement: comptue\n", 9,
     "expected a role of `hosts`; nearest is 'compute', found 'comptue'"),
    "a role without hosts": ("[ctl-1, ctl-2]", "", 3, "hosts.control: expected the names of its hosts"),
    "a single host": ("[ctl-1, ctl-2]", "ctl-1", 3, "hosts.control: expected a list, found 'ctl-1'"),
    "a host twice": ("ctl-2]", "ctl-1]", 3, "hosts.control[1]: ctl-1 is here twice"),
    "a path for a host": ("ctl-2]", "ctl/2]", 3, "the name of a host, of letters"),
    "no host": ("ctl-2]", "global]", 3, "other than global, found 'global'"),
    "a number of replicas": ("    replicas: each", "    replicas: 3", 10, "a number is `instances` of the"),
    "each of no role": ("defaults: {placement: control}", "defaults: {replicas: each}", 5,
     "defaults.replicas: 'each' needs a `placement`"),
    "a tag of nothing": ("tag: 2026.10", "tag: ' '", 1, "tag: expected the name of a generation"),
    "no command": ('rc", look]', 'rc", [look]]', 12, "try[1]: expected a command, in one line"),
    "a list": (LAUNCH, "[]", None, "expected a mapping"),
    "bad YAML": ("defaults: {", "defaults: {{", 6, "bad YAML: the { of line 5 is not closed"),
    "too few hosts": ("[ctl-1, ctl-2]", "[ctl-1]", 5,
     "a/web wants 2 containers, and its role control has 1 host: add hosts, or lower `instances`"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_its_line(tmp_path: Path, old: str, new: str, line: int | None, expected: str) -> None:
    """And is the only one that is found."""
    assert LAUNCH.count(old) == 1
    deployment, unreadable = directory.look(site(tmp_path, LAUNCH.replace(old, new)))
    (found,) = [*unreadable, *validate(deployment)]
    assert (found.severity, found.file) == ("error", "launch.yml")
    assert expected in found.message
    assert line is None or found.line == line


TWICE = """\
hosts: {control: [ctl-1, ctl-2], compute: [cmp-1]}
services:
  a/agent: {placement: compute, ports: [80]}
  a/web: {placement: control, ports: [8080, 443]%s}
  db: {placement: control, ports: ["{{ port }}"]%s}
"""


def ports_of(root: Path, of_web: str = "", of_db: str = "", port: str = "443") -> list[str]:
    """What is found where three services have these ports."""
    launch = TWICE % (of_web, of_db)
    more = {"services__db__variables_yml": f"port: {port}\n", "services__a__hosts__definition_yml": TASK}
    deployment, unreadable = directory.look(site(root, launch, **more))
    return [f"{each.severity} {each.line} {each.message}" for each in (*unreadable, *validate(deployment))]


def test_a_port_is_used_by_one_service_on_a_host(tmp_path: Path) -> None:
    """Of the host's network, which all launchers but Kubernetes have by default."""
    message = "5 ports: 443 of db is a port of a/web too, and both run on ctl-1: choose another one"
    assert ports_of(tmp_path / "a") == [f"warning {message}, or give each its own network (`network: own`)"]
    host = ", network: host"
    assert ports_of(tmp_path / "b", host, host) == [f"error {message}"]
    assert ports_of(tmp_path / "c", host) == ports_of(tmp_path / "a")
    assert ports_of(tmp_path / "d", ", network: own") == []
    assert ports_of(tmp_path / "e", port="80") == []  # On another host.
    assert ports_of(tmp_path / "f", port="443/udp") == []  # Of another protocol.


@pytest.mark.parametrize("port", ["65536", "0", "http", ""])
def test_a_port_that_there_can_not_be_is_found_in_a_variable(tmp_path: Path, port: str) -> None:
    """As where it is written in launch.yml."""
    (found,) = ports_of(tmp_path, port=f"'{port}'")
    assert found == "error 5 ports: expected a port (80, or 53/udp), but {{ port }} is none for db"


@pytest.mark.parametrize(
    ("hosts", "expected"),
    {
        "[CMP-1]": "hosts.compute[0]: 'CMP-1' must be .*, .* are as cmp-1",
        "[cmp-1.]": "hosts.compute[0]: 'cmp-1.' must .* are as cmp-1",
        "[cmp-1, cmp-1.example.org]": "hosts.compute[1]: .* and cmp-1 may be the same host",
        "[CTL-1]": "hosts.compute[0]: .* and ctl-1 may be the same host",
        "[ctl-1, cmp-1.example.org, cmp-10, 10.0.0.1, 10.0.0.2]": "",
    }.items(),
)
def test_a_host_that_another_system_may_name_in_another_way(
    hosts: str, expected: str, tmp_path: Path
) -> None:
    """Kubernetes would find no such node, and an agent takes no value of another name."""
    deployment, _ = directory.look(site(tmp_path, LAUNCH.replace("[cmp-1, cmp-2, cmp-3]", hosts)))
    found = [each for each in validate(deployment) if "hosts." in each.message]
    assert [(each.severity, each.line) for each in found] == [("warning", 4)] * bool(expected)
    assert all(re.match(expected.replace("[", r"\["), each.message) for each in found)


def test_a_variable_of_a_host_that_launch_yml_does_not_name(tmp_path: Path) -> None:
    """It is never used. Of a service that may run anywhere nothing is known."""
    values = "ctl-1: {a: 1}\nctl-22: {a: 1, b: 2}\n"
    text = "service: {daemon: {command: 'x {{ a | d }} {{ b | d }}', ready: {alive: 0}}, instances: 2}\n"
    more = {"services__a__web__variables_yml": values, "services__a__web__definition_yml": text}
    deployment, _ = directory.look(site(tmp_path / "a", **more))
    (found,) = validate(deployment)
    assert (found.severity, found.file, found.line) == ("warning", "services/a/web/variables.yml", 2)
    assert found.message == "launch.yml names no host 'ctl-22' (did you mean 'ctl-2'?)"
    anywhere = LAUNCH.replace("defaults: {placement: control}", "defaults: {}")
    deployment, _ = directory.look(site(tmp_path / "b", anywhere, **more))
    assert validate(deployment) == []


def test_the_images_of_openstack_are_of_the_release_that_its_data_is_for() -> None:
    """Else its migrations would wait for other images for ever."""
    keystone = directory.read(ETC / "examples" / "keystone")
    assert keystone.launch.tag == keystone.variables["keystone_release"].decode()
    deployment = directory.read(ETC / "openstack")
    assert deployment.launch.tag == deployment.variables["openstack_release"].decode()
    assert deployment.launch.hosts_of("openstack/nova/nova-compute") == ["cmp-1"]


def test_there_is_one_of_it(tmp_path: Path) -> None:
    """In one of the formats."""
    _, (found,) = directory.look(site(tmp_path, launch_json="{}"))
    assert (found.file, found.message) == ("launch.yml", "launch.json exists too: keep one of them")


def test_a_misspelt_name_is_no_file_beside_the_services(tmp_path: Path) -> None:
    """All would run anywhere."""
    site(tmp_path)
    (tmp_path / "launch.yml").rename(tmp_path / "lanch.yml")
    _, (found,) = directory.look(tmp_path)
    assert found.message.endswith("nearest is 'launch.yml'")


@pytest.mark.parametrize(
    ("generation", "launch", "key"),
    [
        ("{{ x }}", "tag: '2026.1'\n", "tag"),
        ("2026.2", "tag: '2026.1'\n", "tag"),
        (
            "2026.1",
            "services: {a/web: {env: {KOLLA_GENERATION: '2'}}}\ntag: '2026.1'\n",
            "services.a/web.env",
        ),
        ("2026.1", "tag: '2026.1'\n", ""),
        ("2026.1", "services: {a/web: {tag: '2'}}\ntag: '2026.1'\n", "services.a/web.tag"),
        ("2", "services: {a/web: {tag: '2'}}\ntag: '2026.1'\n", ""),
        ("{{ image_generation }}", "tag: '2026.1'\n", ""),
        ("2", "services: {a/web: {env: {KOLLA_GENERATION: '2'}}}\ntag: '2026.1'\n", ""),
        ("2", "services: {a/web: {env: {KOLLA_GENERATION: '{{ x }}'}}}\ntag: '2026.1'\n", ""),
        ("2", "{}\n", ""),
    ],
)
def test_a_generation_that_no_container_has_is_an_error(
    tmp_path: Path, generation: str, launch: str, key: str
) -> None:
    """Otherwise the command would be waited for for ever."""
    sync = {"sync": {"command": "true", "run_once": True, "generation": generation}}
    root = write_files(
        tmp_path,
        launch_yml=launch,
        variables_yml="x: 1\n",
        services__a__web__definition_json=json.dumps({"commands": sync}),
    )
    found = [each for each in validate(directory.read(root)) if each.severity == "error"]
    assert [each.file for each in found] == ["launch.yml"] * bool(key)
    if key:
        shown = "1" if generation == "{{ x }}" else generation
        assert found[0].message.startswith(f"{key}: the containers of a/web have the generation '2")
        assert f"and web/sync is for {shown!r}" in found[0].message
