"""Reads the environment variables of the agent into Settings, or raises one error that names every bad one.

The valid values and the default of each variable are defined here. Other modules only pass the environment
on, or read what they need before it is valid: where the log goes, and for `health` the run directory.

An empty variable counts as not set, because launchers pass on empty values. NEVER_EMPTY lists the exceptions.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from types import MappingProxyType

from kolla_mesos_start import identities
from kolla_mesos_start.addresses import is_host, is_ip, is_port
from kolla_mesos_start.definition.strings import RESERVED, bad_generation, bad_host, disguise, unusable
from kolla_mesos_start.errors import PASSING, BadEnvironment
from kolla_mesos_start.health import RUN_DIR_LIMIT as RUN_DIR_LIMIT
from kolla_mesos_start.health import bad_run_dir, default_run_dir
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from kolla_mesos_start.identities import Acl
    from kolla_mesos_start.zookeeper.session import Servers
    from kolla_mesos_start.zookeeper.wire import ACL as ZnodeAcl

    T = TypeVar("T")


CREDENTIALS = ("KOLLA_ZK_AUTH_FILE", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")
# What an outer service manager (systemd, podman) passes to its service: for the daemon only.
OF_MANAGER = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID")
COERCED = ("C.UTF-8", "C.utf8", "UTF-8")  # what Python sets LC_CTYPE to if the locale is C

# Variables with our prefix for other readers: Kolla's images and scripts, kolla-mesos, our commands and
# tools.
PREFIX = "KOLLA_"
OF_OTHERS = (
    *("BASE_ARCH", "BASE_DISTRO", "BOOTSTRAP", "CONFIG", "CONFIG_FILE", "DISTRO_PYTHON_VERSION"),
    *("INSTALL_METATYPE", "INSTALL_TYPE", "LEGACY_IPTABLES", "OSM", "SERVICE_NAME", "SKIP_EXTEND_START"),
    *("UMASK", "UPGRADE", "UPGRADE_CHECK", "DEPLOYMENT_ID", "DEPLOYMENT"),
    *("FENCING_TOKEN", "PREVIOUS_ATTEMPT"),
)
# Kubernetes sets such variables for every service, and a service may be called kolla-something.
_OF_KUBERNETES = PREFIX + r"\w+_(SERVICE_(HOST|PORT\w*)|PORT(_[0-9]+_(TCP|UDP|SCTP)\w*)?)"

# A variable's name in a message, or a quoted value, in which names are not ours.
_NAME_OR_VALUE = r"""(?<!\w)'(?:\\.|[^'\\])*'|(?<!\w)"(?:\\.|[^"\\])*"|\bKOLLA_\w+"""

# These must not be set but empty: a forgotten value must not switch security off.
NEVER_EMPTY = (*CREDENTIALS, "KOLLA_ZK_CA", "KOLLA_ZK_ACL")

ZOOKEEPER_PORT = 2181
WORLD: Acl = ("world", "anyone", "cdrwa")
LOGLEVELS = ("debug", "info", "warning", "error")
TERMINATION_LOG = "/dev/termination-log"
OS_HOSTNAME = "KOLLA_HOSTNAME (from the hostname)"  # the hostname is read like a variable
INTERFACE_LIMIT = 15  # bytes: the limit of Linux
LOGS_LIMIT = 512  # characters; others show it in a line
# They can't be handled, or the agent uses them itself.
UNUSABLE_SIGNALS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGALRM}
SESSION_TIMEOUT_LIMIT = 3600  # seconds; a larger value is probably in milliseconds


class Settings(NamedTuple):
    """The settings of the agent. Times are in seconds; None is no limit."""

    hosts: str  # "h1:2181,h2:2181"
    chroot: str  # "" or "/a/b"
    prefix: str  # "" or "/a/b", the root of all deployments
    deployment_id: str
    service_name: str
    host: str
    host_is_pod: bool  # the node is not known, so scope `local` is this pod only
    address: str | None  # None: the address of the private interface
    ports: tuple[int, ...]
    private_interface: str | None  # None: the interface of the default route
    public_interface: str | None
    copy_once: bool
    generation: str | None  # of the code in this image
    logs: str | None  # the command that shows this container's log, or the path of a file
    variables_dir: str | None  # a directory whose files are variables
    supervise: bool  # stay as the daemon's parent
    stop_signal: int  # with which the launcher stops this container
    stay: bool  # a finished task idles until SIGTERM
    wait_timeout: float | None
    missing_is_empty: bool
    loglevel: str
    json_logs: bool
    run_dir: str
    state_dir: str
    session_timeout: float  # requested; the server may change it
    connect_timeout: float | None
    auth: tuple[tuple[str, str], ...]  # (scheme, credential) of each identity in auth_file
    ca: str | None  # None: no TLS
    cert: str | None
    key: str | None  # None with a cert: the key is in the same file
    acl: tuple[Acl, ...]  # (scheme, id, perms); perms are letters of cdrwa
    termination_log: str | None
    environ: Mapping[str, str]  # for commands and daemon: see `child_environ`
    auth_file: str | None = None
    unknown: tuple[str, ...] = ()  # warnings about variables that nothing reads, or that are ignored

    @property
    def servers(self) -> Servers:
        """The ensemble, for a session."""
        from kolla_mesos_start.zookeeper.session import Servers

        hosts = [host.rpartition(":") for host in self.hosts.split(",")]
        return Servers(
            [(host.strip("[]"), int(port)) for host, _, port in hosts],
            self.chroot,
            self.auth,
            self.ca,
            self.cert,
            self.key,
            self.auth_file,
        )

    @property
    def record_of_written(self) -> str:
        """The path of the record of the files that this container has written (`files.written`)."""
        return f"{self.state_dir}/written"

    @property
    def has_identity(self) -> bool:
        """Whether the agent has a credential or a certificate of its own."""
        return bool(self.auth or self.cert)

    @property
    def znode_acl(self) -> list[ZnodeAcl]:
        """KOLLA_ZK_ACL in ZooKeeper's form."""
        from kolla_mesos_start.zookeeper.wire import znode_acl

        return znode_acl(self.acl)

    @property
    def follows_acl(self) -> bool:
        """Whether new znodes get the ACL that publishing has recorded."""
        # An agent without an identity would lock itself out.
        return self.acl == (WORLD,) and self.has_identity


def parse(
    environ: Mapping[str, str],
    *,
    hostname: Callable[[], str] = socket.gethostname,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """The settings of an environment. Raises BadEnvironment with an issue for each bad variable.

    `names`: how messages name a variable, if not by its own name.
    """
    variables = _Variables({**environ, OS_HOSTNAME: hostname()})
    read = variables.read
    hosts, chroot = read("KOLLA_ZK_HOSTS", _ensemble, ("", ""), required=True)
    app_id = ("KOLLA_APP_ID", "MARATHON_APP_ID")
    deployment_id, service_name = read(app_id, _app_id, ("", ""), required=True)
    # Under Marathon HOST is the Mesos agent's name; elsewhere shells and images set it to anything.
    mesos = ["HOST"] if variables.is_set("MESOS_TASK_ID") else []
    sources = ("KOLLA_HOSTNAME", *mesos, "NODE_NAME", OS_HOSTNAME)
    in_pod = variables.is_set("KUBERNETES_SERVICE_HOST")
    ca, cert, key = _tls(variables)
    no_auth: tuple[str, tuple[identities.Credential, ...]] = ("", ())
    auth_file, auth = read("KOLLA_ZK_AUTH_FILE", _auth_file, no_auth)
    copy_once = read("KOLLA_CONFIG_STRATEGY", _switch("COPY_ALWAYS", "COPY_ONCE"), False)
    settings = Settings(
        hosts=hosts,
        chroot=chroot,
        prefix=read("KOLLA_SYSTEM_PREFIX", _znode, "/kolla"),
        deployment_id=deployment_id,
        service_name=service_name,
        host=read(sources, _host_name, "", required=True),
        host_is_pod=in_pod and variables.first_set(sources) == OS_HOSTNAME,
        address=read("KOLLA_ADDRESS", _address, None),
        ports=read("KOLLA_PORTS", _ports, ()) or variables.foreign("PORTS", _ports, ()),
        private_interface=read("KOLLA_PRIVATE_INTERFACE", _interface, None),
        public_interface=read("KOLLA_PUBLIC_INTERFACE", _interface, None),
        copy_once=copy_once,
        generation=read("KOLLA_GENERATION", _generation, None),
        logs=read("KOLLA_LOGS", _logs, None) or read("MESOS_CONTAINER_NAME", _mesos_logs, None),
        variables_dir=read("KOLLA_VARIABLES_DIR", _directory, None),
        supervise=read("KOLLA_START_MODE", _switch("exec", "supervise"), False),
        stop_signal=read("KOLLA_STOP_SIGNAL", _stop_signal, int(signal.SIGTERM)),
        stay=read("KOLLA_TASK_END", _switch("exit", "stay"), False),
        wait_timeout=read("KOLLA_WAIT_TIMEOUT", _limit, None),
        missing_is_empty=read("KOLLA_MISSING_VARIABLES", _switch("error", "empty"), False),
        loglevel=read("KOLLA_LOGLEVEL", _loglevel, "info"),
        json_logs=read("KOLLA_LOG_FORMAT", _switch("text", "json"), False),
        run_dir=read("KOLLA_RUN_DIR", _run_dir, default_run_dir(os.getuid())),
        state_dir=read("KOLLA_STATE_DIR", _path, "/var/lib/kolla_mesos_start"),
        session_timeout=read("KOLLA_ZK_SESSION_TIMEOUT", _session_timeout, 10.0),
        connect_timeout=read("KOLLA_ZK_CONNECT_TIMEOUT", _limit, None),
        auth_file=auth_file or None,
        auth=auth,
        ca=ca,
        cert=cert,
        key=key,
        acl=read("KOLLA_ZK_ACL", _acl, (WORLD,)),
        termination_log=read("KOLLA_TERMINATION_LOG", _path, termination_log({})),
        environ=child_environ(environ, copy_once, _first_environ),
    )
    if variables.issues:
        error = BadEnvironment(
            re.sub(_NAME_OR_VALUE, lambda found: names.get(found[0], found[0]), issue)
            for issue in variables.issues
        )
        raise error.for_now() if variables.passing == len(variables.issues) else error
    return settings._replace(unknown=(*variables.unknown(), *variables.notes))


def child_environ(
    environ: Mapping[str, str], copy_once: bool, first_environ: Callable[[], str]
) -> dict[str, str]:
    """The environment for commands and daemon: the launcher's, without credentials and OF_MANAGER.

    In the C locale Python sets LC_CTYPE for itself (PEP 538); a daemon must not inherit that. Kolla's scripts
    need the config strategy.
    """
    hidden = {*CREDENTIALS, *OF_MANAGER, "LISTEN_PIDFDID"}
    kept = {name: value for name, value in environ.items() if name not in hidden}
    if kept.get("LC_CTYPE") in COERCED:
        del kept["LC_CTYPE"]
        entries = (entry.partition("=") for entry in first_environ().split("\0"))
        kept.update((name, value) for name, _, value in entries if name == "LC_CTYPE")
    return {**kept, "KOLLA_CONFIG_STRATEGY": "COPY_ONCE" if copy_once else "COPY_ALWAYS"}


def _first_environ() -> str:
    """The environment that this process was started with, before Python changed it; empty without /proc."""
    try:
        with open("/proc/self/environ", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def termination_log(environ: Mapping[str, str]) -> str | None:
    """The file that a failure is written to, or None. Read first: a bad environment is reported there too."""
    given = environ.get("KOLLA_TERMINATION_LOG")
    if given:
        return given if given.startswith("/") else None
    return TERMINATION_LOG if os.path.exists(TERMINATION_LOG) else None


class _Unexpected(Exception):
    """A value is not what was expected.

    With `hidden` the message does not show it: it may contain a secret. `number`: the errno because of which
    a file can't be read.
    """

    def __init__(self, expected: str, *, hidden: bool = False, number: int | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.hidden = hidden
        self.number = number


class _Variables:
    """The variables, read one by one; `issues` collects the errors, `passing` counts those that can pass."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.issues: list[str] = []
        self.passing = 0
        self.notes: list[str] = []
        self._asked: set[str] = set()

    def unknown(self) -> tuple[str, ...]:
        """A warning for each variable with our prefix that nobody has read, with the nearest name."""
        ours = {name for name in self.environ if name.startswith(PREFIX)}
        names = sorted(ours.difference(self._asked, {PREFIX + name for name in OF_OTHERS}, {OS_HOSTNAME}))
        if not names:
            return ()
        from kolla_mesos_start.definition.document import nearest  # A mistake pays for its import.

        known = {name for name in self._asked if name.startswith(PREFIX) and name != OS_HOSTNAME}
        return tuple(
            f"{name!r} is no variable of the agent{nearest(name, known)}"
            for name in names
            if not re.fullmatch(_OF_KUBERNETES, name)
        )

    def is_set(self, name: str) -> bool:
        """Whether the variable counts as set; the module's docstring explains empty ones."""
        self._asked.add(name)
        return bool(self.environ.get(name)) or (name in NEVER_EMPTY and name in self.environ)

    def read(
        self,
        names: str | Sequence[str],
        convert: Callable[[str], T],
        otherwise: T,
        *,
        required: bool = False,
    ) -> T:
        """The first of the variables that is set, converted; `otherwise` if none is, or its value is bad.

        If it is `required`, it is an issue if none is set.
        """
        names = (names,) if isinstance(names, str) else names
        name = self.first_set(names) or names[0]
        if not required and not self.is_set(name):
            return otherwise
        value = self.environ.get(name)
        found = "" if convert in _FREE else disguise(value or "")
        try:
            converted = convert(value or "")
            if not found:
                return converted
            bad = _Unexpected("another value", hidden=name in NEVER_EMPTY)
        except _Unexpected as error:
            bad = error
        subject = name if bad.hidden else f"{name} is {'not set' if value is None else repr(value)}"
        expected = bad.expected if found in bad.expected else f"{bad.expected}; it {found}"
        self.issues.append(f"{subject}: expected {expected}")
        self.passing += bad.number in PASSING
        return otherwise

    def foreign(self, name: str, convert: Callable[[str], T], otherwise: T) -> T:
        """Like `read`, for a variable that others may use for something else: then a note says so."""
        try:
            return convert(self.environ[name]) if self.is_set(name) else otherwise
        except _Unexpected as unexpected:
            self.notes.append(f"{name} is ignored, as it is not {unexpected.expected}; set KOLLA_{name}")
            return otherwise

    def first_set(self, names: Sequence[str]) -> str | None:
        """The name of the first variable that is set, or None."""
        return next(filter(self.is_set, names), None)


def _tls(variables: _Variables) -> tuple[str | None, str | None, str | None]:
    """The files of the CA, the client's certificate and its key, if they can be loaded together."""
    before = len(variables.issues)
    if variables.is_set("KOLLA_ZK_KEY") and not variables.is_set("KOLLA_ZK_CERT"):
        variables.issues.append("KOLLA_ZK_KEY is set, KOLLA_ZK_CERT is not: expected both or none")
    if variables.is_set("KOLLA_ZK_CERT") and not variables.is_set("KOLLA_ZK_CA"):
        # Without a CA the server would not be verified.
        variables.issues.append("KOLLA_ZK_CERT is set, KOLLA_ZK_CA is not: expected the CA of the ensemble")
    ca = variables.read("KOLLA_ZK_CA", _file, None)
    cert = variables.read("KOLLA_ZK_CERT", _file, None)
    key = variables.read("KOLLA_ZK_KEY", _file, None)
    if ca and len(variables.issues) == before:
        from kolla_mesos_start.zookeeper.tls import UnusableFiles, make_context

        try:
            make_context(ca, cert, key)  # Checked here, because connections would be retried for ever.
        except UnusableFiles as error:
            variables.issues.extend(error.issues)
    return ca, cert, key


# -- One function for each kind of value: it takes the text, and returns the value or raises _Unexpected. --

_SERVER = re.compile(r"(?P<host>\[(?P<ipv6>[^]]+)\]|[^]:[]+)(?::(?P<port>[0-9]{1,5}))?")
# ZooKeeper refuses these in paths. Ranges, because compiling a regular expression takes 1 ms.
_NOT_IN_ZNODES = (range(0x20), range(0x7F, 0xA0), range(0xD800, 0xF900), range(0xFFF0, 0x110000))


def _ensemble(text: str) -> tuple[str, str]:
    expected = "h1:2181,h2:2181[/chroot] or zk://h1:2181,h2:2181[/chroot], an IPv6 address in brackets"
    if "@" in text:
        raise _Unexpected(f"{expected}; credentials belong in KOLLA_ZK_AUTH_FILE", hidden=True)
    servers, slash, chroot = text.strip().removeprefix("zk://").partition("/")
    hosts = ",".join(_server(server.strip(), expected) for server in servers.split(","))
    if "," in chroot:
        raise _Unexpected(f"{expected}; write the chroot once, after the last server")
    return hosts, _znode(slash + chroot, f"{expected}; {slash + chroot!r} is no path of a znode")


def _server(text: str, expected: str) -> str:
    match = _SERVER.fullmatch(text)
    if not match:
        raise _Unexpected(f"{expected}; {text!r} is no server")
    host, ipv6, port = match["host"], match["ipv6"], int(match["port"] or ZOOKEEPER_PORT)
    if ipv6 and not is_ip(ipv6, socket.AF_INET6):
        raise _Unexpected(f"{expected}; {ipv6!r} is no IPv6 address")
    if not ipv6 and not is_host(host):
        raise _Unexpected(
            f"{expected}; {host!r} is no IPv4 address, and no name of ASCII letters, digits, - and _"
            " with 1 to 63 of them between two dots"
        )
    if not is_port(port):
        raise _Unexpected(f"{expected}; port {port} of {host!r} is not from 1 to 65535")
    return f"{host}:{port}"


def _znode(path: str, expected: str = "the absolute path of a znode, like /kolla") -> str:
    """The path without a slash at its end; the root is empty."""
    path = path[:-1] if path.endswith("/") else path
    root, *names = path.split("/")
    if root or not all(map(_is_znode_name, names)):
        raise _Unexpected(expected)
    _refuse_disguised(names, expected)
    return path


def _refuse_disguised(names: Sequence[str], expected: str) -> None:
    found = next(filter(None, map(disguise, names)), "")
    if found:
        raise _Unexpected(f"{expected}; a part of it {found}")


def _is_znode_name(name: str) -> bool:
    refused = any(ord(character) in codes for character in name for codes in _NOT_IN_ZNODES)
    return name not in ("", ".", "..") and not refused


def _app_id(text: str) -> tuple[str, str]:
    root, *names = text.split("/")
    expected = "/<deployment>/<service>, like /prod/openstack/keystone/keystone-api"
    if root or len(names) < 2 or not all(map(_is_znode_name, names)):
        raise _Unexpected(expected)
    _refuse_disguised(names, expected)
    deployment_id, *service = names
    # The tree uses these names itself: below each service, and below the deployment.
    if service[-1] in (*RESERVED, ".party") or service[0] in ("variables", "status"):
        reserved = _either(*RESERVED, ".party")
        raise _Unexpected(
            f"a service that doesn't end in {reserved} and doesn't begin with variables or status"
        )
    return deployment_id, "/".join(service)


def _checked(fits: Callable[[str], bool], expected: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if not fits(text):
            raise _Unexpected(expected)
        return text

    return convert


_address = _checked(
    lambda text: is_ip(text, socket.AF_INET6) or is_host(text),
    "an IP address (without brackets or a port) or a host name",
)
_interface = _checked(
    lambda text: not re.search(r"[/\s]", text) and len(os.fsencode(text)) <= INTERFACE_LIMIT,
    "the name of a network interface, like eth0",
)
_logs = _checked(
    lambda text: text.isprintable() and len(text) <= LOGS_LIMIT,
    f"a command or the path of a file, at most {LOGS_LIMIT} characters in one line, like podman logs"
    " site_nova-api",
)


def _host_name(text: str) -> str:
    expected = bad_host(text)
    if expected:
        raise _Unexpected(expected.removeprefix("expected "))
    return text


def _ports(text: str) -> tuple[int, ...]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,5}", number) and is_port(int(number)) for number in numbers):
        raise _Unexpected("port numbers from 1 to 65535, like 5000,35357")
    return tuple(map(int, numbers))


def _switch(off: str, on: str) -> Callable[[str], bool]:
    convert = _checked((off, on).__contains__, _either(off, on))
    return lambda text: convert(text) == on


def _either(*words: str) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _stop_signal(text: str) -> int:
    """As in an image's STOPSIGNAL: QUIT, SIGQUIT, 3, SIGRTMIN+3."""
    name = text.upper().removeprefix("SIG")
    above = re.fullmatch(r"(?:RTMIN\+)?([0-9]{1,2})", name)
    if above:
        number = int(above[1]) + (signal.SIGRTMIN if "+" in name else 0)
    else:
        number = signal.Signals.__members__.get(f"SIG{name}", 0)
    if number not in signal.valid_signals() - UNUSABLE_SIGNALS:
        raise _Unexpected("a signal that a process can handle, like QUIT, SIGQUIT, 3 or SIGRTMIN+3")
    return int(number)


def _loglevel(text: str) -> str:
    return _checked(LOGLEVELS.__contains__, _either(*LOGLEVELS))(text.lower())


def _limit(text: str) -> float | None:
    return _seconds(text, "seconds, or 0 for no limit") or None


def _session_timeout(text: str) -> float:
    expected = f"seconds (not milliseconds), more than 0 and at most {SESSION_TIMEOUT_LIMIT}"
    seconds = _seconds(text, expected)
    if not 0 < seconds <= SESSION_TIMEOUT_LIMIT:
        raise _Unexpected(expected)
    return seconds


def _seconds(text: str, expected: str) -> float:
    # float() would also accept nan, inf, 1e9 and 1_000.
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise _Unexpected(expected)
    return float(text)


def _path(text: str, *, hidden: bool = False) -> str:
    if not text.startswith("/"):
        raise _Unexpected("an absolute path", hidden=hidden)
    return os.path.normpath(text)


def _run_dir(text: str) -> str:
    expected = bad_run_dir(text)
    if expected:
        raise _Unexpected(expected)
    return os.path.normpath(text)


def _generation(text: str) -> str:
    expected = bad_generation(text) or unusable(text)
    if expected:
        raise _Unexpected(expected.removeprefix("expected "))
    return text


def _mesos_logs(name: str) -> str:
    """Only Mesos knows the name of a container that it starts."""
    return _logs(f"docker logs {name}")


def _directory(text: str) -> str:
    path = _path(text)
    _read(path, os.listdir, "a directory that this user can read")
    if not os.access(path, os.X_OK):
        raise _Unexpected("a directory that this user can enter")
    return path


def _file(text: str) -> str:
    path = _path(text, hidden=True)  # It may be the key itself, by mistake.
    _read(path, _first_byte, "a file that this user can read")
    return path


def _first_byte(path: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return file.read(1)


def _read(path: str, read: Callable[[str], T], expected: str) -> T:
    """What `read` returns."""
    try:
        return read(path)
    except OSError as error:
        from kolla_mesos_start.files.permissions import reading

        raise _Unexpected(f"{expected} ({reading(path, error)})", number=error.errno) from error


def _auth_file(text: str) -> tuple[str, tuple[identities.Credential, ...]]:
    from kolla_mesos_start.files.paths import read_regular

    path = _path(text, hidden=True)  # It may be the credential itself, by mistake.
    try:
        data = _read(path, read_regular, "a file that this user can read")
        return path, identities.credentials(data.decode())
    except UnicodeDecodeError as error:
        raise _Unexpected("a file of UTF-8 text") from error
    except ValueError as error:
        raise _Unexpected(str(error)) from error


def _acl(text: str) -> tuple[Acl, ...]:
    try:
        return identities.acl(text)
    except ValueError as error:
        raise _Unexpected(str(error), hidden=True) from error


_FREE = (_ensemble, _ports, _acl, _logs)  # They remove blanks themselves, or allow everything in a line.
