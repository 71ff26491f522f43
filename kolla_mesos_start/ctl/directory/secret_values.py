"""The secrets of `secrets.yml`: generating and checking them, and the operator's own file with their values.

That file is outside of the deployment's directory. Generated and published secrets are added to it; `source`
reads it with other variables.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import string
import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Callable

from rich.console import Console

from kolla_mesos_start.ctl.directory import formats, private_file
from kolla_mesos_start.ctl.directory.directory import (
    FERNET,
    GIVEN,
    PASSWORD,
    UUID,
    Contents,
)
from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotWrite

LENGTH = 32  # characters of a password, and bytes of a key
HEADER = (
    b"# The secrets of a deployment, for --secrets of kolla_mesos_ctl. Keep this file, and keep it private.\n"
)
READ_BY_OTHERS = 0o044


def _password() -> str:
    """Letters and digits only: a password is used in URLs, in SQL and in option files."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(LENGTH))


def _fernet() -> str:
    """The format of Fernet.generate_key() in the package cryptography."""
    return base64.urlsafe_b64encode(secrets.token_bytes(LENGTH)).decode()


def _uuid() -> str:
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))


# Without `given`: such a secret, for example an SSH key, belongs to a pair or comes from another system.
MAKERS: Mapping[str, Callable[[], str]] = {PASSWORD: _password, FERNET: _fernet, UUID: _uuid}


def bad_secret(name: str, kind: str, text: str) -> str | None:
    """Why a given value is not a valid secret, perhaps because its file is damaged; None if it is valid."""
    if kind == GIVEN:
        what = f"it has no value, and is never generated: add `{name}: VALUE` to the file of --secrets"
        return None if text.strip() else what
    if kind == FERNET:
        why = "" if _is_fernet(text) else "it is not a Fernet key (32 bytes in URL-safe base64)"
    elif kind == UUID:
        why = "" if _is_uuid(text) else "it is not a UUID"
    else:
        why = "" if text.strip() else "it is empty"
    return f"{why}: give the whole value, or remove the line to have one generated" if why else None


def _is_fernet(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars=b"-_", validate=True)) == LENGTH
    except ValueError:
        return False


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def generate(secrets: Mapping[str, str], given: Container[str]) -> Contents:
    """A value for each secret, whose kind is given, that is not in `given`.

    It is empty if it can't be generated: unless a published one replaces it, `bad_secret` names it.
    """
    return {
        name: MAKERS[kind]().encode() if kind in MAKERS else b""
        for name, kind in secrets.items()
        if name not in given
    }


# -- the file -------------------------------------------------------------------------------------


def keep(file: Path | None, kept: Contents, generated: Contents, console: Console) -> None:
    """Add the published secrets (`kept`) and the generated ones to the file before anything is published.

    Prints how many there are, never their values.
    """
    if file is None:
        return
    values = {name: _text(name, data) for name, data in {**kept, **generated}.items()}
    if values:
        add(file, values)
    if kept:
        print(f"copied {counted(len(kept), 'published secret')} to {file}")
    if generated:
        print(f"generated {counted(len(generated), 'secret')} into {file}")
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
