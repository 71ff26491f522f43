"""Two imported releases, one after the other, with programs that only sleep: a rolling upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from tests.conftest import Deployment
from tests.kolla_ansible.examples import Recorder, imported
from tests.support.agents import Containers
from tests.support.tool import tool

OLD, NEW = "2025.2", "2026.1"
HOST = "ctl-1"
KEYSTONE = "openstack/keystone/keystone"
# What only the real program needs.
REPLACED = ("command", "env", "ready", "user", "timeout", "election", "before_stop", "drain", "succeeds")


def publish(deployment: Deployment, place: Path, action: str, tag: str) -> None:
    """Import Keystone's deployment or upgrade, and publish it with short sleeps."""
    place.mkdir()
    recorder = Recorder(HOST)
    image: Mapping[str, Any] = {"image": f"quay.io/kolla/keystone:{tag}"}
    recorder.file(
        "keystone/keystone.conf", "[database]\nconnection = mysql+pymysql://a:b@192.0.2.99:3306/keystone\n"
    )
    recorder.bootstrap("expand" if action == "upgrade" else "bootstrap", "keystone", **image)
    recorder.daemon("keystone", **image)
    if action == "upgrade":
        recorder.bootstrap("contract", "keystone", **image)
    imported(place, [HOST], lambda run, site: recorder.tasks, action=action)
    for path in (place / "site").glob("services/*/*/*/definition.yml"):
        put_to_sleep(path)
    tool(deployment, "publish", place / "site", "--set", f"root={place}")


def put_to_sleep(file: Path) -> None:
    """Replace the programs of a definition."""
    definition: Any = formats.document(file.read_bytes())
    for command in definition.get("commands", {}).values():
        replace_program(command, {"command": "sleep 0.2"})
    if "service" in definition:
        replace_program(definition["service"]["daemon"], {"command": "sleep 600", "ready": {"alive": 0.2}})
    file.write_text(formats.dumped([definition]))


def replace_program(step: dict[str, Any], own: Mapping[str, Any]) -> None:
    for key in REPLACED:
        step.pop(key, None)
    for entry in step.get("files", {}).values():
        entry["dest"] = "{{ root }}" + entry["dest"]
        entry.pop("owner", None)
    step.update(own)


def test_an_upgrade_expands_replaces_and_contracts(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    publish(deployment, tmp_path / "old", "deploy", OLD)
    assert containers.start("openstack/keystone/bootstrap", HOST, KOLLA_GENERATION=OLD).ends() == 0
    old = containers.start(KEYSTONE, HOST, KOLLA_GENERATION=OLD)
    tool(deployment, "wait", "--timeout", "60")

    publish(deployment, tmp_path / "new", "upgrade", NEW)
    new = containers.start(KEYSTONE, HOST, KOLLA_GENERATION=NEW)
    new.says("keystone/daemon waits for expand/run")
    assert containers.start("openstack/keystone/expand", HOST, KOLLA_GENERATION=NEW).ends() == 0
    new.says("the daemon is ready")
    contract = containers.start("openstack/keystone/contract", HOST, KOLLA_GENERATION=NEW)
    contract.says(f"keystone on {HOST} still has generation {OLD}")
    assert new.running and contract.running

    old.end()
    assert contract.ends() == 0
    old.restart()
    assert old.ends() == 76
    assert new.running
