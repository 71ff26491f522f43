"""Writes one config file completely, with its owner and mode, or not at all.

There are three ways: change owner and mode, replace the file by a rename, or rewrite it in place if it is a
mount. `journal` replaces several files as one step.

If the last part of a path is a link, it is never followed, and all operations use a descriptor of its
directory: no other file than `dest` can be written. Links among the parents are followed: /var/run is one.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from functools import partial

from kolla_mesos_start.errors import CannotWrite, cannot_write
from kolla_mesos_start.files.directories import (
    closing,
    existing,
    is_mount,
    mode_of,
    open_directory,
    strerror,
    sync_directory,
)
from kolla_mesos_start.files.regular import read_descriptor
from kolla_mesos_start.files.temporary import O_CAREFUL, discard, open_temporary, remove_leftovers
from kolla_mesos_start.health import PRIVATE, private_directory
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kolla_mesos_start.files.content import Content

log = Logger(__name__)


class Staged(NamedTuple):
    """A file that is ready for `commit`. `path`: the new content, if it is in a temporary file."""

    path: str | None
    commit: Callable[[], object]


@contextmanager
def staged(content: Content, data: bytes) -> Iterator[Staged | None]:
    """Prepare the file in a temporary file beside dest; None if it is already right.

    Without a commit nothing changes. Leftover temporary files are removed.
    """
    with closing(open_directory(content.directory)) as directory:
        remove_leftovers(directory, content.directory)
        found = difference(directory, content, data)
        if found == "unchanged":
            log.debug("%s is unchanged", content.dest)
            yield None
            return
        if found in ("owner", "mode"):
            yield Staged(None, partial(_correct_or_replace, directory, content, data))
            return
        rewrite = partial(_rewrite, directory, content, data)
        is_mounted = found != "create" and is_mount(directory, content.basename)
        if is_mounted and not content.check:
            yield Staged(None, rewrite)
            return
        with _temporary(directory, content, data) as temporary:
            rename = partial(_rename, directory, content, temporary, data)
            yield Staged(f"{content.directory}/{temporary}", rewrite if is_mounted else rename)


def stage(content: Content, run_dir: str) -> tuple[str, int] | None:
    """Write the new content to a temporary file; returns its path, and the descriptor that keeps it locked.

    None if the file is already right. The temporary file is beside dest, with the final owner and mode. A
    mount can only be rewritten in place: then it is a private copy in `run_dir`, unless a check must see it.
    """
    data = content.data or b""
    with closing(open_directory(content.directory)) as directory:
        remove_leftovers(directory, content.directory)
        found = difference(directory, content, data)
        if found == "unchanged":
            log.debug("%s is unchanged", content.dest)
            return None
        is_mounted = found != "create" and is_mount(directory, content.basename)
        if is_mounted:
            _refuse_read_only(directory, content)
        if not is_mounted or content.check:
            fd, name = _complete(directory, content, data)
            return f"{content.directory}/{name}", fd
    with closing(private_directory(run_dir)) as directory:
        private = content._replace(uid=None, gid=None, mode=0o600)
        fd, name = _complete(directory, private, data, is_copy=True)
        return f"{run_dir}/{PRIVATE}/{name}", fd


def take(content: Content, new: str | None, run_dir: str) -> None:
    """Move the temporary file `new` to dest; None: remove the file at dest.

    May be repeated after a kill. A link is only created here, with `new` as its temporary name.
    """
    # A missing temporary file was moved before the kill.
    with suppress(FileNotFoundError), closing(existing(content.directory)) as directory:
        if new is None:
            os.unlink(content.basename, dir_fd=directory)
            log.info("%s: removed", content.dest)
        else:
            _put(directory, content, new, run_dir)
        sync_directory(directory)


def _put(directory: int, content: Content, new: str, run_dir: str) -> None:
    if content.link is not None:
        with suppress(FileExistsError):
            os.symlink(content.link, new)
    parent, name = os.path.split(new)
    is_private = parent == f"{run_dir}/{PRIVATE}"
    with closing(private_directory(run_dir) if is_private else existing(parent)) as source:
        try:
            os.rename(name, content.basename, src_dir_fd=source, dst_dir_fd=directory)
        except OSError as error:
            data = content.data
            # A mount. Without /proc `is_mount` can't see that. Another user may have removed the copy.
            if error.errno not in (errno.EBUSY, errno.EXDEV) and not (is_private and data is not None):
                raise
            if data is None:  # This finishes what a killed process began.
                data = read_descriptor(os.open(name, os.O_RDONLY | O_CAREFUL, dir_fd=source))
            _rewrite(directory, content, data)
            discard(source, name)
        else:
            log.info("%s: written", content.dest)


def write(content: Content, data: bytes) -> None:
    """Place the file at once."""
    with staged(content, data) as new:
        if new:
            new.commit()


def as_it_is(content: Content) -> Content:
    """The current file or link at dest, or nothing."""
    with closing(existing(content.directory)) as directory:
        try:
            there = os.stat(content.basename, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(there.st_mode):
                return content._replace(data=None, link=os.readlink(content.basename, dir_fd=directory))
            fd = os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
        except FileNotFoundError:
            return content._replace(data=None)
    there = os.fstat(fd)
    return content._replace(
        uid=there.st_uid, gid=there.st_gid, mode=stat.S_IMODE(there.st_mode), data=read_descriptor(fd)
    )


def difference(directory: int, content: Content, data: bytes, *, is_plan: bool = False) -> str:
    """How the file at dest differs from what it should be; see `placement.plan`.

    `is_plan`: create no file to find out who owns new ones.
    """
    try:
        there = os.stat(content.basename, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return "create"
    if stat.S_ISLNK(there.st_mode):
        return "rewrite"
    if not stat.S_ISREG(there.st_mode):
        kind = "directory" if stat.S_ISDIR(there.st_mode) else "device, FIFO or socket"
        raise CannotWrite(
            f"config file {content.name}: {content.dest} is a {kind}; the agent replaces only files and"
            " links: remove it, or choose another dest"
        )
    if there.st_size != len(data) or not _holds(directory, content.basename, data):
        return "rewrite"
    owner = (there.st_uid, there.st_gid)
    if owner != content.owner and (is_plan or content.has_owner or owner != _own(directory, content)):
        return "owner"
    return "unchanged" if stat.S_IMODE(there.st_mode) == content.mode else "mode"


def _own(directory: int, content: Content) -> tuple[int, int]:
    """The owner of our new files here: another one than us on a file system that squashes ids."""
    fd, temporary = open_temporary(directory)
    try:
        _set_owner(fd, content)
        there = os.fstat(fd)
        return there.st_uid, there.st_gid
    finally:
        os.close(fd)
        discard(directory, temporary)


def _holds(directory: int, name: str, data: bytes) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
    except PermissionError:
        return False  # It belongs to another user. If we may write in the directory, it is replaced.
    with open(fd, "rb") as file:
        return file.read(len(data) + 1) == data


def _correct_or_replace(directory: int, content: Content, data: bytes) -> None:
    """Set owner and mode of a file whose content is right, or else write it again."""
    if _correct(directory, content, data):
        log.info("%s: owner and mode corrected", content.dest)
    elif is_mount(directory, content.basename):
        _rewrite(directory, content, data)
    else:
        with _temporary(directory, content, data) as temporary:
            _rename(directory, content, temporary, data)


def _correct(directory: int, content: Content, data: bytes) -> bool:
    """Set owner and mode of a file whose content is right; False if it must be replaced instead."""
    with closing(os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)) as fd:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            return False  # Another process has replaced it.
        if there.st_nlink > 1 and not is_mount(directory, content.basename):
            return False  # The file has another name, where it must not change.
        if os.pread(fd, len(data) + 1, 0) != data:
            return False  # Another user has moved another file to dest, which is not to become theirs.
        try:
            _set_owner_and_mode(fd, content)
        except CannotWrite:
            # The file belongs to another user. Creating a new file may work, or raises its own error.
            return False
        there = os.fstat(fd)
        if (there.st_uid, there.st_gid) != content.owner:
            return False
        os.fsync(fd)
    return True


@contextmanager
def _temporary(directory: int, content: Content, data: bytes) -> Iterator[str]:
    """A temporary file with this content, owner and mode; removed unless it is renamed."""
    fd, temporary = _complete(directory, content, data)
    try:
        with closing(fd):  # It stays open, and so locked, until it is renamed.
            yield temporary
    finally:
        discard(directory, temporary)


def _complete(directory: int, content: Content, data: bytes, *, is_copy: bool = False) -> tuple[int, str]:
    """Create a temporary file with this content, owner and mode; returns its descriptor and name.

    It has the ACL and other attributes of the file that it will replace. `is_copy`: it replaces none.
    """
    fd, temporary = open_temporary(directory)
    try:
        _set_owner(fd, content)
        if not is_copy:
            _keep_attributes(fd, directory, content)
        _set_owner_and_mode(fd, content)
        write_all(fd, data)
        _set_owner_and_mode(fd, content)  # Unless root writes, a write clears setuid and setgid.
        os.fsync(fd)
    except BaseException:
        os.close(fd)
        discard(directory, temporary)
        raise
    return fd, temporary


def _rename(directory: int, content: Content, temporary: str, data: bytes) -> None:
    """Move a temporary file to dest: readers see the old file or the complete new one."""
    try:
        os.rename(temporary, content.basename, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _rewrite(directory, content, data)  # It is a mount; without /proc `is_mount` can't see that.
        return
    log.info("%s: written", content.dest)
    sync_directory(directory)


def _rewrite(directory: int, content: Content, data: bytes) -> None:
    """Write into the file itself: a rename can't replace a bind mount."""
    with _mount_explained(content):
        fd = _open_mounted(directory, content)
    with closing(fd):
        _reserve(fd, len(data))
        _set_owner_and_mode(fd, content)
        write_all(fd, data)
        # Truncate after writing: truncating first would free blocks that a full file system may give away.
        os.ftruncate(fd, len(data))
        _set_owner_and_mode(fd, content)
        os.fsync(fd)
    log.info("%s: written", content.dest)


def _refuse_read_only(directory: int, content: Content) -> None:
    """Find a mount that can't be written before any other file is replaced."""
    with _mount_explained(content), suppress(PermissionError):  # `_rewrite` may change the mode.
        os.close(os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory))


@contextmanager
def _mount_explained(content: Content) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(
            f"config file {content.name}: {content.dest} is a mount of its own and can't be written:"
            f" {strerror(error)}: mount it writable for uid {os.geteuid()}, or choose another dest",
            error,
        ) from error


def _open_mounted(directory: int, content: Content) -> int:
    try:
        return os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory)
    except PermissionError:
        # A mode without `w` (0400) stops even an unprivileged owner, until the owner changes it.
        with closing(os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)) as fd:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IWUSR)
        return os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory)


def _reserve(fd: int, size: int) -> None:
    """Reserve `size` bytes, or fail while the old content is still complete."""
    before = os.fstat(fd).st_size
    if size <= before:
        return
    try:
        # Not from 0: where the C library must write zeros (NFS), it would read the old bytes, and can't.
        os.posix_fallocate(fd, before, size - before)
    except OSError as error:
        os.ftruncate(fd, before)
        if error.errno not in (
            errno.EOPNOTSUPP,
            errno.EINVAL,
            errno.ENOSYS,
        ):  # This file system can't reserve space.
            raise


def _keep_attributes(fd: int, directory: int, content: Content) -> None:
    """Copy them before the mode is set: an ACL can give the group less than the mode alone would."""
    try:
        old = os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
    except OSError:
        return  # There is no file yet, it is a link, or it is another user's.
    with closing(old):
        there = os.fstat(old)
        # Otherwise another user could give themselves rights to the new file.
        if stat.S_ISREG(there.st_mode) and there.st_uid in (0, content.owner[0]):
            from kolla_mesos_start.files.attributes import keep  # A new container replaces no file.

            keep(old, fd, content.mode, content.dest)


def _set_owner_and_mode(fd: int, content: Content) -> None:
    """Set the owner first: that clears setuid and setgid."""
    _set_owner(fd, content)
    if mode_of(fd) != content.mode:
        try:
            os.fchmod(fd, content.mode)
        except OSError as error:
            raise cannot_write(f"{_no_mode(content)}: {strerror(error)}", error) from error
    if mode_of(fd) != content.mode:  # Some file systems drop bits silently; so does chmod.
        raise CannotWrite(
            f"{_no_mode(content)}: the system has cleared a bit: choose another `perm`, or another dest"
        )


def _set_owner(fd: int, content: Content) -> None:
    uid, gid = content.owner
    there = os.fstat(fd)
    if (there.st_uid, there.st_gid) != (uid, gid):
        try:
            os.fchown(fd, uid, gid)
        except OSError as error:
            if not content.has_owner and error.errno in (errno.EPERM, errno.EINVAL):
                return  # No owner was asked for: the file system has chosen one.
            remedy = "leave `owner` out, or run the agent as root with CAP_CHOWN"
            if error.errno == errno.EINVAL:
                remedy = (
                    "one of these ids is not mapped in the container's user namespace: map it (podman:"
                    " --uidmap, --gidmap and /etc/subuid), or choose another `owner`"
                )
            elif error.errno == errno.EPERM and os.geteuid() == 0:
                remedy += ", and choose a dest whose file system lets root do that (NFS: no_root_squash)"
            raise cannot_write(
                f"config file {content.name}: {content.dest} can't be given to {uid}:{gid} by uid"
                f" {os.geteuid()}: {strerror(error)}: {remedy}",
                error,
            ) from error


def _no_mode(content: Content) -> str:
    return f"config file {content.name}: {content.dest} can't have mode {content.mode:04o}"


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
