"""Each error that a system call documents: what can pass by itself is worth another start, all else is not.

The calls fail in the agent's own functions; in `agent/test_errnos.py` the kernel makes them fail for whole
agents.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any, NamedTuple

import pytest

from kolla_mesos_start import processes
from kolla_mesos_start.commands.bootstrap import _judge
from kolla_mesos_start.commands.guard_client import Ended, Guard
from kolla_mesos_start.daemon import handoff, notify_socket
from kolla_mesos_start.daemon.launch import Launch
from kolla_mesos_start.errors import ERRNOS, FOR_NOW, PASSING, AgentError, unexpected
from kolla_mesos_start.files import paths, place
from kolla_mesos_start.files.copy_once import CopyOnce
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.host import accounts
from kolla_mesos_start.loop import Loop
from kolla_mesos_start.render import prepare, variables_dir
from kolla_mesos_start.settings import parse
from tests.process.files.children import content

# From section ERRORS of the manual pages (man-pages 6), and what network file systems add.
REMOTE = "EIO ESTALE ETIMEDOUT ENOTCONN EHOSTDOWN EREMOTEIO"
PATH = "EACCES EBADF EFAULT EINVAL ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR EPERM EROFS"
NEW = "EDQUOT EEXIST EMLINK ENOSPC"
DESCRIPTORS = "EFAULT EINVAL EMFILE ENFILE ENOMEM"
DOCUMENTED = {
    "open": f"{PATH} {NEW} {REMOTE} EAGAIN EBUSY EFBIG EINTR EISDIR EMFILE ENFILE ENODEV ENXIO EOPNOTSUPP"
    " EOVERFLOW ETXTBSY",
    "read": f"EAGAIN EBADF EFAULT EINTR EINVAL EISDIR {REMOTE}",
    "write": f"EAGAIN EBADF EDESTADDRREQ EDQUOT EFAULT EFBIG EINTR EINVAL ENOSPC EPERM EPIPE {REMOTE}",
    "rename": f"{PATH} {NEW} {REMOTE} EBUSY EISDIR ENOTEMPTY EXDEV",
    "mkdir": f"{PATH} {NEW} {REMOTE}",
    "fsync": f"EBADF EINTR EINVAL ENOSPC EROFS EDQUOT {REMOTE}",
    "fchown": f"{PATH} EDQUOT {REMOTE}",
    "fchmod": f"{PATH} EOPNOTSUPP {REMOTE}",
    "ftruncate": f"EBADF EFBIG EINTR EINVAL EPERM EROFS ETXTBSY {REMOTE}",
    "flock": "EBADF EINTR EINVAL ENOLCK EAGAIN EDEADLK",
    "fork": "EAGAIN ENOMEM ENOSYS EACCES EBUSY EEXIST EINVAL ENOSPC EOPNOTSUPP EPERM EUSERS",
    "exec": f"{PATH} {REMOTE} E2BIG EAGAIN EISDIR ELIBBAD EMFILE ENFILE ENOEXEC ETXTBSY",
    "setuid": "EAGAIN EINVAL EPERM",
    "pipe": f"{DESCRIPTORS} ENOPKG",
    "socketpair": f"{DESCRIPTORS} EAFNOSUPPORT EOPNOTSUPP EPROTONOSUPPORT ENOBUFS",
    "pidfd_open": f"{DESCRIPTORS} ENODEV ESRCH ENOSYS EPERM",
    "memfd_create": f"{DESCRIPTORS} ENOSYS EPERM",
    "listdir": f"EACCES EBADF EMFILE ENFILE ENOENT ENOMEM ENOTDIR {REMOTE}",
    "bind": f"{PATH} {NEW} EADDRINUSE",
}
CELLS = [(call, name) for call, names in DOCUMENTED.items() for name in names.split()]
PASSES = {
    *("EAGAIN", "ENOMEM", "ENOBUFS", "EUSERS", "EMFILE", "ENFILE", "ENOLCK", "ENOSPC", "EDQUOT", "EBUSY"),
    *("ETXTBSY", "EDEADLK", "EINTR", "EADDRINUSE", *REMOTE.split()),
}


@pytest.mark.parametrize(("call", "name"), CELLS)
def test_each_documented_error_is_in_the_table(call: str, name: str) -> None:
    """Once, and with the right answer; an errno means the same for each call."""
    number = getattr(errno, name)
    assert Counter(each for _, _, numbers in ERRNOS for each in numbers)[number] == 1
    assert (number in PASSING) == (name in PASSES)


# -- each of the agent's operations, with each error of its calls ------------------------------------------


def placed(directory: Path) -> None:
    place.place([content(directory / "new" / "app.conf", mode=0o640)])


def placed_for(directory: Path) -> None:
    place.place([content(directory / "app.conf", uid=os.geteuid() + 1, gid=os.getegid())])


def read_mounted(directory: Path) -> None:
    (directory / "mounted").write_text("x")
    file: Any = Record(name="conf", mounted=str(directory / "mounted"))
    prepare._read_mounted(file)


def read_variables(directory: Path) -> None:
    (directory / "password").write_text("x")
    variables_dir.read(str(directory))


def settings(**environ: str) -> None:
    parse({"KOLLA_ZK_HOSTS": "h", "KOLLA_APP_ID": "/d/s", **environ}, hostname=lambda: "h")


def read_credential(directory: Path) -> None:
    (directory / "auth").write_text("digest:a:b")
    settings(KOLLA_ZK_AUTH_FILE=str(directory / "auth"))


def find_variables(directory: Path) -> None:
    settings(KOLLA_VARIABLES_DIR=str(directory))


def take_state(directory: Path) -> None:
    StateFile.take(str(directory / "run"), timeout=0.01)


def write_state(directory: Path) -> None:
    StateFile(str(directory), -1).write("waiting", "")


def record_copied(directory: Path) -> None:
    with CopyOnce(str(directory / "state"), "web/daemon").recorded(1):
        pass


def find_user(directory: Path) -> None:
    accounts.ids("root")


def find_owner(directory: Path) -> None:
    accounts.owner_ids("root:root")


def start_guard(directory: Path) -> None:
    Guard(Loop(), "web").start()


def run_command(directory: Path) -> None:
    """As the guard runs it, and the agent judges it."""
    try:
        child = processes.Child(["/bin/true"], {}, outlives_us=True)
        failure = child.failure()
        child.wait()
    except OSError as error:
        failure = error.errno or 0, "fork"
    if failure:
        step: Any = Record(command=Record(path="web/go"), program="true", argv=["/bin/true"])
        outcome = _judge(step, Ended("spawn-failed", -9, *failure), False, "")
        raise AgentError(outcome.message).for_now() if outcome.passes else AgentError(outcome.message)


LAUNCH: Any = Record(
    _path="web/daemon",
    _program="true",
    _argv=["/bin/true"],
    _prepared=Record(ids=accounts.Ids(os.getuid(), os.getgid(), os.getgroups(), None, None)),
    _step=Record(lacks_exec=False),
    _report=Record(state_file=Record(run_dir="/nowhere")),
)


def start_registrar(directory: Path) -> None:
    fields: Any = dict.fromkeys(handoff.Handoff._fields, 0)
    with Launch._needing_registrar(LAUNCH):
        os.close(processes.pidfd_open(os.getpid()))
        held, await_detached = handoff.spawn(handoff.Handoff(**{**fields, "service": "web"}))
        os.close(held)
        await_detached()


def become_daemon(directory: Path) -> None:
    with Launch._executing(LAUNCH, {}):
        os.execve("/bin/true", [], {})


def become_user(directory: Path) -> None:
    Launch._become_user(LAUNCH)


def listen_for_readiness(directory: Path) -> None:
    Launch._prepare(LAUNCH)


class Broken:
    """A file that can be opened, and not read."""

    def __init__(self, fd: int, cause: OSError) -> None:
        self.fd, self.cause = fd, cause

    def __enter__(self) -> Broken:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self.fd)

    def read(self, size: int) -> bytes:
        raise self.cause


class Case(NamedTuple):
    """An operation of the agent, and the call in it that fails.

    `status`: if the cause does not pass; 0: it then goes on. `handled`: errors after which it
    goes on, or tries another way.
    """

    call: str
    module: Any
    name: str
    work: Callable[[Path], object]
    status: int
    handled: str = ""


CASES = [
    Case("open", os, "open", placed, 73),
    Case("open", os, "open", take_state, 64),
    Case("open", os, "open", write_state, 73),
    Case("open", os, "open", read_mounted, 78, "ENOENT"),
    Case("open", os, "open", read_variables, 78),
    Case("open", os, "open", read_credential, 64),
    Case("open", os, "open", find_user, 0),
    Case("open", os, "open", find_owner, 0),
    Case("read", paths, "open", read_mounted, 78),
    Case("read", paths, "open", read_variables, 78),
    Case("read", paths, "open", read_credential, 64),
    Case("listdir", os, "listdir", read_variables, 78),
    Case("listdir", os, "listdir", find_variables, 64),
    Case("write", os, "write", placed, 73),
    Case("write", os, "write", record_copied, 73),
    Case("rename", os, "rename", placed, 73, "EBUSY"),  # Then it may be a mount, and is written in place.
    Case("rename", os, "rename", record_copied, 73),
    Case("rename", os, "replace", write_state, 73, "EISDIR"),
    Case("rename", os, "replace", take_state, 64, "EISDIR"),
    Case("mkdir", os, "mkdir", placed, 73),
    Case("mkdir", os, "mkdir", record_copied, 73),
    Case("mkdir", os, "mkdir", take_state, 64),
    Case("fsync", os, "fsync", placed, 73),
    Case("fchown", os, "fchown", placed_for, 73),
    Case("fchmod", os, "fchmod", placed, 73),
    Case("fchmod", os, "fchmod", take_state, 64),
    Case("ftruncate", os, "ftruncate", placed, 73),
    Case("flock", fcntl, "flock", take_state, 64, "EAGAIN"),  # Another agent holds it.
    Case("fork", os, "fork", start_guard, 70),
    Case("fork", os, "fork", start_registrar, 126),
    Case("fork", os, "fork", run_command, 70),
    Case("exec", os, "execve", start_guard, 70),
    Case("exec", os, "execve", run_command, 70),
    Case("exec", os, "execve", become_daemon, 126, "ENOENT ENOTDIR"),  # 127
    Case("setuid", os, "setuid", become_user, 126),
    Case("pipe", os, "pipe", start_guard, 70),
    Case("pipe", os, "pipe", start_registrar, 126),
    Case("pipe", os, "pipe", run_command, 70),
    Case("socketpair", socket, "socketpair", start_guard, 70),
    Case("pidfd_open", os, "pidfd_open", start_registrar, 126),
    Case("memfd_create", os, "memfd_create", start_registrar, 126),
    Case("bind", notify_socket, "bind", listen_for_readiness, 64),
]


def outcome(case: Case, cause: OSError, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The status of an agent whose operation meets this error; 0 if it goes on."""

    def fail(*arguments: Any, **more: Any) -> Any:
        raise cause

    with monkeypatch.context() as patch:
        for user in ("setgroups", "setgid"):
            patch.setattr(os, user, lambda ids: None)
        broken = fail if case.call != "read" else lambda fd, mode: Broken(fd, cause)
        patch.setattr(case.module, case.name, broken, raising=False)
        try:
            case.work(directory)
        except AgentError as error:
            return error.status
        except Exception as error:
            return unexpected(error).status
    return 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.call}-{case.work.__name__}")
def test_an_operation_is_tried_again_after_each_error_that_passes(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only then: status 75. All others have the status of the operation."""
    found, expected = {}, {}
    for number, name in enumerate(DOCUMENTED[case.call].split()):
        if name in case.handled.split():
            continue
        (directory := tmp_path / str(number)).mkdir()
        cause = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
        found[name] = outcome(case, cause, directory, monkeypatch)
        expected[name] = FOR_NOW if name in PASSES else case.status
    assert found == expected
