"""Files that are read whole: regular ones only, up to a limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kolla_mesos_start.files.paths import read_regular


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap."""
    (tmp_path / "data").write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to("data")
    assert read_regular(str(tmp_path / "link"), 10) == b"x" * 10


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular(str(tmp_path / "fifo"))


def test_a_device_without_end_is_not_read() -> None:
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular("/dev/zero")


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="it has more than 10 bytes"):
        read_regular(str(tmp_path / "data"), 10)
