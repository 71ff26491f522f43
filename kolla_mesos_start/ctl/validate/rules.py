"""Reads a deployment before it is published, as the agents of its services will read it.

Finds mistakes that would end an agent while the operator can still correct them. Pure: variables and files
are given. Facts that only an agent knows (where it runs, which others are present) are left to the agent.
`checks` has the checks between services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

from kolla_mesos_start import errors
from kolla_mesos_start.ctl.directory import acl, directory, launch, secret_values, templates
from kolla_mesos_start.ctl.directory.container_settings import PORT, Port, port_of
from kolla_mesos_start.ctl.directory.directory import FILES, VARIABLES, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import (
    ERROR,
    WARNING,
    Finding,
    Issue,
    Sources,
    first_lines,
    in_order,
    located,
)
from kolla_mesos_start.ctl.directory.secrecy import is_secret, is_variable, likeness
from kolla_mesos_start.ctl.directory.source import HINT, VARIABLES_DIR
from kolla_mesos_start.ctl.directory.templates import BadTemplate, Template, no_comments
from kolla_mesos_start.ctl.text import nearest
from kolla_mesos_start.ctl.validate import checks
from kolla_mesos_start.ctl.validate.checks import ServiceReading
from kolla_mesos_start.ctl.zk import published, services
from kolla_mesos_start.definition.document import Document, digest, load, to_boolean
from kolla_mesos_start.definition.keys import build, early_texts, read
from kolla_mesos_start.definition.model import Command, File, Graph, ResolvedCommand
from kolla_mesos_start.definition.resolve import resolve
from kolla_mesos_start.definition.strings import DAEMON, ELECTION, Text, sublabel
from kolla_mesos_start.election.words import example
from kolla_mesos_start.errors import BadDefinition, CannotRender, listed
from kolla_mesos_start.render.context import (
    BUILTIN,
    IMAGE_GENERATION,
    Context,
    Renderer,
    file_text,
    unusable_name,
)
from kolla_mesos_start.tree.znodes import Znodes

ADDRESS = "127.0.0.1"
COMMAND = r"^(commands\.[^.]+|service\.daemon)\."
# Names in templates whose values only the agent knows.
KNOWN_TO_AGENTS = BUILTIN - {"deployment_id", "service_name"} | {"api_interface"}

Members = Callable[[str], Sequence[Mapping[str, Any]]]


def build_graph(
    document: Document, znodes: Znodes, variables: Mapping[str, str], *, missing_is_empty: bool = False
) -> Graph | None:
    """The graph that an agent will build, or None if only an agent can build it.

    Raises BadDefinition or CannotRender if no agent can. Numbers and dependencies are not checked if they
    come from a template with names that only the agent knows.
    """
    early = early_texts(document)
    if any(IMAGE_GENERATION in text.text for text in early):
        return None  # A placeholder must not be used as a generation.
    renderer = Renderer(_context(znodes, variables), missing_is_empty)
    guessed = any(name in text.text for text in early for name in KNOWN_TO_AGENTS)
    try:
        graph = build(document, znodes.service_name, renderer.text)
    except CannotRender:
        if guessed:
            return None
        raise
    except BadDefinition as error:
        _check_missing(renderer, znodes, guessed)
        issues = [issue for issue in error.issues if not (guessed and issue.by_template)]
        if issues:
            raise BadDefinition(issues) from error
        return None
    _check_missing(renderer, znodes, guessed)
    return graph


def known_graph(document: Document, znodes: Znodes, variables: Mapping[str, str]) -> Graph:
    """The graph, with empty text for values that only an agent knows."""

    def render(text: Text) -> str:
        with suppress(CannotRender):
            return rendered(text, znodes, variables)
        return ""

    return read(document, znodes.service_name, render)[0]._replace(digest=digest(document))


def rendered(text: Text, znodes: Znodes, variables: Mapping[str, str]) -> str:
    """Render the text as an agent would; unknown values are empty."""
    return Renderer(_context(znodes, variables), True).text(text)


def missing_in(text: Text, znodes: Znodes, variables: Mapping[str, str]) -> str:
    """The missing variables of a text, for a message; empty if there are none."""
    renderer = Renderer(_context(znodes, variables))
    renderer.text(text)
    names = dict.fromkeys(each.name for each in renderer.missing)
    return ", ".join(f"{name!r}{nearest(name, variables)}" for name in names)


def from_definition(service: str, issue: errors.Issue) -> Issue:
    """An issue of the agent's parser. An alias of YAML repeats a mistake in several commands."""
    about = f"{re.sub(COMMAND, '', issue.label)}: {issue.what}"
    return Issue(ERROR, service, issue, issue.label, issue.line, about)


def _nobody(service: str) -> Sequence[Mapping[str, Any]]:
    return ()


def _context(
    znodes: Znodes, variables: Mapping[str, str], members: Members = _nobody, image: str | None = None
) -> Context:
    """The published variables, for an agent on a host without a network, by default without members.

    `image` is the generation of its code; None if only the agent knows it.
    """
    return Context(
        deployment_id=znodes.deployment_id,
        service_name=znodes.service_name,
        address=ADDRESS,
        hostname="localhost",
        host=znodes.host,
        api_interface="lo",
        variables=variables,
        members=members,
        parties=dict,
        services=lambda role: (role,),
        ready_instances=members,
        get_ip_address=lambda interface: ADDRESS,
        cpu_count=1,
        facts=_Facts(),
        image_generation=image,
    )


def _check_missing(renderer: Renderer, znodes: Znodes, guessed: bool) -> None:
    """Raise CannotRender for missing variables: an empty text would look like a wrong value."""
    if not guessed or any(missing.is_variable for missing in renderer.missing):
        renderer.check(partial(published.places, znodes))


# -- everything that is wrong with a deployment -----------------------------------------------------------


def validate(
    deployment: Deployment,
    *,
    deployment_id: str = "deployment",
    missing_is_empty: bool = False,
    given: Mapping[str, str] = MappingProxyType({}),
    declared: Set[str] | None = None,
) -> Sequence[Finding]:
    """Everything that is wrong in a directory, in the order of files and lines.

    Parts without a source are published already, and are not checked themselves. `given` are variables of
    KOLLA_VARIABLES_DIR, which have precedence. Every secret has a value. If it is known which variables are
    `declared` as secret, other values that look like secrets are found too.
    """
    sources = deployment.sources
    issues = [*_wrong_values(deployment, given)]
    if declared is not None:
        issues += _undeclared_secrets(deployment, declared)
    read_template = cache(templates.read)  # Many services share a file.
    known = _Known(deployment, deployment_id, given, missing_is_empty, read_template, issues)
    readings = [_reading(known, service) for service in deployment.services]
    issues += _wrong_between(readings, sources)
    issues += [*_wrong_in_acl(deployment), *_unknown_hosts(deployment)]
    launch_issues = [*_ambiguous_hosts(deployment), *_wrong_in_launch(known, readings)]
    wrong = [
        *_bad_given(given),
        *located(issues, sources),
        *deployment.launch.located(launch_issues),
    ]
    return in_order(wrong)


class _Known(NamedTuple):
    """The arguments of `validate`; `template` reads a template, and `issues` are added to."""

    deployment: Deployment
    deployment_id: str
    given: Mapping[str, str]
    missing_is_empty: bool
    template: Callable[[str], Template]
    issues: list[Issue]

    def znodes(self, service: Service, host: str = "") -> Znodes:
        return Znodes("", self.deployment_id, service.name, host)

    def variables(self, service: Service, host: str = "") -> dict[str, str]:
        """The values for a service, on a host or without one."""
        own = service.variables
        values = {**self.deployment.variables, **own.own, **own.hosts.get(host, {})}
        return {**{name: data.decode(errors="replace") for name, data in values.items()}, **self.given}


def _wrong_values(deployment: Deployment, given: Mapping[str, str]) -> Iterator[Issue]:
    wrong_secrets = {}
    for name, kind in deployment.secrets.items():
        if name not in given:
            value = deployment.variables[name].decode(errors="replace")
            wrong_secrets[f"{VARIABLES}/{name}"] = secret_values.bad_secret(name, kind, value)
    for node, data in directory.nodes(deployment).items():
        *above, name = node.split("/")
        if wrong_secrets.get(node):
            yield Issue(ERROR, node, f"{name}: {wrong_secrets[node]}", name)
        elif VARIABLES in above[-2:]:
            why = checks.bad_value(name, data.decode(errors="replace"))
            if name in given:
                why = f"{name} is in {VARIABLES_DIR} too, which has precedence;"
                why += " this value would be in ZooKeeper"
            if why:
                yield Issue(WARNING, node, why)


def _undeclared_secrets(deployment: Deployment, declared: Set[str]) -> Iterator[Issue]:
    """A value of the directory that looks like a secret, although nothing says that it is one."""
    for node, data in directory.nodes(deployment).items():
        what = likeness(data.decode(errors="replace")) if is_variable(node) else ""
        if what and not is_secret(node, declared):
            name = node.rpartition("/")[2]
            why = f"{name} looks like a secret ({what}): if it is one, move it to the file of --secrets"
            yield Issue(WARNING, node, why)


def _bad_given(given: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in given.items():
        why = checks.bad_value(name, value)
        if why:
            yield Finding(WARNING, f"{VARIABLES_DIR}/{name}", None, why)


def _wrong_between(readings: Sequence[ServiceReading], sources: Sources) -> Iterator[Issue]:
    """The issues of `checks`, each at the first of its places that is in the directory."""
    for issue in checks.check(readings):
        places = [(issue.node, issue.label), *issue.others]
        node, label = next((place for place in places if place[0] in sources), places[0])
        yield Issue(issue.severity, node, f"{label}: {issue.message}" if label else issue.message, label)


def _wrong_in_acl(deployment: Deployment) -> Iterator[Issue]:
    if deployment.acl is not None:
        used = {
            each.name: services.used_variables(each.definition, each.files) for each in deployment.services
        }
        for label, issue in acl.check(deployment.acl, used, deployment.variables.keys()):
            yield Issue(ERROR, acl.NODE, f"{label}: {issue}", label)
        for label, issue in acl.shared(deployment.acl):
            yield Issue(WARNING, acl.NODE, f"{label}: {issue}", label)


def _ambiguous_hosts(deployment: Deployment) -> Iterator[Issue]:
    """Warnings about hosts of launch.yml that other systems name in another way, or that may be the same."""
    seen: dict[str, str] = {}  # What other systems make of it, by the name.
    for role, hosts in deployment.launch.hosts.items():
        for number, host in enumerate(hosts):
            if host in seen:
                continue
            name, label = host.lower().rstrip("."), f"{sublabel('hosts', role)}[{number}]"
            same = [other for other, known in seen.items() if _may_be_same(name, known)]
            seen[host], why = name, "" if host == name else f"names of nodes in Kubernetes are as {name}"
            if same:
                why = f"{same[0]} may be the same host: write one name for each"
            if why:
                what = (
                    f"{label}: {host!r} must be the name that its containers get (KOLLA_HOSTNAME), and {why}"
                )
                yield Issue(WARNING, launch.NAME, what, label)


def _may_be_same(one: str, other: str) -> bool:
    """Whether they are equal, or one is the first part of the other."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _unknown_hosts(deployment: Deployment) -> Iterator[Issue]:
    """Warnings about values for hosts that launch.yml does not name, of services with placement."""
    hosts = {host for names in deployment.launch.hosts.values() for host in names}
    for service in deployment.services:
        for host, values in service.variables.hosts.items():
            if host not in hosts and values and deployment.launch.hosts_of(service.name):
                node = f"{service.name}/{VARIABLES}/{host}/{next(iter(values))}"
                what = f"{deployment.launch.source.file} names no host {host!r}{nearest(host, hosts)}"
                yield Issue(WARNING, node, what)


def _wrong_in_launch(known: _Known, readings: Sequence[ServiceReading]) -> Iterator[Issue]:
    """Mistakes in launch.yml: too few hosts, other generations, and ports, as far as their templates can be
    rendered."""
    deployed = known.deployment.launch
    for each in readings:
        if each.name in known.deployment.sources:
            yield from deployed.too_few(each.name, each.wanted or 0)
            if each.graph:
                yield from _other_generations(deployed, each.graph)
    ports: dict[str, list[Port]] = {}
    for service in known.deployment.services:
        for text in deployed.of(service.name).ports or ():
            value = _if_known(Text(text, text), known.znodes(service), known.variables(service))
            if value is None:
                continue
            port = port_of(value)
            if port:
                ports.setdefault(service.name, []).append(port)
            else:
                what = f"ports: expected {PORT}, but {text} is none for {service.name}"
                yield Issue(ERROR, launch.NAME, what, deployed.label(service.name, "ports"))
    wanted = {each.name: each.wanted for each in readings if each.wanted is not None}
    yield from deployed.shared_ports(ports, wanted)


def _other_generations(deployed: launch.LaunchFile, graph: Graph) -> Iterator[Issue]:
    """Errors for one-time commands that no container would run: all have another generation."""
    service = graph.service_name
    own = (deployed.of(service).env or {}).get("KOLLA_GENERATION")
    key, image = deployed.label(service, "env"), own
    if not own:
        key = deployed.label(service, "tag") if deployed.of(service).tag else "tag"
        image = deployed.tag_of(service)
    for command in graph.commands if image and not Text(key, image).is_template else ():
        if command.generation not in (None, checks.IMAGE, image):
            what = (
                f"{key}: the containers of {service} have the generation {image!r} (KOLLA_GENERATION), and"
                f" {command.path} is for {command.generation!r}, so none of them would ever run it: give both"
                " the same value"
            )
            yield Issue(ERROR, launch.NAME, what, key, about=command.path)


def _if_known(text: Text, znodes: Znodes, variables: Mapping[str, str]) -> str | None:
    """The rendered text; None if something is missing or it can't be rendered."""
    with suppress(CannotRender):
        return None if missing_in(text, znodes, variables) else rendered(text, znodes, variables)
    return None


def _reading(known: _Known, service: Service) -> ServiceReading:
    """Read one service as its agents will: on every host that has values of its own, and on others."""
    launched, hosts = known.deployment.launch, [*service.variables.hosts]
    if not hosts or not set(hosts).issuperset(launched.hosts_of(service.name)):
        hosts.append("")
    document = None
    try:
        # If its file could not be read, that is reported elsewhere.
        document = load(service.definition) if service.definition else None
    except BadDefinition as error:
        known.issues.extend(from_definition(service.name, issue) for issue in error.issues)
    if document is None:
        return ServiceReading(service.name, None, None, (), {}, None)
    daemon = _service(document).get(DAEMON)
    # What the daemon's templates see of its election.
    elected = example() if isinstance(daemon, dict) and daemon.get(ELECTION) else None
    graph, wanted, steps = None, None, {}
    for host in hosts:
        on_host = _OnHost(known, service, host, elected)
        graph, wanted = on_host.graph(document), on_host.wanted(document)
        steps[host] = on_host.steps(graph)
    keys, placed = frozenset(_service(document)), launched.placed(service.name, wanted or 0)
    return ServiceReading(service.name, frozenset(_names(document)), graph, placed, steps, wanted, keys)


def _names(document: Document) -> Iterator[str]:
    """The names of the commands, even if their definitions are wrong."""
    commands = document.root.get("commands")
    yield from commands if isinstance(commands, dict) else ()
    if DAEMON in _service(document):
        yield DAEMON


def _service(document: Document) -> Mapping[str, Any]:
    """The `service` of a definition; empty if it is not an object."""
    service = document.root.get("service")
    return service if isinstance(service, dict) else {}


class _OnHost:
    """A service with the values of one host, or without a host. Adds its mistakes to those that are known."""

    def __init__(self, known: _Known, service: Service, host: str, elected: Mapping[str, str] | None) -> None:
        self.all, self.service, self.host, self.issues = known, service, host, known.issues
        self.variables = known.variables(service, host)
        context = _context(known.znodes(service, host), self.variables, _anybody, checks.IMAGE)
        self.context = context._replace(election=elected)
        self.known = frozenset(self.variables) | BUILTIN
        # Labels whose value is unknown: rendering failed, or needs values that only an agent knows.
        self.unsure: set[str] = set()

    def graph(self, document: Document) -> Graph:
        """The graph, as far as it can be read."""
        graph, issues = read(document, self.service.name, self.render)
        self.add_issues(issues)
        return graph

    def steps(self, graph: Graph) -> Sequence[ResolvedCommand]:
        """The rendered commands, as far as they can be rendered; also checks their files."""
        found = []
        # Published services are not checked, to save time.
        if self.service.name not in self.all.deployment.sources:
            return ()
        self.check_files(graph)
        # An empty command was reported when it was read.
        for command in (command for command in graph.all_commands if command.command):
            try:
                step = resolve(command, self.render)
            except BadDefinition as error:
                self.add_issues(error.issues)
            else:
                self.check_readable(step.command)
                found.append(step)
        return found

    def check_readable(self, command: Command) -> None:
        """Warn of files that the command's user can't read; who is in a group is not known here."""
        user = command.user or "root"
        if user in ("root", "0") or self.all.deployment.launch.of(self.service.name).user:
            return
        for file in command.files:
            label = sublabel(f"{command.label}.files", file.name)
            owner = (file.owner or "root").partition(":")[0]
            right = 0o400 if owner == user else 0o044 if file.owner else 0o004
            is_unknown = file.owner and user.isdecimal() != owner.isdecimal()
            if file.mode & right or is_unknown or f"{label}.owner" in self.unsure:
                continue
            whose = f"belongs to {owner}" if file.owner else "has no `owner`, so it is root's if the agent is"
            what = f"{user} (`user`) can't read it: it {whose}, with mode {file.mode:04o}"
            what = f"{label}: {what}: set its `owner` to {user}, or its `perm`"
            self.issues.append(Issue(WARNING, self.service.name, what, label))

    def wanted(self, document: Document) -> int | None:
        """The number of instances; None if only an agent can know it."""
        found = launch.wanted_instances(document.root, self.render)
        if found is None and launch.INSTANCES not in self.unsure:
            what = f"{launch.INSTANCES}: expected a whole number, at most 99999"
            self.issues.append(Issue(ERROR, self.service.name, what, launch.INSTANCES))
        return found

    def add_issues(self, issues: Sequence[errors.Issue]) -> None:
        """Add the issues of the agent's parser, unless they are about values that only an agent knows."""
        for issue in issues:
            at = issue.label
            if not any(label == at or label.startswith(f"{at}[") for label in self.unsure):
                self.issues.append(from_definition(self.service.name, issue))

    # -- files --------------------------------------------------------------------------------------

    def check_files(self, graph: Graph) -> None:
        files: dict[str, tuple[File, str]] = {}  # Several commands may write the same file.
        for command in graph.all_commands:
            for file in command.files:
                files.setdefault(file.name, (file, sublabel(f"{command.label}.files", file.name)))
        for file, label in files.values():
            data = self.service.files.get(file.name)
            if data is not None:
                self.check_file(file, data)
            elif file.mounted is None and not file.optional:
                path = f"services/{self.service.name}/{FILES}/{file.name}"
                what = (
                    f"{label} has no content in files/{self.near(file.name)}: create {path},"
                    " or write optional: true"
                )
                self.issues.append(Issue(ERROR, self.service.name, what, label))

    def near(self, name: str) -> str:
        """Where the content of a file may be: in a file with a similar name, or in another service."""
        services = self.all.deployment.services
        others = [each.name for each in services if name in each.files]
        return nearest(name, self.service.files) or (
            f"; {others[0]} has one with this name" if others else ""
        )

    def check_file(self, file: File, data: bytes) -> None:
        node = f"{self.service.name}/{FILES}/{file.name}"
        try:
            text = file_text(file.name, data, file.template)
        except CannotRender as error:
            self.issues.append(Issue(ERROR, node, error.reason))
            return
        if text is not None:
            self.check_text(text, node, "")
        elif file.template and data.startswith((b"\xff\xfe", b"\xfe\xff")):
            self.issues.append(
                Issue(WARNING, node, f"file {file.name}: UTF-16, in which templates are not found: use UTF-8")
            )

    # -- templates ----------------------------------------------------------------------------------

    def render(self, text: Text) -> str:
        """The text of an agent; empty if it is unknown."""
        return self.check_text(text, self.service.name, text.label)

    def check_text(self, text: Text, node: str, label: str) -> str:
        if not text.is_template:
            return text.text
        if any(name in text.text for name in KNOWN_TO_AGENTS):
            self.unsure.add(text.label)
        try:
            template = self.all.template(text.text)
        except BadTemplate as error:
            self.unsure.add(text.label)
            self.issues.append(Issue(ERROR, node, f"{text.label}: {error.reason}", label, line=error.line))
            return ""
        for line in no_comments(text.text) if "{#" in text.text else ():
            what = (
                f"{text.label}: {{# begins a comment of jinja2 here, and text is left out up to the next #}}:"
                " write {% raw %} before it and {% endraw %} after it"
                f"{'' if label else ', or template: false for the whole file'}"
            )
            self.issues.append(Issue(WARNING, node, what, label, line=line))
        self.check_truths(template, node, label)
        self.check_sums(template, node, text.label, label)
        self.check_listed(template, node, text.label, label)
        for line, what in template.slips(self.known):
            self.issues.append(Issue(WARNING, node, f"{text.label} {what}", label, line=line, about=what))
        strange = template.names.keys() - self.variables.keys() - BUILTIN - {"api_interface"}
        if template.is_plain and not strange and not template.names.keys() & (BUILTIN | {"api_interface"}):
            return template.filled(self.variables)
        if not (strange or template.risky or label):
            return ""  # Nothing can be missing in this file.
        return self.try_out(text, template, strange, node, label)

    def try_out(self, text: Text, template: Template, strange: Set[str], node: str, label: str) -> str:
        """Render it as an agent would, and report missing variables, also on branches that were not taken."""
        renderer = Renderer(self.context)
        rendered = ""
        try:
            rendered = renderer.text(text)
        except CannotRender as error:
            if text.label not in self.unsure:
                self.issues.append(Issue(ERROR, node, error.reason, label, line=error.line))
            self.unsure.add(text.label)
        missing = first_lines((each.name, each.line) for each in renderer.missing if each.is_variable)
        if missing:
            self.unsure.add(text.label)
        if self.all.deployment.unread & {"", self.service.name}:
            return rendered  # Missing variables may be in a file that could not be read.
        for name, line in missing.items():
            severity = WARNING if self.all.missing_is_empty else ERROR
            what = self.missing(name)
            self.issues.append(Issue(severity, node, f"{text.label} {what}", label, line=line, about=what))
        for use in renderer.missing:
            if use.of_text:
                what = f"needs {use.name}, which has none"
                self.issues.append(
                    Issue(ERROR, node, f"{text.label} {what}", label, line=use.line, about=what)
                )
        for name in sorted(strange - template.optional - missing.keys()):
            what, line = self.missing(name), template.names[name]
            if line in missing.values():
                continue  # Another missing variable on this line may be the reason that it was not read.
            found = f"{text.label} {what}, on a branch that is not taken with these values"
            self.issues.append(Issue(WARNING, node, found, label, line=line, about=what))
        return rendered

    def missing(self, name: str) -> str:
        own = self.service.variables.hosts
        on = f"host {self.host}" if self.host else "the other hosts of its role"
        where = f" for {on}" if any(name in values for values in own.values()) else ""
        near = unusable_name(name, self.variables) or _nearest_variable(name, self.known)
        where_to = "for example in variables.yml (in secrets.yml if it is a secret)"
        define = f"define it, {where_to}, or give --set {name}=VALUE"
        hint = "" if self.all.given else f"; {HINT}"
        return f"needs the variable {name!r}, which has no value{where}{near}: {define}{hint}"

    def check_truths(self, template: Template, node: str, label: str) -> None:
        for name, line in template.truths:
            if to_boolean(self.variables.get(name)) is not None:
                what = f"tests {name}, a text, which is true even if it is 'false': write {name} | bool"
                self.issues.append(
                    Issue(WARNING, node, f"{label}: {what}" if label else what, label, line=line)
                )

    def check_sums(self, template: Template, node: str, what: str, label: str) -> None:
        for names, line in template.sums:
            if all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", self.variables.get(name, "")) for name in names):
                which = f"{listed(names)}, {'texts' if names[1:] else 'a text'}"
                found = f"{what} calculates or compares with {which}: write {names[0]} | int"
                self.issues.append(Issue(WARNING, node, found, label, line=line))

    def check_listed(self, template: Template, node: str, what: str, label: str) -> None:
        for name, is_role, line in template.listed:
            services = self.all.deployment.services
            names = {each.name.rpartition("/")[2] if is_role else each.name for each in services}
            if name not in names:
                kind = "role" if is_role else "name"
                why = f"lists {name!r}, but no service has this {kind}{nearest(name, names)}"
                self.issues.append(Issue(WARNING, node, f"{what} {why}", label, line=line, about=why))


@cache
def _nearest_variable(name: str, known: frozenset[str]) -> str:
    """Like `nearest`, cached: many templates miss the same variable, and comparing many names is slow."""
    return nearest(name, sorted(known))


class _Facts(dict[str, Any]):
    """The facts of a host, with every interface that a template may use."""

    def __missing__(self, key: str) -> Any:
        if not str(key).startswith("ansible_"):
            raise KeyError(key)
        return {"ipv4": {"address": ADDRESS}, "ipv6": [{"address": ADDRESS}]}


def _anybody(service: str) -> Sequence[Mapping[str, Any]]:
    """One member or ready instance of any service, so that loops are rendered once."""
    own = {"host": "localhost", "address": ADDRESS, "private_address": ADDRESS, "api_interface": "lo"}
    return [_Facts(own, service=service, ports=[1], since="", generation="", ansible_hostname="localhost")]
