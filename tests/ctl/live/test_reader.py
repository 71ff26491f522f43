"""What a tree of znodes says of a deployment."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.definition.document import digest, load
from tests.ctl.trees import NOW, Tree, container, definition, deployment, one_time, ready


def test_a_container_has_the_facts_that_it_writes() -> None:
    told = container("starting", "tcp 8080: refused", since=NOW - 5, definition="3e8", generation="2")
    (found,) = deployment({"a/web": definition(), "a/web/.containers/c1": told}).services["a/web"].containers
    assert (found.host, found.stage, found.reason, found.since) == (
        "web1",
        "starting",
        "tcp 8080: refused",
        NOW - 5,
    )
    assert (found.definition_zxid, found.generation, found.ready) == (0x3E8, "2", False)


def test_a_container_of_an_older_agent_is_present_or_ready() -> None:
    """It writes a member and a ready instance only."""
    tree: Tree = {
        "web": definition(instances=2),
        "web/.party/1__party__": {"host": "h1"},
        "web/.party/2__party__": {"host": "h2"},
        "status/global/web/daemon/ready/2__party__": "{}",
    }
    found = deployment(tree).services["web"]
    assert [(each.host, each.stage, each.definition_zxid) for each in found.containers] == [
        ("h1", "present", None),
        ("h2", "ready", None),
    ]
    assert (found.ready, found.is_up) == (1, False)


def test_a_container_is_counted_once() -> None:
    """It is a member, a container and a ready instance."""
    tree = {"web": definition(), "web/.party/1__party__": {"host": "h1"}, **ready("web", "1__party__")}
    assert len(deployment(tree).services["web"].containers) == 1


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        '{"host": 1, "state": [], "since": "soon", "definition": "?"}',
        "[" * 9000,
        '"\\ud800"',
        '{"since": 1e999}',
        '{"code": 7, "outside": ["external tcp u:80"]}',
        '{"code": {}, "outside": {"external tcp u:80": 7}}',
    ],
)
def test_garbage_of_containers_is_ignored(data: str) -> None:
    """Such a container is present."""
    asking = definition({"external": {"tcp": "u:80"}})
    tree = {"web": asking, "web/.containers/1": data, "status/h/web/ended": data}
    found = deployment(tree).services["web"]
    assert [(each.stage, each.host, each.since) for each in found.containers] == [("present", "?", NOW)]
    assert [each.reason for each in found.ended] == ["it does not say why"]
    assert not [each for step in found.steps for each in step.unmet]


def test_control_characters_of_containers_are_replaced() -> None:
    tree = {"web": definition(), "web/.containers/1": container("starting", "\x1b[2J\n")}
    assert deployment(tree).services["web"].containers[0].reason == "\ufffd[2J\ufffd"


@pytest.mark.parametrize(
    ("instances", "wanted"), [(3, 3), ("2", 2), (None, 1), ("{{ many }}", 1), (-1, 1), (True, 1)]
)
def test_the_number_of_instances_is_that_of_launchers(instances: object, wanted: int) -> None:
    """The agent ignores it."""
    written = definition()
    written["service"]["instances"] = instances
    assert deployment({"web": written}).services["web"].wanted == wanted


def test_a_graph_depends_on_published_variables() -> None:
    """The value of the service wins; values that only a container knows are not guessed."""
    tree = {
        "web": definition({"path": "db/daemon", "count": "{{ n }}"}),
        "variables/n": "2",
        "web/variables/n": "3",
        "one": definition({"path": "db/daemon", "count": "{{ missing }}"}),
        "two": definition({"path": "db/daemon", "count": "{{ cpu_count }}"}),
        "all": definition({"path": "db/daemon", "count": "{{ groups['db'] | length }}"}),
        "bad": "{",
    }
    found = deployment(tree).services
    assert found["web"].steps[0].unmet[0].found == "0 of 3 instances ready"
    assert found["one"].issues[0] == (
        "missing: missing (used in service.daemon.dependencies[0].count line 1; looked at"
        " /kolla/site/one/variables/missing, /kolla/site/variables/missing);"
        " if containers find it in KOLLA_VARIABLES_DIR, set that here too"
    )
    assert found["two"].graph is not None
    assert found["all"].steps[0].unmet[0].found == "0 of 1 instances ready"
    assert "bad JSON" in found["bad"].issues[0]


def test_a_variable_of_single_hosts_has_the_value_of_one_host() -> None:
    """A value for all hosts wins."""
    tree = {
        "web": definition(
            {"path": "db/daemon", "count": "{{ n }}"}, {"path": "db/daemon", "count": "{{ m }}"}
        ),
        "web/variables/other": "1",
        "web/variables/h1/n": "5",
        "web/variables/h2/n": "6",
        "web/variables/h1/m": "7",
        "variables/m": "3",
    }
    found = deployment(tree).services["web"]
    assert [each.found for each in found.steps[0].unmet] == [
        "0 of 5 instances ready",
        "0 of 3 instances ready",
    ]


@pytest.mark.parametrize(
    ("states", "up"),
    [
        ({"sync": "done", "fill": "done"}, True),
        ({"sync": "done", "fill": "running"}, False),
        ({}, False),
    ],
)
def test_a_task_is_up_when_its_commands_are_done(states: dict[str, str], up: bool) -> None:
    """Its containers may be gone by then."""
    commands = {"sync": one_time(), "fill": {"command": "true"}}
    tree = {
        "tasks": definition(commands=commands, daemon=False),
        **{f"status/global/tasks/{name}": state for name, state in states.items()},
    }
    assert deployment(tree).is_up == up


def test_done_for_another_generation_is_not_done() -> None:
    tree = {
        "tasks": definition(commands={"sync": one_time(generation="2")}, daemon=False),
        "status/global/tasks/sync": "done",
        "status/global/tasks/sync/generations/1": "5 5",
    }
    assert not deployment(tree).is_up
    tree["status/global/tasks/sync/generations/2"] = "6 6"
    assert deployment(tree).is_up


def test_a_command_of_each_host_is_done_when_all_hosts_are_done() -> None:
    commands = {"sync": one_time(run_once="host")}
    tree = {
        "tasks": definition(commands=commands, daemon=False),
        "status/h1/tasks/sync": "done",
        "status/h2/tasks/sync": "running",
    }
    assert not deployment(tree).is_up
    assert deployment({**tree, "status/h2/tasks/sync": "done"}).is_up


def test_a_container_of_an_older_definition_is_outdated() -> None:
    tree = {"web": definition(), "web/.containers/1": container("ready", definition="3e7")}
    found = deployment(tree).services["web"]
    assert found.containers[0].runs_older_definition


def test_another_number_of_instances_outdates_no_container() -> None:
    old = digest(load(json.dumps(definition(instances=2)).encode()))
    told = {**container("ready", definition="3e7"), "digest": old}
    for published, stale in ((definition(instances=3), False), (definition("a/b"), True)):
        found = deployment({"web": published, "web/.containers/1": told}).services["web"]
        assert found.containers[0].runs_older_definition is stale


def test_a_service_with_variables_only_is_not_published() -> None:
    """It is listed, because something is wrong."""
    found = deployment({"a/web/variables/x": "1"}).services
    assert list(found) == ["a/web"]
    assert found["a/web"].definition_zxid == 0


def test_since_may_be_written_as_instances_write_it() -> None:
    told = container("ready", since="2023-11-14T22:13:20Z")  # type: ignore[arg-type]
    (found,) = deployment({"web": definition(), "web/.containers/1": told}).services["web"].containers
    assert found.since == NOW
