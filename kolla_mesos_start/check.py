"""The `check` command: read and validate the definition, render all files, write nothing.

One line a file: what would change, mode, owner, digest, path. `--show` prints the content too,
secrets and all, for whoever may read ZooKeeper anyway.
"""

from __future__ import annotations

import hashlib
import sys

from kolla_mesos_start.definition.model import Graph
from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.files import Content, plan
from kolla_mesos_start.render.prepare import Preparer


def check(graph: Graph, preparer: Preparer, show: bool) -> None:
    """Print what starting the container would do to its files; raise what it would end with."""
    failures: list[AgentError] = []
    for command in graph.steps:
        try:
            for content in preparer.prepare(command).contents:
                _print(command.path, content, show)
        except AgentError as error:
            # The others are worth looking at too: one look should tell all that is wrong.
            print(f"{command.path}: {error.reason}")
            error.command = error.command or command.path
            failures.append(error)
    if failures:
        raise failures[0]
    print(f"{graph.service_name}: {len(graph.steps)} commands, all well")


def _print(command: str, content: Content, show: bool) -> None:
    if content.data is None:
        print(f"absent     {content.dest} ({command}: optional)")
        return
    uid, gid = content.owner
    digest = hashlib.sha256(content.data).hexdigest()
    print(f"{plan(content):<10} {content.mode:04o} {uid}:{gid} sha256:{digest} {content.dest} ({command})")
    if show:
        sys.stdout.flush()
        sys.stdout.buffer.write(content.data + b"\n" * (not content.data.endswith(b"\n")))
        sys.stdout.flush()
