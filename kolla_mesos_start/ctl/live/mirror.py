"""A running deployment, read again when it changes.

What belongs here: reading and watching its tree, of which `DeploymentReader` makes the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import TypeVar

from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk import connection, containers, services
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.loop import now

T = TypeVar("T")
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
        self._view, self._top = View(partly=partly), live.znodes.deployment
        self._stale: set[str] = set()  # paths
        self._is_loaded = self._each = False
        if watching:
            client.session.on_watch(lambda path: self._stale.add(path))
            client.session.on_connected(self._forget_all)

    def deployment(self) -> LiveDeployment:
        """The deployment as it is now."""
        return self.read(self._live.deployment)

    def read(self, make: Callable[[View], T]) -> T:
        """What `make` makes of the deployment as it is now. Only what has changed is read."""
        if not self._is_loaded:
            self._is_loaded = True
            self._each = self._watching and not connection.watch_all(self._client, self._top)
            self._view, self._stale = View(partly=self._partly), {self._top}
        while True:
            stale, self._stale = self._stale, set()
            self._view.refresh(self._client, stale, each=self._each, open=containers.NAMES)
            found = make(self._view)
            if not self._view.wanted:
                return found
            self._view.load(self._client, each=self._each)

    @property
    def denied(self) -> Set[str]:
        """The paths that we have no right to read."""
        return self._view.denied

    def wait(self, timeout: float | None = None, quiet: float = QUIET) -> bool:
        """Wait for a change, and `quiet` seconds for others; False if none came in `timeout` seconds.

        An outage may last for any time from now on.
        """
        self._client.limit = math.inf
        deadline = math.inf if timeout is None else now() + timeout
        if not self._client.loop.wait(lambda: bool(self._stale), deadline):
            return False
        self._client.loop.sleep(quiet)
        return True

    def _forget_all(self) -> None:
        """Another connection: all watches are gone, and everything is read again."""
        self._is_loaded = False
        self._stale.add(self._top)


def mirror(invocation: Invocation, *, watching: bool = False, partly: bool = False) -> Mirror:
    """The deployment that the command line names. NotThere if there is none."""
    znodes = invocation.require_deployment()
    live = DeploymentReader(znodes, invocation.given)
    return Mirror(invocation.client, live, watching=watching, partly=partly)


def named(deployment: LiveDeployment, name: str) -> LiveService:
    """The service of that name, or else of that role. NotThere names the nearest one."""
    return deployment.services[services.chosen(name, deployment.services, deployment.id)]
