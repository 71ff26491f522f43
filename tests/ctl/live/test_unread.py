"""What containers have not read yet; znodes have the zxid 1000 unless another one is given."""

from __future__ import annotations

from typing import Any

import pytest

from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.ctl.zk.containers import Container
from tests.ctl.trees import NOW, ZNODES, container, deployment, one_time, view

FILES = {
    "a.conf": {"dest": "/a"},
    "raw": {"dest": "/r", "template": False},
    "m": {"dest": "/m", "mounted": "/x"},
}
DAEMON = {"command": "web --{{ word }}", "env": {"P": "{{ secret }}"}, "files": FILES, "ready": {"alive": 1}}
COMMANDS = {
    "once": one_time(env={"A": "{{ admin }}"}, files={"once": {"dest": "{{ place }}"}}),
    "each": {"command": "x {{ each }}"},
}
TREE: dict[str, Any] = {
    "web": {"commands": COMMANDS, "service": {"daemon": DAEMON}},
    "web/files/a.conf": "{% if x %}{{ branch }}{% endif %} {{ host_only }} {{ given_here }}",
    "web/files/raw": "{{ untouched }}",
    "web/files/m": "",
    "web/files/once": "{{ in_once }}",
    "web/variables/own": "1",
    "status/global/web/daemon/ready/1": "{}",
    **{
        f"variables/{name}": "1"
        for name in ("word", "secret", "branch", "admin", "each", "untouched", "other")
    },
}


def found(changed: dict[str, int], **said: Any) -> Container:
    """What is made of a container that has read up to the zxid 1000."""
    told = container("ready", **{"definition": "3e8", "read": "0x3e8", **said})
    tree = {**dict.fromkeys(changed, "1"), **TREE, "web/.containers/1": told}
    return deployment(tree, zxids=changed).services["web"].containers[0]


@pytest.mark.parametrize(
    ("node", "older"),
    [
        ("variables/word", "variable word"),
        ("variables/secret", "variable secret"),
        ("variables/branch", "variable branch"),
        ("variables/each", "variable each"),
        ("variables/place", "variable place"),
        ("variables/in_once", "variable in_once"),
        ("variables/other", None),
        ("variables/untouched", None),
        ("variables/admin", None),
        ("web/variables/secret", "variable secret"),
        ("web/variables/web1/host_only", "variable host_only"),
        ("web/variables/web2/host_only", None),
        ("other/variables/secret", None),
        ("web/files/a.conf", "file a.conf"),
        ("web/files/raw", "file raw"),
        ("web/files/m", None),
        ("web/files/unknown", None),
    ],
)
def test_changes_after_the_container_has_read_are_found(node: str, older: str | None) -> None:
    """If a restart would read them, on any branch; a one-time command that is done does not run again."""
    each = found({node: 1001})
    assert [part.what for part in each.older] == ([older] if older else [])
    assert each.is_current == (older is None)
    assert not found({node: 1000}).older


def test_a_nearer_value_hides_a_change() -> None:
    assert not found({"variables/secret": 1001, "web/variables/secret": 999}).older


@pytest.mark.parametrize("said", [{"read": None}, {"state": "waiting"}])
def test_a_container_that_has_rendered_nothing_is_current(said: dict[str, Any]) -> None:
    told = {**container("ready", definition="3e8", read="0x3e8"), **said}
    tree = {key: value for key, value in TREE.items() if not key.endswith("ready/1")}
    services = deployment({**tree, "web/.containers/1": told}, zxids={"variables/secret": 1001}).services
    assert not services["web"].containers[0].older


@pytest.mark.parametrize(
    ("node", "said", "refreshing", "restart"),
    [
        ("variables/secret", {}, False, True),
        ("variables/secret", {"follows": True}, True, False),
        ("variables/each", {"follows": True}, False, True),
        ("web", {"follows": True, "digest": "x"}, True, False),
        ("web", {"digest": "x"}, False, True),
        ("variables/secret", {"follows": True, "code": "refresh-running"}, True, False),
        ("variables/secret", {"follows": True, "code": "refresh-failed"}, False, False),
        ("web", {"follows": True, "digest": "x", "code": "restart"}, False, True),
        ("variables/other", {"follows": True, "code": "refresh-settling"}, True, False),
    ],
)
def test_a_refresh_or_a_restart_replaces_older_parts(
    node: str, said: dict[str, Any], refreshing: bool, restart: bool
) -> None:
    """A refresh, for the daemon's templates."""
    each = found({node: 1001}, **said)
    assert (each.is_refreshing, each.needs_restart) == (refreshing, restart)
    assert not each.is_current


def test_no_value_of_a_variable_is_read() -> None:
    """Only the zxid of its last change."""
    tree = {**TREE, "web/.containers/1": container("ready", read="0x1", since=NOW)}
    read = view(DeploymentReader(ZNODES), tree)
    paths = [f"{ZNODES.deployment}/{path}" for path in tree if "variables/" in path]
    assert len(paths) > 1
    assert [(each := read.znode(path)) and each.data for path in paths] == [b""] * len(paths)
    assert read.wanted == {*paths}


@pytest.mark.parametrize(
    ("published", "own", "other", "reason"),
    [
        (None, "1", "2", "of generation 1, another container one of generation 2"),
        (None, "1", "1", ""),
        (None, "1", None, ""),
        (None, None, "2", ""),
        ("2", "1", "1", "of generation 1 (published: 2)"),
        ("1", "1", "2", ""),
    ],
)
def test_an_image_of_another_generation_is_named(
    published: str | None, own: str | None, other: str | None, reason: str
) -> None:
    """Than the published one or, if none is published, than that of another container."""
    commands = {"sync": one_time(generation=published)} if published else {}
    tree = {"web": {"commands": commands, "service": {"daemon": {"command": "web", "ready": {"alive": 1}}}}}
    for number, generation in (("1", own), ("2", other)):
        said: dict[str, Any] = {"generation": generation} if generation else {}
        tree[f"web/.containers/{number}"] = container("ready", host=f"web{number}", **said)
    first, _ = deployment(tree).services["web"].containers
    assert first.host == "web1"
    assert [each.what for each in first.older] == ([f"image {reason}"] if reason else [])
