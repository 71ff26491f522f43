"""Variables from a directory, of real files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.errors import CannotRender
from kolla_mesos_start.render import variables_dir
from tests.support.kubelet import mount_secret
from tests.support.publishing import write_files


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"s3cret", "s3cret"),
        (b"s3cret\n", "s3cret"),
        (b"s3cret\n\n", "s3cret\n\n"),
        (b"-----BEGIN\n-----END\n", "-----BEGIN\n-----END\n"),
        (b"one\ntwo", "one\ntwo"),
        (b"s3cret\r\n", "s3cret\r"),
        (b"", ""),
        (b"\n", ""),
        (" ü {{ x }} ".encode(), " ü {{ x }} "),
    ],
)
def test_a_value_of_one_line_is_read_without_its_newline(tmp_path: Path, content: bytes, value: str) -> None:
    """As the operator's tool reads a file of variables/."""
    write_files(tmp_path, a=content, other=b"\xff")
    assert variables_dir.read(str(tmp_path), {"a", "absent"}) == {"a": value}


def test_a_secret_of_kubernetes_is_read_through_its_links(tmp_path: Path) -> None:
    mount_secret(tmp_path, "one", user="u", password="p")
    assert variables_dir.read(str(tmp_path), {"user", "password", "data"}) == {"user": "u", "password": "p"}
    assert variables_dir.read(str(tmp_path)) == {"user": "u", "password": "p"}


def test_all_values_are_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it changes, and whatever goes away with it."""
    mount_secret(tmp_path, "one", user="u1", password="p1", old="o1")
    real = variables_dir._value
    seen: list[str] = []

    def change_meanwhile(path: str) -> str:
        value = real(path)
        if not seen:
            mount_secret(tmp_path, "two", user="u2", password="p2")
        seen.append(path)
        return value

    monkeypatch.setattr(variables_dir, "_value", change_meanwhile)
    found = variables_dir.read(str(tmp_path), {"user", "password"})
    assert found == {"user": "u2", "password": "p2"}
    assert len(seen) == 4


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(b"s3cret\xff"), "is not UTF-8 text (byte 6)"),
        (lambda path: path.symlink_to("nowhere"), "can't be read: No such file or directory"),
        (lambda path: path.symlink_to(path.name), "can't be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "can't be read: it is not a regular file"),
        (lambda path: path.mkdir(), "can't be read: Is a directory"),
        (a_pipe, "can't be read: it is not a regular file"),
        (
            lambda path: path.write_bytes(b"x" * (1 << 20) + b"xx"),
            "can't be read: it has more than 1048576 bytes",
        ),
    ],
)
def test_a_file_that_can_not_be_a_value_is_named(tmp_path: Path, make: Any, reason: str) -> None:
    """It is not looked for elsewhere then: another value than the one that was meant would be found."""
    make(tmp_path / "password")
    with pytest.raises(CannotRender) as caught:
        variables_dir.read(str(tmp_path), {"password"})
    assert caught.value.reason.startswith(f"{tmp_path}/password {reason}")
    assert "s3cret" not in caught.value.reason
    assert variables_dir.read(str(tmp_path), {"other"}) == {}


def test_a_directory_that_has_gone_is_named() -> None:
    with pytest.raises(CannotRender) as caught:
        variables_dir.read("/nowhere", {"a"})
    assert caught.value.reason == "KOLLA_VARIABLES_DIR: /nowhere can't be read: No such file or directory"


@pytest.mark.parametrize("before", ["", "\ufeff", " \n\t", "\r\n"])
def test_a_value_that_is_still_encrypted_is_refused(tmp_path: Path, before: str) -> None:
    """Otherwise a daemon gets it as its password."""
    (tmp_path / "password").write_text(f"{before}$ANSIBLE_VAULT;1.2;AES256;prod\n3661\n")
    with pytest.raises(CannotRender, match="password is still encrypted by ansible-vault"):
        variables_dir.read(str(tmp_path))
