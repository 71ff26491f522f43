"""The directory of one run of `up`: locked, empty at the start, and by default removed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from kolla_mesos_start.ctl.up.containers import end_all
from kolla_mesos_start.errors import AgentError, BadUsage
from kolla_mesos_start.settings import RUN_DIR_LIMIT

LOCK = "kolla_mesos_up.lock"  # in the place of a run, which shows that it is one
PREFIX = "kolla-up-"  # of a place that is not given
SITE = "site"
LONGEST_RUN_DIR = len("/run/99")  # bytes


class PlaceInUse(AgentError):
    """Another run uses the same directory."""

    status = 1


def locked(given: Path | None, stack: ExitStack) -> Path:
    """The locked directory for this run: `given`, or a temporary one. It has no `site` in it."""
    place = _temporary(stack) if given is None else _given(given.resolve(), stack)
    if len(os.fsencode(place / SITE)) + LONGEST_RUN_DIR > RUN_DIR_LIMIT:
        raise BadUsage(f"{place / SITE} is too long for the sockets in it: choose a shorter one")
    # A killed run may have left processes: one that has changed its user survives.
    end_all(place / SITE)
    shutil.rmtree(place / SITE, ignore_errors=True)
    return place


def _given(place: Path, stack: ExitStack) -> Path:
    if (place / SITE).exists() and not (place / LOCK).exists():
        raise BadUsage(f"{place / SITE} exists, but no earlier run has created it: choose another place")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((place / LOCK).open("w"))
    except OSError as error:
        raise BadUsage(f"{place} can't be used: {error.strerror}") from error
    _lock(lock, place)
    return place


def _temporary(stack: ExitStack) -> Path:
    _remove_abandoned()
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = stack.enter_context((place / f".{LOCK}").open("w"))
    place.chmod(0o755)  # A daemon may run as another user.
    _lock(lock, place)
    # It is renamed once it is locked, so that no other run finds it unlocked.
    (place / f".{LOCK}").rename(place / LOCK)
    return place


def _remove_abandoned() -> None:
    """Remove the directories of killed runs, and end their surviving processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        place = path.parent
        try:
            if place.lstat().st_uid != os.geteuid():
                continue
            with path.open("r+") as lock:
                _lock(lock, place)
                print(f"removing {place}: the `up` that made it was killed")
                end_all(place / SITE)
                shutil.rmtree(place, ignore_errors=True)
        except (FileNotFoundError, PlaceInUse):  # It has ended just now, or has not.
            continue


def _lock(lock: IO[str], place: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PlaceInUse(f"another deployment is up in {place}: choose another place") from error


def remove(place: Path, kept: Sequence[Path]) -> None:
    """Remove a temporary place, but not the `kept` files, which only we can read then."""
    if not kept:
        shutil.rmtree(place, ignore_errors=True)
        return
    place.chmod(0o700)
    above = {parent for path in kept for parent in path.parents}
    for directory, names, files in os.walk(place, topdown=False):
        for path in (Path(directory, name) for name in (*names, *files)):
            if path not in above and path not in kept:
                with suppress(OSError):  # It is not empty: a mount, for example.
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
