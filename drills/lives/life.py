"""One life: a real agent with its daemon, the acts of a plan, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from drills.lives.plan import STOP_GRACE, Act, Plan
from tests.support.agents import PROGRAM
from tests.support.link import Link

ACTOR = str(Path(__file__).with_name("actor.py"))
SERVICE = "app/web"
SESSION = 2  # seconds: ZooKeeper's timeout
PATIENCE = 4.0  # seconds that an act waits for its event
APPLIED_WITHIN = 40.0  # seconds until a change has arrived; the machine is busy with other lives
# Seconds beyond `drain`, `before_stop` and `stop_grace` until the container has ended: what the daemon has
# left behind gets another grace, and the machine is busy.
SLACK = 15.0
GONE_WITHIN = 15.0
BEFORE_STOP_LIMIT = 5.0
KILL_CLIENT_AFTER = 0.15
DEFECT = 70


class Event(NamedTuple):
    at: float
    name: str
    words: tuple[str, ...] = ()


class Daemon:
    """One daemon that has begun: `line` is open in each of its processes."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self.line, self.pid = line, pid
        self.got_term = self.gone = False
        self.before_stops = 0


class Life:
    """`run` returns what was wrong, as sentences; `history` has what happened."""

    def __init__(self, plan: Plan, directory: Path, zk: KazooClient, link: Link, prefix: str) -> None:
        directory.mkdir(parents=True)
        self.plan, self.directory, self.zk, self.link = plan, directory, zk, link
        self.path = f"{prefix}/life{plan.seed}"
        self.prefix = prefix
        self.history: list[Event] = []
        self.wrong: list[str] = []
        self._value = 0
        self._read_by_daemon = ""
        self._daemons: list[Daemon] = []
        self._stopped_at = 0.0  # when it was asked to stop, and nobody can doubt it
        self._stops = 0
        self._may_end = plan.kind == "ends"
        self._hidden = False
        self._thaw_at = 0.0
        self._clients: list[subprocess.Popen[bytes]] = []
        self._buffers: dict[int, bytes] = {}
        self._lines: dict[int, socket.socket] = {}
        self._begun = time.monotonic()

    # -- the whole ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """The whole life; what was wrong in it."""
        self._publish()
        self._listen()
        self._start()
        try:
            self._act_all()
            if not self._stopped_at and not self._ended:
                self._await_quiet()
            if not self._ended:
                self._end()
            self._judge_end()
        finally:
            self._clean_up()
        return self.wrong

    @property
    def _ended(self) -> bool:
        return self.agent.poll() is not None

    def _note(self, name: str, *words: str) -> None:
        self.history.append(Event(time.monotonic() - self._begun, name, words))

    # -- what is published --------------------------------------------------------------------------

    def _publish(self) -> None:
        plan = self.plan
        service = f"{self.path}/{SERVICE}"
        dest = str(self.directory / "web.conf")
        actor = [sys.executable, "-I", "-S", ACTOR, str(self.directory / "socket")]
        file: dict[str, object] = {"dest": dest}
        if plan.check:
            file["check"] = [*actor, "check", str(plan.check), "0"]
        on_change = {
            "signal": {"signal": "HUP"},
            "command": {"command": [*actor, "told", dest]},
            "restart": {"restart": True},
        }[plan.on_change]
        daemon: dict[str, object] = {
            "command": [*actor, "daemon", dest, plan.kind],
            "files": {"web.conf": file},
            "on_change": on_change,
            "stop_grace": STOP_GRACE,
            "ready": {"notify": True},
        }
        if plan.drain:
            daemon["drain"] = plan.drain
        if plan.before_stop >= 0:
            command = [*actor, "before_stop", str(plan.before_stop), "0"]
            daemon["before_stop"] = {"command": command, "timeout": BEFORE_STOP_LIMIT}
        if plan.has_width:
            daemon["width"] = 1
        commands: dict[str, object] = {}
        if plan.elects:
            commands["position"] = {"command": ["echo", "g:1"]}
            start = daemon["command"]
            daemon["election"] = {"position": "web/position", "members": 1, "start": start}
        definition = {"name": SERVICE, "commands": commands, "service": {"daemon": daemon}}
        self.zk.ensure_path(f"{service}/variables")
        self.zk.ensure_path(f"{service}/files")
        self.zk.create(f"{service}/variables/value", b"0")
        self.zk.create(f"{service}/files/web.conf", b"{{ value }}\n")
        self.zk.set(service, json.dumps(definition).encode())

    def _change(self) -> None:
        self._value += 1
        self.zk.set(f"{self.path}/{SERVICE}/variables/value", str(self._value).encode())

    # -- the container ------------------------------------------------------------------------------

    def _start(self) -> None:
        out, err = os.pipe(), os.pipe()
        self._outputs = [str(os.fstat(end[1]).st_ino) for end in (out, err)]
        environ = {
            "PATH": os.environ["PATH"],
            "KOLLA_RUN_DIR": str(self.directory / "run"),
            "KOLLA_STATE_DIR": str(self.directory / "state"),
            "KOLLA_TERMINATION_LOG": str(self.directory / "termination-log"),
            "KOLLA_ZK_HOSTS": self.link.hosts,
            "KOLLA_SYSTEM_PREFIX": self.prefix,
            "KOLLA_APP_ID": f"/life{self.plan.seed}/{SERVICE}",
            "KOLLA_HOSTNAME": "h1",
            "KOLLA_ZK_SESSION_TIMEOUT": str(SESSION),
            "KOLLA_START_MODE": "supervise" if self.plan.supervised else "exec",
        }
        self._environ = environ
        self.agent = subprocess.Popen(
            [self._interpreter(), str(PROGRAM)],
            env=environ,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=out[1],
            stderr=err[1],
            start_new_session=True,
        )
        self._log = (self.directory / "log").open("wb")
        for read, write in (out, err):
            os.close(write)
            os.set_blocking(read, False)
            self._buffers[read] = b""
            self._poller.register(read, select.POLLIN)

    def _interpreter(self) -> str:
        """An interpreter of this life alone, which can be hidden: a virtual environment of links."""
        if not self.plan.elects:
            return sys.executable
        place = self.directory / "python"
        (place / "bin").mkdir(parents=True)
        shutil.copy(Path(sys.prefix) / "pyvenv.cfg", place)
        (place / "lib").symlink_to(Path(sys.prefix) / "lib")
        (place / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        return str(place / "bin" / "python")

    # -- what happens -------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.directory / "socket"))
        self._listener.listen()
        self._listener.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._listener, select.POLLIN)

    def _pump(self, until: float) -> None:
        """Handle the next events, at most until that instant."""
        if self._thaw_at and time.monotonic() >= self._thaw_at:
            self._thaw()
        until = min(until, self._thaw_at or until)
        for fd, _ in self._poller.poll(max(0.0, min(until - time.monotonic(), 0.25)) * 1000):
            if fd == self._listener.fileno():
                line, _ = self._listener.accept()
                line.setblocking(False)
                self._lines[line.fileno()] = line
                self._buffers[line.fileno()] = b""
                self._poller.register(line, select.POLLIN)
            else:
                self._read(fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if fd not in self._lines:
            self._log.write(data)
        *lines, self._buffers[fd] = (self._buffers[fd] + data).split(b"\n")
        for text in lines:
            if fd in self._lines:
                self._hear(self._lines[fd], *text.decode().split())
            else:
                self._hear_log(text.decode("utf-8", "replace"))
        if not data:
            self._poller.unregister(fd)
            for daemon in self._daemons:
                if daemon.line.fileno() == fd:
                    daemon.gone = True
                    self._note("gone", str(daemon.pid))
            if fd in self._lines:
                self._lines.pop(fd).close()
            else:
                os.close(fd)
            del self._buffers[fd]

    def _hear(self, line: socket.socket, name: str, *words: str) -> None:
        if name == "begin":
            self._note(name, *words)
            self._begin(Daemon(line, int(words[0])), words[1], list(words[2:]))
        elif name == "read":
            self._note(name, *words)
            self._read_by_daemon = words[0]
        elif name == "term":
            self._note(name, *words)
            for daemon in self._daemons:
                if daemon.pid == int(words[0]):
                    if daemon.got_term and self._stops < 2:
                        self.wrong.append("a daemon got TERM twice")
                    daemon.got_term = True
        else:
            self._note(f"{name} {words[0]}")
            if name == "before_stop" and words[0] == "begun" and self._daemons:
                self._daemons[-1].before_stops += 1
                if self._daemons[-1].before_stops > 1:
                    self.wrong.append("before_stop ran twice for one daemon")

    def _begin(self, daemon: Daemon, content: str, output: list[str]) -> None:
        if any(not other.gone and _is_open(other.line) for other in self._daemons):
            self.wrong.append("two daemons at once")
        if output != self._outputs:
            self.wrong.append("a daemon was started with other outputs than the first one's")
        self._daemons.append(daemon)
        self._read_by_daemon = content

    def _hear_log(self, line: str) -> None:
        for word, name in (
            ("draining for", "draining"),
            ("some of its processes", "some of its processes"),
            ("a defect of", "defect"),
        ):
            if word in line:
                self._note(name)

    # -- acts ---------------------------------------------------------------------------------------

    def _act_all(self) -> None:
        for act in self.plan.acts:
            self._await_event(act)
            if self._ended:
                return
            self._note("act", act.what)
            self._act(act)

    def _await_event(self, act: Act) -> None:
        seen, deadline = len(self.history), time.monotonic() + PATIENCE
        if act.after == "begin" and self._daemons:
            deadline = 0.0
        elif act.after == "begin" and not self._daemons:
            deadline = time.monotonic() + APPLIED_WITHIN
        while act.after and time.monotonic() < deadline and not self._ended:
            if any(event.name == act.after for event in self.history[seen:]):
                break
            self._pump(deadline)
        until = time.monotonic() + act.delay
        while time.monotonic() < until and not self._ended:
            self._pump(until)

    def _act(self, act: Act) -> None:
        what = act.what
        if what == "change":
            self._change()
        elif what == "changes":
            for _ in range(3):
                self._change()
                self._wait(0.2)
        elif what in ("silence", "expire"):
            if not self._thaw_at:
                self.link.freeze()
                self._thaw_at = time.monotonic() + (act.seconds if what == "silence" else SESSION + 1.5)
        elif what == "kill refresher":
            for pid, words in self._processes():
                if b"kolla_mesos_start refresh" in words:
                    _kill(pid, signal.SIGKILL)
        elif what == "hide interpreter":
            with contextlib.suppress(FileNotFoundError):
                (self.directory / "python" / "bin" / "python").unlink()
                self._hidden = self._may_end = True
        elif what == "kill daemon":
            self._may_end = True
            if self._daemons:
                _kill(self._daemons[-1].pid, signal.SIGKILL)
        elif what == "stop signal":
            self._asked()
            self.agent.send_signal(signal.SIGTERM)
        elif what == "stop":
            until = time.monotonic() + PATIENCE
            while not (self.directory / "run" / "stop").exists() and time.monotonic() < until:
                self._wait(0.01)
            self._asked()
            self._clients.append(self._client("stop"))
        elif what == "refresh":
            self._clients.append(self._client("refresh"))
        elif what == "killed stop":
            self._stops += 1
            self._may_end = True
            client = self._client("stop")
            self._wait(KILL_CLIENT_AFTER)
            client.kill()
            client.wait()

    def _asked(self) -> None:
        self._stopped_at = self._stopped_at or time.monotonic()
        self._stops += 1
        self._may_end = True

    def _client(self, verb: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), verb],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._pump(until)

    def _thaw(self) -> None:
        self._thaw_at = 0.0
        self.link.thaw()

    # -- what must hold -----------------------------------------------------------------------------

    def _await_quiet(self) -> None:
        """Wait until what was last published has arrived, unless the container ends as it may."""
        deadline = time.monotonic() + APPLIED_WITHIN + (self._thaw_at and self._thaw_at - time.monotonic())
        want = str(self._value)
        while not self._ended and not self._hidden:
            file = self._file()
            if file == want == self._read_by_daemon:
                return
            if time.monotonic() > deadline:
                self.wrong.append(
                    f"{want} was published, the file has {file}, the daemon has {self._read_by_daemon}"
                )
                return
            self._pump(deadline)
        if self._ended and not self._may_end:
            self.wrong.append("the container ended by itself")

    def _file(self) -> str:
        try:
            return (self.directory / "web.conf").read_text().strip()
        except FileNotFoundError:
            return ""

    @property
    def _limit(self) -> float:
        """Seconds from the stop signal to the end of the container."""
        plan = self.plan
        return plan.drain + (BEFORE_STOP_LIMIT if plan.before_stop >= 0 else 0.0) + STOP_GRACE + SLACK

    def _end(self) -> None:
        if not self._stopped_at:
            self._note("act", "the last stop signal")
            self._asked()
            self.agent.send_signal(signal.SIGTERM)
        # In exec mode nobody but its launcher kills a daemon that ignores TERM.
        stubborn = not self.plan.supervised and self.plan.kind == "stubborn"
        deadline = self._stopped_at + self._limit
        while not self._ended and time.monotonic() < deadline:
            self._pump(deadline)
        if not self._ended:
            if not stubborn:
                self.wrong.append(f"not ended {self._limit:g} s after it was asked to")
            self.agent.kill()

    def _judge_end(self) -> None:
        self.agent.wait()
        self._wait(0.05)
        status = self.agent.returncode
        self._note("ended", str(status))
        if status == DEFECT or any(event.name == "defect" for event in self.history):
            self.wrong.append("a defect of the agent")
        if self._thaw_at:
            self._thaw()
        for client in self._clients:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(SLACK)
            if client.poll() is None:
                self.wrong.append("a client got no answer")
                client.kill()
        for daemon in self._daemons if self.plan.supervised and self._stops < 2 else ():
            wanted = int(self.plan.before_stop >= 0)
            if daemon.got_term and daemon.before_stops != wanted:
                self.wrong.append(f"before_stop ran {daemon.before_stops} times before a daemon was stopped")
        killed = status == -signal.SIGKILL
        deadline = time.monotonic() + GONE_WITHIN
        while self._left() and not killed and time.monotonic() < deadline:
            self._wait(0.1)
        if not killed and self._left():
            self.wrong.append(f"left behind: {self._left()}")

    def _left(self) -> list[str]:
        """What is left of it: processes, and its instance in ZooKeeper."""
        found = [f"process {pid}" for pid, _ in self._processes()]
        with contextlib.suppress(NoNodeError):
            found += self.zk.get_children(f"{self.path}/status/global/web/daemon/ready")
        return found

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """The processes that work in its directory, but for clients of this drill."""
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/cwd") == str(self.directory):
                        words = Path(f"/proc/{entry}/cmdline").read_bytes()
                        if words:  # not a zombie
                            yield int(entry), words

    def _clean_up(self) -> None:
        if self._thaw_at:
            self._thaw()
        for _ in range(3):
            for pid, _words in list(self._processes()):
                _kill(pid, signal.SIGKILL)
        self.agent.wait()
        for client in self._clients:
            client.kill()
            client.wait()
        for line in self._lines.values():
            line.close()
        for fd in self._buffers.keys() - self._lines.keys():
            os.close(fd)
        self._listener.close()
        self._log.close()
        self.zk.delete(self.path, recursive=True)


def _is_open(line: socket.socket) -> bool:
    """Whether a process still holds the other end."""
    try:
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _kill(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
