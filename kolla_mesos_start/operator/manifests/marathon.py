"""A deployment as Marathon takes it: 1.5 or newer, with Docker's containerizer.

    task                      app that stays when it is done: Marathon restarts whatever ends
    service                   app
    service, data of its own  app on the first hosts of its role: data are in a directory of each of them
    service, on each host     app with one instance on each host of its role

What lives here: what stands in the apps, and in what one that Marathon has differs. Everything is started at
once: the agents keep the order.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.errors import listed
from kolla_mesos_start.operator.deployment.container_settings import KEPT, SHARED, TEMPORARY, Volume
from kolla_mesos_start.operator.manifests.model import (
    CREDENTIAL,
    DATA,
    FILES,
    HEALTH,
    READ,
    SECRETS,
    Manifests,
    Model,
    Workload,
)
from kolla_mesos_start.operator.manifests.names import LONGEST, digested, label, name_of

App = dict[str, Any]

# Marathon's own words behind the id of an app.
RESERVED = ("restart", "tasks", "versions")
WIDTH = 100  # characters of a line
CPUS, MEMORY = 0.1, 128  # where launch.yml says nothing
OFFERED = range(31000, 32001)  # the ports that a Mesos agent offers by default
# What an app may have from elsewhere: nothing here stands for it.
OTHERS = (
    *("labels", "fetch", "acceptedResourceRoles", "role", "dependencies", "disk"),
    *("backoffSeconds", "backoffFactor", "maxLaunchDelaySeconds", "unreachableStrategy", "killSelection"),
)


def manifests(model: Model) -> Manifests:
    """One file for each app, and all in one list."""
    every = apps(model)
    files = {f"{each.name}.json": _dumped(app) + "\n" for each, app in zip(model.workloads, every)}
    return Manifests(files, list(notes(model)), _dumped(every) + "\n")


def apps(model: Model) -> Sequence[App]:
    """In the order of the workloads."""
    found = ids(model)
    return [_Maker(model.deployment, found[each.service], each).app() for each in model.workloads]


def group(deployment: str) -> str:
    """The id above those of all apps of a deployment."""
    return f"/{name_of(deployment)}"


def ids(model: Model) -> Mapping[str, str]:
    """By service: its path below the deployment's. No app may be called as a group is."""
    found = {}
    for each in model.workloads:
        above = [label(part) for part in each.service.split("/")[:-1]]
        found[each.service] = "/".join([group(model.deployment), *above, each.name])
    groups = {path[: slash.start()] for path in found.values() for slash in re.finditer("/", path)}
    return {
        service: digested(path, service, len(path) + LONGEST)
        if path in groups or path.rpartition("/")[2] in RESERVED
        else path
        for service, path in found.items()
    }


def differences(app: App, found: Mapping[str, Any]) -> Sequence[str]:
    """The fields in which what Marathon has is not as the app says. It adds defaults of its own."""
    exact = ("args", "env")
    return [
        name
        for name in dict.fromkeys((*app, "constraints"))
        if not (app[name] == found.get(name) if name in exact else _is_as(app.get(name), found.get(name)))
    ]


def merged(app: App, found: Mapping[str, Any]) -> App:
    """The app, with what Marathon has of it from elsewhere."""
    return {**{name: found[name] for name in OTHERS if found.get(name)}, **app}


def _is_as(wanted: Any, found: Any) -> bool:
    if not wanted:
        return not found
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_is_as(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):  # Some are sets to Marathon.
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(any(_is_as(each, other) for other in found) for each in wanted)
        )
    return bool(wanted == found)


def _dumped(value: Any, indent: str = "") -> str:
    """JSON for people to read: what fits a line stands in one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent + flat) <= WIDTH or not isinstance(value, (dict, list)):
        return flat
    inner = f"{indent}  "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(name)}: {_dumped(each, inner)}" for name, each in value.items()]
    else:
        items = [f"{inner}{_dumped(each, inner)}" for each in value]
    return "\n".join([flat[0], ",\n".join(items), indent + flat[-1]])


# -- what only the operator can make --------------------------------------------------------------


def notes(model: Model) -> Iterator[str]:
    """What the apps need of the hosts."""
    keys = {(each.variables, "a file for each variable (KOLLA_VARIABLES_DIR)") for each in model.workloads}
    credentials = {
        (each.credential, f"a file {CREDENTIAL!r} with lines scheme:credential (KOLLA_ZK_AUTH_FILE)")
        for each in model.workloads
    }
    for name, what in sorted(keys | credentials, key=str):
        if name:
            users = [each for each in model.workloads if name in (each.variables, each.credential)]
            place = f"{SECRETS}/{name} on {_hosts(users)}"
            yield f"put the secret {name} into {place}: {what}, {READ}"
    shared = {volume.source for each in model.workloads for volume in each.volumes if volume.kind == SHARED}
    for name in sorted(shared):
        users = [each for each in model.workloads if name in {volume.source for volume in each.volumes}]
        place = f"{DATA}/{name_of(model.deployment)}/shared/{name}"
        yield f"make {place}, which all share, on {_hosts(users)}, for the users of {_named(users)} to write"
    for each in model.workloads:
        yield from _notes_of(model.deployment, each)
    ports = {port for each in model.workloads for port in each.ports if port not in OFFERED}
    if ports:
        which = ", ".join(map(str, sorted(ports)))
        yield f"have the Mesos agents offer the ports {which}: by default they offer 31000 to 32000"
    unsaid = [each for each in model.workloads if each.memory is None]
    if unsaid:
        yield f"without `memory` in launch.yml, {MEMORY} MiB is the limit of {_named(unsaid)}"


def _notes_of(deployment: str, workload: Workload) -> Iterator[str]:
    kept = [_data(deployment, workload, each.path) for each in workload.volumes if each.kind == KEPT]
    if kept:
        yield f"make {', '.join(kept)} on {_hosts([workload])}, for the user of {workload.service} to write"
    if kept and not workload.hosts:
        yield f"give {workload.service} a `placement`: its data stay on the host where it has started first"
    for file in workload.mounted:
        place = (
            f"{_files(deployment, workload, posixpath.dirname(file.path))}/{posixpath.basename(file.path)}"
        )
        missing = ", which DIR does not have," if file.content is None else ""
        yield f"put the file {file.name} of {workload.service}{missing} at {place} on {_hosts([workload])}"


def _hosts(workloads: Sequence[Workload]) -> str:
    """Where they may run."""
    if all(each.hosts for each in workloads):
        return listed({host for each in workloads for host in _placed(each)})
    return "each Mesos agent"


def _named(workloads: Iterable[Workload]) -> str:
    return listed(each.service for each in workloads)


# -- one app --------------------------------------------------------------------------------------


def _placed(workload: Workload) -> Sequence[str]:
    """The hosts that it may run on. Data do not follow a container to another one."""
    return workload.hosts[: _instances(workload)] if workload.keeps_data else workload.hosts


def _instances(workload: Workload) -> int:
    return len(workload.hosts) if workload.is_each else workload.replicas


def _data(deployment: str, workload: Workload, path: str) -> str:
    return f"{DATA}/{name_of(deployment)}/{workload.name}{path}"


def _files(deployment: str, workload: Workload, path: str) -> str:
    return f"{FILES}/{name_of(deployment)}/{workload.name}{path}"


class _Maker:
    """Makes the app of one service."""

    def __init__(self, deployment: str, id: str, workload: Workload) -> None:
        self.deployment, self.id, self.workload = deployment, id, workload

    def app(self) -> App:
        workload, constraints = self.workload, list(self.constraints())
        found: App = {"id": self.id, "args": self.args(), "instances": _instances(workload)}
        found["cpus"] = workload.cpu / 1000 if workload.cpu else CPUS
        found["mem"] = workload.memory or MEMORY
        if constraints:
            found["constraints"] = constraints
        found["container"] = self.container()
        found.update(self.network())
        found["env"] = self.env()
        found["healthChecks"] = [self.health_check()]
        found["upgradeStrategy"] = self.upgrade()
        found["taskKillGracePeriodSeconds"] = workload.grace
        return found

    def args(self) -> list[str]:
        """The image's ENTRYPOINT, dumb-init, stays in front of them."""
        argv, own = self.workload.argv, self.workload.on_own_network
        if own and self.workload.ports and "KOLLA_ADDRESS" not in self.workload.env:
            # Others reach the ports at the host, whose name Marathon has in HOST.
            return ["sh", "-c", f"KOLLA_ADDRESS=$HOST exec {' '.join(argv)}"]
        return list(argv)

    def constraints(self) -> Iterator[Sequence[str]]:
        hosts = _placed(self.workload)
        if hosts:
            # Of Java, and for the whole name.
            yield ["hostname", "LIKE", "|".join(re.sub(r"([^\w-])", r"\\\1", host) for host in hosts)]
        if self.workload.is_each or (self.workload.keeps_data and self.workload.replicas > 1):
            yield ["hostname", "UNIQUE"]
        elif self.workload.replicas > 1:
            yield ["hostname", "GROUP_BY"]

    def container(self) -> App:
        docker = {"image": self.workload.image, "parameters": list(self.parameters())}
        found: App = {"type": "DOCKER", "docker": docker, "volumes": list(self.volumes())}
        if self.workload.on_own_network:
            found["portMappings"] = [
                {"name": f"port-{port}", "containerPort": port, "hostPort": port, "protocol": "tcp"}
                for port in self.workload.ports
            ]
        return found

    def network(self) -> App:
        """Without its ports by name Marathon would give it one."""
        if self.workload.on_own_network:
            return {"networks": [{"mode": "container/bridge"}]}
        ports = [{"name": f"port-{port}", "port": port, "protocol": "tcp"} for port in self.workload.ports]
        return {"networks": [{"mode": "host"}], "portDefinitions": ports, "requirePorts": bool(ports)}

    def env(self) -> Mapping[str, str]:
        """What launch.yml says itself wins."""
        stays = {"KOLLA_TASK_END": "stay"} if self.workload.is_task else {}
        return {**stays, **self.workload.environ}

    def health_check(self) -> App:
        """A container that waits is healthy, however long."""
        times = {"gracePeriodSeconds": 60, "intervalSeconds": 10, "timeoutSeconds": 5}
        command = {"value": " ".join(HEALTH)}
        return {"protocol": "COMMAND", "command": command, **times, "maxConsecutiveFailures": 3}

    def upgrade(self) -> App:
        workload, count = self.workload, max(_instances(self.workload), 1)
        if workload.is_task:
            return {"maximumOverCapacity": 0, "minimumHealthCapacity": 0}
        # A new one beside the old one would find its host, its ports or its data in use: one after the other.
        if not workload.on_own_network or workload.ports or workload.keeps_data or workload.is_each:
            return {"maximumOverCapacity": 0, "minimumHealthCapacity": (count - 1) / count}
        return {"maximumOverCapacity": 1, "minimumHealthCapacity": 1}

    # -- what Docker is told ------------------------------------------------------------------------

    def parameters(self) -> Iterator[App]:
        workload = self.workload
        if workload.user is not None:
            yield _parameter("user", str(workload.user))
        yield _parameter("cap-drop", "ALL")
        for name in workload.capabilities:
            yield _parameter("cap-add", name)
        yield _parameter("security-opt", "no-new-privileges")
        if workload.read_only:
            yield _parameter("read-only", "true")
        for volume in workload.directories:
            if volume.kind == TEMPORARY:
                yield _parameter("tmpfs", f"{volume.path}:mode=1777")

    def volumes(self) -> Iterator[App]:
        for volume in self.workload.volumes:
            if volume.kind != TEMPORARY:
                yield _volume(volume.path, self.place(volume), "RW")
        for place in sorted({posixpath.dirname(file.path) for file in self.workload.mounted}):
            yield _volume(place, _files(self.deployment, self.workload, place), "RO")
        for path, name in self.workload.secrets.items():
            yield _volume(path, f"{SECRETS}/{name}", "RO")

    def place(self, volume: Volume) -> str:
        """Where a host has it."""
        if volume.kind == SHARED:
            return f"{DATA}/{name_of(self.deployment)}/shared/{volume.source}"
        return volume.source or _data(self.deployment, self.workload, volume.path)


def _parameter(key: str, value: str) -> App:
    return {"key": key, "value": value}


def _volume(path: str, place: str, mode: str) -> App:
    return {"containerPath": path, "hostPath": place, "mode": mode}
