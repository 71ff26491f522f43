"""The `check` command: validates the definition and renders all files, but writes nothing.

It prints the server and our identity, and one line for each file: the change, mode, owner, digest and path.
`--show` prints the content too, with all secrets.
"""

from __future__ import annotations

import hashlib
import sys

from kolla_mesos_start.errors import AgentError, CannotWrite, Stopped, cause
from kolla_mesos_start.files.plan import plan
from kolla_mesos_start.files.written import Written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.definition.model import Graph
    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.render.prepare import Preparer


class OutputClosed(CannotWrite):
    """Standard output can't be written."""


def check(graph: Graph, preparer: Preparer, record: str, show: bool) -> int:
    """Print what a start would do to the container's files; raise the error that would end the start.

    `record`: the path of that of `files.written`; empty if a start removes nothing. Returns how many files
    would change.
    """
    session = preparer.published.client.session
    tls = "over TLS" if session.servers.ca else "without TLS"
    _say(f"connected to {session.server} {tls}, as {session.servers.identity}")
    failures: list[AgentError] = []
    wanted: list[Content] = []
    changes: dict[str, bool] = {}  # by dest: several commands may write one file
    for command in graph.all_commands:
        try:
            contents = preparer.prepare(command).contents
            wanted += contents
            for content in contents:
                change = plan(content)
                changes[content.dest] = changes.get(content.dest, False) or change != "unchanged"
                _print(command.path, content, change, show)
        except (Stopped, OutputClosed):
            raise
        except AgentError as error:
            # Continue: one check should show all errors.
            _say(f"{command.path}: {error.reason}")
            error.command = error.command or command.path
            failures.append(error)
    if failures:
        raise failures[0]
    for command in graph.all_commands if record else ():
        for content in Written(record, command.path, graph).no_longer_in(wanted):
            if content.dest not in changes:
                changes[content.dest] = True
                _say(f"remove     {content.dest} (would be removed: it is no longer in the definition)")
    count, steps = sum(changes.values()), len(graph.all_commands)
    _say(
        f"{graph.service_name}: {steps} command{'s' if steps > 1 else ''} checked, no errors; "
        f"{count or 'none'} of {len(changes)} files would change"
    )
    return count


def _print(command: str, content: Content, change: str, show: bool) -> None:
    if content.data is None:
        _say(f"absent     {content.dest} ({command}: {content.kept or 'optional'})")
        return
    uid, gid = content.owner
    digest = hashlib.sha256(content.data).hexdigest()
    shown = content.data + b"\n" * (not content.data.endswith(b"\n")) if show else b""
    _say(f"{change:<10} {content.mode:04o} {uid}:{gid} sha256:{digest} {content.dest} ({command})", shown)


def _say(line: str, data: bytes = b"") -> None:
    try:
        print(line, flush=True)
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        raise OutputClosed(f"standard output can't be written: {cause(error)}") from error
