"""The notify socket of a daemon (sd_notify), and whose messages are accepted.

Every process on the host can write to it, because the daemon may have another user than the agent, and may
change it. So each message is accepted or refused by its sender, which the kernel names.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from kolla_mesos_start.health import clear
from kolla_mesos_start.log import Logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

log = Logger(__name__)

DATAGRAM, DATAGRAMS = 4096, 64  # bytes; and how many are read before other events
TIMED = (b"EXTEND_TIMEOUT_USEC=", b"WATCHDOG")
UCRED = struct.Struct("3I")  # pid, uid, gid
UNMAPPED = 65534  # replaces user ids that our user namespace does not have; also `nobody`
MOST_ANCESTORS = 32  # are checked: a foreign process can have any number


def bind(path: str) -> socket.socket:
    """Create the socket at `path`, replacing an existing file."""
    clear(path)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Before others can find it: the sender of earlier messages would be unknown.
    notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    before = os.umask(0o111)  # 0666. Not by chmod: that would follow a link put in its place.
    try:
        notify.bind(path)
    finally:
        os.umask(before)
    return notify


class NotifySocket:
    """The registrar's end. It is always drained: a full socket would block the daemon."""

    def __init__(self, fd: int, senders: Senders) -> None:
        self.fd = fd
        self._socket = socket.socket(fileno=fd)
        self._senders = senders
        self._complained = False

    def messages(self) -> Iterator[bytes]:
        """The daemon's messages so far."""
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


class Manager:
    """The notify socket of an outer service manager, which learns when the daemon becomes ready and stops."""

    def __init__(self, address: str) -> None:
        """`address` is its NOTIFY_SOCKET, or empty."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._said: list[bytes] = []

    def pass_on(self, message: bytes) -> None:
        """Pass on the lines that the manager measures time by."""
        lines = [line for line in message.split(b"\n") if line.startswith(TIMED)]
        if lines:
            self._send(b"\n".join(lines))

    def show(self, ready: bool, stopping: bool) -> None:
        """Send READY=1 or STOPPING=1, once each."""
        for said, message in ((ready, b"READY=1"), (stopping, b"STOPPING=1")):
            if said and message not in self._said:
                self._said.append(message)
                self._send(message)

    def _send(self, message: bytes) -> None:
        if self._address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                    manager.setblocking(False)
                    manager.sendto(message, self._address)
            except OSError as error:
                log.warning("%s can't be sent to the NOTIFY_SOCKET of the container: %s", message, error)


class Senders:
    """Who may notify: root, `uids`, the daemon's current user, and its descendants."""

    def __init__(self, daemon: int, uids: Collection[int]) -> None:
        self.uids = uids
        self.daemon = daemon

    def trusts(self, pid: int, uid: int) -> bool:
        """Whether to accept messages of a process; `pid` is 0 if it is not in our pid namespace."""
        if uid in (0, *self.uids) and (pid or uid != UNMAPPED):
            return True
        return pid > 0 and (uid in _uids(self.daemon) or self._is_below_daemon(pid))

    def _is_below_daemon(self, pid: int) -> bool:
        # A supervisor inherits the daemon's orphans.
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
    """The parent's pid; 0 if there is none, or it is not visible."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(1024).rpartition(b")")[2].split()[1])
    except OSError:
        return 0
