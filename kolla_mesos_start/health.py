"""Whether this container is where it should be: what the agent tells, and the probe that reads it.

What lives here: the run directory, the lock and the state in it, and the `health` command. The
probe is started every few seconds for as long as the container lives, so nothing is imported
here that a bare Python has not loaded yet (`fcntl` excepted): not `typing`, `json`, `re` or
`logging`, and never ZooKeeper.

    <run_dir>/
      lock      held (flock) by the agent, then by the registrar: who holds it, lives
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

# What a stage means to the two probes, as long as the lock is held: (alive, ready).
# `starting` is alive: a liveness probe must not kill a daemon that is still coming up.
VERDICTS: Mapping[str, tuple[bool, bool]] = {
    "waiting": (True, False),
    "bootstrapping": (True, False),
    "starting": (True, False),
    "ready": (True, True),
    "unready": (False, False),
    "finished": (True, True),
    "ended": (False, False),
}
# In these the daemon has the agent's process id: a lock that nobody holds is a registrar that died.
DAEMON_STAGES = ("starting", "ready", "unready")

USAGE = "usage: kolla_mesos_start health [--ready]"
# A predecessor's registrar needs a moment to see that its daemon has ended.
PREDECESSOR_LEAVES = 5.0  # seconds
PREDECESSOR_LOOKED_AT_EVERY = 0.05  # seconds; flock can't be waited for with a limit


def writable_directory(path: str) -> bool:
    """Whether this user may write in the directory, or may make it where it isn't there."""
    looked_at = path if os.path.exists(path) else os.path.dirname(path)
    return os.access(looked_at, os.W_OK | os.X_OK)


def default_run_dir(uid: int, writable: Callable[[str], bool] = writable_directory) -> str:
    """Where the agent of this user keeps its local state, if KOLLA_RUN_DIR doesn't say."""
    system = "/run/kolla_mesos_start"
    return system if writable(system) else f"/tmp/kolla_mesos_start-{uid}"


class StateFile:
    """The sign of life of this container: a lock held, and the stage reached.

    `fd` is the lock. It is close-on-exec, and passes to the registrar by inheritance: flock
    belongs to the open file, so that the lock is never free in between.
    """

    def __init__(self, run_dir: str, fd: int) -> None:
        self.run_dir = run_dir
        self.fd = fd

    @classmethod
    def take(cls, run_dir: str, *, timeout: float = PREDECESSOR_LEAVES) -> StateFile:
        """Become the one that tells this container's state; waits `timeout` seconds for a predecessor.

        Raises BadEnvironment where the directory can't be used or another agent stays in it.
        """
        try:
            _make(run_dir)
            fd = os.open(f"{run_dir}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            os.fchmod(fd, 0o644)  # whatever the umask is
            locked = _locked(fd, time.monotonic() + timeout)
        except OSError as error:
            raise _bad_run_dir(
                run_dir, f"expected a directory to write in, but {_told(error, run_dir)}"
            ) from error
        if not locked:
            os.close(fd)
            raise _bad_run_dir(run_dir, "another agent runs here: expected a directory for this one alone")
        state_file = cls(run_dir, fd)
        # The predecessor's last line, `ready` perhaps, would otherwise be taken for ours.
        state_file.write("waiting", "for a connection to ZooKeeper")
        return state_file

    @classmethod
    def inherit(cls, run_dir: str, fd: int) -> StateFile:
        """Go on with the lock that the agent took; `fd` is closed in whatever is exec'd from here."""
        os.set_inheritable(fd, False)
        return cls(run_dir, fd)

    def write(self, stage: Stage, text: str) -> None:
        """Say where this container is; a reader sees the old line or the new one, never a half.

        Raises CannotWrite: a line that stays behind the truth would mislead the probes.
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
                f"{_told(error, path)}: the state for `health` can't be kept up; mend or move KOLLA_RUN_DIR"
            ) from error


def health(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The `health` command: one line that says where this container is, and the exit status.

    0: it is where it should be (with `--ready`: only if its daemon is ready, or its task has
    finished and stays); 1: it is not; 64: `argv` holds anything else.
    """
    if argv and list(argv) != ["--ready"]:
        print(USAGE)
        return 64
    run_dir = environ.get("KOLLA_RUN_DIR") or default_run_dir(os.getuid())
    try:
        line, alive, ready = _look(run_dir)
    except OSError as error:
        line, alive, ready = _told(error, run_dir), False, False
    print(line)
    return 0 if (ready if argv else alive) else 1


def _look(run_dir: str) -> tuple[str, bool, bool]:
    """The line to print, and whether it means alive and ready."""
    # The lock first: what changes in between can then only make us miss good news, never bad.
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
        # Shared, so that two probes at the same time don't take each other for an agent.
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


def _make(run_dir: str) -> None:
    os.makedirs(os.path.dirname(run_dir), exist_ok=True)
    try:
        os.mkdir(run_dir)
    except FileExistsError:
        return  # perhaps a volume, whose mode is its owner's business
    os.chmod(run_dir, 0o755)  # whatever the umask is: a probe may run as another user


def _locked(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(PREDECESSOR_LOOKED_AT_EVERY)
        else:
            return True


def _bad_run_dir(run_dir: str, what: str) -> Exception:
    from kolla_mesos_start.errors import BadEnvironment

    return BadEnvironment([f"KOLLA_RUN_DIR is {run_dir!r}: {what}"])


def _told(error: OSError, path: str) -> str:
    return f"{error.filename or path}: {error.strerror}"
