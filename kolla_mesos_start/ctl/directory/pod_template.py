"""`kubernetes` in launch.yml: a part of a pod template, as Kubernetes writes it.

It is merged into the template of the manifests as `kubectl patch` does (a strategic merge patch): mappings
key by key, the lists in MERGE_KEYS item by item; any other value is replaced. null removes a key, and
`$patch: delete` an item. A value that the manifests contain already is an error, unless it is REPLACEABLE.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kolla_mesos_start.definition.document import Fields, json_type
from kolla_mesos_start.definition.strings import SHOWN, labelled, sublabel, unusable

CONTAINER = "agent"  # in each pod
Keys = tuple[str, ...]  # the place of a value in a template; an item of a list by its name

# Kubernetes merges the items of these lists by one of their keys. By the lengths of their places, and their
# names: `env` is also the key of a label.
MERGE_KEYS = {
    **dict.fromkeys(((2, "containers"), (2, "initContainers"), (2, "volumes"), (4, "env")), "name"),
    **dict.fromkeys(((2, "imagePullSecrets"), (2, "resourceClaims"), (2, "schedulingGates")), "name"),
    (2, "hostAliases"): "ip",
    (2, "topologySpreadConstraints"): "topologyKey",
    (4, "ports"): "containerPort",
    (4, "volumeMounts"): "mountPath",
    (4, "volumeDevices"): "devicePath",
}
CONTAINER_KEYS = ("spec", "containers", CONTAINER)
PROBES = [(*CONTAINER_KEYS, name) for name in ("livenessProbe", "readinessProbe")]
NUMBERS = ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")  # of probes
# Items that are replaced as a whole, or not at all.
WHOLE = [(*CONTAINER_KEYS, name) for name in ("env", "volumeMounts")]
# What the manifests contain, but launch.yml may replace.
REPLACEABLE = {
    ("spec", "automountServiceAccountToken"),
    ("spec", "dnsPolicy"),
    ("spec", "securityContext", "seccompProfile"),
    ("spec", "topologySpreadConstraints"),
    *((*probe, key) for probe in PROBES for key in NUMBERS),
}


def _by_place(table: Mapping[str, str]) -> Mapping[Keys, str]:
    """Where values come from, by their places. AGENT is the container."""
    return {
        tuple(place.replace("AGENT", ".".join(CONTAINER_KEYS)).split(".")): origin
        for origin, places in table.items()
        for place in places.split()
    }


THE_AGENT = "the agent"
# What only a setting of launch.yml, the definition or the agent may set.
RESERVED = _by_place(
    {
        "network": "spec.hostNetwork",
        "pid": "spec.hostPID",
        "ipc": "spec.hostIPC",
        "user": "spec.securityContext.runAsUser spec.securityContext.runAsNonRoot"
        " AGENT.securityContext.runAsUser AGENT.securityContext.runAsNonRoot",
        "image": "AGENT.image",
        "ports": "AGENT.ports",
        "cpu": "AGENT.resources.requests.cpu",
        "memory": "AGENT.resources.requests.memory AGENT.resources.limits.memory",
        "new_privileges": "AGENT.securityContext.allowPrivilegeEscalation",
        "privileged": "AGENT.securityContext.privileged",
        "capabilities": "AGENT.securityContext.capabilities",
        "read_only": "AGENT.securityContext.readOnlyRootFilesystem",
        "stop_grace": "spec.terminationGracePeriodSeconds",
        THE_AGENT: "spec.restartPolicy AGENT.command AGENT.args AGENT.lifecycle AGENT.startupProbe"
        " AGENT.terminationMessagePath AGENT.terminationMessagePolicy",
    }
)
# Where the other values of the manifests come from, if not from the agent.
ORIGINS = {
    **RESERVED,
    **_by_place(
        {
            "env": "AGENT.env",
            "placement": "spec.affinity.nodeAffinity",
            "user": "spec.securityContext.fsGroup",
            "volumes": "spec.volumes AGENT.volumeMounts",
            "election": "spec.affinity.podAntiAffinity",
        }
    ),
}
OF_DEFINITION = ("stop_grace", "election")


class PodTemplate(NamedTuple):
    """A part of a pod template, and its label in launch.yml."""

    label: str
    content: Mapping[str, Any]


def read(fields: Fields, key: str) -> Sequence[PodTemplate] | None:
    """The part under this key. Kubernetes itself reports keys that it does not have."""
    content = fields.raw(key)
    if content is None:
        return None
    top = fields.nested(key, ("metadata", "spec"))
    metadata = top.nested("metadata", ("labels", "annotations"))
    for name in ("labels", "annotations"):
        for each, value in metadata.mapping(name).items():
            what = f"expected text, found {json_type(value)}: put it in quotes"
            if isinstance(value, str):
                what = f"expected text, but it {unusable(value)}" if unusable(value) else ""
            if what and value is not None:
                fields.reading.report(sublabel(metadata.label_of(name), each), what)
    for label, what in _malformed(("spec",), top.label_of("spec"), top.mapping("spec")):
        fields.reading.report(label, what)
    return [PodTemplate(top.label, content if isinstance(content, dict) else {})]


def _malformed(keys: Keys, label: str, value: object) -> Iterator[tuple[str, str]]:
    """What can't be merged or written, by its label."""
    by = _merge_key(keys)
    if by and isinstance(value, list):
        names: list[object] = []
        for below, item in labelled(label, value):
            name = item.get(by) if isinstance(item, dict) else None
            if not isinstance(name, (str, int)):
                yield below, f"expected an object with `{by}`"
            elif by == "name" and name in names:
                yield below, f"{name} is here twice"
            else:
                names.append(name)
                yield from _malformed((*keys, str(name)), below, item)
    elif by and value is not None:
        yield label, f"expected a list, found {json_type(value)}"
    elif isinstance(value, dict):
        for name, each in value.items():
            if unusable(name):
                yield label, f"the key {name!r} {unusable(name)}"
            if name.startswith("$") and not (_is_deleted(value) and _merge_key(keys[:-1])):
                yield sublabel(label, name), "only `$patch: delete` in an item of a list is supported"
            yield from _malformed((*keys, name), sublabel(label, name), each)
    elif isinstance(value, list):
        for below, each in labelled(label, value):
            yield from _malformed((*keys, below), below, each)
    elif isinstance(value, str) and unusable(value):
        yield label, f"expected text, but it {unusable(value)}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield label, f"expected a number, found {value}"
    elif not (value is None or isinstance(value, (str, int, float))):
        yield label, f"expected a value as JSON has it, found a YAML {type(value).__name__}"


def _merge_key(keys: Keys) -> str | None:
    return MERGE_KEYS.get((len(keys), keys[-1])) if keys else None


def _is_deleted(item: Mapping[str, object]) -> bool:
    return item.get("$patch") == "delete"


def merged(written: Any, wanted: Any, keys: Keys = ()) -> Any:
    """A template, or a value in it, with what a part wants."""
    by = _merge_key(keys)
    if by and isinstance(wanted, list):
        items = list(written or ())
        there = {item[by]: place for place, item in reversed([*enumerate(items)])}
        for item in wanted:  # Two may have the same key: ports of TCP and UDP.
            place = there.get(item[by], len(items))
            old = items[place] if item[by] in there else None
            new = None if _is_deleted(item) else merged(old, item, (*keys, str(item[by])))
            items[place : place + 1] = [new]
        return [item for item in items if item]
    if not isinstance(wanted, dict):
        return wanted
    found = dict(written) if isinstance(written, dict) else {}
    for name, value in wanted.items():
        found[name] = merged(found.get(name), value, (*keys, name))
    return {name: value for name, value in found.items() if value is not None}


def conflicts(written: Mapping[str, Any], part: PodTemplate) -> Iterator[tuple[str, str]]:
    """Why values of a part contradict the template of the manifests, by their labels."""
    return _conflicts((), part.label, written, part.content)


def _conflicts(keys: Keys, label: str, written: Any, wanted: Any) -> Iterator[tuple[str, str]]:
    by = _merge_key(keys)
    if wanted == written or keys in REPLACEABLE:
        return
    if _is_reserved(keys, written):
        yield label, _why(keys, written)
    elif by and isinstance(wanted, list):
        there = {item[by]: item for item in written or ()}
        for below, item in labelled(label, wanted):
            value = None if _is_deleted(item) else item
            yield from _conflicts((*keys, str(item[by])), below, there.get(item[by]), value)
    elif isinstance(wanted, dict) and (written is None or isinstance(written, dict)):
        for name, value in wanted.items():
            yield from _conflicts((*keys, name), sublabel(label, name), (written or {}).get(name), value)
    elif isinstance(written, dict) and wanted is not None:
        yield label, f"expected an object, found {json_type(wanted)}"
    elif written is not None:
        yield label, _why(keys, written)


def _is_reserved(keys: Keys, written: object) -> bool:
    *above, name = keys or ("",)
    is_ours = written is not None or name.startswith("KOLLA_")
    return keys in RESERVED or tuple(above) in PROBES or (tuple(above) in WHOLE and is_ours)


def _why(keys: Keys, written: object) -> str:
    """What the manifests have there, and what to change instead."""
    text = json.dumps(written)
    has = "" if written is None else f"the manifest has {text[:SHOWN]}{'...' * (len(text) > SHOWN)}"
    place = next((keys[:end] for end in range(len(keys), 0, -1) if keys[:end] in ORIGINS), ())
    origin = ORIGINS.get(place, THE_AGENT)
    if origin == THE_AGENT:
        return f"{has}, which the agent needs: remove this" if has else "only the agent sets it: remove this"
    origin = f"`{origin}` of {'the definition' if origin in OF_DEFINITION else 'launch.yml'}"
    return f"{has}, from {origin}: change that instead" if has else f"set {origin} instead"
