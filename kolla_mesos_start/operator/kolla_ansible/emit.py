"""Writes a directory for `kolla_mesos_ctl` from lifted containers and their graph.

    variables.yml, secrets.yml   addresses; the kinds of the secrets that files and steps use
    services/<role>/<name>/      a definition for each daemon and each step, its files, values of single hosts
    launch.yml                   images, volumes, and the hosts of each service
    report.txt                   what is left to the operator, and what the import could not express
    imported.json                each file's host and path, and each step's task; not published

In a container the agent writes Kolla's own config.json and its files, and then runs `kolla_start`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kolla_mesos_start.operator.deployment import formats
from kolla_mesos_start.operator.deployment.container_settings import PROPAGATIONS
from kolla_mesos_start.operator.kolla_ansible import graph as graphs
from kolla_mesos_start.operator.kolla_ansible import hosts as merging
from kolla_mesos_start.operator.kolla_ansible import lift
from kolla_mesos_start.operator.kolla_ansible.clusters import Cluster, Clusters
from kolla_mesos_start.operator.kolla_ansible.containers import (
    CONFIG_FILES,
    ConfigFile,
    Containers,
    Daemon,
    Kind,
    Step,
    config_directory_of,
    executed,
)
from kolla_mesos_start.operator.kolla_ansible.graph import Edge, Graph
from kolla_mesos_start.operator.kolla_ansible.hosts import OwnNames
from kolla_mesos_start.operator.kolla_ansible.recording import Task
from kolla_mesos_start.operator.kolla_ansible.rules import Rules

PREFIX = "openstack"
PRIVATE_KEY = b"PRIVATE KEY-----"
TOOLBOX = "kolla_toolbox"
PLAYBOOK = "steps.yml"
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
# Settings of kolla_container for namespaces, and the keys of launch.yml.
NAMESPACES = {"pid_mode": "pid", "ipc_mode": "ipc", "cgroupns_mode": "cgroup"}
# Settings of kolla_container that become something else, or concern only kolla-ansible's own containers.
EXPRESSED = {
    *("action", "cap_add", "command", "common_options", "container_engine", "detach", "devices"),
    *("dimensions", "environment", "healthcheck", "ignore_missing", "image", "labels", "name"),
    *("privileged", "remove_on_exit", "restart_policy", "restart_retries", "security_opt", "state"),
    *("tmpfs", "volumes", *NAMESPACES),
}


@dataclass(frozen=True)
class Names:
    """Names and values that belong to the deployment: variables of addresses, kinds of secrets, own names."""

    addresses: Mapping[str, str]
    secrets: Mapping[str, str]
    own: Mapping[str, OwnNames]
    own_values: Mapping[str, Mapping[str, str]]


@dataclass
class Emitted:
    """The files of the directory by path, links by path, and lines of the report."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    origins: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    # Variables of each service that depend on the size of a host.
    sized: dict[str, dict[str, None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """What is emitted."""

    containers: Containers
    graph: Graph
    names: Names
    rules: Rules
    release: str
    zookeeper: str | None = None
    action: str = "deploy"
    refused: Sequence[str] = ()
    real: Mapping[str, str] = field(default_factory=dict)  # addresses, by their stand-ins
    warnings: Sequence[str] = ()
    clusters: Clusters = field(default_factory=Clusters)


def emit(imported: Imported) -> Emitted:
    """All files of the directory."""
    return _Emission(imported).all()


class _Emission:
    def __init__(self, imported: Imported) -> None:
        self.containers, self.graph, self.names = imported.containers, imported.graph, imported.names
        self.rules, self.release, self.zookeeper = imported.rules, imported.release, imported.zookeeper
        self.real, self.warnings, self.clusters = imported.real, imported.warnings, imported.clusters
        self.action, self.retiring = imported.action, graphs.retiring(self.graph, self.containers)
        self.made = Emitted(refused=list(imported.refused))
        self.used: set[str] = set()
        self.services: dict[str, Any] = {}
        self.roles: dict[tuple[str, ...], str] = {}
        daemons = {
            each.name: f"{PREFIX}/{each.role}/{each.name}" for each in self.containers.daemons.values()
        }
        steps = {each.name: f"{PREFIX}/{each.role}/{each.name}" for each in self.containers.steps}
        self.paths = {**steps, **daemons}
        self.steps = {each.name: each for each in self.containers.steps}
        images = [
            str(each.first.get("image", "")).rpartition(":")[2] for each in self.containers.daemons.values()
        ]
        self.tag = Counter(images).most_common(1)[0][0] if images else ""
        self.contents: dict[tuple[str, bytes], str] = {}

    def all(self) -> Emitted:
        for daemon in self.containers.daemons.values():
            self.daemon(daemon)
        for step in self.containers.steps:
            self.step(step)
        self.launch()
        self.variables()
        self.report()
        return self.made

    # -- services ---------------------------------------------------------------------------------

    def daemon(self, daemon: Daemon) -> None:
        path = self.paths[daemon.name]
        writer = _Service(self, path, daemon.hosts)
        settings = writer.settings(daemon.settings)
        definition: dict[str, Any] = {"command": "kolla_start"}
        dependencies = self.dependencies(daemon.name, writer)
        if dependencies:
            definition["dependencies"] = dependencies
        if daemon.name in self.retiring:
            definition["retired_by"] = f"{self.retiring[daemon.name]}/run"
        files = writer.config_files(
            {host: self.files_of(daemon.settings[host], host) for host in daemon.hosts}
        )
        if files:
            definition["files"] = files
        environment = writer.templates(self.environment(settings))
        if environment:
            definition["env"] = environment
        ready = self.ready(daemon.name, settings)
        if ready:
            definition["ready"] = writer.templates(ready)
        commands = self.inside(daemon.name, writer, files, environment)
        service = {"instances": len(daemon.hosts), "daemon": definition}
        document = {**({"commands": commands} if commands else {}), "service": service}
        cluster = self.clusters.by_daemon.get(daemon.name)
        writer.write(self.of_cluster(cluster, writer, document) if cluster else document)
        self.services[path] = self.container(daemon.name, settings, daemon.hosts)

    def inside(
        self, name: str, writer: _Service, files: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What each container of a daemon runs before it, once for the same task of all hosts."""
        found: dict[str, Any] = {}
        for task in self.containers.inside.get(name, ()):
            in_container = executed(task)
            assert in_container is not None
            inner = writer.templates(self.rules.command(in_container.line))
            command: dict[str, Any] = {"command": ["bash", "-c", f"sudo -E kolla_set_configs && {inner}"]}
            command.update({key: value for key, value in (("env", environment), ("files", files)) if value})
            if command not in found.values():
                found[f"inside_{len(found) + 1}" if found else "inside"] = command
                origin = {"host": task.host, "task": task.name, "place": task.place}
                self.made.origins.setdefault(self.paths[name], []).append(origin)
        return found

    def of_cluster(
        self, cluster: Cluster, writer: _Service, document: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The definition of a daemon with the keys of its cluster's definition.

        Its commands have the files and the environment of the daemon, and the files of the cluster.
        """
        imported = document["service"]["daemon"]
        files = {**imported.get("files", {}), **writer.files_of_cluster(cluster)}
        env = imported.get("env", {})
        given = cluster.content.get("definition") or {}
        commands = {
            name: {**command, "env": {**env, **command.get("env", {})}, "files": files}
            for name, command in (given.get("commands") or {}).items()
        }
        daemon = {**imported, **(given.get("service") or {}).get("daemon", {}), "files": files}
        daemon["env"] = {**env, **writer.templates(cluster.environment)}
        if "election" in daemon:
            daemon["election"] = {**daemon["election"], "members": len(cluster.daemon.hosts)}
        self.made.origins.setdefault(self.paths[cluster.daemon.name], []).extend(
            {"host": task.host, "task": task.name, "place": task.place}
            for step in cluster.replaced
            for task in step.tasks
        )
        return {
            "commands": {**document.get("commands", {}), **commands},
            "service": {**document["service"], "daemon": daemon},
        }

    def step(self, step: Step) -> None:
        path = self.paths[step.name]
        writer = _Service(self, path, [step.host])
        command: dict[str, Any] = {"run_once": True, "generation": self.tag}
        task = step.tasks[0]
        if step.kind is Kind.TOOLBOX:
            toolbox = self.containers.daemons.get(TOOLBOX)
            settings = toolbox.settings.get(step.host, toolbox.first) if toolbox else {}
            writer.add(PLAYBOOK, self.playbook(step).encode())
            run = f"ansible-playbook -i localhost, -c local /tmp/{PLAYBOOK}"
            command["command"] = ["bash", "-c", f"sudo -E kolla_set_configs && {run}"]
            command["env"] = writer.templates(self.environment(settings))
            # Such as clouds.yaml, which modules of OpenStack read.
            of_toolbox = writer.config_files({step.host: self.files_of(settings, step.host)})
            command["user"] = step.user
            playbook = {"dest": f"/tmp/{PLAYBOOK}", **({"owner": step.user} if step.user else {})}
            command["files"] = {**of_toolbox, PLAYBOOK: playbook}
        elif step.kind is Kind.EXEC:
            settings = (
                self.containers.daemons[step.image_of].settings.get(step.host)
                or self.containers.daemons[step.image_of].first
            )
            in_container = executed(task)
            assert in_container is not None
            inner = self.until_registered(writer.templates(self.rules.command(in_container.line)))
            command["command"] = ["bash", "-c", f"sudo -E kolla_set_configs && {inner}"]
            command["env"] = writer.templates({**self.environment(settings), **in_container.environment})
            command["files"] = writer.config_files({step.host: self.files_of(settings, step.host)})
        else:
            settings = task.args
            own = settings.get("command")
            command["command"] = lift.template(str(own).strip()) if own else "kolla_start"
            command["env"] = writer.templates(self.environment(settings))
            command["files"] = writer.config_files({step.host: self.files_of(settings, step.host)})
        self.note(settings)
        command["succeeds"] = self.rules.statuses(step.name)
        dependencies = self.dependencies(step.name, writer)
        if dependencies:
            command["dependencies"] = dependencies
        writer.write(
            {
                "commands": {
                    "run": {key: value for key, value in command.items() if value not in (None, {}, [], ())}
                }
            }
        )
        self.services[path] = {
            **self.container(step.name, settings, [step.host]),
            **({"user": 0} if step.user else {}),
        }
        self.made.origins[path] = [
            {"host": each.host, "task": each.name, "place": each.place} for each in step.tasks
        ]

    def until_registered(self, line: str) -> str:
        """The same, repeated until all hosts of a daemon are listed, if a rule says so."""
        rule = self.rules.awaited(line)
        if rule is None or rule["daemon"] not in self.containers.daemons:
            return line
        hosts = self.containers.daemons[rule["daemon"]].hosts
        names = " ".join(f"-e {self.names.own_values[host][merging.OWN_HOSTNAME]}" for host in hosts)
        listed = f'[ "$({rule["lists"]} | grep -cwF {names})" -ge {len(hosts)} ]'
        return f"until {line} && {listed}; do sleep 5; done"

    def playbook(self, step: Step) -> str:
        """The recorded modules, as ansible in kolla_toolbox runs them."""
        tasks = []
        for task in step.tasks:
            args = task.args.get("module_args") or {}
            self.note(args)
            tasks.append({"name": task.name, "no_log": True, str(task.args["module_name"]): args})
        play = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
        return formats.dumped([play])

    def files_of(self, settings: Mapping[str, Any], host: str) -> Mapping[str, ConfigFile]:
        directory = config_directory_of([str(each) for each in settings.get("volumes") or ()])
        found = self.containers.files.get(host, {}).get((directory or "").rpartition("/")[2], ())
        return {each.path: each for each in found}

    def everywhere(self, file: ConfigFile) -> Mapping[str, ConfigFile]:
        """A file on all hosts that have it: all containers with its directory share one template."""
        directory = str(file.task.dest)[: -len(file.path) - 1].rpartition("/")[2]
        found = {}
        for host, by_directory in self.containers.files.items():
            for each in by_directory.get(directory, ()):
                if each.path == file.path:
                    found[host] = each
        return found

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        common = (settings.get("common_options") or {}).get("environment") or {}
        # Module kolla_container adds the name to every container.
        name = {"KOLLA_SERVICE_NAME": str(settings["name"]).replace("_", "-")} if "name" in settings else {}
        return {**name, **common, **(settings.get("environment") or {})}

    def ready(self, name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        check = settings.get("healthcheck") or {}
        test = check.get("test") or "NONE"
        kind, *words = [test] if isinstance(test, str) else test
        if kind in ("NONE", ""):
            return {}
        command = self.rules.ready_command(name) or (words[0] if kind == "CMD-SHELL" else words)
        return {
            "command": command,
            "timeout": int(check.get("timeout", 30)),
            "fall": int(check.get("retries", 3)),
        }

    def dependencies(self, name: str, writer: _Service) -> list[Any]:
        found: list[Any] = []
        own: dict[str, dict[str, str]] = {}  # by role: the last step of each host
        for edge in self.graph.edges.get(name, ()):
            if edge.is_hard and edge.on in self.steps and edge.is_local:
                step = self.steps[edge.on]
                own.setdefault(step.role, {})[step.host] = f"{step.name}/run"
            elif edge.is_hard and edge.on in self.paths:
                found.append(self.dependency(edge))
        return [*found, *(writer.of_each_host(f"after_{role}", paths) for role, paths in own.items())]

    def dependency(self, edge: Edge) -> Any:
        role = self.paths[edge.on].rpartition("/")[2]
        if edge.on in self.steps:
            return f"{role}/run"
        count = len(self.containers.daemons[edge.on].hosts)
        if edge.is_new and edge.is_local:
            return {"path": f"{role}/daemon", "scope": "local", "generation": self.tag}
        if edge.is_new:
            return {"path": f"{role}/daemon", "generation": self.tag, "count": count, "exclusive": True}
        if edge.is_all:
            return {"path": f"{role}/daemon", "count": count}
        return {"path": f"{role}/daemon", "scope": "local"} if edge.is_local else f"{role}/daemon"

    def note(self, lifted: object) -> None:
        """Remember the variables that are used."""
        for expression in lift.expressions(lifted):
            self.used.update(
                re.findall(r"[A-Za-z_][A-Za-z0-9_]*", re.sub(r'"(?:\\.|[^"\\])*"', "", expression))
            )

    # -- launch.yml -------------------------------------------------------------------------------

    def container(self, name: str, settings: Mapping[str, Any], hosts: Sequence[str]) -> Mapping[str, Any]:
        image, _, tag = str(settings.get("image", "")).rpartition(":")
        found: dict[str, Any] = {"placement": self.role(hosts)}
        if len(hosts) > 1:
            found["replicas"] = "each"
        found["image"] = f"{image}:{{{{ tag }}}}" if tag == self.tag else f"{image}:{tag}"
        volumes = dict(self.volumes(name, settings))
        if volumes:
            found["volumes"] = volumes
        if SHARED_RUN & volumes.keys():
            found["env"] = OWN_RUN
        added = [str(each) for each in settings.get("cap_add") or ()]
        if added:
            found["capabilities"] = [*CAPABILITIES, *(each for each in added if each not in CAPABILITIES)]
        found.update(self.access(name, settings))
        return found

    def role(self, hosts: Sequence[str]) -> str:
        key = tuple(hosts)
        return self.roles.setdefault(key, "hosts" if not self.roles else f"hosts-{len(self.roles) + 1}")

    def access(self, name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """What the container may do beyond the usual."""
        if str(settings.get("privileged")).lower() in ("true", "yes"):
            yield "privileged", True
        for key, own in NAMESPACES.items():
            mode = settings.get(key)
            if mode == "host":
                yield own, mode
            elif mode not in (None, "", "private"):
                self.made.refused.append(f"{name}: {key} {mode}: launch.yml knows only host")
        dimensions = dict(settings.get("dimensions") or {})
        limits = dimensions.pop("ulimits", None) or {}
        if limits:
            # With podman, kolla-ansible writes RLIMIT_NOFILE for nofile.
            yield (
                "limits",
                {
                    key.lower().removeprefix("rlimit_"): f"{each['soft']}:{each['hard']}"
                    for key, each in limits.items()
                },
            )
        for key, value in dimensions.items():
            self.made.refused.append(
                f"{name}: {key} {value}: launch.yml has no such limit; `memory` and `cpu`?"
            )
        options = [str(each) for each in settings.get("security_opt") or ()]
        if options:
            yield "security_options", options
        devices = [str(each) for each in settings.get("devices") or ()]
        if devices:
            yield "devices", devices
        for key in sorted(settings.keys() - EXPRESSED):
            if settings[key]:
                self.made.refused.append(f"{name}: {key}: launch.yml has no such setting")

    def volumes(self, name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for volume in settings.get("volumes") or ():
            source, _, rest = str(volume).partition(":")
            path, _, options = rest.partition(":")
            path = path.rstrip("/")
            if path == CONFIG_FILES and self.starts_containers(settings):
                directory = source.rstrip("/")
                self.made.left.append(f"{name}: create {directory} on its hosts, {WRAPPED}")
                yield path, {"host": directory}
            elif path == CONFIG_FILES:
                yield path, "temporary"
            elif source and path and source != DEVPTS:
                yield path, self.volume(name, source, options.split(","))
        for path in settings.get("tmpfs") or ():
            yield str(path).partition(":")[0].rstrip("/"), "temporary"

    def starts_containers(self, settings: Mapping[str, Any]) -> bool:
        """Whether a daemon starts containers with its files, by the path that they have on the host."""
        return str(self.environment(settings).get(WRAPPERS)).lower() == "true"

    def volume(self, name: str, source: str, options: Sequence[str]) -> Mapping[str, Any]:
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
                self.made.refused.append(f"{name}: volume {source}: launch.yml has no option {option}")
        return found

    def launch(self) -> None:
        content: dict[str, Any] = {"tag": self.tag}
        content["hosts"] = {role: list(hosts) for hosts, role in self.roles.items()}
        if self.zookeeper:
            content["zookeeper"] = self.zookeeper
        else:
            self.made.left.append(
                "launch.yml: `zookeeper` is for you to add: h1:2181,h2:2181 (or import with --hosts)"
            )
        content["defaults"] = {
            "network": "host",
            "new_privileges": True,
            "capabilities": list(CAPABILITIES),
        }
        content["services"] = self.services
        self.made.files["launch.yml"] = formats.dumped([content]).encode()

    def variables(self) -> None:
        values = {name: value for name, value in self.names.addresses.items() if name in self.used}
        secrets = {name: kind for name, kind in sorted(self.names.secrets.items()) if name in self.used}
        self.made.files["variables.yml"] = formats.dumped([values]).encode()
        self.made.files["secrets.yml"] = formats.dumped([secrets]).encode()

    def report(self) -> None:
        for task in self.containers.left:
            what = task.dest or ", ".join(
                f"{key} {value}" for key, value in task.args.items() if key in ("name", "value", "state")
            )
            self.made.left.append(f"{task.host}: {task.module}: {what} ({task.name})")
        self.made.refused += map(_shown, self.containers.outside)
        self.made.left += (
            f"{task.host}: in the running container, before it is replaced: {task.name}"
            for task in self.containers.earlier
        )
        self.made.refused += (each.shown(self.real) for each in self.graph.unresolved)
        soft = sum(not edge.is_hard for edges in self.graph.edges.values() for edge in edges)
        what = f"{self.action} of kolla-ansible {self.release}"
        lines = [f"Imported from {what}: {len(self.services)} services.", ""]
        lines += ["Left to you:", *(f"  {each}" for each in self.made.left), ""]
        if self.warnings:
            lines += ["Warnings:", *(f"  {each}" for each in self.warnings), ""]
        if self.made.sized:
            lines += ["Variables that depend on the CPUs or the memory of a host:"]
            lines += (f"  {path}: {', '.join(names)}" for path, names in self.made.sized.items())
            lines += [""]
        if self.clusters.changed:
            shown = (lift.template(each).replace("\n", "; ") for each in self.clusters.changed)
            lines += [
                "Other lines than kolla-ansible's, for a cluster:",
                *(f"  {each}" for each in shown),
                "",
            ]
        lines += ["Not expressed:", *(f"  {each}" for each in dict.fromkeys(self.made.refused)), ""]
        lines += [f"Soft dependencies, for which nothing waits: {soft}"]
        self.made.files["report.txt"] = ("\n".join(lines) + "\n").encode()
        edges = [
            {"name": edge.name, "on": edge.on, "reason": edge.reason, "hard": edge.is_hard}
            for of_name in self.graph.edges.values()
            for edge in of_name
        ]
        record = {
            "release": self.release,
            "action": self.action,
            "services": self.made.origins,
            "edges": edges,
        }
        self.made.files["imported.json"] = json.dumps(record, indent=1).encode() + b"\n"


class _Service:
    """Writes one service: its definition, its files, and the values of its hosts."""

    def __init__(self, emission: _Emission, path: str, hosts: Sequence[str]) -> None:
        self.emission, self.path, self.hosts = emission, path, hosts
        self.values: dict[str, dict[str, str]] = {host: {} for host in hosts}
        self.own_used: set[str] = set()

    def settings(self, by_host: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """The settings of all hosts as those of one, with variables where they differ."""
        texts = {host: json.dumps(each, sort_keys=True, ensure_ascii=False) for host, each in by_host.items()}
        merged = merging.merge("setting", texts, self.emission.names.own)
        if merged.is_branched:
            self.emission.made.refused.append(
                f"{self.path}: its settings differ between hosts: those of the first are used"
            )
            return next(iter(by_host.values()))
        self.take(merged)
        found: Mapping[str, Any] = json.loads(merged.text)
        return found

    def config_files(self, by_host: Mapping[str, Mapping[str, ConfigFile]]) -> Mapping[str, Any]:
        """The `files` of a definition."""
        paths = dict.fromkeys(path for files in by_host.values() for path in files)
        found: dict[str, Any] = {}
        for path in paths:
            name = path.replace("/", ".").lstrip(".")
            having = {host: files[path] for host, files in by_host.items() if path in files}
            entry: dict[str, Any] = {"dest": f"{CONFIG_FILES}/{path}"}
            if len(having) < len(by_host):
                missing = ", ".join(host for host in by_host if host not in having)
                self.emission.made.refused.append(
                    f"{self.path}: {path} is not on {missing}, and is written there too"
                )
            if not self.file(name, having):
                entry["template"] = False
            found[name] = entry
            origin = self.emission.made.origins.setdefault(self.path, [])
            origin += (
                {"host": host, "file": name, "path": str(each.task.dest), "place": each.task.place}
                for host, each in having.items()
            )
        return found

    def file(self, name: str, having: Mapping[str, ConfigFile]) -> bool:
        """Write the content; false if it is no text, and so no template."""
        first = next(iter(having.values()))
        try:
            everywhere = self.emission.everywhere(first)
            texts = {host: each.content.decode() for host, each in everywhere.items()}
        except UnicodeDecodeError:
            self.add(name, first.content)
            return False
        merged = merging.merge(lift.variable(name), texts, self.emission.names.own)
        self.take(merged)
        self.add(name, lift.template(merged.text).encode())
        return True

    def add(self, name: str, data: bytes) -> None:
        """Add a file; one that another service has already is a link to it."""
        path = f"services/{self.path}/files/{name}"
        if name == PLAYBOOK:
            data = _as_texts(lift.template(data.decode())).encode()
        before = self.emission.contents.setdefault((name, data), path)
        if before != path:
            self.emission.made.links[path] = before
        else:
            self.emission.made.files[path] = data
            if (
                PRIVATE_KEY in data
            ):  # One that kolla-ansible copies as it is; those of secrets.yml are variables.
                why = (
                    "holds a private key as it is in your configuration: let nobody else read this directory"
                )
                self.emission.made.left.append(f"{path}: {why}")

    def files_of_cluster(self, cluster: Cluster) -> Mapping[str, Any]:
        """The `files` that its definition adds. They are no templates."""
        for name, data in cluster.files.items():
            self.add(name, data)
        return {name: {"dest": f"{CONFIG_FILES}/{name}", "template": False} for name in cluster.files}

    def take(self, merged: merging.Merged) -> None:
        """Remember the variables of a text, and the values of each host."""
        self.emission.note(merged.text)
        if merged.sized:
            self.emission.made.sized.setdefault(self.path, {}).update(dict.fromkeys(merged.sized))
        for host in merged.values.keys() & self.values.keys():
            self.values[host].update(merged.values[host])
        self.own_used.update(re.findall(r"own_[a-z0-9_]+", " ".join(lift.expressions(merged.text))))

    def of_each_host(self, name: str, values: Mapping[str, str]) -> str:
        """A template for the value of each host; the value, if there is one for all."""
        if len(set(values.values())) == 1:
            return next(iter(values.values()))
        name = lift.variable(name)
        for host in self.hosts:
            self.values[host][name] = values[host]
        return f"{{{{ {name} }}}}"

    def templates(self, value: Any) -> Any:
        """The same with templates in place of marks."""
        if isinstance(value, str):
            self.emission.note(value)
            return lift.template(value)
        if isinstance(value, Mapping):
            return {key: self.templates(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.templates(each) for each in value]
        return value

    def write(self, definition: Mapping[str, Any]) -> None:
        """Write the definition and the values of the hosts."""
        self.emission.made.files[f"services/{self.path}/definition.yml"] = formats.dumped(
            [definition]
        ).encode()
        for host in self.hosts:
            own = self.emission.names.own_values[host]
            self.values[host].update({name: value for name, value in own.items() if name in self.own_used})
        if any(self.values.values()):
            self.emission.made.files[f"services/{self.path}/variables.yml"] = formats.dumped(
                [self.values]
            ).encode()


def _shown(task: Task) -> str:
    """A command that no step runs. Its text may have secrets."""
    in_container = executed(task)
    assert in_container is not None
    why = f"{in_container.container} is not imported"
    if in_container.host_part:
        why = f"a part of its command is for the host, and only the rest for {in_container.container}"
    return f"{task.host}: {task.name} ({task.place}): {why}: run it by hand"


def _as_texts(playbook: str) -> str:
    """The template of a playbook, in which a value that is one variable stays a text, whatever it is.

    Otherwise a password could be a number, or a template of ansible.
    """
    return re.sub(r": \{\{ (\w+) \}\}$", r": !unsafe {{ \1 | tojson }}", playbook, flags=re.MULTILINE)
