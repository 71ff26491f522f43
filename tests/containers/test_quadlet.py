"""What podman's own generator of systemd units makes of `kolla_mesos_ctl manifests quadlet`.

The generator is that of Debian 13. systemd has to find nothing wrong in its units, and podman starts what
they say. No systemd runs here: it is the tests that start a unit's command.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

import pytest

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory.directory import read
from kolla_mesos_start.ctl.manifests import quadlet
from kolla_mesos_start.ctl.manifests.model import DATA, FINAL, SECRETS, Model, Site, build
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.containers.images import SUITE, Images
from tests.containers.podman import Container, Podman
from tests.ctl.manifests.test_manifests import LAUNCH, model
from tests.ctl.manifests.test_manifests import site as odd_site
from tests.examples.openstack import kept, run
from tests.support.launching import directory, free_ports
from tests.support.waiting import eventually

ODD = LAUNCH.replace("network: host", "network: own, ports: [81]").replace(
    '"$$(A){{ port }}"', r'"$A 5% \"x\n"'
)

pytestmark = pytest.mark.timeout(900)  # The first test waits for the images.

NODE, MEMCACHED = "node-1", "site_memcached"
# podman would ask a systemd of the machine for a control group.
WITHOUT_SYSTEMD = ("--cgroups=split", "--sdnotify=conmon")


@pytest.fixture(scope="module")
def generator() -> Path:
    return quadlet_generator()


def quadlet_generator() -> Path:
    """The program of Debian's podman; nothing else of the package is needed."""

    def make(place: Path) -> None:
        root = place / "root"
        (place / "bin").mkdir(parents=True)
        run(("mmdebstrap", "--quiet", "--variant=extract", "--include=podman", SUITE, str(root)))
        (root / "usr/libexec/podman/quadlet").rename(place / "bin" / "quadlet")
        shutil.rmtree(root)

    return kept(CHECKOUT / ".cache", "quadlet", [SUITE.encode()], make, print) / "quadlet"


class Unit(NamedTuple):
    """A service that the generator has made, as systemd reads it."""

    name: str
    text: str

    def value(self, key: str) -> str:
        parser = ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(self.text)
        return parser["Service"][key]

    def argv(self, runtime: Path) -> list[str]:
        """What systemd would start."""
        words = shlex.split(self.value("ExecStart"))
        names = {"%t": str(runtime), "%N": self.name, "%%": "%", "$$": "$", "\\n": "\n"}
        names.update({"\\r": "\r", "\\v": "\v", "\\x1b": "\x1b", "\\x7f": "\x7f"})
        for written, meant in names.items():
            words = [word.replace(written, meant) for word in words]
        return words


def generated(generator: Path, directory: Path) -> Mapping[str, Unit]:
    """The units for the quadlets of one host, by their names."""
    environ = {**os.environ, "QUADLET_UNIT_DIRS": str(directory)}
    done = subprocess.run((generator, "-dryrun"), env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # It warns of names of images without a registry alone, as those of tests are.
    said = [line for line in done.stderr.splitlines() if "Loading source unit" not in line]
    assert all("not a fully qualified image name" in line for line in said), said
    parts = done.stdout.split(".service---\n")
    names = [part.rpartition("---")[2] for part in parts[:-1]]
    texts = [part.rpartition("---")[0] if "\n---" in part else part for part in parts[1:]]
    return {name: Unit(name, text) for name, text in zip(names, texts)}


def test_systemd_finds_nothing_wrong_in_the_units(generator: Path, tmp_path: Path) -> None:
    """Of all kinds of service; and it would, if there were something."""
    place = written(odd_site(tmp_path / "site", ODD), tmp_path / "made")
    found = {name: unit for host in place.iterdir() for name, unit in generated(generator, host).items()}
    assert set(found) == {"site_agent", "site_look-up", "site_db", "site_make", "site_web"}
    assert verified(found, tmp_path / "units") == ""
    wrong = found["site_db"].text.replace("RestartSec=5", "RestartSec=often")
    assert "often" in verified({"site_db": Unit("site_db", wrong)}, tmp_path / "wrong")


def written(root: Path, place: Path) -> Path:
    for name, text in quadlet.manifests(model(root)).files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def verified(units: Mapping[str, Unit], place: Path) -> str:
    """What systemd says of them."""
    place.mkdir()
    for name, unit in units.items():
        (place / f"{name}.service").write_text(unit.text)
    paths = sorted(map(str, place.iterdir()))
    argv = ("systemd-analyze", "verify", "--man=no", "--generators=no", *paths)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return "".join(
        line for line in done.stderr.splitlines(keepends=True) if f"{place}/" in line or "site_" in line
    )


def test_its_values_arrive_as_they_are_written(generator: Path, tmp_path: Path) -> None:
    """Through the generator and systemd: quotes, ends of lines, and what either would replace."""
    place = written(odd_site(tmp_path / "site", ODD), tmp_path / "made")
    argv = generated(generator, place / "ctl-1")["site_web"].argv(tmp_path)
    assert 'A=$A 5% "x\n' in argv
    assert "KOLLA_APP_ID=/site/a/web" in argv


def test_no_value_becomes_a_line_of_a_unit(generator: Path, tmp_path: Path) -> None:
    """systemd ends a line at a carriage return too, and joins lines at a backslash."""
    value = r'"a\r[Service]\rRestartSec=often\r\e\v\x7f\\"'
    root = odd_site(tmp_path / "site", LAUNCH.replace('"$$(A){{ port }}"', value))
    found, wrong = build(read(root), Site("site\\"))
    assert not wrong
    (unit,) = units(generator, tmp_path / "made", found._replace(workloads=found.workloads[2:3])).values()
    assert "A=a\r[Service]\rRestartSec=often\r\x1b\v\x7f\\" in unit.argv(tmp_path)
    assert verified({"site_web": unit}, tmp_path / "units") == ""


def units(generator: Path, place: Path, made: Model) -> Mapping[str, Unit]:
    """Those of the first host."""
    for name, text in quadlet.manifests(made).files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return generated(generator, min(place.iterdir()))


def test_what_another_attempt_cannot_mend_is_not_started_again(generator: Path, tmp_path: Path) -> None:
    """Nor a task that has ended well; all else is."""
    place = written(odd_site(tmp_path / "site"), tmp_path / "made")
    found = generated(generator, place / "ctl-1")
    assert (found["site_db"].value("Restart"), found["site_make"].value("Restart")) == (
        "always",
        "on-failure",
    )
    for unit in found.values():
        assert {*map(int, unit.value("RestartPreventExitStatus").split())} == {*FINAL}


@pytest.fixture(params=[False, True], ids=["built in", "mounted"])
def memcached(
    generator: Path, images: Images, deployment: Deployment, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Unit, Container]]:
    """The unit of memcached, started as systemd would; the places on the host are the test's."""
    podman = Podman(tmp_path / "podman", images.store)
    agent = podman.make_mounted() if request.param else None
    tree = directory(tmp_path / "site", images, deployment.hosts, free_ports(), {"variables": "site"}, agent)
    words = [str(tree), "--deployment", deployment.id, "--prefix", deployment.prefix]
    cli.run(["publish", *words, "--hosts", deployment.hosts])
    cli.run(["manifests", "quadlet", *words, "--output", str(tmp_path / "made")])
    (tmp_path / SECRETS[1:] / "site").mkdir(parents=True)
    for path in (tmp_path / "made" / NODE).iterdir():
        text = path.read_text()
        for place in (DATA, SECRETS):
            text = text.replace(f"{place}/", f"{tmp_path}{place}/")
        path.write_text(text)
    unit = generated(generator, tmp_path / "made" / NODE)[MEMCACHED]
    try:
        (program, *argv) = unit.argv(tmp_path)
        assert program == "/usr/bin/podman"
        podman(*(word for word in argv if word not in WITHOUT_SYSTEMD))
        yield unit, Container(podman, MEMCACHED)
    finally:
        podman.end()


def test_podman_starts_what_the_unit_says(memcached: tuple[Unit, Container], tmp_path: Path) -> None:
    """The daemon becomes ready; it has a root that is read-only, no capability, and ends as it should."""
    unit, container = memcached
    inspected = container.inspected
    program = inspected["Config"]["Cmd"][0]
    eventually(lambda: is_ready(container, program), "memcached is ready", seconds=60, every=0.5)
    assert inspected["HostConfig"]["ReadonlyRootfs"] is True
    assert "can't be written" not in container.said
    assert (inspected["EffectiveCaps"] or [], inspected["BoundingCaps"] or []) == ([], [])
    assert "no-new-privileges" in inspected["HostConfig"]["SecurityOpt"]
    assert inspected["Config"]["StopSignal"] == signal.SIGTERM
    assert (unit.value("KillMode"), unit.value("SuccessExitStatus")) == ("mixed", "143")
    assert inspected["Config"]["StopTimeout"] < int(unit.value("TimeoutStopSec"))
    assert inspected["Config"]["Healthcheck"]["Test"] == ["CMD-SHELL", f"{program} health"]
    assert inspected["Config"]["HealthcheckOnFailureAction"] == "kill"
    (_, *stop) = shlex.split(unit.value("ExecStop").replace("%t", str(tmp_path)).replace("%N", unit.name))
    container.podman(*stop)
    assert container.podman("ps", "--all", "--quiet").stdout == ""


def is_ready(container: Container, program: str) -> bool:
    return container.exec(program, "health", "--ready").returncode == 0
