"""`kolla_mesos_ctl diff` against a real ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.ctl.test_publish import DEFINITION, publish
from tests.support.publishing import write_files
from tests.support.tool import ctl


@pytest.fixture
def root(tmp_path: Path, deployment: Deployment) -> Path:
    """A directory, as it is published."""
    root = write_files(
        tmp_path / "site",
        variables_yml="region: one\ndb_password: s3cret-1\n",
        services__a__db__definition_yml=DEFINITION,
        services__a__db__files__conf="region = {{ region }}\n",
        services__web__definition_yml="service: {daemon: {command: web}}",
    )
    publish(root, deployment)
    return root


def container(
    zk: KazooClient,
    deployment: Deployment,
    service: str,
    definition: int | None,
    generation: str | None = None,
    state: str = "starting",
) -> None:
    """What an agent writes about itself, here of another version of the definition."""
    fact = {
        "generation": generation,
        "host": "h1",
        "state": state,
        "definition": f"{definition:x}" if definition is not None else None,
    }
    path = f"{deployment.path}/{service}/.containers/1"
    zk.create(path, json.dumps(fact).encode(), ephemeral=True, makepath=True)


def test_a_published_directory_has_no_difference(deployment: Deployment, root: Path) -> None:
    done = ctl(deployment, "diff", root)
    assert done.stdout == "0 to create, 0 to update\n"


def test_before_the_first_publication_everything_is_new(
    zk: KazooClient, deployment: Deployment, tmp_path: Path
) -> None:
    """The message names the deployment, because that may be a typo."""
    root = write_files(
        tmp_path / "site",
        variables_yml="region: one\n",
        services__web__definition_yml="service: {daemon: {command: 'web {{ region }}'}}",
    )
    deployment = deployment._replace(id="sitex")
    done = ctl(deployment, "diff", root, status=1)
    assert "would create variables/region: 'one'\nwould create web\n" in done.stdout
    assert done.stdout.endswith("2 to create, 0 to update\n")
    assert (
        f"there is no deployment at {deployment.path} (did you mean 'site'? there are: site):"
        " everything is new"
    ) in done.stderr
    assert not zk.exists(deployment.path)


def test_publish_dry_run_is_diff(deployment: Deployment, root: Path) -> None:
    """With --prune, a removal is a difference."""
    assert ctl(deployment, "publish", root, "--dry-run").stdout == "0 to create, 0 to update\n"
    write_files(root, variables_yml="region: two\ndb_password: s3cret-1\n")
    (root / "services/web/definition.yml").unlink()
    (root / "services/web").rmdir()
    as_diff = ctl(deployment, "diff", root, status=1).stdout
    assert "only with --prune: would remove web\n" in as_diff
    assert ctl(deployment, "publish", root, "--dry-run", status=1).stdout == as_diff
    write_files(root, variables_yml="region: one\ndb_password: s3cret-1\n")
    done = ctl(deployment, "publish", root, "--dry-run", "--prune", status=1)
    assert done.stdout == "would remove web\n0 to create, 0 to update, 1 znode to remove\n"
    assert ctl(deployment, "diff", root).stdout.startswith("only with --prune: would remove web\n")


def test_a_removal_that_services_need_names_them(deployment: Deployment, tmp_path: Path) -> None:
    """A value of an earlier --set is not in the directory."""
    write_files(
        tmp_path,
        services__web__definition_yml="service: {daemon: {command: 'web {{ root }}'}}",
        services__api__definition_yml="service: {daemon: {command: api}}",
    )
    ctl(deployment, "publish", tmp_path, "--set", "root=/srv", "--set", "spare=1")
    assert ctl(deployment, "diff", tmp_path).stdout.splitlines() == [
        "only with --prune: would remove variables/root, which is used by web",
        "only with --prune: would remove variables/spare",
        "0 to create, 0 to update, 2 znodes only --prune would remove",
    ]


def test_differences_are_shown_and_nothing_is_written(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """Values and lines, without secrets; after publishing there is no difference."""
    write_files(
        root,
        variables_yml="region: two\ndb_password: s3cret-2\nmore: m\n",
        services__a__db__definition_yml=DEFINITION.replace("true", "echo s3cret-1 s3cret-2"),
        services__a__db__files__conf="region = {{ region }}\npassword = s3cret-3\n",
    )
    before = zk.get(f"{deployment.path}/a/db")[1].mzxid
    done = ctl(deployment, "diff", root, status=1)
    for line in (
        "would update variables/region: 'one' -> 'two'",
        "would update variables/db_password: '***' -> '***'",
        "would create variables/more: 'm'",
        "would update a/db",
        '    +      "command": "echo *** ***",',
        "would update a/db/files/conf",
        "    +password = ***",
        "1 to create, 4 to update",
    ):
        assert f"{line}\n" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert zk.get(f"{deployment.path}/a/db")[1].mzxid == before
    publish(root, deployment)
    ctl(deployment, "diff", root)


def test_a_long_value_is_cut_with_its_length(deployment: Deployment, root: Path) -> None:
    """JSON has all of it."""
    write_files(root, variables_yml=f"region: {'x' * 900_000}\n", services__a__db__files__conf="y" * 5000)
    done = ctl(deployment, "diff", root, status=1)
    assert f"would update variables/region: 'one' -> '{'x' * 200}'... (900000 characters)\n" in done.stdout
    assert f"    +{'y' * 199}... (5001 characters)\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 300
    assert len(ctl(deployment, "diff", root, "--format", "json", status=1).stdout) > 900_000


def test_removals_of_prune_are_listed_and_no_difference(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    write_files(root, services__old__definition_yml="commands: {a: {command: 'true'}}")
    write_files(root, services__busy__definition_yml="commands: {a: {command: 'true'}}")
    publish(root, deployment)
    container(zk, deployment, "busy", None)
    for name in ("old", "busy"):
        (root / "services" / name / "definition.yml").unlink()
    (root / "services/a/db/files/conf").write_text("region = {{ region }}\n")
    done = ctl(deployment, "diff", root)
    assert "only with --prune: would remove old\n" in done.stdout
    assert "not even with --prune: busy, which has containers\n" in done.stdout
    assert done.stdout.endswith("0 to create, 0 to update, 1 znode only --prune would remove\n")


def test_many_values_of_single_hosts_are_one_line(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """`up` publishes some for every container."""
    for host in ("h1", "h2"):
        for name in ("port", "root"):
            zk.create(f"{deployment.path}/web/variables/{host}/{name}", b"1", makepath=True)
    done = ctl(deployment, "diff", root)
    only = "only with --prune: would remove"
    assert f"{only} 4 values of single hosts of web: port, root\n" in done.stdout
    assert done.stdout.count(only) == 1
    assert done.stdout.endswith(", 4 znodes only --prune would remove\n")
    assert len(json.loads(ctl(deployment, "diff", root, "--format", "json").stdout)["only_prune"]) == 4
    zk.delete(f"{deployment.path}/web/variables/h2", recursive=True)
    assert f"{only} web/variables/h1/port\n" in ctl(deployment, "diff", root).stdout


def test_containers_that_would_run_an_older_version_are_named(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    """Also those that a shared variable affects, or that run an older version already."""
    for service in ("a/db", "web"):
        container(zk, deployment, service, zk.get(f"{deployment.path}/{service}")[1].mzxid)
    assert "older" not in ctl(deployment, "diff", root).stdout
    write_files(root, variables_yml="region: two\ndb_password: s3cret-1\n")
    done = ctl(deployment, "diff", root, "--format", "json", status=1)
    found = json.loads(done.stdout)
    expected = {"service": "a/db", "host": "h1", "state": "starting", "generation": None, "needed": None}
    assert found["running_old"] == [{**expected, "follows": False}]
    assert found["changes"] == [
        {"change": "updated", "path": "variables/region", "before": "one", "after": "two"}
    ]
    zk.set(f"{deployment.path}/web", zk.get(f"{deployment.path}/web")[0])
    done = ctl(deployment, "diff", root, status=1)
    assert "  a/db on h1: starting\n  web on h1: starting\n" in done.stdout


@pytest.mark.parametrize(
    ("image", "published", "needed"),
    [
        ("1", "'{{ release }}'", "2"),
        ("2", "'{{ release }}'", None),
        (None, "'{{ release }}'", None),
        ("1", "'{{ image_generation }}'", None),
    ],
)
def test_containers_of_another_image_are_named(
    zk: KazooClient,
    deployment: Deployment,
    root: Path,
    image: str | None,
    published: str,
    needed: str | None,
) -> None:
    """Although they run the published definition: a restart would not help."""
    once = f"{{command: 'true', run_once: true, generation: {published}}}"
    daemon = "service: {daemon: {command: web}}"
    write_files(root, services__web__definition_yml=f"commands: {{sync: {once}}}\n{daemon}")
    write_files(root, services__web__variables_yml="release: '2'\n")
    publish(root, deployment)
    container(zk, deployment, "web", zk.get(f"{deployment.path}/web")[1].mzxid, image)
    done = ctl(deployment, "diff", root)
    assert ("  web on h1: starting, its image is 1: start one of 2\n" in done.stdout) is bool(needed)
    found = json.loads(ctl(deployment, "diff", root, "--format", "json").stdout)["running_old"]
    assert [(each["generation"], each["needed"]) for each in found] == ([(image, needed)] if needed else [])


def test_publishing_names_the_containers_that_run_an_older_version(
    zk: KazooClient, deployment: Deployment, root: Path
) -> None:
    for service in ("a/db", "web"):
        container(zk, deployment, service, zk.get(f"{deployment.path}/{service}")[1].mzxid)
    assert publish(root, deployment).stdout.endswith("0 removed, 5 unchanged\n")
    write_files(root, variables_yml="region: two\ndb_password: s3cret-1\n")
    older = "these containers need a restart for the new version:\n"
    assert publish(root, deployment).stdout.endswith(f"{older}  a/db on h1: starting\n")
    write_files(root, services__web__definition_yml="service: {daemon: {command: other}}")
    assert publish(root, deployment).stdout.endswith(f"{older}  web on h1: starting\n")
    write_files(
        root,
        services__web__definition_yml="service: {daemon: {command: other, on_change: {signal: HUP}}}",
    )
    assert publish(root, deployment).stdout.endswith(
        f"{older}  web on h1: starting\n"
    )  # It was started without.
    follow = "these containers refresh their files without a restart:\n"
    for more, words in (
        ("dependencies: [db/x], ", follow),
        ("ready: {alive: 1}, ", older),
        ("ready: {alive: 1}, files: {conf: {dest: /x}}, ", follow),
        ("env: {R: '{{ region }}'}, ", older),
    ):
        daemon = f"{{command: other, {more}on_change: {{signal: HUP}}}}"
        write_files(
            root,
            services__web__definition_yml=f"service: {{daemon: {daemon}}}",
            services__web__files__conf="x",
        )
        assert publish(root, deployment, "--no-validate").stdout.endswith(f"{words}  web on h1: starting\n")
    write_files(root, variables_yml="region: three\ndb_password: s3cret-1\n")
    assert publish(root, deployment, "--no-validate").stdout.endswith("  web on h1: starting\n")
    (root / "services/web/files/conf").unlink()
    write_files(root, services__web__definition_yml="service: {daemon: {command: other}}")
    publish(root, deployment)
    write_files(root, services__a__db__variables_yml="extra: one\n")
    publish(root, deployment)
    (root / "services/a/db/variables.yml").unlink()
    assert "a/db" not in publish(root, deployment).stdout
    said = publish(root, deployment, "--prune").stdout
    assert f"removed {deployment.path}/a/db/variables/extra\n" in said
    assert said.endswith(f"{older}  a/db on h1: starting\n  web on h1: starting\n")


@pytest.mark.parametrize(("state", "follows"), [("waiting", False), ("unready", True)])
def test_only_running_daemons_refresh_their_files(
    zk: KazooClient, deployment: Deployment, root: Path, state: str, follows: bool
) -> None:
    daemon = "daemon: {command: web, on_change: {signal: HUP}}"
    write_files(root, services__web__definition_yml=f"service: {{{daemon}}}")
    publish(root, deployment)
    container(zk, deployment, "web", zk.get(f"{deployment.path}/web")[1].mzxid, state=state)
    write_files(root, services__web__variables_yml="extra: one\n")
    done = ctl(deployment, "diff", root, "--format", "json", status=1)
    assert [each["follows"] for each in json.loads(done.stdout)["running_old"]] == [follows]


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b'{"host": "h"}', b'{"host": 1, "state": 2, "definition": "x"}', b"\xff"]
)
def test_garbage_in_containers_is_left_out(
    zk: KazooClient, deployment: Deployment, root: Path, data: bytes
) -> None:
    """And hides no container beside it that runs something older."""
    container(zk, deployment, "web", zk.get(f"{deployment.path}/web")[1].mzxid)
    zk.create(f"{deployment.path}/web/.containers/2", data, ephemeral=True)
    write_files(root, services__web__definition_yml="service: {daemon: {command: other}}")
    done = ctl(deployment, "diff", root, "--format", "json", status=1)
    assert [(each["service"], each["host"]) for each in json.loads(done.stdout)["running_old"]] == [
        ("web", "h1")
    ]


def test_diff_refuses_what_publish_refuses(deployment: Deployment, root: Path) -> None:
    """An invalid directory, and a chroot that does not exist."""
    nowhere = deployment._replace(hosts=f"{deployment.hosts}/nowhere")
    assert "the chroot /nowhere does not exist" in ctl(nowhere, "diff", root, status=64).stderr
    write_files(root, services__a__db__definition_yml="[")
    assert "bad YAML" in ctl(deployment, "diff", root, status=65).stderr
