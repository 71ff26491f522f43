"""Place one command's config files, whole or not at all.

What lives here: every write that the agent makes for a command: stage, owner, mode, sync, rename,
and the COPY_ONCE markers. Never here: what a file holds, whose it should be, or whether it is wanted.

The last part of a path is never followed when it is a link, and all work on it goes through a
descriptor of its directory, so nothing but `dest` itself can be written. Links among the parents
are followed: /var/run is one.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

from kolla_mesos_start.errors import CannotWrite

log = logging.getLogger(__name__)

# The name says nothing of dest: it fits where dest has the longest name that is allowed, and no
# `conf.d/*.conf` takes it for a config file.
STAGE_PREFIX = ".kolla_mesos_start-stage-"
# O_NONBLOCK: a FIFO that somebody puts there in between must not hold the agent up.
_SAME_FILE = os.O_NOFOLLOW | os.O_NONBLOCK

_ADVICE = {
    errno.EACCES: "let uid {uid} write in {directory}, or choose a dest where it may",
    errno.EPERM: "let uid {uid} write in {directory}, or choose a dest where it may",
    errno.EROFS: "mount a writable volume at {directory}, or choose a dest that is writable",
    errno.ENOSPC: "free space or inodes there, or mount a larger volume at {directory}",
    errno.EDQUOT: "free space there, or raise the quota of uid {uid}",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.ENOTDIR: "a part of {directory} is not a directory: remove it, or choose another dest",
    errno.ENOENT: "a part of {directory} is a link that leads nowhere: make its target, or remove it",
    errno.ELOOP: "a part of {directory} is a link that leads to itself: remove it",
    errno.ENAMETOOLONG: "choose a shorter dest",
}


class Content(NamedTuple):
    """One config file as it should stand in the container.

    `name` is its name in the definition, `dest` an absolute path. `uid` and `gid` None are the
    agent's own; `mode` holds the permission bits. `data` None: optional and absent, not placed.
    """

    name: str
    dest: str
    uid: int | None
    gid: int | None
    mode: int
    data: bytes | None

    def __repr__(self) -> str:
        """Without the data: it may hold secrets, and records end up in tracebacks."""
        return f"Content({self.name!r}, {self.dest!r}, {self.uid}, {self.gid}, {self.mode:04o})"

    @property
    def directory(self) -> str:
        return os.path.dirname(self.dest)

    @property
    def basename(self) -> str:
        return os.path.basename(self.dest)

    @property
    def owner(self) -> tuple[int, int]:
        return (
            os.geteuid() if self.uid is None else self.uid,
            os.getegid() if self.gid is None else self.gid,
        )


def place(contents: Sequence[Content]) -> None:
    """Write the files of one command, each whole or not at all.

    A file that is right already is left as it is. All files are tried, so that the CannotWrite
    names every one that can't be written, and what to do about it. What stands at the dest of an
    absent optional file is left alone: the image may have put it there.
    """
    wanted = [content for content in contents if content.data is not None]
    _check_dests(wanted)
    problems = []
    for content in wanted:
        try:
            with _explained(content):
                _place(content, content.data or b"")
        except CannotWrite as error:
            problems.append(error.reason)
    if problems:
        raise CannotWrite("; ".join(problems))


def plan(content: Content) -> str:
    """What `place` would do: create, rewrite, owner, mode or unchanged. Writes nothing.

    `owner` stands for a wrong mode beside it too. CannotWrite, where it is plain that `place`
    would refuse.
    """
    if content.data is None:
        return "unchanged"
    _check_dests([content])
    with _explained(content):
        try:
            directory = os.open(content.directory, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            return "create"
        with _closing(directory):
            return _difference(directory, content, content.data)


class CopyOnce(NamedTuple):
    """Which commands have had their files written in this container: a marker each.

    `if not done(path): require(), place(...), record(path)`. A start that dies before `record`
    has not written its files as far as the next one is concerned, and they are written again.
    """

    state_dir: str

    def done(self, command_path: str) -> bool:
        """Whether an earlier start of this container has written the files of `role/command`."""
        with self._explained():
            try:
                os.lstat(self._marker(command_path))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def require(self) -> None:
        """Raise CannotWrite unless a marker can be recorded. Call it before a file is written."""
        with self._explained(), _closing(_make_directory(self._markers)) as directory:
            fd, stage = _open_stage(directory)
            os.close(fd)
            os.unlink(stage, dir_fd=directory)

    def record(self, command_path: str) -> None:
        """Remember, for as long as the container lives, that the files of `role/command` are written."""
        marker = Content(command_path, self._marker(command_path), None, None, 0o644, b"")
        with self._explained():
            _place(marker, b"")

    @property
    def _markers(self) -> str:
        return os.path.join(self.state_dir, "copied")

    def _marker(self, command_path: str) -> str:
        name = quote(command_path, safe="", errors="surrogatepass")
        if len(name) > 200:
            import hashlib  # Only for names that a file can't have.

            name = name[:100] + "-" + hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self._markers, name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CannotWrite(
                f"COPY_ONCE can't be recorded in {self._markers}: {_strerror(error)}: set KOLLA_STATE_DIR"
                f" to a directory that lives as long as the container and that uid {os.geteuid()} may write,"
                " or KOLLA_CONFIG_STRATEGY to COPY_ALWAYS"
            ) from error


# -- before anything is written --


def _check_dests(contents: Sequence[Content]) -> None:
    """Refuse what no file can be written for: bad paths and ids, and two files at one path."""
    problems = [problem for content in contents for problem in _defects(content)]
    problems = problems or list(_collisions(contents))
    if problems:
        raise CannotWrite("; ".join(problems))


def _collisions(contents: Sequence[Content]) -> Iterator[str]:
    names: dict[str, str] = {}
    for content in contents:
        path = os.path.join(os.path.realpath(content.directory), content.basename)
        other = names.setdefault(path, content.name)
        if other != content.name:
            yield (
                f"config files {other} and {content.name} have the same dest {content.dest}:"
                " give each its own"
            )


def _defects(content: Content) -> Iterator[str]:
    if not _usable(content.dest):
        yield (
            f"config file {content.name}: dest {content.dest!r} is no path of a file:"
            " give an absolute path that ends in a file's name"
        )
    for label, number in (("uid", content.uid), ("gid", content.gid)):
        # -1 is no id: to chown it means "leave it".
        if number is not None and not 0 <= number < 2**32 - 1:
            yield f"config file {content.name}: {content.dest!r} can't belong to {label} {number}"


def _usable(dest: str) -> bool:
    try:
        os.fsencode(dest)
    except UnicodeEncodeError:
        return False
    return dest.startswith("/") and "\0" not in dest and os.path.basename(dest) not in ("", ".", "..")


# -- one file --


def _place(content: Content, data: bytes) -> None:
    with _closing(_make_directory(content.directory)) as directory:
        _remove_leftovers(directory, content.directory)
        difference = _difference(directory, content, data)
        if difference == "unchanged":
            log.debug("%s is unchanged", content.dest)
            return
        if difference in ("owner", "mode") and _mend(directory, content):
            log.info("%s: mended owner and mode", content.dest)
            return
        if difference != "create" and _is_mount(directory, content.basename):
            _rewrite(directory, content, data)
        else:
            _replace(directory, content, data)
        log.info("%s: written", content.dest)


def _difference(directory: int, content: Content, data: bytes) -> str:
    """How what stands at dest differs from what should; see `plan`."""
    try:
        there = os.stat(content.basename, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return "create"
    if stat.S_ISLNK(there.st_mode):
        return "rewrite"
    if not stat.S_ISREG(there.st_mode):
        kind = "directory" if stat.S_ISDIR(there.st_mode) else "device, FIFO or socket"
        raise CannotWrite(
            f"config file {content.name}: {content.dest} is a {kind}, and only a file or a link is"
            " replaced: remove it, or choose another dest"
        )
    if there.st_size != len(data) or not _holds(directory, content.basename, data):
        return "rewrite"
    if (there.st_uid, there.st_gid) != content.owner:
        return "owner"
    return "unchanged" if stat.S_IMODE(there.st_mode) == content.mode else "mode"


def _holds(directory: int, name: str, data: bytes) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | _SAME_FILE, dir_fd=directory)
    except PermissionError:
        return False  # Another user's: it can't be compared, but where the directory is ours replaced.
    with open(fd, "rb") as file:
        return file.read() == data


def _mend(directory: int, content: Content) -> bool:
    """Set owner and mode of a file whose content is right; False where it must be replaced instead."""
    with _closing(os.open(content.basename, os.O_RDONLY | _SAME_FILE, dir_fd=directory)) as fd:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode):
            return False  # Somebody has put something else there just now.
        if there.st_nlink > 1 and not _is_mount(directory, content.basename):
            return False  # Another name of the same file is not ours to change.
        try:
            _give(fd, content)
        except CannotWrite:
            # Somebody else's file in a directory of ours: a new one can be ours, and if not, then
            # the error comes from there.
            return False
        os.fsync(fd)
    return True


def _replace(directory: int, content: Content, data: bytes) -> None:
    """Write a stage beside dest, then rename: whoever looks sees the old file or the whole new one."""
    fd, stage = _open_stage(directory)
    try:
        with _closing(fd):  # Open, and so locked, until it is renamed.
            _give(fd, content)
            _write(fd, data)
            _give(fd, content)  # A write by anyone but root takes setuid and setgid away.
            os.fsync(fd)
            os.rename(stage, content.basename, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        _discard(directory, stage)
        if error.errno != errno.EBUSY:
            raise
        _rewrite(directory, content, data)  # A mount that `_is_mount` can't see: there is no /proc.
        return
    except BaseException:
        _discard(directory, stage)
        raise
    _sync_directory(directory)


def _rewrite(directory: int, content: Content, data: bytes) -> None:
    """Write into the file itself: a bind mount can't be renamed over."""
    try:
        fd = _open_mounted(directory, content)
    except OSError as error:
        raise CannotWrite(
            f"config file {content.name}: {content.dest} is a mount of its own and can't be written:"
            f" {_strerror(error)}: mount it writable for uid {os.geteuid()}, or choose another dest"
        ) from error
    with _closing(fd):
        _reserve(fd, len(data))
        _give(fd, content)
        _write(fd, data)
        # Cut after writing, not before: a full file system can't take the old blocks away then.
        os.ftruncate(fd, len(data))
        _give(fd, content)
        os.fsync(fd)


def _open_mounted(directory: int, content: Content) -> int:
    try:
        return os.open(content.basename, os.O_WRONLY | _SAME_FILE, dir_fd=directory)
    except PermissionError:
        # A mode without `w` (0400) keeps its own unprivileged owner out too, until he changes it.
        with _closing(os.open(content.basename, os.O_RDONLY | _SAME_FILE, dir_fd=directory)) as fd:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IWUSR)
        return os.open(content.basename, os.O_WRONLY | _SAME_FILE, dir_fd=directory)


def _reserve(fd: int, size: int) -> None:
    """Have room for `size` bytes, or fail while the old content is still whole."""
    before = os.fstat(fd).st_size
    if size <= before:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.ftruncate(fd, before)
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # This file system can't reserve.
            raise


def _give(fd: int, content: Content) -> None:
    """Set owner, then mode: a change of owner takes setuid and setgid away."""
    uid, gid = content.owner
    there = os.fstat(fd)
    if (there.st_uid, there.st_gid) != (uid, gid):
        try:
            os.fchown(fd, uid, gid)
        except OSError as error:
            raise CannotWrite(
                f"config file {content.name}: {content.dest} can't be given to {uid}:{gid} by uid"
                f" {os.geteuid()}: {_strerror(error)}: leave `owner` out, or run the agent as root"
                " with CAP_CHOWN"
            ) from error
    if _mode(fd) != content.mode:
        try:
            os.fchmod(fd, content.mode)
        except OSError as error:
            raise CannotWrite(f"{_no_mode(content)}: {_strerror(error)}") from error
    if _mode(fd) != content.mode:  # Some file systems, and setgid for a group not ours, fail silently.
        raise CannotWrite(
            f"{_no_mode(content)}: the system dropped it: choose another `perm`, or another dest"
        )


def _no_mode(content: Content) -> str:
    return f"config file {content.name}: {content.dest} can't have mode {content.mode:04o}"


def _mode(fd: int) -> int:
    return stat.S_IMODE(os.fstat(fd).st_mode)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


# -- stages --


def _open_stage(directory: int) -> tuple[int, str]:
    """A new, empty, locked file in `directory`: its descriptor and its name."""
    while True:
        name = STAGE_PREFIX + os.urandom(8).hex()
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        if _lock(fd):
            return fd, name
        os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a new stage; False if another agent, sharing the directory, took it for a left-over first."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # A file system without locks: nobody can tell a left-over there, so nobody removes one.
        log.debug("no lock on a stage: %s", _strerror(error))
    return os.fstat(fd).st_nlink > 0


def _remove_leftovers(directory: int, path: str) -> None:
    """Remove stages of agents that were killed: unlike those of the living, they are not locked."""
    for name in os.listdir(directory):
        if not name.startswith(STAGE_PREFIX):
            continue
        try:
            with _closing(os.open(name, os.O_RDONLY | _SAME_FILE, dir_fd=directory)) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=directory)
        except BlockingIOError:
            log.debug("%s/%s: another agent is writing", path, name)
        except FileNotFoundError:
            log.debug("%s/%s: gone meanwhile", path, name)
        except OSError as error:
            log.warning(
                "%s/%s was left by an agent that died and can't be removed (%s): remove it",
                path,
                name,
                _strerror(error),
            )


def _discard(directory: int, stage: str) -> None:
    try:
        os.unlink(stage, dir_fd=directory)
    except OSError as error:
        # What broke before is the error to tell; the next start tries to remove it again.
        log.warning("%s can't be removed: %s", stage, _strerror(error))


# -- directories and mounts --


def _make_directory(path: str) -> int:
    """Open a directory; it and its parents are made, 0755 whatever the umask, where they are missing."""
    missing = []
    while True:
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            break
        except FileNotFoundError:
            path, name = os.path.split(path)
            if not name:
                raise
            missing.append(name)
    while missing:
        with _closing(directory):
            directory = _make_child(directory, missing.pop())
    return directory


def _make_child(directory: int, name: str) -> int:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:  # Made by another agent just now, or `..`, or a link that leads nowhere.
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    mode = _mode(child)
    if mode & 0o777 != 0o755:
        os.fchmod(child, mode & ~0o777 | 0o755)  # A setgid that it inherited stays.
    _sync_directory(directory)
    return child


def _sync_directory(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some network file systems can't, and need not.
            raise


def _is_mount(directory: int, name: str) -> bool:
    """Whether `name` is a mount point itself; bind mounts, which st_dev does not tell, included."""
    with _closing(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)) as fd:
        return _mount_id(fd) != _mount_id(directory)


def _mount_id(fd: int) -> str:
    try:
        with open(f"/proc/self/fdinfo/{fd}") as info:
            return next((line for line in info if line.startswith("mnt_id:")), "")
    except FileNotFoundError:
        return ""  # No /proc: all look alike, and rename says EBUSY.


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


# -- errors --


@contextmanager
def _explained(content: Content) -> Iterator[None]:
    """Make an OSError a CannotWrite that names the file and dest, and says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "look at the file system of {directory}")
        hint = advice.format(uid=os.geteuid(), directory=content.directory)
        raise CannotWrite(
            f"config file {content.name}: {content.dest} can't be written: {_strerror(error)}: {hint}"
        ) from error


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__
