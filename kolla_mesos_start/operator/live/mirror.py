"""What has been read of a deployment, kept true by watches.

What lives here: reading what `reader` asks for, a level at a time, and again what has changed.
"""

from __future__ import annotations

import math

from kolla_mesos_start.loop import now
from kolla_mesos_start.operator.ensemble import connection, services
from kolla_mesos_start.operator.invocation import Invocation
from kolla_mesos_start.operator.live.reader import DeploymentReader, LiveDeployment, LiveService, View
from kolla_mesos_start.zookeeper.client import Client

QUIET = 0.1  # seconds: changes come in groups, and one look is enough for all


class Mirror:
    """One deployment, as often as it is asked for. Without watches it is read once."""

    def __init__(self, client: Client, live: DeploymentReader, *, watching: bool = False) -> None:
        self._client, self._live, self._watching = client, live, watching
        self._view = View()
        self._stale: set[str] = set()  # paths
        if watching:
            client.session.on_watch(self._stale.add)
            client.session.on_connected(self._forget)  # All watches are gone.

    def deployment(self) -> LiveDeployment:
        """The deployment as it is now."""
        return self._live.deployment(self.view())

    def view(self) -> View:
        """What is known; only what is not known, or no longer, is read."""
        for query in [query for query in self._view if query.path in self._stale]:
            del self._view[query]
        self._stale.clear()
        while missing := self._live.queries(self._view) - self._view.keys():
            self._view.update(connection.answers(self._client, missing, watch=self._watching))
        return self._view

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change, and for those that come with it; False if none came in `timeout` seconds."""
        deadline = math.inf if timeout is None else now() + timeout
        if not self._client.loop.wait(lambda: bool(self._stale), deadline):
            return False
        self._client.loop.sleep(QUIET)
        return True

    def _forget(self) -> None:
        self._stale.update(query.path for query in self._view)


def mirror(invocation: Invocation, *, watching: bool = False) -> Mirror:
    """The deployment that the command line names. NotThere if there is none."""
    znodes = invocation.require_deployment()
    return Mirror(invocation.client, DeploymentReader(znodes, invocation.given), watching=watching)


def named(deployment: LiveDeployment, name: str) -> LiveService:
    """The service of that name, or else of that role. NotThere names the nearest one."""
    return deployment.services[services.chosen(name, deployment.services, deployment.id)]
