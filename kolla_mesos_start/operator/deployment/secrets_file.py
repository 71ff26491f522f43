"""The operator's own file with the values of secrets, which is no part of a deployment's directory.

What lives here: adding to it what was generated, or was published already. What that is comes from
`secret_values`; the file is read with other variables, in `layouts`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotWrite, listed
from kolla_mesos_start.operator.deployment import formats, private_file, secret_values
from kolla_mesos_start.operator.deployment.directory import Deployment
from kolla_mesos_start.operator.deployment.findings import counted
from kolla_mesos_start.operator.deployment.secret_values import Completed

HEADER = (
    b"# The secrets of a deployment, for --secrets of kolla_mesos_ctl. Keep this file, and keep it private.\n"
)
READ_BY_OTHERS = 0o044


def complete(
    deployment: Deployment, given: Container[str], published: Mapping[str, bytes], file: Path | None
) -> Completed:
    """The deployment with all its secrets. Raises BadUsage where a new one could not be kept."""
    completed = secret_values.complete(deployment, given, published)
    if completed.new and file is None:
        raise BadUsage(
            f"no value for {listed(completed.new)}: give --secrets FILE; what is generated is added to it"
        )
    return completed


def keep(file: Path | None, completed: Completed, console: Console) -> None:
    """Add to the file what it does not have, before anything is published; how much, not what, is printed."""
    if file is None:
        return
    values = {**completed.kept, **completed.new}
    if values:
        add(file, {name: _text(name, data) for name, data in values.items()})
    if completed.kept:
        print(f"took {counted(len(completed.kept), 'published secret')} into {file}")
    if completed.new:
        print(f"generated {counted(len(completed.new), 'secret')} into {file}")
    if file.exists() and file.stat().st_mode & READ_BY_OTHERS:
        warning = f"warning: {file} can be read by others than its owner: chmod 600 {file}"
        console.print(warning, markup=False)


def add(file: Path, values: Mapping[str, str]) -> None:
    """Add lines at the end of the file, which is created if it is not there.

    CannotWrite if it can't hold them.
    """
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
    """The file, in which nobody else who locks it writes."""
    while True:
        with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # Whoever had the lock before has put another file in its place.
            if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
                yield stream
                return
