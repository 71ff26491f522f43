"""A running deployment as records.

What belongs here: the records, and what follows from one record alone. They are made by `reader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kolla_mesos_start.ctl.live.election import LiveElection
from kolla_mesos_start.ctl.zk.containers import BEGUN, DRAINING, Container
from kolla_mesos_start.definition.model import Command, Graph
from kolla_mesos_start.definition.strings import DAEMON
from kolla_mesos_start.report import NEVER_READY
from kolla_mesos_start.tree.codec import PublicationMark
from kolla_mesos_start.tree.states import Detail, Unmet

CLOCK_STEP = 1.0  # seconds; containers write times in whole ones

# In exec mode the agent is replaced by the daemon, and not its parent.
UNKNOWN_STATUS = "only its launcher knows its exit status (KOLLA_START_MODE is exec)"


class EndedStart(NamedTuple):
    """How the last start on a host failed: the reason, and when (seconds since the epoch). `retriable`: the
    same container may be started again. `logs`: how to read its log. `times`: how many starts in a row have
    failed."""

    host: str
    stage: str
    command: str
    reason: str
    retriable: bool
    status: int | None
    at: float
    zxid: int
    code: str = ""
    logs: str = ""
    times: int = 1

    def how(self, ago: str = "") -> str:
        """A sentence without its subject: with the exit status, or why that is unknown."""
        status = "" if self.status is None else f"exit status {self.status}"
        if self.stage != DAEMON:
            known = f", {status}" if status not in ("", self.reason) else ""
            return f"ended{ago} in stage {self.stage}{known}: {self.reason}"
        # The daemon was never ready; or it was stopped for new files and could not be started again.
        how = self.reason if self.code == NEVER_READY else f"ended: {self.reason}"
        return f"{how}{ago and ','}{ago}; {status or UNKNOWN_STATUS}"

    def is_over(self, next_one: Container) -> bool:
        """Whether a later start has got past the point at which this one failed, to judge by its stage.

        It must have reached its stage after that. A wait or a command that is repeated has a cause of its
        own.
        """
        if self.retriable and self.stage in ("wait", "bootstrap"):
            return True
        past = ("unready", "ready", DRAINING) if self.stage == DAEMON else BEGUN
        return next_one.stage in past and next_one.since + CLOCK_STEP >= self.at


class GoneContainer(NamedTuple):
    """A container that was ready on a host, and disappeared with the zxid `left`.

    `why` is `ended` (its daemon ended at `since`) or `killed` (it had been ready since then).
    """

    host: str
    left: int
    since: float
    why: str


class Attempt(NamedTuple):
    """The last attempt of a command in one scope (`global`, or a host); `contenders` wait for its lock."""

    scope: str
    state: str
    since: float
    detail: Detail
    contenders: int

    @property
    def is_adopted(self) -> bool:
        """Whether no container has run it: an operator has recorded it as done."""
        return self.detail.adopted is not None

    @property
    def is_taken_back(self) -> bool:
        """Whether an operator has written the record after the attempt."""
        return self.detail.taken_back is not None


class LiveStep(NamedTuple):
    """A command or a daemon: whether it is done, and which of its dependencies are not satisfied.

    `superseded`: a newer definition has run it, so containers of an older one do not.
    """

    command: Command
    done: bool
    attempts: tuple[Attempt, ...]
    unmet: tuple[Unmet, ...]
    superseded: bool

    @property
    def path(self) -> str:
        return self.command.path


class LiveService(NamedTuple):
    """`definition_zxid` is the mzxid of its definition (0: nothing is published), `issues` say why it has no
    graph. `begun`: at least one container has started, ever; `tells`: its containers write what they are
    doing. `owner` is the service that has claimed the role. `election` is that of its daemon, if it has one.
    `started_on`: the hosts where its containers have started. `denied`: we have no right to read something
    that the record is made from; `definition_denied`: the definition. `left_out`: what counts for nothing
    among what its containers have written, and why."""

    name: str
    definition_zxid: int
    graph: Graph | None
    issues: tuple[str, ...]
    wanted: int
    containers: tuple[Container, ...]
    ended: tuple[EndedStart, ...]
    steps: tuple[LiveStep, ...]
    begun: bool
    tells: bool
    owner: str
    gone: tuple[GoneContainer, ...]
    election: LiveElection | None = None
    started_on: tuple[str, ...] = ()
    denied: bool = False
    definition_denied: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def daemon(self) -> str:
        """The path of its daemon."""
        return f"{self.role}/{DAEMON}"

    @property
    def live(self) -> list[Container]:
        """The containers that may still do something."""
        return [each for each in self.containers if each.is_live]

    @property
    def is_task(self) -> bool:
        return self.graph is not None and self.graph.daemon is None

    @property
    def what(self) -> str:
        """What its instances have to become, in a word."""
        return "done" if self.is_task else "ready"

    @property
    def missing(self) -> int:
        """How many more containers are wanted than exist."""
        return (1 if self.is_task else self.wanted) - len(self.live)

    @property
    def failed_starts(self) -> list[EndedStart]:
        """The failed starts after which no other start got further, whether one is running now or not."""
        found = []
        for ended in self.ended:
            successors = [each for each in self.live if each.host == ended.host]
            # If no container is missing, the one that ended has been replaced on another host.
            is_over = any(map(ended.is_over, successors)) if successors else self.missing <= 0
            if not is_over:
                found.append(ended)
        return found

    def step(self, path: str) -> LiveStep | None:
        """Its command or daemon of this path."""
        return next((step for step in self.steps if step.path == path), None)

    @property
    def ready(self) -> int:
        """Ready instances. A task needs its commands done only once: all instances count, or none."""
        if self.is_task:
            return self.wanted if all(step.done for step in self.steps) else 0
        return sum(container.ready for container in self.containers)

    @property
    def is_up(self) -> bool:
        return self.graph is not None and self.ready >= self.wanted

    @property
    def hosts(self) -> set[str]:
        """The hosts of its containers, of failed starts, and of containers that have disappeared."""
        return {each.host for found in (self.containers, self.ended, self.gone) for each in found}

    def on_host(self, host: str) -> LiveService:
        """What there is of it on one host: as many instances are wanted as there are containers."""
        containers = tuple(each for each in self.containers if each.host == host)
        steps = (
            step._replace(
                attempts=tuple(each for each in step.attempts if host in (each.scope, each.detail.host))
            )
            for step in self.steps
        )
        return self._replace(
            containers=containers,
            ended=tuple(each for each in self.ended if each.host == host),
            gone=tuple(each for each in self.gone if each.host == host),
            started_on=tuple(each for each in self.started_on if each == host),
            steps=tuple(steps),
            wanted=max(len(containers), 1),
        )

    @property
    def role_taken(self) -> bool:
        """Whether another service has claimed its role; then no container of this one starts."""
        return self.owner not in ("", self.name)


class Publication(NamedTuple):
    """The last publication if it has not finished, and whether one is running now."""

    mark: PublicationMark | None
    is_running: bool

    @property
    def problem(self) -> str:
        """Says that it has not finished; empty if it has."""
        return "" if self.mark is None else f"{self.mark} yet" if self.is_running else self.mark.problem


class LiveDeployment(NamedTuple):
    """All services by their names; `published_at`: of the last change (seconds since the epoch)."""

    id: str
    services: Mapping[str, LiveService]
    published_at: float
    publication: Publication = Publication(None, False)

    @property
    def roles(self) -> Mapping[str, LiveService]:
        """The service of each role; if there are two, the one that has claimed it."""
        services = sorted(self.services.values(), key=lambda service: not service.role_taken)
        return {service.role: service for service in services if service.definition_zxid}

    @property
    def is_up(self) -> bool:
        return self.publication.mark is None and all(service.is_up for service in self.services.values())


# -- what keeps it from being up -------------------------------------------------------------------------

# For each kind: whether somebody has to act, and whether it stays so until somebody does.
KINDS: Mapping[str, tuple[bool, bool]] = {
    "failed": (True, True),
    "failing": (True, False),
    "running": (False, False),
    "abandoned": (True, False),
    "not ready": (True, False),
    "starting": (False, False),
    "draining": (False, False),
    "ended": (True, True),
    "gave up": (True, False),
    "absent": (True, False),
    "generation": (True, False),
    "superseded": (True, False),
    "no definition": (True, True),
    "unreadable": (True, True),
    "no provider": (True, True),
    "outside": (True, False),
    "unanswered": (False, False),
    "too many": (True, False),
    "elsewhere": (True, False),
    "gone": (True, False),
    "refresh failed": (True, True),
    "restart": (True, False),
    "keep": (True, False),
    "refreshing": (False, False),
    "claimed": (True, True),
    "cycle": (True, True),
    "no position": (True, False),
    "electing": (False, False),
    "election waits": (True, False),
    "election refused": (True, True),
    "publishing": (False, False),
    "left out": (False, False),
    "unfinished": (True, True),
}
OF_ALL = ("publishing", "unfinished")  # kinds that concern every service
# Kinds that a single look may find by mistake: znodes that change together are read one after the other.
MAY_SEEM = frozenset(("absent", "abandoned", "elsewhere", "gone", "election waits", "election refused"))


class Cause(NamedTuple):
    """`nodes` are the steps and services where it is; `blocks` are chains of steps, each of which waits for
    the one before it. A chain after the first begins at the step where it branches off.

    `at`: when it began (seconds since the epoch); None if that is unknown, or does not matter.
    """

    kind: str
    text: str
    nodes: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    at: float | None = None

    @property
    def is_stuck(self) -> bool:
        return KINDS[self.kind][0]

    @property
    def is_final(self) -> bool:
        return KINDS[self.kind][1]

    @property
    def touches(self) -> frozenset[str]:
        """All nodes where it is, or that it blocks."""
        return frozenset(self.nodes).union(*self.blocks)


def service_node(service: str) -> str:
    """The node of a service; no path of a step can be equal to it."""
    return f"service {service}"
