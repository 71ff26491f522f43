"""How an agent ends: exit status, last line and termination log, by itself and on a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from kolla_mesos_start import __version__
from kolla_mesos_start.zookeeper.session import GRANT, Servers
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import Server

NOBODY = "127.0.0.1:1"
AT_ONCE = 30.0  # seconds, on a busy machine
WAITS = {"commands": {"go": {"command": "true", "dependencies": ["db/sync"]}}}


def one_command(text: str, **more: Any) -> dict[str, Any]:
    return {"commands": {"go": {"command": text, **more}}}


def one_daemon(text: str, **more: Any) -> dict[str, Any]:
    return {"service": {"daemon": {"command": text, **more}}}


def file(dest: str) -> dict[str, Any]:
    return {"files": {"conf": {"dest": dest}}}


def termination_log(agent: Agent) -> str:
    path = agent.directory / "termination-log"
    return path.read_text() if path.exists() else ""


# -- exit statuses ------------------------------------------------------------------------------------


class End(NamedTuple):
    """An end and its cause. `said` is a part of the reason; `environ` is the agent's."""

    status: int
    stage: str
    command: str | None
    retriable: bool
    said: str
    definition: Mapping[str, Any] = one_command("true")
    environ: Mapping[str, str] = {}


ENDS = [
    End(
        64, "environment", None, False, "KOLLA_WAIT_TIMEOUT is 'soon'", environ={"KOLLA_WAIT_TIMEOUT": "soon"}
    ),
    End(64, "environment", None, False, "'a..b' is no", environ={"KOLLA_ZK_HOSTS": "zoo,a..b"}),
    End(65, "read", None, False, "commands.go.comand", {"commands": {"go": {"comand": "true"}}}),
    End(
        69,
        "connect",
        None,
        True,
        f"no connection to ZooKeeper at {NOBODY} within 0.2 s",
        environ={"KOLLA_ZK_HOSTS": NOBODY, "KOLLA_ZK_CONNECT_TIMEOUT": "0.2"},
    ),
    End(
        69,
        "connect",
        None,
        True,
        "no connection to ZooKeeper at nowhere.invalid:2181",
        environ={"KOLLA_ZK_HOSTS": "nowhere.invalid", "KOLLA_ZK_CONNECT_TIMEOUT": "0.2"},
    ),
    End(73, "render", "web/go", False, "/proc/nowhere", one_command("true", **file("/proc/nowhere/conf"))),
    End(75, "wait", "web/go", True, "db/sync (not started)", WAITS, {"KOLLA_WAIT_TIMEOUT": "0.2"}),
    End(78, "render", "web/go", False, "missing: user", one_command("true", env={"USER": "{{ user }}"})),
    End(78, "render", "web/daemon", False, "missing: user", one_daemon("true", env={"USER": "{{ user }}"})),
    End(
        126,
        "exec",
        "web/daemon",
        False,
        "program '/etc/passwd' is not executable (mode 0644): set its x bit",
        one_daemon("/etc/passwd"),
    ),
    End(127, "exec", "web/daemon", False, "program '/no/such' was not found", one_daemon("/no/such")),
    End(1, "bootstrap", "web/go", True, "exit status 7", one_command("exit 7")),
    End(1, "bootstrap", "web/go", True, "timed out (limit 0.2 s)", one_command("sleep 100", timeout=0.2)),
    End(1, "bootstrap", "web/go", True, "program '/etc/passwd' is not exec", one_command("/etc/passwd")),
    End(1, "bootstrap", "web/go", True, "program 'mysqll' was not found in PATH", one_command("mysqll -e x")),
    End(1, "bootstrap", "web/go", True, "its shell did not find a program", one_command("true && mysqll")),
    End(1, "bootstrap", "web/go", True, "its program was not found in PATH", one_command("{{ 'mysqll' }}")),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.status}-{end.said.split(':')[0]}")
def test_an_end_has_its_status_and_one_json_object(
    zk: KazooClient, deployment: Deployment, containers: Containers, end: End
) -> None:
    """The last line of the log and the termination log are the same."""
    zk.create(f"{deployment.path}/web", json.dumps(end.definition).encode())
    zk.create(f"{deployment.path}/web/files/conf", b"", makepath=True)
    agent = containers.start("web", **end.environ)
    assert agent.ends() == end.status
    ending = agent.ending
    assert end.said in ending.pop("reason")
    assert ending == {
        "stage": end.stage,
        "command": end.command,
        "retriable": end.retriable,
        "status": end.status,
    }
    assert termination_log(agent) == agent.said.splitlines()[-1]


def test_a_defect_ends_with_status_70(deployment: Deployment, containers: Containers, tmp_path: Path) -> None:
    """Never with the status of a failed command; the message of the exception could be a secret."""
    defect = "def gethostname(): raise ValueError('s3' + 'cret')"
    (tmp_path / "sitecustomize.py").write_text(f"import socket\n{defect}\nsocket.gethostname = gethostname\n")
    publish(deployment, "web", one_command("true"))
    agent = containers.start("web", PYTHONPATH=str(tmp_path))
    assert agent.ends() == 70
    assert agent.ending["reason"] == "a defect of the agent: ValueError"
    assert agent.ending["retriable"] is False
    assert "Traceback" in agent.said and "kolla_mesos_start/settings.py" in agent.said
    assert "s3cret" not in agent.said  # It could be the value of a variable.
    assert termination_log(agent) == agent.said.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "why"),
    [("raise ModuleNotFoundError(name='jinja2')", "ModuleNotFoundError"), ("def", "SyntaxError")],
)
def test_a_module_that_can_not_be_loaded_is_named(
    deployment: Deployment, containers: Containers, tmp_path: Path, content: str, why: str
) -> None:
    """Late: only what renders needs jinja2. Another start would not help."""
    (tmp_path / "jinja2.py").write_text(content)
    command = {"command": "true", "files": {"conf": {"dest": str(tmp_path / "conf")}}}
    publish(deployment, "web", {"commands": {"go": command}}, files={"conf": "{{ region }}"})
    agent = containers.start("web", PYTHONPATH=str(tmp_path))
    assert agent.ends() == 70
    reason = agent.ending["reason"]
    assert "jinja2" in reason and f"can't be loaded ({why})" in reason
    assert "install the agent again, with all its packages" in reason and not agent.ending["retriable"]


def test_two_services_cannot_have_one_role(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """Their states would be mixed: the second one is rejected, both are named, nothing has run."""
    for service in ("nova/api", "glance/api"):
        publish(deployment, service, one_command("touch ran"))
    assert containers.start("nova/api").ends() == 0
    second = containers.start("glance/api", "web2")
    assert second.ends() == 65
    assert "the role api of glance/api is claimed by nova/api" in second.ending["reason"]
    assert not (second.directory / "ran").exists()
    assert zk.get(f"{deployment.path}/status/global/api")[0] == b"nova/api"


# -- stop signals -------------------------------------------------------------------------------------


def test_a_stop_signal_ends_an_agent_that_waits_at_once(
    zookeeper: Server, deployment: Deployment, containers: Containers, link: Link
) -> None:
    """For a connection, the definition, a dependency, a lock, or the delay between attempts."""
    publish(deployment, "web", WAITS)
    publish(deployment, "once", one_command("sleep 100", run_once=True))
    publish(deployment, "retries", one_command("false", retries=1, delay=100))
    holder = containers.start("once")
    holder.says("starting")
    agents = {
        "connection": containers.start("web", KOLLA_ZK_HOSTS=NOBODY),
        "definition": containers.start("nothing"),
        "dependency": containers.start("web"),
        "frozen server": containers.start("web", KOLLA_ZK_HOSTS=link.hosts),
        "lock": containers.start("once"),
        "delay": containers.start("retries"),
    }
    words = {
        "connection": "connection",
        "definition": "definition",
        "lock": "is running it",
        "delay": "retries",
    }
    for name, agent in agents.items():
        word = words.get(name, "db/sync")
        eventually(lambda agent=agent, word=word: word in agent.health().stdout, f"{name} waits")  # type: ignore[misc]
    agents["delay"].says("next attempt in 100 s")
    link.freeze()
    begun = time.monotonic()
    for agent in agents.values():
        agent.signal(signal.SIGTERM)
    assert [agent.ends(AT_ONCE) for agent in agents.values()] == [143] * len(agents)
    assert time.monotonic() - begun < AT_ONCE
    for agent in agents.values():
        assert agent.ending["reason"] == "stopped by SIGTERM"
        assert agent.ending["status"] == 143
        assert termination_log(agent) == agent.said.splitlines()[-1]


def test_a_stop_signal_in_an_outage_ends_an_agent_at_once(
    deployment: Deployment, containers: Containers, link: Link
) -> None:
    """Also if the agent has noticed the outage."""
    publish(deployment, "web", WAITS)
    agent = containers.start("web", KOLLA_ZK_HOSTS=link.hosts)
    eventually(lambda: "db/sync" in agent.health().stdout, "it waits")
    link.kill()
    agent.says("lost the connection to ZooKeeper")
    agent.signal(signal.SIGTERM)
    assert agent.ends(AT_ONCE) == 143


# -- access to ZooKeeper ---------------------------------------------------------------------


def owner_acl(zk: KazooClient) -> ACL:
    """All rights for the user `agent`, and none for others; the test has them too."""
    zk.add_auth("digest", "agent:s3cret")
    return make_digest_acl("agent", "s3cret", all=True)


def credentials(directory: Path, line: str) -> str:
    """For KOLLA_ZK_AUTH_FILE."""
    path = directory / "auth"
    path.write_text(line + "\n")
    return str(path)


def test_every_znode_that_an_agent_creates_has_the_acl(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Status, lock, outcome, presence and readiness, also those of the registrar."""
    commands = {
        "once": {"command": "true", "run_once": True, "generation": "1"},
        "plain": {"command": "true"},
    }
    publish(deployment, "web", {"commands": commands, **one_daemon("sleep 100", ready={"alive": 0})})
    publish(deployment, "task", one_command("sleep 100", run_once=True))
    published = set(znodes(zk, deployment.path))
    owner = owner_acl(zk)
    environ = {
        "KOLLA_ZK_AUTH_FILE": credentials(tmp_path, "digest:agent:s3cret"),
        "KOLLA_ZK_ACL": f"digest:{owner.id.id}:cdrwa",
    }
    for service in ("task", "web"):
        containers.start(service, **environ)
    path = deployment.path
    for expected in (f"{path}/status/global/task/go/lock", f"{path}/status/web1/web/daemon/ready"):
        eventually(lambda expected=expected: zk.exists(expected) and zk.get_children(expected), expected)  # type: ignore[misc]
    created = set(znodes(zk, path)) - published
    assert {name.rsplit("/", 1)[-1] for name in created} >= {
        *("status", "global", "web1", "web", "once", "plain", "daemon", "detail", "lock"),
        *("generations", "1", "hosts", "ready", ".party"),
    }
    assert {name: zk.get_acls(name)[0] for name in created} == {name: [owner] for name in created}


@pytest.mark.parametrize("line", [None, "digest:agent:wrong"])
def test_a_definition_that_may_not_be_read_is_named(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path, line: str | None
) -> None:
    """77, without a credential or with a wrong one; the credential is not shown."""
    zk.create(f"{deployment.path}/web", json.dumps(one_command("true")).encode(), acl=[owner_acl(zk)])
    environ = {} if line is None else {"KOLLA_ZK_AUTH_FILE": credentials(tmp_path, line)}
    agent = containers.start("web", **environ)
    assert agent.ends() == 77
    reason = f"{deployment.path}/web can't be read: NoAuthError: its ACL lacks the right r (read)"
    known = line.rpartition(":")[0] if line else Servers([]).identity
    assert agent.ending["reason"] == f"{reason}; connected as {known}: {GRANT}"
    assert "s3cret" not in agent.said
    assert "wrong" not in agent.said


def test_a_credentials_file_that_everybody_can_read_is_named(
    deployment: Deployment, containers: Containers
) -> None:
    """By a start and by `check`; the credential is not shown."""
    publish(deployment, "web", one_command("true"))
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        file = Path(credentials(Path(name), "digest:agent:s3cret"))
        for mode, warned in ((0o644, True), (0o640, False)):
            file.chmod(mode)
            for words in ((), ("check",)):
                agent = containers.start("web", words=words, KOLLA_ZK_AUTH_FILE=str(file))
                assert agent.ends() == 0
                what = f"KOLLA_ZK_AUTH_FILE: every user in this container can read {file} (mode 0644)"
                assert (what in agent.said) == ("make it 0440 or 0400" in agent.said) == warned
                assert "s3cret" not in agent.said


def test_a_status_tree_that_may_not_be_written_is_named(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """77, before anything runs."""
    publish(deployment, "web", one_command("touch ran"))
    readers = make_acl("world", "anyone", read=True)
    zk.create(f"{deployment.path}/status", b"", acl=[owner_acl(zk), readers])
    agent = containers.start("web")
    assert agent.ends() == 77
    path = f"{deployment.path}/status"
    lacks = f"the ACL of {path} lacks the right c (create)"
    known = f"{Servers([]).identity}: {GRANT}"
    reason = f"{path}/global can't be created: NoAuthError: {lacks}; connected as {known}"
    assert agent.ending["reason"] == reason
    assert not (agent.directory / "ran").exists()


def test_an_unknown_scheme_of_a_credential_is_fatal(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """The server ends the session; the agent does not retry for ever."""
    publish(deployment, "web", one_command("true"))
    agent = containers.start("web", KOLLA_ZK_AUTH_FILE=credentials(tmp_path, "nosuch:s3cret"))
    assert agent.ends() == 77
    assert "KOLLA_ZK_AUTH_FILE" in agent.ending["reason"]
    assert "s3cret" not in agent.said


# -- the log ------------------------------------------------------------------------------------------

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_log_has_the_chosen_format(
    deployment: Deployment, containers: Containers, log_format: str
) -> None:
    """The last line is the same object in both formats, as in the termination log."""
    publish(deployment, "web", {"commands": {"a": {"command": "true"}, "b": {"command": "exit 3"}}})
    agent = containers.start("web", KOLLA_LOG_FORMAT=log_format)
    assert agent.ends() == 1
    *lines, last = agent.said.splitlines()
    assert len(lines) >= 4
    for line in lines:
        if log_format == "json":
            told = json.loads(line)
            assert set(told) == {"time", "level", "logger", "message"}
            assert re.fullmatch(TIME, told["time"])
        else:
            assert re.fullmatch(rf"{TIME} (INFO|WARNING) kolla_mesos_start\.[\w.]+: .+", line)
    assert last == termination_log(agent)
    assert list(json.loads(last)) == ["stage", "command", "reason", "retriable", "status"]


@pytest.mark.parametrize(("environ", "warns"), [({}, True), ({"NODE_NAME": "node1"}, False)])
def test_a_pod_without_its_nodes_name_is_warned_about_local_dependencies(
    deployment: Deployment, containers: Containers, environ: dict[str, str], warns: bool
) -> None:
    """Each new pod would leave its own state behind."""
    local = {"path": "db/sync", "scope": "local"}
    publish(deployment, "web", one_command("true", dependencies=[local]))
    publish(deployment, "other", one_command("true", dependencies=["db/sync"]))
    pod = {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KOLLA_WAIT_TIMEOUT": "0.2", **environ}
    agents = [containers.start(service, "", **pod) for service in ("web", "other")]
    assert [agent.ends() for agent in agents] == [75, 75]
    assert ["NODE_NAME is not set" in agent.said for agent in agents] == [warns, warns]
    assert ["local dependencies (web/go on db/sync)" in agent.said for agent in agents] == [warns, False]


# -- the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["start"], "'start'"),
        (["--start"], "--start"),
        (["check", "--shwo"], "--shwo"),
        (["run", "kolla_start"], "kolla_start"),
        (["health", "--now"], "usage: kolla_mesos_start health"),
    ],
)
def test_unknown_arguments_are_rejected(tmp_path: Path, words: list[str], said: str) -> None:
    """64, with the usage."""
    agent = Agent(tmp_path / "container", {}, *words)
    assert agent.ends() == 64
    assert said in agent.said
    assert "usage: kolla_mesos_start" in agent.said
    if words[0] != "health":
        assert agent.ending["status"] == 64
        assert termination_log(agent) == agent.said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "usage: kolla_mesos_start [-h] [--version] COMMAND"),
        (["check", "--help"], "--show"),
        (["health", "--help"], "--ready"),
        (["health", "--help"], "example, as a readiness probe:\n  kolla_mesos_start health --ready\n"),
        (["--version"], f"kolla_mesos_start {__version__}"),
    ],
)
def test_help_needs_no_environment(tmp_path: Path, words: list[str], said: str) -> None:
    agent = Agent(tmp_path / "container", {}, *words)
    assert agent.ends() == 0
    assert said in agent.said
