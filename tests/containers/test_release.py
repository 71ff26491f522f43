"""A release: refused where something is wrong, made twice from one commit, and installed."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kolla_mesos_start import __version__
from tests import CHECKOUT
from tests.containers.podman import settings
from tests.support import pins

NAME = f"kolla_mesos_start-{__version__}"
WHEEL, SOURCE, BILL = f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz", f"{NAME}.cdx.json"
AGENT = f"kolla_mesos_start-agent-{__version__}.tar.gz"
IMAGE = f"kolla_mesos_start-image-{__version__}-{os.uname().machine}.tar"
SAYS = f"kolla_mesos_start {__version__}\n"
# What setuptools writes into an sdist.
WRITTEN = ("PKG-INFO", "setup.cfg", "kolla_mesos_start.egg-info/")


class Release(NamedTuple):
    """The directory with the files, and the environment in which buildah has a storage of its own."""

    directory: Path
    environ: dict[str, str]

    def unpack(self, name: str, place: Path) -> Path:
        """The one directory in an archive, which belongs to root, and where only root may write."""
        with tarfile.open(self.directory / name) as archive:
            assert {(each.uid, each.gid, each.mode & 0o022) for each in archive} == {(0, 0, 0)}
            archive.extractall(place)
        (root,) = place.iterdir()
        return root


def output(*words: str | Path, **options: Any) -> str:
    return str(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **options).stdout)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its only commit has the files of this checkout as they are now."""
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


# What is wrong in a checkout: a shell command; then the message.
REFUSED = {
    ":": ("9.9", "VERSION is 9.9, but kolla_mesos_start/__init__.py has"),
    ": no version": ("new", "expected VERSION [DIRECTORY]"),
    f"sed -i 's/^{__version__}$/& (soon)/' CHANGELOG.rst": (__version__, "CHANGELOG.rst has no entry"),
    f"mkdir -p dist/{__version__}/old": (__version__, f"dist/{__version__} is not an empty directory"),
    "echo >>setup.py": (__version__, "differ from its commit; commit or remove them:\n M setup.py"),
    "echo >new": (__version__, "differ from its commit; commit or remove them:\n?? new"),
    "rm -r .git": (__version__, "is no git checkout, see above: clone the repository"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_release_is_refused(checkout: Path, wrong: str) -> None:
    version, message = REFUSED[wrong]
    output("sh", "-c", wrong, cwd=checkout)
    done = subprocess.run([checkout / "bin" / "release", version], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.fixture(scope="module")
def releases(
    able: None, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Release]]:
    """Two from the same commit, in checkouts that differ in their path and in the modes of their files."""
    made = []
    for umask in (0o022, 0o077):
        place = tmp_path_factory.mktemp("release")
        environ = {**os.environ, **settings(place / "buildah", place / "images")}
        output("git", "clone", "--quiet", repository, place / "checkout", umask=umask)
        script = place / "checkout" / "bin" / "release"
        output(script, __version__, "made", cwd=place, env=environ, umask=umask)
        made.append(Release(place / "made", environ))
    yield made
    output("buildah", "rm", "--all", env=made[0].environ)


@pytest.fixture
def release(releases: list[Release]) -> Release:
    return releases[0]


@pytest.mark.full
def test_the_same_commit_makes_the_same_bytes(releases: list[Release]) -> None:
    sums = [(each.directory / "SHA256SUMS").read_text() for each in releases]
    assert sums[0] == sums[1]
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=releases[1].directory)
    assert set(os.listdir(releases[1].directory)) == {WHEEL, SOURCE, AGENT, IMAGE, BILL, "SHA256SUMS"}


@pytest.mark.full
@pytest.mark.parametrize("name", [WHEEL, SOURCE])
def test_the_package_can_be_installed(release: Release, tmp_path: Path, name: str) -> None:
    """In an empty environment; of the sdist, pip makes a wheel itself."""
    (tmp_path / "versions.txt").write_text(pins.versions(pins.AGENT))
    output(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    pip = (programs / "pip", "install", "--quiet", "--disable-pip-version-check")
    output(*pip, f"--constraint={tmp_path / 'versions.txt'}", release.directory / name)
    assert output(programs / "kolla_mesos_start", "--version", cwd=tmp_path) == SAYS
    assert "usage: kolla_mesos_ctl" in output(programs / "kolla_mesos_ctl", "--help", cwd=tmp_path)


@pytest.mark.full
def test_the_sdist_has_the_files_of_the_repository(release: Release, checkout: Path, tmp_path: Path) -> None:
    root = release.unpack(SOURCE, tmp_path / "source")
    assert root.name == NAME
    kept = set(output("git", "ls-files", cwd=checkout).splitlines())
    assert filecmp.cmpfiles(root, checkout, kept, shallow=False)[1:] == ([], [])
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert [name for name in found - kept if not name.startswith(WRITTEN)] == []


@pytest.mark.full
def test_the_agent_starts_and_the_image_has_the_same_files(release: Release, tmp_path: Path) -> None:
    """The script leaves nothing in buildah's storage; the archive has the image's name."""

    def buildah(*words: str) -> str:
        return output("buildah", *words, env=release.environ).strip()

    root = release.unpack(AGENT, tmp_path)
    assert root.name == "kolla_mesos_start"
    assert output(root / "bin" / "kolla_mesos_start", "--version") == SAYS
    assert {path.parts[-2] for path in root.glob("lib/*/psutil")} == {"aarch64", "x86_64"}
    assert buildah("images", "--quiet") == ""
    image = Path(buildah("mount", buildah("from", f"oci-archive:{release.directory / IMAGE}")))
    assert buildah("images", "--format={{.Name}}:{{.Tag}}") == f"localhost/kolla_mesos_start:{__version__}"
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    assert filecmp.cmpfiles(root, image, files, shallow=False)[1:] == ([], [])
    assert output(image / "busybox", "echo", "runs") == "runs\n"


@pytest.mark.full
def test_the_bill_of_materials_is_for_this_version(release: Release) -> None:
    """tests/rules/test_materials.py checks its content."""
    text = (release.directory / BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert json.loads(text)["metadata"]["component"]["version"] == __version__
