"""The containers of a deployment, as every launcher has to start them.

There is one record for each service or task, made from its definition and `launch.yml`. Mistakes are
collected as findings, not raised. The formats read only these records.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.directory import launch
from kolla_mesos_start.ctl.directory.container_settings import (
    ARCHIVE,
    EACH,
    FROM_HOST,
    HOST,
    IMAGE,
    NAMED,
    NO_REFERENCE,
    OWN,
    PORT,
    REFERENCE,
    SCALED,
    SHARED,
    TEMPORARY,
    ContainerSettings,
    Port,
    Volume,
    bad_place,
    port_of,
)
from kolla_mesos_start.ctl.directory.directory import Deployment, Service
from kolla_mesos_start.ctl.directory.findings import ERROR, WARNING, Finding, Issue, located
from kolla_mesos_start.ctl.directory.launch import NAME, LaunchFile
from kolla_mesos_start.ctl.validate.rules import (
    build_graph,
    known_graph,
    missing_in,
    rendered,
)
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.definition.strings import Text, unusable
from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.tree.znodes import Znodes

LONGEST_VARIABLE = (128 << 10) - 1  # bytes of NAME=value, Linux's limit
PROGRAM = "kolla_mesos_start"
SANDBOX = "/mnt/mesos/sandbox"  # where Mesos unpacks archives
TERM = "TERM"  # the stop signal
# Where a launcher mounts the secrets.
VARIABLES_DIR, CREDENTIAL_DIR = "/etc/kolla-variables", "/etc/kolla-zookeeper"
CREDENTIAL = "auth"  # the file in the second
# The directories of a host that the operator has to provide: one for each secret, mounted files, and data.
SECRETS, FILES, DATA = "/etc/kolla-secrets", "/etc/kolla-files", "/var/lib/kolla"
# Where the agent writes, by the variables that name it. An image that has the agent has these directories.
STATE = "KOLLA_STATE_DIR"
WRITTEN = {"KOLLA_RUN_DIR": "/run/kolla_mesos_start", STATE: "/var/lib/kolla_mesos_start"}
# Any user can make it, in the container's own layer.
OWN_STATE = "/tmp/kolla_mesos_start"
# Exit statuses after which another attempt can't help, and those that are no failure of the command.
FINAL = (64, 65, 70, 73, 76, 77, 78, 126, 127)
UNAVAILABLE = (69, 75)
# The end of a note about other existing files: only the operator knows where they come from.
FOREIGN = "which is not part of this deployment: remove it if it once was"
DIGITS = 6  # of a digest
LONGEST = 52  # letters; a StatefulSet's name and a revision have to fit into a label
MARGIN = 5  # seconds that a container has beyond its longest stop_grace


class Mounted(NamedTuple):
    """A file that the launcher mounts at `path`. `content` is None if the directory does not contain it."""

    name: str
    path: str
    content: bytes | None


class Workload(NamedTuple):
    """The containers of one service, which are all alike.

    `name` is the service's own one in the deployment, as launchers take it. `hosts` are those it may run on,
    any if there are none. A task ends once its commands are done.
    `generations` are those of its one-time commands. `drain`: seconds that a daemon serves on as it drains.
    If it `elects`, its containers are the members of a cluster. `env` holds all that the agent needs, but
    where the secrets are mounted. Where launch.yml names no network it is the launcher's usual one. `agent`
    is mounted; None: the image has it.
    """

    service: str
    name: str
    project: str
    is_task: bool
    image: str
    env: Mapping[str, str]
    replicas: int
    hosts: Sequence[str]
    generations: Sequence[str]
    stop_grace: float
    drains: bool
    drain: float
    ports: Sequence[Port]
    mounted: Sequence[Mounted]
    elects: bool
    settings: ContainerSettings
    agent: Volume | None = None

    @property
    def argv(self) -> Sequence[str]:
        """The command that starts the agent."""
        if self.agent is None:
            return [PROGRAM]
        place = f"{SANDBOX}/{PROGRAM}" if self.agent.kind == ARCHIVE else self.agent.path
        return [f"{place}/bin/{PROGRAM}"]

    @property
    def ready(self) -> Sequence[str]:
        """The probe of readiness."""
        return [*self.argv, "health", "--ready"]

    @property
    def stop(self) -> Sequence[str]:
        """The hook that drains a daemon before the launcher stops it."""
        return [*self.argv, "stop", "--no-term"]

    @property
    def is_each(self) -> bool:
        """Whether it has one on each of its hosts."""
        return self.settings.replicas == EACH

    @property
    def is_scaled(self) -> bool:
        """Whether Kubernetes determines the number of containers: an autoscaler, or `kubectl scale`."""
        return self.settings.replicas == SCALED

    @property
    def on_host_network(self) -> bool:
        return self.settings.network == HOST

    @property
    def on_own_network(self) -> bool:
        return self.settings.network == OWN

    @property
    def volumes(self) -> Sequence[Volume]:
        return self.settings.volumes or ()

    @property
    def stop_signal(self) -> str:
        return self.settings.stop_signal or TERM

    @property
    def instances(self) -> int:
        """How many containers it has."""
        return len(self.hosts) if self.is_each else self.replicas

    def of_kind(self, kind: str) -> Sequence[Volume]:
        """Its volumes of this kind."""
        return [volume for volume in self.volumes if volume.kind == kind]

    def place(self, volume: Volume) -> str:
        """The directory of the host that is a volume, for launchers without volumes of their own."""
        if volume.kind == SHARED:
            return f"{DATA}/{self.project}/shared/{volume.source}"
        if volume.kind == NAMED:
            return f"{DATA}/{self.project}/{NAMED}/{volume.source}"
        return volume.source or f"{DATA}/{self.project}/{self.name}{volume.path}"

    @property
    def directories(self) -> Sequence[Volume]:
        """The volumes of launch.yml, a mounted agent, and where it writes if the image has no place."""
        found = list(self.volumes)
        if self.agent and self.agent.kind != ARCHIVE:  # Mesos mounts its sandbox itself.
            found.append(self.agent)
        written: list[str] = []
        if self.agent or self.settings.read_only:
            written += (self.env.get(name) or path for name, path in WRITTEN.items() if self.mounts(name))
        if self.settings.read_only:
            written.append("/tmp")
        places = {each.path for each in found if not each.read_only}
        for path in written:
            # Another one is enough for both; as a mount, it would have the mode that the launcher gives it.
            if not is_within(path, {*places, *written} - {path} | places):
                found.append(Volume(path, TEMPORARY))
        return found

    def mounts(self, variable: str) -> bool:
        """Whether the directory is mounted, which `variable` names.

        With COPY_ONCE the state must last as long as the files that it is about: they are in the container's
        own layer, and a volume would outlive it, or be emptied before.
        """
        keeps_files = self.env.get("KOLLA_CONFIG_STRATEGY") == "COPY_ONCE" and not self.settings.read_only
        return not (variable == STATE and keeps_files)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The names of the mounted secrets, by their paths."""
        found = {VARIABLES_DIR: self.settings.variables, CREDENTIAL_DIR: self.settings.credential}
        return {path: name for path, name in found.items() if name}

    @property
    def environ(self) -> Mapping[str, str]:
        """`env` and the paths of the secrets. Values of launch.yml take precedence."""
        places = {}
        if self.agent and not self.mounts(STATE):
            places[STATE] = OWN_STATE
        if self.settings.variables:
            places["KOLLA_VARIABLES_DIR"] = VARIABLES_DIR
        if self.settings.credential:
            places["KOLLA_ZK_AUTH_FILE"] = f"{CREDENTIAL_DIR}/{CREDENTIAL}"
        return {**self.env, **{name: value for name, value in places.items() if name not in self.env}}

    @property
    def needs_hook(self) -> bool:
        """Whether the launcher must drain it before SIGTERM; in supervise mode the agent does so itself."""
        return self.drains and self.env.get("KOLLA_START_MODE") != "supervise"

    @property
    def liveness(self) -> Sequence[str]:
        """The probe after whose failure the launcher restarts a container. A failed check is no reason."""
        limit = self.settings.start_timeout
        return [*self.argv, "health", *(() if limit is None else ("--started", str(limit)))]

    @property
    def grace(self) -> int:
        """Seconds between the stop signal and SIGKILL."""
        return int(self.stop_grace + MARGIN)


class Model(NamedTuple):
    """A whole deployment, its workloads by the names of their services."""

    deployment: str
    workloads: Sequence[Workload]


class Manifests(NamedTuple):
    """What a format makes: files by name, and lines that say what only the operator can make.

    `whole`: all files in one document; by default they are concatenated.
    """

    files: Mapping[str, str]
    notes: Sequence[str]
    whole: str = ""


class Site(NamedTuple):
    """What the command line says: the deployment's name, the agent's prefix, variables of containers.

    `hidden` are the names of variables that no manifest may hold.
    """

    deployment: str
    prefix: str | None = None
    given: Mapping[str, str] = MappingProxyType({})
    hidden: Set[str] = frozenset()


def filled(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without empty values: None, and empty lists and mappings."""
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def engine_options(workload: Workload) -> Iterator[tuple[str, str]]:
    """What it may do on its host: options of `docker run` and `podman run`, without --, with their values."""
    settings = workload.settings
    if settings.user is not None:
        yield "user", str(settings.user)
    if settings.privileged:
        yield "privileged", "true"
    else:
        yield "cap-drop", "ALL"
        yield from (("cap-add", name) for name in settings.capabilities or ())
    if settings.is_confined:
        yield "security-opt", "no-new-privileges"
    yield from (("security-opt", option) for option in settings.security_options or ())
    yield from (("device", device) for device in settings.devices or ())
    for namespace in settings.namespaces:
        yield "cgroupns" if namespace == "cgroup" else namespace, HOST
    yield from (("ulimit", f"{name}={limit}") for name, limit in (settings.limits or {}).items())
    yield "stop-signal", f"SIG{workload.stop_signal}"  # otherwise the image's own
    if settings.read_only:
        yield "read-only", "true"


def needs(workload: Workload, files: Mapping[str, str]) -> Iterator[str]:
    """What hosts have to have for it, if a launcher mounts their directories. `files`: where, by path."""
    for path, name in workload.secrets.items():
        place, what = f"{SECRETS}/{name}", "with a file for each variable (KOLLA_VARIABLES_DIR)"
        if path == CREDENTIAL_DIR:
            place, what = f"{place}/{CREDENTIAL}", "with lines scheme:credential (KOLLA_ZK_AUTH_FILE)"
        yield f"make {place} {what}, which the containers' users can read"
    for volume in workload.of_kind(SHARED):
        yield f"mount what is shared at {workload.place(volume)}, for its users to write"
    if workload.agent and workload.agent.kind == FROM_HOST:
        yield f"make {workload.agent.source}, the agent, with bin/agent-directory"
    if workload.agent and workload.agent.kind == IMAGE:
        yield f"pull {workload.agent.source}, the agent: podman does not pull images that it mounts"
    for file in workload.mounted:
        missing = ", which DIR does not have," if file.content is None else ""
        yield f"put {file.name} of {workload.service}{missing} at {files[file.path]}"


def on_hosts(found: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Notes of what is needed, once for all hosts that need it."""
    hosts: dict[str, dict[str, None]] = {}
    for host, what in found:
        hosts.setdefault(what, {})[host] = None
    return [f"on {', '.join(sorted(on))}: {what}" for what, on in hosts.items()]


def build(deployment: Deployment, site: Site) -> tuple[Model, Sequence[Finding]]:
    """The model, and the errors in launch.yml. The definitions must be valid."""
    launch = deployment.launch
    source = launch.source if launch.source.file else launch.source._replace(file="launch.yml")
    sources = {**deployment.sources, NAME: source}
    if not (launch.zookeeper or launch.services) and launch.defaults == ContainerSettings():
        what = (
            "is missing or empty: `zookeeper` and each service's `image` are required; see manifests --help"
        )
        return Model(site.deployment, ()), located([Issue(ERROR, NAME, what)], sources)
    issues: list[Issue] = []
    agent = launch.agent.source if launch.agent and launch.agent.kind == IMAGE else ""
    reference = REFERENCE.fullmatch(agent)
    if reference and not (reference["tag"] or reference["digest"]):
        what = f"agent: {agent} has no tag: each host takes what is `latest` there"
        issues.append(Issue(WARNING, NAME, what, "agent"))
    if not launch.zookeeper:
        what = "zookeeper: is required: h1:2181,h2:2181 as the containers reach them"
        issues.append(Issue(ERROR, NAME, what))
    services = sorted(deployment.services)
    names = names_of(each.name for each in services)
    workloads = [
        _WorkloadReader(issues, deployment, site, service).workload(names[service.name])
        for service in services
    ]
    return Model(site.deployment, workloads), located(issues, sources)


class _WorkloadReader:
    """Makes the workload of one service."""

    def __init__(self, issues: list[Issue], deployment: Deployment, site: Site, service: Service) -> None:
        self.issues, self.site, self.service = issues, site, service
        self.launch: LaunchFile = deployment.launch
        self.settings: ContainerSettings = self.launch.of(service.name)
        self.tag = self.launch.tag_of(service.name)
        values = {**deployment.variables, **service.variables.own}
        texts = {name: data.decode() for name, data in values.items()}
        # For templates.
        self.known = Znodes("", site.deployment, service.name, ""), {**texts, **site.given}

    def workload(self, name: str) -> Workload:
        document = load(self.service.definition)
        graph = build_graph(document, *self.known) or known_graph(document, *self.known)
        ports = self.ports()
        # Each once.
        mounted = {
            file.mounted: file.name for step in graph.all_commands for file in step.files if file.mounted
        }
        replicas = launch.wanted_instances(document.root, lambda text: rendered(text, *self.known))
        found = Workload(
            service=self.service.name,
            name=name,
            project=name_of(self.site.deployment),
            is_task=graph.daemon is None,
            image=self.image(),
            env=self.env(graph, ports),
            replicas=1 if replicas is None else replicas,
            hosts=self.launch.hosts_of(self.service.name),
            generations=sorted({each.generation for each in graph.all_commands if each.generation}),
            stop_grace=max((step.stop_seconds for step in graph.all_commands), default=0),
            drains=bool(graph.daemon and graph.daemon.drains),
            drain=(graph.daemon and graph.daemon.drain) or 0,
            ports=ports,
            mounted=[
                Mounted(name, path, self.service.files.get(name)) for path, name in sorted(mounted.items())
            ],
            elects=bool(graph.daemon and graph.daemon.election),
            settings=self.settings,
            agent=self.launch.agent,
        )
        self.check_places(found)
        return found

    def check_places(self, workload: Workload) -> None:
        """Check that each path is mounted once and contains no separator of a runtime."""
        if workload.agent:
            self.check_agent(workload, workload.agent.path)
        volumes = [each.path for each in workload.directories]
        if any(each.source == "/" for each in workload.volumes):
            what = f"volumes: {workload.service} has the whole file system of its host"
            label = self.launch.label(self.service.name, "volumes")
            self.issues.append(Issue(WARNING, NAME, what, label))
        for path in workload.secrets.keys() & set(volumes):
            self.wrong("volumes", f"{path} is where {workload.service} has a secret: choose another path")
        for file in workload.mounted:
            what = f"files.{file.name}.mounted: "
            if bad_place(file.path) or bad_place(f"/{file.name}"):
                what += "expected an absolute path, and the name of a file, without colon, \\ and .."
            elif posixpath.dirname(file.path) in (*volumes, *workload.secrets):
                what += "something else is mounted at its directory: choose another one"
            else:
                continue
            self.issues.append(Issue(ERROR, self.service.name, what))

    def check_agent(self, workload: Workload, place: str) -> None:
        """Check that nothing else is in the directory of a mounted agent, and that it can have its own."""
        for volume in workload.volumes:
            if is_within(volume.path, [place]):
                what = f"{volume.path} is in {place}, where the agent is mounted: choose another path"
                self.wrong("volumes", what)
        for name in WRITTEN:
            own = workload.env.get(name)
            if own and (bad_place(own) or is_within(own, [place])):
                what = f"expected an absolute path outside of {place}, found {own!r}"
                self.wrong("env", f"{name} of {workload.service}: {what}")

    def image(self) -> str:
        if self.settings.image is None:
            what = f"image: is required: {self.service.name} has none, nor has `defaults`"
            self.issues.append(Issue(ERROR, NAME, what, f"services.{self.service.name}"))
            return ""
        image = self.rendered("image", self.settings.image)
        reference = REFERENCE.fullmatch(image or "")
        if reference is None:
            if image is not None:
                self.wrong("image", f"{NO_REFERENCE}, found {image!r}")
        elif not (reference["tag"] or reference["digest"]):
            what = f"image: {image} of {self.service.name} has no tag: each host takes what is `latest` there"
            label = self.launch.label(self.service.name, "image")
            self.issues.append(Issue(WARNING, NAME, what, label))
        return image or ""

    def ports(self) -> Sequence[Port]:
        found: list[Port] = []
        for text in self.settings.ports or ():
            value = self.rendered("ports", text)
            if value is None:
                continue
            port = port_of(value)
            if not port:
                self.wrong("ports", f"expected {PORT}, but {text} is {value!r} for {self.service.name}")
            elif port in found:
                self.wrong("ports", f"{port} is here twice, for {self.service.name}")
            else:
                found.append(port)
        return found

    def env(self, graph: Graph, ports: Sequence[Port]) -> Mapping[str, str]:
        on_change = graph.daemon and graph.daemon.on_change
        # Its parent has to restart it after a change.
        is_restarted = bool(on_change and on_change.kind == "restart")
        own = {
            "KOLLA_ZK_HOSTS": self.launch.zookeeper,
            "KOLLA_SYSTEM_PREFIX": self.site.prefix,
            "KOLLA_APP_ID": f"/{self.site.deployment}/{self.service.name}",
            "KOLLA_GENERATION": self.tag,
            "KOLLA_PORTS": ",".join(dict.fromkeys(str(port.number) for port in ports)),
            "KOLLA_START_MODE": "supervise" if is_restarted else None,
            "KOLLA_STOP_SIGNAL": None if self.settings.stop_signal == TERM else self.settings.stop_signal,
        }
        given = {name: self.value(name, text) for name, text in (self.settings.env or {}).items()}
        return {**{name: value for name, value in own.items() if value}, **given}

    def value(self, name: str, text: str) -> str:
        """The rendered value of an environment variable."""
        value = self.rendered("env", text) or ""
        wrong = unusable(value)
        if not wrong and len(f"{name}={value}".encode()) > LONGEST_VARIABLE:
            wrong = "no process can be given so much: 128 KiB are the limit"
        if wrong:
            self.wrong("env", f"{name} of {self.service.name}: {wrong}")
        return value

    def rendered(self, key: str, text: str) -> str | None:
        """A rendered template of launch.yml, with the variables, `tag` and `role`; None after an error."""
        znodes, variables = self.known
        own = {
            "role": self.service.name.rpartition("/")[2],
            **({"tag": self.tag} if self.tag else {}),
        }
        template, known = Text(text, text), {**variables, **own}
        shown = {name: value for name, value in known.items() if name not in self.site.hidden}
        try:
            missing = missing_in(template, znodes, known)
            if missing:
                nor = ", nor has launch.yml a `tag`" if "'tag'" in missing else ""
                self.wrong(key, f"{self.service.name} has no variable {missing}{nor}")
            elif missing_in(template, znodes, shown):
                file = f"put it into a file of {self.service.name}"
                self.wrong(key, f"{text} contains a secret, and manifests contain no secrets: {file}")
            else:
                return rendered(template, znodes, known)
        except CannotRender as error:
            self.wrong(key, error.reason)
        return None

    def wrong(self, key: str, what: str) -> None:
        label = self.launch.label(self.service.name, key)
        self.issues.append(Issue(ERROR, NAME, f"{key}: {what}", label))


def is_within(path: str, places: Iterable[str]) -> bool:
    """Whether it is one of these directories, or in one of them."""
    return any(path == each or path.startswith(f"{each}/") for each in places)


# -- names that all launchers accept: lowercase letters, digits and hyphens -----------------------------


def names_of(services: Iterable[str]) -> Mapping[str, str]:
    """A name for each service: its role, where that is enough. None is that of a directory of volumes, or a
    file of kustomize."""
    others = [SHARED, NAMED, "kustomization"]
    return distinct({service: label(service.rpartition("/")[2]) for service in services}, others)


def distinct(labels: Mapping[str, str], others: Iterable[str] = ()) -> Mapping[str, str]:
    """These, with a digest of what is so called where one is too long, or another's too."""
    count = Counter([*labels.values(), *others])

    def named(digits: int) -> Mapping[str, str]:
        return {
            key: name if count[name] == 1 and len(name) <= LONGEST else digested(name, key, LONGEST, digits)
            for key, name in labels.items()
        }

    found = named(DIGITS)
    # Of some thousand short digests two are likely to be the same.
    return found if len(set(found.values())) == len(found) else named(4 * DIGITS)


def label(text: str) -> str:
    """The text as a name in Kubernetes (RFC 1123) that begins with a letter, as a Service requires."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name if name[:1].isalpha() else f"s-{name}".rstrip("-")


def name_of(text: str) -> str:
    """A label of one text, with a digest unless it is the text itself: others are called otherwise."""
    name = label(text)
    return name if name == text and len(name) <= LONGEST else digested(name, text, LONGEST)


def digested(name: str, of: str, longest: int, digits: int = DIGITS) -> str:
    """Cut, and with a digest, so that others are called otherwise."""
    digest = hashlib.sha256(of.encode()).hexdigest()[:digits]
    return f"{name[: longest - digits - 1].rstrip('-')}-{digest}"
