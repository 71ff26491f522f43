"""Which containers `up` starts, and on which hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory.container_settings import ContainerSettings
from kolla_mesos_start.ctl.directory.directory import Deployment, Service, Values
from kolla_mesos_start.ctl.directory.launch import LaunchFile
from kolla_mesos_start.ctl.up.deployment import pairs, plan, ports_in, with_roles
from kolla_mesos_start.errors import BadDefinition, BadUsage

NOTHING = Values({}, {})


def service(name: str, **keys: Any) -> Service:
    return Service(name, "", json.dumps({"service": keys}).encode(), NOTHING, {})


SERVICES = (service("a/db"), service("a/web", instances=2), service("b/web", instances="{{ n }}"))
DEPLOYMENT = Deployment({"n": b"1"}, SERVICES, ())


@pytest.mark.parametrize(
    ("replicas", "hosts", "expected"),
    [
        ([], [], ["a/db@node-1", "a/web@node-1", "a/web@node-2", "b/web@node-1"]),
        (["db=2", "a/web=1", "b/web=0"], [], ["a/db@node-1", "a/db@node-2", "a/web@node-1"]),
        (["b/web=0"], ["db=x", "a/web=x", "a/web=y"], ["a/db@x", "a/web@x", "a/web@y"]),
        (["b/web=2", "a/web=0", "db=0"], ["b/web=x"], ["b/web@x", "b/web@node-2"]),
        (["b/web=2", "a/web=0", "db=0"], ["b/web=node-2"], ["b/web@node-2", "b/web@node-3"]),
    ],
)
def test_who_is_started(replicas: list[str], hosts: list[str], expected: list[str]) -> None:
    """What the command line says, else the hosts that it names, else the definition's `instances`."""
    assert [
        f"{name}@{host}"
        for name, host in plan(DEPLOYMENT, pairs("--replicas", replicas), pairs("--host", hosts))
    ] == expected


@pytest.mark.parametrize(
    ("replicas", "hosts", "expected"),
    [
        (["dbs=2"], [], "'dbs' is no service of the directory"),
        (["a/wb=2"], [], "did you mean 'a/web'"),
        (["web=2"], [], "is that of several services: a/web, b/web"),
        (["db=two"], [], "expected a number"),
        (["db"], [], "^--replicas db: expected SERVICE=VALUE"),
        ([], ["db="], "^--host db=: expected SERVICE=VALUE"),
        ([], ["db=x", "db=x"], "^--host db=x: x is named twice"),
        *(([], [f"db={name}"], "expected the name of a host") for name in ("x/y", "..", "global", "a\nb")),
        (["db=1"], ["db=x", "db=y"], "2 names for 1 containers of a/db"),
        (["db=0", "a/web=0", "b/web=0"], [], "no container to start"),
    ],
)
def test_what_it_can_not_mean(replicas: list[str], hosts: list[str], expected: str) -> None:
    """The message names the option and what is wrong with it."""
    with pytest.raises(BadUsage, match=expected):
        plan(DEPLOYMENT, pairs("--replicas", replicas), pairs("--host", hosts))


ROLES = LaunchFile(
    hosts={"control": ["c1"], "compute": ["n1", "n2"]},
    defaults=ContainerSettings(placement="control"),
    services={"a/web": ContainerSettings("compute"), "b/web": ContainerSettings("compute", "each")},
)


def placed(roles: list[str], replicas: list[str], hosts: list[str]) -> str:
    """The containers of the deployment with these roles."""
    launch = with_roles(ROLES, pairs("--role", roles, "ROLE=NAME[,NAME...]"))
    found = plan(DEPLOYMENT._replace(launch=launch), pairs("", replicas), pairs("", hosts))
    return " ".join(f"{name}@{host}" for name, host in found)


@pytest.mark.parametrize(
    ("roles", "replicas", "hosts", "expected"),
    [
        ([], [], [], "a/db@c1 a/web@n1 a/web@n2 b/web@n1 b/web@n2"),
        (["compute=x,y,z"], ["a/web=1"], [], "a/db@c1 a/web@x b/web@x b/web@y b/web@z"),
        (["control=n1"], ["a/web=0", "b/web=0"], [], "a/db@n1"),
        ([], ["db=3", "a/web=0", "b/web=1"], [], "a/db@c1 a/db@node-2 a/db@node-3 b/web@n1"),
        ([], ["a/web=3", "b/web=0"], ["a/web=n2", "db=x"], "a/db@x a/web@n2 a/web@n1 a/web@node-3"),
        (["compute=x"], ["a/web=2"], [], "a/db@c1 a/web@x a/web@node-2 b/web@x"),
    ],
)
def test_where_they_are_started(
    roles: list[str], replicas: list[str], hosts: list[str], expected: str
) -> None:
    """What the command line says, else what launch.yml says."""
    assert placed(roles, replicas, hosts) == expected


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("compute", "--role compute: expected ROLE=NAME"),
        ("comptue=x", "no such role in `hosts` of launch.yml .did you mean 'compute'"),
        ("compute=x,x", "a host is named twice"),
        ("compute=x,", "expected the name of a host"),
        ("compute=x/y", "expected the name of a host"),
    ],
)
def test_what_a_role_can_not_be(role: str, expected: str) -> None:
    with pytest.raises(BadUsage, match=expected):
        placed([role], [], [])


def test_fewer_hosts_than_containers_are_refused() -> None:
    """Unless the command line says how many there are."""
    with pytest.raises(BadDefinition, match="a/web wants 2 containers, and its role compute has 1 host"):
        placed(["compute=x"], [], [])


def test_every_number_of_the_directory_may_be_a_port() -> None:
    """A container must not be given it: what it is for may not listen yet, and would then find it taken."""
    contents = Deployment({"frontends": b"h:10001 h:10003"}, [service("web", port="{{ port }}")], [])
    assert {10001, 10003} <= ports_in(contents)
