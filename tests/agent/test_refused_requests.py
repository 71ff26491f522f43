"""What agent, registrar and tool do about each kind of error, at each kind of request that they make: they go
on once it passes by, or end with the documented status and say why; and never ask without pauses.

A proxy before a real server answers in its place. What each single error means is in
tests/server/test_error_codes.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support import false_replies
from tests.support.agents import Containers
from tests.support.false_replies import FalseReplies, Lie
from tests.support.instances import Site
from tests.support.publishing import publish, write_files
from tests.support.tool import TOOL, environ, run_ctl
from tests.support.waiting import LIMIT, eventually
from tests.support.zookeeper import Server

SERVICE = "infra/db"
DEFINITION = {
    "commands": {"sync": {"command": "true", "run_once": True}},
    "service": {"daemon": {"command": "sleep 1000", "ready": {"alive": 0}}},
}
EXPIRED, OVERLOADED = -112, -127
ENDS = {-124: 77, -102: 77, -125: 69, -998: 69, -110: 69}  # code: exit status
WORDS = {
    -124: "ZooKeeper demands an identity (enforce.auth.schemes in its zoo.cfg): set KOLLA_ZK_AUTH_FILE",
    -102: "NoAuthError",
    -125: "its quota is used up: raise it, or remove znodes (QuotaExceededError)",
    -998: "an error that this version of kolla_mesos_start does not know",
    -110: "it exists already (NodeExistsError)",
}
REQUESTS = {
    "getData": Lie(false_replies.GET_DATA, 0),
    "getChildren2": Lie(false_replies.GET_CHILDREN2, 0),
    "create": Lie(false_replies.CREATE, 0),
    "multi": Lie(false_replies.MULTI, 0),
    "inner": Lie(false_replies.MULTI, 0, inner=True),
}
WINDOW = 2.0  # seconds in which requests are counted
MOST = 60  # requests of a kind a second; a thousand without pauses


@pytest.fixture
def proxy(zookeeper: Server) -> Iterator[FalseReplies]:
    with FalseReplies(zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def containers(
    deployment: Deployment, proxy: FalseReplies, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containers]:
    through = deployment._replace(hosts=proxy.hosts)
    containers = Containers(tmp_path_factory.mktemp("c"), through.environ)
    yield containers
    proxy.lie = None
    containers.end()


def asked_with_pauses(proxy: FalseReplies, kind: int) -> None:
    before, begun = proxy.requests[kind], time.monotonic()
    eventually(lambda: time.monotonic() > begun + WINDOW, "requests are counted")
    assert proxy.requests[kind] - before < MOST * (time.monotonic() - begun)


@pytest.mark.parametrize("request_", [*REQUESTS, "exists"])
@pytest.mark.parametrize("code", [EXPIRED, OVERLOADED])
def test_a_start_goes_on_after_what_passes_by(
    deployment: Deployment, containers: Containers, proxy: FalseReplies, request_: str, code: int
) -> None:
    publish(deployment, SERVICE, DEFINITION)
    lie = REQUESTS.get(request_, Lie(false_replies.EXISTS, 0))
    proxy.lie = lie._replace(code=code)
    agent = containers.start(SERVICE)
    eventually(lambda: proxy.requests[lie.kind] > 1, "it has asked again")
    asked_with_pauses(proxy, lie.kind)
    assert agent.running
    proxy.lie = None
    eventually(lambda: agent.state.startswith("ready"), "the daemon is ready")


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("code", ENDS)
def test_a_start_ends_with_what_does_not(
    deployment: Deployment, containers: Containers, proxy: FalseReplies, request_: str, code: int
) -> None:
    """That a znode exists already is met by somebody else's creation, so the whole is tried again."""
    publish(deployment, SERVICE, DEFINITION)
    lie = proxy.lie = REQUESTS[request_]._replace(code=code)
    agent = containers.start(SERVICE)
    if (request_, code) == ("inner", -110):
        eventually(lambda: proxy.requests[lie.kind] > 1, "it has asked again")
        asked_with_pauses(proxy, lie.kind)
        return
    assert agent.ends() == ENDS[code]
    assert WORDS[code] in agent.ending["reason"]
    assert agent.ending["retriable"] == (ENDS[code] == 69)
    assert proxy.requests[lie.kind] < MOST


@pytest.mark.parametrize("request_", ["create", "exists", "setData"])
@pytest.mark.parametrize("code", [EXPIRED, OVERLOADED, *ENDS])
def test_a_registrar_goes_on(
    deployment: Deployment,
    containers: Containers,
    proxy: FalseReplies,
    zk: KazooClient,
    request_: str,
    code: int,
) -> None:
    """Whatever it is told: the daemon serves. It is registered again once that has passed."""
    publish(deployment, SERVICE, {"service": DEFINITION["service"]})
    agent = containers.start(SERVICE)
    site = Site(deployment, zk, SERVICE)
    (member,) = site.await_instances(1)
    kinds = {
        "create": false_replies.CREATE,
        "exists": false_replies.EXISTS,
        "setData": false_replies.SET_DATA,
    }
    proxy.lie = Lie(kinds[request_], code)
    zk.delete(f"{deployment.path}/{SERVICE}/.party/{member}")
    asked_with_pauses(proxy, kinds[request_])
    proxy.lie = None
    assert agent.running
    eventually(lambda: set(site.instances()) == {member}, "it is registered again")
    assert "Traceback" not in agent.said


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("code", ENDS)
def test_what_the_tool_says(
    deployment: Deployment, proxy: FalseReplies, tmp_path: Path, request_: str, code: int
) -> None:
    write_files(tmp_path / "site", variables_yml="region: one\n")
    through = deployment._replace(hosts=proxy.hosts)
    lie = proxy.lie = REQUESTS[request_]._replace(code=code)
    done = run_ctl(through, "publish", tmp_path / "site", KOLLA_ZK_CONNECT_TIMEOUT="2")
    if (request_, code) == ("inner", -110):
        assert done.returncode in (1, 69)
    else:
        assert done.returncode == ENDS[code] and WORDS[code] in done.stderr
    assert proxy.requests[lie.kind] < MOST
    proxy.lie = None
    assert run_ctl(through, "publish", tmp_path / "site").returncode == 0


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("code", [EXPIRED, OVERLOADED])
def test_the_tool_goes_on_after_what_passes_by(
    deployment: Deployment, proxy: FalseReplies, tmp_path: Path, request_: str, code: int
) -> None:
    write_files(tmp_path / "site", variables_yml="region: one\n")
    lie = proxy.lie = REQUESTS[request_]._replace(code=code)
    command = [sys.executable, str(TOOL), "publish", str(tmp_path / "site")]
    env = environ(deployment._replace(hosts=proxy.hosts))
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as tool:
        eventually(lambda: proxy.requests[lie.kind] > 1, "it has asked again")
        asked_with_pauses(proxy, lie.kind)
        proxy.lie = None
        assert tool.stderr
        said = tool.stderr.read()
        assert tool.wait(LIMIT) == 0, said
    assert code == OVERLOADED or "the session has expired (SessionExpiredError)); retrying" in said
