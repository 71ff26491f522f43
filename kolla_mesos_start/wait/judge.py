"""Decides whether a command may run. Pure: the same znodes always give the same decision.

`tree.states` decides about one dependency; here the dependencies, marks and generation of a command are
combined.
"""

from __future__ import annotations

from functools import partial

from kolla_mesos_start.definition.model import Dependency, External
from kolla_mesos_start.definition.strings import ANY
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree import states
from kolla_mesos_start.tree.states import Unmet
from kolla_mesos_start.zookeeper.view import data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kolla_mesos_start.definition.model import Command, Members
    from kolla_mesos_start.tree.states import Detail
    from kolla_mesos_start.tree.znodes import Znodes
    from kolla_mesos_start.wait.external import Answer
    from kolla_mesos_start.zookeeper.view import View

SUPERSEDED = "a newer definition has run it since; restart this container"


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

    `attempt`: that of the container that is running it.
    """

    command: Command
    unmet: Sequence[Unmet]
    reason: str = ""
    attempt: Detail | None = None


class Progress(NamedTuple):
    """What this container knows besides the znodes.

    `own`: the commands of its definition; `passed`: those that it has behind it. `definition_zxid`: its
    mzxid. `image`: the generation of the code in its image, if known. `published`: see `states.unmet`.
    """

    own: frozenset[str]
    passed: frozenset[str]
    definition_zxid: int
    image: str | None
    answers: Mapping[External, Answer]
    published: Callable[[Dependency], str | None] = lambda dependency: None


def judge(
    command: Command, view: View, znodes: Znodes, progress: Progress, before: Sequence[Unmet] = ()
) -> Runnable | Blocked | None:
    """Whether the command may run; None if the lock decides. Raises Unknown.

    `view` is for this command alone. Only the unmet dependencies are watched, if there are any: as long as
    one of those that were unmet `before` still is, the others are not read.
    """
    kept = {each.dependency for each in before}
    dependencies = [
        each for each in command.dependencies if not before or each in kept or isinstance(each, External)
    ]
    *found, once = view.all(
        *(partial(_unmet, each, view, znodes, progress) for each in dependencies),
        partial(_decide_once, command, view, znodes, progress),
    )
    unmet = [each for each in found if each]
    if unmet and kept ^ {each.dependency for each in unmet}:
        view.noted.clear()
        return judge(command, view, znodes, progress, unmet)
    if unmet:
        return Blocked(command, unmet, once.reason if isinstance(once, Blocked) else "")
    if before:
        return judge(command, view, znodes, progress)
    return once  # type: ignore[no-any-return]


def _decide_once(
    command: Command, view: View, znodes: Znodes, progress: Progress
) -> Runnable | Blocked | None:
    """What the marks and the generation of a command decide; None if the lock does."""
    if command.run_once is None:
        return Runnable(command)
    at = states.once_znodes(command, znodes)
    view.noted |= {data_of(at.detail), data_of(znodes.token_floor)}  # For the claim.
    if states.is_done(command, znodes, view):
        return Runnable(command)
    if states.superseded_by(command, znodes, view, progress.definition_zxid) is not None:
        return Blocked(command, (), SUPERSEDED)
    if command.generation is None or progress.image in (None, command.generation):
        return None
    # Otherwise old code would be recorded as the new migration.
    return Blocked(command, (), f"{command.path} is for {command.generation}, this image is {progress.image}")


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
        if dependency.generation in (None, ANY) and dependency.count is None:
            return None
    return states.unmet(dependency, view, znodes, progress.image, progress.published)
