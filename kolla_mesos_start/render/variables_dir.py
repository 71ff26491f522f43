"""Variables from KOLLA_VARIABLES_DIR: one file for each, such as a mounted Secret.

No message contains a value.
"""

from __future__ import annotations

import os
import stat

from kolla_mesos_start.definition.strings import is_encrypted, value_of
from kolla_mesos_start.errors import PASSING, CannotRender
from kolla_mesos_start.files.paths import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set

LIMIT = 1 << 20  # bytes; also the limit of a znode


def read(directory: str, names: Set[str] | None = None) -> dict[str, str]:
    """The values of these variables, or of all, if they have a file.

    A kubelet replaces all files at once: a user and a password must not be of two versions.
    """
    while True:
        version = _version(directory)
        try:
            values = _read(directory, names)
        except CannotRender:
            if _version(directory) == version:
                raise
            continue
        if _version(directory) == version:
            return values


def _version(directory: str) -> str | None:
    """The directory in which a kubelet has the current files; their names are links into it."""
    try:
        return os.readlink(f"{directory}/..data")
    except OSError:
        return None


def _read(directory: str, names: Set[str] | None) -> dict[str, str]:
    try:
        found = {name for name in os.listdir(directory) if not name.startswith(".")}
        wanted = {each for each in found if _is_file(f"{directory}/{each}")} if names is None else names
    except OSError as error:
        raise CannotRender(f"KOLLA_VARIABLES_DIR: {_why(directory, error)}").because(error.errno) from error
    return {name: _value(f"{directory}/{name}") for name in found & wanted}


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in PASSING:
            raise
        return False


def _value(path: str) -> str:
    """The value in a file."""
    try:
        data = read_regular(path, LIMIT)
    except OSError as error:
        raise CannotRender(_why(path, error)).because(error.errno) from error
    if is_encrypted(data):
        raise CannotRender(f"{path} is still encrypted by ansible-vault: put the decrypted value there")
    try:
        return value_of(data).decode()
    except UnicodeDecodeError as error:
        raise CannotRender(
            f"{path} is not UTF-8 text (byte {error.start})"
        ) from None  # It holds the content.


def _why(path: str, error: OSError) -> str:
    from kolla_mesos_start.files.permissions import reading

    return f"{path} can't be read: {reading(path, error)}"
