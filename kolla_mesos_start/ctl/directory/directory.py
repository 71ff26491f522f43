"""A directory that holds a deployment, as an operator keeps it under version control.

    DIR/
      variables/<name>                            a value for the whole deployment: the file's content,
                                                  a single line without the newline at its end
      variables.yml                               or all values in one file, as a mapping
      secrets.yml                                 variables whose values are generated: a mapping of
                                                  names to kinds, `password` or `fernet`
      services/<service>/
        definition.yml                            the command graph
        variables/<name>, variables.yml           values for this service
        variables/<host>/<name>                   values for this service on one host; in a
                                                  variables.yml a mapping under the host's name
        files/<name>                              content or template of one file
      launch.yml                                  where containers run: see `launch`; not published
      acl.yml                                     rights in ZooKeeper: see `acl`

`.yaml` and `.json` are allowed instead of `.yml`. Names that begin with a dot are ignored everywhere, and so
is everything else beside `services`. Below `services` unknown names are errors, because a misspelt name would
not be published. A link may lead to another place in the directory, but not out of it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kolla_mesos_start.ctl.directory import acl, formats, launch
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.directory.findings import (
    ERROR,
    WARNING,
    DataSource,
    Finding,
    Issue,
    Sources,
    from_parser,
    located,
)
from kolla_mesos_start.ctl.directory.launch import LaunchFile, with_instances
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.definition.strings import value_of
from kolla_mesos_start.errors import BadDefinition, BadUsage
from kolla_mesos_start.tree.znodes import RESERVED

Contents = Mapping[str, bytes]

DEFINITION = "definition"
VARIABLES = "variables"
SECRETS = "secrets"
FILES = "files"
# In `services` while `kolla_mesos_ctl import` writes the directory.
UNFINISHED_IMPORT = "unfinished-import.json"
_LEFTOVER = re.compile(
    r"#.*#|.*(~|\.(orig|rej|bak|sw[a-p]|rpm(save|new|orig)|dpkg-(old|dist|new|bak|tmp)|ucf-(old|dist|new)))"
)
# The kinds of secrets.
PASSWORD, FERNET, UUID, GIVEN = "password", "fernet", "uuid", "given"
KINDS = (PASSWORD, FERNET, UUID, GIVEN)
# The names that are read in the directory itself.
TOP = ("services", *(f"{name}.yml" for name in (VARIABLES, launch.NAME, SECRETS, acl.FILE)), VARIABLES)
# bytes. A server drops the connection on a larger request (its jute.maxbuffer), which looks like an outage.
MAX_DATA = 1_000_000
# The names that are read in the directory of a service.
KNOWN = (f"{DEFINITION}.yml", f"{VARIABLES}.yml", VARIABLES, FILES)
UNKNOWN = "unknown name: expected definition.yml, variables.yml, variables/ or files/"
OF_HOST = "values for one host belong to a service"
NO_NAME = "a znode can't have this name: expected printable characters"


class Values(NamedTuple):
    """Variables by name, and those of single hosts by host and name."""

    own: Contents
    hosts: Mapping[str, Contents]


class Service(NamedTuple):
    """One service: `definition` is its JSON, `source` the file that it comes from."""

    name: str
    source: str
    definition: bytes
    variables: Values
    files: Contents


class Deployment(NamedTuple):
    """The content of a directory. `left_out` are names beside `services` that have no meaning.

    `sources` has the origin of each znode's data, by its path below the deployment. `unread` are services
    some of whose variables or files could not be read; an empty name is the deployment itself. `launch` is
    launch.yml, which also sets the number of containers in definitions if there is one on each host.
    `secrets` are the kinds of generated variables. `acl` is acl.yml.
    """

    variables: Contents
    services: Sequence[Service]
    left_out: Sequence[str]
    sources: Sources = MappingProxyType({})
    unread: Set[str] = frozenset()
    launch: LaunchFile = LaunchFile()
    secrets: Mapping[str, str] = MappingProxyType({})
    acl: Plan | None = None


def read(root: Path) -> Deployment:
    """Read the directory. Raises BadDefinition with everything that can't be read."""
    deployment, findings = look(root)
    errors = [f"{each.file}: {each.message}" for each in findings if each.severity == ERROR]
    if errors:
        raise BadDefinition(errors)
    return deployment


def look(root: Path) -> tuple[Deployment, Sequence[Finding]]:
    """Read the directory; also returns findings about what can't be read. Unreadable definitions are empty.

    BadUsage for a link that leads out of it: the result must not depend on who publishes, or contain a file
    that only they may read.
    """
    reading = _DirectoryPass(root)
    return reading.deployment(), [*reading.findings, *reading.leftovers.values()]


def nodes(deployment: Deployment) -> dict[str, bytes]:
    """Every znode except definitions, by its path below the deployment."""
    found = _under(VARIABLES, deployment.variables)
    for service in deployment.services:
        found.update(_under(f"{service.name}/{VARIABLES}", service.variables.own))
        for host, values in service.variables.hosts.items():
            found.update(_under(f"{service.name}/{VARIABLES}/{host}", values))
        found.update(_under(f"{service.name}/{FILES}", service.files))
    return found


def definitions(deployment: Deployment) -> dict[str, bytes]:
    return {service.name: service.definition for service in deployment.services}


def too_large(data: bytes) -> str:
    """Why a znode can't contain the data."""
    return f"{len(data)} bytes are more than ZooKeeper allows ({MAX_DATA})"


def _under(parent: str, contents: Contents) -> dict[str, bytes]:
    return {f"{parent}/{name}": data for name, data in contents.items()}


class _DirectoryPass:
    """One pass over the directory. It continues after a mistake, to report all of them together."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.findings: list[Finding] = []
        self.sources: dict[str, DataSource] = {}
        self.unread: set[str] = set()
        self.leftovers: dict[Path, Finding] = {}

    def deployment(self) -> Deployment:
        variables = self.variables(self.root)
        secrets = self.secrets(variables.own)
        services = tuple(self.services(self.root / "services"))
        launched = self.launched([service.name for service in services])
        plan = self.plan()
        left_out = tuple(self.left_out())
        if not services and not variables.own and not self.findings:
            self.findings.append(Finding(ERROR, str(self.root), None, "holds neither services nor variables"))
        return Deployment(
            variables.own,
            tuple(_on_each(service, launched) for service in services),
            left_out,
            self.sources,
            unread=self.unread,
            launch=launched,
            secrets=secrets,
            acl=plan,
        )

    def wrong(self, path: Path, what: str, label: str = "") -> None:
        place = formats.places(path.read_bytes()).get(label) if label else None
        self.findings.append(Finding(ERROR, self.relative(path), place and place.line, what))

    def unreadable(self, path: Path, error: BadDefinition) -> None:
        self.findings += (from_parser(self.relative(path), issue) for issue in error.issues)

    def mapping(self, path: Path) -> Mapping[str, object] | None:
        """The content of a file; None if it can't be read, which is reported."""
        try:
            return formats.values(path)
        except BadDefinition as error:
            self.unreadable(path, error)
            return None

    def values(self, path: Path) -> Mapping[str, object]:
        """The values in a file, of a service or of the deployment."""
        found = self.mapping(path)
        if found is None:
            self.unread.add(self.node(path.parent).rstrip("/"))
        return found or {}

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def node(self, directory: Path) -> str:
        """The path below the deployment that belongs to this directory, with / at its end."""
        names = directory.relative_to(self.root).parts
        return "".join(f"{name}/" for name in names[names[:1] == ("services",) :])

    def entries(self, directory: Path) -> list[Path]:
        """The files and directories in a directory, sorted by name; none if it does not exist."""
        if not directory.is_dir():
            return []
        try:
            found = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
        except OSError as error:
            self.wrong(directory, f"can't be read: {error.strerror}")
            return []
        for path in found:
            if _LEFTOVER.fullmatch(path.name):
                what = "left out: an editor, a merge or a package has made it; rename it to publish it"
                self.leftovers[path] = Finding(WARNING, self.relative(path), None, what)
        found = [path for path in found if path not in self.leftovers]
        for path in found:
            if path.is_symlink() and (directory != self.root or _has_meaning(path)):
                self.follow(path)
        return found

    def follow(self, link: Path) -> None:
        """Raise BadUsage if a link leads out of the directory, or to a directory above itself."""
        formats.check_link(link, self.root)
        target = os.path.realpath(link)
        if target in map(os.path.realpath, link.parents):
            raise BadUsage(f"{link} is a link to {target}, which contains it: remove it")

    # -- the directory itself ---------------------------------------------------------------------

    def left_out(self) -> Iterator[str]:
        for path in self.entries(self.root):
            if not _has_meaning(path):
                meant = difflib.get_close_matches(path.name, TOP, n=1, cutoff=0.85)
                if meant and not (self.root / meant[0]).exists():
                    self.wrong(path, f"unknown name, so it is ignored; nearest is {meant[0]!r}")
                yield path.name

    def only(self, stem: str) -> Path | None:
        """The file with this name in one of the formats, None if there is none."""
        found = [path for path in self.entries(self.root) if formats.is_file(stem, path)]
        for other in found[1:]:
            self.wrong(other, f"{found[0].name} exists too: keep one of them")
        return found[0] if found else None

    def launched(self, services: Sequence[str]) -> LaunchFile:
        """Where the containers of these services run."""
        path = self.only(launch.NAME)
        content = self.mapping(path) if path else None
        if path is None or content is None:
            return LaunchFile()
        try:
            content = launch.with_types(content, formats.typed(path))
        except BadDefinition as error:
            self.unreadable(path, error)
            return LaunchFile()
        source = DataSource(self.relative(path), read=path.read_bytes)
        found, findings = launch.parse(content, source, services)
        self.findings += findings
        return found

    def plan(self) -> Plan | None:
        """The identities and rights of acl.yml; None if there is none."""
        path = self.only(acl.FILE)
        content = self.mapping(path) if path else None
        if path is None or content is None:
            return None
        self.sources[acl.NODE] = DataSource(path.name, read=path.read_bytes)
        plan, issues = acl.parse(content)
        wrong = (Issue(ERROR, acl.NODE, f"{label}: {issue}", label) for label, issue in issues)
        self.findings += located(wrong, self.sources)
        return plan

    # -- services ---------------------------------------------------------------------------------

    def services(self, directory: Path) -> Iterator[Service]:
        """The services at and below a directory. The name of a service is its path below `services`."""
        is_top = directory.parent == self.root
        definitions, unknown = [], False
        for path in self.entries(directory):
            if is_top and path.name == UNFINISHED_IMPORT:
                self.wrong(path, "an import was interrupted: run it again")
            elif not is_top and formats.is_file(DEFINITION, path):
                definitions.append(path)
            elif not is_top and (path.name == FILES or _is_variables(path)):
                continue  # read below, with the definition
            elif not path.is_dir():
                unknown = True
                near = nearest(path.name, KNOWN)
                what = "expected a directory, a part of a service's name" if is_top else f"{UNKNOWN}{near}"
                self.wrong(path, what)
            elif path.name in RESERVED:
                self.wrong(path, f"no service can have {path.name} in its name")
            elif self.is_name(path):
                yield from self.services(path)
        if len(definitions) == 1:
            yield self.service(directory, definitions[0])
        elif definitions:
            self.wrong(directory, f"expected one definition, found {', '.join(p.name for p in definitions)}")
        elif is_top or unknown:
            pass  # The definition may be among them.
        elif (directory / FILES).is_dir() or any(map(_is_variables, self.entries(directory))):
            self.wrong(directory, "expected a definition.yml beside its variables and files")

    def service(self, directory: Path, path: Path) -> Service:
        try:
            data = formats.definition(path)
        except BadDefinition as error:
            data = b""
            self.unreadable(path, error)
        name = directory.relative_to(self.root / "services").as_posix()
        self.sources[name] = DataSource(self.relative(path), read=path.read_bytes)
        return Service(
            name=name,
            source=self.relative(path),
            definition=self.checked(path, data),
            variables=self.variables(directory),
            files=self.files(directory / FILES),
        )

    def files(self, directory: Path) -> Contents:
        contents = {}
        for path in self.entries(directory):
            data = None
            if path.is_dir():
                what = "a directory: the name of a file has no /; its `dest` is where it is written"
                self.wrong(path, what)
            elif not self.is_name(path):
                continue
            else:
                data = self.read(path)
            if data is None:
                self.unread.add(self.node(directory.parent).rstrip("/"))
            contents[path.name] = self.checked(path, data or b"")  # Do not report it as missing too.
        return contents

    def read(self, path: Path) -> bytes | None:
        """The content of the file of a znode; None if it can't be read, which is reported."""
        self.sources[self.node(path.parent) + path.name] = DataSource(self.relative(path))
        try:
            return formats.read(path)
        except BadDefinition as error:
            self.unreadable(path, error)
            return None

    # -- variables --------------------------------------------------------------------------------

    def variables(self, directory: Path) -> Values:
        """The variables of a service or the deployment, from a directory, a file, or both."""
        own: dict[str, bytes] = {}
        hosts: dict[str, dict[str, bytes]] = {}
        for path in filter(_is_variables, self.entries(directory)):
            is_file = path.name != VARIABLES
            found = self.variables_file(path) if is_file else self.variables_directory(path)
            self.join(path, own, found.own)
            for host, values in found.hosts.items():
                self.join(path, hosts.setdefault(host, {}), values)
        return Values(own, hosts)

    def join(self, path: Path, known: dict[str, bytes], more: Contents) -> None:
        for name in sorted(known.keys() & more.keys()):
            self.wrong(path, f"{name} has a value in another file too", "" if path.is_dir() else name)
        known.update(more)

    def variables_directory(self, directory: Path, *, is_of_host: bool = False) -> Values:
        own: dict[str, bytes] = {}
        hosts: dict[str, Contents] = {}
        for path in self.entries(directory):
            if is_of_host and path.is_dir():
                self.wrong(path, "a directory: the name of a variable has no /")
            elif not self.is_name(path):
                continue
            elif path.is_dir() and directory.parent == self.root:
                self.wrong(path, f"a directory: {OF_HOST}")
            elif path.is_dir():
                hosts[path.name] = self.variables_directory(path, is_of_host=True).own
            else:
                value = value_of(self.read(path) or b"")
                try:
                    value.decode()
                except UnicodeDecodeError as error:
                    self.wrong(path, f"not UTF-8 text (byte {error.start})")
                own[path.name] = self.checked(path, value)
        return Values(own, hosts)

    def variables_file(self, path: Path) -> Values:
        content, node = self.values(path), f"{self.node(path.parent)}{VARIABLES}/"
        hosts = {name: value for name, value in content.items() if isinstance(value, dict)}
        if path.parent == self.root:
            for host in hosts:
                self.wrong(path, f"{host}: expected a single value: {OF_HOST}", host)
        own = {name: value for name, value in content.items() if name not in hosts}
        return Values(
            self.texts(path, "", own, node),
            {host: self.texts(path, f"{host}.", values, f"{node}{host}/") for host, values in hosts.items()},
        )

    def texts(self, path: Path, prefix: str, values: Mapping[str, object], node: str) -> Contents:
        contents = {}
        for name, value in values.items():
            text, label = formats.text(value), f"{prefix}{name}"
            self.sources[node + name] = DataSource(self.relative(path), label, path.read_bytes)
            if text is None:
                self.wrong(path, f"{label}: expected a single value, found a list or a mapping", label)
            elif not is_znode_name(name):
                self.wrong(path, f"{label}: {NO_NAME}", label)
            else:
                # The agent would refuse a lone surrogate, which JSON can contain.
                contents[name] = self.checked(path, text.encode(errors="replace"), f"{prefix}{name}: ")
        return contents

    # -- secrets ----------------------------------------------------------------------------------

    def secrets(self, variables: Contents) -> Mapping[str, str]:
        """The kind of each secret. A wrong kind is never shown: it may be a value."""
        found: dict[str, str] = {}
        for path in (path for path in self.entries(self.root) if formats.is_file(SECRETS, path)):
            for name, kind in self.values(path).items():
                what = self.wrong_secret(name, kind, variables, found)
                if what:
                    self.wrong(path, f"{name}: {what}", name)
                else:
                    self.sources[f"{VARIABLES}/{name}"] = DataSource(path.name, name, path.read_bytes)
                found[name] = str(kind) if kind in KINDS else PASSWORD  # Do not report it as missing too.
        return found

    def wrong_secret(self, name: str, kind: object, variables: Contents, known: Container[str]) -> str:
        """Why a line of the file is wrong; empty if it is right."""
        if not is_znode_name(name):
            return NO_NAME
        if name in variables:
            return f"it has a value in {self.sources[f'{VARIABLES}/{name}'].file} too: keep one of the two"
        if name in known:
            return "it is in another file too: keep one of the two"
        if kind in KINDS:
            return ""
        kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        what = f"unknown kind{nearest(str(kind), KINDS)}"
        return f"{what}: {SECRETS}.yml names the kind of each secret ({kinds}), not its value"

    # -- names and sizes of znodes ----------------------------------------------------------------

    def is_name(self, path: Path) -> bool:
        if not is_znode_name(path.name):
            self.wrong(path, NO_NAME)
        return is_znode_name(path.name)

    def checked(self, path: Path, data: bytes, label: str = "") -> bytes:
        if len(data) > MAX_DATA:
            self.wrong(path, f"{label}{too_large(data)}")
        return data


def _has_meaning(path: Path) -> bool:
    """Whether anything is read from this entry of the directory itself."""
    is_own = any(formats.is_file(name, path) for name in (launch.NAME, SECRETS, acl.FILE))
    return is_own or path.name == "services" or _is_variables(path)


def _is_variables(path: Path) -> bool:
    if path.name == VARIABLES:
        return path.is_dir()
    return formats.is_file(VARIABLES, path)


def _on_each(service: Service, launched: LaunchFile) -> Service:
    """The service, with the number of its hosts if it has one container on each of them."""
    if not launched.is_on_each(service.name):
        return service
    count = len(launched.hosts_of(service.name))
    return service._replace(definition=with_instances(service.definition, count))


def is_znode_name(name: str) -> bool:
    """Whether a service, a variable or a file can have this name."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()
