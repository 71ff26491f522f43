"""Generates the secrets of `secrets.yml`, and checks given ones.

Pure, except for random numbers. `secrets_file` reads and writes the operator's file of values.
"""

from __future__ import annotations

import base64
import secrets
import string
import uuid
from collections.abc import Container, Mapping
from typing import Callable

from kolla_mesos_start.ctl.directory.directory import (
    FERNET,
    GIVEN,
    PASSWORD,
    UUID,
    Contents,
)

LENGTH = 32  # characters of a password, and bytes of a key


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
