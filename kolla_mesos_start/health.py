"""The health of this container: the state that the agent writes, and the probe (`health`) that reads it.

The probe runs every few seconds, so this module imports only what a bare Python has already loaded, and
`fcntl`: not `typing`, `json`, `re` or `logging`, and never ZooKeeper.

    <run_dir>/
      lock      held by the agent, later by the registrar: one of them is running
      state     "<stage> <text>"; a second line says when the daemon was started, until it has been ready
      private/  what no other user may touch
        gate      held (flock) while an agent takes the lock

The daemon's user may be allowed to write in the directory: what else stands in the way of a file is removed,
and a lock of another user is nobody's.

Other users may read lock and state, for their probes; but any process that can read a file can flock it.
Therefore the lock is a write lock of fcntl(2) (F_OFD_SETLK; it belongs to the open file, like flock's), which
needs write permission. A reader's read lock would still block the next agent, so each agent creates a new
file, and locks it before others may open it. Others can never open the gate.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time

TYPE_CHECKING = False  # `typing` alone would double the time of a probe.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from kolla_mesos_start.errors import AgentError

    Stage = Literal[
        "waiting", "bootstrapping", "starting", "ready", "unready", "draining", "finished", "ended"
    ]

# The results of the two probes in each stage while the lock is held: (alive, ready).
# A daemon that runs is alive, ready or not: its check may ask for a database that is down.
VERDICTS: Mapping[str, tuple[bool, bool]] = {
    "waiting": (True, False),
    "bootstrapping": (True, False),
    "starting": (True, False),
    "ready": (True, True),
    "unready": (True, False),
    "draining": (True, False),
    "finished": (True, True),
    "ended": (False, False),
}
# In these stages the registrar holds the lock: if the lock is free, the registrar has died.
DAEMON_STAGES = ("starting", "ready", "unready", "draining")

USAGE = "usage: kolla_mesos_start health [--ready | --started SECONDS]"
# seconds; the registrar of the previous run needs a moment to notice that its daemon has ended
LOCK_TIMEOUT = 5.0
LOCK_RETRY_INTERVAL = 0.05  # seconds; flock itself can't wait with a time limit
RUN_DIR_LIMIT = 80  # bytes: the whole path of a socket in it may have 107
STATE_LIMIT = 16384  # bytes of a line of the state
NEVER = float("inf")
PRIVATE = "private"
TRIES = 10  # to make the private directory, while others remove it
# For files in directories where others may write too: follow no link, and do not block on a FIFO.
O_CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def writable_directory(path: str) -> bool:
    """Whether this user may write in the directory, or create it."""
    directory = path if os.path.exists(path) else os.path.dirname(path)
    return os.access(directory, os.W_OK | os.X_OK)


def default_run_dir(uid: int, writable: Callable[[str], bool] = writable_directory) -> str:
    """The directory of the local state if KOLLA_RUN_DIR is not set."""
    system = "/run/kolla_mesos_start"
    return system if writable(system) else f"/tmp/kolla_mesos_start-{uid}"


def find_run_dir(environ: Mapping[str, str]) -> str:
    """The directory of the local state, for commands that run beside the agent."""
    return environ.get("KOLLA_RUN_DIR") or default_run_dir(os.getuid())


def bad_run_dir(path: str) -> str | None:
    """What KOLLA_RUN_DIR should be; None if the path is right."""
    if len(os.fsencode(path)) > RUN_DIR_LIMIT:
        return f"a path of at most {RUN_DIR_LIMIT} bytes, because it holds a socket"
    return None if path.startswith("/") else "an absolute path"


class StateFile:
    """The state of this container for probes: a lock that is held, and the current stage.

    `fd` is the lock. It is close-on-exec; the registrar inherits it, so the lock is never free in between.
    """

    def __init__(self, run_dir: str, fd: int) -> None:
        self.run_dir = run_dir
        self.fd = fd

    @classmethod
    def take(cls, run_dir: str, *, timeout: float = LOCK_TIMEOUT) -> StateFile:
        """Take the lock; wait up to `timeout` seconds for the previous run to release it.

        Raises BadEnvironment if the directory can't be used, or if another agent keeps the lock.
        """
        try:
            _create(run_dir)
            fd = _lock(run_dir, time.monotonic() + timeout)
        except OSError as error:
            expected = f"expected a directory to write in, but {_described(error, run_dir)}"
            raise _bad_run_dir(run_dir, expected).because(error.errno) from error
        if fd is None:
            raise _bad_run_dir(run_dir, "another agent runs here: give each container its own directory")
        return cls.again(run_dir, fd)

    @classmethod
    def again(cls, run_dir: str, fd: int) -> StateFile:
        """Begin a start with the lock that this process has already."""
        state_file = cls.inherit(run_dir, fd)
        # Replace the last line of the previous run at once: it may say `ready`.
        state_file.write("waiting", "for a connection to ZooKeeper")
        return state_file

    @classmethod
    def inherit(cls, run_dir: str, fd: int) -> StateFile:
        """Use the lock that the agent took. Programs executed from here do not inherit `fd`."""
        os.set_inheritable(fd, False)
        return cls(run_dir, fd)

    def write(self, stage: Stage, text: str, started: float | None = None) -> None:
        """Replace the state; a reader sees the old one or the new one, never a part.

        `started`: when the daemon was started (`loop.now`), if it has not been ready since then.
        Raises CannotWrite: probes must not read an outdated state.
        """
        path = f"{self.run_dir}/state"
        line = f"{stage} {text}".replace("\n", " ").rstrip()
        second = "" if started is None else f"{started:.3f}\n"
        try:
            replace(path, f"{line}\n{second}".encode("utf-8", "backslashreplace"))
        except OSError as error:
            from kolla_mesos_start.errors import CannotWrite

            raise CannotWrite(
                f"{_described(error, path)}: can't write the state for `health`: free space there, let this"
                " user write there, or set KOLLA_RUN_DIR to another directory"
            ).because(error.errno) from error


def health(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The `health` command: prints the state of this container in one line; returns the exit status.

    0: the container is healthy (with `--ready`: only if its daemon is ready, or its task has finished and
    stays; with `--started`: unless its daemon has not been ready within so many seconds of its start);
    1: it is not; 64: unknown arguments, or a KOLLA_RUN_DIR that no agent takes.
    """
    option, _, value = "=".join(argv).partition("=")
    limit = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
    if argv and not (list(argv) == ["--ready"] or (option == "--started" and limit)):
        print(USAGE)
        return 64
    run_dir = find_run_dir(environ)
    expected = bad_run_dir(run_dir)
    if expected:
        print(f"KOLLA_RUN_DIR is {run_dir!r}: expected {expected}")
        return 64
    try:
        if not environ.get("KOLLA_RUN_DIR"):
            refuse_strangers(run_dir)  # KOLLA_RUN_DIR may belong to another user: the agent's.
        line, alive, ready = _inspect(run_dir, environ.get("KOLLA_START_MODE") == "supervise", limit)
    except OSError as error:
        line, alive, ready = _described(error, run_dir), False, False
    print(line)
    return 0 if (ready if option == "--ready" else alive) else 1


def _inspect(run_dir: str, supervised: bool, limit: int | None) -> tuple[str, bool, bool]:
    """The line to print, and whether the container is alive and ready. `limit`: seconds for a start."""
    # The lock first: then a change in between can only make a healthy container look bad for one probe.
    held = is_held(f"{run_dir}/lock")
    line, started = _read_state(f"{run_dir}/state")
    stage = line.partition(" ")[0]
    if held:
        alive, ready = VERDICTS.get(stage, (False, False))
        if limit and time.clock_gettime(time.CLOCK_BOOTTIME) - started > limit:
            return f"not ready within {limit} s of its start; {line}", False, ready
        return line or "no state yet", alive, ready
    if stage in DAEMON_STAGES and not supervised:  # The supervisor's daemon has ended with it.
        return "daemon runs, unregistered", False, False
    if stage == "ended":
        text = line.partition(" ")[2] or stage
        return f"no agent runs here; {text}: start the container again", False, False
    return f"no agent runs here; its last state: {line or f'nothing in {run_dir}'}", False, False


def is_held(lock: str, owners: tuple[int, int] | None = None) -> bool:
    """Whether a write lock is held, on a file of one of the `owners`; that needs write permission."""
    try:
        there = os.lstat(lock)
        if not stat.S_ISREG(there.st_mode) or (owners and there.st_uid not in owners):
            return False
        fd = os.open(lock, os.O_RDONLY | O_CAREFUL)
    except FileNotFoundError:
        return False
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_RDLCK))
    finally:
        os.close(fd)
    return found[:2] != _whole_file(fcntl.F_UNLCK)[:2]


def _whole_file(kind: int) -> bytes:
    """A struct flock: its kind (a short), and zeros, which mean the whole file."""
    return kind.to_bytes(2, sys.byteorder) + bytes(30)


def _read_state(path: str) -> tuple[str, float]:
    """The line to print, and when the daemon was started: infinity if it has been ready, or is none."""
    try:
        fd = os.open(path, os.O_RDONLY | O_CAREFUL)
    except FileNotFoundError:
        return "", NEVER
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return "", NEVER
        line = file.readline(STATE_LIMIT).rstrip(b"\n").decode("ascii", "backslashreplace")
        second = file.readline(STATE_LIMIT)
    try:
        started = float(second)
    except ValueError:
        started = NEVER
    # Others may write to this volume: no control character may reach a terminal.
    return "".join(each if each.isprintable() else "?" for each in line), started


def replace(path: str, data: bytes) -> None:
    """Replace a small world-readable file; a reader sees the old one or the new one.

    Only one process may do so at a time.
    """
    with open(_new_file(f"{path}.new"), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o644)  # Whatever the umask is: a probe may run as another user.
    _move(f"{path}.new", path)


def _move(new: str, path: str) -> None:
    try:
        os.replace(new, path)
    except IsADirectoryError:
        clear(path)
        os.replace(new, path)


def clear(path: str) -> None:
    """Remove what is at `path`, whatever it is. A directory with content is only moved aside."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(there.st_mode):
        os.unlink(path)
        return
    try:
        os.rmdir(path)
    except OSError:
        os.rename(path, f"{path}.{os.urandom(8).hex()}")


def private_directory(run_dir: str) -> int:
    """Open the directory that no other user may enter; it is created if anything else has its name."""
    path = f"{run_dir}/{PRIVATE}"
    for _ in range(TRIES):
        try:  # noqa: SIM105 (contextlib would cost every probe its import)
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        there = os.lstat(path)
        if there.st_uid == 0 != os.geteuid():
            break  # After the agent has become the daemon's user.
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid() or there.st_mode & 0o077:
            clear(path)
            continue
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | O_CAREFUL)
        if os.path.samestat(os.fstat(fd), there):
            return fd
        os.close(fd)
    raise _not_permitted("it belongs to another user", path)


def _new_file(path: str) -> int:
    """Create a file that nobody else can open yet; an existing one is removed, and never written to."""
    clear(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_CAREFUL, 0o600)


def _create(run_dir: str) -> None:
    os.makedirs(os.path.dirname(run_dir), exist_ok=True)
    before = os.umask(0o022)  # A probe may run as another user.
    try:
        os.mkdir(run_dir)
    except FileExistsError:
        refuse_strangers(run_dir)
    finally:
        os.umask(before)


def refuse_strangers(directory: str) -> None:
    """Raise PermissionError if another user may have created the directory, or may write in it.

    Only checked where every user may create directories, as in /tmp. Elsewhere it may be a volume or part of
    the image, which have their own owner and mode.
    """
    directory = os.path.normpath(directory)
    try:
        there = os.lstat(directory)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(there.st_mode) and there.st_uid != 0 == os.geteuid():
        raise _not_permitted(f"it is a link of uid {there.st_uid}", directory)
    if not os.stat(os.path.dirname(directory)).st_mode & stat.S_IWOTH or os.path.ismount(directory):
        return
    if not stat.S_ISDIR(there.st_mode):
        found = "it is not a directory"
    elif there.st_uid != os.geteuid():
        found = f"it belongs to uid {there.st_uid}, not to uid {os.geteuid()}"
    elif there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"others may write in it (mode {stat.S_IMODE(there.st_mode):04o})"
    else:
        return
    raise _not_permitted(found, directory)


def _not_permitted(found: str, path: str) -> PermissionError:
    import errno

    return PermissionError(errno.EPERM, f"{found}: remove it, or choose another directory", path)


def _lock(run_dir: str, deadline: float) -> int | None:
    """Take the lock; None if another agent holds it until the deadline."""
    private = private_directory(run_dir)
    try:
        gate = os.open("gate", os.O_RDWR | os.O_CREAT | O_CAREFUL, 0o600, dir_fd=private)
    finally:
        os.close(private)
    # A lock of another user, unless it is root, was made to keep us out.
    owners = (0, os.geteuid())
    try:
        while not _has_passed(gate) or is_held(f"{run_dir}/lock", owners):
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOCK_RETRY_INTERVAL)
        fd = _new_file(f"{run_dir}/lock.new")
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
        os.fchmod(fd, 0o644)
        _move(f"{run_dir}/lock.new", f"{run_dir}/lock")
        return fd
    finally:
        os.close(gate)


def _has_passed(gate: int) -> bool:
    try:
        fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bad_run_dir(run_dir: str, what: str) -> AgentError:
    from kolla_mesos_start.errors import BadEnvironment

    return BadEnvironment([f"KOLLA_RUN_DIR is {run_dir!r}: {what}"])


def _described(error: OSError, path: str) -> str:
    return f"{error.filename or path}: {error.strerror}"
