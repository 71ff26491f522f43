"""What is said of a program that can't be executed, and of a file that can't be read."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from kolla_mesos_start.refusals import execution, reading


@pytest.mark.parametrize(
    ("number", "mode", "expected"),
    [
        (errno.ENOENT, None, "program 'serve' not found in PATH (or its interpreter is missing): correct"),
        (errno.EACCES, 0o640, "program 'serve' is not executable (mode 0640): set its x bit (chmod a+x)"),
        (errno.EACCES, 0o700, r"program 'serve' can't be executed by uid \d+: Permission denied \(mode 0700"),
        (errno.EACCES, None, "program 'serve' can't be executed: Permission denied"),
        (errno.ENOEXEC, 0o755, "Exec format error: it is for another architecture, or lacks a #! line"),
        (errno.E2BIG, 0o755, "program 'serve' can't be executed: Argument list too long"),
    ],
)
def test_a_program_is_named_with_its_mode(
    tmp_path: Path, number: int, mode: int | None, expected: str
) -> None:
    """And what to change."""
    if mode is not None:
        (tmp_path / "serve").touch()
        (tmp_path / "serve").chmod(mode)
    said = execution(number, "serve", "serve", f"/nowhere:{tmp_path}")
    assert expected in said or re.match(expected, said)


def test_a_program_that_a_template_gave_is_not_named(tmp_path: Path) -> None:
    """Its name may be a secret."""
    secret = tmp_path / "s3cret"
    secret.touch(0o644)
    assert "s3cret" not in execution(errno.EACCES, None, str(secret), None)
    assert "s3cret" not in execution(errno.ENOENT, None, str(secret), None)


def test_a_file_that_is_another_users_is_named_with_both_users(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(0o400)
    path.chmod(0o400)
    said = reading(str(path), PermissionError(errno.EACCES, "Permission denied"))
    uid = os.geteuid()
    assert said.startswith(
        f"Permission denied: this runs as uid {uid}, and the file is of uid {uid} with mode 0400: let uid"
    )
