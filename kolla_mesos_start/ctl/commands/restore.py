"""`kolla_mesos_ctl restore`: restore a snapshot into an absent deployment, here or in another ensemble.

    check -> variables, files -> completed commands -> definitions

Containers wait for definitions. These are written last, so that a container that starts finds which commands
are done.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from kolla_mesos_start.ctl.invocation import DECLINED, Invocation, Subcommand, add_yes
from kolla_mesos_start.ctl.text import NotThere
from kolla_mesos_start.ctl.zk import acls, archive, elections, publication
from kolla_mesos_start.ctl.zk.archive import Snapshot
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile
from kolla_mesos_start.ctl.zk.publication import Held, check_chroot
from kolla_mesos_start.ctl.zk.snapshots import (
    counted,
    done_commands,
    plan_of,
    restore,
    take,
    with_elections,
)
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage
from kolla_mesos_start.tree.codec import RESTORE
from kolla_mesos_start.tree.znodes import Znodes

SHOWN = 5  # names in a message


class Exists(AgentError):
    """The deployment exists."""

    status = 1


class BadSnapshot(BadDefinition):
    """A file that is not a complete snapshot."""

    def __init__(self, file: Path, issues: Sequence[str]) -> None:
        self.subject = str(file)
        super().__init__(issues)


def run(invocation: Invocation) -> int:
    """Restore a snapshot, if the deployment is absent."""
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
    is_half = lock.interrupted is not None and lock.interrupted.what == RESTORE
    if not is_half:
        _require_absent(found, znodes)
    others = found.contents.keys() - wanted.contents.keys()
    if others and not invocation.confirmed(f"remove {_first(others)}, which the snapshot does not contain"):
        return DECLINED
    for role in sorted(elections.changed(given.recorded, wanted.recorded)):
        invocation.err.print(f"the record of the election of {role} stays as it is now")
    plan = plan_of(client, file, wanted)
    if plan:
        acls.secure(client, znodes, plan)
    lock.begin()
    restore(client, znodes, lock, wanted, plan)
    if take(client, znodes).published != wanted.published:
        raise ChangedMeanwhile(
            f"somebody else has changed {znodes.deployment} meanwhile; restore it once more"
        )
    origin = f"{wanted.deployment} at {wanted.taken}"
    print(f"restored {znodes.deployment} to what was {origin}: {counted(wanted)}")
    return 0


def _require_absent(found: Snapshot, znodes: Znodes) -> None:
    """Exists if a service is published, or anything is recorded of a command."""
    roles = {path.split("/")[2] for path in found.recorded if path.count("/") > 1}
    if found.definitions:
        what = f"remove its services first ({_first(found.definitions)}), and reset it"
    elif done_commands(found):
        what = f"reset it first; done: {_first(done_commands(found))}"
    elif roles - elections.roles(found.recorded):
        what = f"reset it first; it has states of {_first(roles)}"
    else:
        return
    raise Exists(f"{znodes.deployment} exists: {what}; nothing was changed")


def _first(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that `snapshot` has written")
    add_yes(parser)


SUBCOMMAND = Subcommand(
    description="""\
Restore a snapshot: definitions, variables, files, and completed one-time commands. Fencing tokens keep
growing. The deployment must be absent: its services removed and its records reset (status 1), or in another
ensemble. The record of an election stays as it is now, if there is one: it belongs to the data on the hosts'
disks. Variables that the snapshot does not contain are removed after a confirmation.
""",
    example="kolla_mesos_ctl restore site.tar --deployment site --hosts zk4:2181",
    add_arguments=_add_arguments,
    run=run,
)
