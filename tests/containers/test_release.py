"""A release: refused where something is wrong, made twice from one commit, and installed."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kolla_mesos_start import __version__
from tests import CHECKOUT
from tests.containers.podman import settings
from tests.support import pins

NAME = f"kolla_mesos_start-{__version__}"
WHEEL, SOURCE = f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"
AGENT = f"kolla_mesos_start-agent-{__version__}.tar.gz"
IMAGE = f"kolla_mesos_start-image-{__version__}-{os.uname().machine}.tar"
BILL = f"{NAME}.cdx.json"
# What setuptools writes into an sdist.
WRITTEN = ("PKG-INFO", "setup.cfg", "kolla_mesos_start.egg-info/")


class Release(NamedTuple):
    """The directory with the files, and the environment in which buildah has storage of its own."""

    directory: Path
    environ: dict[str, str]

    def unpack(self, name: str, place: Path) -> None:
        with tarfile.open(self.directory / name) as archive:
            assert {(each.uid, each.gid, each.mode & 0o022) for each in archive} == {(0, 0, 0)}
            archive.extractall(place)


def output(*words: str | Path, **options: Path | dict[str, str]) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **options)  # type: ignore[call-overload]
    return str(done.stdout)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose only commit has the files of this checkout as they are now."""
    place = tmp_path_factory.mktemp("repository")
    output("git", "init", "--quiet", place)
    git = (
        "git",
        f"--git-dir={place / '.git'}",
        "-c",
        "user.name=Tester",
        "-c",
        "user.email=tester@localhost",
    )
    output(*git, f"--work-tree={CHECKOUT}", "add", "--all")
    output(*git, "commit", "--quiet", "--message=All files")
    return place


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    output("git", "clone", "--quiet", repository, tmp_path / "checkout")
    return tmp_path / "checkout"


def change(checkout: Path, name: str, old: str, new: str) -> None:
    text = (checkout / name).read_text()
    assert old in text
    (checkout / name).write_text(text.replace(old, new))


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "another version": (
        lambda checkout: None,
        "9.9",
        "VERSION is 9.9, but kolla_mesos_start/__init__.py has",
    ),
    "no version": (lambda checkout: None, "new", "expected VERSION [DIRECTORY]"),
    "no entry in the changelog": (
        lambda checkout: change(checkout, "CHANGELOG.rst", f"\n{__version__}\n", f"\n{__version__} (soon)\n"),
        __version__,
        f"CHANGELOG.rst has no entry {__version__}: add and commit it",
    ),
    "an occupied directory": (
        lambda checkout: (checkout / "dist" / __version__ / SOURCE).mkdir(parents=True),
        __version__,
        f"checkout/dist/{__version__} is not an empty directory: remove it",
    ),
    "a change": (
        lambda checkout: change(checkout, "setup.py", "version()", "version( )"),
        __version__,
        "differ from its commit; commit or remove them:\n M setup.py",
    ),
    "a new file": (lambda checkout: (checkout / "new").write_text(""), __version__, "\n?? new"),
    "no repository": (
        lambda checkout: (checkout / ".git").rename(checkout / ".gone"),
        __version__,
        "is no git checkout, see above: clone the repository",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_release_is_refused(checkout: Path, case: str) -> None:
    spoil, version, message = REFUSED[case]
    spoil(checkout)
    made = checkout / "dist" / __version__
    before = made.exists()
    done = subprocess.run([checkout / "bin" / "release", version], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert made.exists() == before


# -- made ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def releases(able: None, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Release]:
    """Two from the same commit, in checkouts that differ in their path and in the modes of their files."""
    made = []
    for umask in (0o022, 0o077):
        place = tmp_path_factory.mktemp("release")
        environ = {**os.environ, **settings(place / "buildah", place / "images")}
        old = os.umask(umask)
        output("git", "clone", "--quiet", repository, place / "checkout")
        output(place / "checkout" / "bin" / "release", __version__, "made", cwd=place, env=environ)
        os.umask(old)
        made.append(Release(place / "made", environ))
    return made


@pytest.fixture
def release(releases: list[Release]) -> Release:
    return releases[0]


@pytest.mark.full
def test_the_same_commit_makes_the_same_bytes(releases: list[Release]) -> None:
    listed = [(each.directory / "SHA256SUMS").read_text() for each in releases]
    assert listed[0] == listed[1]
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=releases[1].directory)
    names = {line.split()[1] for line in listed[0].splitlines()}
    assert names == {WHEEL, SOURCE, AGENT, IMAGE, BILL}
    assert {path.name for path in releases[0].directory.iterdir()} == {*names, "SHA256SUMS"}


@pytest.mark.full
@pytest.mark.parametrize("name", [WHEEL, SOURCE])
def test_the_package_can_be_installed(release: Release, tmp_path: Path, name: str) -> None:
    """With pip, in an empty environment; pip builds the sdist by itself."""
    (tmp_path / "versions.txt").write_text(pins.versions(pins.AGENT))
    output(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = (tmp_path / "venv" / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
    output(*pip, f"--constraint={tmp_path / 'versions.txt'}", release.directory / name)
    found = output(tmp_path / "venv" / "bin" / "kolla_mesos_start", "--version", cwd=tmp_path)
    assert found == f"kolla_mesos_start {__version__}\n"
    assert "COMMAND" in output(tmp_path / "venv" / "bin" / "kolla_mesos_ctl", "--help", cwd=tmp_path)


@pytest.mark.full
def test_the_sdist_has_the_files_of_the_repository(release: Release, checkout: Path, tmp_path: Path) -> None:
    release.unpack(SOURCE, tmp_path)
    kept = set(output("git", "ls-files", cwd=checkout).splitlines())
    root = tmp_path / NAME
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    assert kept - found == set()
    assert [name for name in found - kept if not name.startswith(WRITTEN)] == []
    assert filecmp.cmpfiles(root, checkout, kept - {"setup.cfg"}, shallow=False)[1:] == ([], [])


@pytest.mark.full
def test_the_agent_as_a_directory_starts(release: Release, tmp_path: Path) -> None:
    release.unpack(AGENT, tmp_path)
    (root,) = tmp_path.iterdir()
    assert root.name == "kolla_mesos_start"
    found = output(root / "bin" / "kolla_mesos_start", "--version", cwd=tmp_path)
    assert found == f"kolla_mesos_start {__version__}\n"
    assert [path.name for path in root.glob("lib/*/psutil")] == ["psutil", "psutil"]
    (library,) = root.glob("lib/aarch64/psutil/*.so")
    assert library.read_bytes()[18] == 183  # the ELF header's number of this processor


@pytest.mark.full
def test_the_image_holds_the_same_directory(release: Release, tmp_path: Path) -> None:
    def buildah(*words: str) -> str:
        return output("buildah", *words, env=release.environ).strip()

    release.unpack(AGENT, tmp_path)
    assert buildah("images", "--quiet") == "", "bin/release leaves nothing in buildah's storage"
    container = buildah("from", f"oci-archive:{release.directory / IMAGE}")
    root = Path(buildah("mount", container))
    for path in (tmp_path / "kolla_mesos_start").rglob("*"):
        if path.is_file():
            same = root / path.relative_to(tmp_path / "kolla_mesos_start")
            assert same.read_bytes() == path.read_bytes()
            assert same.stat().st_mode == path.stat().st_mode
    assert output(root / "busybox", "echo", "runs") == "runs\n"
    buildah("rm", container)


@pytest.mark.full
def test_the_bill_of_materials_is_one_of_this_version(release: Release) -> None:
    """tests/rules/test_materials.py has the rest."""
    text = (release.directory / BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert json.loads(text)["metadata"]["component"]["version"] == __version__
