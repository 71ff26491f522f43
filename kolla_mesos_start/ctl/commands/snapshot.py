"""`kolla_mesos_ctl snapshot`: save a deployment, with its completed one-time commands, to one file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from kolla_mesos_start.ctl.directory import private_file
from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.zk import archive, publication
from kolla_mesos_start.ctl.zk.archive import Snapshot
from kolla_mesos_start.ctl.zk.snapshots import counted, name_of, take
from kolla_mesos_start.tree.states import decode_detail
from kolla_mesos_start.zookeeper.view import Znode


def run(invocation: Invocation) -> int:
    """Write the file, which contains every secret; only its owner can read it."""
    client, file = invocation.client, invocation.options.file
    znodes = invocation.require_deployment()
    half = publication.interrupted(client, znodes)
    snapshot = take(client, znodes)
    half = half or publication.interrupted(client, znodes)  # A publication may have begun meanwhile.
    if half:
        invocation.err.print(
            f"warning: {half}: {file} may contain only a part of it; take another snapshot after it has"
            " finished",
        )
    for name in _unfinished(snapshot):
        invocation.err.print(f"{name} is running, or was interrupted: it has no outcome in the snapshot")
    private_file.write(file, archive.pack(snapshot))
    print(f"wrote {file}: {counted(snapshot)}")
    return 0


def _unfinished(snapshot: Snapshot) -> Iterator[str]:
    for path, data in snapshot.recorded.items():
        detail = decode_detail(Znode(data, None)) if path.endswith("/detail") else None
        if detail is not None and detail.started is not None and detail.finished is None:
            yield name_of(path.rpartition("/")[0])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the tar file to write, or to replace")


SUBCOMMAND = Subcommand(
    description="""\
Save the definitions, variables and files of the deployment, its completed one-time commands, and the members
and last decision of its elections to one tar file. It contains every secret, and only its owner can read it.
`restore` restores it, here or in another ensemble. Unpacked, it is a directory that can be published.
""",
    example="kolla_mesos_ctl snapshot site.tar --deployment site",
    add_arguments=_add_arguments,
    run=run,
)
