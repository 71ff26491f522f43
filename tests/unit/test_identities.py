"""The texts that name identities: which are accepted, and which hide a mistake."""

from __future__ import annotations

import base64
import hashlib

import pytest

from kolla_mesos_start import identities


@pytest.mark.parametrize(
    "algorithm", ["md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "sha3_512"]
)
def test_a_digest_of_every_algorithm_of_zookeeper_is_one(algorithm: str) -> None:
    """zookeeper.DigestAuthenticationProvider.digestAlg names it."""
    hashed = base64.b64encode(hashlib.new(algorithm, b"web:password").digest()).decode()
    assert identities.is_digest(f"web:{hashed}")
    assert identities.acl(f"digest:web:{hashed}:cdrw") == (("digest", f"web:{hashed}", "cdrw"),)


@pytest.mark.parametrize(
    "text",
    [
        *("web", "web:", ":" + "A" * 27 + "=", "web:password", "web:" + "A" * 28, "web:" + "A" * 26 + "=="),
        *("web:" + "a1" * 20, "web:" + "0f" * 32, "web:" + "A" * 26 + "!=", "web:A:" + "A" * 27 + "="),
    ],
)
def test_a_password_is_no_digest(text: str) -> None:
    """Not even one of `openssl rand -hex`, which is as long as a digest in base64."""
    assert not identities.is_digest(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x509:CN=a, O=b,C=c:r,world:anyone:r", [("x509", "CN=a, O=b,C=c", "r"), ("world", "anyone", "r")]),
        ("ip:10.0.0.1:r,  auth::cdrwa", [("ip", "10.0.0.1", "r"), ("auth", "", "cdrwa")]),
        ("ip:::1:r", [("ip", "::1", "r")]),
    ],
)
def test_the_entries_of_an_acl_are_told_apart(text: str, expected: list[identities.Acl]) -> None:
    """Although the id of a certificate has commas, too."""
    assert list(identities.acl(text)) == expected
