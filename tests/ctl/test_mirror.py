"""A deployment that is followed looks at each moment as if it was read then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.settings import parse
from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import Deployment
from tests.ctl.trees import container, definition, one_time
from tests.support.instances import INSTANCE_DATA


@pytest.fixture
def client(deployment: Deployment) -> Iterator[OperatorClient]:
    environ = {
        "KOLLA_ZK_HOSTS": deployment.hosts,
        "KOLLA_SYSTEM_PREFIX": deployment.prefix,
        "KOLLA_APP_ID": f"/{deployment.id}/operator",
    }
    found = connection.connect(parse(environ))
    yield found
    found.close()


@pytest.mark.parametrize("is_new", [True, False], ids=["one watch", "a watch on each znode"])
def test_every_change_is_followed(
    deployment: Deployment,
    zk: KazooClient,
    client: OperatorClient,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
) -> None:
    """With servers of any age: znodes that are created, changed and deleted, at any depth."""
    if not is_new:
        monkeypatch.setattr(connection, "watch_all", lambda *_: False)
    top, znodes = deployment.path, Znodes(deployment.prefix, deployment.id, "", "")
    zk.ensure_path(top)
    source = Mirror(client, DeploymentReader(znodes), watching=True)
    source.deployment()
    web = definition(commands={"sync": one_time(generation="{{ size }}")})
    own, ready = f"{top}/a/web/.containers/1", f"{top}/status/global/web/daemon/ready/1"
    said = json.dumps(container("ready", read="0x1")).encode()
    changes: list[Any] = [
        lambda: zk.create(f"{top}/a/web", json.dumps(web).encode(), makepath=True),
        lambda: zk.create(f"{top}/variables/size", b"1", makepath=True),
        lambda: zk.create(own, said, ephemeral=True, makepath=True),
        lambda: zk.create(ready, INSTANCE_DATA, ephemeral=True, makepath=True),
        lambda: zk.set(f"{top}/variables/size", b"2"),
        lambda: zk.set(own, json.dumps(container("unready", "tcp 80: refused")).encode()),
        lambda: zk.delete(ready),
        lambda: zk.create(f"{top}/a/web/variables/h1/size", b"3", makepath=True),
        lambda: zk.delete(f"{top}/a", recursive=True),
    ]
    seen = []
    for change in changes:
        change()
        assert source.wait(30)
        followed = source.deployment()
        assert followed == Mirror(client, DeploymentReader(znodes)).deployment()
        seen.append(followed)
    assert len({repr(each) for each in seen}) == len(changes)
