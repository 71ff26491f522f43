"""Which variables a template needs, and its text once they are given.

What lives here: what a template can name, and what an operator is told when something is not
there. It is pure: the values come with a `Context`, some of them as functions of its owner.
Never here: reading anything, writing anything; and never a value in a message.

The members of a party are the mappings that `host.facts` makes, or that kolla-mesos made, which
wrote `ansible_hostname`, `api_interface` and `ansible_<interface>` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.log import Logger

if TYPE_CHECKING:
    from kolla_mesos_start.render.sandbox import Sandbox

log = Logger(__name__)

Facts = Mapping[str, Any]

PARTIES = frozenset({"groups", "hostvars"})
# Names that no znode can take over. `api_interface` is not among them.
BUILTIN = PARTIES | {
    "ansible_hostname",
    "cpu_count",
    "deployment_id",
    "get_hostname",
    "get_ip_address",
    "inventory_hostname",
    "list_ips_by_service",
    "ready_instances",
    "service_name",
}


class Context(NamedTuple):
    """What templates are rendered with, besides what they say themselves.

    `address` is the private interface's; `members` gives the facts of the members of one
    service, `parties` those of all services; `ready_instances` gives its instances sorted by id.
    `facts` are this host's own, for `hostvars`: they hold before its presence is seen.
    """

    deployment_id: str
    service_name: str
    address: str
    hostname: str
    private_interface: str
    api_interface: str  # where no znode says another one
    variables: Mapping[str, str]
    members: Callable[[str], Sequence[Facts]]
    parties: Callable[[], Mapping[str, Sequence[Facts]]]
    ready_instances: Callable[[str], Sequence[Facts]]
    get_ip_address: Callable[[str | None], str]
    cpu_count: int
    facts: Facts


class Missing(NamedTuple):
    """What is not there, and a line that wants it. `is_variable`: a znode may bring it."""

    name: str
    label: str
    line: int
    is_variable: bool


def variable_names(texts: Sequence[Text]) -> frozenset[str]:
    """The variables that the templates may look up, on any branch: those to read before rendering.

    Raises CannotRender for a template that jinja2 does not understand.
    """
    templates = [text for text in texts if text.is_template]
    if not templates:
        return frozenset()
    from kolla_mesos_start.render.sandbox import Sandbox  # jinja2's import is slow.

    sandbox = Sandbox()
    return frozenset().union(*(sandbox.undeclared(text) for text in templates)) - BUILTIN


def file_text(name: str, data: bytes, template: bool = True) -> Text | None:
    """A file's content as the template that it is; None where it is written byte for byte.

    Raises CannotRender for a template that is not UTF-8.
    """
    if not template or not any(mark in data for mark in (b"{{", b"{%", b"{#")):
        return None
    try:
        return Text(f"file {name}", data.decode())
    except UnicodeDecodeError as error:
        raise CannotRender(
            f"file {name}: it holds {{{{, {{% or {{# but is not UTF-8 (byte {error.start}); "
            'set "template": false if it is no template'
        ) from None  # The error holds the content.


class Renderer:
    """Renders what belongs together, one command's strings and files, and tells all that was missing.

    Without a context it passes on what is no template.
    """

    def __init__(self, context: Context | None, missing_is_empty: bool = False) -> None:
        self._context = context
        self._missing_is_empty = missing_is_empty
        self._missing: dict[Missing, None] = {}  # A set that keeps the order.
        self._sandbox: Sandbox | None = None

    def text(self, text: Text) -> str:
        """A string's final form; with gaps where something is missing, which `check` tells.

        Raises CannotRender for a template that can't be rendered, whatever values there are.
        """
        if not text.is_template:
            return text.text
        assert self._context is not None, "a template needs a context"
        if self._sandbox is None:
            from kolla_mesos_start.render.sandbox import Sandbox  # jinja2's import is slow.

            self._sandbox = Sandbox(self._missing_is_empty)
        rendered = self._sandbox.render(text, _values(self._context, text))
        for wanted in rendered.wanted:
            self._missing[Missing(wanted.name, text.label, wanted.line, wanted.is_variable)] = None
        return rendered.text

    def content(self, name: str, data: bytes, template: bool = True) -> bytes:
        """A file's final content; like `text`. What holds no template stays byte for byte."""
        text = file_text(name, data, template)
        if text is None:
            return data
        try:
            return self.text(text).encode()
        except UnicodeEncodeError:
            raise CannotRender(f"file {name}: its text can't be written as UTF-8") from None

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What was looked up in vain so far, in the order of the lookups."""
        return tuple(self._missing)

    def check(self, looked_at: Callable[[str], Sequence[str]]) -> None:
        """Raise CannotRender if anything was missing, or warn, once a name, where missing is empty.

        `looked_at` gives the znodes at which a variable of that name may stand.
        """
        missing = _by_name(self.missing)
        if self._missing_is_empty:
            for (name, _), wanting in missing.items():
                log.warning("%s is missing and rendered empty: wanted by %s", name, "; ".join(wanting))
        elif missing:
            accounts = (
                f"{name} (wanted by {'; '.join(wanting)}"
                + (f"; looked at {', '.join(looked_at(name))})" if is_variable else ")")
                for (name, is_variable), wanting in missing.items()
            )
            raise CannotRender(f"missing: {', '.join(accounts)}")


def _may_use_parties(text: Text) -> bool:
    return any(name in text.text for name in PARTIES)


def _by_name(missing: Sequence[Missing]) -> dict[tuple[str, bool], list[str]]:
    by_name: dict[tuple[str, bool], list[str]] = {}
    for one in missing:
        by_name.setdefault((one.name, one.is_variable), []).append(f"{one.label} line {one.line}")
    return by_name


class _Groups(dict[str, list[str]]):
    """The addresses of each role's members. A role that nobody has taken has nobody."""

    def __missing__(self, role: str) -> list[str]:
        return []


def _values(context: Context, text: Text) -> dict[str, object]:
    """Everything that the template can name."""
    values: dict[str, object] = {"api_interface": context.api_interface, **context.variables}
    values.update(
        deployment_id=context.deployment_id,
        service_name=context.service_name,
        inventory_hostname=context.address,
        ansible_hostname=context.address,
        cpu_count=context.cpu_count,
        get_hostname=lambda: context.hostname,
        get_ip_address=lambda interface=None: _ip_address(context, interface),
        list_ips_by_service=_list_ips_by_service(context),
        ready_instances=lambda service: _ready_instances(context, service),
    )
    # All parties are a read apiece: only where the template may use them.
    if _may_use_parties(text):
        values.update(_parties(context))
    return values


def _ip_address(context: Context, interface: object) -> str:
    if interface is None:
        return context.get_ip_address(None)
    name = str(interface)
    # A missing interface is told later; there is nothing to look up.
    return context.get_ip_address(name) if name or isinstance(interface, str) else ""


def _list_ips_by_service(context: Context) -> Callable[..., str]:
    def list_ips_by_service(
        name: object, port: object = None, separator: object = ",", prefix: object = None
    ) -> str:
        service, before, after = str(name), str(prefix or ""), f":{port}" if port else ""
        members = context.members(service) if service else ()  # A missing name is told later.
        in_url = bool(after) or before.endswith("//")
        addresses = sorted(_address(context, service, member) for member in members)
        return str(separator).join(
            f"{before}[{address}]{after}" if in_url and ":" in address else f"{before}{address}{after}"
            for address in addresses
        )

    return list_ips_by_service


def _ready_instances(context: Context, service: object) -> list[Facts]:
    name = str(service)
    instances = context.ready_instances(name) if name else ()  # A missing name is told later.
    return sorted(instances, key=lambda instance: str(instance.get("host", "")))


def _parties(context: Context) -> dict[str, object]:
    """`groups` and `hostvars`, as Ansible's templates know them."""
    groups = _Groups()
    hostvars: dict[str, Facts] = {}
    for service, members in sorted(context.parties().items()):
        addressed = [(_address(context, service, member), member) for member in members]
        hostvars.update(addressed)
        role = service.rsplit("/", 1)[-1]
        groups[role] = sorted(groups[role] + [address for address, _ in addressed])
    return {"groups": groups, "hostvars": {**hostvars, context.address: context.facts}}


def _address(context: Context, service: str, member: Facts) -> str:
    """A member's own private address, also where kolla-mesos registered it."""
    if "private_address" in member:
        return str(member["private_address"])
    for interface in (context.private_interface, member.get("api_interface")):
        address = member.get(f"ansible_{interface}", {}).get("ipv4", {}).get("address")
        if address:
            return str(address)
    raise CannotRender(
        f"a member of {service} ({member.get('ansible_hostname', 'unnamed')}) tells no private address: "
        "restart its container with this agent, or with the same KOLLA_PRIVATE_INTERFACE"
    )
