"""A large deployment for a measurement: services in chains of LEVELS, each with `each` containers.

The services of a chain follow one another. Each makes a schema, a one-time command, once all instances
of the one before it are ready; then its daemons start, if an instance of the chain's first service is
ready, and all members of the one before are present. One service in ten renders a file over these
members, and its command has a generation.
"""

from __future__ import annotations

import json

from kazoo.client import KazooClient

LEVELS = 6
TIMEOUT = 60  # seconds: a process with thousands of sessions may need some to serve them all
TEMPLATED = 10  # one service of so many
GATE = "gate/open"  # what the first of a chain waits for
TEMPLATE = 'servers = {{ list_ips_by_service("%s", 5000) }}\nregion = {{ region }}\n'


def role(number: int) -> str:
    return f"role{number:03}"


def service(number: int) -> str:
    return f"scale/{role(number)}"


def level(number: int) -> int:
    """How many services come before this one in its chain."""
    return number % LEVELS


def levels(services: int) -> int:
    """How long the longest chain is."""
    return min(LEVELS, services)


def is_templated(number: int) -> bool:
    return number % TEMPLATED == 1


def definition(number: int, each: int) -> dict[str, object]:
    """What is published for the service."""
    schema: dict[str, object] = {"command": "true", "run_once": True, "dependencies": [GATE]}
    daemon: dict[str, object] = {"command": "true", "dependencies": [f"{role(number)}/schema"]}
    if level(number):
        schema["dependencies"] = [{"path": f"{role(number - 1)}/daemon", "count": each}]
        daemon["dependencies"] = [
            f"{role(number)}/schema",
            f"{role(number - level(number))}/daemon",
            {"members": service(number - 1), "count": each},
        ]
    if is_templated(number):
        schema["generation"] = "{{ tag }}"
        daemon["files"] = {"config": {"dest": "/nowhere", "perm": "0600"}}
    return {
        "name": service(number),
        "commands": {"schema": schema},
        "service": {"daemon": daemon},
    }


def publish(zk: KazooClient, path: str, services: int, each: int) -> None:
    """Publish it below `path`, and close the gate."""
    zk.ensure_path(path)
    for name, value in {"tag": "v1", "region": "one"}.items():
        zk.create(f"{path}/variables/{name}", value.encode(), makepath=True)
    for number in range(services):
        at = f"{path}/{service(number)}"
        zk.create(at, json.dumps(definition(number, each)).encode(), makepath=True)
        if is_templated(number):
            zk.create(f"{at}/files/config", (TEMPLATE % service(number - 1)).encode(), makepath=True)
    zk.create(f"{path}/status/global/{GATE}", b"waiting", makepath=True)
