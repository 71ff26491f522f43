"""Writes an imported directory, and keeps what the operator has changed in it.

`imported.json` has the digest of each file that the last import wrote. A file with another content is the
operator's: it is named, and nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.operator.kolla_ansible.emit import Emitted

RECORD = "imported.json"


def changed(directory: Path, emitted: Emitted) -> Sequence[str]:
    """The files that the operator has changed since the last import, and that this one would replace.

    BadUsage for a directory that no import has made.
    """
    if not directory.exists() or not any(directory.iterdir()):
        return []
    if not (directory / RECORD).is_file():
        raise BadUsage(f"{directory} is not empty, and has no {RECORD} of an import: give another --output")
    known = _digests(directory)
    found = []
    for path, data in emitted.files.items():
        file = directory / path
        if path != RECORD and file.is_file() and not file.is_symlink():
            is_ours = known.get(path) == _digest(file.read_bytes())
            if not is_ours and file.read_bytes() != data:
                found.append(path)
    return found


def reasons(directory: Path) -> Mapping[tuple[str, str], str]:
    """The reason for each dependency, by the roles of what is needed and what needs it.

    BadUsage for a directory that no import has made.
    """
    try:
        edges = json.loads((directory / RECORD).read_bytes())["edges"]
    except (OSError, ValueError, KeyError) as error:
        raise BadUsage(
            f"{directory} has no readable {RECORD}: give the directory of `kolla_mesos_ctl import`"
        ) from error
    return {(edge["on"], edge["name"]): edge["reason"] for edge in edges}


def write(directory: Path, emitted: Emitted) -> Sequence[str]:
    """Write all files, and remove those that only the last import had, which are returned.

    Raises CannotWrite.
    """
    known = _digests(directory)
    record = json.loads(emitted.files[RECORD])
    record["files"] = {path: _digest(data) for path, data in emitted.files.items() if path != RECORD}
    record["links"] = dict(emitted.links)
    files = {**emitted.files, RECORD: json.dumps(record, indent=1).encode() + b"\n"}
    try:
        gone = [path for path, digest in known.items() if path not in files and _is(directory / path, digest)]
        for path in gone:
            (directory / path).unlink()
        for path, data in files.items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                file.unlink()
            if not file.exists() or file.read_bytes() != data:
                file.write_bytes(data)
        for path, target in emitted.links.items():
            _link(directory / path, directory / target)
    except OSError as error:
        raise CannotWrite(f"{error.filename} can't be written: {error.strerror}") from error
    return gone


def _digests(directory: Path) -> Mapping[str, str]:
    file = directory / RECORD
    found: Mapping[str, str] = json.loads(file.read_bytes()).get("files", {}) if file.is_file() else {}
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is(file: Path, digest: str) -> bool:
    return file.is_file() and not file.is_symlink() and _digest(file.read_bytes()) == digest


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    text = os.path.relpath(target, link.parent)
    if link.is_symlink() and os.readlink(link) == text:
        return
    if link.is_symlink() or link.exists():
        link.unlink()
    link.symlink_to(text)
