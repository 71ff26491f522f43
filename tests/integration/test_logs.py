"""`kolla_mesos_ctl logs`, and the messages that name the command, with real agents."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from kazoo.client import KazooClient

from tests.agents import Containers
from tests.conftest import Deployment
from tests.instances import Site
from tests.publishing import publish
from tests.tool import ctl, tool, tool_says
from tests.waiting import eventually

ENDS = {"service": {"daemon": {"command": "false"}}}
NEVER_READY = {
    "service": {
        "daemon": {"command": "sleep 600", "ready": {"command": "false", "interval": 0.1}},
    }
}
HERE = socket.gethostname()


def program(directory: Path, name: str, script: str) -> str:
    """A program for PATH; returns PATH with it."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


def test_the_command_is_named_and_run_on_its_host(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """`status` and `explain` name it; on other hosts `logs` prints it."""
    publish(deployment, "a/web", NEVER_READY)
    for host in (HERE, "h2"):
        containers.start("a/web", host, KOLLA_LOGS=f"podman logs site_web-{host}")
    tool_says(deployment, f"see `podman logs site_web-{HERE}` on {HERE}", "status", status=1)
    tool_says(deployment, "see `podman logs site_web-h2` on h2", "status", status=1)
    path = program(tmp_path / "bin", "podman", 'echo "ran $*"')
    done = ctl(deployment, "logs", "web", PATH=path)
    assert f"==> {HERE}: podman logs site_web-{HERE} <==\nran logs site_web-{HERE}\n" in done.stdout
    assert "h2: podman logs site_web-h2\n" in done.stdout
    assert ctl(deployment, "logs", "web", "--host", "h2").stdout == "h2: podman logs site_web-h2\n"
    assert ctl(deployment, "logs", "web", "--host", "h2", KOLLA_HOSTNAME="h2", PATH=path).stdout == (
        "ran logs site_web-h2\n"
    )


def test_a_program_that_fails_or_is_missing_is_named(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    publish(deployment, "a/web", NEVER_READY)
    containers.start("a/web", HERE, KOLLA_LOGS="docker logs site_web")
    tool_says(deployment, "docker logs site_web", "status", status=1)
    path = program(tmp_path / "bin", "podman", 'echo "ran $*"; exit 3')
    done = ctl(deployment, "logs", "web", status=1, PATH=path)
    assert done.stdout == "ran logs site_web\n"  # The same words are for podman, which is installed.
    assert "docker logs site_web ended with status 3" in done.stderr
    missing = ctl(deployment, "logs", "web", status=1, PATH=str(tmp_path))
    assert "docker can't be executed here: No such file or directory" in missing.stderr


def test_what_a_container_engine_prints_reaches_no_terminal(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Neither on standard output, nor on standard error; a line may be long, or have no end."""
    publish(deployment, "a/web", NEVER_READY)
    containers.start("a/web", HERE, KOLLA_LOGS="podman logs site_web")
    tool_says(deployment, "podman logs site_web", "status", status=1)
    script = r"printf '\033[2J\302\233x\r\nsecond\r'; printf '\033]0;t\007' >&2; printf '%090000d' 7"
    done = ctl(deployment, "logs", "web", PATH=program(tmp_path / "bin", "podman", script))
    assert done.stdout == f"\\x1b[2J\\x9bx\\r\nsecond\\r\\x1b]0;t\\x07{7:090000d}"
    assert done.stderr == ""


def test_a_log_that_cannot_be_read_does_not_hide_the_others(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    publish(deployment, "a/web", NEVER_READY)
    for host in ("h1", "h2", "h3"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "web.log").write_text(f"the log of {host}\n")
        containers.start("a/web", host, KOLLA_LOGS=str(tmp_path / host / "web.log"))
    for host in ("h1", "h2", "h3"):
        tool_says(deployment, f"{host}/web.log", "status", status=1)
    for host in ("h1", "h2"):
        (tmp_path / host / "web.log").unlink()
    done = ctl(deployment, "logs", "web", status=1)
    assert "the log of h3\n" in done.stdout
    assert all(f"{host}/web.log can't be read: No such file" in done.stderr for host in ("h1", "h2"))


def test_a_file_is_shown_without_control_characters(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The record of a start that failed says it too."""
    publish(deployment, "a/web", ENDS)
    log = tmp_path / "h1" / "web.log"
    log.parent.mkdir()
    log.write_bytes(b"began\n\tin vain\x1b[2J\n")
    containers.start("a/web", "h1", KOLLA_LOGS=str(log))
    said = tool_says(deployment, f"see {log} on h1", "explain", status=1)
    assert "ended" in said
    assert ctl(deployment, "logs", "web").stdout == "began\n\tin vain\\x1b[2J\n"
    log.unlink()
    log.symlink_to("/etc/hostname")
    assert f"{log} can't be read" in tool(deployment, "logs", "web", status=1)


def test_a_container_that_is_gone_is_named_with_its_host(
    deployment: Deployment, containers: Containers
) -> None:
    """A task whose container has finished."""
    publish(deployment, "a/job", {"commands": {"sync": {"command": "true", "run_once": True}}})
    assert containers.start("a/job", "h1", KOLLA_LOGS="podman logs site_job").ends() == 0
    for words in ((), ("--host", "h1")):
        said = tool(deployment, "logs", "job", *words, status=1)
        assert "no container of a/job is left on h1; its launcher there has the log" in said


def test_a_container_without_it_is_named(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    publish(deployment, "a/web", NEVER_READY)
    assert "no container of a/web exists" in tool(deployment, "logs", "web", status=1)
    containers.start("a/web", "h1")
    site = Site(deployment, zk, "a/web")
    eventually(lambda: site.containers, "it is shown")
    assert "set KOLLA_LOGS" in tool(deployment, "logs", "web", status=1)
    assert "no container of a/web is on h3" in tool(deployment, "logs", "web", "--host", "h3", status=66)
    (container,) = json.loads(tool(deployment, "status", "--format", "json", status=1))["services"][0][
        "containers"
    ]
    assert container["logs"] == ""
