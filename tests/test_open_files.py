"""A credential or a key that every user of a container can read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kolla_mesos_start.open_files import is_open, open_files


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([0o644, 0o755, 0o755], True),  # a Secret of Kubernetes, and one of podman, by default
        ([0o444, 0o1777, 0o755], True),
        ([0o640, 0o755, 0o755], False),  # with fsGroup
        ([0o600, 0o777, 0o755], False),
        ([0o644, 0o700, 0o755], False),  # in a directory that nobody else enters
        ([0o644, 0o755, 0o750], False),
        ([0], False),
    ],
)
def test_others_need_the_file_and_the_way_to_it(modes: Sequence[int], expected: bool) -> None:
    assert is_open(modes) == expected


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("variable", ["KOLLA_ZK_AUTH_FILE", "KOLLA_ZK_KEY", "KOLLA_ZK_CERT"])
def test_an_open_file_is_found(place: Path, variable: str) -> None:
    """Also behind a link, as Secrets are mounted. Without a key, a certificate holds it."""
    secret, link = place / "secret", place / "link"
    secret.touch(0o640)
    link.symlink_to(secret)
    assert list(open_files({variable: str(link)})) == []
    secret.chmod(0o644)
    assert list(open_files({variable: str(link)})) == [(variable, str(link), 0o644)]


def test_a_certificate_beside_its_key_may_be_read_by_all(place: Path) -> None:
    """So may what has gone meanwhile."""
    cert = place / "cert"
    cert.touch()
    cert.chmod(0o644)
    environ = {"KOLLA_ZK_CERT": str(cert), "KOLLA_ZK_KEY": str(place / "gone")}
    assert list(open_files(environ)) == []
