"""`kolla_mesos_ctl snapshot` and `restore`: a deployment in one file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kolla_mesos_start.ctl.directory import private_file
from kolla_mesos_start.ctl.invocation import DECLINED, Invocation
from kolla_mesos_start.ctl.subcommand import YES, argument, subcommand
from kolla_mesos_start.ctl.text import NotThere, few
from kolla_mesos_start.ctl.zk import acls, archive, elections, publication, snapshots
from kolla_mesos_start.ctl.zk.archive import Snapshot
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile
from kolla_mesos_start.ctl.zk.publication import OpenPublication, check_chroot
from kolla_mesos_start.ctl.zk.snapshots import counted, done_commands, name_of, plan_of, take, with_elections
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage
from kolla_mesos_start.tree.codec import RESTORE
from kolla_mesos_start.tree.states import decode_detail
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper.view import Znode

SHOWN = 5  # names in a message


@subcommand(
    "kolla_mesos_ctl snapshot site.tar --deployment site",
    argument("file", metavar="FILE", type=Path, help="the tar file to write, or to replace"),
)
def snapshot(invocation: Invocation) -> int:
    """Save the definitions, variables and files of the deployment, its completed one-time commands, and the
    members and last decision of its elections to one tar file. It contains every secret, and only its owner
    can read it. `restore` restores it, here or in another ensemble. Unpacked, it is a directory that can be
    published.
    """
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


class Exists(AgentError):
    """The deployment exists."""

    status = 1


class BadSnapshot(BadDefinition):
    """A file that is not a complete snapshot."""

    def __init__(self, file: Path, issues: Sequence[str]) -> None:
        self.subject = str(file)
        super().__init__(issues)


@subcommand(
    "kolla_mesos_ctl restore site.tar --deployment site --hosts zk4:2181",
    argument("file", metavar="FILE", type=Path, help="a file that `snapshot` has written"),
    YES,
)
def restore(invocation: Invocation) -> int:
    """Restore a snapshot: definitions, variables, files, and completed one-time commands. Fencing tokens keep
    growing. The deployment must be absent: its services removed and its records reset (status 1), or in
    another ensemble. The record of an election stays as it is now, if there is one: it belongs to the data on
    the hosts' disks. Variables that the snapshot does not contain are removed after a confirmation.
    """
    client = invocation.client
    wanted = _unpacked(invocation.options.file)
    check_chroot(client, invocation.settings)
    znodes = invocation.znodes
    plan = plan_of(client, invocation.options.file, wanted)
    if plan:
        acls.require_operator(client, znodes, plan)
        client.use_plan(plan)
    with publication.locked(client, znodes, RESTORE, action="restore") as lock:
        return _restore(invocation, lock, wanted)


def _restore(invocation: Invocation, lock: OpenPublication, wanted: Snapshot) -> int:
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
    if others and not invocation.confirmed(
        f"remove {few(sorted(others), SHOWN)}, which the snapshot does not contain"
    ):
        return DECLINED
    for role in sorted(elections.changed(given.recorded, wanted.recorded)):
        invocation.err.print(f"the record of the election of {role} stays as it is now")
    plan = plan_of(client, file, wanted)
    if plan:
        acls.secure(client, znodes, plan)
    lock.begin()
    snapshots.restore(client, znodes, lock, wanted, plan)
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
        what = f"remove its services first ({few(sorted(found.definitions), SHOWN)}), and reset it"
    elif done_commands(found):
        what = f"reset it first; done: {few(sorted(done_commands(found)), SHOWN)}"
    elif roles - elections.roles(found.recorded):
        what = f"reset it first; it has states of {few(sorted(roles), SHOWN)}"
    else:
        return
    raise Exists(f"{znodes.deployment} exists: {what}; nothing was changed")


def _unpacked(file: Path) -> Snapshot:
    """The snapshot in the file."""
    try:
        return archive.unpack(file.read_bytes())
    except FileNotFoundError as error:
        raise NotThere(f"{file} does not exist") from error
    except OSError as error:
        raise BadUsage(f"{file} can't be read: {error.strerror}") from error
    except BadDefinition as error:
        raise BadSnapshot(file, error.issues) from error
