"""The number of containers of a service: `instances` in the `service` of its definition.

Launchers use it; the agent ignores it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Callable

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import BadDefinition, CannotRender

LABEL = "service.instances"


def text_of(definition: Any) -> Text:
    """The text of the number, which may be a template; by default 1."""
    service = definition.get("service") if isinstance(definition, Mapping) else None
    value = service.get("instances") if isinstance(service, dict) else None
    return Text(LABEL, "1" if value is None else str(value))


def wanted(definition: Any, render: Callable[[Text], str]) -> int | None:
    """The number; None if the text is not a number, or cannot be rendered."""
    try:
        number = render(text_of(definition)).strip()
    except CannotRender:
        return None
    return int(number) if re.fullmatch("[0-9]{1,5}", number) else None


def with_instances(definition: bytes, count: int) -> bytes:
    """The definition with this number; unchanged if it is unreadable or that of a task."""
    try:
        root = load(definition).root
    except BadDefinition:
        return definition
    service = root.get("service")
    if not isinstance(service, dict) or service.get("instances", 1) == count:
        return definition
    changed = {**root, "service": {**service, "instances": count}}
    text = json.dumps(changed, indent=2, ensure_ascii=False)
    return text.encode(errors="surrogatepass") + b"\n"  # Validation reports a lone surrogate.
