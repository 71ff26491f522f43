"""COPY_ONCE: a marker file in KOLLA_STATE_DIR for each command whose files this container has written."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

from kolla_mesos_start.errors import cannot_write
from kolla_mesos_start.files.paths import closing, open_directory, read_regular, strerror, sync_directory
from kolla_mesos_start.files.place import complete
from kolla_mesos_start.files.plan import Content
from kolla_mesos_start.files.temporary import remove_leftovers
from kolla_mesos_start.health import refuse_strangers
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class CopyOnce(NamedTuple):
    """The markers of this container.

    Use: `if not done(path): require(), place(...), record(path, read)`. If a start ends before `record`,
    the next start writes the files again.
    """

    state_dir: str

    def done(self, command_path: str) -> bool:
        """Whether an earlier start of this container has written the files of `role/command`."""
        with self._explained():
            refuse_strangers(self.state_dir)
            if os.path.islink(self._markers):
                raise PermissionError(errno.EPERM, "it is a link, which the agent does not make: remove it")
            try:
                return stat.S_ISREG(os.lstat(self._marker(command_path)).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def require(self) -> None:
        """Raise CannotWrite if a marker can't be recorded. Call it before a file is written."""
        with self._temporary("", 0):
            pass

    def record(self, command_path: str, read: int) -> None:
        """Remember that the files of `role/command` are written, for as long as the container exists.

        `read` is the zxid up to which their content was read.
        """
        with self._temporary(command_path, read) as (directory, temporary):
            name = os.path.basename(self._marker(command_path))
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            sync_directory(directory)

    @contextmanager
    def _temporary(self, command_path: str, read: int) -> Iterator[tuple[int, str]]:
        """The directory of the markers, and the name of a new one in it, which has to be renamed."""
        marker = Content("marker", self._marker(command_path), None, None, 0o644, b"%x" % read)
        with self._explained(), ExitStack() as stack:
            directory = stack.enter_context(closing(open_directory(self._markers)))
            remove_leftovers(directory, self._markers)
            yield directory, stack.enter_context(complete(directory, marker))

    def read(self, command_path: str) -> int:
        """The zxid that was recorded with files that are `done`; 0 if the marker contains none."""
        with self._explained():
            data = read_regular(self._marker(command_path))
        try:
            return int(data, 16)
        except ValueError:
            return 0

    @property
    def _markers(self) -> str:
        return os.path.join(self.state_dir, "copied")

    def _marker(self, command_path: str) -> str:
        name = quote(command_path, safe="", errors="surrogatepass")
        if len(name) > 200:
            import hashlib  # Only for names that are too long for a file.

            name = name[:100] + "-" + hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self._markers, name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(
                f"COPY_ONCE can't be recorded in {self._markers}: {error.strerror or strerror(error)}:"
                " set KOLLA_STATE_DIR to a directory that exists as long as the container, that has space and"
                f" that uid {os.geteuid()} may write, or set KOLLA_CONFIG_STRATEGY to COPY_ALWAYS",
                error,
            ) from error
