"""The graph of a deployment, in each language."""

from __future__ import annotations

import subprocess
from xml.etree import ElementTree

from kolla_mesos_start.ctl.live import graph
from tests.ctl.trees import Tree, container, definition, deployment, one_time, ready

TREE: Tree = {
    "a/db": definition(instances=2),
    **ready("db", "1", service="a/db"),
    "a/db/.containers/2": container("starting"),
    "a/tasks": definition(
        commands={"sync": one_time({"path": "db/daemon", "count": 2}), "fill": one_time("tasks/sync")},
        daemon=False,
    ),
    "status/global/tasks/sync": "error",
    "a/web": definition(
        "tasks/fill",
        {"members": "a/db"},
        {"path": "cache/daemon", "scope": "local"},
        'q"/x',
        {"external": {"http": "https://u.example/secret"}},
    ),
}

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>&amp;\\N\"'/ü"
WEB = ("tasks/fill", "db/daemon (1 present)", "cache/daemon (same host)", 'q"/x')
OUTSIDE = "external http u.example:443"


def test_the_text_has_the_dependencies_of_each_step() -> None:
    assert [line.whole().plain for line in graph.text(graph.of(deployment(TREE)))] == [
        "db/daemon                    1 of 2 ready",
        "tasks/sync                   error                   <- db/daemon (2)",
        "tasks/fill                   waiting                 <- tasks/sync",
        f"web/daemon                   0 of 1 ready            <- {', '.join(WEB)}, {OUTSIDE}",
        f"{OUTSIDE}  outside the deployment",
        "cache/daemon                 no service provides it",
        'q"/x                         no service provides it',
    ]


def test_a_daemon_comes_after_the_commands_of_its_service() -> None:
    """Only after the last ones."""
    commands = {"one": one_time(), "two": one_time("web/one"), "three": one_time()}
    edges = graph.of(deployment({"web": definition("web/three", commands=commands)})).edges
    assert [(edge.before, edge.after) for edge in edges] == [
        ("web/one", "web/two"),
        ("web/three", "web/daemon"),
        ("web/two", "web/daemon"),
    ]


def test_an_imported_edge_has_its_reason() -> None:
    reasons = {("db", "tasks"): "keystone.conf:12 connection", ("tasks", "web"): "the recorded order"}
    found = graph.of(deployment(TREE), reasons)
    labels = {(edge.before, edge.after): edge.label for edge in found.edges}
    assert labels["db/daemon", "tasks/sync"] == "2, keystone.conf:12 connection"
    assert labels["tasks/fill", "web/daemon"] == "the recorded order"
    assert labels["cache/daemon", "web/daemon"] == "same host"


def test_dot_quotes_every_name() -> None:
    lines = graph.dot(graph.of(deployment(TREE)), "site").splitlines()
    assert lines[0] == 'digraph "site" {' and lines[-1] == "}"
    assert '  "db/daemon" -> "tasks/sync" [label="2"]' in lines
    assert '  "q\\"/x" -> "web/daemon"' in lines
    assert '  "tasks/sync" [label="tasks/sync\\nerror" fillcolor="#f5a9a9"]' in lines


def test_an_empty_deployment_has_an_empty_graph() -> None:
    empty = graph.of(deployment({}))
    assert not list(graph.text(empty))
    assert graph.dot(empty, "site").startswith("digraph")


def test_graphviz_draws_every_name_unchanged() -> None:
    """Names are neither XML nor escapes of Graphviz."""
    tree = {**TREE, "a/web": definition("tasks/fill", HOSTILE)}
    source = graph.dot(graph.of(deployment(tree)), HOSTILE)
    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=source, capture_output=True, encoding="utf-8", check=True
    ).stdout
    picture = ElementTree.fromstring(drawn)
    assert picture.tag == f"{SVG}svg"
    texts = {each.text for each in picture.iter(f"{SVG}text")}
    assert {"db/daemon", "1 of 2 ready", "tasks/sync", "error", HOSTILE, "no service provides it"} <= texts
    assert not list(picture.iter(f"{SVG}script"))
    assert len([each for each in picture.iter(f"{SVG}g") if each.get("class") == "edge"]) == 4
