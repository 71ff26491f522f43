"""The missing values of a template, as jinja2 sees them.

Imports jinja2: to be imported by `sandbox` only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Callable, ClassVar, Protocol

from jinja2 import Undefined, UndefinedError


class Recorder(Protocol):
    """Records missing values; `missing_is_empty`: they are rendered as empty text."""

    missing_is_empty: bool

    def record(self, value: MissingValue) -> None: ...


class MissingValue(Undefined):
    """A missing value: recorded when it is used, but not when `default()` or `is defined` test it.

    A use does not end the rendering, so that all that is missing is found in one pass: the result
    is the missing value again, or, if missing is empty, that of an empty text.
    """

    __slots__ = ()
    # A template reaches every attribute of an object whose name does not begin with an underscore.
    _recorder: ClassVar[Recorder]

    def _use(self) -> None:
        if self._undefined_exception is not UndefinedError:
            self._fail_with_undefined_error()  # Refused by the sandbox: the value is not missing.
        self._recorder.record(self)

    def _act(self, action: Callable[..., Any], *operands: Any) -> Any:
        self._use()
        return action(*operands) if self._recorder.missing_is_empty else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python looks for protocol methods; this does not use the value.
        return self._act(getattr, "", name, self)

    def __getitem__(self, key: object) -> Any:
        self._use()
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._use()
        if self._recorder.missing_is_empty:
            raise TypeError("a text can't be called")
        return self

    def __iter__(self) -> Iterator[object]:
        self._use()
        return iter(())

    def __index__(self) -> int:
        self._use()
        if self._recorder.missing_is_empty:
            raise TypeError("a text is no index")
        return 0

    def __eq__(self, other: object) -> bool:
        self._use()
        return self._recorder.missing_is_empty and other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, item: object) -> bool:
        self._use()
        return self._recorder.missing_is_empty and item == ""


def _constant(value: object) -> Callable[[MissingValue], object]:
    def method(self: MissingValue) -> object:
        self._use()
        return value

    return method


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[MissingValue, Any], bool]:
    def method(self: MissingValue, other: object) -> bool:
        self._use()
        return self._recorder.missing_is_empty and bool(compare("", other))

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
