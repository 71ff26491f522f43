"""The operator's own file with the values of secrets, outside of the deployment's directory.

Adds generated and published secrets to the file. `source` reads it with other variables.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from kolla_mesos_start.ctl.directory import formats, private_file
from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotWrite

HEADER = (
    b"# The secrets of a deployment, for --secrets of kolla_mesos_ctl. Keep this file, and keep it private.\n"
)
READ_BY_OTHERS = 0o044


def keep(file: Path | None, source: Source, console: Console) -> None:
    """Add the generated and the published secrets to the file before anything is published.

    Prints how many there are, never their values.
    """
    if file is None:
        return
    values = {**source.kept, **source.generated}
    if values:
        add(file, {name: _text(name, data) for name, data in values.items()})
    if source.kept:
        print(f"copied {counted(len(source.kept), 'published secret')} to {file}")
    if source.generated:
        print(f"generated {counted(len(source.generated), 'secret')} into {file}")
    if file.exists() and file.stat().st_mode & READ_BY_OTHERS:
        console.print(f"warning: other users can read {file}: chmod 600 {file}")


def add(file: Path, values: Mapping[str, str]) -> None:
    """Append lines to the file, which is created if it does not exist. Raises CannotWrite."""
    file = file.resolve()
    try:
        with _locked(file) as stream:
            before = stream.read()
            more = formats.appended(before or HEADER, values)
            private_file.write(file, more, os.fstat(stream.fileno()))
    except BadDefinition as error:
        raise CannotWrite(f"{file}: {'; '.join(error.issues)}") from error
    except OSError as error:
        raise CannotWrite(f"{file} can't be written: {error.strerror}") from error


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadUsage(
            f"the published {name} is not UTF-8 text: give it another value, with `set`"
        ) from error


@contextmanager
def _locked(file: Path) -> Iterator[BinaryIO]:
    """Open the file with an exclusive lock."""
    while True:
        with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # The previous holder of the lock has replaced the file.
            if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
                yield stream
                return
