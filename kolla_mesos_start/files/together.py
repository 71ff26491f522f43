"""Places all config files of one command, or none: for the refresh of a running daemon.

`journal` makes this safe against kills.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.journal import Replacement, clear, is_begun, replace_all
from kolla_mesos_start.files.placement import accept, explained, run_check, wanted
from kolla_mesos_start.files.temporary import discard, temporary_name
from kolla_mesos_start.files.writing import as_it_is, stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kolla_mesos_start.files.content import Content
    from kolla_mesos_start.files.placement import Check


def place_all(contents: Sequence[Content], run_dir: str, check: Check = accept) -> Sequence[Content]:
    """Write all files of one command, or none; returns the previous state of those that have changed.

    Raises the errors of `place`; then nothing has changed. After a kill `journal.recover` completes it.
    """
    with _staged_all(wanted(contents), run_dir) as replacements:
        for replacement in replacements:
            run_check(replacement.content, replacement.new, check)
        before = []
        for replacement in replacements:
            with explained(replacement.content):
                before.append(as_it_is(replacement.content))
        try:
            replace_all(replacements, run_dir)
        except CannotWrite:
            restore(before, run_dir)
            raise
    return before


def restore(before: Sequence[Content], run_dir: str) -> None:
    """Undo `place_all`, whose result this is."""
    with _staged_all(before, run_dir) as replacements:
        replace_all(replacements, run_dir)


@contextmanager
def _staged_all(contents: Sequence[Content], run_dir: str) -> Iterator[Sequence[Replacement]]:
    """The replacements to replace the files, each new file complete; unused temporary files are removed."""
    replacements: list[Replacement] = []
    fds: list[int] = []
    clear(run_dir)
    try:
        for content in contents:
            if content.data is None:
                link = None if content.link is None else f"{content.directory}/{temporary_name()}"
                replacements.append(Replacement(content, link))
                continue
            with explained(content):
                new = stage(content, run_dir)
            if new:
                replacements.append(Replacement(content, new[0]))
                fds.append(new[1])
        yield replacements
    finally:
        for replacement in replacements:
            if replacement.new and not is_begun(run_dir):
                discard(None, replacement.new)
        for fd in fds:
            os.close(fd)
