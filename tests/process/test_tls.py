"""The context of TLS, and what is said of files that it can't be made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadEnvironment
from kolla_mesos_start.settings import parse
from kolla_mesos_start.zookeeper.tls import make_context
from tests.support.certificates import PASSWORD, certify

ROLES = ("KOLLA_ZK_CA", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, and `broken.pem`, which is none."""
    directory = tmp_path_factory.mktemp("tls")
    certify(directory)
    (directory / "broken.pem").write_text("no certificate")
    return directory


def environ(directory: Path, *files: str) -> dict[str, str]:
    """The variables for a CA, a certificate and a key."""
    named = {role: str(directory / name) for role, name in zip(ROLES, files)}
    return {"KOLLA_ZK_HOSTS": "h1", "KOLLA_APP_ID": "/a/b", **named}


def test_nobody_is_trusted_but_the_given_ca(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even those whom the system trusts; and the host name is verified."""
    monkeypatch.setenv("SSL_CERT_FILE", str(directory / "ca.pem"))
    context = make_context(str(directory / "stranger.pem"))
    assert [dict(*each["subject"]) for each in context.get_ca_certs()] == [{"commonName": "stranger"}]
    assert context.check_hostname


@pytest.mark.parametrize(
    "files",
    [("ca.pem",), ("ca.pem", "client.pem", "client.key"), ("ca.pem", "client-both.pem")],
    ids=["no certificate", "a key of its own", "one file"],
)
def test_good_files_are_loaded(directory: Path, files: tuple[str, ...]) -> None:
    """A client needs no certificate; its key may be in the same file."""
    found = parse(environ(directory, *files))
    assert [found.ca, found.cert, found.key] == [
        *(str(directory / name) for name in files),
        *[None] * (3 - len(files)),
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ("broken.pem", "broken.pem"),
            ["KOLLA_ZK_CA is .*: expected CA", "KOLLA_ZK_CERT is .*: expected the client's"],
        ),
        (("ca.pem", "client.key"), ["KOLLA_ZK_CERT is .*: expected the client's certificate in PEM"]),
        (
            ("ca.pem", "client.pem"),
            ["KOLLA_ZK_CERT is .*, KOLLA_ZK_KEY is not set: .*, in PEM .none is in it"],
        ),
        (("ca.pem", "client.pem", "ca.pem"), ["KOLLA_ZK_KEY is .*: expected the key .*none is in it"]),
        (
            ("ca.pem", "client.pem", "ca.key"),
            ["KOLLA_ZK_KEY is .*: expected the key of the certificate.*mismatch"],
        ),
        (
            ("ca.pem", "client.pem", "locked.key"),
            ["KOLLA_ZK_KEY is .*: expected a key that is not encrypted"],
        ),
        (
            ("ca.pem", "client.pem", "locked-old.key"),
            ["KOLLA_ZK_KEY is .*: expected a key that is not encrypted"],
        ),
        (("ca.pem", "locked-both.pem"), ["KOLLA_ZK_CERT is .*KOLLA_ZK_KEY is not set: .* not encrypted"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_files_that_cant_be_loaded_are_a_bad_environment(
    directory: Path, files: tuple[str, ...], expected: list[str]
) -> None:
    """Each with its variable; no password is ever asked for."""
    with pytest.raises(BadEnvironment) as caught:
        parse(environ(directory, *files))
    assert len(caught.value.issues) == len(expected)
    for issue, words in zip(caught.value.issues, expected):
        assert re.match(words, issue)
    assert PASSWORD not in str(caught.value)
