"""How many containers of a service are wanted: `instances` of its definition's `service`.

What lives here: reading and writing it, the same for all commands. It is for launchers; the agent ignores it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Callable

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.errors import BadDefinition, CannotRender

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
    return int(number) if re.fullmatch("[0-9]{1,5}", number) else None


def with_instances(definition: bytes, count: int) -> bytes:
    """The definition, in which so many are wanted; as it is if it can't be read, or is that of a task."""
    try:
        root = load(definition).root
    except BadDefinition:
        return definition
    service = root.get("service")
    if not isinstance(service, dict) or service.get("instances", 1) == count:
        return definition
    changed = {**root, "service": {**service, "instances": count}}
    text = json.dumps(changed, indent=2, ensure_ascii=False)
    return text.encode(errors="surrogatepass") + b"\n"  # Half of a pair stays in it, to be found there.
