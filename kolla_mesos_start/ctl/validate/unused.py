"""Unused variables, secrets and files of a directory.

Pure. A wrong warning is worse than a missing one: every word in a template counts as a use, and nothing is
reported if a template is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.container_settings import ContainerSettings
from kolla_mesos_start.ctl.directory.directory import FILES, SECRETS, VARIABLES, Deployment, Service
from kolla_mesos_start.ctl.directory.findings import WARNING, Finding, Issue, located
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.definition.texts import Text

# The files of our layout. Those of kolla-mesos and of --variables-from may have other users too.
_OWN = re.compile(rf"(services/.*/)?({VARIABLES}\.[a-z]+|({VARIABLES}|{FILES})/.*)|{SECRETS}\.[a-z]+")
_PART = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REMEDY = "correct its name, or remove it"


def unused(deployment: Deployment) -> Sequence[Finding]:
    """Warnings about files and variables that no template or definition of the deployment uses."""
    own = {node: source for node, source in deployment.sources.items() if _OWN.fullmatch(source.file)}
    issues: list[Issue] = []
    for service in directory.enabled(deployment):
        issues += _unused_files(service, services.file_names(service.definition) or service.files.keys())
        used = _used_by(service)
        issues += [] if used is None else _unused_variables(service, used | _used_everywhere(deployment))
    for name in _unused_names(deployment):
        what = f"no template uses the variable {name!r}: {REMEDY}"
        issues.append(Issue(WARNING, f"{VARIABLES}/{name}", what))
    return located(issues, own)


def without_unused_secrets(source: Source) -> tuple[Source, Sequence[str]]:
    """The deployment without the values of --secrets that only this file has and nothing uses; their names.

    kolla-ansible's passwords.yml has a value for each service that exists.
    """
    left = sorted(source.undeclared & _unused_names(source.deployment))
    kept = {name: value for name, value in source.deployment.variables.items() if name not in left}
    return source._replace(deployment=source.deployment._replace(variables=kept)), left


def _unused_names(deployment: Deployment) -> Set[str]:
    """The deployment's variables that nothing uses; none if not all templates are known."""
    used = [_used_by(service) for service in directory.enabled(deployment)]
    known = [words for words in used if words is not None]
    if not known or len(known) < len(used):
        return frozenset()
    return deployment.variables.keys() - _used_everywhere(deployment).union(*known)


def _used_by(service: Service) -> Set[str] | None:
    """The words in its templates; None if one of these is unknown."""
    files = services.file_names(service.definition)
    # A template that is missing here is mounted in containers.
    if files is None or not files <= service.files.keys():
        return None
    return _words(text.text for _, text in services.template_texts(service.definition, service.files))


def _used_everywhere(deployment: Deployment) -> frozenset[str]:
    launch = [deployment.launch.defaults, *deployment.launch.services.values()]
    words = _words(text for settings in launch for text in _launch_texts(settings))
    return words.union(deployment.acl.variables if deployment.acl else ())


def _unused_files(service: Service, named: Set[str]) -> Iterator[Issue]:
    for name in service.files.keys() - named:
        what = f"no command of {service.name} has this file: name it under `files`, or remove it"
        yield Issue(WARNING, f"{service.name}/{FILES}/{name}", what)


def _unused_variables(service: Service, used: Set[str]) -> Iterator[Issue]:
    """One warning for each variable, even if it has values for many hosts."""
    places = {f"{host}/": values for host, values in service.variables.hosts.items()}
    reported: set[str] = set()
    for place, values in {"": service.variables.own, **places}.items():
        for name in values.keys() - used - reported:
            reported.add(name)
            what = f"no template of {service.name} uses the variable {name!r}: {REMEDY}"
            yield Issue(WARNING, f"{service.name}/{VARIABLES}/{place}{name}", what)


def _launch_texts(settings: ContainerSettings) -> Iterable[str]:
    return [settings.image or "", *(settings.ports or ()), *(settings.env or {}).values()]


def _words(texts: Iterable[str]) -> frozenset[str]:
    """All words in the expressions of templates, which include the names of variables."""
    parts = (part for text in texts if Text("", text).is_template for part in _PART.findall(text))
    return frozenset(word for part in parts for word in _WORD.findall(part))
