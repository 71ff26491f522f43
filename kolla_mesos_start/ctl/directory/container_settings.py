"""The settings of a service's containers in `launch.yml`, in `defaults` and in `services`.

Most of them are only for launchers. `image`, `ports` and `env` may be templates. A volume, by its path:

    /var/lib/mysql: 10Gi            of each container's own; kept
    /var/lib/data: {size: 10Gi, storage_class: fast}
    /var/lib/keys: {shared: keys}   the same data on all hosts
    /var/log/kolla: {volume: logs}  what the containers of one host share
    /lib/modules: {host: /lib/modules, read_only: true}
    /run/netns: {host: /run/netns, propagation: shared}
    /run/mysqld: temporary          empty at each start
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from kolla_mesos_start.addresses import is_port
from kolla_mesos_start.ctl.directory import pod_template
from kolla_mesos_start.ctl.directory.pod_template import PodTemplate
from kolla_mesos_start.definition.document import Fields, Reading, nearest
from kolla_mesos_start.definition.strings import Text, any_text, bad_generation, bad_signal, labelled

Form = Callable[[str], Optional[str]]

EACH, SCALED = "each", "scaled"  # replicas
HOST, OWN = "host", "own"  # networks
# Kinds of volumes. A NAMED one is a volume of the container engine on each host.
KEPT, SHARED, NAMED, FROM_HOST, TEMPORARY = "kept", "shared", "volume", "host", "temporary"
IMAGE, ARCHIVE = "image", "archive"  # These two are only for the agent.
AGENT = "/opt/kolla_mesos_start"  # where an agent is mounted that is not part of the image
LONGEST_START = 10**9 - 1  # seconds, as the agent takes them
MEBIBYTES = {"Mi": 1, "Gi": 1024}
# Of an image's name, as all launchers take it.
_PART = "[a-z0-9]+([._-]+[a-z0-9]+)*"
REFERENCE = re.compile(
    rf"([A-Za-z0-9.-]+(:[0-9]+)?/|\[[0-9a-fA-F:]+\](:[0-9]+)?/)?{_PART}(/{_PART})*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@[a-z0-9]+:[0-9a-f]{32,})?"
)
NO_REFERENCE = "expected registry/name:tag, without spaces, the name in lowercase letters"
# The capabilities of Linux 6; container runtimes refuse others. Launchers accept ALL too.
CAPABILITIES = frozenset(
    """
    ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
    DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD
    NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN
    SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG WAKE_ALARM
    """.split()  # noqa: SIM905  # A list of literals would be a line for each.
)
TCP, UDP, PORT = "tcp", "udp", "a port (80, or 53/udp)"
NUMBER = "a number is `instances` of the definition: `service: {instances: 2}`"  # of containers
# How mounts that are made later are seen by the host and the container; slave: only from the host.
PROPAGATIONS = ("shared", "rshared", "slave", "rslave")
SIZE = "its size (10Gi)"
VOLUME = f"expected {SIZE}, `temporary`, {{volume: NAME}}, {{shared: NAME}} or {{host: PATH}}"


class Volume(NamedTuple):
    """A directory at `path` in a container. `source` is its name, the host's path, an image, or a URI."""

    path: str
    kind: str
    source: str = ""
    size: int = 0  # mebibytes, of one that is kept
    read_only: bool = False
    propagation: str = ""
    storage_class: str = ""  # of one that is kept, in Kubernetes


class ContainerSettings(NamedTuple):
    """How the containers of a service are launched; None if the file does not set it.

    `placement` is a role of hosts. With `replicas` EACH, there is one container on each of them; otherwise
    the definition's number, on the first hosts; SCALED leaves the number to Kubernetes, where that is used.
    `cpu` is in thousandths, `memory` in mebibytes, `stop_signal` a name without SIG.
    """

    placement: str | None = None
    replicas: str | None = None
    tag: str | None = None
    image: str | None = None
    cpu: int | None = None
    memory: int | None = None
    user: int | None = None
    read_only: bool | None = None
    network: str | None = None
    capabilities: Sequence[str] | None = None
    ports: Sequence[str] | None = None
    volumes: Sequence[Volume] | None = None
    env: Mapping[str, str] | None = None
    variables: str | None = None
    credential: str | None = None
    new_privileges: bool | None = None
    privileged: bool | None = None
    pid: str | None = None
    ipc: str | None = None
    cgroup: str | None = None
    limits: Mapping[str, str] | None = None
    security_options: Sequence[str] | None = None
    devices: Sequence[str] | None = None
    stop_signal: str | None = None
    start_timeout: int | None = None
    kubernetes: Sequence[PodTemplate] | None = None

    @property
    def is_confined(self) -> bool:
        """Whether no program may get more rights than it was started with."""
        return not (self.new_privileges or self.privileged)

    @property
    def namespaces(self) -> Sequence[str]:
        """The namespaces of the host that it uses."""
        every = {"pid": self.pid, "ipc": self.ipc, "cgroup": self.cgroup}
        return [name for name, value in every.items() if value == HOST]

    def over(self, defaults: ContainerSettings) -> ContainerSettings:
        """These settings, completed with the defaults."""
        own = {key: value for key, value in self._asdict().items() if value is not None}
        env = {**(defaults.env or {}), **(self.env or {})}
        # They are merged one after the other.
        parts = [*(defaults.kubernetes or ()), *(self.kubernetes or ())]
        return defaults._replace(**{**own, "env": env, "kubernetes": parts or None})


def read(reading: Reading, label: str, value: object, roles: Mapping[str, object]) -> ContainerSettings:
    """Read a mapping, and report its mistakes."""
    fields = Fields(reading, label, value, KEYS)
    settings = ContainerSettings(**fields.values(KEYS))
    if settings.placement is not None and settings.placement not in roles:
        fields.unexpected("placement", f"expected a role of `hosts`{nearest(settings.placement, roles)}")
    return settings


def read_agent(reading: Reading, label: str, value: object) -> Volume | None:
    """Read where the agent comes from that is mounted into images without one."""
    if value is None:
        return None
    if isinstance(value, str):
        if not REFERENCE.fullmatch(value):
            reading.report(label, f"{NO_REFERENCE}, found {value!r}")
        return Volume(AGENT, IMAGE, value, read_only=True)
    if not isinstance(value, dict) or len(value) != 1 or None in value.values():
        reading.report(label, "expected an image, {host: DIRECTORY} or {uri: ARCHIVE}")
        return None
    fields = Fields(reading, label, value, tuple(AGENT_PLACES))
    found = {kind: fields.early(key, None, form) for key, (kind, form) in AGENT_PLACES.items()}
    return next((Volume(AGENT, kind, at, read_only=True) for kind, at in found.items() if at), None)


# -- the form of a text: functions that return why it is wrong ----------------------------------------


def _form(pattern: str, expected: str) -> Form:
    return lambda text: None if re.fullmatch(pattern, text, re.DOTALL) else f"expected {expected}"


SECRET = _form(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", "a name of lowercase letters, digits and -")
# What Kubernetes takes.
STORAGE_CLASS = _form(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a storage class of Kubernetes")
# Without dots: podman takes what ends in .volume for a unit.
NAMED_VOLUME = _form(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", "the name of a volume, of letters, digits, _ and -")
NAMESPACE = _form(HOST, f"{HOST!r}; leave it out for the container's own")
PROPAGATION = _form("|".join(PROPAGATIONS), ", ".join(PROPAGATIONS))
URI = _form(r"[a-z0-9]+://\S+\.(tar\.gz|tgz)", "the URI of an archive, such as https://site/agent.tar.gz")
LIMIT_NAME = _form("[a-z]+", "a name as for ulimit, such as nofile")
LIMIT = _form(r"(-1|[0-9]+)(:(-1|[0-9]+))?", "a number, or soft:hard")
VARIABLE = _form("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable, of letters, digits and _")


def bad_tag(text: str) -> str | None:
    """A container's KOLLA_GENERATION, which launchers know before any variable."""
    is_template = Text("tag", text).is_template
    return "expected the tag itself: a template is not rendered here" if is_template else bad_generation(text)


def bad_place(text: str) -> str | None:
    """Runtimes have a colon between the host's path and the container's, and systemd joins lines at a \\."""
    first, *parts = text.split("/")
    good = text.isprintable() and not set(text) & set(":\\") and not set(parts) & {"", ".", ".."}
    return None if good and parts and not first else "expected an absolute path without colon, \\ and .."


class Port(NamedTuple):
    """A port where others reach a container, of TCP or UDP."""

    number: int
    protocol: str = TCP

    def __str__(self) -> str:
        return f"{self.number}{'' if self.protocol == TCP else f'/{self.protocol}'}"


def port_of(text: str) -> Port | None:
    """The port, such as 80 or 53/udp; None if the text is none."""
    found = re.fullmatch(rf"([0-9]{{1,5}})(/({TCP}|{UDP}))?", text)
    return Port(int(found[1]), found[3] or TCP) if found and is_port(int(found[1])) else None


def mebibytes(text: str) -> int | None:
    """The size in mebibytes; None if the text is not a size."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})(Mi|Gi)", text)
    return int(found[1]) * MEBIBYTES[found[2]] if found else None


def _thousandths(text: str) -> int | None:
    milli = re.fullmatch(r"([1-9][0-9]{0,6})m", text)
    whole = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text)
    return int(milli[1]) if milli else (whole and round(float(text) * 1000)) or None


def _bad_stop_signal(text: str) -> str | None:
    good = re.fullmatch(r"(SIG)?RTMIN\+([0-9]|[12][0-9]|30)", text)
    expected = None if good else bad_signal(text)
    return expected and f"{expected}, RTMIN+3"


def _bad_variable(text: str) -> str | None:
    """Launchers accept fewer names than Linux."""
    if text == "KOLLA_STOP_SIGNAL":
        return "set `stop_signal` instead: the launcher needs it too"
    return VARIABLE(text)


def _bad_capability(text: str) -> str | None:
    if not re.fullmatch(r"(?!CAP_)[A-Z][A-Z_]+", text):
        return "expected a capability without CAP_, such as NET_ADMIN"
    return None if text in CAPABILITIES else f"unknown capability {text}{nearest(text, CAPABILITIES)}"


def _bad_device(text: str) -> str | None:
    """As for `docker run --device`; read, write and make (r, w, m) are the rights of the container."""
    *places, last = text.split(":")
    paths = places if places and re.fullmatch(r"[rwm]{1,3}", last) else [*places, last]
    good = len(paths) <= 2 and not any(map(bad_place, paths))
    return None if good else "expected a device of the host, such as /dev/kvm, or host:container:rwm"


# -- the values: functions that read a key, None if it is not set --------------------------------------


def _measured(fields: Fields, key: str, measure: Callable[[str], int | None], what: str) -> int | None:
    text = fields.early(key, None, lambda text: None if measure(text) else f"expected {what}")
    return None if text is None else measure(text)


def _flag(fields: Fields, key: str) -> bool | None:
    return fields.boolean(key, False) if key in fields else None


def _stop_signal(fields: Fields, key: str) -> str | None:
    name = fields.early(key, None, _bad_stop_signal)
    return name and name.removeprefix("SIG")


def _texts(fields: Fields, key: str, form: Form) -> Sequence[str] | None:
    """A list of texts."""
    if fields.raw(key) is None:
        return None
    found = []
    for label, item in labelled(fields.label_of(key), fields.items(key)):
        why = form(item) if isinstance(item, str) else "expected text"
        if why:
            fields.reading.report(label, f"{why}, found {item!r}")
        found.append(str(item))
    return found


def _named(fields: Fields, key: str, name_form: Form) -> tuple[Fields, Mapping[str, object]]:
    """A mapping whose keys are names of this form."""
    given = fields.mapping(key)
    own = Fields(fields.reading, fields.label_of(key), given, tuple(given))
    for name in given:
        fields.reading.check_name(own.label_of(name), name, name_form)
    return own, given


def _env(fields: Fields, key: str) -> Mapping[str, str] | None:
    if fields.raw(key) is None:
        return None
    own, given = _named(fields, key, _bad_variable)
    return {name: own.early(name, "", any_text) for name in given}


def _limits(fields: Fields, key: str) -> Mapping[str, str] | None:
    """Limits of resources by the names of `ulimit`, each as soft:hard."""
    if fields.raw(key) is None:
        return None
    own, given = _named(fields, key, LIMIT_NAME)
    texts = {name: own.early(name, "", LIMIT) for name in given}
    return {name: text if ":" in text else f"{text}:{text}" for name, text in texts.items()}


def _volumes(fields: Fields, key: str) -> Sequence[Volume] | None:
    if fields.raw(key) is None:
        return None
    own, given = _named(fields, key, bad_place)
    return [_volume(own, path) for path in given]


def _volume(own: Fields, path: str) -> Volume:
    value = own.raw(path)
    if isinstance(value, str):
        size = mebibytes(value)
        if value != TEMPORARY and size is None:
            own.unexpected(path, VOLUME)
        return Volume(path, TEMPORARY) if size is None else Volume(path, KEPT, size=size)
    if isinstance(value, dict) and "size" in value:
        fields = Fields(own.reading, own.label_of(path), value, ("size", "storage_class"))
        storage_class = fields.early("storage_class", None, STORAGE_CLASS) or ""
        size = _measured(fields, "size", mebibytes, SIZE)
        return Volume(path, KEPT, size=size or 0, storage_class=storage_class)
    keys = (*PLACES, "read_only", "propagation")
    fields = Fields(own.reading, own.label_of(path), value, keys)
    places = {kind: fields.early(kind, None, form) for kind, form in PLACES.items()}
    if isinstance(value, dict) and value.keys() <= {*keys} and len(value.keys() & PLACES.keys()) != 1:
        own.report(path, VOLUME)
    propagation = fields.early("propagation", None, PROPAGATION) or ""
    if propagation and not places[FROM_HOST]:
        fields.report("propagation", "is only allowed for a path of the host")
    kind, place = next(((kind, place) for kind, place in places.items() if place), (FROM_HOST, ""))
    return Volume(path, kind, place, 0, bool(_flag(fields, "read_only")), propagation)


# The kinds of volumes that are mappings, by their key. The whole file system of the host may be meant too.
PLACES: Mapping[str, Form] = {
    SHARED: SECRET,
    NAMED: NAMED_VOLUME,
    FROM_HOST: lambda text: None if text == "/" else bad_place(text),
}
AGENT_PLACES: Mapping[str, tuple[str, Form]] = {"host": (FROM_HOST, bad_place), "uri": (ARCHIVE, URI)}
KEYS: Mapping[str, tuple[Any, ...]] = {
    "placement": (Fields.early, None, any_text),
    "tag": (Fields.early, None, bad_tag),
    "replicas": (Fields.early, None, _form(f"{EACH}|{SCALED}", f"{EACH!r} or {SCALED!r}; {NUMBER}")),
    "image": (Fields.early, None, _form(r".*\S.*", "the name of an image")),
    "cpu": (_measured, _thousandths, "a number of processors, 0.5 or 500m"),
    "memory": (_measured, mebibytes, "a size, such as 512Mi or 1Gi"),
    "user": (Fields.integer, None),
    "read_only": (_flag,),
    "network": (Fields.early, None, _form(f"{HOST}|{OWN}", f"{HOST!r} or {OWN!r}")),
    "capabilities": (_texts, _bad_capability),
    "ports": (
        _texts,
        lambda text: None if "{{" in text or port_of(text) else f"expected {PORT}, or a template of one",
    ),
    "volumes": (_volumes,),
    "env": (_env,),
    "variables": (Fields.early, None, SECRET),
    "credential": (Fields.early, None, SECRET),
    "new_privileges": (_flag,),
    "privileged": (_flag,),
    "pid": (Fields.early, None, NAMESPACE),
    "ipc": (Fields.early, None, NAMESPACE),
    "cgroup": (Fields.early, None, NAMESPACE),
    "limits": (_limits,),
    "security_options": (_texts, _form(r"[a-z-]+[=:][^\s,]+", "an option such as label=disable")),
    "devices": (_texts, _bad_device),
    "stop_signal": (_stop_signal,),
    "start_timeout": (Fields.integer, None, 1, LONGEST_START),
    "kubernetes": (pod_template.read,),
}
