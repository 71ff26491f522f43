"""Makes a directory for `kolla_mesos_ctl` from lifted containers and their graph.

    variables.yml, secrets.yml   addresses; the kinds of the secrets that files and steps use
    services/<role>/<name>/      a definition for each daemon and each step, its files, values of single hosts
    launch.yml                   images, volumes, and the hosts of each service
    report.txt                   what is left to the operator, and what the import could not express
    imported.json                each file's host and path, and each step's task; not published

In a container the agent writes Kolla's own config.json and its files, and then runs `kolla_start`.
`emitted` has the reports, and `launch_settings` what launch.yml says about a container.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.kolla_ansible import launch_settings, lift, stand_ins
from kolla_mesos_start.kolla_ansible.clusters import Cluster
from kolla_mesos_start.kolla_ansible.containers import (
    CONFIG_FILES,
    ConfigFile,
    Daemon,
    Kind,
    Step,
    executed,
)
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.graph import Edge
from kolla_mesos_start.kolla_ansible.launch_settings import environment
from kolla_mesos_start.kolla_ansible.lift import OWN_HOSTNAME
from kolla_mesos_start.kolla_ansible.recording import Task

OWN = re.compile(r"own_[a-z0-9_]+")
Settings = Mapping[str, Any]


class Service:
    """A service on these hosts. Texts that differ between them become one template."""

    def __init__(self, imported: Imported, path: str, hosts: Sequence[str]) -> None:
        self._made, self._site, self._containers = imported.emitted, imported.site, imported.containers
        self.path, self.hosts = path, hosts
        self._values: dict[str, dict[str, str]] = {host: {} for host in hosts}
        self._own_used: set[str] = set()

    def settings(self, by_host: Mapping[str, Settings]) -> Settings:
        """The settings of all hosts as those of one, with variables where they differ."""
        differ = len({_text(each) for each in by_host.values()}) > 1
        texts = {
            host: _text(lift.mapped(each, _number_as_text) if differ else each)
            for host, each in by_host.items()
        }
        merged = lift.merge("setting", texts, self._site.own)
        try:
            if merged.is_branched:
                raise ValueError(merged)
            found: Settings = json.loads(merged.text)
        except ValueError:  # Also for a boolean, which can't be a variable.
            self._made.refused.append(
                f"{self.path}: its settings differ between hosts: those of the first are used"
            )
            return next(iter(by_host.values()))
        self._take(merged)
        return found

    def config_files(self, by_host: Mapping[str, Settings]) -> dict[str, Any]:
        """The `files` of a definition: the config files of containers with these settings, by host."""
        files = {
            host: {each.path: each for each in self._containers.config_files(settings, host)}
            for host, settings in by_host.items()
        }
        found: dict[str, Any] = {}
        for path in dict.fromkeys(path for of_host in files.values() for path in of_host):
            name = path.replace("/", ".").lstrip(".")
            while name in found:
                name += "_"
            having = {host: of_host[path] for host, of_host in files.items() if path in of_host}
            if len(having) < len(files):
                missing = ", ".join(host for host in files if host not in having)
                self._made.refused.append(
                    f"{self.path}: {path} is not on {missing}, and is written there too"
                )
            is_text = self._add_text(name, next(iter(having.values())))
            found[name] = {"dest": f"{CONFIG_FILES}/{path}", **({} if is_text else {"template": False})}
            self._made.origins.setdefault(self.path, []).extend(
                {"host": host, "file": name, "path": each.dest, "place": each.task.place}
                for host, each in having.items()
            )
        return found

    def files_of_cluster(self, cluster: Cluster) -> Mapping[str, Any]:
        """The `files` that the definition of a cluster adds. They are no templates."""
        for name, data in cluster.files.items():
            self.add(name, data)
        return {name: {"dest": f"{CONFIG_FILES}/{name}", "template": False} for name in cluster.files}

    def add(self, name: str, data: bytes) -> None:
        """Add a file as it is."""
        self._made.add_shared(f"services/{self.path}/files/{name}", data)

    def _add_text(self, name: str, file: ConfigFile) -> bool:
        """Add one template for all hosts with this file; false if it is no text, and so no template.

        These may be more hosts than the service's: containers with the same config directory share it.
        """
        everywhere = {
            host: each
            for host, by_directory in self._containers.files.items()
            for each in by_directory.get(file.directory, ())
            if each.path == file.path
        }
        try:
            texts = {host: each.content.decode() for host, each in everywhere.items()}
        except UnicodeDecodeError:
            self.add(name, file.content)
            return False
        merged = lift.merge(lift.variable(name), texts, self._site.own)
        self._take(merged)
        self.add(name, lift.template(merged.text).encode())
        return True

    def _take(self, merged: lift.Merged) -> None:
        """Remember the variables of a text, and the values of each host."""
        self._made.note(merged.text)
        if merged.sized:
            self._made.sized.setdefault(self.path, {}).update(dict.fromkeys(merged.sized))
        for host in merged.values.keys() & self._values.keys():
            self._values[host].update(merged.values[host])
        self._own_used.update(OWN.findall(" ".join(lift.expressions(merged.text))))

    def of_each_host(self, name: str, values: Mapping[str, str], other: str) -> str:
        """A template for the value of each host, `other` for a host without one; no template if all agree."""
        found = {host: values.get(host, other) for host in self.hosts}
        if len(set(found.values())) == 1:
            return found[self.hosts[0]]
        name = lift.variable(name)
        for host, value in found.items():
            self._values[host][name] = value
        return f"{{{{ {name} }}}}"

    def templates(self, value: Any) -> Any:
        """The same with templates in place of marks."""
        self._made.note(value)
        return lift.templates(value)

    def write(self, definition: Mapping[str, Any]) -> None:
        """Write the definition and the values of the hosts."""
        self._write("definition.yml", definition)
        for host in self.hosts:
            own = self._site.own_values[host]
            self._values[host].update({name: own[name] for name in own if name in self._own_used})
        if any(self._values.values()):
            self._write("variables.yml", self._values)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._made.files[f"services/{self.path}/{name}"] = formats.dumped([content]).encode()


def _text(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def _number_as_text(value: Any) -> Any:
    """A text in place of a number, so that a variable can take its place."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


PREFIX = "openstack"
RELEASE_BEFORE = "release_before"  # the variable with the old tag, during an upgrade
TOOLBOX = "kolla_toolbox"
PLAYBOOK = "steps.yml"
# Steps of several services that run at the same time may create the same project: the second one is refused.
AGAIN = {"register": "made", "until": "made is success", "retries": 5, "delay": 2}
# What the command line may give for launch.yml, and what to say without it.
FOR_YOU = {
    "zookeeper": "launch.yml: `zookeeper` is for you to add: h1:2181,h2:2181 (or import with --hosts)",
    "agent": "launch.yml: `agent` is for you to add: the image that bin/agent-directory makes (or import with"
    " --agent), unless your images have the agent",
}
HOSTS = (
    "all hosts: /etc/hosts has the name and address of each, as `kolla-ansible bootstrap-servers` writes it;"
    " for Kubernetes, the name of a node in launch.yml is also its hostname"
)


def emit(imported: Imported) -> None:
    """Make all files of the directory."""
    _Emission(imported).all()


class _Emission:
    def __init__(self, imported: Imported) -> None:
        self.imported, self.rules = imported, imported.rules
        self.daemons = imported.containers.daemons
        self.steps = {step.name: step for step in imported.containers.steps}
        self.made = imported.emitted
        self.services: dict[str, Any] = {}
        self.roles: dict[tuple[str, ...], str] = {}
        roles = {name: each.role for name, each in self.steps.items()}
        roles.update({name: each.role for name, each in self.daemons.items()})
        self.paths = {name: f"{PREFIX}/{role}/{name}" for name, role in roles.items()}
        tags = {name: launch_settings.tag(each.first) for name, each in self.daemons.items()}
        self.tag = Counter(tags.values()).most_common(1)[0][0] if tags else ""
        tags.update({name: launch_settings.tag(self.settings_of(each)) for name, each in self.steps.items()})
        self.tags = {name: own or self.tag for name, own in tags.items()}
        migrations = [name for name, step in self.steps.items() if step.kind is Kind.BOOTSTRAP]
        edges = (edge for name in migrations for edge in imported.graph.edges.get(name, ()))
        # A migration needs that no older container of these daemons is left, nor starts again.
        self.replaced = {edge.on for edge in edges if edge.is_new}

    def all(self) -> None:
        for daemon in self.daemons.values():
            self.daemon(daemon)
        for step in self.steps.values():
            self.step(step)
        self.launch()
        self.variables()
        self.imported.add_reports(len(self.services))

    def service(self, name: str, hosts: Sequence[str]) -> Service:
        return Service(self.imported, self.paths[name], hosts)

    # -- daemons ----------------------------------------------------------------------------------

    def daemon(self, daemon: Daemon) -> None:
        service = self.service(daemon.name, daemon.hosts)
        settings, tag = service.settings(daemon.settings), self.tags[daemon.name]
        before = f"{{{{ {RELEASE_BEFORE} | default('{tag}') }}}}"
        found = {
            "command": "kolla_start",
            "dependencies": self.dependencies(daemon.name, service),
            "generations": [before, tag] if daemon.name in self.replaced else [],
            "files": service.config_files(daemon.settings),
            "env": service.templates(environment(settings)),
            "ready": service.templates(self.ready(daemon.name, settings)),
        }
        definition = {key: value for key, value in found.items() if value}
        commands = self.inside(daemon.name, service, definition)
        document: dict[str, Any] = {"commands": commands} if commands else {}
        document["service"] = {"instances": len(daemon.hosts), "daemon": definition}
        cluster = self.imported.clusters.by_daemon.get(daemon.name)
        service.write(self.of_cluster(cluster, service, document) if cluster else document)
        self.container(daemon.name, daemon.settings)

    def inside(self, name: str, service: Service, daemon: Mapping[str, Any]) -> Mapping[str, Any]:
        """What each container of a daemon runs before it, once for the same task of all hosts."""
        found: dict[str, Any] = {}
        for task in self.imported.containers.inside.get(name, ()):
            command = {"command": self.line(service, task)}
            command.update({key: daemon[key] for key in ("env", "files") if key in daemon})
            if command not in found.values():
                found[f"inside_{len(found) + 1}" if found else "inside"] = command
                self.made.add_task(service.path, task)
        return found

    def of_cluster(
        self, cluster: Cluster, service: Service, document: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The definition of a daemon with the keys of its cluster's definition.

        Its commands have the files and the environment of the daemon, and the files of the cluster.
        """
        imported = document["service"]["daemon"]
        files = {**imported.get("files", {}), **service.files_of_cluster(cluster)}
        env = imported.get("env", {})
        given = cluster.content.get("definition") or {}
        commands = {
            name: {**command, "env": {**env, **command.get("env", {})}, "files": files}
            for name, command in (given.get("commands") or {}).items()
        }
        daemon = {**imported, **(given.get("service") or {}).get("daemon", {}), "files": files}
        daemon["env"] = {**env, **service.templates(cluster.environment)}
        if "election" in daemon:
            daemon["election"] = {**daemon["election"], "members": len(cluster.daemon.hosts)}
        for step in cluster.replaced:
            for task in step.tasks:
                self.made.add_task(service.path, task)
        return {
            "commands": {**document.get("commands", {}), **commands},
            "service": {**document["service"], "daemon": daemon},
        }

    def ready(self, name: str, settings: Settings) -> Mapping[str, Any]:
        check = settings.get("healthcheck") or {}
        test = check.get("test") or "NONE"
        kind, *words = [test] if isinstance(test, str) else test
        if kind in ("NONE", ""):
            return {}
        own = self.rules.row("ready", name).get("command")
        command = own or (words[0] if kind == "CMD-SHELL" else words)
        return {
            "command": command,
            "timeout": _number(check.get("timeout", 30)),
            "fall": _number(check.get("retries", 3)),
        }

    # -- steps ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        service, settings = self.service(step.name, [step.host]), self.settings_of(step)
        self.made.note(settings)
        env, files = environment(settings), service.config_files({step.host: settings})
        command: object = "kolla_start"
        if step.kind is Kind.TOOLBOX:
            # Modules of ansible; kolla_toolbox has files such as clouds.yaml for them.
            playbook = self.playbook(step).encode()
            service.add(PLAYBOOK, playbook)
            # `publish` compares commands, not files, to say that a step has changed and does not run again.
            dest = f"/tmp/steps-{hashlib.sha256(playbook).hexdigest()[:8]}.yml"
            files[PLAYBOOK] = {"dest": dest, **({"owner": step.user} if step.user else {})}
            command = _shell(f"ansible-playbook -i localhost, -c local {dest}")
        elif step.kind is Kind.EXEC:
            in_container = executed(step.tasks[0])
            assert in_container is not None
            env = {**env, **in_container.environment}
            command = self.until_registered(service, in_container.line) or self.line(service, step.tasks[0])
        elif settings.get("command"):
            command = lift.template(self.rules.command(str(settings["command"]).strip()))
        found = {
            "run_once": True,
            "generation": self.tags[step.name],
            "command": command,
            "user": step.user,
            "env": service.templates(env),
            "files": files,
            "succeeds": self.rules.row("succeeds", step.name).get("statuses"),
            "dependencies": self.dependencies(step.name, service),
        }
        used = {key: value for key, value in found.items() if value not in (None, {}, [], ())}
        service.write({"commands": {"run": used}})
        self.container(step.name, {step.host: settings})
        if step.user:
            self.services[service.path]["user"] = 0
        for task in step.tasks:
            self.made.add_task(service.path, task)

    def settings_of(self, step: Step) -> Settings:
        """The settings of the container of a step: its own, or a daemon's; empty if that is not imported."""
        if step.kind is Kind.BOOTSTRAP:
            return step.tasks[0].args
        found = self.daemons.get(TOOLBOX if step.kind is Kind.TOOLBOX else step.image_of)
        return found.settings.get(step.host, found.first) if found else {}

    def until_registered(self, service: Service, line: str) -> Sequence[str]:
        """A command that is repeated until a daemon is listed on all hosts; empty without a rule for it."""
        rule = next((row for row in self.rules["registered"] if re.search(row["match"], line)), None)
        daemon = self.daemons.get(rule["daemon"]) if rule else None
        if rule is None or daemon is None:
            return ()
        hosts = [self.imported.site.own_values[host][OWN_HOSTNAME] for host in daemon.hosts]
        pattern = "|".join(host.replace(".", "[.]") for host in hosts)
        listed = f'[ "$({rule["lists"]} | grep -cE "[|] *({pattern}) *[|]")" -ge {len(hosts)} ]'
        own = service.templates(self.rules.command(line))
        return _shell(f"until {own} || exit; {listed}; do sleep 5; done")

    def line(self, service: Service, task: Task) -> Sequence[str]:
        """The command of an `exec` as a command of a container."""
        in_container = executed(task)
        assert in_container is not None
        line = self.rules.command(in_container.line)
        if task.module == "shell":
            return _shell(service.templates(line))
        # Without a shell for the words, which may be passwords.
        return [*_shell('exec "$@"'), "bash", *service.templates(lift.words(line))]

    def playbook(self, step: Step) -> str:
        """The recorded modules, as ansible in kolla_toolbox runs them."""
        tasks = []
        for task in step.tasks:
            args = task.args.get("module_args") or {}
            self.made.note(args)
            module = {str(task.args["module_name"]): args}
            tasks.append({"name": task.name, "no_log": True, **AGAIN, **module})
        play = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
        return _as_texts(lift.template(formats.dumped([play])))

    # -- dependencies -----------------------------------------------------------------------------

    def dependencies(self, name: str, service: Service) -> list[Any]:
        edges = [edge for edge in self.imported.graph.edges.get(name, ()) if edge.is_hard]
        found: list[Any] = []
        last: dict[str, dict[str, str]] = {}  # by role: the last step of each host
        for edge in edges:
            step = self.steps.get(edge.on)
            if step and edge.is_local:
                last.setdefault(step.role, {})[step.host] = f"{step.name}/run"
            elif edge.on in self.paths:
                found.append(self.dependency(edge))
        # A dependency can't be empty: a host without such a step has another dependency twice.
        known = [each if isinstance(each, str) else each["path"] for each in found]
        for role, paths in last.items():
            other = [*known, *paths.values()][0]
            found.append(service.of_each_host(f"after_{role}", paths, other))
        return found

    def dependency(self, edge: Edge) -> Any:
        if edge.on in self.steps:
            is_same = self.tags[edge.name] == self.tags[edge.on]
            return f"{edge.on}/run" if is_same else {"path": f"{edge.on}/run", "generation": "any"}
        path, count = f"{edge.on}/daemon", len(self.daemons[edge.on].hosts)
        if edge.is_new and edge.is_local:
            return {"path": path, "scope": "local", "generation": self.tags[edge.on]}
        if edge.is_new:
            return {"path": path, "generation": self.tags[edge.on], "count": count, "exclusive": True}
        if edge.is_all:
            return {"path": path, "count": count}
        return {"path": path, "scope": "local"} if edge.is_local else path

    # -- the deployment ---------------------------------------------------------------------------

    def container(self, name: str, by_host: Mapping[str, Settings]) -> None:
        """Add a service to launch.yml."""
        hosts = tuple(by_host)
        role = self.roles.setdefault(hosts, f"hosts-{len(self.roles) + 1}" if self.roles else "hosts")
        keys, left, refused = launch_settings.made(name, by_host, self.tag, self.rules)
        replicas = {"replicas": "each"} if len(hosts) > 1 else {}
        self.services[self.paths[name]] = {"placement": role, **replicas, **keys}
        self.made.left += left
        self.made.refused += refused

    def launch(self) -> None:
        content: dict[str, Any] = {"tag": self.tag}
        content["hosts"] = {role: list(hosts) for hosts, role in self.roles.items()}
        for key, missing in FOR_YOU.items():
            if self.imported.given.get(key):
                content[key] = self.imported.given[key]
            else:
                self.made.left.append(missing)
        self.made.left.append(HOSTS)
        content["defaults"] = launch_settings.DEFAULTS
        content["services"] = self.services
        self.made.files["launch.yml"] = formats.dumped([content]).encode()

    def variables(self) -> None:
        site, used = self.imported.site, self.made.used
        values = {name: address for address, name in site.names.items() if name in used}
        kinds = sorted(stand_ins.kinds(site.passwords).items())
        secrets = {name: kind for name, kind in kinds if name in used}
        self.made.files["variables.yml"] = formats.dumped([values]).encode()
        self.made.files["secrets.yml"] = formats.dumped([secrets]).encode()


def _shell(line: str) -> Sequence[str]:
    """A command for a shell, with Kolla's config files in their places."""
    return ["bash", "-c", f"sudo -E kolla_set_configs && {line}"]


def _number(value: object) -> object:
    """A number that kolla-ansible may write as a text; a template of one stays."""
    text = str(value)
    return int(text) if text.isdigit() else value


def _as_texts(playbook: str) -> str:
    """The template of a playbook, in which a value that is one variable stays a text, whatever it is.

    Otherwise a password could be a number, or a template of ansible.
    """
    return re.sub(r": \{\{ (\w+) \}\}$", r": !unsafe {{ \1 | tojson }}", playbook, flags=re.MULTILINE)
