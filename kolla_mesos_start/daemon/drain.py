"""Drains a daemon before it is stopped, so that no client loses a request.

    withdraw       remove the instance from ZooKeeper; it is not registered again
    wait           for `drain` seconds, in which load balancers remove it
    before_stop    run the command of the definition, or kill it at its limit

Only daemons with `drain` or `before_stop` import this module.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial

from kolla_mesos_start.daemon.control import DRAIN, RETRY, STOP, STOP_SOCKET, RequestSocket
from kolla_mesos_start.errors import PASSING, cause
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import Child, signal_name
from kolla_mesos_start.zookeeper.connect import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from kolla_mesos_start.daemon.handoff import Handoff, Stopping
    from kolla_mesos_start.daemon.registrar import Registrar
    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.connect import Steps

log = Logger(__name__)

WITHDRAW_TIMEOUT = 1.0  # seconds without `drain`; then the stop goes on
MARGIN = 10.0  # seconds after `stop_grace` (a supervisor sends KILL then) in which a client gets its answer


class Drain:
    """Drains one daemon; a source of the loop.

    `reason`: what it is doing, empty until it begins. `is_over`: the daemon can be stopped. `failure`: why
    clients may have lost requests. `child`: the command, until its exit status is read.
    """

    def __init__(self, registrar: Registrar, handoff: Handoff, stopping: Stopping) -> None:
        self._registrar, self._handoff, self._stopping = registrar, handoff, stopping
        self._clients: dict[socket.socket, bytes] = {}  # each with its request
        path = f"{handoff.run_dir}/{STOP_SOCKET}"
        self._socket = RequestSocket(path, registrar.loop, self._on_connection)
        self.child: Child | None = None
        self._stages: Generator[None, bool | None, None] | None = None
        self.reset()

    def reset(self) -> None:
        """The daemon was started again, and may be registered."""
        if self._stages:  # It has ended before it was drained.
            self._stages.close()
        self.reason = self.failure = ""
        self.is_over = self._asked_to_stop = False
        self.interest: Interest = None
        self.deadline = math.inf
        self._stages = None

    def begin(self) -> None:
        """Begin, unless it has begun. The daemon has been deregistered."""
        if not self.reason:
            self.reason = "is being deregistered"
            self._stages = self._drain()
            self._continue(None)

    def cut_short(self) -> None:
        """Skip the rest."""
        if self._stages:
            self.failure = "a second signal ended the draining"
            log.warning("stopping at once: %s", self.failure)
            self._stages.close()
            self._finish()

    def close(self) -> None:
        """The daemon has ended."""
        if self._stages:
            self._stages.close()
        self._socket.close()
        if self.is_over:
            self._answer(STOP, "; the daemon has ended")
        self.failure = "the daemon has ended while it was being drained"
        for request in (DRAIN, STOP):
            self._answer(request)

    def run(self, ready: bool) -> None:
        """Go on as far as possible."""
        if self._stages:
            self._continue(ready)
        elif now() >= self.deadline:
            self.deadline = math.inf
            grace, signame = self._handoff.stop_grace, signal_name(self._handoff.stop_signal)
            self._answer(STOP, f"; the daemon has not ended {grace:g} s after {signame}", status=1)

    # -- the stages -----------------------------------------------------------------------------

    def _continue(self, ready: bool | None) -> None:
        assert self._stages is not None
        try:
            self._stages.send(ready)
        except StopIteration:
            self._finish()

    def _drain(self) -> Generator[None, bool | None, None]:
        """Each `yield` waits for the next event, or for `deadline`."""
        seconds, presence = self._stopping.drain, self._registrar.presence
        self.deadline = now() + (seconds or WITHDRAW_TIMEOUT)
        if seconds:
            self.reason = f"is no longer registered: load balancers have {seconds:g} s to remove it"
            log.info("draining for %g s", seconds)
        # Without a connection it can't be deregistered in time.
        while now() < self.deadline and (
            seconds or (self._registrar.session.connected and not presence.withdrawn)
        ):
            yield
        if seconds and not presence.withdrawn:
            self.failure = f"it is still registered after {seconds:g} s: ZooKeeper can't be reached"
            log.warning("%s; stopping all the same", self.failure)
        if self._stopping.argv:
            yield from self._before_stop()

    def _before_stop(self) -> Generator[None, bool | None, None]:
        limit = self._stopping.timeout
        self.reason = f"before_stop runs (limit {limit:g} s)"
        log.info("running before_stop")
        until = now() + limit
        while True:
            command = Task(self._run_command(), until)
            command.run(True)
            try:
                while not command.ended:
                    self.interest, self.deadline = command.interest, command.deadline
                    command.run(bool((yield)))
            finally:
                if not command.ended:
                    command.close()
                has_run, self.interest, self.child = self.child is not None, None, None
            if has_run or getattr(command.error, "errno", None) not in PASSING or now() + RETRY >= until:
                break
            self.deadline = now() + RETRY
            while now() < self.deadline:
                yield
        if isinstance(command.error, TimeoutError):
            why = f"not finished after {limit:g} s: killed"
        else:
            why = cause(command.error) if command.error else command.result
        if why:
            self.failure = f"before_stop failed: {why}"
            log.warning("%s; stopping all the same", self.failure)
        else:
            log.info("before_stop has succeeded")

    def _run_command(self) -> Steps[str]:
        """Run the command; its descendants in its process group end with it. Why it failed, or empty text."""
        handoff = self._handoff
        output = None if handoff.supervised else 2  # The registrar has only the container's stderr.
        child = Child(self._stopping.argv, handoff.check_env, handoff.check_ids, output=output)
        self.child = child.started()
        return (yield from child.run())

    def _finish(self) -> None:
        self._stages, self.deadline, self.is_over = None, math.inf, True
        self.reason = "drained: it can be stopped"
        self._answer(DRAIN)
        if self._asked_to_stop:
            self._terminate()

    @property
    def _limit(self) -> float:
        return now() + self._handoff.stop_grace + MARGIN

    def _terminate(self) -> None:
        self.deadline = self._limit
        self._registrar.terminate()

    # -- clients: `kolla_mesos_start stop` --------------------------------------------------------

    def _on_connection(self, connection: socket.socket) -> None:
        self._registrar.loop.listen(connection.fileno(), partial(self._listen, connection))
        self._listen(connection)  # Its request counts before what else has happened in this turn of the loop.

    def _listen(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(16)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if request not in (DRAIN, STOP):
            self._drop(connection)
            return
        self._clients[connection] = request
        was_asked, self._asked_to_stop = self._asked_to_stop, self._asked_to_stop or request == STOP
        self._registrar.stop()  # Also after it was drained for a restart.
        if not self.is_over:
            self.begin()
        elif request == DRAIN:
            self._answer(DRAIN)
        elif not was_asked:
            self._terminate()
        else:  # The daemon has had its signal, but this client its own limit.
            self.deadline = min(self.deadline, self._limit)

    def _answer(self, request: bytes, more: str = "", status: int = 0) -> None:
        """Answer all clients with that request."""
        text = f"{status or int(bool(self.failure))} {self.failure or 'drained'}{more}\n"
        for connection in [client for client, asked in self._clients.items() if asked == request]:
            with contextlib.suppress(OSError):  # The client has ended.
                connection.send(text.encode())
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._clients.pop(connection, None)
        self._registrar.loop.ignore(connection.fileno())
        connection.close()
