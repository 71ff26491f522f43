"""Runs commands for config files: the check of a new file, and the command that notifies a daemon of it.

They run under a guard, so none outlives the agent. Nothing about them is written to ZooKeeper.
"""

from __future__ import annotations

import os

from kolla_mesos_start.errors import CannotRender, CommandFailed, Unkillable
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.commands.guard_client import Guard
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.loop import Loop
    from kolla_mesos_start.render.prepare import Prepared

TIMEOUT = 60.0  # seconds; a check that hangs must not block a container for ever
NO_NEWLINE = " (the content has no newline at its end)"
PLACE = "{}"  # in the command of a check: the path of the new file


class FileCommands(NamedTuple):
    """They run with the environment and user of one prepared command."""

    loop: Loop
    guard: Guard
    prepared: Prepared

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
        guard, prepared = self.guard, self.prepared
        guard.spawn(argv, prepared.environ, prepared.ids, name=name, output=output)
        timed_out = not self.loop.wait(lambda: guard.ended, now() + TIMEOUT)
        if timed_out:
            guard.end(0)
        ended = self.loop.wait(lambda: guard.ended)
        assert ended is not None
        if ended.unkillable:
            raise Unkillable(f"{name}: one of its processes can't be killed: the container has to end")
        if ended.passes:
            raise CommandFailed(f"{name}: {ended.failure}").for_now()
        return f"still running after {TIMEOUT:g} s" if timed_out else ended.failure
