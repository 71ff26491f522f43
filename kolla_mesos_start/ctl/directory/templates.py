"""Finds the names that a template uses, from jinja2's syntax tree, without rendering it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateSyntaxError, nodes

from kolla_mesos_start.ctl.text import slip
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.render.sandbox import syntax_error

# The parts of a template. Those that only name a variable, which are most, need no parser: jinja2's takes a
# hundred times as long. The others are matched too, so that quoted text in them is not taken for a part.
_PARTS = re.compile(
    r"\{\{ *(?!(?:true|false|none|True|False|None)\b)([A-Za-z_][A-Za-z0-9_]*) *\}\}"
    r"|\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}",
    re.DOTALL,
)
# Filters and tests that the agent adds to those of jinja2.
_ENVIRONMENT = Environment()
# Names that jinja2 defines, and functions of it unless they are used as variables.
_SPECIAL = {"loop", "self", "super", "caller", "varargs", "kwargs"}
_FUNCTIONS = set(_ENVIRONMENT.globals)
# The variables that are not texts.
_OBJECTS = {"groups", "hostvars", "cpu_count"}
# Functions whose first argument is a service.
_LISTING = {"list_addresses_by_service", "list_ips_by_service", "ready_instances"}
_ENVIRONMENT.filters.update(b64encode=str, bool=bool, regex_replace=str)
# Operations that can fail although the value exists.
_EQUALITIES = {"eq", "ne", "in", "notin"}  # They don't fail if a text is compared with a number.
_RISKY = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg)


class BadTemplate(Exception):
    """A template that jinja2 can't read: its line, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


class Listed(NamedTuple):
    """A service whose members or instances a template lists, by its name or its role, and on which line."""

    name: str
    is_role: bool
    line: int


class Template(NamedTuple):
    """The names that a template uses and does not set itself, each with the line of its first use.

    `optional` are names with a default or `is defined`; `truths` are tested for truth without a filter;
    `sums` are names that are calculated or compared together like numbers, without a filter; `listed` are
    services that it lists; `risky`: it may fail although nothing is missing; `is_plain`: it contains only
    names.
    """

    source: str
    names: Mapping[str, int]
    optional: frozenset[str] = frozenset()
    truths: Sequence[tuple[str, int]] = ()
    sums: Sequence[tuple[Sequence[str], int]] = ()
    listed: Sequence[Listed] = ()
    risky: bool = False
    is_plain: bool = False

    def slips(self, known: Set[str]) -> Iterator[tuple[int, str]]:
        """The line and the message for each misspelt name, which always takes its default."""
        for name in sorted(self.names.keys() & self.optional - known):
            near = slip(name, known)
            if near:
                yield self.names[name], f"takes the default of {name!r}, which has no value{near}"

    def filled(self, values: Mapping[str, str]) -> str:
        """The text of a plain template, all of whose names have a value."""
        # Without the newline at its end, as jinja2 does it.
        source = self.source[:-1] if self.source.endswith("\n") else self.source
        return _PARTS.sub(lambda match: values[match[1]], source)


def read(source: str) -> Template:
    """Read a template. Raises BadTemplate."""
    try:
        return _read(source)
    except TemplateSyntaxError as error:
        raise BadTemplate(error.lineno, syntax_error(error)) from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of too many digits
        raise BadTemplate(1, "nested too deep, or a number is too long") from error


def no_comments(source: str) -> Iterator[int]:
    """The lines where a `{#` that is probably not meant so begins a comment, up to the next `#}`: that of
    `${#name}` in a shell, `{#NAME}` of Zabbix, or `{#{name}}` in Ruby."""
    before = last = ""
    for line, kind, value in _ENVIRONMENT.lex(source):
        if kind == "comment" and (before.endswith("$") or re.match(r"[\w.]+\}|\{(?![{%])", value)):
            yield line
        before, last = last, value


def _read(source: str) -> Template:
    names: dict[str, int] = {}

    def shorten(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        names.setdefault(match[1], 1 + source.count("\n", 0, match.start()))
        return ""

    # In a raw block nothing is a part, and a carriage return is a line of its own.
    rest = source if "raw" in source or "\r" in source else _PARTS.sub(shorten, source)
    if not Text("", rest).is_template and rest is not source:
        return Template(source, names, is_plain=True)
    tree = _parse(rest)
    own = {name.name for name in tree.all(nodes.Name) if name.ctx != "load"}
    own.update(macro.name for macro in tree.all(nodes.Macro))
    called = [call.node for call in tree.all(nodes.Call) if isinstance(call.node, nodes.Name)]
    used_otherwise = {name.name for name in tree.all(nodes.Name) if not any(name is node for node in called)}
    own.update(_SPECIAL, _FUNCTIONS - used_otherwise - names.keys())
    for name in tree.all(nodes.Name):
        names[name.name] = min(name.lineno, names.get(name.name, name.lineno))
    return Template(
        source,
        {name: line for name, line in names.items() if name not in own},
        optional=frozenset(_optional(tree)),
        truths=tuple(_truths(tree)),
        sums=tuple(each for each in _sums(tree) if own.isdisjoint(each[0])),
        listed=tuple(_listed(tree)),
        risky=_is_risky(tree, own),
    )


class _Tree:
    """The nodes of a template. jinja2 would walk through them again for each query."""

    def __init__(self, root: nodes.Template) -> None:
        self.nodes = list(root.find_all(nodes.Node))

    def all(self, *kinds: type[nodes.Node]) -> list[Any]:
        return [node for node in self.nodes if isinstance(node, kinds)]


def _parse(source: str) -> _Tree:
    tree = _Tree(_ENVIRONMENT.parse(source))
    for each in tree.all(nodes.Filter, nodes.Test):
        known = _ENVIRONMENT.filters if isinstance(each, nodes.Filter) else _ENVIRONMENT.tests
        if each.name not in known:
            raise BadTemplate(each.lineno, f"No {type(each).__name__.lower()} named {each.name!r}.")
    for other in tree.all(nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport):
        raise BadTemplate(other.lineno, "it includes another template, which an agent does not have")
    return tree


def _is_risky(tree: _Tree, own: Set[str]) -> bool:
    """Whether it calculates, or reads attributes or items of a variable."""
    owners = [access.node for access in tree.all(nodes.Getattr, nodes.Getitem)]
    return any(not _is_text(each, own) for each in tree.all(*_RISKY)) or any(
        isinstance(owner, nodes.Name) and owner.name not in own | _OBJECTS for owner in owners
    )


def _is_text(node: nodes.Node, own: Set[str]) -> bool:
    """Whether it is certainly a text: a constant, a variable, or a concatenation of texts."""
    if isinstance(node, nodes.Add):
        return _is_text(node.left, own) and _is_text(node.right, own)
    if isinstance(node, nodes.Const):
        return isinstance(node.value, str)
    return isinstance(node, nodes.Name) and node.name not in own | _OBJECTS


def _optional(tree: _Tree) -> Iterator[str]:
    for each in tree.all(nodes.Filter, nodes.Test):
        tolerates = each.name in ("default", "d", "defined", "undefined")
        if tolerates and isinstance(each.node, nodes.Name):
            yield each.node.name


def _listed(tree: _Tree) -> Iterator[Listed]:
    for call in tree.all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in _LISTING:
            yield from (Listed(name, False, call.lineno) for name in _constants(call.args[:1]))
    for item in tree.all(nodes.Getitem):
        if isinstance(item.node, nodes.Name) and item.node.name == "groups":
            yield from (Listed(name, True, item.lineno) for name in _constants([item.arg]))


def _constants(values: Sequence[nodes.Node]) -> Iterator[str]:
    """The constant texts among the values."""
    for each in values:
        if isinstance(each, nodes.Const) and isinstance(each.value, str):
            yield each.value


def _sums(tree: _Tree) -> Iterator[tuple[Sequence[str], int]]:
    """Names whose texts jinja2 repeats, joins or compares, where numbers may be meant; not what fails."""
    for each in tree.all(nodes.Mul, nodes.Add, nodes.Compare):
        parts = [each.left, each.right] if isinstance(each, nodes.BinExpr) else [each.expr, *each.ops]
        parts = [part.expr if isinstance(part, nodes.Operand) else part for part in parts]
        names = [part.name for part in parts if isinstance(part, nodes.Name)]
        others = [part for part in parts if not isinstance(part, nodes.Name)]
        is_equality = isinstance(each, nodes.Compare) and {op.op for op in each.ops} <= _EQUALITIES
        all_match = all(map(_is_number, others))
        if (
            names
            and all_match
            and (others or not is_equality)
            and not (isinstance(each, nodes.Add) and others)
        ):
            yield names, each.lineno


def _is_number(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(map(_is_number, node.items))
    if isinstance(node, nodes.Filter):
        return node.name in ("int", "float", "length", "count")
    return isinstance(node, nodes.Const) and type(node.value) in (int, float)


def _truths(tree: _Tree) -> Iterator[tuple[str, int]]:
    for condition in [each.test for each in tree.all(nodes.If, nodes.CondExpr)]:
        yield from _tested(condition)


def _tested(node: nodes.Node) -> Iterator[tuple[str, int]]:
    """The names whose own truth decides a condition."""
    if isinstance(node, nodes.Name):
        yield node.name, node.lineno
    elif isinstance(node, nodes.Not):
        yield from _tested(node.node)
    elif isinstance(node, (nodes.And, nodes.Or)):
        yield from _tested(node.left)
        yield from _tested(node.right)
