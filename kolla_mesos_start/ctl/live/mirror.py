"""A running deployment, read again when it changes.

What belongs here: reading what `DeploymentReader` asks for, and watching it.
"""

from __future__ import annotations

import math
from collections.abc import Set

from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.view import View, read_all
from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.view import children_of, data_of, stat_of

QUIET = 0.1  # seconds: changes come in groups, and one look is enough for a group


class Mirror:
    """One deployment. Without `watching` it is read once.

    `partly`: what we have no right to read is left out, and named by `denied`; otherwise it is an error.
    """

    def __init__(
        self,
        client: OperatorClient,
        live: DeploymentReader,
        *,
        watching: bool = False,
        partly: bool = False,
    ) -> None:
        self._client, self._live, self._watching, self._partly = client, live, watching, partly
        self._view = View()
        self._stale: set[str] = set()  # paths
        if watching:
            client.session.on_watch(self._stale.add)
            client.session.on_connected(self._forget)  # All watches are gone.

    def deployment(self) -> LiveDeployment:
        """The deployment as it is now."""
        view = self.view()
        return self._live.deployment(view)

    def view(self) -> View:
        """What is known. Only what is missing or has changed is read."""
        for path in self._stale:
            for query in (data_of(path), children_of(path), stat_of(path)):
                self._view.pop(query)
            self._view.denied.discard(path)
        self._stale.clear()
        return read_all(
            self._client, self._live.queries, self._view, watch=self._watching, partly=self._partly
        )

    @property
    def denied(self) -> Set[str]:
        """The paths that we have no right to read."""
        return self._view.denied

    def wait(self, timeout: float | None = None, quiet: float = QUIET) -> bool:
        """Wait for a change, and `quiet` seconds for others; False if none came in `timeout` seconds."""
        deadline = math.inf if timeout is None else now() + timeout
        if not self._client.loop.wait(lambda: bool(self._stale), deadline):
            return False
        self._client.loop.sleep(quiet)
        return True

    def _forget(self) -> None:
        self._stale.update(query.path for query in self._view)


def mirror(invocation: Invocation, *, watching: bool = False, partly: bool = False) -> Mirror:
    """The deployment that the command line names. NotThere if there is none."""
    znodes = invocation.require_deployment()
    live = DeploymentReader(znodes, invocation.given)
    return Mirror(invocation.client, live, watching=watching, partly=partly)


def named(deployment: LiveDeployment, name: str) -> LiveService:
    """The service of that name, or else of that role. NotThere names the nearest one."""
    return deployment.services[services.chosen(name, deployment.services, deployment.id)]
