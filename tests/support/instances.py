"""What the containers of a service show of themselves in the tree, as a test looks at it.

Members are those present in the party, instances those that are ready. Nothing here creates a
znode: that one is absent is what a test may want to know.
"""

from __future__ import annotations

import json
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.recipe.watchers import ChildrenWatch

from tests.conftest import Deployment
from tests.support.waiting import LIMIT, eventually

# What a ready instance and a member have registered, in the fewest words.
INSTANCE = {"host": "h1", "address": "192.0.2.1", "ports": [], "service": "infra/mq"}
MEMBER = {"ansible_hostname": "h1", "api_interface": "e", "ansible_e": {"ipv4": {"address": "192.0.2.1"}}}
INSTANCE_DATA, MEMBER_DATA = json.dumps(INSTANCE).encode(), json.dumps(MEMBER).encode()


class Site:
    """One service of a deployment, and what stands in the tree of it."""

    def __init__(self, deployment: Deployment, zk: KazooClient, service: str) -> None:
        self.service = service
        self.role = service.rsplit("/", 1)[-1]
        self._zk = zk
        self._deployment = deployment

    @property
    def party(self) -> str:
        return f"{self._deployment.path}/{self.service}/.party"

    def daemon(self, scope: str = "global") -> str:
        """The znode of the daemon; `scope` is `global` or a host."""
        return f"{self._deployment.path}/status/{scope}/{self.role}/daemon"

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """The facts of each member, by its id."""
        return self._objects(self.party)

    @property
    def containers_path(self) -> str:
        return f"{self._deployment.path}/{self.service}/.containers"

    @property
    def containers(self) -> dict[str, dict[str, Any]]:
        """What each container is doing, by its id."""
        return self._objects(self.containers_path)

    def ended(self, host: str = "web1") -> dict[str, Any]:
        """How the last start on a host that went wrong ended; empty where that is past."""
        try:
            data = self._zk.get(f"{self._deployment.path}/status/{host}/{self.role}/ended")[0]
        except NoNodeError:
            return {}
        ended: dict[str, Any] = json.loads(data)
        return ended

    def instances(self, scope: str = "global") -> dict[str, dict[str, Any]]:
        """What each ready instance says of itself, by its id."""
        return self._objects(f"{self.daemon(scope)}/ready")

    def state(self, command: str = "daemon", scope: str = "global") -> str:
        """The state's text; empty where there is none."""
        try:
            data: bytes = self._zk.get(f"{self._deployment.path}/status/{scope}/{self.role}/{command}")[0]
        except NoNodeError:
            return ""
        return data.decode()

    def owner(self, path: str) -> int:
        """The session that an ephemeral belongs to; 0 where there is none."""
        stat = self._zk.exists(path)
        return stat.ephemeralOwner if stat else 0

    def await_members(self, count: int, seconds: float = LIMIT) -> dict[str, dict[str, Any]]:
        """Wait until so many members are present; who they are."""
        eventually(lambda: len(self.members) == count, f"{count} members of {self.service}", seconds=seconds)
        return self.members

    def await_instances(self, count: int, seconds: float = LIMIT) -> dict[str, dict[str, Any]]:
        """Wait until so many instances are ready, globally; what they say of themselves."""
        eventually(
            lambda: len(self.instances()) == count,
            f"{count} ready instances of {self.service}",
            seconds=seconds,
        )
        return self.instances()

    def history(self, path: str) -> list[list[str]]:
        """The children of `path`, now and after each change that the server tells us of: it grows."""
        seen: list[list[str]] = []
        ChildrenWatch(self._zk, path, lambda children: seen.append(sorted(children)))
        return seen

    def _objects(self, path: str) -> dict[str, dict[str, Any]]:
        found = {}
        try:
            for name in self._zk.get_children(path):
                found[name] = json.loads(self._zk.get(f"{path}/{name}")[0])
        except NoNodeError:
            # The whole, or one that left between the two reads: seen as gone.
            return {} if not found else self._objects(path)
        return found
