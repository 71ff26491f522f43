"""`launch.yml` of a deployment's directory: settings of launchers that definitions do not have.

`directory` finds the file and reads it. `container_settings` has the settings of a service's containers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.ctl.directory import container_settings
from kolla_mesos_start.ctl.directory.container_settings import (
    EACH,
    HOST,
    OWN,
    ContainerSettings,
    Port,
    Volume,
)
from kolla_mesos_start.ctl.directory.findings import (
    ERROR,
    WARNING,
    DataSource,
    Finding,
    Issue,
    counted,
    located,
)
from kolla_mesos_start.definition import strings
from kolla_mesos_start.definition.document import Fields, Reading, load, nearest
from kolla_mesos_start.definition.strings import Text, labelled, sublabel
from kolla_mesos_start.errors import BadDefinition, CannotRender

NAME = "launch"  # of the file
INSTANCES = "service.instances"
SUGGESTED = "try"
KEYS = ("tag", "hosts", "zookeeper", "agent", "defaults", "services", SUGGESTED)


class LaunchFile(NamedTuple):
    """The content of the file `source`. Each role in `hosts` has at least one host.

    `agent` is mounted into the containers; None: their images have it.
    """

    source: DataSource = DataSource("")
    tag: str | None = None
    hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    defaults: ContainerSettings = ContainerSettings()
    services: Mapping[str, ContainerSettings] = MappingProxyType({})
    suggested: Sequence[str] = ()
    zookeeper: str | None = None
    agent: Volume | None = None

    def of(self, service: str) -> ContainerSettings:
        """The settings of a service, completed with the defaults."""
        return self.services.get(service, ContainerSettings()).over(self.defaults)

    def label(self, service: str, key: str) -> str:
        """The label of a setting of a service, or of its default."""
        is_own = getattr(self.services.get(service), key, None) is not None
        return f"{sublabel('services', service) if is_own else 'defaults'}.{key}"

    def tag_of(self, service: str) -> str | None:
        """The tag of a service's image: its own, or that of all."""
        return self.of(service).tag or self.tag

    def hosts_of(self, service: str) -> Sequence[str]:
        """The hosts of its role; empty without placement."""
        role = self.of(service).placement
        return self.hosts[role] if role else ()

    def is_on_each(self, service: str) -> bool:
        """Whether it has one container on each host of its role."""
        return self.of(service).replicas == EACH

    def placed(self, service: str, wanted: int) -> Sequence[str]:
        """The hosts that get its containers; empty without placement."""
        hosts = self.hosts_of(service)
        return hosts if self.is_on_each(service) else hosts[:wanted]

    @property
    def adds_to_pods(self) -> bool:
        """Whether it contains parts of pod templates."""
        return any(each.kubernetes for each in (self.defaults, *self.services.values()))

    def located(self, issues: Iterable[Issue]) -> Sequence[Finding]:
        """The findings for issues of this file, whose node is NAME."""
        return located(issues, {NAME: self.source})

    def too_few(self, service: str, wanted: int) -> Iterator[Issue]:
        """An error if the role has fewer hosts than the service wants containers."""
        hosts = self.hosts_of(service)
        if not hosts or wanted <= len(hosts):
            return
        what = (
            f"{service} wants {counted(wanted, 'container')}, and its role {self.of(service).placement} has"
            f" {counted(len(hosts), 'host')}: add hosts, or lower `instances` of its definition"
        )
        yield Issue(ERROR, NAME, what, self.label(service, "placement"))

    def shared_ports(self, ports: Mapping[str, Sequence[Port]], wanted: Mapping[str, int]) -> Iterator[Issue]:
        """Ports that two services use on one named host, unless they have their own networks.

        A launcher other than Kubernetes gives a container the host's network if launch.yml names none.
        """
        users: dict[tuple[str, Port], str] = {}
        for service in ports:
            for host in self.placed(service, wanted.get(service, 1)):
                for port in ports[service] if self.of(service).network != OWN else ():
                    other = users.setdefault((host, port), service)
                    if other != service:
                        yield self._shared_port(host, port, service, other)

    def _shared_port(self, host: str, port: Port, service: str, other: str) -> Issue:
        what = (
            f"ports: {port} of {service} is a port of {other} too, and both run on {host}: choose another one"
        )
        certain = self.of(service).network == self.of(other).network == HOST
        if not certain:
            what += f", or give each its own network (`network: {OWN}`)"
        severity, about = ERROR if certain else WARNING, f"{port} {service} {other}"
        return Issue(severity, NAME, what, self.label(service, "ports"), about=about)


def hosts_from(named: Sequence[str], wanted: int) -> Sequence[str]:
    """The hosts of so many containers: these, then others, called node-1 and so on; each once."""
    first = dict.fromkeys(named)
    others = (f"node-{number}" for number in count(len(first) + 1))
    return list(islice(chain(first, (host for host in others if host not in first)), wanted))


def with_types(content: Mapping[str, Any], typed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file's content as texts, but each `kubernetes` with its numbers and booleans."""
    found = dict(content)
    if "defaults" in content:
        found["defaults"] = _with_types(content["defaults"], typed["defaults"])
    services = content.get("services")
    if isinstance(services, dict):
        found["services"] = {
            name: _with_types(each, typed["services"][name]) for name, each in services.items()
        }
    return found


def _with_types(settings: Any, typed: Any) -> Any:
    is_there = isinstance(settings, dict) and "kubernetes" in settings
    return {**settings, "kubernetes": typed["kubernetes"]} if is_there else settings


def parse(
    content: Mapping[str, object], source: DataSource, services: Iterable[str]
) -> tuple[LaunchFile, Sequence[Finding]]:
    """Parse the file; also returns its mistakes. `services` are those of the directory."""
    reading = Reading(lambda text: text.text)
    top = Fields(reading, "", content, KEYS)
    hosts = _hosts(reading, top.mapping("hosts"))
    launch = LaunchFile(
        source,
        top.early("tag", None, container_settings.bad_tag),
        hosts,
        container_settings.read(reading, "defaults", top.raw("defaults"), hosts),
        _services(reading, top.mapping("services"), frozenset(services), hosts),
        _lines(reading, top),
        top.early("zookeeper", None, _bad_hosts),
        container_settings.read_agent(reading, "agent", top.raw("agent")),
    )
    if not reading.issues:
        _check_placed(reading, launch)
    findings = launch.located(Issue(ERROR, NAME, issue, issue.label, issue.line) for issue in reading.issues)
    return LaunchFile() if reading.issues else launch, findings


def _hosts(reading: Reading, given: Mapping[str, object]) -> Mapping[str, Sequence[str]]:
    roles = Fields(reading, "hosts", given, tuple(given))
    return {role: _names(roles, role) for role in given}


def _names(roles: Fields, role: str) -> Sequence[str]:
    found: list[str] = []
    for label, name in labelled(roles.label_of(role), roles.items(role)):
        why = bad_host(name) if isinstance(name, str) else "expected the name of a host"
        if why or name in found:
            roles.reading.report(label, why or f"{name} is here twice")
        else:
            found.append(str(name))
    if roles.raw(role) in (None, []):
        roles.report(role, "expected the names of its hosts, [name, ...]")
    return found


def _lines(reading: Reading, top: Fields) -> Sequence[str]:
    found = []
    for label, line in labelled(SUGGESTED, top.items(SUGGESTED)):
        if isinstance(line, str) and line.isprintable():
            found.append(line)
        else:
            reading.report(label, "expected a command, in one line")
    return found


def bad_host(name: str) -> str | None:
    """Why it can't be the name of a host: its agents would refuse it as KOLLA_HOSTNAME."""
    expected = strings.bad_host(name)
    return expected and f"{expected}, found {name!r}"


def _services(
    reading: Reading, given: Mapping[str, object], services: Set[str], hosts: Mapping[str, Sequence[str]]
) -> Mapping[str, ContainerSettings]:
    for name in sorted(given.keys() - services):
        what = f"is no service of the directory{nearest(name, services)}"
        reading.report(sublabel("services", name), what)
    return {
        name: container_settings.read(reading, sublabel("services", name), value, hosts)
        for name, value in given.items()
    }


def _bad_hosts(text: str) -> str | None:
    """Only what can't be meant; the agent says the rest."""
    return "expected h1:2181,h2:2181[/chroot]" if not text or " " in text else None


def _check_placed(reading: Reading, launch: LaunchFile) -> None:
    """Each host of which role?"""
    named = {sublabel("services", name): settings for name, settings in launch.services.items()}
    for label, settings in {"defaults": launch.defaults, **named}.items():
        if settings.replicas == EACH and not (settings.placement or launch.defaults.placement):
            reading.report(f"{label}.replicas", f"{EACH!r} needs a `placement`, a role of `hosts`")


# -- `instances` in the `service` of a definition, which the agent reads for `width` only --------------


def instances_text(definition: Any) -> Text:
    """The number of containers of a service, which may be a template; by default 1."""
    service = definition.get("service") if isinstance(definition, Mapping) else None
    value = service.get("instances") if isinstance(service, dict) else None
    return Text(INSTANCES, "1" if value is None else str(value))


def wanted_instances(definition: Any, render: Callable[[Text], str]) -> int | None:
    """The number; None if the text is not a number, or cannot be rendered."""
    try:
        number = render(instances_text(definition)).strip()
    except CannotRender:
        return None
    return int(number) if re.fullmatch("[0-9]{1,5}", number) else None


def with_instances(definition: bytes, count: int) -> bytes:
    """The definition with this number; unchanged if it is unreadable or that of a task."""
    try:
        root = load(definition).root
    except BadDefinition:
        return definition
    service = root.get("service")
    if not isinstance(service, dict) or service.get("instances", 1) == count:
        return definition
    changed = {**root, "service": {**service, "instances": count}}
    text = json.dumps(changed, indent=2, ensure_ascii=False)
    return text.encode(errors="surrogatepass") + b"\n"  # Validation reports a lone surrogate.
