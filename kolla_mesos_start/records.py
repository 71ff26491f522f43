"""NamedTuple without `typing`, which would cost every start time, and every registrar memory."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Meta(type):
        """Makes a named tuple from the annotations of a class; values are defaults."""

        def __new__(meta, name, bases, namespace):
            if not bases:
                return super().__new__(meta, name, bases, namespace)
            fields = namespace.get("__annotations__", {})
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            base = namedtuple(name, fields, defaults=defaults)
            return type(name, (base,), {"__slots__": (), **namespace})

    class NamedTuple(metaclass=_Meta):
        """As `typing.NamedTuple`."""
