"""Finds the expression of a template that has a missing value: `hostvars[a]['b']`.

Imports jinja2: to be imported by `sandbox` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union

from jinja2 import nodes

Access = Union[nodes.Getattr, nodes.Getitem]

# The filters of jinja2 whose result is missing for an empty list.
NEED_ITEMS = ("first", "last", "max", "min", "random")


def missing_expression(
    tree: nodes.Template, values: Mapping[str, object], owner: object, key: object, line: int
) -> str:
    """The expression on `line` that found no `key` in `owner`, as the template writes it.

    The key itself is not shown if it is computed: it may be the value of a variable. None as `key`:
    a filter found an empty list. `values` are those that the template is rendered with.
    """
    if key is None:
        return _empty_list(tree, values, line)
    accesses = [
        access
        for access in accesses_in(tree)
        if key_of(access) in (None, key) and _may_own(values, access, owner)
    ]
    on_line = [access for access in accesses if access.lineno == line]
    likely = (
        [access for access in on_line if key_of(access) is not None]
        or on_line
        or [access for access in accesses if key_of(access) is not None]
    )
    no_port = _why_no_port(values) if any(_is_ports(access.node) for access in likely) else ""
    because = f", because {no_port}" if no_port else ""
    return (" or ".join(dict.fromkeys(_written(access) for access in likely)) or "an attribute") + because


def _empty_list(tree: nodes.Template, values: Mapping[str, object], line: int) -> str:
    """The filters on a line that need a list with items, and why theirs has none."""
    filters = [one for one in tree.find_all(nodes.Filter) if one.lineno == line]
    found = [
        f"{_written(one.node)} | {one.name}, because {_why_empty(one.node, values)}"
        for one in filters
        if one.name in NEED_ITEMS and one.node is not None
    ]
    return " or ".join(dict.fromkeys(found)) or "an item of an empty list"


def _may_own(values: Mapping[str, object], access: Access, owner: object) -> bool:
    """Whether `access` may look up its key in `owner`."""
    if isinstance(access.node, nodes.Name):
        return values.get(access.node.name, owner) is owner
    return all(owner is not value for value in values.values())


def accesses_in(tree: nodes.Template) -> Iterator[Access]:
    yield from tree.find_all(nodes.Getattr)
    yield from tree.find_all(nodes.Getitem)


def key_of(access: Access) -> object:
    """The key of `a.b` or `a['b']`; None if it is computed."""
    if isinstance(access, nodes.Getattr):
        return access.attr
    return access.arg.value if isinstance(access.arg, nodes.Const) else None


def _written(node: nodes.Node) -> str:
    """The expression as a template writes it, shortened."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Const):
        return repr(node.value)
    if isinstance(node, nodes.Getattr):
        return f"{_written(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem):
        return f"{_written(node.node)}[{_written(node.arg)}]"
    if isinstance(node, nodes.Add):
        return f"{_written(node.left)} + {_written(node.right)}"
    if isinstance(node, nodes.Call):
        return f"{_written(node.node)}(...)"
    return "..."


def _is_ports(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.Getattr, nodes.Getitem)) and key_of(node) == "ports"


def _why_empty(node: nodes.Node, values: Mapping[str, object]) -> str:
    if isinstance(node, (nodes.Getattr, nodes.Getitem)) and _written(node.node) == "groups":
        return f"no member of {key_of(node) or _written(node)} is present"
    if isinstance(node, nodes.Call) and _written(node.node) == "ready_instances" and node.args:
        service = node.args[0]
        return f"no instance of {getattr(service, 'value', None) or _written(service)} is ready"
    return (_why_no_port(values) if _is_ports(node) else "") or "the list is empty"


def _why_no_port(values: Mapping[str, object]) -> str:
    """Why no port is found; empty if all instances that were listed have registered one."""
    names = list(getattr(values.get("ready_instances"), "without_port", ()))
    if not names:
        return ""
    instance = f"an instance of {' or '.join(names)}"
    return f"{instance} has registered no port: set its KOLLA_PORTS (`ports` in launch.yml)"
