"""Drains a daemon before it is stopped, so that no client loses a request.

    withdraw       remove the instance from ZooKeeper; it is not registered again
    wait           until all containers whose files list the instance have refreshed, or the time is over
    before_stop    run the command of the definition, or kill it at its limit

A container whose files are refreshed publishes which lists of instances it was rendered from, and the zxid of
each list (`lists` in its znode below `.containers`). Nothing else is asked, and only while the daemon drains.
Only daemons with `drain` or `before_stop` import this module.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
from functools import partial

from kolla_mesos_start.commands import guard
from kolla_mesos_start.daemon.request_socket import RequestSocket
from kolla_mesos_start.daemon.stop_client import DRAIN, ENDED, SOCKET, STOP
from kolla_mesos_start.definition.forms import GLOBAL
from kolla_mesos_start.errors import cause
from kolla_mesos_start.log import Logger
from kolla_mesos_start.loop import now
from kolla_mesos_start.processes import pidfd_open
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.report import REFRESH_FAILED, REFRESH_RUNNING, REFRESH_SETTLING
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.connect import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kolla_mesos_start.daemon.handoff import Handoff, Stopping
    from kolla_mesos_start.loop import Interest, Loop
    from kolla_mesos_start.tree.presence import Presence
    from kolla_mesos_start.zookeeper.connect import Steps
    from kolla_mesos_start.zookeeper.session import Session

log = Logger(__name__)

WITHDRAW_TIMEOUT = 1.0  # seconds without `drain`; then the stop goes on
KILL_TIMEOUT = 500  # milliseconds; a process that waits for a disk can't be killed
MOST_NAMED, LONGEST_NAME = 3, 64  # containers in a message, and characters of a name
# A container that is doing one of these does not use its new files yet.
BUSY = (REFRESH_RUNNING, REFRESH_SETTLING, REFRESH_FAILED)

IDLE, WITHDRAWING, WAITING, RUNNING, OVER = "idle", "withdrawing", "waiting", "running", "over"


# -- what others publish ------------------------------------------------------------------------------


class Follower(NamedTuple):
    """A container that lists the instance. `lists`: the zxid of each list that its files were rendered from.

    `is_busy`: it does not use these files yet.
    """

    name: str
    lists: Mapping[str, int]
    is_busy: bool


def follower(role: str, data: bytes, ours: Sequence[str]) -> Follower | None:
    """The container with this znode, if it lists one of `ours`; untrusted data lists nothing."""
    if b'"lists"' not in data:
        return None
    try:
        facts = json.loads(data)
        lists = {name: int(facts["lists"][name], 16) for name in ours if name in facts["lists"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not lists or facts.get("follows") is not True:
        return None
    # A restarted daemon has its new files once it is started again.
    is_stopping = facts.get("state") == "unready" and not facts.get("code")
    is_busy = facts.get("code") in BUSY or is_stopping
    return Follower(f"{_printable(role)} on {_printable(facts.get('host'))}", lists, is_busy)


def _printable(value: object) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) and value.isprintable() else "?"


def behind(followers: Sequence[Follower], changed: Mapping[str, int]) -> list[str]:
    """The names of the containers that may still use the instance; `changed`: when it left each list."""
    return sorted(
        each.name
        for each in followers
        if each.is_busy or any(zxid < changed.get(name, 1 << 63) for name, zxid in each.lists.items())
    )


def named(names: Sequence[str]) -> str:
    """Some of the names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


# -- the command --------------------------------------------------------------------------------------


class BeforeStopCommand:
    """Runs the command. Its descendants in its process group end with it."""

    def __init__(self, argv: Sequence[str], handoff: Handoff) -> None:
        self.pid: int | None = None
        self._argv, self._env, self._ids = argv, handoff.check_env, handoff.check_ids
        self._has_stdout = handoff.supervised

    def __call__(self) -> Steps[str]:
        """Why it failed, or empty text."""
        if not self._has_stdout:
            os.dup2(2, 1)  # The registrar has only the container's stderr.
        pid = self.pid = guard.start(self._argv, self._env, self._ids)
        pidfd = -1
        try:
            pidfd = pidfd_open(pid)
            yield pidfd, select.POLLIN
        finally:
            # Before the leader is reaped, because its pid can't be reused until then.
            with contextlib.suppress(PermissionError):  # It has changed its user.
                os.killpg(pid, signal.SIGKILL)
            if pidfd >= 0:
                killed = select.poll()
                killed.register(pidfd, select.POLLIN)
                killed.poll(KILL_TIMEOUT)
                os.close(pidfd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, os.WNOHANG)[1])
            self.pid = None
        if status < 0:
            return f"killed by signal {-status}"
        return f"exit status {status}" if status else ""


# -- the whole stop -----------------------------------------------------------------------------------


class Drain:
    """Drains one daemon; a source of the loop.

    `reason`: what it is doing, empty until it begins. `is_over`: the daemon can be stopped. `failure`: why
    clients may have lost requests.
    """

    def __init__(
        self,
        handoff: Handoff,
        stopping: Stopping,
        session: Session,
        loop: Loop,
        presence: Presence,
        on_begin: Callable[[], object],
        terminate: Callable[[], object],
    ) -> None:
        """`on_begin` deregisters the daemon, `terminate` sends its stop signal: for a client's request."""
        self.reason = self.failure = ""
        self._stopping, self._session, self._loop, self._presence = stopping, session, loop, presence
        self._on_begin, self._terminate = on_begin, terminate
        self._command = BeforeStopCommand(stopping.argv, handoff)
        self._task: Task | None = None
        self._stage = IDLE
        self._began, self._until = 0.0, math.inf
        self._clients: list[socket.socket] = []  # that have sent a request
        self._asked_to_stop = False
        party, self._member = presence.member
        self._service, role = handoff.service, handoff.service.rpartition("/")[2]
        self._deployment = party[: -len(f"/{self._service}/.party")]
        self._party, self._daemon = party, f"{role}/daemon"
        self._round = self._open = 0
        self._changed: dict[str, int] = {}
        self._followers: dict[str, tuple[str, Follower]] = {}  # by path, with the role
        self._unreadable = ""
        self._looks_at_members = False
        self._socket = RequestSocket(f"{handoff.run_dir}/{SOCKET}", loop, self._on_connection)
        session.on_connected(self._look)
        session.on_watch(self._fired)

    # -- for the loop and its owner -------------------------------------------------------------

    @property
    def interest(self) -> Interest:
        """The descriptor of the command."""
        return self._task.interest if self._task else None

    @property
    def deadline(self) -> float:
        """When the wait or the command must end."""
        return self._task.deadline if self._task else self._until

    @property
    def pid(self) -> int | None:
        """The pid of the command, until its exit status is read."""
        return self._command.pid

    @property
    def is_over(self) -> bool:
        return self._stage == OVER

    def begin(self) -> None:
        """Begin, unless it has begun. The daemon has been deregistered."""
        if self._stage != IDLE:
            return
        self._stage, self._began = WITHDRAWING, now()
        self._until = now() + (self._stopping.drain or WITHDRAW_TIMEOUT)
        self._loop.call_at(now(), lambda: None)  # It may not be registered at all.
        self.reason = "is being deregistered"
        if self._stopping.drain:
            log.info("draining: waiting up to %g s for the services that list it", self._stopping.drain)

    def cut_short(self) -> None:
        """Skip the rest."""
        if self._stage not in (IDLE, OVER):
            log.warning("stopping at once: a second signal ended the draining")
            self.failure = "a second signal ended the draining"
            self._end_command()
            self._finish()

    def reset(self) -> None:
        """The daemon was started again, and may be registered."""
        self._stage, self._until, self.reason, self.failure = IDLE, math.inf, "", ""
        self._asked_to_stop = False
        self._forget()
        self._presence.show_member(True)

    def close(self) -> None:
        """The daemon has ended."""
        self._end_command()
        self._socket.close()
        for connection in self._clients:
            with contextlib.suppress(OSError):  # The client has ended.
                connection.send(ENDED)
            self._drop(connection)

    def run(self, ready: bool) -> None:
        """Go on as far as possible."""
        if self._stage == WITHDRAWING:
            self._withdraw()
        if self._stage == WAITING:
            self._wait()
        if self._task:
            self._task.run(ready)
            if self._task.ended:
                self._on_command_end(self._task)

    # -- the stages -----------------------------------------------------------------------------

    def _withdraw(self) -> None:
        if self._session.connected and self._presence.withdrawn:
            if not self._stopping.drain:
                self._run_command()
                return
            self._stage = WAITING
            self._look()
        elif not self._stopping.drain and not self._session.connected:
            self._run_command()  # It can't be deregistered in time.
        elif now() >= self._until:
            self._give_up("ZooKeeper can't be reached")
        elif not self._session.connected:
            self.reason = f"no connection to ZooKeeper{self._limit}"

    def _wait(self) -> None:
        if not self._session.connected:
            self.reason = f"no connection to ZooKeeper{self._limit}"
        elif not self._open:
            self._leave_members()
            left = self._left
            if not left:
                names = sorted(each.name for _, each in self._followers.values())
                refreshed = f": refreshed: {named(names)}" if names else ": no service lists it"
                log.info("drained in %.1f s%s", now() - self._began, refreshed)
                self._run_command()
                return
            self.reason = f"waits for {left}{self._limit}"
        if now() >= self._until:
            if not self._session.connected:
                self._give_up("ZooKeeper can't be reached")
            else:
                self._give_up(f"not refreshed: {self._left or 'unknown, ZooKeeper has not answered'}")

    @property
    def _limit(self) -> str:
        return f" (limit {self._stopping.drain or WITHDRAW_TIMEOUT:g} s)"

    @property
    def _left(self) -> str:
        """The containers that still have to refresh."""
        names = behind([each for _, each in self._followers.values()], self._changed)
        return " and ".join(filter(None, [f"{named(names)} to refresh" if names else "", self._unreadable]))

    def _leave_members(self) -> None:
        """Remove the container's presence, if that is what a file lists."""
        if any(self._service in each.lists for _, each in self._followers.values()):
            self._presence.show_member(False)
            if self._presence.member_withdrawn and not self._looks_at_members:
                self._looks_at_members = True
                self._ask(wire.Exists(self._party, False), partial(self._on_changed, self._service))

    def _give_up(self, why: str) -> None:
        if self._stopping.drain:
            self.failure = f"draining ended after {self._stopping.drain:g} s, its limit: {why}"
            log.warning("%s", self.failure)
        self._run_command()

    def _run_command(self) -> None:
        self._forget()
        self._until = math.inf
        if not self._stopping.argv:
            self._finish()
            return
        self._stage = RUNNING
        self.reason = f"before_stop runs (limit {self._stopping.timeout:g} s)"
        log.info("running before_stop")
        self._task = Task(self._command(), now() + self._stopping.timeout)
        self._task.run(True)
        if self._task.ended:
            self._on_command_end(self._task)

    def _on_command_end(self, task: Task) -> None:
        self._task = None
        if isinstance(task.error, TimeoutError):
            why = f"not finished after {self._stopping.timeout:g} s: killed"
        else:
            why = cause(task.error) if task.error else task.result
        if why:
            self.failure = f"before_stop failed: {why}"
            log.warning("%s; stopping all the same", self.failure)
        else:
            log.info("before_stop has succeeded")
        self._finish()

    def _end_command(self) -> None:
        if self._task:
            self._task.close()
            self._task = None

    def _finish(self) -> None:
        self._forget()
        self._stage, self._until = OVER, math.inf
        self.reason = "drained: it can be stopped"
        for connection in self._clients:
            self._answer(connection)
        if self._asked_to_stop:
            self._terminate()

    # -- who lists it ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop what is known, and all answers that have not come yet."""
        self._round += 1
        self._open, self._unreadable, self._looks_at_members = 0, "", False
        self._changed, self._followers = {}, {}

    def _look(self) -> None:
        """Read everything; after an outage again."""
        if self._stage != WAITING:
            return
        self._forget()
        roles = f"{self._deployment}/status/{GLOBAL}"
        self._ask(
            wire.Exists(f"{roles}/{self._daemon}/ready", False), partial(self._on_changed, self._daemon)
        )
        self._ask(wire.GetChildren(roles, False), partial(self._on_roles, roles))

    def _on_changed(self, name: str, stat: Any) -> None:
        """Without the instance's own entry: it is gone."""
        self._changed[name] = stat.pzxid if stat else 0

    def _on_roles(self, path: str, roles: Sequence[str] | None) -> None:
        for role in roles or ():
            self._ask(wire.GetData(f"{path}/{role}", False), partial(self._on_owner, role))

    def _on_owner(self, role: str, value: Any) -> None:
        service = value[0].decode("utf-8", "replace") if value else ""
        if service.rpartition("/")[2] == role:
            path = f"{self._deployment}/{service}/.containers"
            self._ask(wire.GetChildren(path, False), partial(self._on_containers, role, path))

    def _on_containers(self, role: str, path: str, names: Sequence[str] | None) -> None:
        for name in names or ():
            if name != self._member:
                at = f"{path}/{name}"
                self._ask(wire.GetData(at, False), partial(self._on_container, role, at))

    def _on_container(self, role: str, path: str, value: Any) -> None:
        found = follower(role, value[0], (self._daemon, self._service)) if value else None
        if found:
            # Only now with a watch: few containers list it.
            self._followers[path] = role, found
            self._read_again(path)

    def _read_again(self, path: str) -> None:
        role, _ = self._followers[path]
        self._ask(wire.GetData(path, True), partial(self._on_follower, role, path))

    def _on_follower(self, role: str, path: str, value: Any) -> None:
        found = follower(role, value[0], (self._daemon, self._service)) if value else None
        if found:
            self._followers[path] = role, found
        else:
            self._followers.pop(path, None)  # It is gone, or does not list it any more.

    def _fired(self, path: str) -> None:
        if path in self._followers:
            self._read_again(path)

    def _ask(self, operation: Any, on_answer: Callable[[Any], object]) -> None:
        """Send a request; the answer is None if the znode does not exist. After an outage there is none."""
        asked = self._round

        def on_reply(value: Any, error: Exception | None) -> None:
            if asked != self._round or isinstance(error, wire.OUTAGE):
                return
            self._open -= 1
            if error and not isinstance(error, wire.NoNodeError):
                self._unreadable = f"{operation.path}, which can't be read ({type(error).__name__})"
                return
            on_answer(None if error else value)

        self._open += 1
        self._session.request(operation, on_reply)

    # -- clients: `kolla_mesos_start stop` --------------------------------------------------------

    def _on_connection(self, connection: socket.socket) -> None:
        self._loop.listen(connection.fileno(), partial(self._listen, connection))

    def _answer(self, connection: socket.socket) -> None:
        text = self.failure or "drained"
        answer = f"{1 if self.failure else 0} {self._stopping.stop_grace:g} {text}\n"
        with contextlib.suppress(OSError):
            connection.send(answer.encode())

    def _listen(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(16)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if request in (DRAIN, STOP):
            self._clients.append(connection)
            self._asked_to_stop = self._asked_to_stop or request == STOP
            if self._stage == IDLE:
                self._on_begin()
                self.begin()
            elif self.is_over:
                self._answer(connection)
                if request == STOP:
                    self._terminate()
        else:
            if connection in self._clients:
                self._clients.remove(connection)
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._loop.ignore(connection.fileno())
        connection.close()
