"""A credential or a key that every user of a container can read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kolla_mesos_start.open_files import is_open, warn_of_open_files
from kolla_mesos_start.settings import Settings, parse
from tests.conftest import LogLines


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


def settings(cert: Path, key: Path | None) -> Settings:
    """With these files, and everything else by default."""
    required = parse({"KOLLA_ZK_HOSTS": "zk1:2181", "KOLLA_APP_ID": "/site/web"})
    return required._replace(cert=str(cert), key=str(key) if key else None)


@pytest.mark.parametrize(
    ("variable", "has_key"), [("KOLLA_ZK_AUTH_FILE", True), ("KOLLA_ZK_KEY", True), ("KOLLA_ZK_CERT", False)]
)
def test_an_open_file_is_named_with_what_to_do(
    place: Path, log_lines: LogLines, variable: str, has_key: bool
) -> None:
    """Also behind a link, as Secrets are mounted; a certificate counts only where it holds the key."""
    secret, link = place / "secret", place / "link"
    secret.write_text("s3cret")
    link.symlink_to(secret)
    for mode in (0o640, 0o644):
        secret.chmod(mode)
        warn_of_open_files(settings(cert=link, key=link if has_key else None), {variable: str(link)})
    (line,) = log_lines()
    assert line.level == "warning"
    assert line.message.startswith(f"{variable}: every user in this container can read {link} (mode 0644)")
    assert "make it 0440 or 0400" in line.message and "s3cret" not in line.message


def test_a_certificate_beside_its_key_may_be_read_by_all(place: Path, log_lines: LogLines) -> None:
    """So may what has gone meanwhile."""
    cert = place / "cert"
    cert.write_text("")
    cert.chmod(0o644)
    environ = {"KOLLA_ZK_CERT": str(cert), "KOLLA_ZK_KEY": str(place / "gone")}
    warn_of_open_files(settings(cert=cert, key=place / "gone"), environ)
    assert log_lines() == []
