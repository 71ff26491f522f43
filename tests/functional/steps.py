"""What the start consisted of, from what it left: `detail` znodes, ready instances and logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import yaml

from tests.functional.cloud import EXAMPLE, Cloud
from tests.functional.containers import Container
from tests.functional.timeline import Step


def steps_of(cloud: Cloud) -> list[Step]:
    """Every one-time command, and every container's daemon."""
    return [*_commands(cloud), *_daemons(cloud)]


def _commands(cloud: Cloud) -> Iterator[Step]:
    for container in {each.service: each for each in cloud.containers}.values():
        for name, command in _definition(container).get("commands", {}).items():
            path = f"{container.role}/{name}"
            detail = cloud.detail(path, container.host if command["run_once"] == "host" else "global")
            yield Step(path, detail["host"], _needs(command), detail["started"], detail["finished"])


def _daemons(cloud: Cloud) -> Iterator[Step]:
    for container in cloud.containers:
        daemon = _definition(container).get("service", {}).get("daemon")
        if daemon:
            instances = cloud.ready(container.service).values()
            ready_at = next(each["ready_at"] for each in instances if each["host"] == container.host)
            path = f"{container.role}/daemon"
            yield Step(path, container.host, _needs(daemon), _exec_time(container, path), ready_at)


def _definition(container: Container) -> dict[str, Any]:
    path = EXAMPLE / "services" / container.service / "definition.yml"
    definition: dict[str, Any] = yaml.safe_load(path.read_text())
    return definition


def _needs(command: Mapping[str, Any]) -> tuple[str, ...]:
    dependencies = command.get("dependencies", ())
    return tuple(each if isinstance(each, str) else each["path"] for each in dependencies)


def _exec_time(container: Container, path: str) -> float:
    """When the agent became the daemon: the last of its log lines that says so."""
    lines = (line for line in container.log.read_text().splitlines() if line.startswith('{"time"'))
    told = [line["time"] for line in map(json.loads, lines) if line["message"] == f"{path}: exec"]
    assert told, f"{container.name} never said that it execs: {container.said()}"
    return datetime.strptime(told[-1], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
