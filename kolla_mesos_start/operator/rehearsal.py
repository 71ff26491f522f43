"""A definition read before it is published, as every agent of its service is going to read it.

What lives here: what would end an agent, found where the operator sees it. Pure: variables and
files are given. What only an agent can know, where it is and who else is there, is left to it.
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
# What templates can name and nobody but the agent knows.
AGENT_KNOWS = BUILTIN - {"deployment_id", "service_name"} | {"api_interface"}


class Rehearsal:
    """A definition read as an agent will read it, but for what only the agent can know.

    Where it is, and who else is there, decide on numbers and dependencies whose templates ask
    for that; what is wrong with these is left to the agent.
    """

    def __init__(self, znodes: Znodes, variables: Mapping[str, str], missing_is_empty: bool) -> None:
        self.znodes = znodes
        self.renderer = Renderer(
            Context(
                deployment_id=znodes.deployment_id,
                service_name=znodes.service_name,
                address=ADDRESS,
                hostname="localhost",
                private_interface="lo",
                api_interface="lo",
                variables=variables,
                members=lambda service: (),
                parties=dict,
                ready_instances=lambda service: (),
                get_ip_address=lambda interface: ADDRESS,
                cpu_count=1,
                facts={},
            ),
            missing_is_empty,
        )

    def build(self, document: Document) -> Graph | None:
        """The graph, or None if only an agent can build it; BadDefinition, CannotRender if none can."""
        texts = early_texts(document)
        guessed = any(name in text.text for text in texts for name in AGENT_KNOWS)
        try:
            graph = build(document, self.znodes.service_name, self.renderer.text)
        except CannotRender:
            if guessed:
                return None
            raise
        except BadDefinition as error:
            self.check_missing(guessed)
            issues = [issue for issue in error.issues if not (guessed and BY_TEMPLATE in issue)]
            if issues:
                raise BadDefinition(issues) from error
            return None
        self.check_missing(guessed)
        return graph

    def check_missing(self, guessed: bool) -> None:
        """Raise CannotRender for what is missing. It comes first: its gaps look like wrong values."""
        if not guessed or any(missing.is_variable for missing in self.renderer.missing):
            self.renderer.check(self.znodes.variable)


def check_templates(graph: Graph, files: Mapping[str, bytes]) -> None:
    """Raise CannotRender for a template that jinja2 can't read, though it is rendered much later."""
    for command in graph.steps:
        variable_names(late_texts(command))
        for file in command.files:
            template = file_text(file.name, files.get(file.name, b""), file.template)
            variable_names([template] if template else [])


def needed_files(graph: Graph, znodes: Znodes) -> Iterator[tuple[str, str]]:
    """The path of each file's content that has to be there, and where the definition wants it."""
    for command in graph.steps:
        for file in command.files:
            if file.mounted is None and not file.optional:
                yield znodes.file(file.name), f"{command.label}.files.{file.name}"
