"""A deployment of many containers, as their agents would have written it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.ctl.trees import one_time
from tests.support.instances import INSTANCE_DATA

SERVICES, REPLICAS = 100, 10


def fill(zk: KazooClient, deployment: Deployment, services: int = SERVICES, replicas: int = REPLICAS) -> None:
    """A thousand containers in ten layers, each of which waits for the one below; the third is stuck."""
    replies = [
        zk.create_async(f"{deployment.path}/{path}", data.encode(), ephemeral=path.endswith("__party__"))
        for path, data in znodes(services, replicas)
    ]
    for reply in replies:
        reply.get()


def znodes(services: int = SERVICES, replicas: int = REPLICAS) -> Iterator[tuple[str, str]]:
    """All of them, parents first."""
    yield "status", ""
    yield "status/global", ""
    for host in range(replicas):
        yield f"status/h{host}", ""
    for number in range(services):
        yield from _service(number, services // 10, replicas)


def _service(number: int, width: int, replicas: int) -> Iterator[tuple[str, str]]:
    role, layer = f"s{number}", number // width
    is_up = layer < 2
    before = [f"s{number - width}/daemon"] if layer else []
    daemon = {"command": "sleep 9", "ready": {"alive": 1}}
    sync = one_time(*before)
    written = {"commands": {"sync": sync}, "service": {"instances": replicas, "daemon": daemon}}
    yield role, json.dumps(written)
    yield f"{role}/.containers", ""
    yield f"{role}/.party", ""
    at = f"status/global/{role}"
    yield at, role
    yield f"{at}/sync", "done" if layer < 3 else "waiting"
    for name in ("lock", "generations", "detail", "hosts"):
        yield f"{at}/sync/{name}", ""
    yield f"{at}/daemon", "running" if is_up else "waiting"
    yield f"{at}/daemon/ready", ""
    for host in range(replicas):
        stage = "ready" if is_up else "starting" if layer == 2 else "waiting"
        told = {"host": f"h{host}", "state": stage, "command": f"{role}/daemon", "since": 1_700_000_000}
        told["reason"] = "command check, exit status 69" if stage == "starting" else ""
        yield f"{role}/.containers/{host}__party__", json.dumps(told)
        yield f"{role}/.party/{host}__party__", "{}"
        yield f"status/h{host}/{role}", role
        yield f"status/h{host}/{role}/daemon", "waiting"
        if is_up:
            yield f"{at}/daemon/ready/{host}__party__", INSTANCE_DATA.decode()
