"""Refreshes the files of a running daemon when something they are rendered from changes.

Decides when to refresh, and what happens afterwards. For each refresh an agent is started that renders and
places the files (`refresh`), so that its memory is freed. `rollout` decides which instance is next.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import signal
from functools import partial

from kolla_mesos_start.daemon.control import REFRESH_SOCKET, RequestSocket
from kolla_mesos_start.daemon.handoff import Refreshed, Refreshing, python
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import Child, memfd, pidfd_open
from kolla_mesos_start.report import (
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
    RESTART,
)
from kolla_mesos_start.zookeeper.wire import Exists, GetChildren2, NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, Protocol

    from kolla_mesos_start.daemon.rollout import Rollout
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.zookeeper.client import Seen
    from kolla_mesos_start.zookeeper.session import Session

    class DaemonControl(Protocol):
        """What a refresher needs from the registrar of a daemon."""

        def notify(self, kind: str, signame: str) -> str:
            """Notify it of new files by a signal or a restart; returns why that failed, or empty text."""

        def set_facts(self, facts: bytes) -> None:
            """Publish what the container is based on now."""

        def is_ready(self) -> bool:
            """Whether it is ready."""

        def confirm(self, after: float) -> None:
            """Check it after that instant."""

        def confirmed(self) -> bool:
            """Whether it has been ready since then."""


log = Logger(__name__)

# Seconds without a change until a refresh begins. A publication writes many znodes. Instances and members
# change one by one; the short time is for several at once. LONGEST limits the delay.
QUIET, SHORT_QUIET, LONGEST = 1.0, 0.2, 10.0
# Seconds until a refresh that was killed again is tried again; after the first time, that is at once.
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
SETTLE = 1.0  # seconds after which a notified daemon must be ready
NAME = "kolla_mesos_start refresh"

IDLE, WAITING, RENDERING, SETTLING = "idle", "waiting", "rendering", "settling"

BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from kolla_mesos_start.agent import refresh; refresh(int(sys.argv[1]), int(sys.argv[2]))"
)


class RefreshProcess:
    """The agent that renders and places the files."""

    def __init__(self, loop: Loop, environ: Mapping[str, str]) -> None:
        self._child: Child | None = None
        self._loop, self._environ = loop, environ

    def start(self, order: tuple[Any, ...], on_end: Callable[[int, Refreshed | None], object]) -> None:
        """Start it. Raises OSError.

        `on_end` is called with its exit status and its report (see `read_report`), unless it is killed here.
        """
        fds: list[int] = []
        try:
            for name in ("order", "report"):
                fds.append(memfd(name))
            ordered, report = fds
            os.write(ordered, marshal.dumps(order))
            os.lseek(ordered, 0, os.SEEK_SET)
            argv = python(BOOT, *map(str, fds), NAME)
            self._child = Child(argv, self._environ, output=2, inherited=fds).started()
            pidfd = pidfd_open(self._child.pid)
        except OSError:
            for fd in fds:
                os.close(fd)
            self.kill()
            raise
        os.close(ordered)
        self._loop.listen(pidfd, partial(self._on_end, pidfd, report, on_end))

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self._child:
            self._child.kill()

    @property
    def pid(self) -> int | None:
        """Its pid while it runs."""
        return self._child.pid if self._child and self._child.status is None else None

    def _on_end(self, pidfd: int, report: int, on_end: Callable[[int, Refreshed | None], object]) -> None:
        self._loop.ignore(pidfd)
        os.close(pidfd)
        if self._child and self._child.status is None:  # Otherwise it was killed: the daemon has ended.
            on_end(os.waitstatus_to_exitcode(self._child.wait() or 0), read_report(report))


class Refresher:
    """Refreshes one daemon; a source of the loop.

    `reason` describes the last or the next refresh; `code`: see `report`. With a `rollout`, other instances
    may be first.
    """

    interest = None

    def __init__(
        self,
        session: Session,
        loop: Loop,
        order: Refreshing,
        run_dir: str,
        daemon: DaemonControl,
        rollout: Rollout | None = None,
    ) -> None:
        self.reason = self.code = ""
        self._rollout = rollout
        self._session, self._loop, self._order, self._daemon = session, loop, order, daemon
        self._stage = IDLE
        self._settles_by = -math.inf  # until when the next refresh waits for a notified daemon
        self._unconfirmed = False  # The daemon was notified, and no check has passed since.
        self._not_notified = False  # The daemon may have new files without having been notified.
        self._killed = 0  # how many refreshes in a row
        self._known: Seen = dict(order.seen)
        self._unsure: set[tuple[str, bool]] = set()  # changed while a refresh runs
        self._first = self._due = math.inf  # when something has first changed, and when to refresh
        self._process = RefreshProcess(loop, order.environ)
        self._note, self._needs_restart = "", False
        self._asking: list[socket.socket] = []  # clients that ask for a refresh
        self._served: list[socket.socket] = []  # clients that have asked for the running one
        self._socket = RequestSocket(f"{run_dir}/{REFRESH_SOCKET}", loop, self._on_connection)
        session.on_connected(self._look_at_all)
        session.on_watch(self._fired)

    @property
    def deadline(self) -> float:
        """When a refresh is due."""
        return math.inf if self._stage == RENDERING else max(self._due, self._settles_by)

    @property
    def pid(self) -> int | None:
        """The pid of the agent that is rendering."""
        return self._process.pid

    def close(self) -> None:
        """Stop: the daemon has ended."""
        self._socket.close()
        self._process.kill()

    # -- what changes ---------------------------------------------------------------------------

    def _fired(self, path: str) -> None:
        for of_children in (False, True):
            if (path, of_children) in self._known:
                self._look(path, of_children)

    def _look_at_all(self) -> None:
        for path, of_children in self._known:
            self._look(path, of_children)

    def _look(self, path: str, of_children: bool) -> None:
        """Read when it was last changed, and set a watch."""
        ask = GetChildren2 if of_children else Exists
        self._session.request(ask(path, True), partial(self._on_look, path, of_children))

    def _on_look(self, path: str, of_children: bool, value: Any, error: Exception | None) -> None:
        if isinstance(error, NoNodeError) and of_children:
            # Only `exists` sets a watch on a missing znode.
            self._session.request(Exists(path, True), partial(self._on_exists, path))
        elif error is None or isinstance(error, NoNodeError):
            stat = value[1] if value and of_children else value
            self._found((path, of_children), stat and (stat.pzxid if of_children else stat.mzxid))

    def _on_exists(self, path: str, value: Any, error: Exception | None) -> None:
        if value:
            self._look(path, True)
        elif isinstance(error, NoNodeError):
            self._found((path, True), None)

    def _found(self, key: tuple[str, bool], zxid: int | None) -> None:
        if self._known.get(key, zxid) == zxid:
            return
        log.debug("%s has changed", key[0])
        if self.pid is not None:
            self._unsure.add(key)  # The running refresh may have read the new value.
            return
        self._known[key] = zxid
        earlier = self._due if self._first < math.inf else 0.0
        self._first = min(self._first, now())
        self._due = min(max(earlier, now() + quiet_after(key, self._known)), self._first + LONGEST)

    # -- on request -----------------------------------------------------------------------------

    def _on_connection(self, connection: socket.socket) -> None:
        self._asking.append(connection)
        self._due = now()

    def _answer(self, status: int, text: str) -> None:
        for connection in self._served:
            with connection, contextlib.suppress(OSError):
                connection.sendall(f"{status} {text}\n".encode())
        self._served = []

    # -- a refresh ------------------------------------------------------------------------------

    def run(self, ready: bool) -> None:
        """Begin a refresh that is due; finish one whose daemon is ready again."""
        if self._unconfirmed and self._stage != RENDERING and self._daemon.confirmed():
            self._unconfirmed = False
            if self._stage == SETTLING:
                self._finish(0, "")
            elif self._rollout:
                self._rollout.give_back()
        if self._stage != RENDERING and now() >= self._settles_by:
            if self._asking:
                self.start()  # A requested refresh does not wait for its turn.
            elif now() >= self._due:
                self._stage, self._due, self._first = WAITING, math.inf, math.inf
                if self._rollout:
                    self._rollout.want()
        if self._stage == WAITING and self._is_our_turn():
            self.start()
        if self._rollout:
            self._rollout.run(self._daemon.is_ready())

    def _is_our_turn(self) -> bool:
        if self._rollout is None or self._rollout.has_turn:
            return True
        if self._rollout.waiting_for:
            self.reason = f"its files are to be refreshed: {self._rollout.waiting_for}"
            self.code = REFRESH_FAILED if self._rollout.refusal else REFRESH_PENDING
        return False

    def start(self) -> None:
        """Start the agent that renders, even if the daemon is not ready: new files may make it ready."""
        self._answer(
            1, "the daemon was notified, and has not become ready since; its files are refreshed again"
        )
        if self._rollout:
            self._rollout.take()
        self._stage, self._due, self._first = RENDERING, math.inf, math.inf
        self._served, self._asking = self._asking, []
        election = dict(self._order.election) if self._order.election else None
        notified = None if self._not_notified else dict(self._order.digests)
        order = (dict(self._order.listed), self._order.started, notified, os.getpid(), election)
        try:
            self._process.start(order, self._on_end)
        except OSError as error:
            self._try_again(1, f"it can't be started: {error.strerror}")
            return
        self.reason, self.code = "its files are being refreshed", REFRESH_RUNNING

    def _on_end(self, status: int, reported: Refreshed | None) -> None:
        is_cut_short = reported is None
        # A killed refresh may have placed files, perhaps not all, without notifying the daemon.
        self._not_notified = self._not_notified or is_cut_short
        self._killed = self._killed if is_cut_short else 0
        found = reported or Refreshed({}, ending(status))
        self._adopt(found)
        if is_cut_short:
            self._try_again(max(status, 1), found.failure)
        elif found.failure:
            self._finish(max(status, 1), found.failure)
        elif found.kind and (found.written or self._not_notified or found.digests != self._order.digests):
            self._notify(found)
        elif self._unconfirmed:
            self._await_ready()
        else:
            self._finish(0, found.note or "nothing has changed in its files")

    def _try_again(self, status: int, failure: str) -> None:
        """Finish a refresh that failed for a reason outside the published data, and schedule another one."""
        delay = retry_after(self._killed)
        self._killed += 1
        text = f"{failure}; trying again {f'in {delay:g} s' if delay else 'at once'}"
        self._finish(status, text, keeps_turn=not delay)
        self._due = now() + delay

    def _adopt(self, found: Refreshed) -> None:
        """Watch everything that was read; after a failure also what was read before: any change may help."""
        before, self._known = self._known, dict(found.seen)
        if found.failure:
            self._known = {**before, **self._known}
        else:
            self._order = self._order._replace(listed=found.listed)
            self._note, self._needs_restart = found.note, found.needs_restart
            if found.facts:
                self._daemon.set_facts(found.facts)
        changed = {key for key, zxid in self._known.items() if before.get(key, -1) != zxid}
        unsure, self._unsure = self._unsure, set()
        for key in (changed | unsure) & self._known.keys():
            self._look(*key)

    def _notify(self, found: Refreshed) -> None:
        failure = self._daemon.notify(found.kind, found.signal)
        self._not_notified = bool(failure)
        self._order = self._order._replace(digests=found.digests)
        if failure:
            self._finish(1, f"{failure}; its new files are placed, and it is notified at the next refresh")
            return
        log.info(
            "refreshed %s; the daemon was notified (%s)", ", ".join(found.written) or "before", found.kind
        )
        self._daemon.confirm(now() + SETTLE)
        self._loop.call_at(now() + SETTLE, lambda: None)
        self._unconfirmed = True
        self._await_ready()

    def _await_ready(self) -> None:
        """Wait until the daemon is ready. The next refresh does not wait longer than `_settles_by`."""
        self._stage, self.code = SETTLING, REFRESH_SETTLING
        self.reason = "its files were refreshed, and its check has not passed since"
        self._settles_by = now() + LONGEST

    def _finish(self, status: int, text: str, *, keeps_turn: bool = False) -> None:
        """End the refresh; a status other than 0 means that it failed, because of `text`."""
        if status:
            log.warning("the refresh of the daemon's files failed: %s", text)
        self._stage, self._settles_by = IDLE, -math.inf
        if status:
            self.reason, self.code = f"the refresh of its files failed: {text}", REFRESH_FAILED
        else:
            self.reason, self.code = self._note, RESTART if self._needs_restart else ""
        # A daemon that was notified, and is not ready since, must not become ready unnoticed by others.
        if self._rollout and not (self._unconfirmed or keeps_turn):
            self._rollout.give_back()
        self._answer(status, text or "refreshed; the daemon was notified, and is ready")


def retry_after(killed: int) -> float:
    """Seconds until a killed refresh is tried again, after so many that were killed before it."""
    return min(FIRST_RETRY * (1 << min(killed - 1, 10)), LONGEST_RETRY) if killed else 0.0


def read_report(report: int) -> Refreshed | None:
    """The report of a refresh; None if it was killed before the report was complete."""
    with open(report, "rb") as file:
        file.seek(0)
        try:
            return Refreshed(*marshal.load(file))
        except (EOFError, TypeError, ValueError):
            return None


def ending(status: int) -> str:
    """How a refresh without a report has ended."""
    if status >= 0:
        return f"{NAME} ended with status {status}"
    return f"it was killed by signal {-status}" + (
        " (is the memory limit of the container too low?)" if -status == signal.SIGKILL else ""
    )


def quiet_after(key: tuple[str, bool], known: Collection[tuple[str, bool]]) -> float:
    """Seconds without another change before a refresh begins, after `key` has changed."""
    path, of_children = key
    is_listed = of_children or (path.rpartition("/")[0], True) in known
    return SHORT_QUIET if is_listed else QUIET
