"""The content of `acl.yml`, and the ACL of every znode of the deployment.

    operator: "digest:operator:<base64 of the digest>"       # may do everything; or "x509:CN=operator"
    services: {"infra/db/db": "x509:CN=db", ...}             # the identities of each service's agents
    variables: {"db_root_password": ["infra/db/db"]}         # shared variables that only these may read
    hosts: ["h1", "h2"]                                      # where agents run

An identity may be a list of several, all with the same rights: the old and the new one, while a credential is
replaced.

Pure: `zk.acls` reads and changes ACLs in ZooKeeper. An ACL maps identities, as above, to letters of
cdrwa.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Union

from kolla_mesos_start.definition.document import nearest
from kolla_mesos_start.definition.strings import GLOBAL, bad_segment, bad_service, labelled, sublabel
from kolla_mesos_start.identities import is_digest
from kolla_mesos_start.tree.znodes import (
    EVENTS,
    PUBLICATION,
    RECORDED_ACL,
    RECORDED_GENERATIONS,
    RESERVED,
    TOKEN_FLOOR,
)

Acl = Mapping[str, str]
Identities = Union[str, Sequence[str]]  # one, or several with the same rights
Issues = list["tuple[str, str]"]

FILE = "acl"  # its name in a directory, without the suffix
NODE = RECORDED_ACL  # below the deployment: the plan of the last publication
WORLD = "world:anyone"
ALL, WORK, READ = "cdrwa", "cdrw", "r"
RIGHTS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "change the ACL"}
VARIABLES, STATUS, FILES = RESERVED
BY_AGENTS = (".party", ".containers")  # below a service
KEYS = ("operator", "services", "variables", "hosts")
EXPECTED = "expected digest:<user>:<base64 of the digest> or x509:<subject>, or a list of them"


class Plan(NamedTuple):
    """The content of acl.yml: identities, readers of variables, and hosts of agents."""

    operator: Identities
    services: Mapping[str, Identities]
    variables: Mapping[str, Sequence[str]] = MappingProxyType({})
    hosts: Sequence[str] = ()

    def acl(self, node: str) -> Acl:
        """The ACL of a znode by its path below the deployment, which is empty for the deployment's own."""
        working, reading = self._services(node)
        entries = [(who, ALL) for who in listed(self.operator)]
        entries += [(who, WORK) for service in working for who in listed(self.services.get(service, ()))]
        entries += [(who, READ) for service in reading for who in listed(self.services.get(service, ()))]
        return joined(entries)

    def _services(self, node: str) -> tuple[Collection[str], Collection[str]]:
        """The services that may change a znode, and those that may read it."""
        everybody, names = self.services.keys(), node.split("/")
        if names[0] in (PUBLICATION, TOKEN_FLOOR):
            return (), everybody
        if names[0] == EVENTS:
            return (), ()
        if names[0] == STATUS:
            return [each for each in everybody if _role(each) in names[2:3]], everybody
        if names[0] == VARIABLES:
            return (), self.variables.get("/".join(names[1:]), everybody)
        at = next((at for at, name in enumerate(names) if _is_part(name)), len(names))
        service = "/".join(names[:at])
        if names[at : at + 1] and names[at] in BY_AGENTS:
            return [service], everybody
        if names[at : at + 1] == [RECORDED_GENERATIONS]:
            return (), everybody
        is_above = not node or any(each.startswith(f"{node}/") for each in everybody)
        return (), everybody if is_above and service not in everybody else [service]

    def made(self) -> dict[str, bytes]:
        """Znodes that agents have no right to create, with their data; parents come first."""
        scopes = (GLOBAL, *self.hosts)
        found = dict.fromkeys((STATUS, *(f"{STATUS}/{scope}" for scope in scopes)), b"")
        for service in self.services:
            found.update({f"{service}/{name}": b"" for name in BY_AGENTS})
            found.update({f"{STATUS}/{scope}/{_role(service)}": service.encode() for scope in scopes})
        return found

    def recorded(self) -> dict[str, bytes]:
        """Znodes for tools and agents: the plan, and for each service the ACL of znodes that it creates."""
        found = {NODE: json.dumps(self._asdict(), default=dict).encode()}
        for service in self.services:
            acl = self.acl(f"{service}/{BY_AGENTS[0]}")
            found[f"{service}/{NODE}"] = ",".join(f"{who}:{rights}" for who, rights in acl.items()).encode()
        return found

    def only(self, services: Collection[str]) -> Plan:
        """The plan with only these services."""
        return self._replace(services={n: each for n, each in self.services.items() if n in services})


def listed(identities: Identities) -> Sequence[str]:
    """The identities as a list."""
    return [identities] if isinstance(identities, str) else identities


def _role(service: str) -> str:
    return service.rpartition("/")[2]


def _is_part(name: str) -> bool:
    """Whether it is a znode of a service, not a part of a service's name."""
    return name in (VARIABLES, FILES) or name.startswith(".")


def joined(entries: Iterable[tuple[str, str]]) -> Acl:
    """Combine the rights of each identity."""
    found: dict[str, str] = {}
    for who, rights in entries:
        found[who] = "".join(letter for letter in ALL if letter in found.get(who, "") + rights)
    return found


def wider(found: Acl, planned: Acl) -> Acl:
    """The rights that are not planned."""
    more = {who: "".join(set(rights) - set(planned.get(who, ""))) for who, rights in found.items()}
    return joined((who, rights) for who, rights in more.items() if rights)


def shown(acl: Acl) -> str:
    """The ACL for a message, without digests, against which passwords could be tested."""
    return "; ".join(f"{name(who)} may {', '.join(map(RIGHTS.get, rights))}" for who, rights in acl.items())  # type: ignore[arg-type]


def name(identity: str) -> str:
    """An identity without its digest."""
    return identity.rpartition(":")[0] if identity.startswith("digest:") else identity


# -- reading acl.yml ------------------------------------------------------------------------------


def parse(content: Mapping[str, Any]) -> tuple[Plan, Issues]:
    """The plan, and its mistakes: the label of a value and the reason."""
    unknown = [key for key in content if key not in KEYS]
    issues: Issues = [(sublabel("", key), f"unknown key{nearest(key, KEYS)}") for key in unknown]
    services = _mapping(content, "services", issues)
    variables = _mapping(content, "variables", issues)
    operator = _check_identities("operator", content.get("operator"), issues)
    identities = {
        service: _check_identities(sublabel("services", service), value, issues)
        for service, value in services.items()
    }
    for service in services:
        if bad_service(service) or any(each in RESERVED for each in service.split("/")):
            issues.append((sublabel("services", service), "no service can have this name"))
    plan = Plan(
        operator,
        identities,
        {each: _texts(sublabel("variables", each), value, issues) for each, value in variables.items()},
        _texts("hosts", content.get("hosts"), issues),
    )
    for label, host in labelled("hosts", plan.hosts):
        if bad_segment(host) or host == GLOBAL:
            issues.append((label, f"expected the name of a host, found {host!r}"))
    return plan, issues


def _check_identities(label: str, value: Any, issues: Issues) -> Identities:
    several = isinstance(value, list) and bool(value)
    for where, who in labelled(label, value) if several else [(label, value)]:
        if not (isinstance(who, str) and who.isprintable() and _is_identity(who)):
            # Do not show the value: it may be a password.
            issues.append((where, EXPECTED))
    return [str(who) for who in value] if several else str(value)


def _is_identity(text: str) -> bool:
    scheme, _, who = text.partition(":")
    return bool(who) if scheme == "x509" else scheme == "digest" and is_digest(who)


def _mapping(content: Mapping[str, Any], key: str, issues: Issues) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if isinstance(value, dict):
        return value
    issues.append((key, "expected a mapping"))
    return {}


def _texts(label: str, value: Any, issues: Issues) -> Sequence[str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if value:
        issues.append((label, "expected a list of names"))
    return ()


def check(
    plan: Plan, services: Mapping[str, Collection[str]], variables: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Mistakes with regard to the deployment: the label of a value and the reason.

    `services` has the variables in the templates of each service; `variables` are the deployment's own.
    """
    for service in plan.services:
        if service not in services:
            yield (
                sublabel("services", service),
                f"no service is called {service!r}{nearest(service, services)}",
            )
    for service in sorted(services.keys() - plan.services.keys()):
        yield "services", f"{service} is missing, so its containers could not read anything: add its identity"
    for variable, readers in plan.variables.items():
        label = sublabel("variables", variable)
        if variable not in variables:
            yield (
                label,
                f"the deployment has no variable {variable!r} of its own{nearest(variable, variables)}",
            )
        for each, reader in labelled(label, readers):
            if reader not in plan.services:
                yield each, f"no service is called {reader!r}{nearest(reader, plan.services)}"
        for service, names in sorted(services.items()):
            if variable in names and service not in readers:
                yield (
                    label,
                    f"a template of {service} names it, whose containers would end with 77: add {service}",
                )


def shared(plan: Plan) -> Iterator[tuple[str, str]]:
    """Services with the identity of the operator or of another service: the label and the reason."""
    owners = dict.fromkeys(listed(plan.operator), "the operator")
    for service, identities in plan.services.items():
        found = {owners.setdefault(identity, service) for identity in listed(identities)} - {service}
        for owner in sorted(found):
            yield (
                sublabel("services", service),
                f"{owner} has the same identity, so its containers have the rights of {owner}: give it its"
                " own identity",
            )
