"""What launch.yml says about a container, from the settings of kolla_container. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory.container_settings import PROPAGATIONS
from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.containers import CONFIG_FILES
from kolla_mesos_start.kolla_ansible.rules import Rules

# What docker gives by default, and Kolla's own start script needs: it runs sudo.
CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
# Containers with the host's /run would share the agent's own directory below it.
SHARED_RUN, OWN_RUN = {"/", "/run"}, {"KOLLA_RUN_DIR": "/var/lib/kolla_mesos_start/run"}
# Agents of Neutron start dnsmasq, HAProxy and keepalived in containers, with the host's /etc/kolla/<service>.
WRAPPERS = "KOLLA_NEUTRON_WRAPPERS"
WRAPPED = "for the user of its image to write: containers that it starts have its files from there"
# With podman, kolla-ansible mounts this file system, and no volume of this name. The host's /dev has it.
DEVPTS = "devpts"
DEFAULTS = {"network": "host", "new_privileges": True, "capabilities": list(CAPABILITIES)}
# Settings of kolla_container for namespaces, and the keys of launch.yml.
NAMESPACES = {"pid_mode": "pid", "ipc_mode": "ipc", "cgroupns_mode": "cgroup"}
# Settings of kolla_container that become something else, or concern only kolla-ansible's own containers.
EXPRESSED = {
    *("action", "cap_add", "command", "common_options", "container_engine", "detach", "devices"),
    *("dimensions", "environment", "healthcheck", "ignore_missing", "image", "labels", "name"),
    *("privileged", "remove_on_exit", "restart_policy", "restart_retries", "security_opt", "state"),
    *("tmpfs", "volumes", *NAMESPACES),
}


def made(
    name: str, by_host: Mapping[str, Mapping[str, Any]], common_tag: str, rules: Rules
) -> tuple[Mapping[str, Any], Sequence[str], Sequence[str]]:
    """The keys of a container on these hosts, what is left to the operator, and what can't be expressed."""
    found = {
        host: _OneHost(name, lift.templates(settings), common_tag, rules)
        for host, settings in by_host.items()
    }
    (host, first), *others = found.items()
    refused = list(first.refused)
    for other, each in others:
        refused += (
            f"{name}: {key} of {other} differ from those of {host}, which are used"
            for key in {**first.keys, **each.keys}
            if first.keys.get(key) != each.keys.get(key)
        )
    return first.keys, first.left, refused


def tag(settings: Mapping[str, Any]) -> str:
    """The tag of the image."""
    return str(settings.get("image", "")).rpartition(":")[2]


def environment(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The environment of a container. Module kolla_container adds the name to each."""
    name = {"KOLLA_SERVICE_NAME": str(settings["name"]).replace("_", "-")} if "name" in settings else {}
    common = (settings.get("common_options") or {}).get("environment") or {}
    return {**name, **common, **(settings.get("environment") or {})}


class _OneHost:
    def __init__(self, name: str, settings: Mapping[str, Any], common_tag: str, rules: Rules) -> None:
        self.name, self.settings, self.common_tag, self.rules = name, settings, common_tag, rules
        self.left: list[str] = []
        self.refused: list[str] = []
        volumes = dict(self.volumes())
        found = {"image": self.image(), "volumes": volumes, "capabilities": self.capabilities()}
        own_tag = tag(settings)
        generation = {"KOLLA_GENERATION": own_tag} if own_tag not in ("", common_tag) else {}
        found["env"] = {**generation, **(OWN_RUN if SHARED_RUN & volumes.keys() else {})}
        self.keys = {key: value for key, value in {**found, **dict(self.access())}.items() if value}
        self.keys.update(self.user())

    def image(self) -> str:
        image, _, own_tag = str(self.settings.get("image", "")).rpartition(":")
        return f"{image}:{{{{ tag }}}}" if own_tag == self.common_tag else f"{image}:{own_tag}"

    def user(self) -> Mapping[str, int]:
        """The number of the USER of its image: of another one than Kolla's, only the operator knows it."""
        image = str(self.settings.get("image", "")).rpartition(":")[0].rpartition("/")[2]
        row = self.rules.row("users", image)
        if image and not row:
            self.left.append(
                f"launch.yml: `user` of {self.name}, for Kubernetes: the number of {image}'s USER"
            )
        return {"user": row["user"]} if row else {}

    def capabilities(self) -> Sequence[str]:
        """All capabilities if there are more than the usual ones."""
        added = [re.sub("^CAP_", "", str(each)) for each in self.settings.get("cap_add") or ()]
        more = [each for each in added if each not in CAPABILITIES]
        return [*CAPABILITIES, *more] if added else []

    def access(self) -> Iterator[tuple[str, Any]]:
        """What the container may do beyond the usual."""
        settings = self.settings
        if str(settings.get("privileged")).lower() in ("true", "yes"):
            yield "privileged", True
        for key, own in NAMESPACES.items():
            mode = settings.get(key)
            if mode == "host":
                yield own, mode
            elif mode not in (None, "", "private"):
                self.refuse(f"{key} {mode}: launch.yml knows only host")
        dimensions = dict(settings.get("dimensions") or {})
        limits = dimensions.pop("ulimits", None) or {}
        # With podman, kolla-ansible writes RLIMIT_NOFILE for nofile.
        names = {key: key.lower().removeprefix("rlimit_") for key in limits}
        yield "limits", {names[key]: f"{each['soft']}:{each['hard']}" for key, each in limits.items()}
        for key, value in dimensions.items():
            self.refuse(f"{key} {value}: launch.yml has no such limit; `memory` and `cpu`?")
        yield "security_options", [str(each) for each in settings.get("security_opt") or ()]
        yield "devices", [str(each) for each in settings.get("devices") or ()]
        for key in sorted(settings.keys() - EXPRESSED):
            if settings[key]:
                self.refuse(f"{key}: launch.yml has no such setting")

    def volumes(self) -> Iterator[tuple[str, Any]]:
        for volume in self.settings.get("volumes") or ():
            source, _, rest = str(volume).partition(":")
            path, _, options = rest.partition(":")
            path = path.rstrip("/")
            if path == CONFIG_FILES and self.starts_containers():
                directory = source.rstrip("/")
                self.left.append(f"{self.name}: create {directory} on its hosts, {WRAPPED}")
                yield path, {"host": directory}
            elif path == CONFIG_FILES:
                yield path, "temporary"
            elif source and path and source != DEVPTS:
                yield path, self.volume(source, options.split(","))
        for each in filter(None, self.settings.get("tmpfs") or ()):
            path, _, options = str(each).partition(":")
            yield path.rstrip("/"), "temporary"
            if options:
                self.refuse(f"tmpfs {path}: launch.yml has no option {options}")

    def starts_containers(self) -> bool:
        """Whether a daemon starts containers with its files, by the path that they have on the host."""
        return str(environment(self.settings).get(WRAPPERS)).lower() == "true"

    def volume(self, source: str, options: Sequence[str]) -> Mapping[str, Any]:
        """A volume of docker for launch.yml."""
        found: dict[str, Any] = {"host": source.rstrip("/") or "/"}
        if not source.startswith("/"):
            found = {"volume": source}
        for option in options:
            if option == "ro":
                found["read_only"] = True
            elif option in PROPAGATIONS and source.startswith("/"):
                found["propagation"] = option
            elif option not in ("", "rw", "z", "Z"):
                self.refuse(f"volume {source}: launch.yml has no option {option}")
        return found

    def refuse(self, why: str) -> None:
        self.refused.append(f"{self.name}: {why}")
