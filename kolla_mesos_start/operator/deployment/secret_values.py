"""Secrets that nobody has to think up: the names and kinds of `secrets.yml`, and their values.

What lives here: the kinds, and which secrets still need a value. Pure, but for the random numbers; the
operator's file of values is `secrets_file`'s.
"""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Container, Mapping
from typing import Callable, NamedTuple

from kolla_mesos_start.operator.deployment.directory import FERNET, PASSWORD, VARIABLES, Contents, Deployment

LENGTH = 32  # characters of a password, and bytes of a key


def _password() -> str:
    """Letters and digits only: it stands in URLs, in SQL and in option files."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(LENGTH))


def _fernet() -> str:
    """As Fernet.generate_key() of the package cryptography makes it."""
    return base64.urlsafe_b64encode(secrets.token_bytes(LENGTH)).decode()


MAKERS: Mapping[str, Callable[[], str]] = {PASSWORD: _password, FERNET: _fernet}


def _bad_password(text: str) -> bool:
    return not text.strip()


def _bad_fernet(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars=b"-_", validate=True)) != LENGTH
    except ValueError:
        return True


EXPECTED: Mapping[str, tuple[Callable[[str], bool], str]] = {
    PASSWORD: (_bad_password, "it is empty"),
    FERNET: (_bad_fernet, "it is no key of Fernet, which is 32 bytes in URL-safe base64"),
}


def bad_secret(kind: str, text: str) -> str | None:
    """Why the value of a secret, which somebody has given, can't be one: of a damaged file, perhaps."""
    is_bad, why = EXPECTED[kind]
    return f"{why}: give the whole value, or remove the line to have one generated" if is_bad(text) else None


class Completed(NamedTuple):
    """A deployment whose secrets all have a value: `kept` were published already, `new` are generated."""

    deployment: Deployment
    kept: Contents
    new: Contents


def complete(deployment: Deployment, given: Container[str], published: Mapping[str, bytes]) -> Completed:
    """With a value for each secret that neither the deployment nor its containers (`given`) have.

    What is published stays: a new password would lock out what runs with the former one.
    """
    kept, new = {}, {}
    for name, kind in deployment.secrets.items():
        before = published.get(f"{VARIABLES}/{name}")
        if name in deployment.variables or name in given:
            continue
        if before is not None:
            kept[name] = before
        else:
            new[name] = MAKERS[kind]().encode()
    variables = {**deployment.variables, **kept, **new}
    return Completed(deployment._replace(variables=variables), kept, new)
