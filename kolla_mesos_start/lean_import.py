"""Imports a library without modules that it needs only for other purposes than ours.

During the import, empty modules replace those that are expensive and not used. The caller names them, and
explains why.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def import_without(module: str, unused: Mapping[str, Sequence[str]]) -> None:
    """Import `module` with stand-ins for the `unused` modules, each with these names in it, all None.

    What has been imported already stays as it is. A library that does more with them while it is
    imported gets the real ones.
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
