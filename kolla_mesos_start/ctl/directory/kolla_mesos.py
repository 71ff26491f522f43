"""Reads a directory in kolla-mesos's layout as a deployment.

    DIR/
      config/all.yml                              values for all; they may be templates with other values
      config/<project>/defaults/main.yml          values for the services of a project
      etc/globals.yml, etc/passwords.yml          replace both; passwords.yml has precedence
      services/<project>/<service>.yml.j2         a template of the command graph
      config/<project>/templates/...              files, named by `source` in a command graph

It does what kolla-mesos's deploy tool did before publishing: render values and graphs once, and read each
`source`. A service that is not `enabled` is checked, but not published.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.directory import acl, directory, formats, templates
from kolla_mesos_start.ctl.directory.directory import (
    FILES,
    MAX_DATA,
    VARIABLES,
    Deployment,
    Given,
    Service,
    Values,
)
from kolla_mesos_start.ctl.directory.findings import (
    ERROR,
    WARNING,
    DataSource,
    Finding,
    Issue,
    first_lines,
    from_parser,
    located,
)
from kolla_mesos_start.ctl.directory.templates import BadTemplate
from kolla_mesos_start.ctl.terminal.suggestions import nearest
from kolla_mesos_start.definition.fields import to_boolean
from kolla_mesos_start.definition.forms import bad_service
from kolla_mesos_start.definition.texts import Text, sublabel
from kolla_mesos_start.errors import BadDefinition, CannotRender
from kolla_mesos_start.render.sandbox import Sandbox

# Values that the deploy tool got from Mesos, here for a single node; `--set` can replace them. The time is
# constant, because publishing again must not change a definition.
SUPPLIED: Mapping[str, object] = {
    **dict.fromkeys(("controller_nodes", "compute_nodes", "storage_nodes", "all_nodes"), "1"),
    **dict.fromkeys(("controller_constraints", "compute_constraints", "storage_constraints"), ""),
    "controller_compute_constraints": "",
    "marathon_framework": "marathon",
    "node_config_directory": "",
    "timestamp": "0",
}
ROUNDS = 10  # the longest chain of values that refer to each other


class Raw(NamedTuple):
    """The values of a file before rendering, and the place of each."""

    values: Mapping[str, Any]
    sources: Mapping[str, DataSource]


def is_one(root: Path) -> bool:
    """Whether a directory has kolla-mesos's layout."""
    return any((root / "services").glob("*/*.yml.j2"))


def look(root: Path, given: Mapping[str, Given], deployment_id: str) -> tuple[Deployment, Sequence[Finding]]:
    """Read the directory; also returns findings about what can't be read. BadUsage for a link out of it."""
    reading = _LayoutPass(root, given, deployment_id)
    return reading.deployment(), reading.findings


class _LayoutPass:
    """One pass over the directory, which continues after a finding."""

    def __init__(self, root: Path, given: Mapping[str, Given], deployment_id: str) -> None:
        self.root = root
        self.findings: list[Finding] = []  # what can't be read
        self.mistakes: list[Finding] = []  # which the deploy tool ignored
        self.sources: dict[str, DataSource] = {}
        # Projects whose values can't be read (an empty name means config/all.yml), and their services.
        self.unread: set[str] = set()
        self.unread_services: set[str] = set()
        self.sandbox = Sandbox()
        self.supplied = {**SUPPLIED, "deployment_id": deployment_id}
        files = [self.raw(root / "etc" / name) for name in ("globals.yml", "passwords.yml")]
        options = Raw(
            {name: each.value for name, each in given.items()},
            {name: each.source for name, each in given.items()},
        )
        self.chosen = _joined(*files, options)

    def deployment(self) -> Deployment:
        everywhere = _joined(self.raw(self.root / "config" / "all.yml"), self.chosen)
        shared = self.resolved(everywhere, self.supplied)
        for name, source in everywhere.sources.items():
            self.sources[f"{VARIABLES}/{name}"] = source
        services: list[Service] = []
        for project in sorted(path for path in (self.root / "services").iterdir() if path.is_dir()):
            services += self.project(project, shared)
        left_out = tuple(path.name for path in sorted(self.root.iterdir()) if not _has_meaning(path))
        return Deployment(
            _contents({**self.supplied, **shared}, "deployment_id"),
            services,
            left_out,
            self.sources,
            self.mistakes,
            self.unread_services,
        )

    def project(self, path: Path, shared: Mapping[str, Any]) -> Iterator[Service]:
        """The services of a project, with those values of the project that nothing replaces."""
        defaults = self.raw(self.root / "config" / path.name / "defaults" / "main.yml", path.name)
        own = Raw(
            {name: value for name, value in defaults.values.items() if name not in self.chosen.values},
            defaults.sources,
        )
        before = len(self.mistakes)
        values = self.resolved(own, {**self.supplied, **shared}, path.name)
        wrong, self.mistakes[before:] = self.mistakes[before:], []
        found = [self.service(file, own, values, shared) for file in sorted(path.glob("*.yml.j2"))]
        used = any(service.enabled for service in found)
        self.mistakes += wrong if used else [each._replace(severity=WARNING) for each in wrong]
        yield from found

    # -- values -------------------------------------------------------------------------------------

    def is_unread(self, project: str) -> bool:
        """Whether a missing value may be in a file that can't be read."""
        return bool(self.unread & {"", project})

    def raw(self, path: Path, project: str = "") -> Raw:
        """The values of a file; none if it does not exist."""
        if not os.path.lexists(path):
            return Raw({}, {})
        formats.check_link(path, self.root)
        file = path.relative_to(self.root).as_posix()
        try:
            values = formats.values(path, booleans=True)
        except BadDefinition as error:
            self.findings += [from_parser(file, issue) for issue in error.issues]
            self.unread.add(project)
            return Raw({}, {})
        return Raw(values, {name: DataSource(file, name, path.read_bytes) for name in values})

    def resolved(self, raw: Raw, others: Mapping[str, Any], project: str = "") -> dict[str, Any]:
        """The values. Templates among them are rendered with each other and with `others`."""
        known = {**others, **raw.values}
        for _ in range(ROUNDS):
            problems: dict[str, str] = {}
            values = dict(raw.values)
            for name in (name for name, value in raw.values.items() if "{" in str(value)):
                # Not with its own value: `a: "{{ a | default(1) }}"` is the usual form of a default.
                context = {each: value for each, value in known.items() if each != name}
                context.update(_only(others, name))
                values[name] = self.rendered(name, raw.values[name], context, problems)
            if {**others, **values} == known:
                break
            known = {**others, **values}
        if self.is_unread(project):
            return values
        issues = []
        for label, message in problems.items():
            name = next(
                name for name in raw.values if label == name or label.startswith((f"{name}.", f"{name}["))
            )
            issues.append(Issue(ERROR, name, message, label[len(name) :].lstrip(".")))
        for name, value in raw.values.items():
            for line, what in _slips(value, known.keys()):
                issues.append(Issue(WARNING, name, f"{name} {what}", line=line))
        self.mistakes += located(issues, raw.sources)
        return values

    def rendered(self, label: str, value: Any, known: Mapping[str, Any], problems: dict[str, str]) -> Any:
        if isinstance(value, dict):
            return {
                key: self.rendered(f"{label}.{key}", each, known, problems) for key, each in value.items()
            }
        if isinstance(value, list):
            return [
                self.rendered(f"{label}[{index}]", each, known, problems) for index, each in enumerate(value)
            ]
        if not isinstance(value, str) or not Text(label, value).is_template:
            return value
        try:
            text, missing = self.sandbox.render(Text(label, value), known)
        except CannotRender as error:
            problems[label] = error.reason
            return ""
        for name in dict.fromkeys(each.name for each in missing):
            problems[label] = f"{label} needs the variable {name!r}, which has no value{nearest(name, known)}"
        return text

    # -- services -----------------------------------------------------------------------------------

    def service(self, path: Path, own: Raw, values: Mapping[str, Any], shared: Mapping[str, Any]) -> Service:
        """A service from its template. Its definition is empty if that can't be read."""
        formats.check_link(path, self.root)
        file = path.relative_to(self.root).as_posix()
        name = f"{path.parent.name}/{path.name.removesuffix('.yml.j2')}"
        found: list[Finding] = []
        rendered = self.graph(path, file, {**self.supplied, **shared, **values, "service_name": name}, found)
        document = {} if rendered is None else self.document(file, rendered)
        given = document.get("name")
        if isinstance(given, str) and not bad_service(given):
            name = given
        enabled = to_boolean(document.get("enabled", True)) is not False
        self.sources[name] = DataSource(file, read=lambda: rendered or b"")
        for variable in values:
            self.sources[f"{name}/{VARIABLES}/{variable}"] = own.sources[variable]
        if self.is_unread(path.parent.name):
            self.unread_services.add(name)
            found.clear()
        files = self.files(name, document, found)
        self.mistakes += found if enabled else [each._replace(severity=WARNING) for each in found]
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n" if document else ""
        definition = text.encode(errors="surrogatepass")  # Half of a pair is found where this is read.
        return Service(name, file, definition, Values(_contents(values), {}), files, enabled)

    def graph(self, path: Path, file: str, known: Mapping[str, Any], found: list[Finding]) -> bytes | None:
        """The rendered template of a service; None if it can't be rendered."""
        try:
            source = formats.read(path).decode()
            template = templates.read(source)
            text, missing = self.sandbox.render(Text(file, source), known)
        except BadDefinition as error:
            self.findings += [from_parser(file, issue) for issue in error.issues]
            return None
        except UnicodeDecodeError:
            self.findings.append(Finding(ERROR, file, None, "not UTF-8 text"))
            return None
        except BadTemplate as error:
            self.findings.append(Finding(ERROR, file, error.line, error.reason))
            return None
        except CannotRender as error:
            self.findings.append(Finding(ERROR, file, error.line, error.reason))
            return None
        lines = first_lines((use.name, use.line) for use in missing)
        for name, line in lines.items():
            what = f"needs the variable {name!r}, which has no value{nearest(name, known)}"
            found.append(Finding(ERROR, file, line, what))
        for name in sorted(template.names.keys() - known.keys() - lines.keys() - template.optional):
            what = f"needs the variable {name!r}, which has no value, on a branch that is not taken"
            found.append(Finding(WARNING, file, template.names[name], f"{what}{nearest(name, known)}"))
        found += (Finding(WARNING, file, line, what) for line, what in template.slips(known.keys()))
        for name, line in template.truths:
            if isinstance(known.get(name), str) and to_boolean(known[name]) is not None:
                what = f"tests {name}, a text, which is true even if it is 'false': write {name} | bool"
                found.append(Finding(WARNING, file, line, what))
        return text.encode(errors="surrogatepass")

    def document(self, file: str, rendered: bytes) -> dict[str, Any]:
        try:
            content = formats.document(rendered)
        except BadDefinition as error:
            self.findings += [from_parser(file, issue) for issue in error.issues]
            return {}
        if content is None:
            self.findings.append(Finding(ERROR, file, None, "empty: expected `commands`, `service`, or both"))
        elif not isinstance(content, dict):
            self.findings.append(Finding(ERROR, file, 1, "expected a mapping"))
        return content if isinstance(content, dict) else {}

    def files(self, service: str, document: Mapping[str, Any], found: list[Finding]) -> dict[str, bytes]:
        """The contents of the files whose `source` a graph names."""
        contents, issues = {}, []
        for label, name, source in _sources(document):
            there = [path for path in source if (self.root / path).is_file()]
            # Absolute paths were on the host of the deploy tool.
            absent = [path for path in source if path not in there and not path.startswith("/")]
            for path in absent:
                beside = [each.name for each in (self.root / path).parent.glob("*")]
                what = f"{path} does not exist{nearest(Path(path).name, beside)}"
                issues.append(Issue(ERROR, service, f"{label}: {what}", label))
            for path in there:
                formats.check_link(self.root / path, self.root)
                self.sources.setdefault(f"{service}/{FILES}/{name}", DataSource(path))
            # The deploy tool merged the existing files of a list. oslo.config merges repeated sections, and
            # the last value has precedence.
            if there or absent or len(source) > 1:
                contents[name] = b"\n".join((self.root / path).read_bytes() for path in there)
                if len(contents[name]) > MAX_DATA:
                    what = directory.too_large(contents[name])
                    issues.append(Issue(ERROR, service, f"{label}: {what}", label))
        found += located(issues, self.sources)
        return contents


def _slips(value: object, known: Set[str]) -> Sequence[tuple[int, str]]:
    """Misspelt names with a default in a value."""
    if not isinstance(value, str) or "default" not in value:
        return ()
    try:
        return tuple(templates.read(value).slips(known))
    except BadTemplate:
        return ()  # This is reported elsewhere.


def _joined(*raws: Raw) -> Raw:
    """Merge values; later ones have precedence."""
    values: dict[str, Any] = {}
    sources: dict[str, DataSource] = {}
    for raw in raws:
        values.update(raw.values)
        sources.update(raw.sources)
    return Raw(values, sources)


def _only(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: values[name]} if name in values else {}


def _has_meaning(path: Path) -> bool:
    is_own = formats.is_file(acl.FILE, path) or path.name in ("services", "config", "etc")
    return is_own or path.name.startswith(".")


def _contents(values: Mapping[str, Any], *but: str) -> dict[str, bytes]:
    """The values for znodes: lists and mappings as JSON, booleans as Python writes them."""
    return {name: _text(value).encode(errors="replace") for name, value in values.items() if name not in but}


def _text(value: object) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "" if value is None else str(value)


def _sources(document: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Each file of a graph, even if it has mistakes: the label of its `source`, its name, its paths."""
    commands, service = document.get("commands"), document.get("service")
    steps: list[tuple[str, Any]] = []
    if isinstance(commands, dict):
        steps += ((sublabel("commands", name), step) for name, step in commands.items())
    if isinstance(service, dict):
        steps.append(("service.daemon", service.get("daemon")))
    for label, step in steps:
        files = step.get("files") if isinstance(step, dict) else None
        for name, file in files.items() if isinstance(files, dict) else ():
            source = file.get("source") if isinstance(file, dict) else None
            if source:
                paths = source if isinstance(source, list) else [source]
                yield f"{sublabel(f'{label}.files', name)}.source", name, [str(path) for path in paths]
