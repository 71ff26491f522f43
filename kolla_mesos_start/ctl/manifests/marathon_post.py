"""`kolla_mesos_ctl manifests marathon --post URL`: Marathon runs the apps of a deployment.

    read the group -> send what differs -> wait for the deployment -> read the group again

This module has the stages; `marathon` compares the apps. Nothing is removed or forced, because other apps
and concurrent deployments belong to somebody else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.manifests import marathon
from kolla_mesos_start.ctl.manifests.marathon_api import (
    TICK,
    Api,
    MarathonDeployment,
    NotFinished,
    Unsure,
    clean,
)
from kolla_mesos_start.ctl.manifests.model import FOREIGN, Model
from kolla_mesos_start.errors import AgentError, listed

# Seconds that a deployment may be gone before all its tasks have to be healthy: a leader that has just been
# elected knows neither at first.
SETTLE = 15.0

Found = Mapping[str, Mapping[str, Any]]


class NotDeployed(AgentError):
    """A deployment has ended without success."""

    status = 1


def post(invocation: Invocation, url: str, model: Model, timeout: float) -> int:
    """Run all stages. Changes are printed to standard output, progress to standard error."""
    poster = _Poster(invocation, url, model, timeout)
    try:
        poster.send()
        poster.wait()
    except KeyboardInterrupt:
        invocation.err.out(poster.left)
        raise
    return 0


class _Poster:
    """Sends the apps of one model to Marathon. `left`: what continues if this is interrupted now."""

    def __init__(self, invocation: Invocation, url: str, model: Model, timeout: float) -> None:
        self.left = "nothing was sent to Marathon"
        self._err, self._url, self._timeout = invocation.err, url, timeout
        self._began = time.monotonic()
        self._api = Api(url, timeout, self._say)
        self._group = marathon.group(model.deployment)
        self._apps = {app["id"]: app for app in marathon.apps(model)}
        # The ids of deployments that are waited for, and of the apps that they change.
        self._waiting: Sequence[str] = ()
        self._changed: Set[str] = frozenset()
        self._said: set[str] = set()

    def _say(self, text: str) -> None:
        """Print a line of progress, once."""
        if text not in self._said:
            self._said.add(text)
            self._err.out(f"{time.monotonic() - self._began:7.1f} s  {text}")

    # -- sending ------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send all apps that differ, in one deployment."""
        before = found = self._api.apps(self._group)
        for id in sorted(found.keys() - self._apps.keys()):
            self._err.out(f"left {clean(id)}, {FOREIGN}")
        sent: Mapping[str, Sequence[str]] = {}
        while differing := self._differing(found):
            sent, self.left = differing, "whether Marathon has got the apps is not known: run this again"
            apps = [marathon.merged(self._apps[id], found.get(id, {})) for id in differing]
            try:
                self._waiting, self._changed = [self._api.put(apps)], differing.keys()
                break
            except Unsure:
                found = self._api.apps(self._group)  # Nothing differs now if it was heeded.
        else:
            running = self._touching(self._api.deployments())
            self._waiting = [each.id for each in running]
            self._changed = {id for each in running for id in each.apps if id in self._apps}
        for id, fields in sent.items():
            print(f"changed {id}: {', '.join(fields)}" if id in before else f"created {id}")
        if not sent:
            print(f"unchanged: {counted(len(self._apps), 'app')}")
        self.left = f"{self._named()} goes on: run this again to wait for its end"

    def _differing(self, found: Found) -> Mapping[str, Sequence[str]]:
        """The apps that differ, each with the names of the different fields."""
        fields = {id: marathon.differences(app, found.get(id, {})) for id, app in self._apps.items()}
        return {id: each for id, each in fields.items() if each}

    def _touching(self, running: Iterable[MarathonDeployment]) -> Sequence[MarathonDeployment]:
        """The deployments that change our apps."""
        return [each for each in running if not self._apps.keys().isdisjoint(each.apps)]

    def _named(self) -> str:
        return f"deployment {clean(listed(self._waiting))}"

    # -- waiting ------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until Marathon has finished. `kolla_mesos_ctl wait` waits for the services."""
        gone: float | None = None
        step = "it has not begun"
        while self._waiting:
            running = list(self._api.deployments())
            mine = [each for each in running if each.id in self._waiting]
            for each in mine:
                step = each.step
                self._say(step)
            now = time.monotonic()
            gone = None if mine else gone or now
            if gone is not None and self._is_done(running, now - gone > SETTLE):
                print(f"deployed {self._group} to {self._url}")
                return
            if now >= self._api.deadline:
                raise NotFinished(f"{self._named()} goes on after {self._timeout:g} s: {step}")
            time.sleep(TICK)

    def _is_done(self, running: Iterable[MarathonDeployment], is_settled: bool) -> bool:
        """Whether it has ended with success. Marathon only says that it has ended."""
        others = [each.id for each in self._touching(running)]
        if others:
            raise NotDeployed(f"{self._named()} was taken back, or replaced, by {clean(listed(others))}")
        found = self._api.apps(self._group)
        changed = self._differing(found)
        if changed:
            raise NotDeployed(
                f"{self._named()} was taken back, or replaced: it did not leave {listed(changed)}"
            )
        lacking = {
            id: healthy for id, healthy in self._healthy(found) if healthy < self._apps[id]["instances"]
        }
        if lacking and is_settled:
            counts = listed(f"{id} {count} of {self._apps[id]['instances']}" for id, count in lacking.items())
            raise NotDeployed(f"{self._named()} was cancelled, or its tasks have ended: healthy are {counts}")
        return not lacking

    def _healthy(self, found: Found) -> Iterator[tuple[str, int]]:
        """The number of healthy tasks of each app, if Marathon reports it."""
        for id in self._changed:
            count = found[id].get("tasksHealthy")
            if isinstance(count, int):
                yield id, count
