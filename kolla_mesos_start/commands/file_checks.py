"""Runs commands for config files: the check of a new file, and the command that notifies a daemon of it.

They run under a guard, so none outlives the agent. Nothing about them is written to ZooKeeper.
"""

from __future__ import annotations

import os

from kolla_mesos_start.commands.guard_client import Guard
from kolla_mesos_start.errors import CannotRender, CommandFailed, Unkillable
from kolla_mesos_start.loop import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.render.prepare import Prepared

TIMEOUT = 60.0  # seconds; a check that hangs must not block a container for ever
NO_NEWLINE = " (the content has no newline at its end)"
PLACE = "{}"  # in the command of a check: the path of the new file


class FileChecks:
    """Runs them with the environment and user of one prepared command.

    A context: its end kills what still runs.
    """

    def __init__(
        self,
        loop: Loop,
        service: str,
        prepared: Prepared,
        guard: Guard | None = None,
    ) -> None:
        """Without `guard` they get one of their own; `service` is its name in `ps`."""
        self._loop, self._service = loop, service
        self._environ, self._ids = prepared.environ, prepared.ids
        self._given = guard if guard and not guard.gone else None
        self._own: Guard | None = None

    def __enter__(self) -> FileChecks:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._own.close()

    def check(self, content: Content, path: str) -> None:
        """Check the new content of a file, at `path`. Raises CannotRender if it does not pass."""
        assert content.check is not None
        argv = [word.replace(PLACE, path) for word in content.check]
        if argv[:2] == ["/bin/sh", "-c"]:
            import shlex  # Few checks need a shell.

            argv[2] = content.check[2].replace(PLACE, shlex.quote(path))
        # It may print the file, which may contain secrets.
        failure = self._run(f"the check of {content.name}", argv, output=os.devnull)
        if failure:
            hint = NO_NEWLINE if content.data and not content.data.endswith(b"\n") else ""
            raise CannotRender(
                f"config file {content.name}: its check refuses the new content: {failure};"
                f" correct its template or variables; run it by hand to see its output{hint}"
            )

    def notify(self, argv: Sequence[str]) -> None:
        """Run the command that notifies the daemon of its new files. Raises CommandFailed."""
        failure = self._run("the command of on_change", argv)
        if failure:
            raise CommandFailed(f"the command of on_change failed: {failure}")

    def _run(self, name: str, argv: Sequence[str], output: str | None = None) -> str:
        """Why it failed, or empty text."""
        guard = self._given or self._own
        if guard is None:
            guard = self._own = Guard(self._loop, self._service)
        guard.spawn(argv, self._environ, self._ids, name=name, output=output)
        ended = self._loop.wait(lambda: guard.ended, now() + TIMEOUT)
        if not ended:
            guard.end(0)
            ended = self._loop.wait(lambda: guard.ended)
            assert ended is not None
            failure = f"still running after {TIMEOUT:g} s"
        else:
            failure = ended.failure
        if ended.unkillable:
            raise Unkillable(f"{name}: one of its processes can't be killed: the container has to end")
        return failure
