"""jinja2 as a deployment's templates meet it: sandboxed, and with an account of what was missing.

What lives here: all that needs jinja2, which takes longer to import than the rest of the agent;
`render` imports this module only once a text is a template. Which values there are, and what an
operator is told about the ones that aren't, is `render`'s business.

No message made here holds a value: it tells names, expressions of the template and lines.
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

# What jinja2 and the operations of a template raise. What the values' own functions raise (an
# AgentError, kazoo's errors) is not among them and passes.
FAULTS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    SyntaxError,  # Python's own, on what jinja2 made of a template: loops nested too deep
    TypeError,
    ValueError,
)

# Words of jinja2's that hold nothing from the template, under the error that they come with.
EXPLAINED = {
    "SecurityError": "the sandbox does not allow this",
    "TemplateNotFound": "a template can't include, import or extend another one",
}


class Wanted(NamedTuple):
    """What a template looked up and did not find: a variable, or an expression like `hostvars[a]['b']`."""

    name: str
    line: int
    is_variable: bool


class Rendered(NamedTuple):
    """What a template became, and what it wanted. `text` has gaps where `wanted` is not empty."""

    text: str
    wanted: tuple[Wanted, ...]


class Absent(Undefined):
    """A value that is not there: noted where it is used, not where `default()` or `is defined` ask for it.

    A use never ends the rendering, so that all that is missing is found in one go: the value
    stands for itself, or, where missing is empty, for an empty text.
    """

    __slots__ = ()
    sandbox: ClassVar[Sandbox]

    def _use(self) -> None:
        if self._undefined_exception is not UndefinedError:
            self._fail_with_undefined_error()  # Not missing: the sandbox refused it.
        self.sandbox.note(self)

    def _act(self, action: Callable[..., Any], *operands: Any) -> Any:
        self._use()
        return action(*operands) if self.sandbox.missing_is_empty else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks for its protocols; that is no use of the value.
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


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[Absent, Any], bool]:
    def method(self: Absent, other: object) -> bool:
        self._use()
        return self.sandbox.missing_is_empty and bool(compare("", other))

    return method


def _forward(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self._act(operation, "", *others)


def _reflected(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self._act(operation, other, "")


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Absent, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(Absent, f"__r{_name}__", _reflected(getattr(operator, _name)))
for _name in ("neg", "pos"):
    setattr(Absent, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Absent, f"__{_name}__", _ordering(getattr(operator, _name)))


class Sandbox:
    """Renders templates one after another, under jinja2's defaults."""

    def __init__(self, missing_is_empty: bool = False) -> None:
        self.missing_is_empty = missing_is_empty
        self._tree = nodes.Template([])
        self._values: Mapping[str, object] = {}
        self._wanted: dict[Wanted, None] = {}  # A set that keeps the order.
        absent = type("Absent", (Absent,), {"__slots__": (), "sandbox": self})
        # The loader has nothing: there are no other templates, and nothing is read from disk.
        self._environment = SandboxedEnvironment(undefined=absent, loader=FunctionLoader(lambda name: None))
        self._environment.filters.update(bool=_bool, regex_replace=_regex_replace)
        # A missing value is no JSON, but `tojson` must come past it as everything else does.
        self._environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _json_default}

    def undeclared(self, text: Text) -> set[str]:
        """The names that the template may look up in its values, on any branch, or CannotRender."""
        try:
            return meta.find_undeclared_variables(self._environment.parse(text.text))
        except FAULTS as error:
            raise _fault(text.label, error) from None

    def render(self, text: Text, values: Mapping[str, object]) -> Rendered:
        """The template's text, or CannotRender. The first thing that is missing does not end it."""
        self._values, self._wanted = values, {}
        try:
            return Rendered(self._text(text.text), tuple(self._wanted))
        except CannotRender as error:  # A function among the values refused; it can't know from where.
            raise CannotRender(f"{text.label} line {_line_of(error)}: {error.reason}") from error
        except FAULTS as error:
            # What is missing can make an operation fail, and is then the thing to tell.
            is_consequence = self._wanted and not isinstance(error, SecurityError)
            if is_consequence and not self.missing_is_empty:
                return Rendered("", tuple(self._wanted))
            raise _fault(text.label, error) from None

    def _text(self, source: str) -> str:
        self._tree = self._environment.parse(source)
        template = self._environment.from_string(self._tree)
        # Not `render()`: it rewrites an error's traceback, from which the line is to be told.
        return "".join(template.root_render_func(template.new_context(dict(self._values))))

    def note(self, absent: Absent) -> None:
        """Keep in mind that the template, where it is now, uses a value that is not there."""
        key = absent._undefined_name
        if isinstance(key, Absent):
            return key._use()  # Nothing can be found under a key that is missing itself.
        line = _current_line(sys._getframe(1))
        if line is None:
            raise nodes.Impossible  # jinja2 is folding constants: have it look again when it renders.
        if key is None and any(wanted.line == line for wanted in self._wanted):
            return  # `missing | first`: empty because it is missing.
        is_variable = absent._undefined_obj is missing and key is not None
        name = str(key) if is_variable else self._expression(absent._undefined_obj, key, line)
        self._wanted[Wanted(name, line, is_variable)] = None

    def _expression(self, owner: object, key: object, line: int) -> str:
        """How the template writes what is not there: its words, since a key may be a variable's value."""
        if key is None:
            return "an item of an empty sequence"
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

    def _may_own(self, access: Access, owner: object) -> bool:
        """Whether it may be `owner` that `access` asks for a key."""
        if isinstance(access.node, nodes.Name):
            return self._values.get(access.node.name, owner) is owner
        return all(owner is not value for value in self._values.values())


def _fault(label: str, error: BaseException) -> CannotRender:
    """What to tell of `error`: its kind alone, for only the parser's words are sure to hold no value."""
    if isinstance(error, TemplateSyntaxError):
        return CannotRender(f"{label} line {error.lineno}: {error.message or 'syntax error'}")
    kind = type(error).__name__
    what = f"{kind}: {EXPLAINED[kind]}" if kind in EXPLAINED else kind
    return CannotRender(f"{label} line {_line_of(error)}: {what}")


def _line_of(error: BaseException) -> int:
    """The line of the template that was running when `error` was raised; 1 where none was."""
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
    """The key of `a.b` or `a['b']`; None where it is computed."""
    if isinstance(access, nodes.Getattr):
        return access.attr
    return access.arg.value if isinstance(access.arg, nodes.Const) else None


def _written(node: nodes.Node) -> str:
    """The expression as a template would write it, as far as it matters to recognise it."""
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


def _json_default(value: object) -> str:
    if isinstance(value, Absent):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is no JSON")


def _bool(value: object) -> bool:
    """The filter: the texts `true` and `yes`, in any case, are true, any other text is not."""
    return value.lower() in ("true", "yes") if isinstance(value, str) else bool(value)


def _regex_replace(
    value: object = "", pattern: object = "", replacement: object = "", ignorecase: object = False
) -> str:
    """The filter: `value` with each match of `pattern` replaced; `\\1` and `\\g<name>` are its groups."""
    try:
        return re.sub(str(pattern), str(replacement), str(value), flags=re.IGNORECASE if ignorecase else 0)
    except re.error as error:
        raise ValueError("not a regular expression") from error
