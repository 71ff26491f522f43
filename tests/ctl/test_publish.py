"""The operator's tool as a process of its own, against a real ZooKeeper."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.zk import publication, status_records
from kolla_mesos_start.ctl.zk.publication import Publisher
from kolla_mesos_start.tree.znodes import EVENTS, PUBLICATION, Znodes
from tests.conftest import Deployment
from tests.support.publishing import write_files
from tests.support.tool import TOOL, ctl, operator_client
from tests.support.walking import znodes

DEFINITION = "commands:\n  sync: {command: 'true', files: {conf: {dest: /conf}}}\n"


def publish(
    root: Path, deployment: Deployment, *options: str, status: int = 0, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Publish a directory."""
    return ctl(deployment, "publish", root, *options, status=status, **environ)


def tree(zk: KazooClient, path: str) -> dict[str, bytes]:
    """Every znode below `path` that holds something, by its path from there."""
    found = znodes(zk, path, but=(PUBLICATION, EVENTS))
    return {each[len(path) + 1 :]: data for each, (data, _) in found.items() if data and each != path}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with one service, a variable of each kind, and a file."""
    return write_files(
        tmp_path / "site",
        variables_yml="region: one\nempty:\n",
        services__a__db__definition_yml=DEFINITION,
        services__a__db__variables__size="3\n",
        services__a__db__variables__web1__size="5\n",
        services__a__db__files__conf="size = {{ size }}\n",
    )


def test_a_long_first_publication_is_counted(deployment: Deployment, tmp_path: Path) -> None:
    """Later ones name each change."""
    values = "".join(f"v{number}: x\n" for number in range(50))
    files = {
        "services__a__db__definition_yml": "service: {daemon: {command: db}}",
        "services__a__db__files__x": "x",
    }
    root = write_files(tmp_path, variables_yml=values, **files)
    said = ctl(deployment, "publish", root, "--no-validate").stdout
    assert said.startswith("created 1 service with 50 variables and 1 file\npublished ")
    root = write_files(tmp_path, variables_yml=f"{values}more: y\n")
    said = ctl(deployment, "publish", root, "--no-validate").stdout
    assert said.startswith(f"created {deployment.path}/variables/more\n")


def test_a_directory_becomes_the_tree(zk: KazooClient, deployment: Deployment, root: Path) -> None:
    """The prefix and the deployment are created too, and the definition is JSON."""
    zk.delete(deployment.prefix, recursive=True)
    done = publish(root, deployment)
    found = tree(zk, deployment.path)
    assert b'"command": "true"' in found.pop("a/db")
    assert found == {
        "variables/region": b"one",
        "a/db/variables/size": b"3",
        "a/db/variables/web1/size": b"5",
        "a/db/files/conf": b"size = {{ size }}\n",
    }
    assert zk.get(f"{deployment.path}/variables/empty")[0] == b""
    assert done.stdout.endswith("6 created, 0 updated, 0 removed, 0 unchanged\n")


def test_publishing_twice_writes_nothing(zk: KazooClient, deployment: Deployment, root: Path) -> None:
    """No znode gets a new version, so no agent wakes."""
    publish(root, deployment)
    before = zk.get(f"{deployment.path}/a/db")[1].mzxid
    done = publish(root, deployment)
    assert done.stdout.endswith("0 created, 0 updated, 0 removed, 6 unchanged\n")
    assert zk.get(f"{deployment.path}/a/db")[1].mzxid == before


def test_one_on_each_host_of_a_role_is_wanted(zk: KazooClient, deployment: Deployment, root: Path) -> None:
    """Where launch.yml says so; the number is published, the file is not."""
    launch = "hosts: {compute: [c1, c2]}\nservices: {a/db: {placement: compute, replicas: each}}\n"
    daemon = "service: {daemon: {command: sleep 9, ready: {alive: 0}}}\n"
    write_files(root, launch_yml=launch, services__a__db__definition_yml=DEFINITION + daemon)
    assert "left out" not in publish(root, deployment).stdout
    found = tree(zk, deployment.path)
    assert json.loads(found["a/db"])["service"]["instances"] == 2
    assert not [path for path in found if "launch" in path]
    ctl(deployment, "diff", root)
    write_files(root, launch_yml=launch.replace("c2", "c2, c3"))
    done = ctl(deployment, "diff", root, status=1)
    assert '-    "instances": 2\n    +    "instances": 3\n' in done.stdout


def test_definitions_of_a_large_publication_are_written_last(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """An agent that sees a new definition finds all that belongs to it, at the first time and later."""
    for size, definition in (("3", DEFINITION), ("4", DEFINITION.replace("true", "false"))):
        values = {f"services__a__db__variables__v{number}": size * 200_000 for number in range(3)}
        write_files(root, **values, services__a__db__definition_yml=definition)
        publish(root, deployment)
        names = ("/variables/v0", "/variables/v2", "")
        first, later, last = (zk.get(f"{deployment.path}/a/db{name}")[1].mzxid for name in names)
        assert first < later < last


def test_the_value_of_an_updated_variable_is_not_printed(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """The output names what was written, never what it holds."""
    publish(root, deployment)
    write_files(root, services__a__db__variables__size="s3cret")
    done = publish(root, deployment)
    assert f"updated {deployment.path}/a/db/variables/size\n" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert zk.get(f"{deployment.path}/a/db/variables/size")[0] == b"s3cret"


def test_completed_commands_that_do_not_run_again_are_named(deployment: Deployment, tmp_path: Path) -> None:
    """Their definition has changed, or only a value that they use."""
    command = {"run_once": True, "command": "create", "env": {"PASSWORD": "{{ pw }}"}}
    written = {"variables_yml": "pw: old\n"}
    for number, changed in enumerate(({}, {"variables_yml": "pw: new\n"}, {"command": "make"})):
        command.update({key: value for key, value in changed.items() if key in command})
        written.update({key: value for key, value in changed.items() if key in written})
        definition = json.dumps({"commands": {"user": command}})
        root = write_files(tmp_path / str(number), services__a__db__definition_yml=definition, **written)
        said = publish(root, deployment).stderr
        values = "note: where they are done, these one-time commands do not run again, although what they use"
        assert (f"{values} has changed: db/user; " in said) == (number == 1)
        assert ("note: a/db: user has changed, but not its generation" in said) == (number == 2)


def test_nothing_is_removed_unless_it_is_asked_for(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """--prune takes what the directory no longer has, of its own services, and nothing else."""
    publish(root, deployment)
    foreign = f"{deployment.path}/other/variables/size"
    zk.create(foreign, b"1", makepath=True)
    zk.create(f"{deployment.path}/status/global/db/sync", b"done", makepath=True)
    (root / "services/a/db/variables/web1/size").unlink()
    write_files(root, variables_yml="empty:\n")
    plain = publish(root, deployment)
    assert plain.stdout.endswith("0 removed, 4 unchanged\n")
    left = "a/db/variables/web1/size, variables/region; --prune would remove them\n"
    assert f"note: still published, but not in {root}: {left}" in plain.stderr
    done = publish(root, deployment, "--prune")
    assert "still published" not in done.stderr
    assert done.stdout.endswith("3 removed, 4 unchanged\n")
    assert not zk.exists(f"{deployment.path}/variables/region")
    assert not zk.exists(f"{deployment.path}/a/db/variables/web1")
    assert set(tree(zk, deployment.path)) == {
        "a/db",
        "a/db/variables/size",
        "a/db/files/conf",
        "other/variables/size",
        "status/global/db/sync",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"services__a__db__definition_yml": "commands: {sync: {comand: 'true'}}"}, "comand"),
        (
            {"services__a__db__definition_yml": "commands: {s: {command: b, retries: '{{ n }}'}}"},
            "retries needs the variable 'n'",
        ),
        ({"services__a__db__defintion_yml": ""}, "services/a/db/defintion.yml: unknown name"),
    ],
)
def test_nothing_is_written_if_anything_is_wrong(
    zk: KazooClient, deployment: Deployment, root: Path, files: dict[str, str], expected: str
) -> None:
    """Every error that `validate` finds ends it before the first write."""
    done = publish(write_files(root, **files), deployment, status=65)
    assert expected in done.stderr
    assert tree(zk, deployment.path) == {}


def test_what_is_wrong_is_written_on_request_only(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """--no-validate; what can't be read can't be written either."""
    write_files(root, services__a__db__definition_yml="commands: {sync: {comand: 'true'}}")
    publish(root, deployment, "--no-validate")
    assert b"comand" in zk.get(f"{deployment.path}/a/db")[0]
    write_files(root, services__a__db__definition_yml="[")
    assert "bad YAML" in publish(root, deployment, "--no-validate", status=65).stderr


def test_variables_of_the_command_line_win(
    zk: KazooClient, deployment: Deployment, root: Path, tmp_path: Path
) -> None:
    """Secrets need not be in the directory; texts stay as they are written."""
    write_files(tmp_path, secrets_yml="region: 1.10\ntls: yes\n")
    publish(root, deployment, "--variables-from", str(tmp_path / "secrets.yml"), "--set", "more=false")
    values = {name: zk.get(f"{deployment.path}/variables/{name}")[0] for name in ("region", "tls", "more")}
    assert values == {"region": b"1.10", "tls": b"yes", "more": b"false"}


def test_warnings_are_printed_and_refuse_nothing(deployment: Deployment, root: Path) -> None:
    write_files(root, variables_yml="db_password: replace-me\n")
    done = publish(root, deployment)
    assert "variables.yml:1: warning: db_password is a placeholder" in done.stderr


def test_services_that_are_published_already_count(
    zk: KazooClient, deployment: Deployment, root: Path, tmp_path: Path
) -> None:
    """A second directory may depend on what the first one holds; alone it waits for nobody."""
    second = write_files(
        tmp_path / "second",
        services__web__definition_yml="service: {daemon: {command: w, dependencies: [db/sync]}}",
    )
    assert "no service has the role 'db'" in publish(second, deployment, status=65).stderr
    publish(root, deployment)
    publish(second, deployment)
    assert zk.exists(f"{deployment.path}/web")
    assert "no service has the role 'db'" in publish(second, deployment, "--prune", status=65).stderr
    assert zk.exists(f"{deployment.path}/a/db")


def test_a_whole_service_is_pruned_with_all_that_belongs_to_it(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """What is done stays: the service may come back. A service below it stays too."""
    write_files(
        root,
        services__old__definition_yml="commands: {a: {command: 'true'}}",
        services__old__variables__x="1",
        services__old__files__y="2",
        services__above__definition_yml="commands: {a: {command: 'true'}}",
        services__above__below__definition_yml="commands: {a: {command: 'true'}}",
    )
    publish(root, deployment)
    zk.create(f"{deployment.path}/old/.party")
    zk.create(f"{deployment.path}/status/global/old/a", b"done", makepath=True)
    shutil.rmtree(root / "services" / "old")
    (root / "services" / "above" / "definition.yml").unlink()
    done = publish(root, deployment, "--prune")
    assert f"removed {deployment.path}/old\n" in done.stdout
    assert not zk.exists(f"{deployment.path}/old")
    assert set(tree(zk, deployment.path)) >= {"above/below", "a/db", "status/global/old/a"}
    assert zk.get(f"{deployment.path}/above")[0] == b""
    assert publish(root, deployment, "--prune").stdout.endswith(
        "0 created, 0 updated, 0 removed, 7 unchanged\n"
    )


@pytest.mark.parametrize("where", [".party", ".containers"])
def test_a_service_with_containers_is_kept_and_named(
    zk: KazooClient, deployment: Deployment, root: Path, where: str
) -> None:
    """Its containers still read what is published for it."""
    write_files(
        root,
        services__old__definition_yml="commands: {a: {command: 'true'}}",
        services__old__variables__x="1",
    )
    publish(root, deployment)
    zk.create(f"{deployment.path}/old/{where}/1", makepath=True, ephemeral=True)
    shutil.rmtree(root / "services" / "old")
    done = publish(root, deployment, "--prune")
    assert "kept old: it is not in the directory, but it has containers" in done.stderr
    assert {"old", "old/variables/x"} <= set(tree(zk, deployment.path))


@pytest.mark.parametrize("where", [".party", ".containers"])
def test_a_service_whose_container_starts_meanwhile_is_kept_whole(
    zk: KazooClient,
    deployment: Deployment,
    root: Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is named, and the others are removed, also one below it."""
    names, definition = ("old", "old/below", "above/gone"), "commands: {a: {command: 'true'}}"
    for name in names:
        write_files(root / "services" / name, definition_yml=definition, variables__x="1", files__y="2")
    publish(root, deployment)
    for name in names:
        zk.create(f"{deployment.path}/{name}/{where}")
    before = tree(zk, f"{deployment.path}/old")
    shutil.rmtree(root / "services" / "old")
    shutil.rmtree(root / "services" / "above")
    roles = status_records.roles

    def start(*given: Any) -> Any:
        zk.create(f"{deployment.path}/old/{where}/1", ephemeral=True)
        return roles(*given)

    monkeypatch.setattr(status_records, "roles", start)
    place = ["--deployment", deployment.id, "--prefix", deployment.prefix, "--hosts", deployment.hosts]
    cli.run(["publish", str(root), "--prune", *place])
    assert zk.get(f"{deployment.path}/old")[0]
    left = {path: data for path, data in before.items() if not path.startswith("below")}
    assert tree(zk, f"{deployment.path}/old") == left
    assert not zk.exists(f"{deployment.path}/old/below") and not zk.exists(f"{deployment.path}/above/gone")
    assert "kept old: " in capsys.readouterr().err


def test_variables_and_files_that_are_published_already_count(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """Secrets may come from elsewhere than the directory; a wrong value there is found."""
    (root / "services/a/db/files/conf").unlink()
    write_files(
        root, services__a__db__definition_yml=DEFINITION.replace("{command", "{retries: '{{ n }}', command")
    )
    zk.create(f"{deployment.path}/variables/n", b"many", makepath=True)
    zk.create(f"{deployment.path}/a/db/files/conf", b"", makepath=True)
    assert "commands.sync.retries" in publish(root, deployment, status=65).stderr
    zk.set(f"{deployment.path}/variables/n", b"3")
    publish(root, deployment)


def test_a_missing_chroot_is_refused(zk: KazooClient, deployment: Deployment, root: Path) -> None:
    """A typo must not create a tree in which no agent looks."""
    done = publish(root, deployment, "--hosts", f"{deployment.hosts}/typo", status=64)
    assert "chroot /typo does not exist" in done.stderr
    assert not zk.exists("/typo")


def test_credentials_and_acl_are_those_of_the_agent(
    zk: KazooClient, deployment: Deployment, root: Path, tmp_path: Path
) -> None:
    """What KOLLA_ZK_ACL says stands on every new znode, and without its credential nothing can be written."""
    auth = tmp_path / "auth"
    auth.write_text("digest:operator:password\n")
    acl = make_digest_acl("operator", "password", all=True)
    zk.delete(deployment.path)
    publish(root, deployment, KOLLA_ZK_AUTH_FILE=str(auth), KOLLA_ZK_ACL=f"digest:{acl.id.id}:cdrwa")
    zk.add_auth("digest", "operator:password")
    assert zk.get_acls(f"{deployment.path}/a/db/variables/size")[0] == [acl]
    assert "can't be read" in publish(root, deployment, status=77).stderr


def test_what_others_have_changed_meanwhile_is_written_all_the_same(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """What has come since it was read, and what has gone."""
    znodes = Znodes(deployment.prefix, deployment.id, "", "")
    before = {"variables": b"", "variables/region": b"old", "a": b"", "a/db": b"old", "a/db/variables": b""}
    for path in ("variables", "a/db/variables/size", "a/db/files", "a/db/variables/web1"):
        zk.create(f"{deployment.path}/{path}", makepath=True)
    client = operator_client(zk, deployment.prefix, deployment.id)
    with publication.locked(client, znodes) as lock:
        publisher = Publisher(client, znodes, before, lock, report=lambda change: None)
        publisher.publish(directory.read(root))
    client.close()
    assert {"variables/region", "a/db", "a/db/variables/size"} <= set(tree(zk, deployment.path))


def test_what_is_there_need_not_be_writable(zk: KazooClient, deployment: Deployment, root: Path) -> None:
    """Below a prefix that belongs to others: nothing is created where nothing is missing."""
    zk.set_acls(deployment.prefix, [make_acl("world", "anyone", read=True, delete=True)])
    publish(root, deployment)
    write_files(root, services__a__db__variables__size="4")
    assert "1 updated" in publish(root, deployment).stdout
    assert zk.get(f"{deployment.path}/a/db/variables/size")[0] == b"4"


@pytest.mark.parametrize(
    ("arguments", "environ", "status"),
    [
        (["DIR"], {}, 64),
        ([".", "--deployment", "x"], {"KOLLA_ZK_HOSTS": "zoo,a..b"}, 64),
        (["no-such-directory", "--deployment", "x"], {"KOLLA_ZK_HOSTS": "h"}, 66),
        ([".", "--deployment", "x"], {}, 64),
        (
            ["services", "--deployment", "x", "--hosts", "127.0.0.1:1"],
            {"KOLLA_ZK_CONNECT_TIMEOUT": "0.2"},
            65,
        ),
        ([".", "--deployment", "x", "--hosts", "127.0.0.1:1"], {"KOLLA_ZK_CONNECT_TIMEOUT": "0.2"}, 69),
    ],
)
def test_it_ends_with_the_agents_exit_statuses(
    root: Path, arguments: list[str], environ: dict[str, str], status: int
) -> None:
    """Usage and environment 64, no directory 66, an empty one 65, no ZooKeeper 69; without a traceback."""
    done = subprocess.run(
        [sys.executable, TOOL, "publish", *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("kolla_mesos_ctl: ")
