"""Renders templates with jinja2 in a sandbox, and finds all missing values that they use.

jinja2 takes longer to import than the rest of the agent: `context` imports this module for the first
template. Messages contain names that templates have, and line numbers, never a value.
"""

from __future__ import annotations

import base64
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Callable, ClassVar, NamedTuple, Union

from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.lean_import import import_without

# Without its byte code caches, which need digests: they are a quarter of jinja2's import.
CACHES = ("BytecodeCache", "FileSystemBytecodeCache", "MemcachedBytecodeCache")
import_without("jinja2", {"jinja2.bccache": CACHES, "hashlib": ("sha1",)})

from jinja2 import FunctionLoader, TemplateError, TemplateSyntaxError, Undefined, meta, nodes  # noqa: E402
from jinja2.exceptions import SecurityError, UndefinedError  # noqa: E402
from jinja2.sandbox import SandboxedEnvironment  # noqa: E402
from jinja2.utils import missing  # noqa: E402

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

# Explanations of errors whose own messages may hold a value.
EXPLAINED = {
    "SecurityError": "the sandbox does not allow this",
    "TemplateNotFound": "a template can't include, import or extend another one",
    "TypeError": "an operation or a function does not accept a value of this type (each variable is a text:"
    " to calculate or compare with a number, write NAME | int)",
    "ValueError": "a function does not accept this value",
}

TRUE = ("yes", "on", "1", "true", "y", "t")
# The types of values that a template may write.
WRITTEN = (str, int, float, list, tuple, dict, range, type(None), Undefined)


class Missing(NamedTuple):
    """A name that a template used and that is missing, and where: the template's label and the line.

    `is_variable` is true for a variable, which a znode can hold, and false for an item or attribute of a
    value. `of_text`: the value is a text, which has none.
    """

    name: str
    label: str
    line: int
    is_variable: bool
    of_text: bool = False


class FaultyTemplate(CannotRender):
    """A template has an error on one of its lines."""

    def __init__(self, label: str, line: int, why: str) -> None:
        super().__init__(f"{label} line {line}: {why}")
        self.line = line


class MissingValue(Undefined):
    """A missing value: recorded when it is used, but not when `default()` or `is defined` test it.

    A use does not end the rendering, so that all that is missing is found in one pass: the result
    is the missing value again, or, if missing is empty, that of an empty text.
    """

    __slots__ = ()
    # A template reaches every attribute of an object whose name does not begin with an underscore.
    _sandbox: ClassVar[Sandbox]

    def _use(self) -> None:
        if self._undefined_exception is not UndefinedError:
            self._fail_with_undefined_error()  # Refused by the sandbox: the value is not missing.
        self._sandbox.record(self)

    def _act(self, action: Callable[..., Any], *operands: Any) -> Any:
        self._use()
        return action(*operands) if self._sandbox.missing_is_empty else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python looks for protocol methods; this does not use the value.
        return self._act(getattr, "", name, self)

    def __getitem__(self, key: object) -> Any:
        self._use()
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._use()
        if self._sandbox.missing_is_empty:
            raise TypeError("a text can't be called")
        return self

    def __iter__(self) -> Iterator[object]:
        self._use()
        return iter(())

    def __index__(self) -> int:
        self._use()
        if self._sandbox.missing_is_empty:
            raise TypeError("a text is no index")
        return 0

    def __eq__(self, other: object) -> bool:
        self._use()
        return self._sandbox.missing_is_empty and other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, item: object) -> bool:
        self._use()
        return self._sandbox.missing_is_empty and item == ""


def _constant(value: object) -> Callable[[MissingValue], object]:
    def method(self: MissingValue) -> object:
        self._use()
        return value

    return method


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[MissingValue, Any], bool]:
    def method(self: MissingValue, other: object) -> bool:
        self._use()
        return self._sandbox.missing_is_empty and bool(compare("", other))

    return method


def _forward(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self._act(operation, "", *others)


def _reflected(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self._act(operation, other, "")


# str() of a list calls repr.
for _name, _value in (
    *(("str", ""), ("repr", repr("")), ("len", 0), ("bool", False)),
    *(("int", 0), ("float", 0.0), ("hash", hash(""))),
):
    setattr(MissingValue, f"__{_name}__", _constant(_value))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(MissingValue, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(MissingValue, f"__r{_name}__", _reflected(getattr(operator, _name)))
for _name in ("neg", "pos"):
    setattr(MissingValue, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge"):
    setattr(MissingValue, f"__{_name}__", _ordering(getattr(operator, _name)))


class Sandbox:
    """Renders templates, one at a time, with the defaults of jinja2. `missing`: all that was, in order."""

    def __init__(self, missing_is_empty: bool = False) -> None:
        self.missing_is_empty = missing_is_empty
        self.missing: dict[Missing, None] = {}  # A set that keeps the order.
        self._tree = nodes.Template([])
        self._label, self._misses = "", False
        bound = type("MissingValue", (MissingValue,), {"__slots__": (), "_sandbox": self})
        # The loader finds nothing: a template can't include another one or read from disk.
        self._environment = SandboxedEnvironment(
            undefined=bound, loader=FunctionLoader(lambda name: None), finalize=_written
        )
        # Variables of the same names take precedence over jinja2's functions (`range`): see `_functions`.
        self._globals = dict(self._environment.globals)
        self._environment.globals.clear()
        self._environment.filters.update(b64encode=_b64encode, bool=_bool, regex_replace=_regex_replace)
        # `tojson` must not fail for a missing value either.
        self._environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _json_default}

    def undeclared(self, text: Text) -> set[str]:
        """The names that the template may look up in its values, on any branch. Raises CannotRender."""
        try:
            return meta.find_undeclared_variables(self._environment.parse(text.text))
        except FAULTS as error:
            raise _fault(text.label, error) from None

    def used_whole(self, text: Text) -> set[str]:
        """The names that the template uses otherwise than for a single item: `name['a']`, `name[b]`,
        `name.a`, `name.get('a')`. Raises CannotRender."""
        tree = self._parse(text)
        uses = Counter(use.name for use in tree.find_all(nodes.Name))
        items = Counter(
            access.node.name
            for access in _accesses_in(tree)
            if isinstance(access.node, nodes.Name) and not _is_of_all(_key_of(access))
        )
        return {name for name, count in uses.items() if count > items[name]}

    def render(self, text: Text, values: Mapping[str, object]) -> str:
        """The rendered text; it is of use only if nothing is missing, or if missing is empty.

        Raises CannotRender for any other error.
        """
        self._tree, self._label = self._parse(text), text.label
        self._misses = False
        try:
            template = self._environment.from_string(self._tree)
            # Not `render()`: it rewrites the traceback of an error, which holds the line.
            values = {**self._functions(self._tree), **values}
            return "".join(template.root_render_func(template.new_context(values)))
        except CannotRender as error:  # From a function among the values: add the line.
            raise FaultyTemplate(text.label, _line_of(error), error.reason) from error
        except FAULTS as error:
            # A missing value can make an operation fail: then it is what to report.
            is_consequence = self._misses and not isinstance(error, SecurityError)
            if is_consequence and not self.missing_is_empty:
                return ""
            raise _fault(text.label, error) from None

    def _parse(self, text: Text) -> nodes.Template:
        try:
            return self._environment.parse(text.text)
        except FAULTS as error:
            raise _fault(text.label, error) from None

    def _functions(self, tree: nodes.Template) -> dict[str, object]:
        """jinja2's own functions that the template only calls; any other use means a variable."""
        uses = Counter(use.name for use in tree.find_all(nodes.Name) if use.ctx == "load")
        calls = Counter(
            call.node.name for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)
        )
        return {name: function for name, function in self._globals.items() if uses[name] == calls[name]}

    def record(self, value: MissingValue) -> None:
        """Record that the template, at its current line, uses a missing value."""
        key = value._undefined_name
        if isinstance(key, MissingValue):
            return key._use()  # The key itself is missing: report that.
        line = _current_line(sys._getframe(1))
        if line is None:
            raise nodes.Impossible  # jinja2 is folding constants: make it evaluate this when it renders.
        if key is None and any((one.label, one.line) == (self._label, line) for one in self.missing):
            return  # `missing | first`: empty because it is missing.
        is_variable = value._undefined_obj is missing and key is not None
        name, of_text = str(key), isinstance(value._undefined_obj, str)
        if not is_variable:
            name = self._item(key) + " of a text" * of_text
        self._misses = True
        self.missing[Missing(name, self._label, line, is_variable, of_text)] = None

    def _item(self, key: object) -> str:
        """What was not found in a value. Only a key that the template holds is shown: it is no value."""
        if key is None:
            return "an item of an empty list"
        return f"item {key!r}" if key in map(_key_of, _accesses_in(self._tree)) else "an item"


Access = Union[nodes.Getattr, nodes.Getitem]


def _accesses_in(tree: nodes.Template) -> Iterator[Access]:
    yield from tree.find_all(nodes.Getattr)
    yield from tree.find_all(nodes.Getitem)


def _key_of(access: Access) -> object:
    """The key of `a.b` or `a['b']`; None if it is computed."""
    if isinstance(access, nodes.Getattr):
        return access.attr
    return access.arg.value if isinstance(access.arg, nodes.Const) else None


def _is_of_all(key: object) -> bool:
    """Whether `mapping.key` may be a method that returns all items, like `keys`."""
    return key != "get" and hasattr(dict, str(key))


def _fault(label: str, error: BaseException) -> CannotRender:
    """The error to report: only the kind of `error`, whose message may hold a value, except a parser's."""
    if isinstance(error, TemplateSyntaxError):
        return FaultyTemplate(label, error.lineno, syntax_error(error))
    kind = type(error).__name__
    what = f"{kind}: {EXPLAINED[kind]}" if kind in EXPLAINED else kind
    return FaultyTemplate(label, _line_of(error), what)


def syntax_error(error: TemplateSyntaxError) -> str:
    """What the parser says, with the names of its tokens as they are written."""
    said = error.message or "syntax error"
    for token, written in (("'end of print statement'", "'}}'"), ("'end of statement block'", "'%}'")):
        said = said.replace(
            f"unexpected end of template, expected {token}.", f"the tag is not closed: add {written}"
        )
        said = said.replace(token, written)
    hint = "{# begins a comment that is not closed: add '#}', or write {% raw %} before it if it is none"
    return said.replace("expected token ", "expected ").replace("Missing end of comment tag", hint)


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


def _json_default(value: object) -> str:
    if isinstance(value, MissingValue):
        return str(value)
    raise TypeError(f"a {type(value).__name__} can't be JSON")


def _written(value: object) -> object:
    """The value of an expression in `{{ }}`. Raises CannotRender for Python's other objects."""
    if isinstance(value, WRITTEN):
        return value
    raise CannotRender(
        "the value is neither text, a number, a list nor a mapping: a function must be called, with (), and "
        "the result of a filter such as map needs `| list` or `| join`"
    )


def _bool(value: object) -> bool:
    """The filter: the texts that are true for Ansible, in any case, are true; any other text is false."""
    return value.lower() in TRUE if isinstance(value, str) else bool(value)


def _b64encode(value: object) -> str:
    """The filter: the base64 of the text in UTF-8, as of a user and a password in a header."""
    return base64.b64encode(str(value).encode()).decode()


def _regex_replace(
    value: object = "", pattern: object = "", replacement: object = "", ignorecase: object = False
) -> str:
    """The filter: `value` with each match of `pattern` replaced; `\\1` and `\\g<name>` are its groups."""
    try:
        return re.sub(str(pattern), str(replacement), str(value), flags=re.IGNORECASE if ignorecase else 0)
    except re.error as error:
        raise ValueError("not a regular expression") from error
