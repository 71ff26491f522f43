"""The errors that end the agent: one class for each cause, each with its exit status.

Only exceptions and their messages; a single place catches them, logs the last line and exits.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    E = TypeVar("E", bound="AgentError")

NO_ANSWER = "no answer in time"

# What the errors of system calls mean for a start, whatever the call: true if the cause can pass without a
# change of the container or its definition, so that another start is worth it. Those that are not listed do
# not pass.
ERRNOS: Sequence[tuple[bool, str, Sequence[int]]] = (
    (
        True,
        "a limit of processes or of memory is reached",
        (errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.EUSERS),
    ),
    (True, "a limit of open files or locks is reached", (errno.EMFILE, errno.ENFILE, errno.ENOLCK)),
    (True, "a disk, its inodes or a quota are used up", (errno.ENOSPC, errno.EDQUOT)),
    (
        True,
        "another process uses it",
        (errno.EBUSY, errno.ETXTBSY, errno.EDEADLK, errno.EINTR, errno.EADDRINUSE),
    ),
    (
        True,
        "a disk, a network file system or the network fails",
        (
            *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOLINK, errno.ECOMM),
            *(errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN),
            *(errno.ENETUNREACH, errno.ENETRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET),
        ),
    ),
    (False, "a right is missing, or the file system is read-only", (errno.EACCES, errno.EPERM, errno.EROFS)),
    (
        False,
        "the path leads to nothing, or to something else",
        (
            *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST),
            *(errno.ENOTEMPTY, errno.EXDEV, errno.EMLINK, errno.ENODEV, errno.ENXIO, errno.ESPIPE),
        ),
    ),
    (False, "it is too large", (errno.E2BIG, errno.EFBIG, errno.EOVERFLOW)),
    (
        False,
        "the kernel, the file system or the machine can't do that",
        (
            *(errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOEXEC, errno.ELIBBAD, errno.ENOPKG),
            *(errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT),
        ),
    ),
    (
        False,
        "the call is wrong",
        (
            *(errno.EINVAL, errno.EBADF, errno.EFAULT, errno.EDESTADDRREQ, errno.EPIPE, errno.ENODATA),
            *(errno.ESRCH, errno.ECHILD),
        ),
    ),
)
PASSING = {number: why for passes, why, numbers in ERRNOS if passes for number in numbers}
FOR_NOW = 75  # the exit status (EX_TEMPFAIL)


class AgentError(Exception):
    """A defect of the agent. The base of all errors that end it.

    `status` is the exit status (from sysexits.h if it has one), `retriable` whether it may help to
    start the same container again. `command` is the `role/command` that failed, or None.
    """

    status = 70
    retriable = False

    def __init__(self, reason: str, *, command: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.command = command

    def because(self: E, number: int | None) -> E:
        """This error; if its cause, an errno, can pass by itself, another start is worth it."""
        if number in PASSING:
            self.reason += f" ({PASSING[number]})"
            return self.for_now()
        return self

    def for_now(self: E) -> E:
        """This error, whose cause can pass by itself."""
        self.status, self.retriable = FOR_NOW, True
        return self


class Issue(str):
    """One thing that is wrong in an input, in a sentence, and what programs need to know of it.

    `label` is the place of the value, with which the sentence begins, `what` is the rest. `line` is the line
    of the input, from 1, if its syntax is wrong. `by_template`: the value is the result of a template.
    """

    def __new__(
        cls, what: str, label: str = "", *, line: int | None = None, by_template: bool = False
    ) -> Issue:
        issue = super().__new__(cls, f"{label}: {what}" if label else what)
        issue.what, issue.label, issue.line, issue.by_template = what, label, line, by_template
        return issue

    what: str
    label: str
    line: int | None
    by_template: bool


class Issues(AgentError):
    """All issues of one input in one error. Each is a text of the form `<name>: <what is wrong>`."""

    subject = "input"

    def __init__(self, issues: Iterable[str]) -> None:
        self.issues = tuple(each if isinstance(each, Issue) else Issue(each) for each in issues)
        count = f"{len(self.issues)} issues" if len(self.issues) > 1 else "1 issue"
        super().__init__(f"{self.subject}: {count}: " + "; ".join(self.issues))


class Unkillable(AgentError):
    """A process of a command can't be killed by the agent.

    It ends only with its container.

    The session that holds the command's lock must not be closed but expire, so that no other
    container starts the command earlier.
    """

    status = 70


class NotLoaded(AgentError):
    """A module of the agent, or of a package that it needs, is missing or damaged."""

    status = 70


class BadUsage(AgentError):
    """Bad usage: an unknown word on the command line."""

    status = 64


class BadEnvironment(Issues):
    """Environment variables are missing or have bad values."""

    status = 64
    subject = "environment"


class NoAddress(BadEnvironment):
    """An interface, or its address, is missing; it may still come."""


class BadDefinition(Issues):
    """The definition has errors."""

    status = 65
    subject = "definition"


class CommandFailed(AgentError):
    """A command failed in all its attempts."""

    status = 1
    retriable = True


class NoConnection(AgentError):
    """ZooKeeper could not be reached within KOLLA_ZK_CONNECT_TIMEOUT."""

    status = 69
    retriable = True


class RefusedByServer(AgentError):
    """ZooKeeper permanently refuses a request, for example because of a quota; `why` says it in words."""

    status = 69
    retriable = True

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: ZooKeeper refuses it: {why}")


class UnreadableServer(AgentError):
    """The server speaks another protocol."""

    status = 69
    retriable = True


class TooLarge(AgentError):
    """The servers drop the connection because of the size of a request."""

    status = 69
    retriable = True

    def __init__(self, path: str, size: int) -> None:
        super().__init__(
            f"{path} can't be written: the connection was lost several times right after {size} bytes were"
            " sent: the limit of the servers (jute.maxbuffer) is probably lower: raise it on all of them, or"
            " make this smaller"
        )


class CannotWrite(AgentError):
    """A config file, or a file of the agent's own state, can't be written."""

    status = 73


class DependenciesNotSatisfied(AgentError):
    """The dependencies of a command were not satisfied within the limit."""

    status = FOR_NOW
    retriable = True


class Lacking(AgentError):
    """The system refuses something that it may have later: processes, memory, descriptors, space, a disk."""

    status = FOR_NOW
    retriable = True


class Retired(AgentError):
    """The daemon is not for images of this generation."""

    status = 76

    def __init__(self, image: str | None, wanted: Sequence[str], *, command: str) -> None:
        own = (
            "has no generation (KOLLA_GENERATION is not set)"
            if image is None
            else f"is of generation {image}"
        )
        super().__init__(
            f"this image {own}, and the daemon's definition lists {', '.join(wanted)}: start an image of a"
            " generation that it lists",
            command=command,
        )


class AccessDenied(AgentError):
    """ZooKeeper refused the credentials, or the ACL of a znode refused the agent."""

    status = 77


class WrongCredential(AccessDenied):
    """The reason names our identity and the one that is needed."""


RIGHTS = {
    "read": "r (read)",
    "written": "w (write)",
    "created": "c (create)",
    "deleted": "d (delete)",
    "given another ACL": "a (admin)",
}
# What each of kazoo's operations does to a znode; all others read it.
DONE = {"Create": "created", "Delete": "deleted", "SetData": "written", "SetACL": "given another ACL"}


class NoRight(AccessDenied):
    """The ACL of a znode denies an operation, or, if there is another reason, `why` says it in words.

    `done` is what can't be done to the znode at `path`: one of RIGHTS. The ACL of its parent decides about
    creation and deletion.
    """

    def __init__(self, path: str, done: str, why: str = "") -> None:
        self.done = done
        above = path.rpartition("/")[0] or "/"
        acl = f"the ACL of {above}" if done in ("created", "deleted") else "its ACL"
        why = why or f"NoAuthError: {acl} lacks the right {RIGHTS[done]}"
        super().__init__(f"{path} can't be {done}: {why}")


class CannotRender(AgentError):
    """A variable or the content of a file is missing, or a template has an error (on its `line`)."""

    status = 78
    line: int | None = None


class MissingVariable(CannotRender):
    """A template uses variables that have no value."""


class CannotExecute(AgentError):
    """The program exists but can't be executed, or not as the given user."""

    status = 126


class NotFound(AgentError):
    """The daemon's program was not found."""

    status = 127


class Stopped(AgentError):
    """A signal stopped the agent."""

    def __init__(self, signum: int, name: str) -> None:
        super().__init__(f"stopped by {name}")
        self.signum = signum
        self.status = 128 + signum


def listed(names: Iterable[str]) -> str:
    """Names for a message: sorted, with commas."""
    return ", ".join(sorted(names))


def cause(error: Exception) -> str:
    """The cause, without the number that OSError puts before it."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def unexpected(error: Exception, program: str = "the agent") -> AgentError:
    """What ends `program` after an exception that nothing handles.

    The exception's message is left out unless it is about a module: it may contain a value.
    """
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if isinstance(error, ImportError):  # The C library's text is all that is known of a shared object.
        number = next((each for each in PASSING if os.strerror(each) in str(error)), None)
    module = _module(error)
    what = f"the module {module} can't be loaded" if module else "a system call failed"
    if number in PASSING:
        return Lacking(f"{what}: {os.strerror(number)}").because(number)
    if module:
        why = cause(error) if isinstance(error, OSError) else type(error).__name__
        return NotLoaded(f"{what} ({why}): install {program} again, with all its packages")
    return AgentError(f"a defect of {program}: {type(error).__name__}")


def _module(error: Exception) -> str:
    """The module whose import raised this error, or its file; empty if no import did."""
    if isinstance(error, ImportError):
        return str(error.name or error.path or "of a package")
    if isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        return str(error.filename)
    found, here = "", error.__traceback__
    while here:
        frame = here.tb_frame
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            found = str(frame.f_locals.get("name") or found)
        elif found and frame.f_code.co_filename[:1] != "<":
            found = ""  # Code of that module ran, and has failed.
        here = here.tb_next
    return found


def where(defect: Exception) -> list[str]:
    """Where in the code a defect occurred, as lines. Its message is left out: it may contain a value."""
    # Without the `traceback` module: a process without a free descriptor can't import it.
    lines, here = ["Traceback (most recent call last):"], defect.__traceback__
    while here:
        code = here.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {here.tb_lineno}, in {code.co_name}')
        here = here.tb_next
    return [*lines, type(defect).__name__]


def causes(by_server: Mapping[str, str]) -> str:
    """The causes of several servers; only one text if all have the same cause."""
    servers: dict[str, list[str]] = {}
    for server, what in by_server.items():
        servers.setdefault(what, []).append(server)
    if len(servers) == 1:
        return next(iter(servers))
    return "; ".join(f"{', '.join(met)}: {what}" for what, met in servers.items())


def was_closed(error: OSError) -> bool:
    """Whether the server closed the connection: the error depends on when it did so."""
    return isinstance(error, (ConnectionResetError, BrokenPipeError)) or error.errno == errno.ENOTCONN


def handshake_cause(error: OSError, otherwise: str = "its port is for TLS (set KOLLA_ZK_CA)") -> str:
    """Why a server closed a new connection.

    ZooKeeper closes it without an answer for several reasons; `otherwise` is another one.
    """
    if not was_closed(error):
        return cause(error)
    return (
        "the server closed the connection without an answer. Either it is not serving yet (it is starting, or"
        " has no quorum), or this host has too many connections to it (maxClientCnxns in its zoo.cfg, 60 by"
        f" default: raise it, or set 0 for no limit), or {otherwise}; its log says which"
    )
