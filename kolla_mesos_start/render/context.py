"""The variables and functions of templates, and the report of those that are missing.

Pure: the values come in a `Context`, some as functions. No message contains a value.

`tree.codec` reads the facts of a member, which `host.network` has made; kolla-mesos only wrote
`ansible_hostname`, `api_interface` and `ansible_<interface>`.
"""

from __future__ import annotations

import re

from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import CannotRender, MissingVariable
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Callable

    from kolla_mesos_start.render.sandbox import Missing, Sandbox

    Facts = Mapping[str, Any]

log = Logger(__name__)


IMAGE_GENERATION = "image_generation"
ELECTION = "election"
PARTIES = frozenset({"groups", "hostvars"})
# Names that win over a znode of the same name. `api_interface` does not.
BUILTIN = PARTIES | {
    "ansible_hostname",
    "cpu_count",
    "deployment_id",
    ELECTION,
    "get_hostname",
    "get_ip_address",
    IMAGE_GENERATION,
    "inventory_hostname",
    "kolla_hostname",
    "list_addresses_by_service",
    "list_ips_by_service",
    "ready_instances",
    "service_name",
}


# What depends on the addresses of this host, unless a znode has it; `get_ip_address` finds them itself.
ADDRESSED = PARTIES | {
    "ansible_hostname",
    "api_interface",
    "inventory_hostname",
    "list_addresses_by_service",
    "list_ips_by_service",
}


class Context(NamedTuple):
    """The values that templates are rendered with.

    `address` is that of the private interface, `host` the name of the host of scope `local`. `members`
    returns the facts of the members of one service, `parties` those of all services, `services` the
    services that have a role, `ready_instances` what the instances of one service registered, sorted by
    id. `facts` are this host's own, for `hostvars`, also while it has not registered them.
    `image_generation` is that of the code in this image; None where it is not known. `election`: the result
    of the election that the command's service has, if any.
    """

    deployment_id: str
    service_name: str
    address: str
    hostname: str  # in the operating system
    host: str
    api_interface: str  # unless a znode has the variable
    variables: Mapping[str, str]
    members: Callable[[str], Sequence[Facts]]
    parties: Callable[[], Mapping[str, Sequence[Facts]]]
    services: Callable[[str], Sequence[str]]
    ready_instances: Callable[[str], Sequence[Facts]]
    get_ip_address: Callable[[str | None], str]
    cpu_count: int
    facts: Facts
    image_generation: str | None
    election: Mapping[str, str] | None = None


def variable_names(texts: Sequence[Text]) -> frozenset[str]:
    """The variables that the templates may use, on any branch, to be read before rendering.

    Raises CannotRender for bad syntax.
    """
    templates = [text for text in texts if text.is_template]
    if not templates:
        return frozenset()
    from kolla_mesos_start.render.sandbox import Sandbox  # jinja2's import is slow.

    sandbox = Sandbox()
    names = [sandbox.undeclared(text) for text in templates]
    return frozenset().union(*names) - BUILTIN


def unusable_name(name: str, known: Iterable[str]) -> str:
    """The cause, to end a message, if a missing name may be a part of a known one: `my` of `my-var`."""
    for found in known:
        if not found.isidentifier() and name in re.split(r"[-.]", found):
            rename = re.sub("[-.]", "_", found)
            return f"; templates can't use {found!r}, because it contains - or .: rename it to {rename}"
    return ""


def file_text(name: str, data: bytes, template: bool = True) -> Text | None:
    """A file's content as a template; None if it has none and is written byte for byte.

    A newline is added, because jinja2 removes one at the end of a template, and a file keeps its own.
    Raises CannotRender for a template that is not UTF-8.
    """
    if not template or not any(mark in data for mark in (b"{{", b"{%", b"{#")):
        return None
    try:
        return Text(f"file {name}", data.decode() + "\n")
    except UnicodeDecodeError as error:
        raise CannotRender(
            f"file {name}: it holds {{{{, {{% or {{# but is not UTF-8 (byte {error.start}); "
            'set "template": false if it is no template'
        ) from None  # The error holds the content.


class Renderer:
    """Renders the strings and files of one command, and collects all missing values.

    Without a context it can only handle text that is no template.
    """

    def __init__(self, context: Context | None, missing_is_empty: bool = False) -> None:
        self._context = context
        self._missing_is_empty = missing_is_empty
        self._sandbox: Sandbox | None = None
        self._listed: dict[str, dict[str, bool]] = {}
        self._written: set[str] = set()  # listed services that a template names: not the value of a variable
        self._ports: dict[str, dict[str, int]] = {}  # by label and listed service: the fewest of an instance

    def text(self, text: Text) -> str:
        """The rendered text. It has gaps if something is missing: then `check` raises.

        Raises CannotRender for a template that fails for another reason.
        """
        if not text.is_template:
            return text.text
        assert self._context is not None, "a template needs a context"
        if self._sandbox is None:
            from kolla_mesos_start.render.sandbox import Sandbox  # jinja2's import is slow.

            self._sandbox = Sandbox(self._missing_is_empty)
        sandbox, context = self._sandbox, self._noting(self._context, text)
        return sandbox.render(text, _values(context, text, sandbox))

    def content(self, name: str, data: bytes, template: bool = True) -> bytes:
        """The rendered content of a file, like `text`. Without a template it stays byte for byte."""
        text = file_text(name, data, template)
        if text is None:
            return data
        try:
            return self.text(text).encode()
        except UnicodeEncodeError:
            raise CannotRender(f"file {name}: its text can't be written as UTF-8") from None

    def listed(self, name: str) -> Mapping[str, bool]:
        """The services whose members or instances the file lists, and whether there is any."""
        return self._listed.get(f"file {name}", {})

    def _noting(self, context: Context, text: Text) -> Context:
        listed, ports = self._listed.setdefault(text.label, {}), self._ports.setdefault(text.label, {})

        def noting(read: Callable[[str], Sequence[Facts]]) -> Callable[[str], Sequence[Facts]]:
            def noted(service: str) -> Sequence[Facts]:
                found = read(service)
                listed[service] = bool(found) and listed.get(service, True)
                names = (service, service.rpartition("/")[2])
                if any(f"{mark}{name}{mark}" in text.text for name in names for mark in "'\""):
                    self._written.add(service)
                if read is context.ready_instances and found:
                    ports[service] = min(len(one.get("ports") or ()) for one in found)
                return found

            return noted

        return context._replace(
            members=noting(context.members), ready_instances=noting(context.ready_instances)
        )

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The missing values so far, in the order in which they were used."""
        return tuple(self._sandbox.missing) if self._sandbox else ()

    def check(self, looked_at: Callable[[str], Sequence[str]]) -> None:
        """Raise CannotRender if anything was missing; if missing is empty, log a warning for each name.

        `looked_at` returns the places that may hold the variable of that name.
        """
        missing: dict[tuple[str, bool], list[str]] = {}
        for one in self.missing:
            missing.setdefault((one.name, one.is_variable), []).append(f"{one.label} line {one.line}")
        if self._missing_is_empty:
            for (name, _), uses in missing.items():
                log.warning("%s is missing and was rendered as empty text: used in %s", name, "; ".join(uses))
        elif missing:
            reports = []
            for (name, is_variable), uses in missing.items():
                if name == IMAGE_GENERATION:
                    uses.append("set KOLLA_GENERATION to the generation of this image")
                elif is_variable:
                    hint = unusable_name(name, self._context.variables if self._context else ())
                    uses.append(f"looked at {', '.join(looked_at(name))}{hint}")
                reports.append(f"{name} (used in {'; '.join(uses)})")
            nobody = {
                service
                for one in self.missing
                for service, some in self._listed[one.label].items()
                if not (one.is_variable or some) and service in self._written
            }
            why = f"; no member or ready instance of {', '.join(sorted(nobody))} is present" if nobody else ""
            for service, some in sorted({each for one in self.missing for each in self._lacking(one)}):
                what = "no such port" if some else "no port"
                why += f"; an instance of {service} has registered {what}: give it `ports` in launch.yml"
                why += ", or set its KOLLA_PORTS"
            raise MissingVariable(f"missing: {', '.join(reports)}{why}")

    def _lacking(self, missing: Missing) -> list[tuple[str, int]]:
        """The services, if a template names them, with an instance that may lack this port; its ports."""
        found = re.fullmatch(r"item (\d+)|an item of an empty list", missing.name)
        ports, index = self._ports[missing.label], int(found[1] or 0) if found else -1
        return [each for each in ports.items() if each[1] <= index and each[0] in self._written]


class _Lazy(dict[str, "Any"]):
    """A mapping that reads what it lacks when it is looked up; an unknown key has a copy of `unknown`."""

    def __init__(self, read: Callable[[str], object], unknown: Sequence[str] | None) -> None:
        self._read, self._unknown = read, unknown

    def __missing__(self, key: str) -> Any:
        found = self.get(key, None if self._unknown is None else list(self._unknown))
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self and isinstance(key, str):
            self._read(key)
        return super().get(key, default)


def _values(context: Context, text: Text, sandbox: Sandbox) -> dict[str, object]:
    """All names that the template can use. Raises CannotRender for bad syntax."""
    values: dict[str, object] = {"api_interface": context.api_interface, **context.variables}
    values.update(
        deployment_id=context.deployment_id,
        service_name=context.service_name,
        inventory_hostname=context.address,
        ansible_hostname=context.address,
        kolla_hostname=context.host,
        cpu_count=context.cpu_count,
        get_hostname=lambda: context.hostname,
        get_ip_address=lambda interface=None: _ip_address(context, interface),
        list_addresses_by_service=_list_by_service(context, "address"),
        list_ips_by_service=_list_by_service(context, "private_address"),
        # A missing name is reported later.
        ready_instances=lambda service: sorted(
            context.ready_instances(str(service)) if str(service) else (), key=lambda one: one["host"]
        ),
    )
    if context.image_generation is not None:
        values[IMAGE_GENERATION] = context.image_generation
    if context.election is not None:
        values[ELECTION] = context.election
    if any(name in text.text for name in PARTIES):
        parties = _Parties(context)
        if PARTIES & sandbox.used_whole(text):
            parties.read_all()
        values.update(groups=parties.groups, hostvars=parties.hostvars)
    return values


def _ip_address(context: Context, interface: object) -> str:
    if interface is None:
        return context.get_ip_address(None)
    name = str(interface)
    # A missing name is reported later.
    return context.get_ip_address(name) if name or isinstance(interface, str) else ""


def _list_by_service(context: Context, field: str) -> Callable[..., str]:
    """A function that lists this address of each member of a service, in one text."""

    def list_by_service(
        name: object, port: object = None, separator: object = ",", prefix: object = None
    ) -> str:
        service, before, after = str(name), str(prefix or ""), f":{port}" if port else ""
        members = context.members(service) if service else ()  # A missing name is reported later.
        in_url = bool(after) or before.endswith("//")
        addresses = sorted(member[field] for member in members)
        return str(separator).join(
            f"{before}[{address}]{after}" if in_url and ":" in address else f"{before}{address}{after}"
            for address in addresses
        )

    return list_by_service


class _Parties:
    """`groups` and `hostvars`, as in Ansible, as far as they have been read from ZooKeeper."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._all, self._roles = False, set[str]()
        self.groups = _Lazy(self._read_role, [])
        self.hostvars = _Lazy(lambda address: self.read_all(), None)
        self.hostvars[context.address] = _with_ansibles_names(context.facts)

    def read_all(self) -> None:
        """The members of all services, once."""
        if not self._all:
            self._all = True
            self.groups.clear()
            self._add(self._context.parties())

    def _read_role(self, role: str) -> None:
        if not self._all and role not in self._roles:
            self._roles.add(role)
            self._add({service: self._context.members(service) for service in self._context.services(role)})

    def _add(self, parties: Mapping[str, Sequence[Facts]]) -> None:
        for service, members in sorted(parties.items()):
            by_address = [(member["private_address"], _with_ansibles_names(member)) for member in members]
            self.hostvars.update(by_address)
            role = service.rsplit("/", 1)[-1]
            addresses = [address for address, _ in by_address]
            self.groups[role] = sorted(dict.get(self.groups, role, []) + addresses)
        self.hostvars[self._context.address] = _with_ansibles_names(self._context.facts)


def _with_ansibles_names(facts: Facts) -> Facts:
    """These facts with the interfaces by Ansible's names too: `ansible_br_ex` for br-ex; a dot stays."""
    return {**{re.sub("[-:]", "_", name): value for name, value in facts.items()}, **facts}
