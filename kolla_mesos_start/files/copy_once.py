"""COPY_ONCE: a marker file in KOLLA_STATE_DIR for each command whose files this container has written."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

from kolla_mesos_start.errors import CannotWrite
from kolla_mesos_start.files.paths import closing, open_directory, read_regular, strerror, sync_directory
from kolla_mesos_start.files.place import complete, remove_leftovers
from kolla_mesos_start.files.plan import Content
from kolla_mesos_start.health import refuse_strangers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class CopyOnce:
    """The marker of the command `role/command`; it lasts as long as the container."""

    def __init__(self, state_dir: str, command_path: str) -> None:
        self._state_dir, self._directory = state_dir, os.path.join(state_dir, "copied")
        self._name = quote(command_path, safe="")
        if len(self._name) > 200:
            import hashlib  # Only for names that are too long for a file.

            self._name = self._name[:100] + "-" + hashlib.sha256(self._name.encode()).hexdigest()

    def written(self) -> int | None:
        """The zxid up to which the files were read that an earlier start has written; None if none has."""
        with self._explained():
            refuse_strangers(self._state_dir)
            if os.path.islink(self._directory):
                raise PermissionError(errno.EPERM, "it is a link, which the agent does not make: remove it")
            marker = os.path.join(self._directory, self._name)
            try:
                if not stat.S_ISREG(os.lstat(marker).st_mode):
                    return None
            except (FileNotFoundError, NotADirectoryError):
                return None
            data = read_regular(marker)
        try:
            return int(data, 16)
        except ValueError:
            return 0

    @contextmanager
    def recorded(self, read: int) -> Iterator[None]:
        """A context that writes the files, read up to the zxid `read`; its end makes the marker.

        Raises CannotWrite first if that will not be possible. If a start ends before, the next one writes the
        files again.
        """
        marker = Content("marker", os.path.join(self._directory, self._name), None, None, 0o644, b"%x" % read)
        with ExitStack() as stack:
            with self._explained():
                directory = stack.enter_context(closing(open_directory(self._directory)))
                remove_leftovers(directory, self._directory)
                temporary = stack.enter_context(complete(directory, marker))
            yield
            with self._explained():
                os.rename(temporary, self._name, src_dir_fd=directory, dst_dir_fd=directory)
                sync_directory(directory)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CannotWrite(
                f"COPY_ONCE can't be recorded in {self._directory}: {error.strerror or strerror(error)}:"
                " set KOLLA_STATE_DIR to a directory that exists as long as the container, that has space and"
                f" that uid {os.geteuid()} may write, or set KOLLA_CONFIG_STRATEGY to COPY_ALWAYS"
            ).because(error.errno) from error
