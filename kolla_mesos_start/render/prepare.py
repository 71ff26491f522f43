"""Prepares one command to run: renders its strings and files from what is published now.

All inputs of a command are read together, and again if something is published meanwhile. Nothing is written
here: `files` places the contents.
"""

from __future__ import annotations

import json
import os
from functools import partial

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import generations, load
from kolla_mesos_start.definition.resolve import late_texts, resolve
from kolla_mesos_start.definition.strings import is_encrypted, untidy
from kolla_mesos_start.errors import AccessDenied, BadDefinition, CannotRender, listed
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.render import context
from kolla_mesos_start.render.context import Context, Renderer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Callable, TypeVar

    from kolla_mesos_start.definition.model import Command, Dependency, File, Graph, ResolvedCommand
    from kolla_mesos_start.definition.strings import Text
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.host.accounts import Ids
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.tree.published import Definition, Facts, Published, Stamp, Variables
    from kolla_mesos_start.zookeeper.client import Seen

    T = TypeVar("T")
    Listed = Mapping[str, Sequence[str]]

log = Logger(__name__)

RESTARTED = "/restarted"  # among digests; no file has this name


class Prepared(NamedTuple):
    """A command with all strings rendered, its user's ids, its environment, and the contents of its files.

    `seen`: the znodes that it was rendered from. `listed`: for each file, the services whose instances it
    lists. `read`: a zxid; the values and contents include every change up to it.
    """

    step: ResolvedCommand
    ids: Ids | None
    environ: Mapping[str, str]
    contents: Sequence[Content]
    seen: Seen
    listed: Listed
    read: int

    @property
    def digests(self) -> dict[str, int]:
        """A digest of each file that has content: of its data, dest, owner and mode.

        Also of the last request to restart the daemon.
        """
        import zlib  # Only a daemon with `on_change` needs it.

        on_change = self.step.command.on_change
        requested = on_change.value if on_change and on_change.kind == "restart" else ""
        return {
            **({RESTARTED: zlib.crc32(str(requested).encode())} if requested else {}),
            **{
                content.name: zlib.crc32(content.data, zlib.crc32(repr(content).encode()))
                for content in self.contents
                if content.data is not None
            },
        }

    @property
    def optional(self) -> list[str]:
        """The published files that need no content, but have one."""
        return [
            file.name
            for file, content in zip(self.step.command.files, self.contents)
            if file.optional and file.mounted is None and (content.data is not None or content.kept)
        ]


class Generation(NamedTuple):
    """The generation that is published for a one-time command.

    `name` is None if the command has no generation, or if it is not known: then `unknown` says why. `stamps`
    are those of the znodes that it was read from.
    """

    name: str | None
    stamps: Mapping[str, Stamp | None]
    unknown: str = ""


class Preparer:
    """Renders for one container. `facts` returns the facts that this host registers.

    `election`: what templates of the daemon see, once it is known.
    """

    def __init__(self, settings: Settings, published: Published, facts: Callable[[], Facts]) -> None:
        self.published, self.facts = published, facts
        self.election: Mapping[str, str] | None = None
        self._settings, self._znodes = settings, published.znodes
        self._untidy: set[str] = set()  # variables that a warning has named

    def read_graph(self, definition: Definition) -> tuple[Graph, Mapping[str, Stamp | None]]:
        """The graph of a definition, and the stamps of the znodes that it was read from (None: no znode).

        Its early templates are rendered with the published variables, which are read between the two passes
        over the definition: see `keys`.
        """
        document = load(definition.data)
        texts = keys.early_texts(document)
        names = context.variable_names(texts)
        stamps: dict[str, Stamp | None] = {self.published.source: (definition.version, definition.zxid)}
        variables: Mapping[str, str] = {}
        if names:
            variables, read, _ = self._variables(names)
            stamps.update(read)
        renderer = self._renderer(variables, texts)
        build = partial(keys.build, document, self._znodes.service_name, renderer.text)
        return self._checked(renderer, build), stamps

    def prepare(self, command: Command, with_files: bool = True, before: Listed | None = None) -> Prepared:
        """Render the strings of a command and, with `with_files`, its files.

        `before`: which instances the current files list, if known (see Prepared). Raises CannotRender with
        everything that is missing, BadDefinition for invalid results.
        """
        seen = self.published.client.record()
        files = command.files if with_files else ()
        sources, texts, variables, read = self._read(files, late_texts(command))
        renderer = self._renderer(variables, texts)
        contents = {
            file.name: renderer.content(file.name, data, file.template)
            for file in files
            if (data := sources[file.name]) is not None
        }
        missing_files = [
            f"content of file {file.name} ({file.mounted or self._znodes.file(file.name)} does not exist)"
            for file in files
            if sources[file.name] is None and not file.optional
        ]
        step = self._checked(renderer, lambda: resolve(command, renderer.text), missing_files)
        gone = {file.name: _gone(file, renderer.listed(file.name), before) for file in step.command.files}
        placed = [
            _content(file, contents.get(file.name), gone[file.name]) for file in files and step.command.files
        ]
        listed_now = {
            file.name: [name for name, some in renderer.listed(file.name).items() if some] + gone[file.name]
            for file in step.command.files
        }
        ids = self._ids(step)
        account = {}
        if ids is not None and ids.name is not None:
            account = {"USER": ids.name, "LOGNAME": ids.name, "HOME": ids.home or "/"}
        if ids is not None:
            _warn_unless_readable(placed, ids)
        environ = {**self._settings.environ, **account, **dict(step.command.env)}
        return Prepared(step, ids, environ, placed, seen, listed_now, read)

    # -- the generation of another service's command ------------------------------------------------

    def published_generation(self, dependency: Dependency) -> Generation:
        """The generation that is published for the command of the dependency."""
        try:
            for service in self.published.services(dependency.role):
                try:
                    return self._generation(service, dependency)
                except AccessDenied:  # With an acl.yml only a service's own agents may read its definition.
                    return self._generation(service, dependency, recorded=True)
        except (AccessDenied, BadDefinition, CannotRender) as error:
            return Generation(None, {}, error.reason)
        return Generation(None, {}, f"no service has claimed the role {dependency.role}")

    def _generation(self, service: str, dependency: Dependency, *, recorded: bool = False) -> Generation:
        """`recorded`: read the part of the definition that is recorded for all services."""
        from kolla_mesos_start.tree.published import Published

        znodes = self._znodes._replace(service_name=service)
        published = Published(
            self.published.client, znodes, znodes.recorded_generations if recorded else None
        )
        definition = published.definition()
        read = {published.source: (definition.version, definition.zxid)}
        command = generations(load(definition.data).root).get(dependency.name)
        if command is None:
            return Generation(None, read)
        if context.IMAGE_GENERATION in str(command["generation"]):
            return Generation(None, read, f"it is that of any image that runs {dependency.path}")
        # The agents of that service read the rest; here it need not even be valid.
        alone = {"commands": {dependency.name: {"command": "true", **command}}}
        # Its images may be of any generation.
        other = Preparer(self._settings._replace(generation=None), published, self.facts)
        graph, stamps = other.read_graph(definition._replace(data=json.dumps(alone).encode()))
        target = graph.commands[0]
        return Generation(target.generation if target.run_once == dependency.scope else None, stamps)

    # -- what is read -------------------------------------------------------------------------------

    def _read(
        self, files: Sequence[File], strings: Sequence[Text]
    ) -> tuple[Mapping[str, bytes | None], Sequence[Text], Mapping[str, str], int]:
        """Read everything that the files and strings need, again if something is published meanwhile.

        Returns the content of each file (None if missing), all templates, their variables, and `read`: see
        Prepared.
        """
        client = self.published.client
        if not files and not strings:
            return {}, (), {}, client.session.zxid
        while True:
            # Later reads include everything that the server has answered by now.
            read = client.session.zxid
            before, published = self.published.files(file.name for file in files if file.mounted is None)
            sources = {
                file.name: published[file.name] if file.mounted is None else _read_mounted(file)
                for file in files
            }
            contents = (
                context.file_text(file.name, sources[file.name] or b"", file.template) for file in files
            )
            texts = (*strings, *filter(None, contents))
            variables, _, after = self._variables(context.variable_names(texts))
            if before == after and max(zxid or 0 for zxid in client.seen.values()) <= read:
                return sources, texts, variables, read

    def _variables(self, names: frozenset[str]) -> Variables:
        """Each variable from KOLLA_VARIABLES_DIR, or else from ZooKeeper."""
        if self._settings.variables_dir is None:
            found = self.published.variables(names)
        else:
            from kolla_mesos_start.render import variables_dir

            given = variables_dir.read(self._settings.variables_dir, names)
            found = self.published.variables(names - given.keys())
            found = found._replace(values={**found.values, **given})
        for name, value in found.values.items():
            if name not in self._untidy and untidy(value):
                self._untidy.add(name)
                log.warning("the variable %s %s, which becomes a part of what uses it", name, untidy(value))
        return found

    def _checked(self, renderer: Renderer, make: Callable[[], T], missing_files: Sequence[str] = ()) -> T:
        """The result of `make`, which renders. Missing values are reported first: they cause other errors."""
        try:
            made = make()
        except BadDefinition:
            self._check(renderer, missing_files)
            raise
        self._check(renderer, missing_files)
        return made

    def _check(self, renderer: Renderer, missing_files: Sequence[str]) -> None:
        """Raise one CannotRender for all missing variables and all missing files."""
        given = self._settings.variables_dir

        def places(name: str) -> Sequence[str]:
            """Those of a variable; the first one that exists wins."""
            return [*([] if given is None else [f"{given}/{name}"]), *self._znodes.variable(name)]

        try:
            renderer.check(places)
        except CannotRender as error:
            reason = ", ".join([error.reason, *missing_files])
            raise CannotRender(f"{reason}{self._remedy(renderer)}") from error
        if missing_files:
            raise CannotRender("missing: " + ", ".join(missing_files))

    def _remedy(self, renderer: Renderer) -> str:
        """For which other hosts the missing variables have a value, and how to set one."""
        names = sorted(
            {each.name for each in renderer.missing if each.is_variable} - {context.IMAGE_GENERATION}
        )
        if not names:
            return ""
        elsewhere = self.published.hosts_with(names)
        others = "".join(
            f"; {name} has a value for {listed(hosts)} only" for name, hosts in elsewhere.items()
        )
        value, name = ("a value", names[0]) if len(names) == 1 else ("values", "NAME")
        return f"{others}; publish {value}, or use `kolla_mesos_ctl set {name}`"

    def _renderer(self, variables: Mapping[str, str], texts: Sequence[Text]) -> Renderer:
        """A renderer for `texts`. The facts of this host are only collected if there is a template."""
        is_needed = any(text.is_template for text in texts)
        found = self._context(variables, texts) if is_needed else None
        return Renderer(found, self._settings.missing_is_empty)

    def _context(self, variables: Mapping[str, str], texts: Sequence[Text]) -> Context:
        from kolla_mesos_start.host import network

        # A host may have no address, or none yet.
        names = context.ADDRESSED - variables.keys()
        is_addressed = any(name in text.text for text in texts for name in names)
        facts = self.facts() if is_addressed else {}
        interface = facts.get("private_interface", "")
        return Context(
            deployment_id=self._znodes.deployment_id,
            service_name=self._znodes.service_name,
            address=facts.get("private_address", ""),
            hostname=network.hostname(),
            host=self._znodes.host,
            api_interface=facts.get("api_interface", ""),
            variables=variables,
            members=lambda service: self.published.members(service, interface),
            parties=lambda: self.published.parties(interface),
            services=self.published.services,
            ready_instances=self.published.ready_instances,
            get_ip_address=partial(network.get_ip_address, self._settings),
            cpu_count=_processors() if any("cpu_count" in text.text for text in texts) else 1,
            facts=facts,
            image_generation=self._settings.generation,
            election=self.election,
        )

    def _ids(self, step: ResolvedCommand) -> Ids | None:
        if step.command.user is None:
            return None
        from kolla_mesos_start.host import accounts

        return accounts.to_become(step.command.user)


def _processors() -> int:
    from kolla_mesos_start.host import processors  # Few templates use it.

    return processors.usable()


def _read_mounted(file: File) -> bytes | None:
    assert file.mounted is not None
    from kolla_mesos_start.files.paths import read_regular

    try:
        data = read_regular(file.mounted)
    except FileNotFoundError:
        return None
    except OSError as error:
        from kolla_mesos_start.files.permissions import reading

        why = reading(file.mounted, error)
        failed = CannotRender(f"file {file.name}: {file.mounted} can't be read: {why}")
        raise failed.because(error.errno) from error
    if is_encrypted(data):
        raise CannotRender(
            f"file {file.name}: {file.mounted} is still encrypted by ansible-vault: mount it decrypted"
        )
    return data


def _warn_unless_readable(contents: Sequence[Content], ids: Ids) -> None:
    for content in contents if ids.uid else ():
        uid, gid = content.owner
        right = 0o400 if uid == ids.uid else 0o040 if gid in (ids.gid, *ids.groups) else 0o004
        if not content.mode & right:
            log.warning(
                "file %s: uid %d, which the command becomes, can't read it: it belongs to uid %d, gid %d,"
                " with mode %04o: set its `owner` to that user, or its `perm`",
                *(content.name, ids.uid, uid, gid, content.mode),
            )


def _gone(file: File, listed: Mapping[str, bool], before: Listed | None) -> list[str]:
    """The services without instances because of which the file keeps its content (`keep_last`)."""
    if not file.keep_last or not os.path.lexists(file.dest):
        return []
    none = [name for name, some in listed.items() if not some]
    if before is None:
        return none if len(none) == len(listed) else []
    return [name for name in none if name in before.get(file.name, ())]


def _content(file: File, data: bytes | None, gone: Sequence[str]) -> Content:
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.host import accounts

    uid, gid = accounts.owner_ids(file.owner) if file.owner else (None, None)
    check = file.check if isinstance(file.check, tuple) else None
    if gone:
        why = f"no instance of {', '.join(gone)} is left"
        log.warning("%s stays as it was: %s", file.dest, why)
        return Content(file.name, file.dest, uid, gid, file.mode, None, check, f"stays as it was: {why}")
    return Content(file.name, file.dest, uid, gid, file.mode, data, check)
