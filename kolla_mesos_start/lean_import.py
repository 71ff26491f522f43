"""Imports a library without costly modules that we do not need: empty modules stand in for them."""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def import_without(module: str, unused: Mapping[str, Sequence[str]]) -> None:
    """Import `module` with an empty module for each of `unused`, which has the given names, all None.

    Modules that are already imported stay. A library that uses more of them during its import gets the real
    ones.
    """
    absent = [name for name in unused if name not in sys.modules]
    for name in absent:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(unused[name]))
    try:
        __import__(module)
        return
    except (ImportError, AttributeError, TypeError):
        pass
    finally:
        for name in absent:
            del sys.modules[name]
    __import__(module)
