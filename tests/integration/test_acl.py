"""`acl.yml` against a real ZooKeeper: who may do what once it is published, tried out by real agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.conftest import Deployment
from tests.integration.test_publish import ctl
from tests.publishing import write_files

DB, WEB, FRONT = "infra/db/db", "app/web/web", "app/front"
DB_DEFINITION = """\
commands:
  sync: {command: touch synced, run_once: true, generation: '1',
         files: {conf: {dest: "{{ directory }}/db.conf"}}}
service: {daemon: {command: sleep 100, ready: {alive: 0}, dependencies: [db/sync]}}
"""
WEB_DEFINITION = """\
commands:
  plain: {command: 'true'}
service: {daemon: {command: sleep 100, ready: {alive: 0},
  dependencies: [db/daemon, {members: infra/db/db, count: 1}],
  files: {conf: {dest: "{{ directory }}/web.conf"}}}}
"""
FRONT_DEFINITION = """\
commands:
  last: {command: 'true', run_once: host, 
         dependencies: [{path: web/daemon, generation: "1", exclusive: true}],
         files: {conf: {dest: "{{ directory }}/front.conf"}}}
"""


def identity(name: str) -> str:
    found: str = make_digest_acl(name, f"{name}-password").id.id
    return f"digest:{found}"


class Site(NamedTuple):
    """A deployment in which each service is its own user: its directory, and one for credentials."""

    deployment: Deployment
    root: Path
    home: Path

    @property
    def path(self) -> str:
        return self.deployment.path

    def auth(self, name: str) -> str:
        """The file with the credential of a service, by its role, or of the operator."""
        file = self.home / f"{name}.auth"
        file.write_text(f"digest:{name}:{name}-password\n")
        return str(file)

    def ctl(
        self, word: str, *options: str | Path, status: int = 0, name: str = "operator"
    ) -> tuple[str, str]:
        """What the tool prints to each stream, run as this user; without options for the directory."""
        first, *others = options or (self.root,)
        auth = self.auth(name)
        done = ctl(
            word, Path(first), self.deployment, *map(str, others), status=status, KOLLA_ZK_AUTH_FILE=auth
        )
        return done.stdout, done.stderr


@pytest.fixture
def site(deployment: Deployment, tmp_path: Path, zk: KazooClient) -> Site:
    """A deployment that is not published yet, and whose directory has an acl.yml."""
    zk.add_auth("digest", "operator:operator-password")  # What follows, and what cleans up, sees everything.
    acl = {
        "operator": identity("operator"),
        "services": {DB: identity("db"), WEB: identity("web"), FRONT: identity("front")},
        "variables": {"root_password": [DB]},
        "hosts": ["web1", "db1"],
    }
    root = write_files(
        tmp_path / "site",
        acl_yml=json.dumps(acl),
        variables_yml=f"root_password: s3cret\nregion: one\ndirectory: {tmp_path}\n",
    )
    for service, definition, conf in (
        (DB, DB_DEFINITION, "{{ root_password }} {{ region }} {{ own }}"),
        (WEB, WEB_DEFINITION, "{{ groups['db'] | length }} {{ region }}"),
        (FRONT, FRONT_DEFINITION, "{{ ready_instances('infra/db/db') | length }}"),
    ):
        place = root / "services" / service
        write_files(place, definition_yml=definition, files__conf=conf, variables__own="1")
    home = tmp_path / "home"
    home.mkdir()
    return Site(deployment, root, home)


def paths_below(zk: KazooClient, path: str) -> Iterator[str]:
    for name in zk.get_children(path):
        yield f"{path}/{name}"
        yield from paths_below(zk, f"{path}/{name}")


def world(zk: KazooClient, path: str) -> list[str]:
    """What the world may do anything with."""
    return [
        each
        for each in (path, *paths_below(zk, path))
        if any(entry.id.scheme == "world" for entry in zk.get_acls(each)[0])
    ]


def test_what_stands_wider_is_named_and_mended(zk: KazooClient, site: Site) -> None:
    """The second publication writes nothing else; the secret was open until then, which is said."""
    plan = (site.root / "acl.yml").read_text()
    (site.root / "acl.yml").unlink()
    _, err = site.ctl("publish")
    assert "warning: whoever connects can read 1 variable (root_password): say in acl.yml who may" in err
    assert len(world(zk, site.path)) > 10
    (site.root / "acl.yml").write_text(plan)
    out, _ = site.ctl("publish", site.root, "--check-acl", status=77)
    secret = f"{site.path}/variables/root_password"
    assert f"{secret}: world:anyone may create, delete, read, write, change the ACL" in out
    assert world(zk, site.path)[0] == site.path
    before = zk.get(secret)[1].mzxid
    out, err = site.ctl("publish")
    assert f"secured {secret}\n" in out
    assert "0 created, 0 updated, 0 removed, 12 unchanged, 24 secured" in out.splitlines()[-1]
    assert "warning: whoever connects could read 4 variables (directory, own, region, root_password)" in err
    assert zk.get(secret)[1].mzxid == before
    assert world(zk, site.path) == []
    out, err = site.ctl("publish")
    assert (out.splitlines()[-1][-20:], err) == ("unchanged, 0 secured", "")


def test_who_is_not_the_operator_changes_nothing(zk: KazooClient, site: Site) -> None:
    """They would lock themselves out."""
    _, err = site.ctl("publish", name="web", status=77)
    assert "this connection is not that of digest:operator, the operator of acl.yml" in err
    assert zk.get_children(site.path) == []


def test_what_is_set_later_follows_what_was_published(zk: KazooClient, site: Site) -> None:
    """A variable that is restricted stays so when it is made anew, also by a publication without acl.yml."""
    site.ctl("publish")
    secret = f"{site.path}/variables/root_password"
    planned = zk.get_acls(secret)[0]
    site.ctl("unset", "root_password", "--force")
    site.ctl("set", "root_password", "other")
    assert zk.get_acls(secret)[0] == planned
    assert len(planned) == 2
    site.ctl("set", "size", "1", "--service", "db", "--host", "h9")
    (site.root / "acl.yml").unlink()
    zk.delete(secret)
    site.ctl("publish")
    assert zk.get_acls(secret)[0] == planned
    site.ctl("adopt", "db/sync")
    assert world(zk, site.path) == []
    site.ctl("rerun", "db/sync")
    assert world(zk, site.path) == []


def test_a_service_that_is_new_in_the_plan_may_read_what_stands(zk: KazooClient, site: Site) -> None:
    """A right that is missing is given; of a service that is gone nothing is left."""
    site.ctl("publish")
    acl = json.loads((site.root / "acl.yml").read_text())
    acl["services"][WEB] = identity("other")
    (site.root / "acl.yml").write_text(json.dumps(acl))
    site.ctl("publish")
    everywhere = [zk.get_acls(path)[0] for path in (site.path, *paths_below(zk, site.path))]
    names = {entry.id.id.partition(":")[0] for acl in everywhere for entry in acl}
    assert names == {"operator", "db", "other", "front"}
    assert zk.get(f"{site.path}/{DB}/.acl")[0].decode().count("digest:other:") == 1


def test_there_is_nothing_to_check_without_a_plan(site: Site) -> None:
    (site.root / "acl.yml").unlink()
    _, err = site.ctl("publish", site.root, "--check-acl", status=64)
    assert err == f"kolla_mesos_ctl: --check-acl: {site.root} has no acl.yml, so that no ACL is planned\n"
