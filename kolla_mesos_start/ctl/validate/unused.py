"""Values of --secrets that nothing uses. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.definition.texts import Text


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
