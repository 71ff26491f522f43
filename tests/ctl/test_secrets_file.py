"""Secrets that are generated into a file of the operator's, and never replaced while something runs."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import formats, secret_values
from tests.conftest import Deployment
from tests.ctl.test_publish import DEFINITION, publish
from tests.support.publishing import write_files
from tests.support.tool import TOOL, ctl, environ
from tests.support.waiting import LIMIT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that wants two secrets, whose names do not look like it."""
    return write_files(
        tmp_path / "site",
        variables_yml="region: one\n",
        secrets_yml="db_pin: password\nring: fernet\n",
        services__a__db__definition_yml=DEFINITION,
        services__a__db__files__conf="pin = {{ db_pin }} {{ ring }}\n",
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.yml"


def values(file: Path) -> dict[str, object]:
    return dict(formats.values(file))


def in_tree(zk: KazooClient, deployment: Deployment) -> dict[str, str]:
    """The deployment's own variables, as they are published."""
    path = f"{deployment.path}/variables"
    return {name: zk.get(f"{path}/{name}")[0].decode() for name in zk.get_children(path)}


def test_what_nobody_has_given_is_generated_once(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """The file is private, says what it is, and is what is published; the second time nothing is new."""
    done = publish(root, deployment, "--secrets", str(file))
    assert f"generated 2 secrets into {file}\n" in done.stdout
    assert file.read_text().startswith("# The secrets of a deployment")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = values(file)
    assert in_tree(zk, deployment) == {"region": "one", **made}
    assert not [value for value in made.values() if str(value) in done.stdout + done.stderr]
    before = file.stat()
    again = publish(root, deployment, "--secrets", str(file), "--prune")
    assert "generated" not in again.stdout
    assert "0 created, 0 updated, 0 removed" in again.stdout
    assert os.path.samestat(before, file.stat())
    assert "chmod" not in again.stderr


def test_what_stands_in_the_file_stays_and_wins(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """Comments, order and mode too; that others may read it is said."""
    own = "# mine\nregion: two  # not one\ndb_pin: '0123'"
    file.write_text(own)
    file.chmod(0o644)
    done = publish(root, deployment, "--secrets", str(file))
    assert f"generated 1 secret into {file}\n" in done.stdout
    assert f"other users can read {file}: chmod 600" in done.stderr
    assert file.read_text().startswith(f"{own}\nring: ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert in_tree(zk, deployment) == values(file)
    assert list(file.parent.glob(".own*")) == []


def test_what_is_published_is_taken_and_never_replaced(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """A new password would lock out what runs. Any text that is published can stand in the file."""
    pin = "yes: 'a' #\n\té\\\U0001f511"
    zk.create(f"{deployment.path}/variables/db_pin", pin.encode(), makepath=True)
    done = publish(root, deployment, "--secrets", str(file))
    assert f"copied 1 published secret to {file}\ngenerated 1 secret into {file}\n" in done.stdout
    assert values(file)["db_pin"] == pin
    assert in_tree(zk, deployment)["db_pin"] == pin


def test_the_file_wins_over_what_is_published_and_diff_hides_both(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """Also what it alone calls a secret is hidden, and where a file names it."""
    write_files(root, services__a__db__files__conf="pin = hunter-22\n")
    ring = base64.urlsafe_b64encode(b"hunter-23" * 3 + b"-----").decode()
    file.write_text(f"db_pin: hunter-22\nring: {ring}\nregion: hunter-24\n")
    zk.create(f"{deployment.path}/variables/db_pin", b"hunter-21", makepath=True)
    done = ctl(deployment, "diff", root, "--secrets", str(file), status=1)
    for line in (
        "would update variables/db_pin: '***' -> '***'",
        "would create variables/ring: '***'",
        "would create variables/region: '***'",
        "    +pin = ***",
    ):
        assert f"{line}\n" in done.stdout
    assert not [secret for secret in ("hunter", ring) if secret in done.stdout + done.stderr]
    publish(root, deployment, "--secrets", str(file))
    assert in_tree(zk, deployment) == values(file)


def test_without_a_file_what_is_missing_is_refused(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """Nothing is written then. Once all are published they are kept, also by --prune."""
    zk.create(f"{deployment.path}/variables/db_pin", b"1234", makepath=True)
    done = publish(root, deployment, status=64)
    assert done.stderr.splitlines() == [
        "kolla_mesos_ctl: no value for ring: give --secrets FILE; generated values are added to it"
    ]
    assert in_tree(zk, deployment) == {"db_pin": "1234"}
    publish(root, deployment, "--secrets", str(file))
    before = in_tree(zk, deployment)
    done = publish(root, deployment, "--prune")
    assert "0 created, 0 updated, 0 removed" in done.stdout
    assert in_tree(zk, deployment) == before


def test_diff_without_a_file_shows_what_would_be_generated(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """What is published is no difference, nor what --prune would remove."""
    zk.create(f"{deployment.path}/variables/db_pin", b"1234", makepath=True)
    for options in ((), ("--secrets", str(file))):
        done = ctl(deployment, "diff", root, *options, status=1)
        assert "would create variables/ring: '***'\n" in done.stdout
        assert "db_pin:" not in done.stdout
        assert "--prune" not in done.stdout
        assert not file.exists()


def test_secrets_may_come_from_elsewhere(
    zk: KazooClient, deployment: Deployment, root: Path, tmp_path: Path
) -> None:
    """From files, the command line, or a directory of the containers'; the last is not published."""
    write_files(tmp_path, given_yml="db_pin: '1'", mounted__ring="abc")
    publish(
        *(root, deployment, "--variables-from", str(tmp_path / "given.yml")),
        KOLLA_VARIABLES_DIR=str(tmp_path / "mounted"),
    )
    assert in_tree(zk, deployment) == {"region": "one", "db_pin": "1"}


@pytest.mark.parametrize(
    ("name", "text", "status", "said"),
    [
        ("own.yml", "{db_pin: hunter2}\n", 73, "own.yml: nothing can be added to it"),
        ("own.json", '{"db_pin": "hunter2"}', 73, "own.json: nothing can be added to it"),
        ("own.yml", "db_pin: |\n  hunter2", 73, "own.yml: nothing can be added to it"),
        ("own.yml", "db_pin: [hunter2]\n", 64, "db_pin: expected a single value"),
        ("own.yml", "db_pin: hunter2\n...\n", 73, "own.yml: nothing can be added to it"),
        ("own.yml", "- hunter2\n", 64, "expected a mapping"),
        ("site/secrets.yml", "db_pin: password\n", 64, "it is a part of"),
        ("site/variables.yml", "region: one\n", 64, "it is a part of"),
    ],
)
def test_a_file_that_can_not_hold_them_is_refused_as_it_is(
    deployment: Deployment,
    zk: KazooClient,
    root: Path,
    tmp_path: Path,
    name: str,
    text: str,
    status: int,
    said: str,
) -> None:
    """Before anything is published, and no value is shown."""
    file = tmp_path / name
    file.write_text(text)
    done = publish(root, deployment, "--secrets", str(file), status=status)
    assert said in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert file.read_text() == text
    assert not zk.exists(f"{deployment.path}/variables")


def test_values_that_nothing_uses_are_not_published(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """Such as most of kolla-ansible's passwords.yml. `diff` agrees."""
    file.write_text("db_pin: '1'\nother: {one: '2', two: '3'}\n")
    done = publish(root, deployment, "--secrets", str(file))
    assert f"left out 2 values of {file} that nothing uses\n" in done.stdout
    assert in_tree(zk, deployment).keys() == {"region", "db_pin", "ring"}
    assert ctl(deployment, "diff", root, "--secrets", str(file)).stdout == "0 to create, 0 to update\n"


def test_a_link_stays_one(deployment: Deployment, root: Path, file: Path) -> None:
    file.write_text("")
    link = file.with_name("link.yml")
    link.symlink_to(file)
    publish(root, deployment, "--secrets", str(link))
    assert link.is_symlink()
    assert values(file).keys() == {"db_pin", "ring"}


def test_several_runs_at_once_agree_on_the_secrets(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path
) -> None:
    """One generates them; another finds them there, or is refused. What is published is what the file has."""
    words = [sys.executable, str(TOOL), "publish", str(root), "--deployment", deployment.id]
    words += ["--secrets", str(file)]
    words += ["--hosts", deployment.hosts, "--prefix", deployment.prefix]
    runs = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = [run.communicate(timeout=60) for run in runs]
    assert {run.returncode for run in runs} <= {0, 73}, said
    assert sum("generated 2 secrets" in out for out, _ in said) == 1
    assert {"region": "one", **values(file)} == in_tree(zk, deployment)


def test_two_runs_at_the_same_time_agree_on_the_secrets(
    zk: KazooClient, deployment: Deployment, root: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits, and takes those of the first."""
    keep, other = secret_values.keep, file.with_name("other.yml")
    runs: list[subprocess.Popen[str]] = []

    def be_slow(*given: Any) -> None:
        keep(*given)
        words = [sys.executable, str(TOOL), "publish", str(root), "--secrets", str(other)]
        run = subprocess.Popen(words, env=environ(deployment), stderr=subprocess.PIPE, text=True)
        runs.append(run)
        assert run.stderr is not None
        assert "waiting for the publication by " in run.stderr.readline()

    monkeypatch.setattr(secret_values, "keep", be_slow)
    words = ["publish", str(root), "--deployment", deployment.id, "--prefix", deployment.prefix]
    cli.run([*words, "--hosts", deployment.hosts, "--secrets", str(file)])
    with runs[0] as run:
        assert run.wait(LIMIT) == 0
    assert values(file) == values(other)
    assert in_tree(zk, deployment) == {"region": "one", **values(file)}


def test_a_value_that_looks_like_a_secret_is_named_and_hidden(
    deployment: Deployment, root: Path, file: Path
) -> None:
    """Until it is declared; a value of the file of --secrets, or that acl.yml restricts, is declared."""
    random, address = "q8Zt1LmW5xKc0VbN7rYp2DsF4gHj6TkA", "redis://:s3cr3t@192.0.2.1/0"
    write_files(
        root,
        variables_yml=f"region: one\nseed: {random}\ncache: {address}\n",
        services__a__db__files__conf="{{ db_pin }} {{ ring }} {{ seed }} {{ cache }} {{ other }}\n",
    )
    file.write_text(f"other: {random[::-1]}\n")
    words = (str(root), "--secrets", str(file))
    hints = ["seed looks like a secret (random text)", "cache looks like a secret (a URL with a password)"]
    for command in ("validate", "diff", "publish"):
        done = ctl(deployment, command, *words, status=int(command == "diff"))
        said = done.stdout + done.stderr
        assert random not in said and "s3cr3t" not in said and random[::-1] not in said
        if command != "diff":
            assert [hint for hint in hints if hint in said] == hints
            assert said.count("looks like a secret") == 2
    listed = ctl(deployment, "get").stdout
    assert random not in listed and "s3cr3t" not in listed
    with file.open("a") as stream:
        stream.write(f"seed: {random}\ncache: {address}\n")
    write_files(root, variables_yml="region: one\n")
    assert "looks like a secret" not in ctl(deployment, "validate", *words).stdout
