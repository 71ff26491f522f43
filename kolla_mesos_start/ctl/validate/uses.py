"""What uses what: the services that depend on another one, and values that nothing uses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kolla_mesos_start.ctl.directory.directory import Deployment, Service
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.validate.rules import known_graph
from kolla_mesos_start.ctl.zk import published, services
from kolla_mesos_start.ctl.zk.published import Nodes
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Members
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.tree.znodes import Znodes


def dependents(nodes: Nodes, znodes: Znodes, given: Mapping[str, str]) -> list[str]:
    """The names of other services that wait for a command, the daemon or the members of this service.

    If another service has the same role, only services that wait for its members depend on this one. `given`
    are the variables of KOLLA_VARIABLES_DIR. An unreadable definition has no dependencies.
    """
    name = znodes.service_name
    deployment = published.deployment(nodes)
    others = [each for each in deployment.services if each.definition and each.name != name]
    needed = {name} if _role(name) in {_role(each.name) for each in others} else {name, f"{_role(name)}/"}
    return sorted(
        each.name
        for each in others
        if needed.intersection(_needs(deployment, each, znodes._replace(service_name=each.name), given))
    )


def _role(service: str) -> str:
    return service.rpartition("/")[2]


def _needs(
    deployment: Deployment, service: Service, znodes: Znodes, given: Mapping[str, str]
) -> Iterator[str]:
    """The services that it waits for, and the roles, which end with /."""
    try:
        document = load(service.definition)
    except BadDefinition:
        return
    for values in ({}, *service.variables.hosts.values()):
        contents = {**deployment.variables, **service.variables.own, **values}
        variables = {name: data.decode(errors="replace") for name, data in contents.items()}
        for command in known_graph(document, znodes, {**variables, **given}).all_commands:
            for each in command.inside:
                yield each.service if isinstance(each, Members) else f"{each.role}/"


def without_unused_secrets(source: Source) -> tuple[Source, Sequence[str]]:
    """The deployment without the values of --secrets that only this file has and nothing uses; their names.

    kolla-ansible's passwords.yml has a value for each service that exists. Nothing is left out if one of the
    templates is not in the directory, because it is mounted in containers.
    """
    deployment = source.deployment
    used = set(deployment.acl.variables if deployment.acl else ())
    for service in deployment.services:
        files = services.file_names(service.definition)
        if files is None or not files <= service.files.keys():
            return source, ()
        used |= services.used_variables(service.definition, service.files)
    for settings in (deployment.launch.defaults, *deployment.launch.services.values()):
        texts = [settings.image or "", *(settings.ports or ()), *(settings.env or {}).values()]
        used.update(*(services.names_in(Text(text, text)) for text in texts))
    left = sorted(source.undeclared - used) if deployment.services else []
    kept = {name: value for name, value in deployment.variables.items() if name not in left}
    return source._replace(deployment=deployment._replace(variables=kept)), left
