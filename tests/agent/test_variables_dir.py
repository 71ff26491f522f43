"""Agents whose variables come from a directory of their own, such as a Secret that is mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.agent.test_rendering import writes, written
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.counting import Line
from tests.support.publishing import publish, write_files
from tests.support.tool import TOOL, ctl
from tests.support.walking import znodes
from tests.support.zookeeper import Server


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The directory."""
    return write_files(tmp_path, secrets__password="s3cret\n", secrets__retries="0") / "secrets"


def test_files_take_precedence_over_znodes(
    deployment: Deployment, containers: Containers, secrets: Path
) -> None:
    """In strings, in files, and in what is rendered with the definition."""
    definition = writes("conf", command="exit 3", retries="{{ retries }}", env={"P": "{{ password }}"})
    definition["commands"]["go"]["command"] = 'test "$P" = s3cret'
    here = containers.directory / "0-web1"
    publish(
        deployment,
        "web",
        definition,
        files={"conf": "{{ password }} {{ user }}"},
        shared={"password": "shared", "user": "shared", "here": str(here)},
        variables={"password": "service", "retries": "many"},
        host_variables={"web1": {"password": "host"}},
    )
    agent = containers.start("web", "web1", KOLLA_VARIABLES_DIR=str(secrets))
    assert agent.ends() == 0
    assert written(agent, "conf") == "s3cret shared"
    assert "s3cret" not in agent.said


def test_an_untidy_value_is_named_once(deployment: Deployment, containers: Containers, secrets: Path) -> None:
    """Wherever it comes from; what it is, is never shown."""
    (secrets / "password").write_bytes(b"s3cret\r\n")
    definition = writes("conf", retries="{{ retries }}", env={"P": "{{ password }} {{ user }}"})
    here = containers.directory / "0-web1"
    shared = {"user": "nova ", "here": str(here)}
    publish(deployment, "web", definition, files={"conf": "{{ password }} {{ user }}"}, shared=shared)
    agent = containers.start("web", "web1", KOLLA_VARIABLES_DIR=str(secrets))
    assert agent.ends() == 0
    said = agent.said
    assert said.count("the variable password ends with a carriage return, as in files of Windows") == 1
    assert said.count("the variable user ends with a blank") == 1
    assert "s3cret" not in said and said.count("the variable ") == 2


def test_values_of_the_directory_never_reach_zookeeper(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, secrets: Path
) -> None:
    here = containers.directory / "0-web1"
    definition = writes("conf", retries="{{ retries }}")
    publish(deployment, "web", definition, files={"conf": "{{ password }}"}, shared={"here": str(here)})
    line = Line(zookeeper)
    agent = containers.start("web", "web1", KOLLA_VARIABLES_DIR=str(secrets), KOLLA_ZK_HOSTS=line.hosts)
    assert agent.ends() == 0
    line.close()
    asked = [request.path for requests in line.connections for request in requests]
    assert any(path.endswith("/here") for path in asked)
    assert not [path for path in asked if path.endswith(("/password", "/retries"))]
    assert not [path for path, (data, _) in znodes(zk, deployment.path).items() if b"s3cret" in data]


def test_a_missing_variable_names_the_directory_first(
    deployment: Deployment, containers: Containers, secrets: Path
) -> None:
    publish(deployment, "web", {"commands": {"go": {"command": "true", "env": {"T": "{{ token }}"}}}})
    agent = containers.start("web", "web1", KOLLA_VARIABLES_DIR=str(secrets))
    assert agent.ends() == 78
    assert (
        f"looked at {secrets}/token, {deployment.path}/web/variables/web1/token, " in agent.ending["reason"]
    )


@pytest.mark.parametrize("before", ["", "\ufeff", " \n"])
def test_a_mounted_file_that_is_still_encrypted_is_refused(
    deployment: Deployment, containers: Containers, tmp_path: Path, before: str
) -> None:
    mounted = tmp_path / "key"
    mounted.write_text(f"{before}$ANSIBLE_VAULT;1.2;AES256;prod\n3661\n")
    file = {"dest": str(tmp_path / "copy"), "mounted": str(mounted)}
    publish(deployment, "web", {"commands": {"go": {"command": "true", "files": {"key": file}}}})
    agent = containers.start("web", "web1")
    assert agent.ends() == 78
    assert f"file key: {mounted} is still encrypted by ansible-vault" in agent.ending["reason"]
    assert not (tmp_path / "copy").exists()


def test_the_operators_tool_can_use_a_directory(
    deployment: Deployment, containers: Containers, secrets: Path, tmp_path: Path
) -> None:
    """Without it, the tool cannot tell what is complete; with it, it publishes no value of it."""
    keys = "run_once: true, generation: '{{ retries }}', env: {P: '{{ password }}'}"
    definition = f"commands: {{go: {{command: 'true', {keys}}}}}\n"
    write_files(tmp_path, site__services__web__definition_yml=definition)
    site = str(tmp_path / "site")
    done = ctl(deployment, "publish", site, status=65)
    assert "if containers find it in KOLLA_VARIABLES_DIR, set that here too" in done.stderr

    def with_it(*words: str) -> str:
        done = ctl(deployment, *words, KOLLA_VARIABLES_DIR=str(secrets))
        return done.stdout

    assert "s3cret" not in with_it("publish", site)
    assert containers.start("web", KOLLA_VARIABLES_DIR=str(secrets)).ends() == 0
    assert "if containers find it in KOLLA_VARIABLES_DIR" in ctl(deployment, "explain", status=1).stdout
    assert with_it("explain") == "up          web 1 of 1\n"
    for command in ("wait", "timeline", "graph"):
        with_it(command)
    setting = ctl(deployment, "set", "password", "other", KOLLA_VARIABLES_DIR=str(secrets)).stderr
    assert "note: password is in KOLLA_VARIABLES_DIR; containers use that value\n" in setting
    with_it("rerun", "web/go")
    assert containers.start("web", KOLLA_VARIABLES_DIR=str(secrets)).ends() == 0


def test_up_passes_the_directory_to_its_containers(secrets: Path, tmp_path: Path) -> None:
    definition = "commands: {go: {command: 'test $P = s3cret', env: {P: '{{ password }}'}}}\n"
    write_files(tmp_path, site__services__web__definition_yml=definition)
    done = subprocess.run(
        [sys.executable, TOOL, "up", "site", "--once"],
        env={"PATH": os.environ["PATH"], "KOLLA_VARIABLES_DIR": "secrets"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s3cret" not in done.stdout + done.stderr
