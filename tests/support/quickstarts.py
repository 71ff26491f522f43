"""bin/quickstart as a stranger calls it: from a checkout of his own, with or without a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kolla_mesos_start.ctl.up.containers import end_all
from tests import CHECKOUT
from tests.support.processes import command_line, environment, processes, working_directory
from tests.support.waiting import eventually


class Size(NamedTuple):
    """Of a terminal, in characters."""

    columns: int
    lines: int


NOT_COPIED = shutil.ignore_patterns("__pycache__")


def checkout_in(place: Path) -> Path:
    """A checkout that nobody has touched yet, in an empty directory."""
    checkout = place / "c"
    for name in ("bin", "etc", "kolla_mesos_start"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=NOT_COPIED)
    copy_tests(checkout)
    (place / "tmp").mkdir()
    return checkout


def copy_tests(checkout: Path) -> None:
    """Copy what bin/quickstart uses of tests/."""
    shutil.copytree(CHECKOUT / "tests" / "examples", checkout / "tests" / "examples", ignore=NOT_COPIED)
    shutil.copy(CHECKOUT / "tests" / "__init__.py", checkout / "tests")


class Quickstart:
    """One call of a checkout's bin/quickstart; in a `terminal` of this size, or without one."""

    def __init__(
        self,
        checkout: Path,
        *arguments: str,
        terminal: Size | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.checkout = checkout
        self.directory = checkout / ".quickstart"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KOLLA_")}
        self.heard = b""
        self.ours, theirs = pty.openpty() if terminal else os.pipe()
        os.set_blocking(self.ours, False)
        if terminal:
            self.resize(terminal)
            inherited["TERM"] = "xterm"
        self.process = subprocess.Popen(
            # As a login does: what is typed as Ctrl-C reaches the processes in front.
            [*(("setsid", "--ctty") if terminal else ()), "bin/quickstart", *arguments],
            cwd=checkout,
            env={**inherited, "TMPDIR": str(checkout.parent / "tmp"), **(environ or {})},
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=not terminal,
        )
        os.close(theirs)

    def resize(self, terminal: Size) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("4H", terminal.lines, terminal.columns, 0, 0))

    def types(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    @property
    def said(self) -> str:
        with suppress(OSError):  # nothing more for now, or for ever
            while data := os.read(self.ours, 65536):
                self.heard += data
        return self.heard.decode(errors="replace").replace("\r\n", "\n")

    def says(self, words: str) -> None:
        """Wait until it has said `words`; or has ended, which is an error then."""
        eventually(lambda: words in self.said or self.process.poll() is not None, words, seconds=300)
        assert words in self.said, self.said

    def signal(self, signum: int) -> None:
        """Send it what Ctrl-C, or the end of the terminal, sends: to all processes in front of it."""
        if self.process.poll() is None:  # With a terminal, setsid has to run before there is such a group.
            eventually(lambda: os.getpgid(self.process.pid) == self.process.pid, "it leads its group")
        os.killpg(self.process.pid, signum)

    def ends(self) -> int:
        # It may wait for somebody to read.
        eventually(lambda: (self.said, self.process.poll() is not None)[1], "it ends", seconds=300)
        return self.process.wait()

    def left(self) -> list[str]:
        """What still runs of the checkout."""
        mark = str(self.checkout)
        return [
            command_line(pid) or str(pid)
            for pid in processes()
            if mark in command_line(pid) + environment(pid) + working_directory(pid)
        ]

    def zookeeper(self) -> int:
        """The process id of its private server."""
        (pid,) = (
            pid for pid in processes() if working_directory(pid) == str(self.directory / "site" / "zookeeper")
        )
        return pid

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        end_all(self.directory / "site")  # of a test that has failed
        os.close(self.ours)
