"""Config files after a restart of the container, and an unprivileged agent.

Whole agents against a real ZooKeeper; tests/process/files shows how a single file is placed.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support import unprivileged
from tests.support.agents import Agent, Containers
from tests.support.instances import Site
from tests.support.publishing import publish

SERVICE = "openstack/web"
NOBODY_SPECIAL = 61234 if os.geteuid() == 0 else os.geteuid()


class Home(NamedTuple):
    """A user, their directory, and the command that launches an agent as this user."""

    uid: int
    path: Path
    launcher: Sequence[str]

    @property
    def environ(self) -> dict[str, str]:
        """Where this user's agent can write."""
        places = {"KOLLA_RUN_DIR": "run", "KOLLA_STATE_DIR": "state", "KOLLA_TERMINATION_LOG": "ended"}
        return {name: str(self.path / place) for name, place in places.items()}


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    """The home of an unprivileged user, unless the test asks for another one."""
    uid: int = getattr(request, "param", NOBODY_SPECIAL)
    # Only its owner can enter the temporary directory of a test.
    path = Path(tempfile.mkdtemp(prefix="home-"))
    path.chmod(0o755)
    if uid != os.geteuid():
        os.chown(path, uid, uid)
    yield Home(uid, path, unprivileged.launcher(uid) if uid else ())
    shutil.rmtree(path)


everybody = pytest.mark.parametrize("home", sorted({os.geteuid(), NOBODY_SPECIAL}), indirect=True)


def start(containers: Containers, home: Home, **environ: str) -> Agent:
    return containers.start(SERVICE, under=home.launcher, **{**home.environ, **environ})


def publish_task(deployment: Deployment, home: Home, version: str, **commands: Mapping[str, Any]) -> None:
    """A task of two commands with a config file each; each run of one adds the version to `ran`."""
    own = {
        name: {
            "command": f"echo {name} {{{{ version }}}} >>{home.path}/ran",
            "files": {f"{name}.conf": {"dest": f"{home.path}/etc/{name}.conf", "perm": "0640"}},
        }
        for name in ("one", "two")
    }
    publish(
        deployment,
        SERVICE,
        {"commands": {**own, **commands}},
        files={f"{name}.conf": f"{name} {{{{ version }}}}" for name in own},
        variables={"version": version},
    )


def ran(home: Home) -> list[str]:
    path = home.path / "ran"
    return path.read_text().splitlines() if path.exists() else []


def contents(home: Home) -> list[str]:
    return [(home.path / "etc" / f"{name}.conf").read_text() for name in ("one", "two")]


def facts(home: Home) -> list[tuple[int, int, int, int]]:
    """Inode, mode, owner and change time, which show that a file was written or touched."""
    stats = [(home.path / "etc" / f"{name}.conf").stat() for name in ("one", "two")]
    return [(st.st_ino, stat.S_IMODE(st.st_mode), st.st_uid, st.st_ctime_ns) for st in stats]


@everybody
def test_copy_once_writes_at_the_first_start_only(
    deployment: Deployment, containers: Containers, home: Home
) -> None:
    """Later changes, published or by hand, do not matter; commands run at each start, as published."""
    publish_task(deployment, home, "1")
    agent = start(containers, home, KOLLA_CONFIG_STRATEGY="COPY_ONCE")
    assert agent.ends() == 0
    assert (ran(home), contents(home)) == (["one 1", "two 1"], ["one 1", "two 1"])
    assert [fact[1:3] for fact in facts(home)] == [(0o640, home.uid)] * 2
    (home.path / "etc" / "one.conf").chmod(0o600)
    (home.path / "etc" / "two.conf").write_text("by hand")
    before = facts(home)
    publish_task(deployment, home, "2")
    for _ in range(2):
        agent.restart()
        assert agent.ends() == 0
    assert ran(home) == ["one 1", "two 1", *["one 2", "two 2"] * 2]
    assert contents(home) == ["one 1", "by hand"]
    assert facts(home) == before
    # Another container of the same image has its own first start.
    other = start(
        containers, home, KOLLA_CONFIG_STRATEGY="COPY_ONCE", KOLLA_STATE_DIR=str(home.path / "other")
    )
    assert other.ends() == 0
    assert contents(home) == ["one 2", "two 2"]


def test_copy_always_updates_files_at_each_start(
    deployment: Deployment, containers: Containers, home: Home
) -> None:
    """Also files that were changed by hand; others are not touched."""
    publish_task(deployment, home, "1")
    agent = start(containers, home)
    assert agent.ends() == 0
    before = facts(home)
    agent.restart()
    assert agent.ends() == 0
    assert facts(home) == before
    (home.path / "etc" / "one.conf").chmod(0o600)
    (home.path / "etc" / "two.conf").write_text("by hand")
    agent.restart()
    assert agent.ends() == 0
    assert contents(home) == ["one 1", "two 1"]
    assert [fact[1] for fact in facts(home)] == [0o640] * 2
    publish_task(deployment, home, "2")
    agent.restart()
    assert agent.ends() == 0
    assert contents(home) == ["one 2", "two 2"]
    assert ran(home) == [*["one 1", "two 1"] * 3, "one 2", "two 2"]


def test_an_unprivileged_agent_can_do_everything(
    deployment: Deployment, containers: Containers, zk: KazooClient, home: Home
) -> None:
    """In its own directories and the default run directory: commands, files, registration, probes."""
    run_dir = Path(f"/tmp/kolla_mesos_start-{home.uid}")
    etc = home.path / "etc"
    daemon = {
        "command": ["sleep", "1000"],
        "ready": {"command": f"test -e {home.path}/first"},
        "files": {"web.conf": {"dest": f"{etc}/web/web.conf"}},
        "user": f"{home.uid}",
    }
    first = {"command": f"touch {home.path}/first", "run_once": True}
    definition = {"commands": {"first": first}, "service": {"daemon": daemon}}
    publish(deployment, SERVICE, definition, files={"web.conf": "port = 80\n"})
    site = Site(deployment, zk, SERVICE)
    agent = start(containers, home, KOLLA_RUN_DIR="")
    try:
        ((member, _),) = site.await_instances(1).items()
        for path, mode in ((etc, 0o755), (etc / "web", 0o755), (etc / "web" / "web.conf", 0o600)):
            found = path.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, home.uid)
        health = agent.health("--ready", under=home.launcher)
        assert (health.returncode, health.stdout) == (0, "ready\n")
        assert run_dir.stat().st_uid == home.uid
        agent.end()
        site.await_members(0)
        agent.restart()
        assert list(site.await_instances(1)) == [member], "it keeps its id"
        agent.end()
        site.await_members(0)
    finally:
        shutil.rmtree(run_dir)


@pytest.mark.parametrize(
    ("file", "is_told"),
    [
        ({}, True),
        ({"owner": "65533", "perm": "0400"}, True),
        ({"owner": "65534:65534", "perm": "0200"}, True),
        ({"owner": "65534"}, False),
        ({"owner": "0:65534", "perm": "0640"}, False),
        ({"perm": "0604"}, False),
    ],
)
def test_a_file_that_its_user_cannot_read_is_told(
    deployment: Deployment, containers: Containers, tmp_path: Path, file: Mapping[str, str], is_told: bool
) -> None:
    first = {"command": "true", "user": "65534", "files": {"conf": {"dest": f"{tmp_path}/conf", **file}}}
    publish(deployment, SERVICE, {"commands": {"first": first}}, files={"conf": "text"})
    agent = containers.start(SERVICE)
    assert agent.ends() == 0
    told = "file conf: uid 65534, which the command becomes, can't read it: it belongs to uid"
    assert (told in agent.said) is is_told


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"dest": "/etc/web.conf"}, ["/etc/web.conf can't be written: Permission denied", "{uid}"]),
        ({"dest": "/proc/web.conf"}, ["/proc/web.conf can't be written"]),
        ({"dest": "{home}/web.conf", "owner": "root"}, ["{home}/web.conf", "Operation not permitted"]),
        (
            {"dest": "{home}/web.conf", "owner": "nobody-knows"},
            ["nobody-knows", "is not known in this container"],
        ),
    ],
)
def test_a_file_that_an_unprivileged_agent_cannot_write_is_73(
    deployment: Deployment,
    containers: Containers,
    home: Home,
    file: Mapping[str, str],
    words: Sequence[str],
) -> None:
    """Before the command runs; the last line names the file and the reason."""
    file = {key: value.format(home=home.path) for key, value in file.items()}
    command = {"command": f"echo ran >>{home.path}/ran", "files": {"web.conf": file}}
    publish(deployment, SERVICE, {"commands": {"write": command}}, files={"web.conf": "port = 80\n"})
    agent = start(containers, home)
    assert agent.ends() == 73
    assert (agent.ending["command"], agent.ending["retriable"]) == ("web/write", False)
    for word in words:
        assert word.format(home=home.path, uid=home.uid) in agent.ending["reason"]
    assert ran(home) == [] and not (home.path / "web.conf").exists()
    assert [path.name for path in home.path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("place", "options", "words"),
    [
        ("etc", "size=4k", "etc/one.conf can't be written: No space left on device"),
        ("state", "nr_inodes=1", "state/copied: No space left on device"),
        ("run", "nr_inodes=1", "run/private: No space left on device"),
        ("run", "nr_inodes=5", "No space left on device"),
    ],
)
def test_a_full_disk_is_75(
    deployment: Deployment, containers: Containers, home: Home, place: str, options: str, words: str
) -> None:
    """Launchers start the container again."""
    full = home.path / place
    full.mkdir()
    options = f"{options},mode=755,uid={home.uid},gid={home.uid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(full)], check=True)
    try:
        definition = {
            "commands": {"one": {"command": "true", "files": {"one": {"dest": f"{home.path}/etc/one.conf"}}}},
            "service": {"daemon": {"command": "true"}},
        }
        publish(deployment, SERVICE, definition, files={"one": "1" * 10_000})
        log = str(full / "ended")  # It changes no status.
        agent = start(containers, home, KOLLA_CONFIG_STRATEGY="COPY_ONCE", KOLLA_TERMINATION_LOG=log)
        assert agent.ends() == 75
        assert agent.ending["retriable"] and words in agent.ending["reason"]
    finally:
        subprocess.run(["umount", "--lazy", str(full)], check=True)


def test_an_unprivileged_agent_cannot_become_another_user(
    deployment: Deployment, containers: Containers, home: Home
) -> None:
    """The daemon is not run as the wrong user."""
    daemon = {"command": ["touch", f"{home.path}/ran"], "user": "root"}
    publish(deployment, SERVICE, {"service": {"daemon": daemon}})
    agent = start(containers, home)
    assert agent.ends() == 126
    assert agent.ending["command"] == "web/daemon"
    assert not (home.path / "ran").exists()
