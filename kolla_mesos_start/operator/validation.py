"""A definition read before it is published, as every agent of its service will read it.

What lives here: finding what would end an agent while the operator can still correct it. Pure:
variables and files are given. What only an agent can know (where it runs, who else is present) is
left to the agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kolla_mesos_start.definition.document import Document
from kolla_mesos_start.definition.fields import BY_TEMPLATE
from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.definition.resolve import late_texts
from kolla_mesos_start.definition.schema import build, early_texts
from kolla_mesos_start.errors import BadDefinition, CannotRender
from kolla_mesos_start.render.context import BUILTIN, Context, Renderer, file_text, variable_names
from kolla_mesos_start.tree.znodes import Znodes

ADDRESS = "127.0.0.1"
# What templates can name, and only the agent knows.
KNOWN_TO_AGENTS = BUILTIN - {"deployment_id", "service_name"} | {"api_interface"}


def build_graph(
    document: Document, znodes: Znodes, variables: Mapping[str, str], *, missing_is_empty: bool = False
) -> Graph | None:
    """The graph that an agent will build, or None if only an agent can build it.

    Raises BadDefinition or CannotRender if no agent can. Where numbers and dependencies come from a
    template that names what only the agent knows, their values are not checked.
    """
    renderer = Renderer(_context(znodes, variables), missing_is_empty)
    guessed = any(name in text.text for text in early_texts(document) for name in KNOWN_TO_AGENTS)
    try:
        graph = build(document, znodes.service_name, renderer.text)
    except CannotRender:
        if guessed:
            return None
        raise
    except BadDefinition as error:
        _check_missing(renderer, znodes, guessed)
        issues = [issue for issue in error.issues if not (guessed and BY_TEMPLATE in issue)]
        if issues:
            raise BadDefinition(issues) from error
        return None
    _check_missing(renderer, znodes, guessed)
    return graph


def _context(znodes: Znodes, variables: Mapping[str, str]) -> Context:
    """The published variables, and an agent that is alone on a host without a network."""
    return Context(
        deployment_id=znodes.deployment_id,
        service_name=znodes.service_name,
        address=ADDRESS,
        hostname="localhost",
        api_interface="lo",
        variables=variables,
        members=lambda service: (),
        parties=dict,
        services=lambda role: (),
        ready_instances=lambda service: (),
        get_ip_address=lambda interface: ADDRESS,
        cpu_count=1,
        facts={},
    )


def _check_missing(renderer: Renderer, znodes: Znodes, guessed: bool) -> None:
    """Raise CannotRender for missing variables: what they leave out would look like a wrong value."""
    if not guessed or any(missing.is_variable for missing in renderer.missing):
        renderer.check(znodes.variable)


def check_templates(graph: Graph, files: Mapping[str, bytes]) -> None:
    """Raise CannotRender for a template that jinja2 can't read, though it is rendered much later."""
    for command in graph.steps:
        variable_names(late_texts(command))
        for file in command.files:
            template = file_text(file.name, files.get(file.name, b""), file.template)
            variable_names([template] if template else [])


def needed_files(graph: Graph, znodes: Znodes) -> Iterator[tuple[str, str]]:
    """The path of each file's content that must exist, and where the definition names the file."""
    for command in graph.steps:
        for file in command.files:
            if file.mounted is None and not file.optional:
                yield znodes.file(file.name), f"{command.label}.files.{file.name}"
