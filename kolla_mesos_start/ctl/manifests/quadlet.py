"""Unit files for podman's systemd generator: podman 4.9 or newer.

    service, task                 <host>/<deployment>_<role>.container, a unit of the same name
    volume for data of its own    a volume of podman, which podman makes

No unit waits for another: the agents keep the order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from kolla_mesos_start.ctl.directory.findings import InvalidDirectory
from kolla_mesos_start.ctl.manifests import per_host
from kolla_mesos_start.ctl.manifests.model import FINAL, TERM, Manifests, Model, engine_options
from kolla_mesos_start.ctl.manifests.per_host import PerHostContainer
from kolla_mesos_start.definition.strings import SIGNALS

PULL = 900  # seconds in which an image has to have come
AGAIN = 5  # seconds before a restart
# The numbers of signals of Linux.
NUMBERS = dict(zip((*SIGNALS, "RTMIN"), (1, 2, 3, 10, 12, 14, 15, 18, 23, 28, 29, 30, 34)))
# The keys of a unit that are options of podman; it has none for the others.
KEYS = {
    **{"user": "User", "cap-drop": "DropCapability", "cap-add": "AddCapability"},
    **{"device": "AddDevice", "ulimit": "Ulimit", "read-only": "ReadOnly"},
}
REMOVE = 10  # seconds that podman has to remove a container that has ended


def manifests(model: Model) -> Manifests:
    """A directory for each host, with a file for each of its containers."""
    images = {
        **{f"image of {each.service}": each.image for each in model.workloads},
        "agent": next((each.agent.source for each in model.workloads if each.agent), ""),
    }
    units = [what for what, image in images.items() if image.endswith((".build", ".image"))]
    if units:
        raise InvalidDirectory(
            [f"{each}: podman takes what ends in .build or .image for a unit" for each in units]
        )
    hosts = per_host.by_host(model)
    files = {
        f"{host}/{each.full_name}.container": unit(model.deployment, each)
        for host, containers in hosts.items()
        for each in containers
    }
    return Manifests(
        {name: f"# {name}\n{text}" for name, text in files.items()},
        [
            *per_host.notes(hosts),
            "copy the files of each host to its /etc/containers/systemd: `systemctl daemon-reload` makes"
            " units of them, and `systemctl start` starts these",
        ],
    )


def unit(deployment: str, container: PerHostContainer) -> str:
    """The lines of a unit."""
    workload = container.workload
    sections = {
        "Unit": [f"Description={_description(workload.service, deployment)}"],
        "Container": list(_container(container)),
        "Service": list(_service(container)),
        "Install": ["WantedBy=multi-user.target"],
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items()
    )


def _description(service: str, deployment: str) -> str:
    """For people alone. A \\ at its end would join the next line to it."""
    return f"{service} of {deployment}".replace("%", "%%").replace("\\", "/")


def _container(container: PerHostContainer) -> Iterator[str]:
    workload = container.workload
    yield f"ContainerName={container.full_name}"
    yield f"Image={escaped(workload.image)}"
    yield f"Exec={words(workload.argv)}"
    # Its container is removed when it ends, and `podman logs` with it.
    for name, value in container.environ("journalctl --unit").items():
        yield f"Environment={word(f'{name}={value}')}"
    if workload.on_own_network:
        yield from (f"PublishPort={port.number}:{port}" for port in workload.ports)
    else:
        yield "Network=host"
    for option, value in engine_options(workload):
        yield f"{KEYS.get(option, f'PodmanArgs=--{option}')}={escaped(value)}"
    if workload.settings.read_only:
        yield "ReadOnlyTmpfs=false"
    for mount in container.mounts:
        if mount.is_image:
            yield f"Mount=type=image,source={escaped(mount.source)},destination={escaped(mount.path)}"
            continue
        options = ",".join(filter(None, ["ro" if mount.read_only else "", mount.propagation]))
        yield f"Volume={escaped(f'{mount.source}:{mount.path}')}{f':{options}' if options else ''}"
    for path in container.temporary:
        # Of the container's user; it would have the mode of the image's directory, and be root's.
        yield f"Tmpfs={escaped(path)}:U"
    if not workload.is_task:
        # What is not healthy is killed, and started again below. A daemon whose check fails is healthy.
        yield f"HealthCmd={words(workload.liveness)}"
        yield from ("HealthInterval=10s", "HealthTimeout=5s", "HealthRetries=3", "HealthOnFailure=kill")
    yield f"PodmanArgs=--stop-timeout={workload.grace}"  # StopTimeout needs podman 5.0
    if workload.settings.memory:
        yield f"PodmanArgs=--memory={workload.settings.memory}m"
    if workload.settings.cpu:
        yield f"PodmanArgs=--cpu-shares={cpu_shares(workload.settings.cpu)}"


def _service(container: PerHostContainer) -> Iterator[str]:
    """Its exit status says whether another attempt can help."""
    workload = container.workload
    for mount in container.mounts:
        if mount.is_image:  # podman does not pull it when it starts a container.
            image = shlex.quote(mount.source)
            line = f"/usr/bin/podman image exists {image} || exec /usr/bin/podman pull {image}"
            yield f"ExecStartPre=/bin/sh -c {word(line)}"
    yield f"Restart={'on-failure' if workload.is_task else 'always'}"
    yield f"RestartSec={AGAIN}"
    yield f"RestartPreventExitStatus={' '.join(map(str, FINAL))}"
    # Ended by a stop, it has not failed.
    stopped = dict.fromkeys(_exit_status(name) for name in (TERM, workload.stop_signal))
    yield f"SuccessExitStatus={' '.join(map(str, stopped))}"
    yield f"TimeoutStartSec={PULL}"
    if workload.needs_hook:
        # Before podman's own command, which sends SIGTERM. "-": the container may have ended.
        yield f"ExecStop=-/usr/bin/podman exec {word(container.full_name)} {words(workload.stop)}"
    yield f"TimeoutStopSec={workload.grace + REMOVE}"


def _exit_status(stop_signal: str) -> int:
    """The status of a container that was ended by this signal."""
    name, _, offset = stop_signal.partition("+")
    return 128 + NUMBERS[name] + int(offset or 0)


def cpu_shares(thousandths: int) -> int:
    """The weight of so many thousandths of a processor, as cgroups had it first: a whole one is 1024."""
    return max(2, thousandths * 1024 // 1000)


# -- texts ----------------------------------------------------------------------------------------


def words(argv: Sequence[str]) -> str:
    """A command line."""
    return " ".join(map(word, argv))


def word(text: str) -> str:
    """One word of a command line, in quotes if necessary."""
    text = escaped(text)
    if re.fullmatch(r"[^\s\"'\\\0-\x1f\x7f]+", text):
        return text
    for character in ("\\", '"'):
        text = text.replace(character, f"\\{character}")
    # systemd ends a line at \r too.
    return '"' + re.sub(r"[\0-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text) + '"'


def escaped(text: str) -> str:
    """Escaped for the unit that podman generates, in which systemd replaces %n and $NAME."""
    return text.replace("%", "%%").replace("$", "$$")
