"""Texts that name identities to ZooKeeper: credential files and ACLs.

Pure, and without regular expressions, because the registrar reads these texts too. A ValueError says what was
expected, without the value, which may be a secret.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

Credential = tuple[str, str]  # scheme, credential
Acl = tuple[str, str, str]  # scheme, id, perms (letters of cdrwa)

ACL_FORM = (
    "scheme:id:perms[,...] with perms of the letters cdrwa, like world:anyone:r or"
    " digest:<user>:<base64 of the digest>:cdrwa"
)
# Characters of base64 and of its padding, for digests of 16, 20, 28, 32, 48 and 64 bytes: of every algorithm
# that Java has (zookeeper.DigestAuthenticationProvider.digestAlg).
_DIGESTS = {(22, 2), (27, 1), (38, 2), (43, 1), (64, 0), (86, 2)}


def is_digest(text: str) -> bool:
    """Whether it is `<user>:<base64 of the digest>`. A password in its place is none."""
    user, _, digest = text.partition(":")
    characters = digest.rstrip("=")
    return (
        bool(user)
        and (len(characters), len(digest) - len(characters)) in _DIGESTS
        and all(each.isascii() and (each.isalnum() or each in "+/") for each in characters)
        and any(
            each not in "0123456789abcdef" for each in characters
        )  # `openssl rand -hex 32` is a password.
    )


def credentials(text: str) -> tuple[Credential, ...]:
    """The identities in a credential file: `scheme:credential` in each line."""
    lines = enumerate((line.rstrip("\r") for line in text.split("\n")), 1)
    found = tuple(_credential(number, line) for number, line in lines if line)
    if not found:
        raise ValueError("a file with scheme:credential in each line, but it is empty")
    return found


def _credential(number: int, line: str) -> Credential:
    scheme, _, credential = line.partition(":")
    if not _is_scheme(scheme) or not credential:
        raise ValueError(f"a file with scheme:credential in line {number}")
    if scheme == "sasl":
        raise ValueError(f"a file with another scheme than sasl in line {number}: sasl is not supported")
    if scheme == "digest" and not all(credential.partition(":")):
        raise ValueError(f"a file with digest:user:password in line {number}")
    return scheme, credential


def acl(text: str) -> tuple[Acl, ...]:
    """The entries of an ACL, as in KOLLA_ZK_ACL."""
    return tuple(map(_entry, _entries(text.strip())))


def _entries(text: str) -> Iterator[str]:
    """An x509 id may hold commas, but no scheme follows them."""
    entry = ""
    for part in text.split(","):
        scheme, colon, _ = part.lstrip().partition(":")
        if entry and colon and _is_scheme(scheme):
            yield entry
            entry = part.lstrip()
        else:
            entry += f",{part}" if entry else part
    yield entry


def _entry(text: str) -> Acl:
    scheme, _, rest = text.partition(":")
    identity, _, perms = rest.rpartition(":")
    fits: dict[str, bool] = {"world": identity == "anyone", "auth": True, "digest": is_digest(identity)}
    if not (_is_scheme(scheme) and fits.get(scheme, bool(identity)) and perms and set(perms) <= set("cdrwa")):
        raise ValueError(ACL_FORM)
    return scheme, identity, perms


def _is_scheme(text: str) -> bool:
    return text.isascii() and text.isalnum() and text == text.lower()
