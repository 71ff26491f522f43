"""The record of a config file, and the checks that need no write."""

from __future__ import annotations

import os

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Content(NamedTuple):
    """One config file as it should be in the container.

    `name` is its name in the definition, `dest` an absolute path. `uid` and `gid` None: the agent's own.
    `data` None: the file has no content, or keeps its old content (`is_kept`), so it is not placed; `absent`
    says why. `check` is the argv of a command that new content must pass, with `{}` for its path. `link`: the
    target of a link at dest.
    """

    name: str
    dest: str
    uid: int | None
    gid: int | None
    mode: int
    data: bytes | None
    check: tuple[str, ...] | None = None
    absent: str = "optional"
    is_kept: bool = False
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
    def has_owner(self) -> bool:
        """Whether the definition asks for an owner."""
        return self.uid is not None or self.gid is not None

    @property
    def owner(self) -> tuple[int, int]:
        return (
            os.geteuid() if self.uid is None else self.uid,
            os.getegid() if self.gid is None else self.gid,
        )


def check_dests(contents: Sequence[Content]) -> None:
    """Raise CannotWrite for impossible paths and ids, and for two files with the same path."""
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
                " give each of them its own dest"
            )


def _defects(content: Content) -> Iterator[str]:
    if not _is_file_path(content.dest):
        yield (
            f"config file {content.name}: dest {content.dest!r} is not the path of a file:"
            " give an absolute path that ends in a file name"
        )
    for label, number in (("uid", content.uid), ("gid", content.gid)):
        # -1 is not an id: to chown it means "leave it as it is".
        if number is not None and not 0 <= number < 2**32 - 1:
            yield f"config file {content.name}: {content.dest!r} can't belong to {label} {number}"


def _is_file_path(dest: str) -> bool:
    try:
        os.fsencode(dest)
    except UnicodeEncodeError:
        return False
    return dest.startswith("/") and "\0" not in dest and os.path.basename(dest) not in ("", ".", "..")
