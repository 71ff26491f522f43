"""The metrics of a running deployment.

Pure: records in, metric families out. The number of series is bounded by what is published, by the hosts
below `status`, and by fixed words: containers choose neither names nor values of labels. What a container
writes about itself only selects one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Union

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService
from kolla_mesos_start.ctl.zk.containers import DRAINING, PRESENT, Container
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.tree.states import ERROR, RETRY, RUNNING

PREFIX = "kolla_mesos_"
STATES = (
    *("waiting", "bootstrapping", "starting", "unready", "ready", DRAINING),
    *("finished", "ended", PRESENT),
)
OTHER = "other"  # any other state that a container writes
OTHER_HOST = "?"  # a host on which no container of the service has been recorded
SETTLED = ("ready", "finished")  # states in which a container waits for nothing

GAUGE, COUNTER, INFO = GaugeMetricFamily, CounterMetricFamily, InfoMetricFamily
Kind = type[Union[GaugeMetricFamily, CounterMetricFamily, InfoMetricFamily]]
SUFFIXES: Mapping[Kind, str] = {COUNTER: "_total", INFO: "_info"}
# The name (without `_total` and `_info`), its labels, and its meaning; in the order in which they are served.
SERVICE, HOST, COMMAND = ("service",), ("service", "host"), ("service", "command")
FAMILIES: Mapping[str, tuple[Kind, Sequence[str], str]] = {
    "build": (INFO, ("version",), "The version of this tool."),
    "zookeeper_connected": (
        GAUGE,
        (),
        "Whether ZooKeeper is connected and everything has been read since; while this is 0, nothing else is"
        " served about the deployment.",
    ),
    "zookeeper_connections": (COUNTER, (), "Connections to ZooKeeper that this tool has made."),
    "zookeeper_sessions": (
        COUNTER,
        (),
        "Sessions of this tool; each after the first replaced an expired one.",
    ),
    "zookeeper_session_timeout_seconds": (GAUGE, (), "The session timeout that the server has granted."),
    "read_timestamp_seconds": (GAUGE, (), "When the last change of the deployment was read."),
    "unreadable_znodes": (GAUGE, (), "Znodes that this tool has no right to read."),
    "publication_unfinished": (GAUGE, (), "Whether the last publication was interrupted."),
    "publication_running": (GAUGE, (), "Whether a publication is going on."),
    "published_timestamp_seconds": (GAUGE, (), "When the published data last changed."),
    "service_readable": (
        GAUGE,
        SERVICE,
        "Whether this tool may read everything that decides about the service.",
    ),
    "service_valid": (
        GAUGE,
        SERVICE,
        "Whether the service has a valid definition, and no other service has claimed its role.",
    ),
    "service_up": (GAUGE, SERVICE, "Whether all wanted instances are ready, or all commands of a task done."),
    "service_instances_wanted": (GAUGE, SERVICE, "Instances that are wanted."),
    "service_instances_ready": (GAUGE, SERVICE, "Instances that are ready; of a task that is done, all."),
    "containers": (
        GAUGE,
        (*SERVICE, "state"),
        "Existing containers by state; states without any are left out.",
    ),
    "containers_stale": (GAUGE, SERVICE, "Containers that run something older than what is published."),
    "containers_restart_needed": (GAUGE, SERVICE, "Stale containers that only a restart brings up to date."),
    "refreshes_pending": (GAUGE, SERVICE, "Containers whose refresh is due or running."),
    "refreshes_failed": (GAUGE, SERVICE, "Ready containers that keep old files after a refresh that failed."),
    "containers_gone": (
        GAUGE,
        (*SERVICE, "reason"),
        "Containers that were ready and have disappeared while instances are missing: killed, ended, or in a"
        " refresh.",
    ),
    "container_state_timestamp_seconds": (
        GAUGE,
        (*HOST, "state", "command"),
        "Since when a container that is not ready has been in its state, by the clock of its host.",
    ),
    "container_waiting_timestamp_seconds": (
        GAUGE,
        (*HOST, "command", "dependency"),
        "Since when a container has been waiting, and for what; the dependency is empty if it waits"
        " for its turn or for an election.",
    ),
    "start_failure_timestamp_seconds": (
        GAUGE,
        HOST,
        "When the last start on a host failed, until a later one gets further.",
    ),
    "command_done": (GAUGE, COMMAND, "Whether a one-time command is done, on all hosts where it has to be."),
    "command_attempts": (
        COUNTER,
        (*COMMAND, "host"),
        "Attempts of a one-time command; host: if once on each.",
    ),
    "command_running_timestamp_seconds": (
        GAUGE,
        (*COMMAND, "host"),
        "Since when the current attempt of a one-time command has been running.",
    ),
    "command_last_duration_seconds": (
        GAUGE,
        (*COMMAND, "host"),
        "Duration of the last attempt that has ended.",
    ),
    "command_last_failure_timestamp_seconds": (
        GAUGE,
        (*COMMAND, "host"),
        "When the last attempt failed; absent after one that succeeded.",
    ),
    "election_epoch": (GAUGE, SERVICE, "The epoch of the last decision; 0 before the first."),
    "election_members_missing": (GAUGE, SERVICE, "Hosts that the decision waits for."),
    "election_member_missing": (GAUGE, HOST, "A known member that the decision waits for; always 1."),
    "election_refused": (
        GAUGE,
        SERVICE,
        "Whether the decision, or a host, is refused until an operator acts.",
    ),
    "election_waiting_timestamp_seconds": (
        GAUGE,
        SERVICE,
        "Since when a host has been waiting for a decision.",
    ),
    "election_failed_bootstraps": (
        GAUGE,
        SERVICE,
        "How often in a row the winner ended before it was ready.",
    ),
}


Sample = tuple[str, tuple[str, ...], float]
"""A family, the values of its labels in the order of the table, and the value."""


def of_connection(
    version: str, is_current: bool, connections: int, sessions: int, timeout: float
) -> Iterator[Sample]:
    """What is served even while ZooKeeper is not connected; about this tool's own connection."""
    yield "build", (version,), 1
    yield "zookeeper_connected", (), is_current
    yield "zookeeper_connections", (), connections
    yield "zookeeper_sessions", (), sessions
    yield "zookeeper_session_timeout_seconds", (), timeout


def of_deployment(deployment: LiveDeployment, denied: int, read: float) -> Iterator[Sample]:
    """What is served about a deployment besides its services. `denied`: unreadable znodes; `read`: when it
    was read (seconds since the epoch)."""
    publication = deployment.publication
    yield "read_timestamp_seconds", (), read
    yield "unreadable_znodes", (), denied
    yield "publication_unfinished", (), publication.mark is not None and not publication.is_running
    yield "publication_running", (), publication.is_running
    yield "published_timestamp_seconds", (), deployment.published_at


def of_service(service: LiveService) -> list[Sample]:
    """What is served about one service; of one whose definition can't be read, only what others may see."""
    found = [*_of_containers(service)]
    if not service.definition_denied:
        found += [*_of_definition(service), *_of_commands(service), *_of_election(service)]
    samples = [("service_readable", (), not service.denied), *found]
    return [(family, (service.name, *labels), value) for family, labels, value in samples]


def _of_containers(service: LiveService) -> Iterator[Sample]:
    for state, count in Counter(map(_state, service.containers)).items():
        yield "containers", (state,), count
    oldest: dict[tuple[str, tuple[str, ...]], float] = {}
    for family, labels, since in _durations(service):
        oldest[family, labels] = min(since, oldest.get((family, labels), since))
    yield from ((family, labels, since) for (family, labels), since in oldest.items())


def _durations(service: LiveService) -> Iterator[Sample]:
    commands = {step.path for step in service.steps}
    for each in service.containers:
        if each.stage in SETTLED:
            continue
        host = each.host if each.host in service.started_on else OTHER_HOST
        command = each.command if each.command in commands else ""
        yield "container_state_timestamp_seconds", (host, _state(each), command), each.since
        if each.stage == "waiting":
            # Without a command, what all commands that are not done wait for.
            steps = [step for step in service.steps if (step.path == command if command else not step.done)]
            for dependency in sorted({unmet.what for step in steps for unmet in step.unmet}) or [""]:
                yield "container_waiting_timestamp_seconds", (host, command, dependency), each.since


def _state(container: Container) -> str:
    return container.stage if container.stage in STATES else OTHER


def _of_definition(service: LiveService) -> Iterator[Sample]:
    yield "service_valid", (), service.graph is not None and not service.role_taken
    yield "service_up", (), service.is_up
    yield "service_instances_wanted", (), service.wanted
    yield "service_instances_ready", (), service.ready
    yield "containers_stale", (), sum(bool(each.older) for each in service.containers)
    yield "containers_restart_needed", (), sum(each.needs_restart for each in service.containers)
    yield "refreshes_pending", (), sum(each.is_refreshing for each in service.containers)
    yield "refreshes_failed", (), sum(each.keeps_old_files for each in service.containers)
    for why, count in Counter(each.why for each in service.gone if not service.is_up).items():
        yield "containers_gone", (why,), count
    for ended in service.failed_starts:
        yield "start_failure_timestamp_seconds", (ended.host,), ended.at


def _of_commands(service: LiveService) -> Iterator[Sample]:
    for step in service.steps:
        if not step.command.run_once:
            continue
        yield "command_done", (step.path,), step.done
        for attempt in step.attempts:
            detail = attempt.detail
            labels = step.path, "" if attempt.scope == GLOBAL else attempt.scope
            yield "command_attempts", labels, detail.attempt
            if attempt.state == RUNNING:
                yield "command_running_timestamp_seconds", labels, detail.started or attempt.since
            if detail.started is not None and detail.finished is not None:
                yield "command_last_duration_seconds", labels, max(0.0, detail.finished - detail.started)
            if attempt.state in (RETRY, ERROR):
                yield "command_last_failure_timestamp_seconds", labels, detail.finished or attempt.since


def _of_election(service: LiveService) -> Iterator[Sample]:
    found = service.election
    if found is None:
        return
    decision = found.snapshot.decision
    yield "election_epoch", (), decision.epoch if decision else 0
    yield "election_members_missing", (), len(found.missing) + found.unknown
    for each in found.missing:
        yield "election_member_missing", (each.host,), 1
    yield "election_refused", (), bool(found.refused)
    yield "election_failed_bootstraps", (), found.winner_ended
    if found.is_going_on and found.since is not None:
        yield "election_waiting_timestamp_seconds", (), found.since


# -- as text ------------------------------------------------------------------------------------------------


def page(samples: Iterable[Sample]) -> bytes:
    """The samples in the OpenMetrics format: each family once, in the order of the table."""
    found: dict[str, Metric] = {}
    for name, values, value in samples:
        kind, labels, meaning = FAMILIES[name]
        if name not in found:
            found[name] = kind(f"{PREFIX}{name}", meaning, labels=() if kind is INFO else labels)
        found[name].add_sample(
            f"{PREFIX}{name}{SUFFIXES.get(kind, '')}", dict(zip(labels, values)), float(value)
        )
    families = [found[name] for name in FAMILIES if name in found]
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: families))  # type: ignore[no-untyped-call]
    return text
