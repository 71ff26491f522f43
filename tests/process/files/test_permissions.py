"""Why a program can't be executed or a file can't be read, and which credentials every user can read."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kolla_mesos_start.files.permissions import execution, others_can_read, reading, world_readable


@pytest.mark.parametrize(
    ("number", "mode", "expected"),
    [
        (errno.ENOENT, None, "program 'serve' was not found in PATH: correct"),
        (errno.EACCES, 0o640, "program 'serve' is not executable (mode 0640): set its x bit (chmod a+x)"),
        (errno.EACCES, 0o700, r"program 'serve' can't be executed by uid \d+: Permission denied \(mode 0700"),
        (errno.EACCES, None, "program 'serve' can't be executed: Permission denied"),
        (errno.ENOEXEC, 0o755, "Exec format error: it is for another architecture, or lacks a #! line"),
        (errno.E2BIG, 0o755, "program 'serve' can't be executed: Argument list too long"),
    ],
)
def test_a_message_names_the_program_its_mode_and_the_remedy(
    tmp_path: Path, number: int, mode: int | None, expected: str
) -> None:
    if mode is not None:
        (tmp_path / "serve").touch()
        (tmp_path / "serve").chmod(mode)
    said = execution(number, "serve", "serve", f"/nowhere:{tmp_path}")
    assert expected in said or re.match(expected, said)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"#!/bin/sh\r\necho\r\n", "its first line ends with a carriage return, as in files of Windows"),
        (b"#!/no/python3 -I\n", "its interpreter '/no/python3' was not found: correct its first line"),
        (b"\x7fELF", "its loader was not found: it is for another C library"),
    ],
)
@pytest.mark.parametrize("by_path", [True, False])
def test_a_program_that_exists_and_is_not_found_names_what_is_missing(
    tmp_path: Path, content: bytes, expected: str, by_path: bool
) -> None:
    """The kernel says "No such file or directory" of its interpreter, too."""
    (tmp_path / "serve").write_bytes(content)
    (tmp_path / "serve").chmod(0o755)
    if content.startswith(b"#!"):
        with pytest.raises(FileNotFoundError):
            os.execv(tmp_path / "serve", ["serve"])
    word = str(tmp_path / "serve") if by_path else "serve"
    said = execution(errno.ENOENT, word, word, f"/nowhere:{tmp_path}")
    assert said.startswith(f"program {word!r} is there, but {expected}")
    assert "/no/python3" not in execution(errno.ENOENT, None, word, str(tmp_path))


def test_a_program_from_a_template_is_not_named(tmp_path: Path) -> None:
    """Its name may be a secret."""
    secret = tmp_path / "s3cret"
    secret.touch(0o644)
    assert "s3cret" not in execution(errno.EACCES, None, str(secret), None)
    assert "s3cret" not in execution(errno.ENOENT, None, str(secret), None)


def test_a_message_names_the_owner_of_a_file_and_the_user(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(0o400)
    path.chmod(0o400)
    said = reading(str(path), PermissionError(errno.EACCES, "Permission denied"))
    uid = os.geteuid()
    assert said.startswith(
        f"Permission denied: this runs as uid {uid}, and the file is of uid {uid} with mode 0400: let uid"
    )


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([0o644, 0o755, 0o755], True),  # a Secret of Kubernetes, and one of podman, by default
        ([0o444, 0o1777, 0o755], True),
        ([0o640, 0o755, 0o755], False),  # with fsGroup
        ([0o600, 0o777, 0o755], False),
        ([0o644, 0o700, 0o755], False),  # in a private directory
        ([0o644, 0o755, 0o750], False),
        ([0], False),
    ],
)
def test_others_need_access_to_the_file_and_all_directories_above(
    modes: Sequence[int], expected: bool
) -> None:
    assert others_can_read(modes) == expected


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everyone may enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("variable", ["KOLLA_ZK_AUTH_FILE", "KOLLA_ZK_KEY", "KOLLA_ZK_CERT"])
def test_a_world_readable_credential_is_found(place: Path, variable: str) -> None:
    """Also behind a link, as Secrets are mounted. A certificate file may contain the key."""
    secret, link = place / "secret", place / "link"
    secret.touch(0o640)
    link.symlink_to(secret)
    assert list(world_readable({variable: str(link)})) == []
    secret.chmod(0o644)
    assert list(world_readable({variable: str(link)})) == [(variable, str(link), 0o644)]


def test_a_certificate_with_a_separate_key_may_be_world_readable(place: Path) -> None:
    """A file that does not exist is no problem either."""
    cert = place / "cert"
    cert.touch()
    cert.chmod(0o644)
    environ = {"KOLLA_ZK_CERT": str(cert), "KOLLA_ZK_KEY": str(place / "gone")}
    assert list(world_readable(environ)) == []
