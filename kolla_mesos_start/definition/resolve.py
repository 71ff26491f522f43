"""Renders and checks all strings of one command, right before it runs."""

from __future__ import annotations

from kolla_mesos_start.definition import argv, strings
from kolla_mesos_start.definition.document import Reading
from kolla_mesos_start.definition.model import ResolvedCommand
from kolla_mesos_start.definition.strings import Text, labelled, rendered_by, sublabel
from kolla_mesos_start.errors import BadDefinition, Issue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.definition.model import BeforeStop, Command, File, OnChange
    from kolla_mesos_start.definition.ready import Ready
    from kolla_mesos_start.definition.strings import Render


def resolve(command: Command, render: Render) -> ResolvedCommand:
    """The command with all its strings rendered. Raises BadDefinition for results that can't be used.

    `render` is called with the templates that `late_texts` returns.
    """
    step, issues = _resolve(command, render)
    if issues:
        raise BadDefinition(issues)
    return step


def late_texts(command: Command) -> tuple[Text, ...]:
    """The templates that `resolve` renders: command, env, user, ready; dest, owner, perm of files."""
    return rendered_by(lambda render: _resolve(command, render))


def _resolve(command: Command, render: Render) -> tuple[ResolvedCommand, list[Issue]]:
    resolver = _Resolver(Reading(render), command.label)
    line = resolver.line("command", command.command)
    resolved = command._replace(
        command=line.argv,
        env=tuple((name, resolver.text(sublabel("env", name), value)) for name, value in command.env),
        files=tuple(resolver.file(file) for file in command.files),
        user=resolver.optional("user", command.user, strings.bad_user),
        ready=command.ready and resolver.ready(command.ready),
        on_change=command.on_change and resolver.on_change(command.on_change),
        election=command.election
        and command.election._replace(start=resolver.line("election.start", command.election.start).argv),
        before_stop=command.before_stop and resolver.before_stop(command.before_stop),
    )
    program = _program(command.command, line)
    return ResolvedCommand(resolved, line.argv, line.shell, line.lacks_exec, program), resolver.reading.issues


def _program(command: str | tuple[str, ...], line: argv.CommandLine) -> str | None:
    """The only part of a command that messages may contain; None if it comes from a template."""
    first = command if isinstance(command, str) else "".join(command[:1])
    named = line.argv and not line.shell and not Text("command", first).is_template
    return line.argv[0] if named else None


class _Resolver:
    """Renders and checks the strings of one command; `key` is each one's label below the command's."""

    def __init__(self, reading: Reading, label: str) -> None:
        self.reading = reading
        self._label = label

    def text(self, key: str, text: str, form: strings.Form = strings.any_text) -> str:
        return self.reading.resolve(Text(f"{self._label}.{key}", text), form)

    def optional(self, key: str, text: str | None, form: strings.Form) -> str | None:
        return None if text is None else self.text(key, text, form)

    def line(self, key: str, command: str | tuple[str, ...]) -> argv.CommandLine:
        """A string is rendered first and split later; the items of a list are never split."""
        if isinstance(command, str):
            command = self.text(key, command)
        else:
            command = tuple(self.text(label, item) for label, item in labelled(key, command))
        try:
            return argv.parse(command)
        except ValueError as error:
            self.reading.report(f"{self._label}.{key}", str(error))
            return argv.CommandLine((), shell=False)

    def file(self, file: File) -> File:
        label = sublabel("files", file.name)
        return file._replace(
            dest=self.text(f"{label}.dest", file.dest, strings.bad_file),
            owner=self.optional(f"{label}.owner", file.owner, strings.bad_owner),
            perm=self.text(f"{label}.perm", file.perm, strings.bad_perm),
            check=None if file.check is None else self.line(f"{label}.check", file.check).argv,
        )

    def ready(self, ready: Ready) -> Ready:
        if ready.kind == "http":
            return ready._replace(value=self.text("ready.http", str(ready.value), strings.bad_url))
        if ready.kind == "command" and isinstance(ready.value, (str, tuple)):
            line = self.line("ready.command", ready.value)
            return ready._replace(value=line.argv, program=_program(ready.value, line))
        return ready

    def on_change(self, on_change: OnChange) -> OnChange:
        if on_change.kind == "command" and on_change.value is not None:
            return on_change._replace(value=self.line("on_change.command", on_change.value).argv)
        if on_change.kind == "restart":
            text = f"{{{{ {strings.RESTARTED} | default('') }}}}"
            return on_change._replace(value=self.text("on_change.restart", text))
        return on_change

    def before_stop(self, before_stop: BeforeStop) -> BeforeStop:
        line = self.line("before_stop", before_stop.command)
        return before_stop._replace(command=line.argv, program=_program(before_stop.command, line))
