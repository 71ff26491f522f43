"""Finds listeners, the daemon at each address: from healthchecks, from HAProxy's files, and from rules.

Addresses are the stand-ins of one recording, so that each is unique.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kolla_mesos_start.kolla_ansible.containers import ConfigFile, Containers
from kolla_mesos_start.kolla_ansible.rules import Rules

CURL = re.compile(r"healthcheck_curl .*?https?://\[?([^\]/:\s]+)\]?:(\d+)")
LISTEN = re.compile(r"healthcheck_listen \S+ (\d+)")
BIND = re.compile(r"^\s*bind (\S+):(\d+)", re.MULTILINE)
SERVER = re.compile(r"^\s*server \S+ (\S+):(\d+)", re.MULTILINE)
SECTION = re.compile(r"^(?=(?:frontend|backend|listen) )", re.MULTILINE)
USE_BACKEND = re.compile(r"^\s*default_backend (\S+)", re.MULTILINE)

SQL = 3306  # of ProxySQL and of MariaDB
Address = tuple[str, int]


@dataclass(frozen=True)
class Listener:
    """A daemon on a host. `is_proxy`: it passes connections on."""

    daemon: str
    host: str
    is_proxy: bool = False


def find(
    containers: Containers, rules: Rules, addresses: Mapping[str, Sequence[str]], virtual: Sequence[str]
) -> Mapping[Address, Sequence[Listener]]:
    """The listeners of each address and port. `addresses` are those of each host."""
    found: dict[Address, dict[Listener, None]] = {}

    def add(address: str, port: int, listener: Listener) -> None:
        found.setdefault((address, port), {})[listener] = None

    for daemon in containers.daemons.values():
        for host, settings in daemon.settings.items():
            test = " ".join(map(str, (settings.get("healthcheck") or {}).get("test", ())))
            for address, port in CURL.findall(test):
                add(address, int(port), Listener(daemon.name, host))
            ports = [*map(int, LISTEN.findall(test)), *rules.ports(daemon.name)]
            for port in ports:
                for address in virtual if daemon.name == "proxysql" else addresses[host]:
                    add(address, port, Listener(daemon.name, host, daemon.name == "proxysql"))
    backends: dict[Address, list[Address]] = {}
    for host, files in containers.files.items():
        for file in files.get("haproxy", ()):
            for bound, servers in _proxied(file):
                backends.setdefault(bound, []).extend(servers)
                add(*bound, Listener("haproxy", host, True))
    for bound, servers in backends.items():
        for server in servers:
            for listener in found.get(server, ()):
                add(*bound, listener)
    behind = [each for (_, port), all_ in found.items() if port == SQL for each in all_ if not each.is_proxy]
    for address in virtual if "proxysql" in containers.daemons else ():
        for listener in behind:
            add(address, SQL, listener)
    return {address: list(listeners) for address, listeners in found.items()}


def _proxied(file: ConfigFile) -> Iterator[tuple[Address, Sequence[Address]]]:
    """Each address of a file of HAProxy with the servers behind it."""
    sections = SECTION.split(file.content.decode(errors="replace"))
    servers = {}
    for section in sections:
        kind, _, rest = section.partition(" ")
        name = rest.split(None, 1)[0] if rest else ""
        if kind in ("backend", "listen"):
            servers[name] = [(address, int(port)) for address, port in SERVER.findall(section)]
    for section in sections:
        kind, _, rest = section.partition(" ")
        name = rest.split(None, 1)[0] if rest else ""
        if kind in ("frontend", "listen"):
            used = [*USE_BACKEND.findall(section), *([name] if kind == "listen" else [])]
            behind = [server for each in used for server in servers.get(each, ())]
            for address, port in BIND.findall(section):
                yield (address, int(port)), behind
