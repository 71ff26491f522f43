"""A private copy of a checkout with its own virtual environment, in which mutated code may do any damage."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# All processes that the tests have started end with them.
ALONE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child")
NO_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")


class Copy:
    """Its path is short, because sockets are created below it."""

    def __init__(self, tree: Path) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="m"))
        self._place.chmod(0o755)  # Some tests have several users.
        self.root = self._place / "c"
        left_out = shutil.ignore_patterns(".*", "__pycache__", "mutations")
        shutil.copytree(tree, self.root, ignore=left_out, symlinks=True)
        shutil.copytree(Path(__file__).parent, self.root / "drills/mutations")
        venv.create(self.root / ".venv", symlinks=True)
        (self.site,) = self.root.glob(".venv/lib/python*/site-packages")
        (theirs,) = tree.glob(".venv/lib/python*/site-packages")
        (self.site / "tree.pth").write_text(f"{self.root}\n{theirs}\n")
        for program in (tree / ".venv/bin").iterdir():
            place = self.root / ".venv/bin" / program.name
            if not place.exists() and not program.is_symlink():
                place.write_bytes(program.read_bytes().replace(bytes(tree), bytes(self.root)))
                place.chmod(0o755)

    def note_calls(self) -> list[list[str]]:
        """Run all tests but the longest, for some hours at most; the lines of `notes` and `calls`."""
        (self.root / "calls").touch()
        (self.root / "calls").chmod(0o666)
        with (self.site / "tree.pth").open("a") as file:
            file.write("import drills.mutations.plugin\n")
        longest = ("stack", "containers", "kolla_ansible")
        with suppress(subprocess.TimeoutExpired):
            self._pytest(4 * 3600, "-n4", *(f"--ignore=tests/{folder}" for folder in longest))
        return [
            line.split("\t")
            for name in ("notes", "calls")
            for line in (self.root / name).read_text().splitlines()
        ]

    def failing(self, tests: Sequence[str], seconds: float) -> str:
        """The first of these tests that fails; empty if none does, or none is there.

        Raises TimeoutExpired: on a busy machine, that says nothing about the package.
        """
        files = sorted({file for test in tests if (self.root / (file := test.partition("::")[0])).is_file()})
        if not files:
            return ""
        notes = self.root / "notes"
        notes.write_text("")
        (self.root / "chosen").write_text("\n".join(tests))
        if self._pytest(seconds, "-x", *files) in (0, 5):  # 5: no test was found.
            return ""
        lines = [line.split("\t") for line in notes.read_text().splitlines()]
        failed = [test for what, test in lines if what == "failed"] or [test for what, test in lines[-1:]]
        return failed[0] if failed else tests[0]  # The package could not be imported.

    def _pytest(self, seconds: float, *words: str) -> int:
        # A shell is the first process, because that one must collect the exit statuses of all others. No
        # file may become larger than a gigabyte.
        argv = [
            *ALONE,
            *NO_ROOT,
            "sh",
            "-c",
            'ulimit -f 2000000; "$@"; exit $?',
            "sh",
            ".venv/bin/python",
            "-m",
            "pytest",
            "-q",
        ]
        options = ("-p", "no:cacheprovider", "-p", "drills.mutations.plugin", f"--basetemp={self._place}/t")
        with (self.root / "output").open("w") as output:
            return subprocess.run(
                [*argv, *options, *words],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=seconds,
            ).returncode

    def write(self, module: str, content: bytes) -> bytes:
        """Replace a module, and remove its byte code, which may look up to date; returns the old content."""
        path = self.root / module
        before = path.read_bytes()
        path.write_bytes(content)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        return before

    def remove(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
