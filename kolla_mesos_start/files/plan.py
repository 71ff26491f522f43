"""The record of a config file, and what placing it would change. Writes nothing; `place` does."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.paths import O_CAREFUL, UnsafePath, closing, existing, strerror
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ADVICE = {
    errno.EACCES: "let uid {uid} write in {directory}, or choose a dest where it may",
    errno.EPERM: "let uid {uid} write in {directory}, or choose a dest where it may",
    errno.EROFS: "mount a writable volume at {directory}, or choose a dest that is writable",
    errno.ENOSPC: "free space or inodes there, or mount a larger volume at {directory}",
    errno.EDQUOT: "free space there, or raise the quota of uid {uid}",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.ENOTDIR: "a part of {directory} is not a directory: remove it, or choose another dest",
    errno.ENOENT: "a part of {directory} is a link whose target is missing: create that, or remove the link",
    errno.ELOOP: "a part of {directory} is a link that leads to itself: remove it",
    errno.ENAMETOOLONG: "choose a shorter dest",
}


class Content(NamedTuple):
    """One config file as it should be in the container.

    `name` is its name in the definition, `dest` an absolute path. `uid` and `gid` None: the agent's own.
    `data` None: the file has no content, or stays as it was (`kept` says why), so it is not placed.
    `check` is the argv of a command that new content must pass, with `{}` for its path. `link`: the target of
    a link at dest.
    """

    name: str
    dest: str
    uid: int | None
    gid: int | None
    mode: int
    data: bytes | None
    check: tuple[str, ...] | None = None
    kept: str = ""
    link: str | None = None

    def __repr__(self) -> str:
        """Without the data, which may contain secrets: tracebacks may show records."""
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


def plan(content: Content) -> str:
    """What `place` would do: create, rewrite, owner, mode or unchanged.

    `owner`: the owner is wrong, and perhaps the mode too. Raises CannotWrite if `place` certainly would.
    """
    if content.data is None:
        return "unchanged"
    with explained(content):
        try:
            directory = existing(content.directory, os.O_PATH)
        except FileNotFoundError:
            return "create"
        with closing(directory):
            return difference(directory, content, content.owner)


def wanted(contents: Sequence[Content]) -> Sequence[Content]:
    """Those that have content. Raises CannotWrite if two have the same dest."""
    contents = [content for content in contents if content.data is not None]
    names: dict[str, str] = {}
    for content in contents:
        path = os.path.join(os.path.realpath(content.directory), content.basename)
        if names.setdefault(path, content.name) != content.name:
            raise CannotWrite(
                f"config files {names[path]} and {content.name} have the same dest {content.dest}:"
                " give each of them its own dest"
            )
    return contents


def difference(directory: int, content: Content, owner: tuple[int, int]) -> str:
    """How the file at dest differs from what it should be; see `plan`."""
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
    data = content.data or b""
    try:
        if there.st_size != len(data):
            return "rewrite"
        with open(os.open(content.basename, os.O_RDONLY | O_CAREFUL, dir_fd=directory), "rb") as file:
            if file.read(len(data) + 1) != data:
                return "rewrite"
    except PermissionError:
        return "rewrite"  # It belongs to another user. If we may write in the directory, it is replaced.
    if (there.st_uid, there.st_gid) != owner:
        return "owner"
    return "unchanged" if stat.S_IMODE(there.st_mode) == content.mode else "mode"


@contextmanager
def explained(content: Content, *, is_mounted: bool = False) -> Iterator[None]:
    """Turn an OSError into a CannotWrite that names the file and its dest, and says what to do."""
    try:
        yield
    except UnsafePath as error:
        raise CannotWrite(
            f"config file {content.name}: {content.dest} can't be written: a part of {content.directory} is a"
            " link that another user than root has made, or could have: remove the link, or choose a dest"
            " without it"
        ) from error
    except OSError as error:
        found, advice = "", _ADVICE.get(error.errno or 0, "look at the file system of {directory}")
        if is_mounted:
            found, advice = (
                "is a mount of its own and ",
                "mount it writable for uid {uid}, or choose another dest",
            )
        hint = advice.format(uid=os.geteuid(), directory=content.directory)
        what = f"config file {content.name}: {content.dest} {found}can't be written"
        raise CannotWrite(f"{what}: {strerror(error)}: {hint}").because(error.errno) from error
