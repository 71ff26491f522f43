"""The processors that a container may use, of its affinity and of the quotas of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kolla_mesos_start.host import processors

V2 = "30 23 0:26 {root} {mount} rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 23 0:27 {root} {mount} rw - cgroup cgroup rw,{of}\n"


@pytest.fixture(autouse=True)
def _eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def usable(tmp_path: Path, own: str, mounts: str, files: dict[str, str], root: str = "/") -> int:
    mount = tmp_path / "cgroup"
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(own)
    (tmp_path / "self" / "mountinfo").write_text(mounts.format(root=root, mount=mount, of="cpu,cpuacct"))
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(content)
    return processors.usable(str(tmp_path / "self"))


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("max 100000", 8),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("1000 1000000", 1),
        ("6400000 100000", 8),
        ("", 8),
        ("nonsense", 8),
    ],
)
def test_quota_of_the_own_cgroup_is_rounded_up(quota: str, count: int, tmp_path: Path) -> None:
    assert usable(tmp_path, "0::/\n", V2, {"cpu.max": f"{quota}\n"}) == count


@pytest.mark.parametrize(
    ("own", "above", "count"), [("max 100000", "200000 100000", 2), ("300000 100000", "max 100000", 3)]
)
def test_smallest_quota_of_nested_cgroups_counts(own: str, above: str, count: int, tmp_path: Path) -> None:
    files = {"pod/one/container/cpu.max": own, "pod/cpu.max": above, "other/cpu.max": "1 100000"}
    assert usable(tmp_path, "0::/pod/one/container\n", V2, files) == count


@pytest.mark.parametrize(
    ("root", "own", "name"),
    [
        ("/", "/", "{}"),
        ("/", "/docker/abc", "docker/abc/{}"),
        ("/", "/docker/abc/below", "docker/{}"),
        ("/docker/abc", "/docker/abc", "{}"),
        ("/docker/abc", "/docker/abc/below", "below/{}"),
        ("/..", "/", "{}"),
        ("/elsewhere", "/docker/abc", "{}"),
    ],
)
def test_quota_of_the_first_version_counts(root: str, own: str, name: str, tmp_path: Path) -> None:
    files = {name.format("cpu.cfs_quota_us"): "150000\n", name.format("cpu.cfs_period_us"): "100000\n"}
    listed = f"9:name=systemd:/s\n4:cpu,cpuacct:{own}\n3:cpuset:/sets\n0::/\n"
    assert usable(tmp_path, listed, V1, files, root) == 2


def test_first_version_without_a_quota_limits_nothing(tmp_path: Path) -> None:
    files = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}
    assert usable(tmp_path, "4:cpu:/\n", V1, files) == 8


def test_affinity_alone_counts_without_cgroups(tmp_path: Path) -> None:
    assert usable(tmp_path, "", "", {}) == 8
    assert processors.usable(str(tmp_path / "nothing")) == 8
