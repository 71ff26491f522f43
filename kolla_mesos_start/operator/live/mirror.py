"""A running deployment, read again when it changes.

What belongs here: reading what `DeploymentReader` asks for, and watching it.
"""

from __future__ import annotations

import threading
import time

from kazoo.client import KazooClient

from kolla_mesos_start.operator.ensemble import services
from kolla_mesos_start.operator.ensemble.view import View, read_all
from kolla_mesos_start.operator.invocation import Invocation
from kolla_mesos_start.operator.live.model import LiveDeployment, LiveService
from kolla_mesos_start.operator.live.reader import DeploymentReader
from kolla_mesos_start.zookeeper.query import Query

QUIET = 0.1  # seconds: changes come in groups, and one look is enough for a group


class Mirror:
    """One deployment. Without `watching` it is read once."""

    def __init__(self, client: KazooClient, live: DeploymentReader, *, watching: bool = False) -> None:
        self._client, self._live = client, live
        self._view = View()
        self._watch = self._changed if watching else None
        self._event = threading.Event()
        self._stale: set[Query] = set()

    def deployment(self) -> LiveDeployment:
        """The deployment as it is now."""
        return self._live.deployment(self.view())

    def view(self) -> View:
        """What is known. Only what is missing or has changed is read."""
        self._event.clear()
        while self._stale:
            self._view.pop(self._stale.pop(), None)
        return read_all(self._client, self._live.queries, self._view, self._watch)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change, and for others just after it; False if none came in `timeout` seconds."""
        if not self._event.wait(timeout):
            return False
        time.sleep(QUIET)
        return True

    def _changed(self, query: Query) -> None:
        # Runs on kazoo's thread; also when the connection is lost, because that ends all watches.
        self._stale.add(query)
        self._event.set()


def mirror(invocation: Invocation, *, watching: bool = False) -> Mirror:
    """The deployment that the command line names. NotThere if there is none."""
    znodes = invocation.require_deployment()
    return Mirror(invocation.client, DeploymentReader(znodes, invocation.given), watching=watching)


def named(deployment: LiveDeployment, name: str) -> LiveService:
    """The service of that name, or else of that role. NotThere names the nearest one."""
    return deployment.services[services.chosen(name, deployment.services, deployment.id)]
