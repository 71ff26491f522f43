"""Whom the notify socket of a daemon believes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kolla_mesos_start.daemon.notify_socket import Senders, bind
from tests.support.waiting import eventually

NOBODY = 65534
ELSEWHERE = 1  # the process id of one that is not below any daemon


@pytest.mark.parametrize(
    ("uids", "pid", "uid", "trusted"),
    [
        ({1000}, ELSEWHERE, 0, True),
        ({1000}, ELSEWHERE, 1000, True),
        ({1000, 1001}, ELSEWHERE, 1001, True),
        ({1000}, ELSEWHERE, 1002, False),
        # From another pid namespace, as from the second container of a pod.
        ({1000}, 0, 1000, True),
        ({1000}, 0, 1002, False),
        # Whoever our user namespace does not map looks like `nobody`.
        ({1000}, ELSEWHERE, NOBODY, False),
        ({NOBODY}, 0, NOBODY, False),
        ({NOBODY}, ELSEWHERE, NOBODY, True),
    ],
)
def test_senders_are_trusted_by_their_user(uids: set[int], pid: int, uid: int, trusted: bool) -> None:
    """Root, the registrar's user and the daemon's, even if the sender has ended meanwhile."""
    assert Senders(daemon=2**22, uids=uids).trusts(pid, uid) == trusted


@pytest.fixture
def daemon() -> Iterator[tuple[int, int]]:
    """A daemon that has changed its user by itself, with a child that is a third user: their process ids."""
    script = (
        "import os, time; child = os.fork(); os.setuid(4711 if child else 4712);"
        "print(child, flush=True) if child else None; time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout
            child = int(process.stdout.readline())
            eventually(lambda: Path(f"/proc/{child}").stat().st_uid == 4712, "the child is another user")
            yield process.pid, child
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_senders_are_trusted_by_what_the_daemon_has_become(daemon: tuple[int, int]) -> None:
    """The daemon's helpers may be its children, or be anywhere as the user that it has taken."""
    pid, child = daemon
    senders = Senders(pid, {0})
    assert senders.trusts(pid, 4711)
    assert senders.trusts(child, 4712)
    assert senders.trusts(ELSEWHERE, 4711)
    assert not senders.trusts(ELSEWHERE, 4712)


def test_the_socket_is_open_to_every_user_and_replaces_what_is_there(tmp_path: Path) -> None:
    """The daemon may be another user; a link that somebody has made there leads nowhere."""
    precious = tmp_path / "precious"
    precious.touch(0o600)
    path = tmp_path / "notify"
    path.symlink_to(precious)
    before = os.umask(0o077)
    try:
        with bind(str(path)):
            assert stat.filemode(path.lstat().st_mode) == "srw-rw-rw-"
    finally:
        assert os.umask(before) == 0o077
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600
