"""What is read of the records of containers: many hosts must not make every question slow."""

from __future__ import annotations

from kazoo.client import KazooClient

from kolla_mesos_start.ctl.zk import status_records
from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import Deployment
from tests.support.tool import operator_client


def test_only_the_owners_of_roles_and_names_are_read_at_once(zk: KazooClient, deployment: Deployment) -> None:
    """Not what is below the states, nor their data; of one service only its own."""
    status = f"{deployment.path}/status"
    roles = {f"{status}/global/db": "infra/db", f"{status}/web1/db": "infra/db", f"{status}/global/a": "a"}
    for role, owner in roles.items():
        zk.create(role, owner.encode(), makepath=True)
        zk.create(f"{role}/sync", b"done")
        for path in ("lock", "detail", "generations/1", "hosts/web1"):
            zk.create(f"{role}/sync/{path}", makepath=True)
    znodes = Znodes(deployment.prefix, deployment.id, "", "")
    client = operator_client(zk, deployment.prefix, deployment.id)
    seen = client.record()
    found = status_records.read(client, znodes)
    assert len(found.states()) == 3
    assert {path for path, is_list in seen if not is_list} == set(roles)
    scopes = {status, f"{status}/global", f"{status}/web1"}
    states = {f"{role}/sync" for role in roles}
    assert {path for path, is_list in seen if is_list} == {*scopes, *roles, *states}
    own = status_records.roles(client, znodes, "infra/db")
    seen = client.record()
    done = status_records.read(client, znodes, own).states()
    assert {state.name for state in done} == {"db/sync", "db/sync on web1"}
    assert not [path for path, _ in seen if path.startswith(f"{status}/global/a")]
    client.close()
