"""Renders templates with jinja2 in a sandbox, and finds all that they use and that is missing.

Only this module imports jinja2, whose import takes longer than that of the rest of the agent;
`context` imports this module for the first template.

Messages hold names, expressions of the template and line numbers, never a value.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Callable, ClassVar, NamedTuple, Union

from jinja2 import FunctionLoader, TemplateError, TemplateSyntaxError, Undefined, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import missing

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import CannotRender

Access = Union[nodes.Getattr, nodes.Getitem]

# The errors of jinja2 and of a template's operations. Errors of the functions among the values (an
# AgentError, kazoo's errors) are not caught here.
FAULTS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    SyntaxError,  # Python's, for loops that are nested too deep
    TypeError,
    ValueError,
)

# The filters of jinja2 whose result is missing for an empty list.
NEED_ITEMS = ("first", "last", "max", "min", "random")

# Explanations of errors whose own messages may hold a value.
EXPLAINED = {
    "SecurityError": "the sandbox does not allow this",
    "TemplateNotFound": "a template can't include, import or extend another one",
}


class Missing(NamedTuple):
    """A name that a template used and that is missing, and where: the template's label and the line.

    `is_variable` is true for a variable, which a znode can hold, and false for an expression like
    `hostvars[a]['b']`.
    """

    name: str
    label: str
    line: int
    is_variable: bool


class Rendered(NamedTuple):
    """A rendered template. `text` is of use only if nothing is `missing`, or if missing is empty."""

    text: str
    missing: tuple[Missing, ...]


class MissingValue(Undefined):
    """A missing value: recorded when it is used, but not when `default()` or `is defined` test it.

    A use does not end the rendering, so that all that is missing is found in one pass: the result
    is the missing value again, or, if missing is empty, that of an empty text.
    """

    __slots__ = ()
    sandbox: ClassVar[Sandbox]

    def _use(self) -> None:
        if self._undefined_exception is not UndefinedError:
            self._fail_with_undefined_error()  # The sandbox refused it: that is no missing value.
        self.sandbox.record(self)

    def _act(self, action: Callable[..., Any], *operands: Any) -> Any:
        self._use()
        return action(*operands) if self.sandbox.missing_is_empty else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python looks for protocol methods; that is no use of the value.
        return self._act(getattr, "", name, self)

    def __getitem__(self, key: object) -> Any:
        self._use()
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._use()
        if self.sandbox.missing_is_empty:
            raise TypeError("a text can't be called")
        return self

    def __str__(self) -> str:
        self._use()
        return ""

    def __len__(self) -> int:
        self._use()
        return 0

    def __bool__(self) -> bool:
        self._use()
        return False

    def __iter__(self) -> Iterator[object]:
        self._use()
        return iter(())

    def __int__(self) -> int:  # type: ignore[override]  # jinja2's never returns.
        self._use()
        return 0

    def __index__(self) -> int:
        self._use()
        if self.sandbox.missing_is_empty:
            raise TypeError("a text is no index")
        return 0

    def __float__(self) -> float:  # type: ignore[override]
        self._use()
        return 0.0

    def __hash__(self) -> int:
        self._use()
        return hash("")

    def __eq__(self, other: object) -> bool:
        self._use()
        return self.sandbox.missing_is_empty and other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, item: object) -> bool:
        self._use()
        return self.sandbox.missing_is_empty and item == ""


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[MissingValue, Any], bool]:
    def method(self: MissingValue, other: object) -> bool:
        self._use()
        return self.sandbox.missing_is_empty and bool(compare("", other))

    return method


def _forward(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self._act(operation, "", *others)


def _reflected(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self._act(operation, other, "")


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(MissingValue, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(MissingValue, f"__r{_name}__", _reflected(getattr(operator, _name)))
for _name in ("neg", "pos"):
    setattr(MissingValue, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge"):
    setattr(MissingValue, f"__{_name}__", _ordering(getattr(operator, _name)))


class Sandbox:
    """Renders templates, one at a time, with the defaults of jinja2."""

    def __init__(self, missing_is_empty: bool = False) -> None:
        self.missing_is_empty = missing_is_empty
        self._tree = nodes.Template([])
        self._values: Mapping[str, object] = {}
        self._label = ""
        self._missing: dict[Missing, None] = {}  # A set that keeps the order.
        absent = type("MissingValue", (MissingValue,), {"__slots__": (), "sandbox": self})
        # The loader finds nothing: a template can't include another one or read from disk.
        self._environment = SandboxedEnvironment(undefined=absent, loader=FunctionLoader(lambda name: None))
        self._environment.filters.update(bool=_bool, regex_replace=_regex_replace)
        # `tojson` must not fail for a missing value either.
        self._environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _json_default}

    def undeclared(self, text: Text) -> set[str]:
        """The names that the template may look up in its values, on any branch. Raises CannotRender."""
        try:
            return meta.find_undeclared_variables(self._environment.parse(text.text))
        except FAULTS as error:
            raise _fault(text.label, error) from None

    def render(self, text: Text, values: Mapping[str, object]) -> Rendered:
        """The rendered text, with all that is missing. Raises CannotRender for any other error."""
        self._label, self._values, self._missing = text.label, values, {}
        try:
            return Rendered(self._text(text.text), tuple(self._missing))
        except CannotRender as error:  # From a function among the values: add the line.
            raise CannotRender(f"{text.label} line {_line_of(error)}: {error.reason}") from error
        except FAULTS as error:
            # A missing value can make an operation fail: then it is what to report.
            is_consequence = self._missing and not isinstance(error, SecurityError)
            if is_consequence and not self.missing_is_empty:
                return Rendered("", tuple(self._missing))
            raise _fault(text.label, error) from None

    def _text(self, source: str) -> str:
        self._tree = self._environment.parse(source)
        template = self._environment.from_string(self._tree)
        # Not `render()`: it rewrites the traceback of an error, which holds the line.
        return "".join(template.root_render_func(template.new_context(dict(self._values))))

    def record(self, value: MissingValue) -> None:
        """Record that the template, at its current line, uses a missing value."""
        key = value._undefined_name
        if isinstance(key, MissingValue):
            return key._use()  # The key itself is missing: report that.
        line = _current_line(sys._getframe(1))
        if line is None:
            raise nodes.Impossible  # jinja2 is folding constants: make it evaluate this when it renders.
        if key is None and any(one.line == line for one in self._missing):
            return  # `missing | first`: empty because it is missing.
        is_variable = value._undefined_obj is missing and key is not None
        name = str(key) if is_variable else self._expression(value._undefined_obj, key, line)
        self._missing[Missing(name, self._label, line, is_variable)] = None

    def _expression(self, owner: object, key: object, line: int) -> str:
        """What is missing as the template writes it, because a key may be the value of a variable."""
        if key is None:
            return self._empty_list(line)
        accesses = [
            access
            for access in _accesses(self._tree)
            if _key(access) in (None, key) and self._may_own(access, owner)
        ]
        on_line = [access for access in accesses if access.lineno == line]
        likely = (
            [access for access in on_line if _key(access) is not None]
            or on_line
            or [access for access in accesses if _key(access) is not None]
        )
        return " or ".join(dict.fromkeys(_written(access) for access in likely)) or "an attribute"

    def _empty_list(self, line: int) -> str:
        """The filters on a line that need a list with items, and why theirs has none."""
        filters = [one for one in self._tree.find_all(nodes.Filter) if one.lineno == line]
        found = [
            f"{_written(one.node)} | {one.name}, because {_why_empty(one.node)}"
            for one in filters
            if one.name in NEED_ITEMS and one.node is not None
        ]
        return " or ".join(dict.fromkeys(found)) or "an item of an empty list"

    def _may_own(self, access: Access, owner: object) -> bool:
        """Whether `access` may look up its key in `owner`."""
        if isinstance(access.node, nodes.Name):
            return self._values.get(access.node.name, owner) is owner
        return all(owner is not value for value in self._values.values())


def _fault(label: str, error: BaseException) -> CannotRender:
    """The error to report: only the kind of `error`, whose message may hold a value, except a parser's."""
    if isinstance(error, TemplateSyntaxError):
        return CannotRender(f"{label} line {error.lineno}: {error.message or 'syntax error'}")
    kind = type(error).__name__
    what = f"{kind}: {EXPLAINED[kind]}" if kind in EXPLAINED else kind
    return CannotRender(f"{label} line {_line_of(error)}: {what}")


def _line_of(error: BaseException) -> int:
    """The line of the template that was running when `error` was raised; 1 if none was."""
    line, traceback = 1, error.__traceback__
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _current_line(frame: FrameType | None) -> int | None:
    while frame is not None:
        template = frame.f_globals.get("__jinja_template__")
        if template is not None:
            return int(template.get_corresponding_lineno(frame.f_lineno))
        frame = frame.f_back
    return None


def _accesses(tree: nodes.Template) -> Iterator[Access]:
    yield from tree.find_all(nodes.Getattr)
    yield from tree.find_all(nodes.Getitem)


def _key(access: Access) -> object:
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


def _why_empty(node: nodes.Node) -> str:
    if isinstance(node, (nodes.Getattr, nodes.Getitem)) and _written(node.node) == "groups":
        return f"no member of {_key(node) or _written(node)} is present"
    if isinstance(node, nodes.Call) and _written(node.node) == "ready_instances" and node.args:
        service = node.args[0]
        return f"no instance of {getattr(service, 'value', None) or _written(service)} is ready"
    return "the list is empty"


def _json_default(value: object) -> str:
    if isinstance(value, MissingValue):
        return str(value)
    raise TypeError(f"a {type(value).__name__} can't be JSON")


def _bool(value: object) -> bool:
    """The filter: `true` and `yes`, in any case, are true, any other text is false."""
    return value.lower() in ("true", "yes") if isinstance(value, str) else bool(value)


def _regex_replace(
    value: object = "", pattern: object = "", replacement: object = "", ignorecase: object = False
) -> str:
    """The filter: `value` with each match of `pattern` replaced; `\\1` and `\\g<name>` are its groups."""
    try:
        return re.sub(str(pattern), str(replacement), str(value), flags=re.IGNORECASE if ignorecase else 0)
    except re.error as error:
        raise ValueError("not a regular expression") from error
