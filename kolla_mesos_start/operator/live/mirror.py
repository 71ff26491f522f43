"""What has been read of a deployment, kept true by watches.

What lives here: reading what `reader` asks for, a level at a time, and again what has changed.
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

QUIET = 0.1  # seconds: changes come in groups, and one look is enough for all


class Mirror:
    """One deployment, as often as it is asked for. Without watches it is read once."""

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
        """What is known; only what is not known, or no longer, is read."""
        self._event.clear()
        while self._stale:
            self._view.pop(self._stale.pop(), None)
        return read_all(self._client, self._live.queries, self._view, self._watch)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change, and for those that come with it; False if none came in `timeout` seconds."""
        if not self._event.wait(timeout):
            return False
        time.sleep(QUIET)
        return True

    def _changed(self, query: Query) -> None:
        # Runs on kazoo's thread; also when the connection is lost, which takes all watches with it.
        self._stale.add(query)
        self._event.set()


def mirror(invocation: Invocation, *, watching: bool = False) -> Mirror:
    """The deployment that the command line names. NotThere if there is none."""
    znodes = invocation.require_deployment()
    return Mirror(invocation.client, DeploymentReader(znodes, invocation.given), watching=watching)


def named(deployment: LiveDeployment, name: str) -> LiveService:
    """The service of that name, or else of that role. NotThere names the nearest one."""
    return deployment.services[services.chosen(name, deployment.services, deployment.id)]
