"""`kolla_mesos_ctl graph` of what is published."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.conftest import Deployment
from tests.ctl.trees import definition, one_time
from tests.publishing import publish
from tests.tool import tool


def test_published_services_have_a_graph_before_they_start(deployment: Deployment) -> None:
    """In every format."""
    publish(deployment, "a/db", definition())
    publish(deployment, "a/tasks", {"commands": {"sync": one_time("db/daemon")}})
    assert tool(deployment, "graph") == ("db/daemon   0 of 1 ready\ntasks/sync  waiting       <- db/daemon\n")
    assert '"db/daemon" -> "tasks/sync"' in tool(deployment, "graph", "--format", "dot")
    assert "n0 --> n1" in tool(deployment, "graph", "--format", "mermaid")
    picture = ElementTree.fromstring(tool(deployment, "graph", "--format", "svg"))
    titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["site", "db/daemon", "tasks/sync", "db/daemon->tasks/sync"]
