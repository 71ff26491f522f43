"""The metrics that follow from a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kolla_mesos_start.ctl.live import metrics as families
from kolla_mesos_start.ctl.live.metrics import FAMILIES, Sample
from kolla_mesos_start.tree.codec import PublicationMark
from tests.ctl.live.test_election import DEFINITION, FORMED, hosts
from tests.ctl.trees import NOW, Tree, container, definition, deployment, one_time, ready

Found = Mapping[tuple[str, tuple[str, ...]], float]


def samples(tree: Tree) -> list[Sample]:
    live = deployment(tree)
    found = [*families.of_deployment(live, 0, NOW)]
    return found + [sample for each in live.services.values() for sample in families.of_service(each)]


def metrics(tree: Tree) -> Found:
    found = {(family, labels): float(value) for family, labels, value in samples(tree)}
    assert len(found) == len(samples(tree)), "each series once"
    return found


def named(found: Found, family: str) -> dict[tuple[str, ...], float]:
    return {labels: value for (name, labels), value in found.items() if name == family}


WAITING: Tree = {
    "app/db": definition(instances=1),
    "app/api": definition("db/daemon", "mq/daemon", instances=2),
    "app/api/.containers/1": container("waiting", host="h1", since=NOW - 60, command="api/daemon"),
    "app/api/.containers/2": container("waiting", host="h1", since=NOW - 90, command="api/daemon"),
    "status/h1/api": "app/api",
}


def test_a_waiting_container_says_since_when_and_for_what() -> None:
    """Of two on one host, the one that has waited longer."""
    found = metrics(WAITING)
    assert named(found, "container_waiting_timestamp_seconds") == {
        ("app/api", "h1", "api/daemon", "db/daemon"): NOW - 90,
        ("app/api", "h1", "api/daemon", "mq/daemon"): NOW - 90,
    }
    assert found["containers", ("app/api", "waiting")] == 2


def test_a_service_has_its_wanted_and_its_ready_instances() -> None:
    found = metrics({"app/api": definition(instances=2), **ready("api", "1", service="app/api")})
    assert [found[f"service_{each}", ("app/api",)] for each in ("up", "instances_wanted", "valid")] == [
        0,
        2,
        1,
    ]
    assert found["service_instances_ready", ("app/api",)] == 1
    assert found["containers", ("app/api", "ready")] == 1


def test_a_definition_with_errors_is_not_valid() -> None:
    assert metrics({"app/api": "[nonsense"})["service_valid", ("app/api",)] == 0


@pytest.mark.parametrize(
    ("state", "detail", "expected"),
    [
        ("running", {"started": NOW - 5}, {"command_running_timestamp_seconds": NOW - 5}),
        (
            "error",
            {"started": NOW - 9, "finished": NOW - 5, "state": "error"},
            {"command_last_duration_seconds": 4, "command_last_failure_timestamp_seconds": NOW - 5},
        ),
        (
            "done",
            {"started": NOW - 9, "finished": NOW - 5, "state": "done"},
            {"command_last_duration_seconds": 4},
        ),
    ],
)
def test_a_one_time_command_has_its_last_attempt(
    state: str, detail: dict[str, Any], expected: dict[str, float]
) -> None:
    tree: Tree = {
        "app/api": definition(commands={"sync": one_time()}),
        "status/global/api/sync": state,
        "status/global/api/sync/detail": {"attempt": 3, **detail},
    }
    found = {name: value for (name, labels), value in metrics(tree).items() if labels[1:2] == ("api/sync",)}
    done = {"command_done": float(state == "done"), "command_attempts": 3.0}
    assert found == {**done, **expected}


def test_a_command_that_runs_once_on_each_host_has_series_for_each() -> None:
    each = {"command": "true", "run_once": "host"}
    tree: Tree = {"app/api": definition(commands={"sync": each})} | {
        f"status/{host}/api{below}": value
        for host in ("h1", "h2")
        for below, value in {"": "app/api", "/sync": "error", "/sync/detail": {"attempt": 2}}.items()
    }
    assert named(metrics(tree), "command_attempts") == {
        ("app/api", "api/sync", "h1"): 2,
        ("app/api", "api/sync", "h2"): 2,
    }


def test_stale_containers_and_refreshes_are_counted() -> None:
    old: dict[str, Any] = {"definition": "1", "digest": "other"}
    tree: Tree = {
        "app/api": definition(instances=3),
        **{f"status/global/api/daemon/ready/{each}": "{}" for each in "123"},
        "app/api/.containers/1": container("ready", **old),
        "app/api/.containers/2": container("ready", **old, follows=True),
        "app/api/.containers/3": container("ready", code="refresh-failed"),
    }
    found = metrics(tree)
    wanted = {
        "containers_stale": 2,
        "containers_restart_needed": 1,
        "refreshes_pending": 1,
        "refreshes_failed": 1,
    }
    assert {each: found[each, ("app/api",)] for each in wanted} == wanted


def test_a_container_that_was_killed_is_gone() -> None:
    tree: Tree = {
        "app/api": definition(),
        "app/api/.containers": "",
        "status/h1/api/daemon": "running",
        "status/h1/api/daemon/ready": "",
    }
    assert metrics(tree)["containers_gone", ("app/api", "killed")] == 1


@pytest.mark.parametrize(("is_running", "expected"), [(True, (0, 1)), (False, (1, 0))])
def test_a_publication_runs_or_is_unfinished(is_running: bool, expected: tuple[int, int]) -> None:
    tree: Tree = {
        "app/api": definition(),
        ".publication": json.loads(PublicationMark("publication", "me", "now", None).encoded()),
    }
    lock = {".publication/lock-1": ""} if is_running else {}
    found = metrics({**tree, **lock})
    assert (found["publication_unfinished", ()], found["publication_running", ()]) == expected


def test_an_election_has_its_epoch_and_its_missing_members() -> None:
    tree = {"infra/db": DEFINITION, **FORMED, **hosts(h1="g:9")}
    found = metrics(tree)
    assert found["election_epoch", ("infra/db",)] == 1
    assert found["election_members_missing", ("infra/db",)] == 2
    assert named(found, "election_member_missing") == {("infra/db", "h2"): 1, ("infra/db", "h3"): 1}


def test_what_a_container_writes_becomes_no_label() -> None:
    """It may write anything about itself, and something else each second."""
    forged = container("x" * 99, host="nowhere", command="rm/rf", reason="secret", code="y" * 99)
    waiting = container("waiting", host="elsewhere", command="z/z", outside={"q": "w"})
    found = metrics({**WAITING, "app/api/.containers/3": forged, "app/api/.containers/4": waiting})
    used = {label for _, labels in found for label in labels}
    assert used == {
        "app/db",
        "app/api",
        "h1",
        "?",
        "waiting",
        "other",
        "api/daemon",
        "",
        "db/daemon",
        "mq/daemon",
    }


def test_the_output_is_openmetrics_with_conventional_names() -> None:
    connection = families.of_connection("1", True, 2, 1, 10.0)
    text = families.page([*connection, *samples(WAITING)]).decode()
    found = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    parsed = {each.name: each for each in found}
    assert parsed["kolla_mesos_zookeeper_connections"].type == "counter"
    assert parsed["kolla_mesos_build"].type == "info"
    assert text.endswith("# EOF\n")
    assert sum(len(each.samples) for each in parsed.values()) == text.count("\n") - 2 * len(parsed) - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_name_has_its_unit_at_its_end(name: str) -> None:
    """https://prometheus.io/docs/practices/naming/: base units, plural; the suffixes of types are added."""
    _, labels, meaning = FAMILIES[name]
    is_time = any(word in meaning for word in ("Since when", "When ", "Duration", "timeout"))
    assert name.endswith("_seconds") == is_time
    assert not name.endswith(("_total", "_info", "_count"))
    assert meaning.endswith(".") and len(set(labels)) == len(labels)
