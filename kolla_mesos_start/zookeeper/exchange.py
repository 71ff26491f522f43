"""Requests that depend on each other, written from top to bottom.

A generator yields requests, and gets their answers: `(stat,) = yield [Exists(path, True)]`. Nothing is waited
for: it continues when the session receives the answers.
"""

from __future__ import annotations

from kolla_mesos_start.zookeeper import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, TypeVar

    from kolla_mesos_start.zookeeper.session import Session

    T = TypeVar("T")
    Requests = Generator[Sequence[Any], list[Any], T]


class Exchange:
    """Runs one generator of requests. `ended`: it has returned `result`, or was cut off.

    An answer is the server's, or the KazooException that it has sent. An outage closes the generator: it is
    unknown what was applied, so everything must be read again (`is_cut_off`).
    """

    def __init__(self, session: Session, steps: Requests[Any]) -> None:
        self.ended = self.is_cut_off = False
        self.result: Any = None
        self._session, self._steps = session, steps
        self._continue(lambda: next(steps))

    def close(self) -> None:
        """Stop; later answers are dropped."""
        self.ended = True
        self._steps.close()

    def _continue(self, step: Callable[[], Sequence[Any]]) -> None:
        try:
            operations = step()
            while not operations:
                operations = self._steps.send([])
        except StopIteration as stop:
            self.ended, self.result = True, stop.value
            return
        answers: list[Any] = []

        def on_reply(value: Any, error: Exception | None) -> None:
            if self.ended:
                return
            if isinstance(error, wire.OUTAGE):
                self.is_cut_off = True
                self.close()
                return
            answers.append(value if error is None else error)
            if len(answers) == len(operations):
                self._continue(lambda: self._steps.send(answers))

        for operation in operations:
            self._session.request(operation, on_reply)
