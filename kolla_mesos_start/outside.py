"""Probes external services while a command waits for them.

Here is when a service is probed, and its last answer. The probes are in `probes`; `wait` decides
what follows. Imported only if a definition has an external dependency.
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

FIRST_PAUSE = 0.1  # seconds until what has not answered is asked again; then twice as long each time
SHARE = 0.2  # of a pause, by which it is shorter or longer: many containers ask the same
ANSWER_TIMEOUT = 10.0  # seconds; a name server may be dead, and the next one is asked after five
SOON = 0.5  # seconds until it is said that there is no answer yet


class Answer(NamedTuple):
    """Why something has not answered, empty if it has; and since when (seconds since the epoch)."""

    failure: str
    since: float


class Outside:
    """Asks all that is waited for."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._questions: dict[External, Question] = {}

    @property
    def answers(self) -> Mapping[External, Answer]:
        """The last answer of each that is asked, as far as there is one."""
        return {external: each.answer for external, each in self._questions.items() if each.answer}

    @property
    def settled(self) -> bool:
        """Whether each has answered, or has been asked for so long that this is said of it."""
        return all(each.answer for each in self._questions.values())

    def ask(self, externals: Sequence[External]) -> None:
        """Ask these, the first time at once, and no others any more."""
        for external in self._questions.keys() - set(externals):
            question = self._questions.pop(external)
            self._loop.remove(question)
            question.close()
        for external in externals:
            if external not in self._questions:
                self._questions[external] = Question(external)
                self._loop.add(self._questions[external])


class Question:
    """Asks one thing outside again and again; a source of the loop.

    `answer` is the last one, None before the first.
    """

    def __init__(self, external: External) -> None:
        self.answer: Answer | None = None
        self._external = external
        self._begun = self._next = now()
        self._pause = FIRST_PAUSE
        self._task: Task | None = None

    @property
    def interest(self) -> Interest:
        """The descriptor and the poll() events on which `run` must run."""
        return self._task.interest if self._task else None

    @property
    def deadline(self) -> float:
        """When `run` must run at the latest."""
        deadline = self._task.deadline if self._task else self._next
        return deadline if self.answer else min(deadline, self._begun + SOON)

    def close(self) -> None:
        """Ask no more; nothing stays open."""
        if self._task:
            self._task.close()

    def run(self, ready: bool) -> None:
        """Go on with the question, or ask it again."""
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
        self._next = now() + jittered(pause, SHARE)


def _steps(external: External) -> Steps[str]:
    if external.kind == "http":
        return http(external.value)  # Whether it answers is asked, not who it is.
    host, _, port = external.value.rpartition(":")
    return tcp([host.strip("[]")], int(port))


def _failure(task: Task) -> str:
    if isinstance(task.error, TimeoutError):
        return f"no answer within {ANSWER_TIMEOUT:g} s"
    return cause(task.error) if task.error else str(task.result)
