"""`kolla_mesos_ctl events`, with real agents and a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl.text import operator
from tests.conftest import Deployment
from tests.ctl.trees import container, definition
from tests.support.agents import Containers
from tests.support.instances import INSTANCE_DATA
from tests.support.publishing import publish, write_files
from tests.support.sites import Site
from tests.support.tool import TOOL, ctl, environ, tool
from tests.support.waiting import eventually

DELAY = 0.3  # seconds: the limit
TASK = {"commands": {"sync": {"command": "true", "run_once": True}}}


@contextmanager
def following(deployment: Deployment, *words: str) -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """The events that the tool prints meanwhile, each with the time at which it came."""
    argv = [sys.executable, str(TOOL), "events", "--follow", "--format", "json", *words]
    seen: list[tuple[float, dict[str, Any]]] = []
    with subprocess.Popen(argv, env=environ(deployment), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = Thread(target=lambda: seen.extend((time.time(), json.loads(line)) for line in lines))
        reader.start()
        try:
            yield seen
        finally:
            process.send_signal(signal.SIGINT)
            reader.join()
    assert process.returncode == 130


def kinds(seen: list[tuple[float, dict[str, Any]]]) -> list[str]:
    return [event["kind"] for _, event in seen]


def test_publications_and_actions_are_recorded_with_their_user_and_without_a_value(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    publish(deployment, "a/job", TASK, shared={"size": "1"})
    publish(deployment, "a/job", TASK, shared={"size": "1"})  # This changes nothing, and is no event.
    tool(deployment, "set", "size", "s3cret")
    tool(deployment, "unset", "size", "--force")
    tool(deployment, "adopt", "job/sync")
    tool(deployment, "rerun", "job/sync")
    assert containers.start("a/job", "h1").ends() == 0
    tool(deployment, "reset", "--yes")
    publish(deployment, "b/other", TASK)
    tool(deployment, "remove", "b/other", "--yes")
    events = [json.loads(line) for line in ctl(deployment, "events", "--format", "json").stdout.splitlines()]
    actions = [(each["kind"], each["names"]) for each in events if "by" in each]
    assert actions == [
        ("publish", ["variables/size", "a/job"]),
        ("set", ["variables/size"]),
        ("unset", ["variables/size"]),
        ("adopt", ["job/sync"]),
        ("rerun", ["job/sync"]),
        ("reset", []),
        ("publish", ["b/other"]),
        ("remove", ["b/other"]),
    ]
    assert {each["by"] for each in events if "by" in each} == {operator()}
    assert b"s3cret" not in zk.get(f"{deployment.path}/.events")[0]
    assert ctl(deployment, "events", "--since", "0s").stdout == ""
    assert len(ctl(deployment, "events", "--since", "1h").stdout.splitlines()) == len(actions)
    refused = ctl(deployment, "events", "--since", "yesterday", status=64).stderr
    assert "argument --since: expected 30s, 10m, 2h, 1d or 2026-01-31T10:00:00Z, found 'yesterday'" in refused
    text = ctl(deployment, "events", "other").stdout
    assert f"{operator()}: remove b/other\n" in text
    assert "rerun" not in text


def test_what_happens_is_printed_at_once(zk: KazooClient, deployment: Deployment) -> None:
    """The loss of readiness above all."""
    publish(deployment, "a/web", definition())
    ready = f"{deployment.path}/status/global/web/daemon/ready/1"
    own = f"{deployment.path}/a/web/.containers/1"
    with following(deployment, "a/web") as seen:
        eventually(lambda: kinds(seen) == ["publish"], "the publication is printed")
        zk.create(own, json.dumps(container("ready")).encode(), ephemeral=True, makepath=True)
        zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True)
        eventually(lambda: "ready" in kinds(seen), "it is ready")
        zk.delete(ready)
        lost = time.time()
        zk.set(own, json.dumps(container("unready", "tcp 80: refused", since=lost)).encode())
        eventually(lambda: "unready" in kinds(seen), "its loss is printed")
        (at, event) = next(each for each in seen if each[1]["kind"] == "unready")
        print(f"delay: {at - lost:.3f} s")
        assert event["text"].startswith("web/daemon on web1 is no longer ready")
        tool(deployment, "set", "size", "1")
        eventually(lambda: "set" in kinds(seen), "the action is printed")
        zk.delete(own)
        eventually(lambda: "gone" in kinds(seen), "the container is gone")


def test_a_snapshot_keeps_the_record(deployment: Deployment, tmp_path: Path) -> None:
    """Restored events have their own time, beside those of the deployment."""
    publish(deployment, "a/job", TASK)
    tool(deployment, "set", "size", "1")
    before = ctl(deployment, "events").stdout
    tool(deployment, "snapshot", str(tmp_path / "site.tar"))
    other = Deployment(deployment.hosts, deployment.prefix, "other")
    tool(other, "restore", str(tmp_path / "site.tar"))
    found = ctl(other, "events").stdout
    assert all(line in found.splitlines() for line in before.splitlines())
    assert ": restore " in found


def test_only_the_operator_may_write_the_record(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """An agent of a service neither writes nor reads it; a lost record does not fail the action."""
    auth = tmp_path / "auth"
    auth.write_text("digest:operator:secret\n")
    auth.chmod(0o600)
    site = Site(deployment, zk, containers, tmp_path)
    plan = {"operator": f"digest:{make_digest_acl_credential('operator', 'secret')}", "services": {}}
    write_files(site.root, acl_yml=json.dumps(plan), variables__size="1")
    site.ctl("publish", site.root, KOLLA_ZK_AUTH_FILE=str(auth))
    acls, _ = KazooClient.get_acls(_connected(zk, "digest", "operator:secret"), f"{deployment.path}/.events")
    assert [(each.id.scheme, each.id.id.split(":")[0]) for each in acls] == [("digest", "operator")]


def _connected(zk: KazooClient, scheme: str, credential: str) -> KazooClient:
    zk.add_auth(scheme, credential)
    return zk
