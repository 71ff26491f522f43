"""Places the config files of one command, or says what that would change; with advice for each system error.

`together` places all or none.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager

from kolla_mesos_start.errors import CannotWrite, CannotWriteYet, cannot_write
from kolla_mesos_start.files.content import check_dests
from kolla_mesos_start.files.directories import UnsafePath, closing, existing, strerror
from kolla_mesos_start.files.writing import difference, staged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kolla_mesos_start.files.content import Content

    # Raises an error if the new content of a file, at this path, is not valid.
    Check = Callable[[Content, str], object]

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


def accept(content: Content, path: str) -> None:
    """No check."""


def place(contents: Sequence[Content], check: Check = accept) -> None:
    """Write the files of one command, each whole or not at all.

    A file that is already right is not touched; `check` may refuse a new one. After an error the other files
    are still tried, so that CannotWrite names every file that can't be written. Optional files without
    content are skipped: the image may have its own file at that dest.
    """
    problems = []
    for content in wanted(contents):
        try:
            with explained(content), staged(content, content.data or b"") as new:
                if new:
                    run_check(content, new.path, check)
                    new.commit()
        except CannotWrite as error:
            problems.append(error)
    if problems:
        is_final = any(not error.retriable for error in problems)
        raise (CannotWrite if is_final else CannotWriteYet)("; ".join(error.reason for error in problems))


def wanted(contents: Sequence[Content]) -> Sequence[Content]:
    """Those that have content. Raises CannotWrite for an impossible dest."""
    contents = [content for content in contents if content.data is not None]
    check_dests(contents)
    return contents


def run_check(content: Content, path: str | None, check: Check) -> None:
    """Check the new content at this path, if the file has a check."""
    if content.check and path:
        check(content, path)


def plan(content: Content) -> str:
    """What `place` would do: create, rewrite, owner, mode or unchanged. Writes nothing.

    `owner`: the owner is wrong, and perhaps the mode too. Raises CannotWrite if `place` certainly would.
    """
    if content.data is None:
        return "unchanged"
    check_dests([content])
    with explained(content):
        try:
            directory = existing(content.directory, os.O_PATH)
        except FileNotFoundError:
            return "create"
        with closing(directory):
            return difference(directory, content, content.data, is_plan=True)


@contextmanager
def explained(content: Content) -> Iterator[None]:
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
        advice = _ADVICE.get(error.errno or 0, "look at the file system of {directory}")
        hint = advice.format(uid=os.geteuid(), directory=content.directory)
        raise cannot_write(
            f"config file {content.name}: {content.dest} can't be written: {strerror(error)}: {hint}", error
        ) from error
