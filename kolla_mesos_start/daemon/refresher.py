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

from kolla_mesos_start.daemon.control import REFRESH_SOCKET, RequestSocket
from kolla_mesos_start.daemon.handoff import Refreshed, Refreshing, python
from kolla_mesos_start.errors import FOR_NOW, AccessDenied
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import Child, memfd
from kolla_mesos_start.report import (
    REFRESH_FAILED,
    REFRESH_PENDING,
    REFRESH_RUNNING,
    REFRESH_SETTLING,
    RESTART,
)
from kolla_mesos_start.zookeeper.session import perform
from kolla_mesos_start.zookeeper.wire import Exists, GetChildren2, NoAuthError, NoNodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Generator
    from typing import TypeVar

    from kolla_mesos_start.daemon.registrar import Registrar
    from kolla_mesos_start.daemon.rollout import Rollout
    from kolla_mesos_start.loop import Interest
    from kolla_mesos_start.zookeeper.client import Seen
    from kolla_mesos_start.zookeeper.session import Requests

    T = TypeVar("T")
    Story = Generator[Interest, None, T]

log = Logger(__name__)

# Seconds without a change until a refresh begins. A publication writes many znodes. Instances and members
# change one by one; the short time is for several at once. LONGEST limits the delay.
QUIET, SHORT_QUIET, LONGEST = 1.0, 0.2, 10.0
# Seconds until a refresh that was killed again is tried again; after the first time, that is at once.
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
SETTLE = 1.0  # seconds after which a notified daemon must be ready
NAME = "kolla_mesos_start refresh"
BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from kolla_mesos_start.agent import refresh; refresh(int(sys.argv[1]), int(sys.argv[2]))"
)


class Refresher:
    """Refreshes one daemon; a source of the loop.

    `reason` describes the last or the next refresh; `code`: see `report`. `child`: the agent that renders.
    With a `rollout`, other instances may be first.
    """

    def __init__(
        self, registrar: Registrar, order: Refreshing, run_dir: str, rollout: Rollout | None = None
    ) -> None:
        self.reason = self.code = ""
        self.child: Child | None = None
        self.interest: Interest = None
        self.deadline = math.inf
        self._registrar, self._session, self._loop = registrar, registrar.session, registrar.loop
        self._order, self._rollout = order, rollout
        self._known: Seen = dict(order.seen)
        self._unsure: set[tuple[str, bool]] = set()  # changed while a refresh runs
        self._first = self._due = math.inf  # when something has first changed, and when to refresh
        self._settles_by = -math.inf  # until when the next refresh waits for a notified daemon
        self._unconfirmed = False  # The daemon was notified, and no check has passed since.
        self._not_notified = False  # The daemon may have new files without having been notified.
        self._note, self._needs_restart = "", False
        self._looks_again = False  # whether that is due after a denial
        self._denied = False  # whether the last refresh was; another connection may have another identity
        self._asking: list[socket.socket] = []  # clients that ask for a refresh
        self._served: list[socket.socket] = []  # clients that have asked for the running one
        self._socket = RequestSocket(f"{run_dir}/{REFRESH_SOCKET}", self._loop, self._on_connection)
        self._story = self._live()
        self._session.on_connected(self._look_at_all)
        self._session.on_watch(self._fired)

    def run(self, ready: bool) -> None:
        """Go on as far as possible."""
        if ready or not self.interest:
            self.interest = next(self._story)
        if self._rollout:
            self._rollout.run(self._registrar.readiness.ready)

    def close(self) -> None:
        """Stop: the daemon has ended."""
        self._socket.close()
        self._story.close()
        for connection in (*self._asking, *self._served):
            connection.close()

    # -- what changes ---------------------------------------------------------------------------

    def _fired(self, path: str) -> None:
        for of_children in (False, True):
            if (path, of_children) in self._known:
                perform(self._session, self._look(path, of_children))

    def _look_at_all(self) -> None:
        self._looks_again = False
        if self._denied:
            self._denied, self._due = False, now()
        for key in self._known:
            perform(self._session, self._look(*key))

    def _look(self, path: str, of_children: bool) -> Requests:
        """Read when it was last changed, and set a watch."""
        try:
            if of_children:
                _, stat = yield GetChildren2(path, True)
                self._found((path, True), stat.pzxid)
            else:
                stat = yield Exists(path, True)
                self._found((path, False), stat.mzxid)
        except NoAuthError:
            # There is no watch now, and no event if the right comes back: a credential is being replaced.
            if not self._looks_again:
                self._looks_again = True
                self._loop.call_at(now() + LONGEST_RETRY, self._look_at_all)
            return
        except NoNodeError:
            if of_children:
                with contextlib.suppress(NoNodeError):
                    yield Exists(path, True)  # Only this sets a watch on a missing znode.
                    yield from self._look(path, True)  # It exists by now.
                    return
            self._found((path, of_children), None)

    def _found(self, key: tuple[str, bool], zxid: int | None) -> None:
        if self._known.get(key, zxid) == zxid:
            return
        log.debug("%s has changed", key[0])
        if self.child:
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

    def _live(self) -> Story[None]:
        """Refresh again and again. A `yield` waits for the next event, or for a descriptor."""
        killed = 0  # refreshes in a row
        while True:
            yield from self._until_due()
            yield from self._until_our_turn()
            # Even if the daemon is not ready: new files may make it ready.
            self.reason, self.code = "its files are being refreshed", REFRESH_RUNNING
            self._served, self._asking = self._asking, []
            found, status, failure = yield from self._render()
            self.child = None
            self._adopt(found or Refreshed({}, failure))
            if found is None or status == FOR_NOW:
                delay = retry_after(killed + (found is not None))
                killed += 1
                failure = found.failure if found else failure
                failure = f"{failure}; trying again {f'in {delay:g} s' if delay else 'at once'}"
                self._finish(max(status, 1), failure, keeps_turn=not delay)
                self._due = min(self._due, now() + delay)
                continue
            killed = 0
            if found.failure:
                self._denied = status == AccessDenied.status
                if self._denied:
                    self._due = min(self._due, now() + LONGEST_RETRY)
                self._finish(max(status, 1), found.failure)
            elif found.kind and (found.written or self._not_notified or found.digests != self._order.digests):
                self._notify(found)
            elif self._unconfirmed:
                self._await_ready()
            else:
                self._finish(0, found.note or "nothing has changed in its files")

    def _until_due(self) -> Story[None]:
        """Wait for a change or a client, and for a daemon that was notified, but not longer than LONGEST."""
        while True:
            if self._unconfirmed and self._registrar.readiness.confirmed:
                self._unconfirmed = False
                if self._settles_by > -math.inf:
                    self._finish(0, "")
                elif self._rollout:
                    self._rollout.give_back()
            due = -math.inf if self._asking else self._due  # A client does not wait for other changes.
            self.deadline = max(due, self._settles_by)
            if now() >= self.deadline:
                break
            yield None
        self._answer(
            1, "the daemon was notified, and has not become ready since; its files are refreshed again"
        )

    def _until_our_turn(self) -> Story[None]:
        rollout = self._rollout
        while rollout and not (self._asking or rollout.has_turn):  # A requested refresh does not wait.
            if now() >= self._due:
                rollout.want()  # Again after each change, in case that ZooKeeper has refused it.
                self._due = self._first = math.inf
            if rollout.waiting_for:
                self.reason = f"its files are to be refreshed: {rollout.waiting_for}"
                self.code = REFRESH_FAILED if rollout.refusal else REFRESH_PENDING
            self.deadline = self._due
            yield None
        if rollout:
            rollout.take()
        self._due = self._first = self.deadline = math.inf

    def _render(self) -> Story[tuple[Refreshed | None, int, str]]:
        """Run the agent that renders: its report, its exit status, and why there is no report."""
        order, fds = self._order, list[int]()
        election = dict(order.election) if order.election else None
        notified = None if self._not_notified else dict(order.digests)
        try:
            for name in ("order", "report"):
                fds.append(memfd(name))
            ordered = (dict(order.listed), order.started, notified, os.getpid(), election)
            os.write(fds[0], marshal.dumps(ordered))
            os.lseek(fds[0], 0, os.SEEK_SET)
            argv = python(BOOT, *map(str, fds), NAME)
            self.child = child = Child(argv, order.environ, output=2, inherited=fds).started()
            yield from child.run()
            found = read_report(fds[1])
        except OSError as error:
            return None, 1, f"it can't be started: {error.strerror}"
        finally:
            for fd in fds:
                os.close(fd)
        status = os.waitstatus_to_exitcode(child.status or 0)
        # A killed refresh may have placed files, perhaps not all, without notifying the daemon.
        self._not_notified = self._not_notified or found is None
        return found, status, ending(status)

    def _adopt(self, found: Refreshed) -> None:
        """Watch everything that was read; after a failure also what was read before: any change may help."""
        before, self._known = self._known, dict(found.seen)
        if found.failure:
            self._known = {**before, **self._known}
        else:
            self._order = self._order._replace(listed=found.listed)
            self._note, self._needs_restart = found.note, found.needs_restart
            if found.constants:
                self._registrar.reporter.report.renew(found.constants)
        changed = {key for key, zxid in self._known.items() if before.get(key, -1) != zxid}
        unsure, self._unsure = self._unsure, set()
        for key in (changed | unsure) & self._known.keys():
            perform(self._session, self._look(*key))

    def _notify(self, found: Refreshed) -> None:
        failure = self._registrar.notify(found.kind, found.signal)
        self._not_notified = bool(failure)
        self._order = self._order._replace(digests=found.digests)
        if failure:
            self._finish(1, f"{failure}; its new files are placed, and it is notified at the next refresh")
            return
        log.info(
            "refreshed %s; the daemon was notified (%s)", ", ".join(found.written) or "before", found.kind
        )
        self._registrar.readiness.confirm(now() + SETTLE)
        self._loop.call_at(now() + SETTLE, lambda: None)
        self._unconfirmed = True
        self._await_ready()

    def _await_ready(self) -> None:
        self.reason = "its files were refreshed, and its check has not passed since"
        self.code, self._settles_by = REFRESH_SETTLING, now() + LONGEST

    def _finish(self, status: int, text: str, *, keeps_turn: bool = False) -> None:
        """End the refresh; a status other than 0 means that it failed, because of `text`."""
        self._settles_by = -math.inf
        if status:
            log.warning("the refresh of the daemon's files failed: %s", text)
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
    with open(report, "rb", closefd=False) as file:
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
