"""The health of this container: the state that the agent writes, and the probe that reads it.

What lives here: the run directory, the lock and the state in it, and the `health` command. The
probe runs every few seconds as long as the container exists, so this module imports only what a
bare Python has loaded already, and `fcntl`: not `typing`, `json`, `re` or `logging`, and never
ZooKeeper.

    <run_dir>/
      lock      held (flock) by the agent, later by the registrar: held means that one of them runs
      state     "<stage> <text>", one line
"""

from __future__ import annotations

import fcntl
import os
import time

TYPE_CHECKING = False  # `typing` alone would double the time of a probe.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    Stage = Literal["waiting", "bootstrapping", "starting", "ready", "unready", "finished", "ended"]

# What a stage means to the two probes while the lock is held: (alive, ready).
# `starting` is alive: a liveness probe must not kill a daemon that is still starting.
VERDICTS: Mapping[str, tuple[bool, bool]] = {
    "waiting": (True, False),
    "bootstrapping": (True, False),
    "starting": (True, False),
    "ready": (True, True),
    "unready": (False, False),
    "finished": (True, True),
    "ended": (False, False),
}
# In these stages the registrar holds the lock: if the lock is free, the registrar has died.
DAEMON_STAGES = ("starting", "ready", "unready")

USAGE = "usage: kolla_mesos_start health [--ready]"
# The registrar of the container's previous run needs a moment to see that its daemon has ended.
LOCK_TIMEOUT = 5.0  # seconds
LOCK_RETRY_INTERVAL = 0.05  # seconds; flock itself can't wait with a time limit


def writable_directory(path: str) -> bool:
    """Whether this user may write in the directory, or may create it if it does not exist."""
    directory = path if os.path.exists(path) else os.path.dirname(path)
    return os.access(directory, os.W_OK | os.X_OK)


def default_run_dir(uid: int, writable: Callable[[str], bool] = writable_directory) -> str:
    """The directory of the local state if KOLLA_RUN_DIR is not set."""
    system = "/run/kolla_mesos_start"
    return system if writable(system) else f"/tmp/kolla_mesos_start-{uid}"


class StateFile:
    """The state of this container as probes see it: a lock that is held, and the current stage.

    `fd` is the lock. It is close-on-exec, and the registrar inherits it: flock belongs to the open
    file, so the lock is never free in between.
    """

    def __init__(self, run_dir: str, fd: int) -> None:
        self.run_dir = run_dir
        self.fd = fd

    @classmethod
    def take(cls, run_dir: str, *, timeout: float = LOCK_TIMEOUT) -> StateFile:
        """Take the lock, and wait up to `timeout` seconds until the previous run has released it.

        Raises BadEnvironment if the directory can't be used, or if another agent keeps the lock.
        """
        try:
            _create(run_dir)
            fd = os.open(f"{run_dir}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            os.fchmod(fd, 0o644)  # Whatever the umask is.
            locked = _lock(fd, time.monotonic() + timeout)
        except OSError as error:
            raise _bad_run_dir(
                run_dir, f"expected a directory to write in, but {_described(error, run_dir)}"
            ) from error
        if not locked:
            os.close(fd)
            raise _bad_run_dir(run_dir, "another agent runs here: give each container its own directory")
        state_file = cls(run_dir, fd)
        # Replace the last line of the previous run at once: it may say `ready`.
        state_file.write("waiting", "for a connection to ZooKeeper")
        return state_file

    @classmethod
    def inherit(cls, run_dir: str, fd: int) -> StateFile:
        """Use the lock that the agent took. Programs that are executed from here do not inherit `fd`."""
        os.set_inheritable(fd, False)
        return cls(run_dir, fd)

    def write(self, stage: Stage, text: str) -> None:
        """Replace the state; a reader sees the old line or the new one, never a part.

        Raises CannotWrite: probes must not go on reading an outdated state.
        """
        path = f"{self.run_dir}/state"
        line = f"{stage} {text}".replace("\n", " ").rstrip()
        try:
            # Only the holder of the lock writes, so one name beside the state is enough.
            with open(f"{path}.new", "w", encoding="utf-8", errors="backslashreplace") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(line + "\n")
            os.replace(f"{path}.new", path)
        except OSError as error:
            from kolla_mesos_start.errors import CannotWrite

            raise CannotWrite(
                f"{_described(error, path)}: can't write the state for `health`: let this user write there,"
                " or set KOLLA_RUN_DIR to another directory"
            ) from error


def health(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The `health` command: prints the state of this container in one line; returns the exit status.

    0: the container is healthy (with `--ready`: only if its daemon is ready, or its task has
    finished and stays); 1: it is not; 64: unknown arguments.
    """
    if argv and list(argv) != ["--ready"]:
        print(USAGE)
        return 64
    run_dir = environ.get("KOLLA_RUN_DIR") or default_run_dir(os.getuid())
    try:
        line, alive, ready = _inspect(run_dir)
    except OSError as error:
        line, alive, ready = _described(error, run_dir), False, False
    print(line)
    return 0 if (ready if argv else alive) else 1


def _inspect(run_dir: str) -> tuple[str, bool, bool]:
    """The line to print, and whether the container is alive and ready."""
    # The lock first: a change in between can then only make a good container look bad for one probe.
    held = _is_held(f"{run_dir}/lock")
    line = _read_state(f"{run_dir}/state")
    stage = line.partition(" ")[0]
    if held:
        return (line or "no state yet", *VERDICTS.get(stage, (False, False)))
    if stage in DAEMON_STAGES:
        return "daemon runs, unregistered", False, False
    return f"no agent runs here; last seen: {line or f'nothing in {run_dir}'}", False, False


def _is_held(lock: str) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that a second probe at the same time does not look like an agent.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read_state(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="backslashreplace") as file:
            return file.readline().rstrip("\n")
    except FileNotFoundError:
        return ""


def _create(run_dir: str) -> None:
    os.makedirs(os.path.dirname(run_dir), exist_ok=True)
    try:
        os.mkdir(run_dir)
    except FileExistsError:
        return  # It may be a volume: its mode is up to its owner.
    os.chmod(run_dir, 0o755)  # Whatever the umask is: a probe may run as another user.


def _lock(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_RETRY_INTERVAL)
        else:
            return True


def _bad_run_dir(run_dir: str, what: str) -> Exception:
    from kolla_mesos_start.errors import BadEnvironment

    return BadEnvironment([f"KOLLA_RUN_DIR is {run_dir!r}: {what}"])


def _described(error: OSError, path: str) -> str:
    return f"{error.filename or path}: {error.strerror}"
