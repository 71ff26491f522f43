"""What a kubelet makes of a Secret that is mounted: links to the files of one version, replaced at once."""

from __future__ import annotations

from pathlib import Path

from tests.support.publishing import write_files


def mount_secret(directory: Path, version: str, **files: str) -> None:
    """Mount it, or its next version."""
    write_files(directory / f"..{version}", **files)
    for name in files:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data_tmp").symlink_to(f"..{version}")
    (directory / "..data_tmp").rename(directory / "..data")
