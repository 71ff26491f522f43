"""How many containers of a service are wanted: `instances` of its definition's `service`.

What lives here: reading it, the same for all commands. It is for launchers; the agent ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import CannotRender

LABEL = "service.instances"


def text_of(definition: Any) -> Text:
    """What the definition says, which may be a template; 1 if it says nothing."""
    service = definition.get("service") if isinstance(definition, Mapping) else None
    value = service.get("instances") if isinstance(service, dict) else None
    return Text(LABEL, "1" if value is None else str(value))


def wanted(definition: Any, render: Callable[[Text], str]) -> int | None:
    """How many; None for what is no number, or not known before something else is mended."""
    try:
        number = render(text_of(definition)).strip()
    except CannotRender:
        return None
    return int(number) if number.isascii() and number.isdigit() else None
