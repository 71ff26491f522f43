"""The settings of a service's containers in `launch.yml`, in `defaults` and in `services`.

    placement: control              a role of `hosts`
    replicas: each                  one on each of its hosts
    image: registry/{{ role }}:{{ tag }}
    cpu: 500m                       or a number of processors, 0.5
    memory: 512Mi                   or Gi
    user: 42425                     by number; 0 is root
    read_only: true                 the root file system
    network: host                   or own
    capabilities: [NET_ADMIN]       all others are dropped
    new_privileges: true            allow sudo and other setuid programs
    privileged: true                all devices and capabilities of the host
    pid: host                       the host's processes; `ipc` and `cgroup` likewise
    limits: {nofile: 1048576}       or soft:hard
    security_options: [label=disable]
    devices: [/dev/kvm]             or host:container:rwm
    ports: ["{{ port }}"]           registered, and reached by others
    volumes:
      /var/lib/mysql: 10Gi          of each container's own; kept
      /var/lib/keys: {shared: keys} the same data on all hosts
      /var/log/kolla: {volume: logs} what the containers of one host share
      /lib/modules: {host: /lib/modules, read_only: true}
      /run/netns: {host: /run/netns, propagation: shared}
      /run/mysqld: temporary        empty at each start
    env: {KOLLA_LOG_FORMAT: json}   joined with that of `defaults`
    stop_signal: QUIT               that ends a container; TERM by default, whatever the image says
    start_timeout: 600              seconds that a daemon may take to become ready
    variables: site-passwords       the secret that is KOLLA_VARIABLES_DIR
    credential: site-zookeeper      the secret whose key `auth` is KOLLA_ZK_AUTH_FILE

Most of them are only for launchers. `image`, `ports` and `env` may be templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple

from kolla_mesos_start.definition.fields import Fields, Reading, nearest
from kolla_mesos_start.definition.forms import any_text, bad_signal
from kolla_mesos_start.definition.texts import labelled

EACH = "each"
HOST, OWN = "host", "own"  # networks
# Kinds of volumes. A NAMED one is a volume of the container engine on each host.
KEPT, SHARED, NAMED, FROM_HOST, TEMPORARY = "kept", "shared", "volume", "host", "temporary"
PLACES = (SHARED, NAMED, FROM_HOST)
LONGEST_START = 10**9 - 1  # seconds, as the agent takes them
MEBIBYTES = {"Mi": 1, "Gi": 1024}
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
# How mounts that are made later are seen by the host and the container; slave: only from the host.
PROPAGATIONS = ("shared", "rshared", "slave", "rslave")
VOLUME = "expected its size (10Gi), `temporary`, {volume: NAME}, {shared: NAME} or {host: PATH}"


class Volume(NamedTuple):
    """A directory at `path` in a container. `source` is its name, or the host's path."""

    path: str
    kind: str
    source: str = ""
    size: int = 0  # mebibytes, of one that is kept
    read_only: bool = False
    propagation: str = ""


class ContainerSettings(NamedTuple):
    """How the containers of a service are launched; None if the file does not set it.

    `placement` is a role of hosts. With `replicas` EACH, there is one container on each of them; otherwise
    the definition's number, on the first hosts. `cpu` is in thousandths, `memory` in mebibytes, `stop_signal`
    a name without SIG.
    """

    placement: str | None = None
    replicas: str | None = None
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

    def over(self, defaults: ContainerSettings) -> ContainerSettings:
        """These settings, completed with the defaults."""
        own = {key: value for key, value in self._asdict().items() if value is not None}
        return defaults._replace(**{**own, "env": {**(defaults.env or {}), **(self.env or {})}})


def read(reading: Reading, label: str, value: object, roles: Mapping[str, object]) -> ContainerSettings:
    """Read a mapping, and report its mistakes."""

    def bad_role(role: str) -> str | None:
        return None if role in roles else f"expected a role of `hosts`{nearest(role, roles)}"

    fields = Fields(reading, label, value, ContainerSettings._fields)
    return ContainerSettings(
        placement=fields.early("placement", None, bad_role),
        replicas=fields.early("replicas", None, _bad_replicas),
        image=fields.early("image", None, _bad_word),
        cpu=_measured(fields, "cpu", _thousandths, "a number of processors, 0.5 or 500m"),
        memory=_measured(fields, "memory", mebibytes, "a size, such as 512Mi or 1Gi"),
        user=fields.integer("user", None),
        read_only=_flag(fields, "read_only"),
        network=fields.early("network", None, _bad_network),
        capabilities=_texts(fields, "capabilities", _bad_capability),
        ports=_texts(fields, "ports", _bad_port),
        volumes=_volumes(fields),
        env=_env(fields),
        variables=fields.early("variables", None, _bad_secret),
        credential=fields.early("credential", None, _bad_secret),
        new_privileges=_flag(fields, "new_privileges"),
        privileged=_flag(fields, "privileged"),
        pid=fields.early("pid", None, _bad_namespace),
        ipc=fields.early("ipc", None, _bad_namespace),
        cgroup=fields.early("cgroup", None, _bad_namespace),
        limits=_limits(fields),
        security_options=_texts(fields, "security_options", _bad_security_option),
        devices=_texts(fields, "devices", _bad_device),
        stop_signal=_stop_signal(fields),
        start_timeout=fields.integer("start_timeout", None, 1, LONGEST_START),
    )


def mebibytes(text: str) -> int | None:
    """The size in mebibytes; None if the text is not a size."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})(Mi|Gi)", text)
    return int(found[1]) * MEBIBYTES[found[2]] if found else None


def _thousandths(text: str) -> int | None:
    milli = re.fullmatch(r"([1-9][0-9]{0,6})m", text)
    whole = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text)
    return int(milli[1]) if milli else (whole and round(float(text) * 1000)) or None


def _measured(fields: Fields, key: str, measure: Callable[[str], int | None], what: str) -> int | None:
    text = fields.early(key, None, lambda text: None if measure(text) else f"expected {what}")
    return None if text is None else measure(text)


def _flag(fields: Fields, key: str) -> bool | None:
    return fields.boolean(key, False) if key in fields else None


def _stop_signal(fields: Fields) -> str | None:
    name = fields.early("stop_signal", None, _bad_stop_signal)
    return name and name.removeprefix("SIG")


def _bad_stop_signal(text: str) -> str | None:
    good = re.fullmatch(r"(SIG)?RTMIN\+([0-9]|[12][0-9]|30)", text)
    expected = None if good else bad_signal(text)
    return expected and f"{expected}, RTMIN+3"


def _limits(fields: Fields) -> Mapping[str, str] | None:
    """Limits of resources by the names of `ulimit`, each as soft:hard."""
    if fields.raw("limits") is None:
        return None
    given = fields.mapping("limits")
    own = Fields(fields.reading, fields.label_of("limits"), given, tuple(given))
    found = {}
    for name in given:
        fields.reading.check_name(own.label_of(name), name, _bad_limit_name)
        text = own.early(name, "", _bad_limit)
        found[name] = text if ":" in text else f"{text}:{text}"
    return found


def _texts(fields: Fields, key: str, bad: Callable[[str], str | None]) -> Sequence[str] | None:
    """A list of texts."""
    if fields.raw(key) is None:
        return None
    found = []
    for label, item in labelled(fields.label_of(key), fields.items(key)):
        why = bad(item) if isinstance(item, str) else "expected text"
        if why:
            fields.reading.report(label, why)
        found.append(str(item))
    return found


def _env(fields: Fields) -> Mapping[str, str] | None:
    if fields.raw("env") is None:
        return None
    given = fields.mapping("env")
    own = Fields(fields.reading, fields.label_of("env"), given, tuple(given))
    for name in given:
        fields.reading.check_name(own.label_of(name), name, _bad_variable)
    return {name: own.early(name, "", any_text) for name in given}


def _volumes(fields: Fields) -> Sequence[Volume] | None:
    if fields.raw("volumes") is None:
        return None
    given = fields.mapping("volumes")
    own = Fields(fields.reading, fields.label_of("volumes"), given, tuple(given))
    for path in given:
        fields.reading.check_name(own.label_of(path), path, bad_place)
    return [_volume(own, path) for path in given]


def _volume(own: Fields, path: str) -> Volume:
    value = own.raw(path)
    if isinstance(value, str):
        size = mebibytes(value)
        if value != TEMPORARY and size is None:
            own.report(path, f"{VOLUME}, found {value!r}")
        return Volume(path, TEMPORARY) if size is None else Volume(path, KEPT, size=size)
    keys = (*PLACES, "read_only", "propagation")
    fields = Fields(own.reading, own.label_of(path), value, keys)
    bad = {SHARED: _bad_secret, NAMED: _bad_volume, FROM_HOST: _bad_host_path}
    places = {kind: fields.early(kind, None, bad[kind]) for kind in PLACES}
    if isinstance(value, dict) and set(value) <= set(keys) and len(value.keys() & set(PLACES)) != 1:
        own.report(path, VOLUME)
    propagation = fields.early("propagation", None, _bad_propagation) or ""
    if propagation and not places[FROM_HOST]:
        fields.report("propagation", "is only allowed for a path of the host")
    kind, place = next(((kind, place) for kind, place in places.items() if place), (FROM_HOST, ""))
    return Volume(path, kind, place, 0, bool(_flag(fields, "read_only")), propagation)


def _bad_host_path(text: str) -> str | None:
    """The whole file system of the host may be meant too."""
    return None if text == "/" else bad_place(text)


def _bad_volume(text: str) -> str | None:
    """Without dots: podman takes what ends in .volume for a unit."""
    good = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", text)
    return None if good else "expected the name of a volume, of letters, digits, _ and -"


def _bad_propagation(text: str) -> str | None:
    return None if text in PROPAGATIONS else f"expected {', '.join(PROPAGATIONS)}, found {text!r}"


def _bad_namespace(text: str) -> str | None:
    return None if text == HOST else f"expected {HOST!r}; leave it out for the container's own"


def _bad_limit_name(text: str) -> str | None:
    return None if re.fullmatch(r"[a-z]+", text) else "expected a name as for ulimit, such as nofile"


def _bad_limit(text: str) -> str | None:
    return None if re.fullmatch(r"(-1|[0-9]+)(:(-1|[0-9]+))?", text) else "expected a number, or soft:hard"


def _bad_security_option(text: str) -> str | None:
    good = re.fullmatch(r"[a-z-]+[=:][^\s,]+", text)
    return None if good else f"expected an option such as label=disable, found {text!r}"


def _bad_device(text: str) -> str | None:
    """As for `docker run --device`; read, write and make (r, w, m) are the rights of the container."""
    *places, last = text.split(":")
    paths = places if places and re.fullmatch(r"[rwm]{1,3}", last) else [*places, last]
    if len(paths) <= 2 and not any(map(bad_place, paths)):
        return None
    return f"expected a device of the host, such as /dev/kvm, or host:container:rwm, found {text!r}"


def bad_place(text: str) -> str | None:
    """Runtimes have a colon between the host's path and the container's, and systemd joins lines at a \\."""
    first, *parts = text.split("/")
    good = text.isprintable() and not set(text) & set(":\\") and not set(parts) & {"", ".", ".."}
    return None if good and parts and not first else "expected an absolute path without colon, \\ and .."


def _bad_variable(text: str) -> str | None:
    """Launchers accept fewer names than Linux."""
    if text == "KOLLA_STOP_SIGNAL":
        return "set `stop_signal` instead: the launcher needs it too"
    good = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text)
    return None if good else "expected the name of an environment variable, of letters, digits and _"


def _bad_replicas(text: str) -> str | None:
    return None if text == EACH else f"expected {EACH!r}; a number is `instances` of the definition"


def _bad_network(text: str) -> str | None:
    return None if text in (HOST, OWN) else f"expected {HOST!r} or {OWN!r}"


def _bad_word(text: str) -> str | None:
    return None if text.strip() else "expected the name of an image"


def _bad_capability(text: str) -> str | None:
    if not re.fullmatch(r"(?!CAP_)[A-Z][A-Z_]+", text):
        return f"expected a capability without CAP_, such as NET_ADMIN, found {text!r}"
    return None if text in CAPABILITIES else f"unknown capability {text}{nearest(text, CAPABILITIES)}"


def _bad_port(text: str) -> str | None:
    if "{{" in text or is_port(text):
        return None
    return f"expected a port, or a template of one, found {text!r}"


def is_port(text: str) -> bool:
    """Whether it is the number of a port."""
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _bad_secret(text: str) -> str | None:
    """Names that all launchers accept."""
    if re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", text):
        return None
    return "expected a name of lowercase letters, digits and -"
