"""The apps for Marathon 1.5 or newer, with Docker's containerizer.

    task                      app that keeps running when it is done: Marathon restarts all that end
    service                   app
    service, data of its own  app on the first hosts of its role: data are in a directory of each of them
    service, on each host     app with one instance on each host of its role

Also how an app differs from the one that Marathon has. Everything is started at once: the agents keep the
order.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory.container_settings import ARCHIVE, KEPT, NAMED, TEMPORARY
from kolla_mesos_start.ctl.manifests.model import (
    FILES,
    LONGEST,
    SECRETS,
    Manifests,
    Model,
    Workload,
    digested,
    engine_options,
    filled,
    label,
    name_of,
    needs,
    on_hosts,
)
from kolla_mesos_start.errors import listed

App = dict[str, Any]

# Words that Marathon's API uses after the id of an app.
RESERVED = ("restart", "tasks", "versions")
CPUS, MEMORY = 0.1, 128  # where launch.yml says nothing
OFFERED = range(31000, 32001)  # the ports that a Mesos agent offers by default
HEALTH_CHECK = {
    "gracePeriodSeconds": 60,
    "intervalSeconds": 10,
    "timeoutSeconds": 5,
    "maxConsecutiveFailures": 3,
}
# Fields that others may set in an app. launch.yml has nothing for them.
OTHERS = (
    *("labels", "acceptedResourceRoles", "role", "dependencies", "disk"),
    *("backoffSeconds", "backoffFactor", "maxLaunchDelaySeconds", "unreachableStrategy", "killSelection"),
)


def manifests(model: Model) -> Manifests:
    """One file for each app, and all in one list."""
    every = apps(model)
    files = {f"{each.name}.json": _dumped(app) for each, app in zip(model.workloads, every)}
    return Manifests(files, list(notes(model)), _dumped(every))


def apps(model: Model) -> Sequence[App]:
    """In the order of the workloads."""
    found = ids(model)
    return [_Maker(found[each.service], each).app() for each in model.workloads]


def group(deployment: str) -> str:
    """The id of the group that contains all apps of a deployment."""
    return f"/{name_of(deployment)}"


def ids(model: Model) -> Mapping[str, str]:
    """The id of each service's app. An app must not have the id of a group."""
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
    """The fields of an app that Marathon has otherwise. Marathon adds defaults, which are ignored."""
    exact = ("args", "env")
    app = {**app, "fetch": _fetched(app, found)}
    return [
        name
        for name in dict.fromkeys((*app, "constraints"))
        if not (app[name] == found.get(name) if name in exact else _is_as(app.get(name), found.get(name)))
    ]


def merged(app: App, found: Mapping[str, Any]) -> App:
    """The app, with the fields that others have set in Marathon."""
    of_others = {name: found[name] for name in OTHERS if found.get(name)}
    return {**of_others, **app, **filled({"fetch": _fetched(app, found)})}


def _fetched(app: App, found: Mapping[str, Any]) -> Sequence[App]:
    """The agent's archive, and what others have added, such as a registry's credentials."""
    own = app.get("fetch", [])
    uris = {each["uri"] for each in own}
    return [*own, *(each for each in found.get("fetch") or () if each["uri"] not in uris)]


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


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# -- what only the operator can make --------------------------------------------------------------


def notes(model: Model) -> Iterator[str]:
    """What the hosts need."""
    yield from on_hosts(
        (host, what)
        for each in model.workloads
        for host in _placed(each) or ("each Mesos agent",)
        for what in _needs(each)
    )
    for each in model.workloads:
        if each.agent and each.agent.kind == ARCHIVE and each.settings.user != 0:
            yield (
                f"{each.service}: Mesos gives its sandbox, which has the agent, to the task's user alone: set"
                " `user: 0`, or use `agent: {host: DIRECTORY}`"
            )
        if each.needs_hook and "KOLLA_START_MODE" in each.env:
            yield f"{each.service} is not drained: Marathon has no preStop; set KOLLA_START_MODE to supervise"
        if each.of_kind(KEPT) and not each.hosts:
            yield f"give {each.service} a `placement`: its data stay on the host where it has started first"
    ports = {port.number for each in model.workloads for port in each.ports if port.number not in OFFERED}
    if ports:
        which = ", ".join(map(str, sorted(ports)))
        yield f"have the Mesos agents offer the ports {which}: by default they offer 31000 to 32000"
    unlimited = listed(each.service for each in model.workloads if each.settings.memory is None)
    if unlimited:
        yield f"without `memory` in launch.yml, {MEMORY} MiB is the limit of {unlimited}"


def _needs(workload: Workload) -> Iterator[str]:
    yield from needs(workload, {file.path: _files(workload, file.path) for file in workload.mounted})
    for volume in workload.of_kind(KEPT):
        yield f"make {workload.place(volume)}, for the user of {workload.service} to write"


# -- one app --------------------------------------------------------------------------------------


def _placed(workload: Workload) -> Sequence[str]:
    """The hosts that it may run on: with data of its own, only as many as it has containers."""
    return workload.hosts[: workload.instances] if workload.of_kind(KEPT) else workload.hosts


def _files(workload: Workload, path: str) -> str:
    return f"{FILES}/{workload.project}/{workload.name}{path}"


class _Maker:
    """Makes the app of one service."""

    def __init__(self, id: str, workload: Workload) -> None:
        self.id, self.workload = id, workload

    def app(self) -> App:
        workload = self.workload
        return {
            "id": self.id,
            "args": self.args(),
            "instances": workload.instances,
            "cpus": workload.settings.cpu / 1000 if workload.settings.cpu else CPUS,
            "mem": workload.settings.memory or MEMORY,
            **filled({"constraints": list(self.constraints())}),
            "container": self.container(),
            **filled({"fetch": list(self.fetch())}),
            **self.network(),
            "env": self.env(),
            # A container that waits is healthy, however long.
            "healthChecks": [
                {"protocol": "COMMAND", "command": {"value": " ".join(workload.liveness)}, **HEALTH_CHECK}
            ],
            "upgradeStrategy": self.upgrade(),
            "taskKillGracePeriodSeconds": workload.grace,
        }

    def args(self) -> list[str]:
        """The image's ENTRYPOINT, dumb-init, stays in front of them."""
        argv, own = self.workload.argv, self.workload.on_own_network
        if own and self.workload.ports and "KOLLA_ADDRESS" not in self.workload.env:
            # Other containers reach the ports at the host; Marathon sets HOST to its name.
            return ["sh", "-c", f"KOLLA_ADDRESS=$HOST exec {' '.join(argv)}"]
        return list(argv)

    def constraints(self) -> Iterator[Sequence[str]]:
        hosts = _placed(self.workload)
        if hosts:
            # A regular expression of Java, for the whole name.
            yield ["hostname", "LIKE", "|".join(re.sub(r"([^\w-])", r"\\\1", host) for host in hosts)]
        if self.workload.is_each or (self.workload.of_kind(KEPT) and self.workload.replicas > 1):
            yield ["hostname", "UNIQUE"]
        elif self.workload.replicas > 1:
            yield ["hostname", "GROUP_BY"]

    def container(self) -> App:
        docker = {"image": self.workload.image, "parameters": list(self.parameters())}
        found: App = {"type": "DOCKER", "docker": docker, "volumes": list(self.volumes())}
        if self.workload.on_own_network:
            found["portMappings"] = [
                {"name": f"port-{port}", "containerPort": port, "hostPort": port, "protocol": protocol}
                for port, protocol in self.protocols().items()
            ]
        return found

    def protocols(self) -> Mapping[int, str]:
        """The protocols of each port, which Mesos offers once for both."""
        found: dict[int, set[str]] = {}
        for port in self.workload.ports:
            found.setdefault(port.number, set()).add(port.protocol)
        return {port: ",".join(sorted(protocols, reverse=True)) for port, protocols in found.items()}

    def fetch(self) -> Iterator[App]:
        """The archive of the agent."""
        agent = self.workload.agent
        if agent and agent.kind == ARCHIVE:
            yield {"uri": agent.source, "extract": True}

    def network(self) -> App:
        """The network. Without port definitions, Marathon would assign a port."""
        if self.workload.on_own_network:
            return {"networks": [{"mode": "container/bridge"}]}
        ports = [
            {"name": f"port-{port}", "port": port, "protocol": protocol}
            for port, protocol in self.protocols().items()
        ]
        return {"networks": [{"mode": "host"}], "portDefinitions": ports, "requirePorts": bool(ports)}

    def env(self) -> Mapping[str, str]:
        """The environment. Values of launch.yml take precedence."""
        own = {"KOLLA_TASK_END": "stay"} if self.workload.is_task else {}
        if self.workload.drains:  # Marathon has no hook that runs before SIGTERM.
            own["KOLLA_START_MODE"] = "supervise"
        return {**own, **self.workload.environ}

    def upgrade(self) -> App:
        workload, count = self.workload, max(self.workload.instances, 1)
        if workload.is_task:
            return {"maximumOverCapacity": 0, "minimumHealthCapacity": 0}
        # One after the other: the old one still uses the host, the ports or the data.
        if not workload.on_own_network or workload.ports or workload.of_kind(KEPT) or workload.is_each:
            return {"maximumOverCapacity": 0, "minimumHealthCapacity": (count - 1) / count}
        return {"maximumOverCapacity": 1, "minimumHealthCapacity": 1}

    def parameters(self) -> Iterator[App]:
        """Options of `docker run`."""
        workload = self.workload
        for option, value in engine_options(workload):
            yield _parameter(option, value)
        for volume in workload.directories:
            if volume.kind == TEMPORARY:
                yield _parameter("tmpfs", f"{volume.path}:mode=1777,exec")
            elif volume.kind == NAMED:  # Marathon takes a name in `volumes` for a directory of the sandbox.
                mode = ":ro" if volume.read_only else ""
                yield _parameter("volume", f"{volume.source}:{volume.path}{mode}")
            elif volume.propagation:
                mode = f"{'ro' if volume.read_only else 'rw'},{volume.propagation}"
                yield _parameter("volume", f"{workload.place(volume)}:{volume.path}:{mode}")

    def volumes(self) -> Iterator[App]:
        for volume in self.workload.directories:
            if volume.kind not in (NAMED, TEMPORARY) and not volume.propagation:
                yield _volume(volume.path, self.workload.place(volume), "RO" if volume.read_only else "RW")
        for place in sorted({posixpath.dirname(file.path) for file in self.workload.mounted}):
            yield _volume(place, _files(self.workload, place), "RO")
        for path, name in self.workload.secrets.items():
            yield _volume(path, f"{SECRETS}/{name}", "RO")


def _parameter(key: str, value: str) -> App:
    return {"key": key, "value": value}


def _volume(path: str, place: str, mode: str) -> App:
    return {"containerPath": path, "hostPath": place, "mode": mode}
