"""The record of the files that the agent has written in this container, to remove those that its definition
no longer has.

It is a file in KOLLA_STATE_DIR, with a digest of each file. Only a file that has such a digest is removed:
not one that somebody has changed since, and none that the agent has only found.
"""

from __future__ import annotations

import json
import os
import stat
import zlib

from kolla_mesos_start.files.paths import (
    O_CAREFUL,
    closing,
    existing,
    is_mount,
    open_directory,
    read_descriptor,
    read_regular,
    strerror,
    sync_directory,
)
from kolla_mesos_start.files.plan import Content
from kolla_mesos_start.health import refuse_strangers
from kolla_mesos_start.log import Logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kolla_mesos_start.definition.model import Graph

    Digest = list[int]  # size and checksum

log = Logger(__name__)


class Written:
    """What one command of this container, and those that its definition no longer has, have written."""

    def __init__(self, path: str, command: str, graph: Graph) -> None:
        """`path` is that of the record, `command` that of a command of the definition."""
        self._path, self._directory = path, os.path.dirname(path)
        self._command = command
        others = [each for each in graph.all_commands if each.path != command]
        self._others = {each.path for each in others}
        # Another command may write the file. Its templates are not rendered yet: only the last name counts.
        self._names = {os.path.basename(file.dest) for each in others for file in each.files}
        self._files = self._read()
        self._saved = dict(self._files)

    def no_longer_in(self, contents: Iterable[Content]) -> list[Content]:
        """The files to remove, because they are not among the contents of the command."""
        kept = {_canonical(each.dest) for each in contents if each.data is not None or each.kept}
        gone = []
        for dest, (command, digests) in list(self._files.items()):
            if dest in kept or command in self._others or self._is_of_another(os.path.basename(dest)):
                continue
            why = _why_not(dest, digests)
            if why is None:
                gone.append(Content(dest, dest, None, None, 0, None))
                continue
            del self._files[dest]
            if why:
                log.warning("%s is no longer in the definition, but %s: it stays", dest, why)
        return gone

    def _is_of_another(self, name: str) -> bool:
        return name in self._names or any("}" in each for each in self._names)

    def note(self, contents: Iterable[Content]) -> None:
        """Record what is about to be written."""
        for content in contents:
            dest = _canonical(content.dest)
            _, known = self._files.get(dest, ("", []))
            # The present content too, if it is ours: an error may put it back.
            before = [each for each in known if _why_not(dest, [each]) is None]
            digests = [_digest(content.data or b""), *before]
            self._files[dest] = (self._command, digests)
        self.save()

    def remove(self, content: Content) -> bool:
        """Remove a file, unless somebody has changed it meanwhile; whether it is gone."""
        dest = content.dest
        why = _why_not(dest, self._files[dest][1])
        try:
            if why is None:
                with closing(existing(content.directory)) as directory:
                    os.unlink(content.basename, dir_fd=directory)
                    sync_directory(directory)
        except OSError as error:
            why = f"it can't be removed: {strerror(error)}"
        if why is None:
            del self._files[dest]
            log.info("%s: removed: it is no longer in the definition", dest)
        elif why:
            log.warning("%s is no longer in the definition, but %s", dest, why)
        return why is None

    def save(self) -> None:
        """Write the record."""
        if self._files == self._saved:
            return
        from kolla_mesos_start.files.place import complete, remove_leftovers

        data = json.dumps(self._files).encode()
        record = Content("record", self._path, None, None, 0o600, data)
        try:
            refuse_strangers(self._directory)
            with closing(open_directory(self._directory)) as directory:
                remove_leftovers(directory, self._directory)
                with complete(directory, record) as temporary:
                    os.rename(temporary, record.basename, src_dir_fd=directory, dst_dir_fd=directory)
                sync_directory(directory)
            self._saved = dict(self._files)
        except OSError as error:
            log.info(
                "%s can't be written (%s): files that are removed from the definition will stay in this"
                " container: let this user write in KOLLA_STATE_DIR",
                self._path,
                error.strerror or strerror(error),
            )

    def _read(self) -> dict[str, tuple[str, list[Digest]]]:
        """The command and the digests of each file that was written, by dest."""
        try:
            refuse_strangers(self._directory)
            there = os.lstat(self._path)
            if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
                raise PermissionError(0, "it is not a file of this user")
            found = json.loads(read_regular(self._path))
            return {
                str(dest): (str(command), [[int(size), int(digest)] for size, digest in digests])
                for dest, (command, digests) in found.items()
                if dest.startswith("/")
            }
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            why = (error.strerror or strerror(error)) if isinstance(error, OSError) else "it is damaged"
            log.warning(
                "%s is ignored: %s: files that are no longer in the definition stay in this container",
                self._path,
                why,
            )
            return {}


def _canonical(dest: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(dest)), os.path.basename(dest))


def _digest(data: bytes) -> Digest:
    return [len(data), zlib.crc32(data)]


def _why_not(dest: str, digests: Sequence[Digest]) -> str | None:
    """Why the file can't be removed; None: it can. Empty: it is gone."""
    directory, name = os.path.split(dest)
    try:
        with closing(existing(directory)) as parent:
            data = read_descriptor(os.open(name, os.O_RDONLY | O_CAREFUL, dir_fd=parent))
            if _digest(data) not in digests:
                return "somebody has changed it"
            return "it is a mount of its own" if is_mount(parent, name) else None
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"it can't be read: {strerror(error)}"
