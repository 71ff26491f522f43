"""Prepares one command to run: renders its strings and files from what is published now.

All that a command needs is read together; if something is published meanwhile, it is read again.
Nothing is written here: `files` places the contents.
"""

from __future__ import annotations

import os
from functools import partial

from kolla_mesos_start.definition import schema
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.resolve import late_texts, resolve
from kolla_mesos_start.errors import BadDefinition, CannotRender
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.render import context
from kolla_mesos_start.render.context import Context, Renderer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Callable, TypeVar

    from kolla_mesos_start.accounts import Ids
    from kolla_mesos_start.definition.model import Command, File, Graph, Step
    from kolla_mesos_start.definition.texts import Text
    from kolla_mesos_start.files import Content
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.published import Definition, Facts, Published, Stamp, State, Variables
    from kolla_mesos_start.zookeeper.client import Seen

    T = TypeVar("T")
    Listed = Mapping[str, Sequence[str]]

log = Logger(__name__)


class Prepared(NamedTuple):
    """A command with all strings rendered, the ids that it runs with, and the contents of its files.

    `seen`: what in ZooKeeper all that was made from. `listed`: by file, the services whose instances stand
    in it.
    """

    step: Step
    ids: Ids | None
    contents: Sequence[Content]
    seen: Seen
    listed: Listed

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the command: `base`, the account of its user, and its own `env`."""
        account = {}
        if self.ids is not None and self.ids.name is not None:
            account = {"USER": self.ids.name, "LOGNAME": self.ids.name, "HOME": self.ids.home or "/"}
        return {**base, **account, **dict(self.step.env)}


class Inputs(NamedTuple):
    """What a command is rendered from: the content of each file (None if missing), templates, variables."""

    sources: Mapping[str, bytes | None]
    texts: Sequence[Text]
    variables: Mapping[str, str]


class Preparer:
    """Renders for one container. `facts` returns what this host registers."""

    def __init__(self, settings: Settings, published: Published, facts: Callable[[], Facts]) -> None:
        self.published, self.facts = published, facts
        self._settings, self._znodes = settings, published.znodes
        self._loop = published.client.loop

    def read_graph(self, definition: Definition) -> tuple[Graph, Mapping[str, Stamp | None]]:
        """The graph of a definition, and the stamps of the znodes that it comes from, None where none was.

        Its early templates are rendered with the published variables.
        """
        document = load(definition.data)
        texts = schema.early_texts(document)
        names = context.variable_names(texts, self._loop.compute)
        stamps: dict[str, Stamp | None] = {self._znodes.definition: (definition.version, definition.zxid)}
        variables: Mapping[str, str] = {}
        if names:
            variables, read, _ = self._variables(names)
            stamps.update(read)
        renderer = self._renderer(variables, texts)
        build = partial(schema.build, document, self._znodes.service_name, renderer.text)
        return self._checked(renderer, build), stamps

    def prepare(self, command: Command, with_files: bool = True, listed: Listed | None = None) -> Prepared:
        """Render the strings of a command and, with `with_files`, its files.

        `listed` is that of the files as they are now, if that is known. Raises CannotRender with all that is
        missing, BadDefinition for results that can't be used.
        """
        seen = self.published.client.seen = {}
        files = command.files if with_files else ()
        inputs = self._read(files, late_texts(command))
        renderer = self._renderer(inputs.variables, inputs.texts)
        contents = {
            file.name: renderer.content(file.name, data, file.template)
            for file in files
            if (data := inputs.sources[file.name]) is not None
        }
        missing_files = self._missing_files(files, inputs.sources)
        step = self._checked(renderer, lambda: resolve(command, renderer.text), missing_files)
        gone = {file.name: _gone(file, renderer.listed(file.name), listed) for file in step.files}
        placed = [_content(file, contents.get(file.name), gone[file.name]) for file in files and step.files]
        now = {
            file.name: [name for name, some in renderer.listed(file.name).items() if some] + gone[file.name]
            for file in step.files
        }
        return Prepared(step, self._ids(step), placed, seen, now)

    def _read(self, files: Sequence[File], strings: Sequence[Text]) -> Inputs:
        """Read all that the files and strings need, again if something is published meanwhile."""
        if not files and not strings:
            return Inputs({}, (), {})
        while True:
            before, sources = self._read_sources(files)
            texts = (*strings, *_templates(files, sources))
            variables, _, after = self._variables(context.variable_names(texts, self._loop.compute))
            if before == after:
                return Inputs(sources, texts, variables)

    def _variables(self, names: frozenset[str]) -> Variables:
        """Each variable from KOLLA_VARIABLES_DIR, or else from ZooKeeper."""
        if self._settings.variables_dir is None:
            return self.published.variables(names)
        from kolla_mesos_start.render import variables_dir

        given = variables_dir.read(self._settings.variables_dir, names)
        found = self.published.variables(names - given.keys())
        return found._replace(values={**found.values, **given})

    def _looked_at(self, name: str) -> Sequence[str]:
        """Where a variable may be, the first one wins."""
        given = self._settings.variables_dir
        return [*([] if given is None else [f"{given}/{name}"]), *self._znodes.variable(name)]

    def _checked(self, renderer: Renderer, make: Callable[[], T], missing_files: Sequence[str] = ()) -> T:
        """The result of `make`, which renders. What is missing is reported first: it causes other errors."""
        try:
            made = make()
        except BadDefinition:
            self._check(renderer, missing_files)
            raise
        self._check(renderer, missing_files)
        return made

    def _check(self, renderer: Renderer, missing_files: Sequence[str]) -> None:
        """Raise one CannotRender for all missing variables and all missing files."""
        try:
            renderer.check(self._looked_at)
        except CannotRender as error:
            raise CannotRender(", ".join([error.reason, *missing_files])) from error
        if missing_files:
            raise CannotRender("missing: " + ", ".join(missing_files))

    def _read_sources(self, files: Sequence[File]) -> tuple[State, Mapping[str, bytes | None]]:
        """What was published before, and the content of each file, None if it is missing."""
        state, published = self.published.files(file.name for file in files if file.mounted is None)
        return state, {
            file.name: published[file.name] if file.mounted is None else _read_mounted(file) for file in files
        }

    def _missing_files(self, files: Sequence[File], sources: Mapping[str, bytes | None]) -> Sequence[str]:
        """The files without content that are not optional, and where it was expected."""
        return [
            f"content of file {file.name} ({file.mounted or self._znodes.file(file.name)} does not exist)"
            for file in files
            if sources[file.name] is None and not file.optional
        ]

    def _renderer(self, variables: Mapping[str, str], texts: Sequence[Text]) -> Renderer:
        """A renderer for `texts`. The facts of this host are needed only if there is a template."""
        needed = any(text.is_template for text in texts)
        return Renderer(
            self._context(variables) if needed else None, self._settings.missing_is_empty, self._loop.compute
        )

    def _context(self, variables: Mapping[str, str]) -> Context:
        from kolla_mesos_start import host

        facts = self.facts()
        interface = facts["private_interface"]
        uninterrupted = self._loop.uninterrupted
        return Context(
            deployment_id=self._znodes.deployment_id,
            service_name=self._znodes.service_name,
            address=facts["private_address"],
            hostname=host.hostname(),
            host=self._znodes.host,
            api_interface=facts["api_interface"],
            variables=variables,
            members=uninterrupted(lambda service: self.published.members(service, interface)),
            parties=uninterrupted(lambda: self.published.parties(interface)),
            services=uninterrupted(self.published.services),
            ready_instances=uninterrupted(self.published.ready_instances),
            get_ip_address=partial(host.get_ip_address, self._settings),
            cpu_count=len(os.sched_getaffinity(0)),
            facts=facts,
            image_generation=self._settings.generation,
        )

    def _ids(self, step: Step) -> Ids | None:
        if step.user is None:
            return None
        from kolla_mesos_start import accounts

        ids = accounts.ids(step.user)
        # Without root a process can't change its ids, and if it is that user already it needn't.
        return None if ids.uid == os.geteuid() != 0 else ids


def _templates(files: Sequence[File], sources: Mapping[str, bytes | None]) -> Sequence[Text]:
    texts = (context.file_text(file.name, sources[file.name] or b"", file.template) for file in files)
    return [text for text in texts if text is not None]


def _read_mounted(file: File) -> bytes | None:
    assert file.mounted is not None
    try:
        with open(file.mounted, "rb") as source:
            return source.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRender(f"file {file.name}: {file.mounted} can't be read: {error.strerror}") from error


def _gone(file: File, listed: Mapping[str, bool], before: Listed | None) -> list[str]:
    """The services of which no instance is left, where the file shall stay as it was then."""
    if not file.keep_last or not os.path.lexists(file.dest):
        return []
    none = [name for name, some in listed.items() if not some]
    if before is None:
        return none if len(none) == len(listed) else []
    return [name for name in none if name in before.get(file.name, ())]


def _content(file: File, data: bytes | None, gone: Sequence[str]) -> Content:
    from kolla_mesos_start import accounts
    from kolla_mesos_start.files import Content

    uid, gid = accounts.owner_ids(file.owner) if file.owner else (None, None)
    check = file.check if isinstance(file.check, tuple) else None
    if gone:
        why = f"no instance of {', '.join(gone)} is left"
        log.warning("%s stays as it was: %s", file.dest, why)
        return Content(
            file.name, file.dest, uid, gid, file.mode, None, check, f"stays as it was: {why}", True
        )
    return Content(file.name, file.dest, uid, gid, file.mode, data, check)
