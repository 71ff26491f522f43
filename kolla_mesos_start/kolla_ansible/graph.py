"""The dependencies of each daemon and step, with the reason for each.

What listens at which address comes from healthchecks, from HAProxy's files, and from rules; what connects
to it from every address with a port in the files, the environment and the arguments. Addresses are the
stand-ins of one recording, so that each is unique.

A hard edge is something without which the program can't start. A soft one is contacted later: it is listed,
and nothing waits for it. Steps of one role keep their recorded order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.kolla_ansible.containers import ConfigFile, Containers, Daemon, Kind, Step
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.rules import Rules

CURL = re.compile(r"healthcheck_curl .*?https?://\[?([^\]/:\s]+)\]?:(\d+)")
LISTEN = re.compile(r"healthcheck_listen \S+ (\d+)")
BIND = re.compile(r"^\s*bind (\S+):(\d+)", re.MULTILINE)
SERVER = re.compile(r"^\s*server \S+ (\S+):(\d+)", re.MULTILINE)
SECTION = re.compile(r"^(?=(?:frontend|backend|listen) )", re.MULTILINE)
USE_BACKEND = re.compile(r"^\s*default_backend (\S+)", re.MULTILINE)

SQL = 3306  # of ProxySQL and of MariaDB
Address = tuple[str, int]
KEY = re.compile(r"^\s*[\"']?([A-Za-z_][A-Za-z0-9_.-]*)[\"']?\s*[=:]")
DATABASE = re.compile(r"mysql\+pymysql://[^\s@]*@[^\s/]+/([A-Za-z0-9_]+)")
URL = re.compile(r"https?://\[?([^\]/:\s]+)\]?:(\d+)")
Settings = Mapping[str, object]


class Listener(NamedTuple):
    """A daemon that listens. `is_proxy`: it passes connections on."""

    daemon: str
    is_proxy: bool = False


class Connection(NamedTuple):
    """An address, and where it was found: file, line and key."""

    address: str
    port: int
    file: str
    line: int = 0
    key: str = ""

    @property
    def place(self) -> str:
        """For people: `keystone.conf:12 connection`."""
        file = f"{self.file}:{self.line}" if self.line else self.file
        return f"{file} {self.key}".rstrip()


class Edge(NamedTuple):
    """`name`, a daemon or a step, needs `on`. `is_local`: that on the same host; `is_all`: on each.

    `is_new`: no container of an older release may be left.
    """

    name: str
    on: str
    reason: str
    is_hard: bool = True
    is_local: bool = False
    is_all: bool = False
    is_new: bool = False


class Unresolved(NamedTuple):
    """An address at which nothing listens, or more than one daemon: those of `listening`."""

    name: str
    connection: Connection
    listening: Sequence[str] = ()

    @property
    def what(self) -> str:
        """The place of the address, and what listens there."""
        verb = "listen" if len(self.listening) > 1 else "listens"
        return f"{self.connection.place}: {' and '.join(self.listening) or 'nothing'} {verb}"

    def address(self, real: Mapping[str, str]) -> str:
        """The real address, by its stand-in."""
        return f"{real.get(self.connection.address, self.connection.address)}:{self.connection.port}"

    def shown(self, real: Mapping[str, str]) -> str:
        """For people, with the real address of each stand-in."""
        return f"{self.name}: {self.what} at {self.address(real)}"


class Graph(NamedTuple):
    """The edges by the name that needs them, and the addresses that not exactly one daemon answers."""

    edges: Mapping[str, Sequence[Edge]]
    unresolved: Sequence[Unresolved]


class Places(NamedTuple):
    """Where hosts are: their addresses, the names that resolve to them, and the virtual addresses."""

    addresses: Mapping[str, Sequence[str]]
    names: Mapping[str, str]  # of addresses, by host name
    virtual: Sequence[str]


# -- what files and arguments say -------------------------------------------------------------------


def _proxied(file: ConfigFile) -> Iterator[tuple[Address, Sequence[Address]]]:
    """Each address of a file of HAProxy with the servers behind it."""
    servers, fronts = {}, []
    for section in SECTION.split(file.content.decode(errors="replace")):
        kind, name = [*section.split(None, 2), "", ""][:2]
        if kind in ("backend", "listen"):
            servers[name] = [(address, int(port)) for address, port in SERVER.findall(section)]
        if kind in ("frontend", "listen"):
            used = [*USE_BACKEND.findall(section), *([name] if kind == "listen" else [])]
            fronts += [((address, int(port)), used) for address, port in BIND.findall(section)]
    for bound, used in fronts:
        yield bound, [server for each in used for server in servers.get(each, ())]


def _lines(file: ConfigFile) -> Iterator[tuple[int, str]]:
    return enumerate(file.content.decode(errors="replace").split("\n"), start=1)


def _in_file(file: ConfigFile, pattern: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses in a file, with the key of their line."""
    key = ""
    for number, line in _lines(file):
        if line.lstrip().startswith("#"):
            continue
        named = KEY.match(line)
        key = named[1] if named else key if line[:1].isspace() else ""
        for address, port in pattern.findall(line):
            yield Connection(address, int(port), file.path, number, key)


def _in_value(value: object, what: str, pattern: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses in arguments or in an environment."""
    for address, port in pattern.findall(json.dumps(value, default=str)):
        yield Connection(address, int(port), what)


def _modules(step: Step) -> Iterator[tuple[Task, str, Mapping[str, Any]]]:
    """What a step runs in kolla_toolbox: each task with the short name and the arguments of its module."""
    for task in step.tasks:
        if "module_name" in task.args:
            name = str(task.args["module_name"]).rpartition(".")[2]
            yield task, name, task.args.get("module_args") or {}


def _in_step(step: Step, pattern: re.Pattern[str]) -> Iterator[Connection]:
    """The addresses to which a step's tasks connect."""
    for task in step.tasks:
        if task.module != "kolla_toolbox":
            own = {name: value for name, value in task.args.items() if name != "common_options"}
            yield from _in_value(own, task.name, pattern)
    for task, module, args in _modules(step):
        for key, value in _items(args):
            if key == "login_host":
                yield Connection(str(value), int(args.get("login_port", SQL)), task.name, 0, key)
            elif key == "auth_url" or (key == "url" and module in ("uri", "get_url")):
                for host, port in URL.findall(str(value)):
                    yield Connection(host, int(port), task.name, 0, key)


def _items(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """The single values below a mapping, by key."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _items(each, str(name))
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, (Mapping, list)):
                yield from _items(each)
    else:
        yield key, value


def _uses_identity(step: Step) -> bool:
    """Whether a step talks to Keystone: by its address, or by the name of a cloud in clouds.yaml."""
    modules = (str(task.args.get("module_name", "")) for task in step.tasks)
    is_of_openstack = any(module.startswith(("openstack.cloud.", "os_")) for module in modules)
    return is_of_openstack or any("auth_url" in str(task.args) for task in step.tasks)


def _created_databases(step: Step) -> set[str]:
    """The databases that a step in kolla_toolbox creates, or gives rights for."""
    found: set[str] = set()
    for _, module, args in _modules(step) if step.kind is Kind.TOOLBOX else ():
        if module == "mysql_db":
            found.add(str(args.get("name")))
        elif module == "mysql_user":
            granted = (each.partition(".")[0].strip("`") for each in str(args.get("priv", "")).split("/"))
            found.update(name.replace("\\", "") for name in granted if name not in ("*", ""))
    return found


# -- the graph ----------------------------------------------------------------------------------------


def derive(containers: Containers, rules: Rules, places: Places, *, is_upgrade: bool = False) -> Graph:
    """Derive the graph of a recording, whose addresses are stand-ins."""
    return _Derivation(containers, rules, places).graph(is_upgrade)


class _Derivation:
    def __init__(self, containers: Containers, rules: Rules, places: Places) -> None:
        self.containers, self.rules, self.places = containers, rules, places
        self.identity: Mapping[str, str] = rules["identity"]
        self.listeners = self.find_listeners()
        every = {*places.virtual, *places.names, *(each for own in places.addresses.values() for each in own)}
        names = "|".join(re.escape(each) for each in sorted(every, key=len, reverse=True))
        # One of these addresses, or names of hosts, with a port.
        self.pattern = re.compile(rf"(?<![\w.-])({names}):(\d{{2,5}})(?!\d)")
        self.unresolved: list[Unresolved] = []

    def graph(self, is_upgrade: bool) -> Graph:
        found: dict[str, dict[str, Edge]] = {}
        for edge in (*self.of_daemons(), *self.of_steps(), *self.by_rules()):
            of_name = found.setdefault(edge.name, {})
            if edge.name != edge.on:
                of_name[edge.on] = _joined(of_name[edge.on], edge) if edge.on in of_name else edge
        for step, on in self.after_daemons() if is_upgrade else ():
            of_name = found.setdefault(step.name, {})
            known = of_name.get(on, Edge(step.name, on, "", is_hard=False))
            reason = known.reason if known.is_hard else f"kolla-ansible upgrades {on} first"
            # A command in a member of a cluster may need that all members are new.
            is_local = known.is_local and step.kind is Kind.TOOLBOX
            of_name[on] = Edge(step.name, on, reason, is_local=is_local, is_new=True)
        edges = {name: list(of_name.values()) for name, of_name in found.items()}
        return Graph(edges, self.unresolved)

    # -- addresses --------------------------------------------------------------------------------

    def find_listeners(self) -> Mapping[Address, Mapping[Listener, None]]:
        """The listeners of each address and port."""
        found: dict[Address, dict[Listener, None]] = {}

        def add(address: Address, listener: Listener) -> None:
            found.setdefault(address, {})[listener] = None

        for daemon in self.containers.daemons.values():
            listener = Listener(daemon.name, daemon.name == "proxysql")
            for host, settings in daemon.settings.items():
                test = " ".join(map(str, (settings.get("healthcheck") or {}).get("test", ())))
                for name, port in CURL.findall(test):
                    add((name, int(port)), Listener(daemon.name))
                ports = [*map(int, LISTEN.findall(test))]
                for row in self.rules.rows("listeners", daemon.name):
                    ports += row["ports"]
                for port in ports:
                    for name in self.places.virtual if listener.is_proxy else self.places.addresses[host]:
                        add((name, port), listener)
        backends: dict[Address, list[Address]] = {}
        for files in self.containers.files.values():
            for bound, servers in (each for file in files.get("haproxy", ()) for each in _proxied(file)):
                backends.setdefault(bound, []).extend(servers)
                add(bound, Listener("haproxy", True))
        for bound, servers in backends.items():
            for listener in [each for server in servers for each in found.get(server, ())]:
                add(bound, listener)
        behind = [
            each for (_, port), all_ in found.items() if port == SQL for each in all_ if not each.is_proxy
        ]
        for name in self.places.virtual if "proxysql" in self.containers.daemons else ():
            for listener in behind:
                add((name, SQL), listener)
        return found

    def to_listeners(self, name: str, host: str, connection: Connection, is_hard: bool) -> Iterator[Edge]:
        address = self.places.names.get(connection.address, connection.address)
        found = self.listeners.get((address, connection.port), ())
        daemons = list(dict.fromkeys(each.daemon for each in found))
        behind = list(dict.fromkeys(each.daemon for each in found if not each.is_proxy))
        ruled = [row for row in self.rules.rows("addresses", name) if row["port"] == connection.port]
        if ruled:  # `on` is null for something outside of the deployment.
            daemons = [str(row["on"]) for row in ruled[:1] if row["on"]]
        elif name not in daemons and (not daemons or len(behind) > 1):
            self.unresolved.append(Unresolved(name, connection, behind))
            return
        if name in daemons:
            return  # It is what listens there, or a member of the same cluster.
        is_own = address in self.places.addresses.get(host, ())
        for daemon in daemons:
            yield Edge(name, daemon, connection.place, is_hard, is_own)

    def is_hard(self, connection: Connection) -> bool:
        """Whether nothing can start without it."""
        return bool(re.fullmatch(self.rules["hard"], connection.key))

    def in_files(self, settings: Settings, host: str) -> Iterator[Connection]:
        """The connections in the files of a container."""
        for file in self.containers.config_files(settings, host):
            yield from _in_file(file, self.pattern)

    # -- daemons ----------------------------------------------------------------------------------

    def of_daemons(self) -> Iterator[Edge]:
        for daemon in self.containers.daemons.values():
            hosts = () if self.rules.rows("ignored", daemon.name) else daemon.hosts
            for host, settings in ((host, daemon.settings[host]) for host in hosts):
                environment = _in_value(settings.get("environment") or {}, "environment", self.pattern)
                for each in (*self.in_files(settings, host), *environment):
                    yield from self.to_listeners(daemon.name, host, each, self.is_hard(each))
            yield from self.after_steps(daemon)

    def after_steps(self, daemon: Daemon) -> Iterator[Edge]:
        """Steps that create or migrate a database that the daemon uses, or fill a volume of its own."""
        used = self.databases(daemon.first, daemon.hosts[0])
        started = min(daemon.started.values(), default=0)
        for step in self.containers.steps:
            common, volumes = used.keys() & _created_databases(step), set[str]()
            if step.kind is Kind.BOOTSTRAP and step.number < started:
                args = step.tasks[0].args
                common = used.keys() & self.databases(args, step.host).keys()
                if step.role == daemon.role:
                    volumes = self.own_volumes(args) & self.own_volumes(daemon.first)
            if common:
                yield Edge(daemon.name, step.name, f"{used[min(common)]} uses the database {min(common)}")
            elif volumes:
                yield Edge(daemon.name, step.name, f"it shares the volume {min(volumes)}")

    def databases(self, settings: Settings, host: str) -> Mapping[str, str]:
        """The databases that a container's files name in URLs, with the place."""
        return {
            name: f"{file.path}:{number}"
            for file in self.containers.config_files(settings, host)
            for number, line in _lines(file)
            for name in DATABASE.findall(line)
        }

    def own_volumes(self, settings: Mapping[str, Any]) -> set[str]:
        """Its named volumes, without those that all containers have."""
        names = {str(volume).partition(":")[0] for volume in settings.get("volumes") or ()}
        common = self.rules["common_volumes"]
        return {name for name in names if name and "/" not in name and not re.fullmatch(common, name)}

    # -- steps ------------------------------------------------------------------------------------

    def of_steps(self) -> Iterator[Edge]:
        stages: dict[str, list[list[Step]]] = {}  # by role: each has what hosts do side by side
        creators: dict[str, str] = {}  # of users of the database
        identity = next((step for step in self.containers.steps if self.is_identity(step)), None)
        for step in self.containers.steps:
            of_role = stages.setdefault(step.role, [])
            if not of_role or not all(step.is_beside(other) for other in of_role[-1]):
                of_role.append([])
            of_role[-1].append(step)
            for before in of_role[-2] if len(of_role) > 1 else ():
                yield Edge(step.name, before.name, f"the recorded order of the role {step.role}")
            found = list(_in_step(step, self.pattern))
            if step.kind is Kind.BOOTSTRAP:
                found += filter(self.is_hard, self.in_files(step.tasks[0].args, step.host))
                yield from self.databases_of(step)
            if step.kind is Kind.EXEC:
                yield Edge(step.name, step.image_of, "it ran in this container", is_local=True)
            for each in found:
                yield from self.to_listeners(step.name, step.host, each, True)
            modules = list(_modules(step))
            for user in (str(args["login_user"]) for _, _, args in modules if "login_user" in args):
                if user in creators:
                    yield Edge(step.name, creators[user], f"it logs in to the database as {user}")
            creators.update(
                {str(args.get("name")): step.name for _, name, args in modules if name == "mysql_user"}
            )
            # An upgrade has no step that creates the administrator.
            if _uses_identity(step) and (not identity or step.number > identity.number):
                why = "it talks to Keystone as an administrator"
                if identity:
                    yield Edge(step.name, identity.name, why)
                if self.identity["daemon"] in self.containers.daemons:
                    yield Edge(step.name, self.identity["daemon"], why)

    def databases_of(self, step: Step) -> Iterator[Edge]:
        used = self.databases(step.tasks[0].args, step.host)
        for other in self.containers.steps:
            common = used.keys() & _created_databases(other)
            if common and other.number < step.number:
                yield Edge(step.name, other.name, f"{used[min(common)]} uses the database {min(common)}")

    def is_identity(self, step: Step) -> bool:
        """Whether it creates the administrator of Keystone."""
        return any(re.search(self.identity["step"], str(task.args)) for task in step.tasks)

    def after_daemons(self) -> Iterator[tuple[Step, str]]:
        """Steps that an upgrade runs after it has started the daemons of their role or of their database."""
        for step in self.containers.steps:
            used: set[str] = set()
            if step.kind is Kind.BOOTSTRAP:
                used.update(self.databases(step.tasks[0].args, step.host))
            for daemon in self.containers.daemons.values():
                started = max(daemon.started.values(), default=step.number)
                common = used & self.databases(daemon.first, daemon.hosts[0]).keys()
                if started < step.number and (common or daemon.role == step.role):
                    yield step, daemon.name

    def by_rules(self) -> Iterator[Edge]:
        modules: dict[str, list[str]] = {name: [] for name in self.containers.daemons}
        for step in self.containers.steps:
            modules[step.name] = [str(task.args.get("module_name", "")) for task in step.tasks]
        for row in self.rules["needs"]:
            needed = [each for each in modules if row["on"] and re.fullmatch(row["on"], each)]
            reason, is_local, is_all = str(row["reason"]), bool(row.get("local")), bool(row.get("all"))
            for name, used in modules.items():
                runs = row.get("module") is None or any(re.fullmatch(row["module"], each) for each in used)
                if runs and re.fullmatch(row["name"], name):
                    yield from (Edge(name, on, reason, is_local=is_local, is_all=is_all) for on in needed)


def _joined(one: Edge, other: Edge) -> Edge:
    """Two edges as one: hard if one is, and local only if it is so on each host."""
    reason = other.reason if other.is_hard and not one.is_hard else one.reason
    is_hard, is_all = one.is_hard or other.is_hard, one.is_all or other.is_all
    return Edge(one.name, one.on, reason, is_hard, one.is_local and other.is_local and not is_all, is_all)


def without_needs(graph: Graph, containers: Containers, rules: Rules) -> Sequence[Step]:
    """Steps that wait for nothing, and that no rule knows: perhaps their dependencies were not found."""
    return [
        step
        for step in containers.steps
        if not any(edge.is_hard for edge in graph.edges.get(step.name, ()))
        and all(row["on"] is not None for row in rules.rows("needs", step.name))
    ]


def against_order(graph: Graph, containers: Containers, *, is_upgrade: bool = False) -> Sequence[Edge]:
    """Hard edges to something that kolla-ansible starts later.

    In an upgrade the daemons run already.
    """
    numbers = {step.name: step.number for step in containers.steps}
    numbers.update({each.name: min(each.started.values(), default=0) for each in containers.daemons.values()})
    return [
        edge
        for edges in graph.edges.values()
        for edge in edges
        if edge.is_hard and numbers.get(edge.on, 0) > numbers.get(edge.name, 0)
        if not is_upgrade or edge.is_new or edge.on not in containers.daemons
    ]
