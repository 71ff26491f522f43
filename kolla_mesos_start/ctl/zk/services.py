"""The services of a deployment as they are published, and what their definitions say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kolla_mesos_start.ctl.text import NotThere, existing
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.view import read_tree
from kolla_mesos_start.definition.strings import RESTARTED, Text, bad_service
from kolla_mesos_start.errors import BadUsage, CannotRender
from kolla_mesos_start.render.context import file_text, variable_names
from kolla_mesos_start.tree.znodes import RESERVED, Znodes


def definitions(client: OperatorClient, znodes: Znodes) -> dict[str, bytes]:
    """The definition of every service of the deployment, by the service's name."""
    found = read_tree(client, [znodes.deployment], is_service_part)
    start = len(znodes.deployment) + 1
    return {path[start:]: znode.data for path, znode in sorted(found.items()) if znode.data and path[start:]}


def is_service_part(path: str) -> bool:
    """Whether the last segment of a path may be one of a service's name."""
    name = path.rpartition("/")[2]
    return name not in RESERVED and not name.startswith(".")


def check_name(name: str) -> None:
    """Raise BadUsage unless a service can have this name."""
    if bad_service(name) or not all(map(is_service_part, name.split("/"))):
        raise BadUsage(
            f"expected the path of a service, such as openstack/keystone/keystone-api, found {name!r}"
        )


def find(client: OperatorClient, znodes: Znodes, name: str) -> str:
    """The published service of that name, or else of that role."""
    return chosen(name, definitions(client, znodes), znodes.deployment)


def chosen(name: str, published: Iterable[str], where: str) -> str:
    """The service of that name, or else of that role. NotThere suggests a name, BadUsage lists several."""
    by_role: dict[str, list[str]] = {}
    for each in published:
        by_role.setdefault(each.rpartition("/")[2], []).append(each)
    names = [each for found in by_role.values() for each in found]
    found = [name] if name in names else by_role.get(name, [])
    if len(found) > 1:
        raise BadUsage(
            f"{name!r} is the role of several services, give one's name: {', '.join(sorted(found))}"
        )
    if not found:
        raise NotThere(f"{where} has no service {name!r}{existing(name, names, by_role)}")
    return found[0]


# -- which variables a service uses -----------------------------------------------------------------


def follows(definition: bytes) -> bool:
    """Whether the files of the service's daemon are refreshed after a change, without a restart."""
    return _on_change(definition) is not None


def _on_change(definition: bytes) -> object:
    parsed: Any = _parsed(definition)
    try:
        return parsed["service"]["daemon"].get("on_change")
    except (TypeError, KeyError, AttributeError):
        return None


def used_variables(definition: bytes, files: Mapping[str, bytes]) -> frozenset[str]:
    """The variables that the templates of a service may use; invalid templates are ignored."""
    found = frozenset().union(*(names_in(text) for _, text in template_texts(definition, files)))
    on_change = _on_change(definition)
    is_restarted = isinstance(on_change, dict) and "restart" in on_change
    return found | {RESTARTED} if is_restarted else found


def template_texts(definition: bytes, files: Mapping[str, bytes]) -> Iterator[tuple[str, Text]]:
    """The texts of a definition, with an empty name, and the files that may be templates, with theirs."""
    yield from (("", Text("definition", each)) for each in _all(_parsed(definition)) if isinstance(each, str))
    for name, data in files.items():
        text = _template(name, data)
        if text:
            yield name, text


def counted_commands(definition: bytes) -> frozenset[str]:
    """The commands whose hosts or instances a dependency in the definition counts."""
    return frozenset(
        each["path"]
        for each in _all(_parsed(definition))
        if isinstance(each, dict) and "count" in each and isinstance(each.get("path"), str)
    )


def file_names(definition: bytes) -> frozenset[str] | None:
    """The names of the files that the commands in the definition have; None if it can't be read."""
    parsed = _parsed(definition)
    if not isinstance(parsed, dict):
        return None
    found = [each.get("files") for each in _all(parsed) if isinstance(each, dict)]
    return frozenset(name for files in found if isinstance(files, dict) for name in files)


def one_time_commands(service: str, definition: bytes) -> list[str]:
    """The paths of the one-time commands in the definition, without rendering it."""
    parsed = _parsed(definition)
    commands = parsed.get("commands") if isinstance(parsed, dict) else None
    role = service.rpartition("/")[2]
    return [
        f"{role}/{name}"
        for name, each in (commands.items() if isinstance(commands, dict) else ())
        if isinstance(each, dict) and each.get("run_once")
    ]


def _parsed(definition: bytes) -> object:
    try:
        return json.loads(definition)
    except (ValueError, RecursionError):
        return None


def _all(value: object) -> Iterator[Any]:
    """The value and everything in it, at any depth."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each


def _template(name: str, data: bytes) -> Text | None:
    try:
        return file_text(name, data)
    except CannotRender:
        return None


def names_in(text: Text) -> frozenset[str]:
    """The variables that a template may use; none if it is invalid."""
    try:
        return variable_names([text])
    except CannotRender:
        return frozenset()
