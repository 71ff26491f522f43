"""`kolla_mesos_ctl restore`: make a deployment equal to a snapshot, here or in another ensemble.

    check -> empty the definitions, remove records -> variables, files -> completed commands -> definitions

Containers wait for definitions. These are written last, so that a container that starts finds which commands
are done, and no record of another ensemble looks newer than its definition.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kolla_mesos_start.ctl.invocation import DECLINED, Invocation, Subcommand, add_yes
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.ctl.zk import acls, archive, elections, publication, removal
from kolla_mesos_start.ctl.zk.archive import Snapshot
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile
from kolla_mesos_start.ctl.zk.publication import Held
from kolla_mesos_start.ctl.zk.publisher import check_chroot
from kolla_mesos_start.ctl.zk.restoration import (
    is_status_there,
    old_tree,
    plan_of,
    with_elections,
    write,
)
from kolla_mesos_start.ctl.zk.snapshots import counted, done_commands, take
from kolla_mesos_start.errors import BadDefinition, BadUsage
from kolla_mesos_start.tree.publication import RESTORE


class BadSnapshot(BadDefinition):
    """A file that is not a complete snapshot."""

    def __init__(self, file: Path, issues: Sequence[str]) -> None:
        self.subject = str(file)
        super().__init__(issues)


def run(invocation: Invocation) -> int:
    """Restore a snapshot. A different deployment is replaced only after a confirmation."""
    client = invocation.client
    wanted = _read(invocation.options.file)
    check_chroot(client, invocation.settings)
    znodes = invocation.znodes
    plan = plan_of(client, invocation.options.file, wanted)
    if plan:
        acls.require_operator(client, znodes, plan)
        client.plan = plan
    with publication.locked(client, znodes, RESTORE, action="restore") as lock:
        return _restore(invocation, lock, wanted)


def _restore(invocation: Invocation, lock: Held, wanted: Snapshot) -> int:
    client, znodes, file = invocation.client, invocation.znodes, invocation.options.file
    found = take(client, znodes)
    given, wanted = wanted, with_elections(wanted, found)
    same = (found.published, found.recorded) == (wanted.published, wanted.recorded)
    same = same and found.floor >= wanted.floor
    if same and wanted.acl in (b"", found.acl):
        lock.publish([], {})  # An earlier restore may have been interrupted just before its end.
        print(f"{znodes.deployment} is already as in {file}: {counted(wanted)}")
        return 0
    plan = plan_of(client, file, wanted)
    tree = (
        old_tree(client, znodes, found, wanted)
        if found.published or is_status_there(client, znodes)
        else None
    )
    if tree:
        there = removal.who_is_there(client, tree)
        if there:
            raise removal.InUse(f"{there}: stop them first; nothing was changed")
        _print_differences(invocation, found, wanted)
        for role in sorted(elections.changed(given.recorded, wanted.recorded)):
            invocation.err.print(f"the record of the election of {role} stays as it is now")
        what = f"replace {znodes.deployment} by what was {_origin(wanted)}"
        if not invocation.confirmed(what):
            return DECLINED
    if plan:
        acls.secure(client, znodes, plan)
    lock.begin()
    if tree:
        removal.remove(client, tree)
    write(client, znodes, lock, wanted, plan)
    if take(client, znodes).published != wanted.published:
        raise ChangedMeanwhile(
            f"somebody else has changed {znodes.deployment} meanwhile; restore it once more"
        )
    print(f"restored {znodes.deployment} to what was {_origin(wanted)}: {counted(wanted)}")
    return 0


def _read(file: Path) -> Snapshot:
    """The snapshot in the file."""
    try:
        return archive.unpack(file.read_bytes())
    except FileNotFoundError as error:
        raise NotThere(f"{file} does not exist") from error
    except OSError as error:
        raise BadUsage(f"{file} can't be read: {error.strerror}") from error
    except BadDefinition as error:
        raise BadSnapshot(file, error.issues) from error


def _origin(snapshot: Snapshot) -> str:
    return f"{snapshot.deployment} at {snapshot.taken}"


def _print_differences(invocation: Invocation, found: Snapshot, wanted: Snapshot) -> None:
    """Print the paths of the differences, never values."""
    for path in sorted({*found.published, *wanted.published}):
        before, after = found.published.get(path), wanted.published.get(path)
        if before != after:
            change = "new" if before is None else "removed" if after is None else "changed"
            invocation.err.print(f"{change:7} {path}")
    done, stays = set(done_commands(found)), set(done_commands(wanted))
    for name in sorted(done - stays):
        invocation.err.print(f"{name} is done now, and will not be")
    for name in sorted(stays - done):
        invocation.err.print(f"{name} is not done now, and will be")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that `snapshot` has written")
    add_yes(parser)


SUBCOMMAND = Subcommand(
    description="""\
Make the deployment equal to a snapshot: definitions, variables, files, and completed one-time commands.
Fencing tokens keep growing. Everything that is not in the snapshot is removed. The record of an election
stays as it is now, if there is one: it belongs to the data on the hosts' disks. A different deployment is
replaced only after a confirmation, and not while it has containers (status 1).
""",
    example="kolla_mesos_ctl restore site.tar --deployment site --hosts zk4:2181",
    add_arguments=_add_arguments,
    run=run,
)
