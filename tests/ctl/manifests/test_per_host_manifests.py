"""Manifests for a runtime alone: quadlets of podman, and the Compose Specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.findings import InvalidDirectory
from kolla_mesos_start.ctl.manifests import compose, quadlet
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from kolla_mesos_start.ctl.manifests.model import Site, build, name_of
from kolla_mesos_start.ctl.manifests.per_host import by_host
from tests.ctl.manifests.test_manifests import DAEMON, LAUNCH, model, site


def projects(root: Path) -> dict[str, Any]:
    return {name: yaml.safe_load(text) for name, text in compose.manifests(model(root)).files.items()}


# -- which containers a host has ----------------------------------------------------------------------


def test_what_has_no_placement_is_where_up_has_it(tmp_path: Path) -> None:
    """On node-1 and so on, and is told so: scope `local` means that host."""
    launch = LAUNCH.replace("placement: control, ", "")
    found = projects(site(tmp_path, launch))
    assert set(found) == {"cmp-1.yml", "cmp-2.yml", "node-1.yml", "node-2.yml"}
    assert found["node-2.yml"]["services"]["web"]["environment"]["KOLLA_HOSTNAME"] == "node-2"


# -- what a container is given ------------------------------------------------------------------------


def test_two_volumes_never_have_the_same_name(tmp_path: Path) -> None:
    """Not of one service, not of two, nor of two deployments on one host."""
    launch = LAUNCH.replace("/run/db: temporary", "/x/y: 1Gi, /x_y: 1Gi").replace(
        "  db: {", "  db_x: {volumes: {/y: 1Gi}}\n  db: {"
    )
    root = site(tmp_path, launch, services__db_x__definition_yml=DAEMON % ("", 1))
    found = [
        name
        for deployment in ("site", "site-db")
        for each in by_host(build(directory.read(root), Site(deployment))[0])["ctl-1"]
        for name in (each.full_name, *(mount.source for mount in each.mounts if mount.is_volume))
    ]
    assert len(set(found)) == len(found) == 2 * (4 + 4)


def test_what_only_the_operator_can_make_is_said_with_the_hosts(tmp_path: Path) -> None:
    """Once for each, secrets and shared directories and files."""
    every, can_read = "cmp-1, cmp-2, ctl-1, ctl-2", "which the containers' users can read"
    found = [
        f"on {every}: make /etc/kolla-secrets/passwords with a file for each variable (KOLLA_VARIABLES_DIR),"
        f" {can_read}",
        f"on {every}: make /etc/kolla-secrets/zk/auth with lines scheme:credential (KOLLA_ZK_AUTH_FILE),"
        f" {can_read}",
        "on ctl-1: mount what is shared at /var/lib/kolla/site/shared/keys, for its users to write",
        "on ctl-1: put conf of db at /etc/kolla-files/site/db/conf",
        "on ctl-1: put key of db at /etc/kolla-files/site/db/key",
    ]
    made = model(site(tmp_path))
    assert compose.manifests(made).notes == found
    assert quadlet.manifests(made).notes[: len(found)] == found


NAMES = {"site": "site", "Site": "site-", "my_site": "my-site-", "x" * 60: "x" * 45 + "-", "9": "s-9-"}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_deployment_is_nobody_elses(name: str) -> None:
    """Containers of two deployments may be on one host."""
    found = name_of(name)
    assert found.startswith(NAMES[name])
    assert (found == name) is (name == "site")
    assert len(found) <= 52


PLACE, TAKEN = (
    "expected an absolute path, and the name of a file",
    "something else is mounted at its directory",
)
MOUNTED = {
    "lines": ("/a\\n[Service]\\nExecStart=/bin/false", "conf", PLACE),
    "a colon": ("/etc/a:b", "conf", PLACE),
    "a colon in its name": ("/etc/a", "a:b", PLACE),
    "a volume": ("/var/lib/db/a", "conf", TAKEN),
    "a secret": ("/etc/kolla-variables/a", "conf", TAKEN),
}


@pytest.mark.parametrize("name", MOUNTED)
def test_a_file_that_nothing_can_mount_is_refused(name: str, tmp_path: Path) -> None:
    """Where it is mounted may be the value of a variable: that must not become a line of a unit."""
    mounted, file, expected = MOUNTED[name]
    definition = DAEMON % (f", files: {{'{file}': {{dest: /etc/db/conf, mounted: '{{{{ where }}}}'}}}}", 1)
    more = {
        f"services__db__files__{file}": "port = 1\n",
        "variables_yml": f'release: "2026.1"\nwhere: "{mounted}"\n',
    }
    root = site(tmp_path / "site", LAUNCH, services__db__definition_yml=definition, **more)
    with pytest.raises(InvalidDirectory, match=expected) as caught:
        cli.run(["manifests", "quadlet", str(root), "--output", str(tmp_path / "made")])
    assert any(f"services/db/definition.yml: files.{file}.mounted" in each for each in caught.value.issues)
    assert not (tmp_path / "made").exists()


ABSOLUTE, NAME = "expected an absolute path without", "expected registry/name:tag"
VOLUME, IMAGE, VALUE = "/run/db: temporary", "site/{{ role }}", '"$$(A){{ port }}"'
WRONG = {
    "a colon in a place": (VOLUME, "'/run/d:b': temporary", ABSOLUTE),
    "a colon on the host": (VOLUME, "/r: {host: '/a:b'}", ABSOLUTE),
    "a line that goes on": (VOLUME, "'/r\\': temporary", ABSOLUTE),
    "a path that leads up": (VOLUME, "/r/../db: temporary", ABSOLUTE),
    "a path with two names": (VOLUME, "/run//db: temporary", ABSOLUTE),
    "a secret's place": (
        VOLUME,
        "/etc/kolla-zookeeper: temporary",
        "is where db has a secret: choose another path",
    ),
    "a space in an image": (IMAGE, "site {{ role }}", NAME),
    "a line that goes on in an image": (":{{ tag }}", r":\\", NAME),
    "an option for an image": (IMAGE, "--privileged", NAME),
    "the unit of an image": ("{{ tag }}", "1.build", "podman takes what ends in .build or .image"),
    "a name of two lines": ("env: {A:", r'env: {"A\nB":', "expected the name of an environment variable, of"),
    "a NUL": (VALUE, r""" "{{ 'a\\0' }}" """, "env: A of a/web: holds a NUL character"),
    "a value that is too long": (VALUE, "\"{{ '%131070s' % 1 }}\"", "128 KiB are the limit"),
    "too many": ("", "", "service.instances: expected a whole number, at most 99999"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_runtime_takes_is_refused(name: str, tmp_path: Path) -> None:
    """With its file; nothing is written."""
    right, wrong, expected = WRONG[name]
    root = site(tmp_path / "site", LAUNCH.replace(right, wrong) if right else LAUNCH)
    if name == "too many":
        definition = root / "services/db/definition.yml"
        definition.write_text(definition.read_text().replace("instances: 1", "instances: 100000"))
    with pytest.raises(InvalidDirectory, match=expected):
        cli.run(["manifests", "quadlet", str(root), "--output", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_the_command_writes_a_directory_for_each_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as to standard output, where each is named; and it names what else is there."""
    root, place = site(tmp_path / "site"), tmp_path / "made"
    assert cli.run(["manifests", "quadlet", str(root)]) == 0
    printed = capsys.readouterr().out
    (place / "ctl-9").mkdir(parents=True)
    former = place / "ctl-9" / "site_web.container"
    former.touch()
    assert cli.run(["manifests", "quadlet", str(root), "--output", str(place)]) == 0
    assert (
        f"left {former}, which is not part of this deployment: remove it if it once was\n"
        in capsys.readouterr().err
    )
    former.unlink()
    written = sorted(path for path in place.rglob("*") if path.is_file())
    assert printed == "".join(path.read_text() for path in written)
    assert "# ctl-1/site_db.container\n[Unit]\n" in printed


@pytest.mark.parametrize("format", ["quadlet", "compose"])
def test_what_the_host_loses_at_each_boot_is_named(tmp_path: Path, format: str) -> None:
    """Podman refuses to start a container with a path that does not exist, and so does Compose here.

    A path without propagation may be a socket.
    """
    volumes = "/n: {host: /run/netns, propagation: shared}, /a: {host: /run/a.sock}"
    launch = LAUNCH.replace("/run/db: temporary", volumes)
    (note,) = [each for each in FORMATS[format](model(site(tmp_path, launch))).notes if " /run/" in each]
    assert note.startswith("on ctl-1: create /run/netns at each boot")
