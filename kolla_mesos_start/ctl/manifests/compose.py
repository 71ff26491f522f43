"""Compose files, for podman-compose and docker compose.

    host                          <host>.yml, a project of the deployment's name
    service, task                 a service of this project
    volume for data of its own    a volume of the project

No container waits for another: the agents keep the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.ctl.directory.container_settings import IMAGE
from kolla_mesos_start.ctl.manifests import per_host
from kolla_mesos_start.ctl.manifests.model import Manifests, Model, Workload, engine_options, filled
from kolla_mesos_start.ctl.manifests.per_host import Mount, PerHostContainer
from kolla_mesos_start.ctl.manifests.quadlet import cpu_shares
from kolla_mesos_start.errors import listed

Document = dict[str, Any]
# Options of a container engine that may be there several times, and the keys of their lists.
LISTS = {"cap-drop": "cap_drop", "cap-add": "cap_add", "security-opt": "security_opt", "device": "devices"}
HEALTH_CHECK = {"interval": "10s", "timeout": "5s", "retries": 3}


def manifests(model: Model) -> Manifests:
    """A file for each host."""
    hosts = per_host.by_host(model)
    files = {f"{host}.yml": formats.dumped([project(containers)]) for host, containers in hosts.items()}
    return Manifests(files, [*per_host.notes(hosts), *_notes(model)])


def _notes(model: Model) -> Iterator[str]:
    services = listed(each.service for each in model.workloads if each.needs_hook)
    if services:
        yield (
            "stop the containers with `docker compose` 2.30 or newer: only that runs `pre_stop`. For"
            f" podman-compose set KOLLA_START_MODE to supervise in launch.yml: {services}"
        )
    if any(each.agent and each.agent.kind == IMAGE for each in model.workloads):
        yield (
            "mounting the agent's image needs podman-compose 1.6, or docker compose 2.35 with Docker 28:"
            " otherwise use `agent: {host: DIRECTORY}` in launch.yml"
        )


def project(containers: Sequence[PerHostContainer]) -> Document:
    """All of one host."""
    found: Document = {"name": containers[0].workload.project}
    found["services"] = {each.workload.name: service(each) for each in containers}
    volumes = [mount.source for each in containers for mount in each.mounts if mount.is_volume]
    return {**found, **filled({"volumes": {name: {"name": name} for name in volumes}})}


def service(container: PerHostContainer) -> Document:
    """One of its services; the image's ENTRYPOINT, dumb-init, stays in front of the agent."""
    workload = container.workload
    own = {each.path for each in workload.volumes}
    # Anonymous volumes get the owner of the image's directory; in podman, a tmpfs does not.
    anonymous = [path for path in container.temporary if not (path in own or workload.agent)]
    found: Document = {
        "image": escaped(workload.image),
        # podman-compose and docker compose would choose different ones.
        "container_name": container.full_name,
        "command": [escaped(each) for each in workload.argv],
        "environment": {name: escaped(value) for name, value in container.environ("docker logs").items()},
        "network_mode": None if workload.on_own_network else "host",
        "ports": [f"{port.number}:{port}" for port in workload.ports if workload.on_own_network],
        **_rights(workload),
        "volumes": [*map(_volume, container.mounts), *map(escaped, anonymous)],
        "tmpfs": [f"{escaped(path)}:mode=1777,exec" for path in container.temporary if path not in anonymous],
        "mem_limit": f"{workload.settings.memory}m" if workload.settings.memory else None,
        "cpu_shares": cpu_shares(workload.settings.cpu) if workload.settings.cpu else None,
        # In Compose, a restart can't depend on the exit status.
        "restart": "on-failure" if workload.is_task else "always",
        "pre_stop": [{"command": list(workload.stop)}] if workload.needs_hook else None,
        "stop_grace_period": f"{workload.grace}s",
        "healthcheck": None if workload.is_task else {"test": ["CMD", *workload.liveness], **HEALTH_CHECK},
    }
    return filled(found)


def _rights(workload: Workload) -> Mapping[str, object]:
    found: dict[str, Any] = {}
    for option, value in engine_options(workload):
        if option in LISTS:
            found.setdefault(LISTS[option], []).append(escaped(value))
        elif option == "ulimit":
            name, _, limits = value.partition("=")
            soft, hard = map(int, limits.split(":"))
            found.setdefault("ulimits", {})[name] = {"soft": soft, "hard": hard}
        else:
            key = "cgroup" if option == "cgroupns" else option.replace("-", "_")
            found[key] = True if value == "true" else value
    return found


def _volume(mount: Mount) -> Mapping[str, object]:
    """A directory that is missing on the host is an error; otherwise root would get an empty one there."""
    if mount.is_image:
        return {"type": "image", "source": escaped(mount.source), "target": escaped(mount.path)}
    kind = "volume" if mount.is_volume else "bind"
    return filled(
        {
            "type": kind,
            "source": escaped(mount.source),
            "target": escaped(mount.path),
            "bind": None
            if mount.is_volume
            else filled({"create_host_path": False, "propagation": mount.propagation or None}),
            "read_only": mount.read_only or None,
        }
    )


def escaped(text: str) -> str:
    """Escaped for Compose, which replaces $NAME by a variable."""
    return text.replace("$", "$$")
