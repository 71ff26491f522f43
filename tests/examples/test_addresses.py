"""The deployments of `etc`: no command runs with a file in which the address of somebody is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import Service
from kolla_mesos_start.ctl.validate.rules import known_graph
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Command, Dependency, Members
from kolla_mesos_start.tree.znodes import Znodes
from tests import EXAMPLES
from tests.examples.openstack import WHOLE

LISTED = re.compile(r"list_ips_by_service\(['\"]([^'\"]+)")
# What only other services' copies of the file list.
ELSEWHERE = {("nova-compute/daemon", "infra/mariadb")}
DEPLOYMENTS = (WHOLE, *(path.parent for path in sorted(EXAMPLES.glob("*/services"))))


def commands(service: Service) -> Iterator[Command]:
    znodes = Znodes("", "site", service.name, "")
    yield from known_graph(load(json.dumps(json.loads(service.definition)).encode()), znodes, {}).all_commands


@pytest.mark.parametrize("root", DEPLOYMENTS, ids=lambda root: root.name)
def test_a_command_waits_itself_for_those_whose_addresses_its_files_list(root: Path) -> None:
    """That a command before it has waited is not enough: after an outage they may be listed again later."""
    for service in directory.read(root).services:
        for command in commands(service):
            listed = {
                name
                for file in command.files
                for name in LISTED.findall(service.files.get(file.name, b"").decode())
            }
            awaited = {each.service for each in command.dependencies if isinstance(each, Members)}
            roles = {each.path for each in command.dependencies if isinstance(each, Dependency)}
            missing = {name for name in listed - awaited if f"{name.rpartition('/')[2]}/daemon" not in roles}
            missing -= {name for path, name in ELSEWHERE if path == command.path}
            assert not missing, f"{command.path} does not wait for {missing}"
