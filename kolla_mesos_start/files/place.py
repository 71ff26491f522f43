"""Places the config files of one command: all new files are complete and checked before any is replaced.

There are three ways: change owner and mode, replace the file by a rename, or rewrite it in place if it is a
mount. The old files are kept in memory to undo all of it.

A new file is written beside `dest` under a temporary name, and locked. One without a lock is left over from a
killed agent, and the next agent removes it.

If the last part of a path is a link, it is never followed, and all operations use a descriptor of its
directory: no other file than `dest` can be written. Links among the parents are followed: /var/run is one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import ExitStack, contextmanager, suppress

from kolla_mesos_start.errors import PASSING, CannotWrite
from kolla_mesos_start.files.paths import (
    O_CAREFUL,
    closing,
    existing,
    is_mount,
    mode_of,
    open_directory,
    read_descriptor,
    strerror,
    sync_directory,
)
from kolla_mesos_start.files.plan import difference, explained, wanted
from kolla_mesos_start.log import Logger
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kolla_mesos_start.files.plan import Content
    from kolla_mesos_start.files.written import Written

    # Raises an error if the new content of a file, at this path, is not valid.
    Check = Callable[[Content, str], object]

log = Logger(__name__)

# The dot hides it from `conf.d/*.conf`.
TEMPORARY_PREFIX = ".kolla_mesos_start-stage-"


class _Staged(NamedTuple):
    """A file to be placed in `directory`, and its complete `temporary` file there, unless it needs none."""

    content: Content
    directory: int
    is_right: bool  # its content
    is_mounted: bool
    temporary: str | None


def place(
    contents: Sequence[Content],
    check: Check = lambda content, path: None,
    *,
    can_undo: bool = False,
    written: Written | None = None,
) -> list[Content]:
    """Write the files of one command; a file that is already right is not touched.

    Optional files without content are skipped: the image may have its own file at that dest. If a file can't
    be prepared, none is changed; CannotWrite names every such file. With `can_undo`, `check` sees all files
    before one is changed, a later error puts the old files back, and the result is for `restore`. Otherwise
    it sees each when those before it are in place, which it may need. `written`: the record of these files;
    those that are no longer among the contents are removed. With `can_undo`, the caller saves it.
    """

    def pass_check(staged: _Staged) -> None:
        if staged.content.check and staged.temporary:
            check(staged.content, f"{staged.content.directory}/{staged.temporary}")

    with ExitStack() as stack:
        staged = _stage(wanted(contents), stack)
        for each in staged if can_undo else ():
            pass_check(each)
        # From here on only mounted files need space.
        staged.sort(key=lambda each: not each.is_mounted)
        before = [_as_it_is(each.content) for each in staged if can_undo]
        if written:
            written.note(each.content for each in staged if not each.is_right)
        try:
            for each in staged:
                if not can_undo:
                    pass_check(each)
                with explained(each.content):
                    _commit(each)
            for gone in written.no_longer_in(contents) if written else ():
                there = _as_it_is(gone)
                if written and written.remove(gone):
                    before.append(there)
        except CannotWrite:
            restore(before)
            raise
        if written and not can_undo:
            written.save()
    return before


def restore(before: Sequence[Content]) -> None:
    """Undo a `place`, whose result this is."""
    place(before)
    for content in before:
        if content.data is not None:
            continue
        with explained(content), closing(existing(content.directory)) as directory:
            if content.link is None:
                with suppress(FileNotFoundError):
                    os.unlink(content.basename, dir_fd=directory)
            else:
                name = _temporary_name()
                os.symlink(content.link, name, dir_fd=directory)
                try:
                    os.rename(name, content.basename, src_dir_fd=directory, dst_dir_fd=directory)
                finally:
                    _discard(directory, name)
            log.info("%s: %s", content.dest, "removed" if content.link is None else "written")
            sync_directory(directory)


def _as_it_is(content: Content) -> Content:
    """The current file or link at dest, or nothing."""
    content = content._replace(check=None)
    with explained(content), closing(existing(content.directory)) as directory:
        try:
            there = os.stat(content.basename, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(there.st_mode):
                return content._replace(data=None, link=os.readlink(content.basename, dir_fd=directory))
            fd = os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
        except FileNotFoundError:
            return content._replace(data=None)
        there = os.fstat(fd)
        mode, data = stat.S_IMODE(there.st_mode), read_descriptor(fd)
        return content._replace(uid=there.st_uid, gid=there.st_gid, mode=mode, data=data)


# -- before any file is changed --


def _stage(contents: Sequence[Content], stack: ExitStack) -> list[_Staged]:
    """The files that are not right yet. `stack` removes the temporary files that are not used."""
    directories: dict[str, int] = {}
    staged: list[_Staged] = []
    problems = []
    for content in contents:
        try:
            with explained(content):
                if content.directory not in directories:
                    directory = directories[content.directory] = open_directory(content.directory)
                    stack.callback(os.close, directory)
                    remove_leftovers(directory, content.directory)
                staged += _staged(directories[content.directory], content, stack)
        except CannotWrite as error:
            problems.append(error)
    if problems:
        together = CannotWrite("; ".join(error.reason for error in problems))
        raise together.for_now() if all(error.retriable for error in problems) else together
    return staged


def _staged(directory: int, content: Content, stack: ExitStack) -> Iterator[_Staged]:
    found = difference(directory, content, content.owner)
    if found == "owner" and content.uid is content.gid is None:
        # On a file system that squashes ids our new files may have another owner than us.
        fd, temporary = _open_temporary(directory)
        try:
            with closing(fd):
                _set_owner(fd, content)
                there = os.fstat(fd)
        finally:  # Not before: some file systems know no file without a name.
            _discard(directory, temporary)
        found = difference(directory, content, (there.st_uid, there.st_gid))
    if found == "unchanged":
        log.debug("%s is unchanged", content.dest)
        return
    is_right = found in ("owner", "mode")
    is_mounted = found != "create" and is_mount(directory, content.basename)
    if is_mounted:
        # Found before any other file is replaced; `_rewrite` may have to change its mode.
        with explained(content, is_mounted=True), suppress(PermissionError):
            os.close(os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory))
    needs_new = not is_right and (content.check or not is_mounted)
    new = stack.enter_context(complete(directory, content)) if needs_new else None
    yield _Staged(content, directory, is_right, is_mounted, new)


@contextmanager
def complete(directory: int, content: Content) -> Iterator[str]:
    """A temporary file with this content, owner and mode; removed unless it is renamed.

    It has the ACL and other attributes of the file that it will replace.
    """
    # Many programs decide by the end of the name what they check.
    fd, temporary = _open_temporary(directory, content.basename if content.check else "")
    try:
        with closing(fd):  # It stays open, and so locked, until it is renamed.
            _set_owner(fd, content)
            _keep_attributes(fd, directory, content)
            _set_owner_and_mode(fd, content)
            _write_all(fd, content)
            yield temporary
    finally:
        _discard(directory, temporary)


def _keep_attributes(fd: int, directory: int, content: Content) -> None:
    """Copy them before the mode is set: an ACL can give the group less than the mode alone would."""
    try:
        old = os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
    except OSError as error:
        if error.errno in PASSING:
            raise
        return  # There is no file yet, it is a link, or it is another user's.
    with closing(old):
        there = os.fstat(old)
        # Otherwise another user could give themselves rights to the new file.
        if stat.S_ISREG(there.st_mode) and there.st_uid in (0, content.owner[0]):
            from kolla_mesos_start.files.attributes import keep  # A new container replaces no file.

            keep(old, fd, content.mode, content.dest)


# -- one file --


def _commit(staged: _Staged) -> None:
    content, directory, is_right, is_mounted, temporary = staged
    if is_right and _correct(content, directory):
        log.info("%s: owner and mode corrected", content.dest)
    elif is_mounted:
        _rewrite(directory, content)
    elif temporary:
        _rename(directory, content, temporary)
    else:
        with complete(directory, content) as temporary:
            _rename(directory, content, temporary)


def _correct(content: Content, directory: int) -> bool:
    """Set owner and mode of a file whose content is right; False if it must be replaced instead."""
    with closing(os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)) as fd:
        there, data = os.fstat(fd), content.data or b""
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


def _rename(directory: int, content: Content, temporary: str) -> None:
    """Move a temporary file to dest: readers see the old file or the complete new one."""
    try:
        os.rename(temporary, content.basename, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _rewrite(directory, content)  # It is a mount; without /proc `is_mount` can't see that.
        return
    log.info("%s: written", content.dest)
    sync_directory(directory)


def _rewrite(directory: int, content: Content) -> None:
    """Write into the file itself: a rename can't replace a bind mount."""
    with explained(content, is_mounted=True):
        try:
            fd = os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory)
        except PermissionError:
            # A mode without `w` (0400) stops even an unprivileged owner, until the owner changes it.
            with closing(os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory)) as fd:
                os.fchmod(fd, mode_of(fd) | stat.S_IWUSR)
            fd = os.open(content.basename, os.O_WRONLY | O_CAREFUL, dir_fd=directory)
    with closing(fd):
        _reserve(fd, len(content.data or b""))
        _set_owner_and_mode(fd, content)
        _write_all(fd, content)
    log.info("%s: written", content.dest)


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
        # These mean that this file system can't reserve space.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _write_all(fd: int, content: Content) -> None:
    data = rest = memoryview(content.data or b"")
    while rest:
        rest = rest[os.write(fd, rest) :]
    # Truncate after writing: truncating first would free blocks that a full file system may give away.
    os.ftruncate(fd, len(data))
    _set_owner_and_mode(fd, content)  # Unless root writes, a write clears setuid and setgid.
    os.fsync(fd)


def _set_owner_and_mode(fd: int, content: Content) -> None:
    """Set the owner first: that clears setuid and setgid."""
    _set_owner(fd, content)
    failed = f"config file {content.name}: {content.dest} can't have mode {content.mode:04o}"
    if mode_of(fd) != content.mode:
        try:
            os.fchmod(fd, content.mode)
        except OSError as error:
            raise CannotWrite(f"{failed}: {strerror(error)}").because(error.errno) from error
    if mode_of(fd) != content.mode:  # Some file systems drop bits silently; so does chmod.
        raise CannotWrite(f"{failed}: the system has cleared a bit: choose another `perm`, or another dest")


def _set_owner(fd: int, content: Content) -> None:
    uid, gid = content.owner
    there = os.fstat(fd)
    if (there.st_uid, there.st_gid) == (uid, gid):
        return
    try:
        os.fchown(fd, uid, gid)
    except OSError as error:
        if content.uid is content.gid is None and error.errno in (errno.EPERM, errno.EINVAL):
            return  # No owner was asked for: the file system has chosen one.
        remedy = "leave `owner` out, or run the agent as root with CAP_CHOWN"
        if error.errno == errno.EINVAL:
            remedy = (
                "one of these ids is not mapped in the container's user namespace: map it (podman:"
                " --uidmap, --gidmap and /etc/subuid), or choose another `owner`"
            )
        elif error.errno == errno.EPERM and os.geteuid() == 0:
            remedy += ", and choose a dest whose file system lets root do that (NFS: no_root_squash)"
        raise CannotWrite(
            f"config file {content.name}: {content.dest} can't be given to {uid}:{gid} by uid"
            f" {os.geteuid()}: {strerror(error)}: {remedy}"
        ).because(error.errno) from error


# -- temporary files --


def _open_temporary(directory: int, end: str = "") -> tuple[int, str]:
    """Create an empty, locked file in `directory`; returns its descriptor and its name, which has this end.

    Of a long `end`, the name has as much as fits.
    """
    limit = os.fpathconf(directory, "PC_NAME_MAX") - len(_temporary_name())
    while len(os.fsencode(end)) > limit:
        end = end[1:]
    while True:
        name = _temporary_name() + end
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # Another agent takes it for a left-over, and removes it.
            os.close(fd)
            continue
        except OSError as error:
            # This file system has no locks: left-overs can't be recognised, and stay.
            log.debug("can't lock a temporary file: %s", strerror(error))
        if os.fstat(fd).st_nlink > 0:
            return fd, name
        os.close(fd)


def _temporary_name() -> str:
    return f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}-"


def remove_leftovers(directory: int, path: str) -> None:
    """Remove the temporary files of agents that were killed: no process has a lock on them."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        log.debug("%s can't be listed: %s", path, strerror(error))
        return
    for name in names:
        if not name.startswith(TEMPORARY_PREFIX):
            continue
        try:
            try:
                # For a lock, NFS needs the right to write, if exclusive, or to read, if shared.
                fd = os.open(name, os.O_RDWR | O_CAREFUL, dir_fd=directory)
            except PermissionError:  # Its mode may be 0400.
                fd = os.open(name, os.O_RDONLY | O_CAREFUL, dir_fd=directory)
            with closing(fd):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=directory)
        except (BlockingIOError, FileNotFoundError):
            log.debug("%s/%s: another agent is writing it, or has removed it", path, name)
        except OSError as error:
            log.warning(
                "%s/%s: an agent that was killed left this file, and it can't be removed (%s): remove it",
                path,
                name,
                strerror(error),
            )


def _discard(directory: int, name: str) -> None:
    """Remove a temporary file, unless it has been moved to its place."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        # An earlier error is being raised. The next start tries again to remove the file.
        log.warning("%s can't be removed: %s", name, strerror(error))
