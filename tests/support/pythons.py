"""The Pythons of this machine, and for each an environment with the lowest versions that setup.py allows.

Finds the Pythons and installs the environments. The tests choose the programs to run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.examples.openstack import PIP, Say, run
from tests.support.pins import LOWEST

MINORS = range(9, 14)
QUESTION = "import ensurepip, json, sys, venv; print(json.dumps([sys.version_info[:3], sys.executable]))"


class Python(NamedTuple):
    """One that can make environments; `version` as it says it."""

    minor: int
    version: str
    program: str


def found() -> list[Python]:
    """One of each minor version, the oldest first; the one that runs us is among them."""
    pythons: dict[int, Python] = {}
    for program in _candidates():
        answer = subprocess.run([program, "-c", QUESTION], capture_output=True, text=True)
        # What pyenv puts on PATH is there for Pythons that are not chosen, too.
        if answer.returncode == 0:
            (major, minor, micro), executable = json.loads(answer.stdout)
            pythons.setdefault(minor, Python(minor, f"{major}.{minor}.{micro}", executable))
    return [pythons[minor] for minor in MINORS if minor in pythons]


def missing() -> list[str]:
    """The versions that are not on this machine."""
    there = {python.minor for python in found()}
    return [f"3.{minor}" for minor in MINORS if minor not in there]


def _candidates() -> Iterator[str]:
    yield sys.executable
    for minor in MINORS:
        yield from filter(None, [shutil.which(f"python3.{minor}")])
        yield from sorted(map(str, Path.home().glob(f".pyenv/versions/*/bin/python3.{minor}")))


def environment(python: Python, cache: Path, say: Say) -> str:
    """The program of an environment with the lowest versions; it is kept while that is its recipe."""
    cache.mkdir(exist_ok=True)
    directory = cache.resolve() / f"lowest-3.{python.minor}"
    (cache / ".gitignore").write_text("*\n")
    with (cache / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = LOWEST.read_text() + repr(python)
        made_for, digest = directory / "made-for", hashlib.sha256(wanted.encode()).hexdigest()
        if not made_for.exists() or made_for.read_text() != digest:
            say(f"installing the lowest versions for Python {python.version} (about 10 s)")
            shutil.rmtree(directory, ignore_errors=True)
            run((python.program, "-m", "venv", str(directory)))
            pip = (str(directory / "bin" / "python"), *PIP, "install")
            # A wheel for each: a machine without a compiler has to do, and nothing is built by chance.
            run((*pip, "--only-binary=:all:", "--require-hashes", "-r", str(LOWEST)))
            made_for.write_text(digest)
    return str(directory / "bin" / "python")
