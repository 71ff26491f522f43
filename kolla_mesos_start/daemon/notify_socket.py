"""The notify socket of a daemon (sd_notify): how it is made, and whose messages count.

Everybody on the host can send to it: the daemon may be another user than the agent, and may change
its user as it starts. So each message is judged by its sender, whom the kernel names.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from kolla_mesos_start.log import Logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

log = Logger(__name__)

DATAGRAM, DATAGRAMS = 4096, 64  # bytes; and how many are read before the others have their turn
UCRED = struct.Struct("3I")  # pid, uid, gid
UNMAPPED = 65534  # what a user id looks like that our user namespace does not have; also `nobody`
MOST_ANCESTORS = 32  # are looked at: a stranger can have any number of them


def bind(path: str) -> socket.socket:
    """Make the socket at `path`, in the place of what is there."""
    if os.path.lexists(path):
        os.unlink(path)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Before it can be found: of what was sent earlier the sender would not be known.
    notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    before = os.umask(0o111)  # 0666. Not by chmod: that would follow a link put in its place.
    try:
        notify.bind(path)
    finally:
        os.umask(before)
    return notify


class NotifySocket:
    """The registrar's end of it, which is always drained: a daemon would be blocked by a full one."""

    def __init__(self, fd: int, senders: Senders) -> None:
        self.fd = fd
        self._socket = socket.socket(fileno=fd)
        self._senders = senders
        self._complained = False

    def messages(self) -> Iterator[bytes]:
        """What has come from the daemon."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(DATAGRAMS):
                message, ancillary, _, _ = self._socket.recvmsg(
                    DATAGRAM, socket.CMSG_SPACE(UCRED.size), socket.MSG_DONTWAIT
                )
                pid, uid = _sender(ancillary)
                if self._senders.trusts(pid, uid):
                    yield message
                elif not self._complained:
                    self._complained = True
                    log.warning(
                        "refused a message to the notify socket from process %d of uid %d: only root, uid %s"
                        " and the daemon's own processes may notify (said only once)",
                        pid,
                        uid,
                        " or ".join(map(str, sorted(self._senders.uids))),
                    )

    def close(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError), self._socket:
            os.unlink(self._socket.getsockname())


class Senders:
    """Who may notify: root, `uids`, the user that `daemon` is now, and the processes below it."""

    def __init__(self, daemon: int, uids: Collection[int]) -> None:
        self.uids = uids
        self.daemon = daemon

    def trusts(self, pid: int, uid: int) -> bool:
        """Whether to believe a process; `pid` is 0 for one that our pid namespace does not have."""
        if uid in (0, *self.uids) and (pid or uid != UNMAPPED):
            return True
        return pid > 0 and (uid in _uids(self.daemon) or self._is_below_daemon(pid))

    def _is_below_daemon(self, pid: int) -> bool:
        # A supervisor inherits what the daemon has left.
        for _ in range(MOST_ANCESTORS):
            if pid in (0, self.daemon, os.getpid()):
                return pid > 0
            pid = _parent(pid)
        return False


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = UCRED.unpack(data)
            return pid, uid
    return 0, UNMAPPED


def _uids(pid: int) -> set[int]:
    """The real, effective, saved and file system user id of a process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            words = next((line.split()[1:] for line in file if line.startswith(b"Uid:")), [])
    except OSError:
        return set()  # It has ended, or /proc hides other users' processes.
    return set(map(int, words)) - {UNMAPPED}


def _parent(pid: int) -> int:
    """The process id of a process's parent; 0 where there is none, or none that can be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(1024).rpartition(b")")[2].split()[1])
    except OSError:
        return 0
