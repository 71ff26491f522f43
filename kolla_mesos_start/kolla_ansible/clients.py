"""Finds connections: every address with a port in the files, the environment and the arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kolla_mesos_start.kolla_ansible.containers import ConfigFile, Step
from kolla_mesos_start.kolla_ansible.recording import Task

KEY = re.compile(r"^\s*[\"']?([A-Za-z_][A-Za-z0-9_.-]*)[\"']?\s*[=:]")
SECTION = re.compile(r"^\[(.+)\]\s*$")
DATABASE = re.compile(r"mysql\+pymysql://[^\s@]*@[^\s/]+/([A-Za-z0-9_]+)")
URL = re.compile(r"https?://\[?([^\]/:\s]+)\]?:(\d+)")


@dataclass(frozen=True)
class Connection:
    """An address, and where it was found: file, line, section and key."""

    address: str
    port: int
    file: str
    line: int
    key: str

    @property
    def place(self) -> str:
        """For people: `keystone.conf:12 connection`."""
        file = f"{self.file}:{self.line}" if self.line else self.file
        return f"{file} {self.key}".rstrip()


def pattern(addresses: Sequence[str]) -> re.Pattern[str]:
    """A pattern for each of these addresses, or names of hosts, with a port."""
    names = "|".join(re.escape(each) for each in sorted(addresses, key=len, reverse=True))
    return re.compile(rf"(?<![\w.-])({names}):(\d{{2,5}})(?!\d)")


def in_file(file: ConfigFile, found: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses in a file, with the key of their line."""
    key = ""
    for number, line in enumerate(file.content.decode(errors="replace").split("\n"), start=1):
        if line.lstrip().startswith("#"):
            continue
        named = KEY.match(line)
        key = named[1] if named else key if line[:1].isspace() else ""
        for address, port in found.findall(line):
            yield Connection(address, int(port), file.path, number, key)


def in_value(value: object, what: str, found: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses in arguments or in an environment."""
    for address, port in found.findall(json.dumps(value, default=str)):
        yield Connection(address, int(port), what, 0, "")


def of_step(step: Step, found: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses to which a step's tasks connect."""
    for task in step.tasks:
        args = {name: value for name, value in task.args.items() if name != "common_options"}
        if task.module != "kolla_toolbox":
            yield from in_value(args, task.name, found)
        else:
            yield from _of_module(task)


def uses_identity(step: Step) -> bool:
    """Whether a step talks to Keystone: by its address, or by the name of a cloud in clouds.yaml."""
    modules = (str(task.args.get("module_name", "")) for task in step.tasks)
    is_of_openstack = any(module.startswith(("openstack.cloud.", "os_")) for module in modules)
    return is_of_openstack or any("auth_url" in str(task.args) for task in step.tasks)


def _of_module(task: Task) -> Iterator[Connection]:
    module = str(task.args.get("module_name", "")).rpartition(".")[2]
    for key, value in _items(task.args.get("module_args") or {}):
        if key == "login_host":
            port = (task.args.get("module_args") or {}).get("login_port", 3306)
            yield Connection(str(value), int(port), task.name, 0, key)
        elif key == "auth_url" or (key == "url" and module in ("uri", "get_url")):
            for host, port in URL.findall(str(value)):
                yield Connection(host, int(port), task.name, 0, key)


def _items(value: object) -> Iterator[tuple[str, object]]:
    """The single values below a mapping, by key."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, (Mapping, list)):
                yield from _items(each)
            else:
                yield str(key), each
    elif isinstance(value, list):
        for each in value:
            yield from _items(each)


def databases(file: ConfigFile) -> Iterator[tuple[str, int]]:
    """The databases that a file names in URLs, with the line."""
    for number, line in enumerate(file.content.decode(errors="replace").split("\n"), start=1):
        for name in DATABASE.findall(line):
            yield name, number


def database_logins(tasks: Sequence[Task]) -> Iterator[str]:
    """The users with which a step logs in to the database."""
    for task in tasks:
        args: Mapping[str, object] = task.args.get("module_args") or {}
        if "login_user" in args:
            yield str(args["login_user"])


def created_database_users(tasks: Sequence[Task]) -> Iterator[str]:
    """The users of the database that a step creates."""
    for task in tasks:
        if str(task.args.get("module_name", "")).rpartition(".")[2] == "mysql_user":
            yield str(task.args["module_args"].get("name"))


def created_databases(tasks: Sequence[Task]) -> Iterator[str]:
    """The databases that a step creates, or gives rights for."""
    for task in tasks:
        args: Mapping[str, object] = task.args.get("module_args") or {}
        module = str(task.args.get("module_name", "")).rpartition(".")[2]
        if module == "mysql_db":
            yield str(args.get("name"))
        elif module == "mysql_user":
            for granted in str(args.get("priv", "")).split("/"):
                name = granted.partition(".")[0].strip("`")
                if name not in ("*", ""):
                    yield name.replace("\\", "")
