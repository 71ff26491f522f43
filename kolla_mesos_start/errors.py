"""Every way in which the agent can end unhappily: one class a cause, one exit status a class.

What lives here: the exceptions and the text derived from their fields. Nothing here exits,
logs or decides; `container` does that, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class AgentError(Exception):
    """The root of all that ends the agent.

    `status` is the exit status (sysexits.h where it has one), `retriable` whether starting the
    same container again may help. `command` is the `role/command` at fault, where there is one.
    """

    status = 70
    retriable = False

    def __init__(self, reason: str, *, command: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.command = command


class Issues(AgentError):
    """Several things wrong with one input, found together and told together.

    `issues` are sentences, each of which names the thing at fault.
    """

    subject = "input"

    def __init__(self, issues: Sequence[str]) -> None:
        self.issues = tuple(issues)
        count = f"{len(self.issues)} issues" if len(self.issues) > 1 else "1 issue"
        super().__init__(f"{self.subject}: {count}: " + "; ".join(self.issues))


class Unkillable(AgentError):
    """Something that a command started can't be killed: only the end of the whole container ends it.

    The session that holds its lock is left to expire, so that nobody else begins any sooner.
    """


class BadUsage(AgentError):
    """A word on the command line that the agent does not know."""

    status = 64


class BadEnvironment(Issues):
    """Variables of the environment that are missing or unusable."""

    status = 64
    subject = "environment"


class BadDefinition(Issues):
    """A definition that can't be run as it is written."""

    status = 65
    subject = "definition"


class CommandFailed(AgentError):
    """A command failed, and so did its further attempts."""

    status = 1
    retriable = True


class NoConnection(AgentError):
    """ZooKeeper could not be reached within KOLLA_ZK_CONNECT_TIMEOUT."""

    status = 69
    retriable = True


class CannotWrite(AgentError):
    """A config file, or what the agent must remember, can't be written."""

    status = 73


class DependenciesNotSatisfied(AgentError):
    """A command waited on its dependencies for longer than it may."""

    status = 75
    retriable = True


class AccessDenied(AgentError):
    """ZooKeeper refused the credentials, or a znode's ACL refused the agent."""

    status = 77


class CannotRender(AgentError):
    """Variables or file contents are missing, or a template is wrong."""

    status = 78


class CannotExecute(AgentError):
    """The daemon's program is there but can't be executed."""

    status = 126


class NotFound(AgentError):
    """The daemon's program is not there."""

    status = 127


class Stopped(AgentError):
    """The agent was told to stop by a signal."""

    def __init__(self, signum: int, name: str) -> None:
        super().__init__(f"stopped by {name}")
        self.signum = signum
        self.status = 128 + signum


def listed(names: Iterable[str]) -> str:
    """Names as they stand in a message: sorted, with commas."""
    return ", ".join(sorted(names))
