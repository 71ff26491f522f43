"""A program on a terminal of its own, as a person has it, and what that shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.support.waiting import eventually


class Terminal:
    """What is typed there is echoed, and Ctrl-C is SIGINT, unless the program says otherwise."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._ours, theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self.screen = ""
        self._process = subprocess.Popen(
            ("setsid", "--ctty", *argv), stdin=theirs, stdout=theirs, stderr=theirs, env=environ
        )
        os.close(theirs)

    def shows(self, words: str) -> None:
        """Wait for words on the screen that were not there before."""
        seen = len(self.screen)
        eventually(lambda: words in self._read()[seen:], f"{words!r} on the terminal")

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ends(self) -> int:
        """Wait for the program's end; its wait status."""

        def ended() -> tuple[int, int] | None:
            self._read()
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
            return (pid, status) if pid else None

        _, status = eventually(ended, "the program on the terminal has ended") or (0, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._read()
        return status

    def _read(self) -> str:
        try:
            while data := os.read(self._ours, 4096):
                self.screen += data.decode(errors="replace")
        except OSError:
            pass  # There is no more now, or nobody has the terminal any more.
        return self.screen

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
