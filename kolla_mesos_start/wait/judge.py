"""Decides whether a command may run. Pure: the same znodes always give the same decision.

`tree.states` decides about one dependency; here the dependencies, marks and generation of a command are
combined.
"""

from __future__ import annotations

from types import MappingProxyType

from kolla_mesos_start.definition.forms import ANY
from kolla_mesos_start.definition.model import Dependency, External
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.zookeeper.query import data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kolla_mesos_start.definition.model import Command, Members
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.wait.external import Answer
    from kolla_mesos_start.zookeeper.query import Query, View

SUPERSEDED = "a newer definition has run it since; restart this container"
AGAIN = "its dependencies are read again"


class Runnable(NamedTuple):
    """A command that may run now.

    `contender` is our znode that holds its lock. A one-time command without one is already done.
    """

    command: Command
    contender: str | None = None

    @property
    def already_done(self) -> bool:
        return self.command.run_once is not None and self.contender is None


class Blocked(NamedTuple):
    """A command that must wait, for its unmet dependencies, for another `reason`, or for both.

    Satisfied dependencies are not watched while another one is unmet.
    """

    command: Command
    unmet: Sequence[Unmet]
    reason: str = ""


class Progress(NamedTuple):
    """What this container knows besides the znodes.

    `own`: the commands of its definition; `passed`: those that it has behind it. `definition`: a zxid.
    `image`: the generation of the code in its image, if known. `published`: the published generations of
    commands of other services, as far as they are needed.
    """

    own: frozenset[str]
    passed: frozenset[str]
    definition: int
    image: str | None
    answers: Mapping[External, Answer]
    published: states.Published = MappingProxyType({})


def judge(command: Command, view: View, znodes: Znodes, progress: Progress) -> Runnable | Blocked | None:
    """Whether the command may run; None if the lock decides."""
    known = [each for each in command.dependencies if _queries(each, view, znodes, progress) <= view.keys()]
    unmet = [found for each in known if (found := _unmet(each, view, znodes, progress))]
    foreign = _foreign(command, view, znodes, progress)
    if unmet:
        return Blocked(command, unmet, foreign)
    if len(known) < len(command.dependencies):
        return Blocked(command, (), AGAIN)  # The others were satisfied when they were last read.
    if command.run_once is None or states.is_done(command, znodes, view):
        return Runnable(command)
    if states.superseded_by(command, znodes, view, progress.definition) is not None:
        return Blocked(command, (), SUPERSEDED)
    return Blocked(command, (), foreign) if foreign else None


def _foreign(command: Command, view: View, znodes: Znodes, progress: Progress) -> str:
    """The reason why another image must run it: otherwise old code would be recorded as the new migration."""
    if command.run_once is None or command.generation is None:
        return ""
    if progress.image in (None, command.generation) or states.is_done(command, znodes, view):
        return ""
    return f"{command.path} is for {command.generation}, this image is {progress.image}"


def queries(blocked: Blocked, view: View, znodes: Znodes, progress: Progress) -> set[Query]:
    """What must be known to judge a command again. More may be needed once these are answered."""
    command = blocked.command
    found: set[Query] = set()
    for dependency in [unmet.dependency for unmet in blocked.unmet] or command.dependencies:
        found |= _queries(dependency, view, znodes, progress)
    if command.run_once is not None:
        found.update(states.once_queries(command, znodes, view))
        found.add(data_of(znodes.token_floor))  # For the claim.
    return found


def _queries(
    dependency: Dependency | Members | External, view: View, znodes: Znodes, progress: Progress
) -> set[Query]:
    if isinstance(dependency, External) or _is_only_own(dependency, progress):
        return set()
    return set(states.queries(dependency, znodes, view, progress.image))


def _is_only_own(dependency: Dependency | Members, progress: Progress) -> bool:
    """Whether it is satisfied as soon as this container itself has passed the command."""
    return (
        isinstance(dependency, Dependency)
        and dependency.path in progress.own
        and dependency.generation in (None, ANY)
        and dependency.count is None
    )


def _unmet(
    dependency: Dependency | Members | External, view: View, znodes: Znodes, progress: Progress
) -> Unmet | None:
    if isinstance(dependency, External):
        answer = progress.answers.get(dependency)
        if answer is None:
            return Unmet(dependency, "no answer yet")
        return Unmet(dependency, answer.failure, answer.since) if answer.failure else None
    # A command of the same definition must first be passed by this container.
    if isinstance(dependency, Dependency) and dependency.path in progress.own:
        if dependency.path not in progress.passed:
            return Unmet(dependency, "not run by this container yet")
        if _is_only_own(dependency, progress):
            return None
    return states.unmet(dependency, view, znodes, progress.image, progress.published)
