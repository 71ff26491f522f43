"""`check` reports what a start would change; `health` reports the stage of a container."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.walking import znodes

# -- check --------------------------------------------------------------------------------------------


def file_system(root: Path) -> dict[str, Any]:
    """Everything below a directory, with what a write would change."""
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_mtime_ns, content)
    return found


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def etc(deployment: Deployment, tmp_path: Path) -> Path:
    """Where the files of the service `web` go, once it is published: four of five are different there."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name, mode, content in (
        ("same", 0o600, "user kolla"),
        ("drift", 0o644, "user kolla"),
        ("old", 0o600, "user nobody"),
    ):
        (etc / name).write_text(content)
        (etc / name).chmod(mode)
    files: dict[str, Any] = {
        name.replace("/", "_"): {"dest": f"{etc}/{name}", "perm": "0600"}
        for name in ("same", "drift", "old", "deep/new")
    }
    files["absent"] = {"dest": f"{etc}/absent", "optional": True}
    publish(
        deployment,
        "web",
        {
            "commands": {"sync": {"command": "touch ran", "files": files, "run_once": True}},
            "service": {"daemon": {"command": "sleep 100", "dependencies": ["db/sync"]}},
        },
        files=dict.fromkeys(("same", "drift", "old", "deep_new"), "user {{ user }}"),
        variables={"user": "kolla"},
    )
    return etc


def test_check_lists_what_a_start_would_change(
    deployment: Deployment, containers: Containers, etc: Path
) -> None:
    """For each file the change, mode, owner, digest and path; dependencies are not awaited."""
    agent = containers.start("web", words=["check"])
    assert agent.ends() == 1
    told = [line.split() for line in agent.said.splitlines()]
    owner = f"{os.getuid()}:{os.getgid()}"
    content = digest(b"user kolla")
    assert " ".join(told.pop(0)).startswith(f"connected to {deployment.hosts} without TLS, as nobody (")
    assert told == [
        ["unchanged", "0600", owner, content, f"{etc}/same", "(web/sync)"],
        ["mode", "0600", owner, content, f"{etc}/drift", "(web/sync)"],
        ["rewrite", "0600", owner, content, f"{etc}/old", "(web/sync)"],
        ["create", "0600", owner, content, f"{etc}/deep/new", "(web/sync)"],
        ["absent", f"{etc}/absent", "(web/sync:", "optional)"],
        ["web:", "2", "commands", "checked,", "no", "errors;", "3", "of", "5", "files", "would", "change"],
    ]


def test_check_ends_with_0_if_nothing_would_change(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """A file that two commands write counts once."""
    files = {"conf": {"dest": f"{tmp_path}/conf"}}
    step = {"command": "true", "files": files}
    publish(
        deployment, "web", {"commands": {"a": step, "b": step}}, files={"conf": "{{ x }}"}, shared={"x": "1"}
    )

    def check() -> tuple[int, str]:
        agent = containers.start("web", words=["check"])
        return agent.ends(), agent.said.splitlines()[-1]

    said = "web: 2 commands checked, no errors; {} of 1 files would change"
    assert check() == (1, said.format(1))
    assert containers.start("web").ends() == 0
    assert check() == (0, said.format("none"))
    publish(
        deployment, "web", {"commands": {"a": step, "b": step}}, files={"conf": "{{ x }}"}, shared={"x": "2"}
    )
    assert check() == (1, said.format(1))


def test_check_writes_nothing(
    zk: KazooClient, deployment: Deployment, containers: Containers, etc: Path
) -> None:
    """Neither in ZooKeeper nor in the file system, not even its own state."""
    words = ["check", "--show"]
    assert containers.start("web", words=words).ends() == 1
    before = znodes(zk, deployment.path), file_system(etc)
    agent = containers.start("web", words=words)
    assert agent.ends() == 1
    assert (znodes(zk, deployment.path), file_system(etc)) == before
    assert [path.name for path in agent.directory.iterdir()] == ["log"]
    assert set(before[0]) == {
        *(
            f"{deployment.path}{name}"
            for name in ("", "/.events", "/.publication", "/web", "/web/files", "/web/variables")
        ),
        *(f"{deployment.path}/web/files/{name}" for name in ("same", "drift", "old", "deep_new")),
        f"{deployment.path}/web/variables/user",
    }


def test_check_shows_content_only_with_show(containers: Containers, etc: Path) -> None:
    """It can contain secrets."""
    quiet, open_ = (containers.start("web", words=["check", *more]) for more in ([], ["--show"]))
    assert [quiet.ends(), open_.ends()] == [1, 1]
    assert "user kolla" not in quiet.said
    assert open_.said.splitlines().count("user kolla") == 4


@pytest.mark.parametrize(
    ("words", "line", "why"),
    [
        ("check", '"$@" > /dev/full', "No space left on device"),
        # The reader is gone before the first output.
        (
            "check --show",
            '{ until [ -e gone ]; do sleep 0.01; done; "$@"; } | { exec <&-; touch gone; }',
            "Broken pipe",
        ),
    ],
)
def test_check_reports_that_it_cannot_write_its_output(
    deployment: Deployment, containers: Containers, tmp_path: Path, words: str, line: str, why: str
) -> None:
    """73, so that its status is not taken for an answer."""
    files = {"conf": {"dest": f"{tmp_path}/conf"}}
    publish(deployment, "web", {"commands": {"a": {"command": "true", "files": files}}}, files={"conf": "x"})
    shell = ("bash", "-c", f"set -o pipefail; {line}", "bash")
    agent = containers.start("web", words=words.split(), under=shell)
    assert agent.ends() == 73
    assert agent.ending["reason"] == f"standard output can't be written: {why}"
    assert len(agent.said.splitlines()) == 1


def test_check_in_a_running_container_leaves_it_alone(
    zk: KazooClient, deployment: Deployment, containers: Containers, etc: Path
) -> None:
    """Its failure is not recorded as the end of the container."""
    agent = containers.start("web")
    eventually(lambda: "db/sync" in agent.health().stdout, "the daemon waits")
    telling = f"{deployment.path}/web/.containers"
    eventually(
        lambda: any(b"db/sync" in zk.get(f"{telling}/{name}")[0] for name in zk.get_children(telling)),
        "it says so in ZooKeeper too",
    )
    zk.delete(f"{deployment.path}/web/variables/user")
    before = znodes(zk, deployment.path), file_system(etc), agent.health().stdout
    look = Agent(agent.directory, deployment.environ("web", KOLLA_HOSTNAME="web1"), "check")
    assert look.ends() == 78
    assert (znodes(zk, deployment.path), file_system(etc), agent.health().stdout) == before
    assert not (agent.directory / "termination-log").exists()
    assert agent.running


@pytest.mark.parametrize(
    ("definition", "status", "said"),
    [
        ({"commands": {"go": {"comand": "true"}}}, 65, ["commands.go.comand"]),
        (
            {
                "commands": {
                    "one": {"command": "true", "env": {"A": "{{ a }}"}},
                    "two": {"command": "true", "env": {"B": "{{ b }}"}},
                }
            },
            78,
            ["web/one: missing: a", "web/two: missing: b"],
        ),
        (
            {"commands": {"go": {"command": "true", "files": {"x": {"dest": "/x"}}}}},
            78,
            ["content of file x ("],
        ),
        (None, 65, ["/web is not published"]),
    ],
)
def test_check_finds_what_would_end_a_start(
    zk: KazooClient,
    deployment: Deployment,
    containers: Containers,
    definition: dict[str, Any] | None,
    status: int,
    said: list[str],
) -> None:
    """With the status of the start; all commands are checked."""
    if definition is not None:
        zk.create(f"{deployment.path}/web", json.dumps(definition).encode())
    agent = containers.start("web", words=["check"])
    assert agent.ends() == status
    assert agent.ending["status"] == status
    for words in said:
        assert words in agent.said
    assert not (agent.directory / "termination-log").exists()


# -- health -------------------------------------------------------------------------------------------


def probes(agent: Agent) -> tuple[int, int]:
    """The exit statuses of the liveness and the readiness probe."""
    return agent.health().returncode, agent.health("--ready").returncode


def is_at(agent: Agent, line: str, alive: int, ready: int) -> None:
    """Wait until the probe says a line, then hold both probes to their statuses."""
    eventually(
        lambda: re.match(line, agent.health().stdout), f"health says {line}, not {agent.health().stdout}"
    )
    assert probes(agent) == (alive, ready)


def test_health_follows_a_container_through_all_its_stages(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Waiting and bootstrapping are alive and not ready; a dead registrar is neither."""
    check = {"command": "test -e good", "interval": 0.1, "fall": 1}
    commands = {
        "sync": {"command": "until [ -e go ]; do sleep 0.05; done", "dependencies": ["db/sync"]},
    }
    definition = {"commands": commands, "service": {"daemon": {"command": "sleep 100", "ready": check}}}
    agent = containers.start("web")
    is_at(agent, "waiting for the definition", 0, 1)
    publish(deployment, "web", definition)
    is_at(agent, "waiting web/sync waits for db/sync: not started", 0, 1)
    zk.create(f"{deployment.path}/status/global/db/sync", b"done", makepath=True)
    is_at(agent, "bootstrapping web/sync", 0, 1)
    (agent.directory / "go").touch()
    is_at(agent, "starting", 0, 1)
    (agent.directory / "good").touch()
    is_at(agent, "ready", 0, 0)
    (agent.directory / "good").unlink()
    is_at(agent, "unready", 0, 1)
    (agent.directory / "good").touch()
    is_at(agent, "ready", 0, 0)
    os.kill(agent.registrar, signal.SIGKILL)
    is_at(agent, "daemon runs, unregistered", 1, 1)
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143


def test_an_outage_of_its_database_does_not_kill_an_api(
    deployment: Deployment, containers: Containers
) -> None:
    """However long it takes. The limit of a start counts only until the daemon has been ready."""
    check = {"command": "test -e ../database", "interval": 0.1, "fall": 1, "timeout": 0.5}
    publish(deployment, "web", {"service": {"daemon": {"command": "sleep 100", "ready": check}}})
    agent = containers.start("web")
    limited = ("--started", "1")
    late = "not ready within 1 s of its start; starting check command: exit status 1\n"
    eventually(lambda: agent.health(*limited).stdout == late, "its start takes too long")
    assert agent.health(*limited).returncode == 1
    assert probes(agent) == (0, 1)
    (agent.directory / "../database").touch()
    is_at(agent, "ready", 0, 0)
    (agent.directory / "../database").unlink()
    is_at(agent, "unready", 0, 1)
    assert agent.health(*limited).returncode == 0
    agent.signal(signal.SIGSTOP)
    assert (agent.health().returncode, agent.health(*limited).returncode) == (0, 0)


def test_the_limit_of_a_start_begins_again_with_each_daemon(
    deployment: Deployment, containers: Containers
) -> None:
    """As after a restart for new files. A daemon that is being stopped is not late."""
    daemon = {
        "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
        "stop_grace": 1,
        "ready": {"command": "test -e ../good", "interval": 0.1, "fall": 1},
        "on_change": {"restart": True},
        "files": {"conf": {"dest": "{{ place }}"}},
    }
    definition = {"service": {"daemon": daemon}}
    agent = containers.start("web", KOLLA_START_MODE="supervise")
    variables = {"place": f"{agent.directory}/conf"}
    publish(deployment, "web", definition, files={"conf": "old"}, variables=variables)
    limited, late = ("--started", "2"), "not ready within 2 s"
    eventually(lambda: agent.health(*limited).stdout.startswith(late), "its start takes too long")
    (agent.directory / "../good").touch()
    is_at(agent, "ready", 0, 0)
    (agent.directory / "../good").unlink()
    is_at(agent, "unready", 0, 1)
    publish(deployment, "web", definition, files={"conf": "new"}, variables=variables)
    agent.says("started again")
    assert agent.health(*limited).returncode == 0
    eventually(lambda: agent.health(*limited).stdout.startswith(late), "its new start takes too long, too")
    assert probes(agent) == (0, 1)
    agent.signal(signal.SIGTERM)
    eventually(lambda: agent.health(*limited).returncode == 0, "it is being stopped")
    assert agent.ends() == 137
