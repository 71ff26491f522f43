"""Probes external services while a command waits for them: when a service is probed, and its last answer.

The probes themselves are in `probes`. Only imported if a definition has an external dependency.
"""

from __future__ import annotations

import time

from kolla_mesos_start.errors import cause
from kolla_mesos_start.loop import now
from kolla_mesos_start.probes import http, tcp
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.zookeeper.connect import Task
from kolla_mesos_start.zookeeper.session import jittered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kolla_mesos_start.definition.model import External
    from kolla_mesos_start.loop import Interest, Loop
    from kolla_mesos_start.zookeeper.connect import Steps

FIRST_PAUSE = 0.1  # seconds until the second probe; the pause doubles after each failure
JITTER = 0.2  # share of a pause: many containers probe the same service
ANSWER_TIMEOUT = 10.0  # seconds; a resolver asks its second name server after five
SOON = 0.5  # seconds until "no answer yet" is reported


class Answer(NamedTuple):
    """Why a service has not answered, empty if it has; and since when (seconds since the epoch)."""

    failure: str
    since: float


class ExternalProbes:
    """Probes all external services that are waited for."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._probes: dict[External, ExternalProbe] = {}

    @property
    def answers(self) -> Mapping[External, Answer]:
        """The last answer of each service that has one."""
        return {external: each.answer for external, each in self._probes.items() if each.answer}

    @property
    def settled(self) -> bool:
        """Whether there is an answer for each service, or it is overdue."""
        return all(each.answer for each in self._probes.values())

    def probe(self, externals: Sequence[External]) -> None:
        """Probe these services from now on, and no others."""
        for external in self._probes.keys() - set(externals):
            probe = self._probes.pop(external)
            self._loop.remove(probe)
            probe.close()
        for external in externals:
            if external not in self._probes:
                self._probes[external] = ExternalProbe(external)
                self._loop.add(self._probes[external])


class ExternalProbe:
    """Probes one service repeatedly; a source of the loop. `answer` is None before the first one."""

    def __init__(self, external: External) -> None:
        self.answer: Answer | None = None
        self._external = external
        self._begun = self._next = now()
        self._pause = FIRST_PAUSE
        self._task: Task | None = None

    @property
    def interest(self) -> Interest:
        return self._task.interest if self._task else None

    @property
    def deadline(self) -> float:
        deadline = self._task.deadline if self._task else self._next
        return deadline if self.answer else min(deadline, self._begun + SOON)

    def close(self) -> None:
        if self._task:
            self._task.close()

    def run(self, ready: bool) -> None:
        """Continue the probe, or begin the next one."""
        if self._task is None:
            if now() < self._next:
                return
            self._task, ready = Task(_steps(self._external), now() + ANSWER_TIMEOUT), True
        self._task.run(ready)
        if self._task.ended:
            self._conclude(_failure(self._task))
            self._task = None
        elif self.answer is None and now() >= self._begun + SOON:
            self.answer = Answer("no answer yet", time.time())

    def _conclude(self, failure: str) -> None:
        before = self.answer
        since = before.since if before and bool(before.failure) == bool(failure) else time.time()
        self.answer = Answer(failure, since)
        interval = self._external.interval
        if failure:
            pause, self._pause = self._pause, min(2 * self._pause, interval)
        else:
            pause, self._pause = interval, FIRST_PAUSE
        self._next = now() + jittered(pause, JITTER)


def _steps(external: External) -> Steps[str]:
    if external.kind == "http":
        return http(external.value)  # Only whether it answers matters: certificates are not verified.
    host, _, port = external.value.rpartition(":")
    return tcp([host.strip("[]")], int(port))


def _failure(task: Task) -> str:
    if isinstance(task.error, TimeoutError):
        return f"no answer within {ANSWER_TIMEOUT:g} s"
    return cause(task.error) if task.error else str(task.result)
