"""Writes one service of an import: its definition, its files, and the values of its hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.kolla_ansible import hosts as merging
from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.clusters import Cluster
from kolla_mesos_start.kolla_ansible.containers import CONFIG_FILES, ConfigFile, Containers
from kolla_mesos_start.kolla_ansible.emitted import Emitted, Names

OWN = re.compile(r"own_[a-z0-9_]+")
Settings = Mapping[str, Any]


class Service:
    """A service on these hosts. Texts that differ between them become one template."""

    def __init__(
        self, made: Emitted, names: Names, containers: Containers, path: str, hosts: Sequence[str]
    ) -> None:
        self._made, self._names, self._containers = made, names, containers
        self.path, self.hosts = path, hosts
        self._values: dict[str, dict[str, str]] = {host: {} for host in hosts}
        self._own_used: set[str] = set()

    def settings(self, by_host: Mapping[str, Settings]) -> Settings:
        """The settings of all hosts as those of one, with variables where they differ."""
        differ = len({_text(each) for each in by_host.values()}) > 1
        texts = {host: _text(_with_texts(each) if differ else each) for host, each in by_host.items()}
        merged = merging.merge("setting", texts, self._names.own)
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
        merged = merging.merge(lift.variable(name), texts, self._names.own)
        self._take(merged)
        self.add(name, lift.template(merged.text).encode())
        return True

    def _take(self, merged: merging.Merged) -> None:
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
            own = self._names.own_values[host]
            self._values[host].update({name: own[name] for name in own if name in self._own_used})
        if any(self._values.values()):
            self._write("variables.yml", self._values)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._made.files[f"services/{self.path}/{name}"] = formats.dumped([content]).encode()


def _text(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def _with_texts(value: Any) -> Any:
    """The same with texts in place of numbers, so that a variable can take their place."""
    if isinstance(value, Mapping):
        return {key: _with_texts(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_texts(each) for each in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value
