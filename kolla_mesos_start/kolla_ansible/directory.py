"""Writes an imported directory, and keeps what the operator has changed in it.

`imported.json` has a mark of each file and each link of the last import. What has another mark was changed by
the operator. It is kept if the import has the same content as the last one. Otherwise it is named, and
nothing is written.

While files are written, the new record is in `services`, where it prevents a publication. An import that was
interrupted is completed by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Union

from kolla_mesos_start.ctl.directory import formats, private_file
from kolla_mesos_start.ctl.directory.directory import UNFINISHED_IMPORT
from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.kolla_ansible.emitted import Emitted, has_key

RECORD = "imported.json"
UNFINISHED = f"services/{UNFINISHED_IMPORT}"
LOCK = ".import.lock"  # stays, empty
# The content of a file, or the text of a link.
Content = Union[bytes, str]


def check(directory: Path) -> None:
    """Raise BadUsage for a directory that no import has made. One with hidden files only counts as empty."""
    if directory.exists() and not directory.is_dir():
        raise BadUsage(f"{directory} is not a directory: give another --output")
    services = directory / "services"
    is_empty = not _visible(services) and set(_visible(directory)) <= {services}
    if not _records(directory) and not is_empty:
        raise BadUsage(f"{directory} is not empty, and has no {RECORD} of an import: give another --output")
    _known(directory)


def changed(directory: Path, emitted: Emitted) -> Sequence[str]:
    """The paths that the operator has changed since the last import, and that this one would replace."""
    return [path for path, is_new in _operators(directory, _contents(emitted)) if is_new]


def kept(directory: Path, emitted: Emitted) -> Sequence[str]:
    """The paths that the operator has changed, and for which this import has nothing new."""
    return [path for path, is_new in _operators(directory, _contents(emitted)) if not is_new]


def _operators(directory: Path, contents: Mapping[str, Content]) -> Iterator[tuple[str, bool]]:
    """The paths that the operator has changed or removed, and whether their content is new.

    What is missing after an interrupted import was perhaps never written.
    """
    known, is_whole = _known(directory), not (directory / UNFINISHED).exists()
    for path, content in sorted(contents.items()):
        mark, marks = _mark_of(directory / path), known.get(path, set())
        is_removed = mark is None and is_whole and path in known
        if is_removed or (mark is not None and mark not in {*marks, _mark(content)}):
            yield path, _mark(content) not in marks


def reasons(directory: Path) -> Mapping[tuple[str, str], str]:
    """The reason for each dependency, by the roles of what is needed and what needs it.

    BadUsage for a directory that no import has made.
    """
    try:
        edges = json.loads((directory / RECORD).read_bytes())["edges"]
        return {(edge["on"], edge["name"]): edge["reason"] for edge in edges}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadUsage(
            f"{directory} has no readable {RECORD}: give the directory of `kolla_mesos_ctl import`"
        ) from error


def write(directory: Path, emitted: Emitted) -> Sequence[str]:
    """Write everything, and remove what only the last import had; the removed paths.

    Raises CannotWrite, and BadUsage before anything of the import is written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (directory / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # The files of two imports must not be mixed.
            return _replace(directory, emitted)
    except OSError as error:
        raise CannotWrite(f"{error.filename} can't be written: {error.strerror}") from error


def _replace(directory: Path, emitted: Emitted) -> Sequence[str]:
    known, contents = _known(directory), _contents(emitted)
    gone = sorted(
        path for path in known.keys() - contents.keys() if _mark_of(directory / path) in known[path]
    )
    for path in (*known, *contents):
        formats.check_link((directory / path).parent, directory)
    operators = {path for path, is_new in _operators(directory, contents) if not is_new}
    record = json.loads(emitted.files[RECORD])
    record["files"] = {path: _mark(content) for path, content in contents.items()}
    _write(directory / UNFINISHED, json.dumps(record, indent=1).encode() + b"\n")
    for path in gone:
        (directory / path).unlink()
        _remove_empty((directory / path).parent, directory)
    for path, content in contents.items():
        if path not in operators:
            _write(directory / path, content)
    (directory / UNFINISHED).replace(directory / RECORD)
    return gone


def _contents(emitted: Emitted) -> Mapping[str, Content]:
    links = {path: os.path.relpath(target, os.path.dirname(path)) for path, target in emitted.links.items()}
    return {**{path: data for path, data in emitted.files.items() if path != RECORD}, **links}


def _visible(directory: Path) -> Sequence[Path]:
    found = directory.iterdir() if directory.is_dir() else ()
    return [path for path in found if not path.name.startswith(".")]


def _records(directory: Path) -> Sequence[Path]:
    """The record of the last import, and that of one that was interrupted."""
    return [directory / name for name in (RECORD, UNFINISHED) if (directory / name).is_file()]


def _known(directory: Path) -> Mapping[str, set[str]]:
    """The marks that each path may have after the last imports."""
    found: dict[str, set[str]] = {}
    for record in _records(directory):
        try:
            for path, mark in json.loads(record.read_bytes()).get("files", {}).items():
                found.setdefault(path, set()).add(mark)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise BadUsage(f"{record} is not the record of an import: give another --output") from error
    return found


def _mark(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else f"link to {content}"


def _mark_of(path: Path) -> str | None:
    """The mark of what is there; None if nothing is."""
    if path.is_symlink():
        return _mark(os.readlink(path))
    if path.is_file():
        return _mark(path.read_bytes())
    return "not a file" if path.exists() else None


def _write(path: Path, content: Content) -> None:
    """Replace a file or a link, unless it is the same. Others can't read a key."""
    is_key = isinstance(content, bytes) and has_key(content)
    if _mark_of(path) == _mark(content) and not is_key:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or isinstance(content, str):
        with suppress(FileNotFoundError):
            path.unlink()
    if isinstance(content, str):
        path.symlink_to(content)
    elif is_key:
        private_file.write(path, content)
    else:
        private_file.write_public(path, content)


def _remove_empty(directory: Path, top: Path) -> None:
    """Remove a directory and those above it while they are empty."""
    while directory != top:
        try:
            directory.rmdir()
        except OSError:  # It is not empty.
            return
        directory = directory.parent
