"""Which containers `up` starts, and how their logs become one stream."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from rich.console import Console

from kolla_mesos_start.ctl.directory.container_settings import ContainerSettings
from kolla_mesos_start.ctl.directory.directory import Deployment, Service, Values
from kolla_mesos_start.ctl.directory.launch import LaunchFile
from kolla_mesos_start.ctl.invocation import OutputConsole
from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.directory_up import DirectoryDeployment, pairs, plan, with_roles
from kolla_mesos_start.ctl.up.log_stream import LogStream
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


def test_logs_become_one_stream_of_whole_lines(tmp_path: Path) -> None:
    """Each behind the name of its container, once, whatever is in it."""
    made = [LocalContainer(f"a/{role}", "x", tmp_path / role, tmp_path / "run", {}) for role in ("db", "web")]
    target = io.StringIO()
    stream = LogStream(made, Console(file=target))
    stream.show()
    made[0].log.write_bytes(b"one [bold]\nSTORED\r\ntw")
    made[1].log.write_bytes(b"\xff \x1b[31mred\x1b[0m\n\n")
    stream.show()
    with made[0].log.open("ab") as log:
        log.write(b"o" * 200 + b"\n")
    stream.show()
    stream.show()
    assert target.getvalue().splitlines() == [
        "db@x  | one [bold]",
        "db@x  | STORED",
        "web@x | \N{REPLACEMENT CHARACTER} red",
        "web@x | ",
        "db@x  | tw" + "o" * 200,
    ]


def test_a_log_may_have_colours_and_no_other_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LocalContainer("a/db", "x", tmp_path / "db", tmp_path / "run", {})
    target = io.StringIO()
    monkeypatch.setattr(target, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", target)
    monkeypatch.setenv("TERM", "xterm")
    stream = LogStream([made], OutputConsole())
    made.log.write_text(
        "\x1b[31mred\x1b[0m \x1bc \x1b[2J \x9b2J \x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\n"
    )
    stream.show()
    said = target.getvalue()
    assert "\x1b[31mred\x1b[0m" in said
    assert r" \x1bc \x1b[2J \x9b2J \x1b]8;;http://evil" in said
    assert re.findall(r"\x1b(?!\[\d*m)", said) == []


class EndsMeanwhile(LocalContainer):
    """A container that writes its last line and ends between two looks at it."""

    @property
    def status(self) -> int:
        if not self.log.exists():
            self.log.write_text("the last line\n")
        return 2


def test_the_end_of_a_container_comes_after_its_last_line(tmp_path: Path) -> None:
    made = EndsMeanwhile("a/db", "x", tmp_path / "db", tmp_path / "run", {})
    target = io.StringIO()
    stream = LogStream([made], Console(file=target))
    stream.show()
    stream.show()
    last, end = target.getvalue().splitlines()
    assert last == "db@x | the last line"
    assert end.startswith("db@x | ended")


def test_no_container_is_given_a_port_that_the_directory_names(tmp_path: Path) -> None:
    """What it is for may not listen yet, and would then find it taken."""
    odd = " ".join(f"h:{port}" for port in range(10001, 65536, 2))
    contents = Deployment({"frontends": odd.encode()}, [service("web", port="{{ port }}")], [])
    planned = [("web", f"node-{number}") for number in range(1, 21)]
    made = DirectoryDeployment(contents, planned, tmp_path, tmp_path, KazooClient(), {}, "/kolla", "site")
    assert {int(container.environ["KOLLA_PORTS"]) % 2 for container in made.containers} == {0}
