"""`acl.yml` against a real ZooKeeper: who may do what once it is published, tried out by real agents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from kolla_mesos_start.zookeeper.session import GRANT
from tests.conftest import Deployment, connected
from tests.support.agents import Agent, Containers
from tests.support.publishing import write_files
from tests.support.tool import ctl
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import Server

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
MORE = {"KOLLA_TASK_END": "stay", "KOLLA_GENERATION": "1"}
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
        options = options or (self.root,)
        auth = self.auth(name)
        done = ctl(self.deployment, word, *options, status=status, KOLLA_ZK_AUTH_FILE=auth)
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
        (WEB, WEB_DEFINITION, "{{ groups['db'] | length }} {{ region }} {{ own }}"),
        (FRONT, FRONT_DEFINITION, "{{ ready_instances('infra/db/db') | length }} {{ own }}"),
    ):
        place = root / "services" / service
        write_files(place, definition_yml=definition, files__conf=conf, variables__own="1")
    home = tmp_path / "home"
    home.mkdir()
    return Site(deployment, root, home)


@pytest.fixture
def clients(zookeeper: Server) -> Iterator[Mapping[str, KazooClient]]:
    """A client for each service, by its role, and one of a stranger."""
    generators = {name: connected(zookeeper) for name in ("db", "web", "front", "stranger")}
    found = {name: next(generator) for name, generator in generators.items()}
    for name, client in found.items():
        client.add_auth("digest", f"{name}:{name}-password")
    yield found
    for generator in generators.values():
        next(generator, None)


def test_a_difference_shows_no_value_of_a_restricted_variable(site: Site) -> None:
    """Whatever its name is, by the directory's acl.yml or by the published one; also in other texts."""
    text = (site.root / "acl.yml").read_text().replace("root_password", "origin")
    write_files(
        site.root,
        acl_yml=text,
        variables_yml="origin: s3cret-1\nplace: 'at s3cret-1'\ndirectory: x\nregion: y\n",
    )
    for name in ("operator", "stranger"):
        out, err = site.ctl("diff", site.root, name=name, status=1)
        assert (
            "would create variables/origin: '***'\n" in out
            and "would create variables/place: 'at ***'" in out
        )
        assert "s3cret" not in out + err
    site.ctl("publish", site.root, "--no-validate")
    (site.root / "acl.yml").unlink()
    write_files(site.root, variables_yml="origin: s3cret-2\nplace: 'at s3cret-2'\ndirectory: x\nregion: y\n")
    for words in (("diff", site.root), ("get", "--format=text")):
        out, err = site.ctl(*words, status=int(words[0] == "diff"))
        assert "***" in out and "at ***" in out and "s3cret" not in out + err


def start_all(site: Site, containers: Containers) -> dict[str, Agent]:
    hosts = {DB: "db1", WEB: "web1", FRONT: "web1"}
    return {
        service: containers.start(
            service, host, KOLLA_ZK_AUTH_FILE=site.auth(service.rpartition("/")[2]), **MORE
        )
        for service, host in hosts.items()
    }


def are_ready(agents: Mapping[str, Agent]) -> None:
    def all_ready() -> bool:
        ended = {service: agent.said for service, agent in agents.items() if not agent.running}
        assert not ended
        return all(agent.health("--ready").returncode == 0 for agent in agents.values())

    eventually(all_ready, "all are ready")


def world(zk: KazooClient, path: str) -> list[str]:
    """What the world may do anything with."""
    return [each for each in znodes(zk, path) if is_of_the_world(zk, each)]


def is_of_the_world(zk: KazooClient, path: str) -> bool:
    with suppress(NoNodeError):
        return any(entry.id.scheme == "world" for entry in zk.get_acls(path)[0])
    return False


def test_each_service_starts_with_no_more_than_it_needs(
    zk: KazooClient, site: Site, containers: Containers
) -> None:
    """One-time commands, daemons, members, instances; and nothing that they make is wider than planned."""
    site.ctl("publish")
    assert world(zk, site.path) == []
    are_ready(start_all(site, containers))
    assert (site.root.parent / "db.conf").read_text() == "s3cret one 1"
    assert (site.root.parent / "web.conf").read_text() == "1 one 1"
    assert (site.root.parent / "front.conf").read_text() == "1 1"
    assert zk.get(f"{site.path}/status/global/db/sync/generations/1")
    assert world(zk, site.path) == []
    assert "would secure" not in site.ctl("diff", site.root)[0]


def test_files_follow_what_is_published(zk: KazooClient, site: Site, containers: Containers) -> None:
    """A refresh in its turn, of a template that lists members, needs no more than a start."""
    follows = "ready: {alive: 0}, on_change: {command: 'true'}, width: 1"
    write_files(
        site.root / "services" / WEB, definition_yml=WEB_DEFINITION.replace("ready: {alive: 0}", follows)
    )
    site.ctl("publish")
    are_ready(start_all(site, containers))
    site.ctl("set", "region", "two")
    conf = site.root.parent / "web.conf"
    eventually(lambda: conf.read_text() == "1 two 1", "the file has followed")
    turns = f"{site.path}/status/global/web/daemon/refreshes"
    eventually(lambda: not zk.get_children(f"{turns}/slots"), "its turn is over")
    assert world(zk, site.path) == []


def test_a_container_learns_the_generation_that_is_published_for_a_command_of_others(
    site: Site, containers: Containers
) -> None:
    """It may not read their definition: it must start neither before its migration, nor never."""
    with (site.root / "variables.yml").open("a") as file:
        file.write("release: '1'\n")
    write_files(
        site.root,
        services__infra__db__db__definition_yml=DB_DEFINITION.replace("'1'", "'{{ release }}'"),
        services__app__front__definition_yml="service: {daemon: {command: sleep 100, ready: {alive: 0},"
        " dependencies: [db/sync]}}\n",
    )
    site.ctl("publish")
    db = containers.start(DB, "db1", KOLLA_ZK_AUTH_FILE=site.auth("db"), **MORE)
    are_ready({DB: db})
    site.ctl("set", "release", "2")
    new, other = (
        containers.start(
            FRONT, "web1", KOLLA_ZK_AUTH_FILE=site.auth("front"), **{**MORE, "KOLLA_GENERATION": image}
        )
        for image in ("2", "3")
    )
    new.says("front/daemon waits for db/sync: not done for generation 2, which this image has")
    are_ready({FRONT: other})
    assert "3, which this image has; it is published for generation 2" in other.said


def test_nobody_reads_or_writes_what_is_anothers(
    zk: KazooClient, site: Site, containers: Containers, clients: Mapping[str, KazooClient]
) -> None:
    """Neither another service nor a stranger; what is shared is read by all services."""
    site.ctl("publish")
    are_ready(start_all(site, containers))
    own = ("", "/variables/own", "/files/conf", "/.acl")
    closed = {
        "db": [f"{WEB}{each}" for each in own],
        "web": [f"{DB}{each}" for each in own] + ["variables/root_password", ".acl"],
        "stranger": ["variables/region", "status/global/db", DB, f"{DB}/.party", ""],
    }
    for name, nodes in closed.items():
        for node in nodes:
            with pytest.raises(NoAuthError):
                clients[name].get(f"{site.path}/{node}".rstrip("/"))
    state = "status/global/db"
    ready = clients["web"].get_children(f"{site.path}/{state}/daemon/ready")[0]
    attempts = [
        ("set", f"{state}/sync", b"done"),
        ("set", f"{state}/daemon/ready/{ready}", b"forged"),
        ("create", f"{state}/sync/generations/2", b""),
        ("create", f"{state}/daemon/ready/forged", b""),
        ("create", f"{DB}/.party/forged", b""),
        ("create", "status/global/mine", b""),
        ("create", "status/h9", b""),
        ("create", "app/mine", b""),
        ("set", DB, b"{}"),
        ("set", WEB, b"{}"),  # Not even its own definition.
        ("set", "variables/region", b"two"),
    ]
    for what, node, data in attempts:
        with pytest.raises(NoAuthError):
            getattr(clients["web"], what)(f"{site.path}/{node}", data)
    for node in (f"{state}/sync", f"{state}/sync/lock", f"{state}/daemon/ready/{ready}", "status/global"):
        with pytest.raises(NoAuthError):
            clients["web"].delete(f"{site.path}/{node}")
        with pytest.raises(NoAuthError):
            clients["db"].set_acls(f"{site.path}/{node}", OPEN_ACL_UNSAFE)
    assert clients["web"].get(f"{site.path}/variables/region")[0] == b"one"
    assert clients["front"].get(f"{site.path}/{state}/sync")[0] == b"done"


def test_what_stands_wider_is_named_and_mended(zk: KazooClient, site: Site) -> None:
    """The second publication writes nothing else; the secret was open until then, which is said."""
    plan = (site.root / "acl.yml").read_text()
    (site.root / "acl.yml").unlink()
    _, err = site.ctl("publish")
    assert "warning: every client can read 1 variable (root_password): restrict access with acl.yml" in err
    assert len(world(zk, site.path)) > 10
    (site.root / "acl.yml").write_text(plan)
    out, _ = site.ctl("diff", site.root, status=1)
    secret = f"{site.path}/variables/root_password"
    assert f"would secure {secret}: world:anyone may create, delete, read, write, change the ACL" in out
    assert world(zk, site.path)[0] == site.path
    before = zk.get(secret)[1].mzxid
    out, err = site.ctl("publish")
    assert f"secured {secret}\n" in out
    assert "0 created, 0 updated, 0 removed, 12 unchanged, 26 secured" in out.splitlines()[-1]
    assert "warning: every client could read 4 variables (directory, own, region, root_password)" in err
    assert zk.get(secret)[1].mzxid == before
    assert world(zk, site.path) == []
    out, err = site.ctl("publish")
    assert (out.splitlines()[-1][-20:], err) == ("unchanged, 0 secured", "")


def test_who_is_not_the_operator_changes_nothing(zk: KazooClient, site: Site) -> None:
    """They would lock themselves out."""
    _, err = site.ctl("publish", name="web", status=77)
    assert (
        "this connection is that of digest:web, not that of digest:operator, the operator of acl.yml" in err
    )
    assert zk.get_children(site.path) == []


def test_deployments_with_their_own_operators_share_what_is_above_them(zk: KazooClient, site: Site) -> None:
    """It belongs to none of them, however deep the prefix is; each still has all of its own."""
    prefix = f"{site.deployment.prefix}/deep/er"
    for number, name in enumerate(("operator", "second")):
        (site.root / "acl.yml").write_text(f"{{operator: '{identity(name)}', hosts: [h1]}}")
        shutil.rmtree(site.root / "services", ignore_errors=True)
        environ = {"KOLLA_SYSTEM_PREFIX": prefix, "KOLLA_ZK_AUTH_FILE": site.auth(name)}
        own = site.deployment._replace(id=f"own{number}")
        ctl(own, "publish", site.root, status=0, **environ)
        path = f"{prefix}/own{number}"
        assert zk.get_acls(prefix)[0] == zk.get_acls("/")[0] == OPEN_ACL_UNSAFE
        zk.add_auth("digest", f"{name}:{name}-password")
        assert {entry.id.id.partition(":")[0] for entry in zk.get_acls(path)[0]} == {name}


def test_who_may_create_what_is_shared_is_named(zk: KazooClient, site: Site) -> None:
    """Where the znode above belongs to another one: not the operator's own credential is wrong."""
    prefix = f"{site.deployment.prefix}/closed"
    first = make_digest_acl("first", "first-password", all=True)
    zk.create(prefix, acl=[first, make_acl("world", "anyone", read=True)])
    environ = {"KOLLA_SYSTEM_PREFIX": prefix, "KOLLA_ZK_AUTH_FILE": site.auth("operator")}
    done = ctl(site.deployment, "publish", site.root, status=77, **environ)
    assert (
        f"nothing can be created in {prefix} as digest:operator: only digest:first may: add the line of such"
        " a credential to the file of --auth-file for this publication, or have the right c given"
        f" (setAcl {prefix}); nothing was changed\n" in done.stderr
    )
    with Path(site.auth("operator")).open("a") as file:
        file.write("digest:first:first-password\n")
    ctl(site.deployment, "publish", site.root, status=0, **environ)
    zk.add_auth("digest", "first:first-password")


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
    everywhere = [zk.get_acls(path)[0] for path in znodes(zk, site.path)]
    names = {entry.id.id.partition(":")[0] for acl in everywhere for entry in acl}
    assert names == {"operator", "db", "other", "front"}
    assert zk.get(f"{site.path}/{DB}/.acl")[0].decode().count("digest:other:") == 1


def test_what_is_reset_is_recorded_again(zk: KazooClient, site: Site, containers: Containers) -> None:
    """What agents may not make stays: beside containers, without any, and of one host."""
    site.ctl("publish")
    agents = start_all(site, containers)
    are_ready(agents)
    ready = f"{site.path}/status/global/db/daemon/ready"
    before = zk.exists(ready).czxid
    site.ctl("reset", "--force", "--yes")
    eventually(
        lambda: (stat := zk.exists(ready)) and stat.czxid > before and stat.children_count,
        "the registrar has made it again",
    )
    for agent in agents.values():
        agent.end()
    places = [f"{site.path}/{service}/.containers" for service in agents]
    places += [f"{site.path}/status/{scope}/daemon/ready" for scope in ("db1/db", "web1/web", "global/web")]
    eventually(lambda: not any(map(zk.get_children, places)), "nobody is there")
    out, _ = site.ctl("reset", "--host=web1", "--yes")
    assert "removed the records of web1: " in out
    # What publishing has made is no record.
    assert site.ctl("reset", "--host=web1", "--yes")[0] == "there are no records of web1\n"
    site.ctl("reset", "--yes")
    assert zk.get_children(f"{site.path}/status/global/db") == []
    are_ready(start_all(site, containers))
    assert world(zk, site.path) == []


def test_a_snapshot_is_restored_with_its_acls(
    zk: KazooClient, site: Site, containers: Containers, tmp_path: Path
) -> None:
    """In an ensemble that has lost everything: no secret stands open there for a moment."""
    file = str(tmp_path / "site.tar")
    site.ctl("publish")
    site.ctl("adopt", "db/sync")
    planned = {path: zk.get_acls(path)[0] for path in znodes(zk, site.path)}
    site.ctl("snapshot", file)
    zk.delete(site.path, recursive=True)
    _, err = site.ctl("restore", file, name="web", status=77)
    assert "not that of digest:operator" in err
    assert zk.exists(site.path) is None
    site.ctl("restore", file)
    found = {path: zk.get_acls(path)[0] for path in znodes(zk, site.path)}
    # Every service may read the floor, as it may read the list of what is in the deployment.
    assert found.pop(f"{site.path}/.token_floor") == planned[site.path]
    assert found == planned
    assert "as in" in site.ctl("restore", file)[0]
    are_ready(start_all(site, containers))


def test_a_record_that_is_none_is_not_followed(zk: KazooClient, site: Site) -> None:
    """Nothing is created then; a publication mends it."""
    site.ctl("publish")
    zk.set(f"{site.path}/.acl", b'{"operator": "world:anyone"}')
    _, err = site.ctl("set", "new", "value", status=65)
    assert f"acl: {site.path}/.acl: " in err and "publish a directory with an acl.yml" in err
    assert not zk.exists(f"{site.path}/variables/new")
    site.ctl("publish")
    site.ctl("set", "new", "value")


def test_a_service_that_was_removed_can_come_back(
    zk: KazooClient, site: Site, containers: Containers
) -> None:
    """Nothing of it is left, and the next publication makes what its agents need."""
    site.ctl("publish")
    site.ctl("remove", DB, "--yes", "--force")  # Others depend on it.
    assert zk.get_children(f"{site.path}/status/global") == ["front", "web"]
    assert zk.exists(f"{site.path}/infra") is None
    site.ctl("publish")
    are_ready({DB: containers.start(DB, "db1", KOLLA_ZK_AUTH_FILE=site.auth("db"), **MORE)})


def test_a_host_that_is_not_planned_is_named(site: Site, containers: Containers) -> None:
    site.ctl("publish")
    agent = containers.start(DB, "h9", KOLLA_ZK_AUTH_FILE=site.auth("db"))
    assert agent.ends() == 77
    lacks = f"the ACL of {site.path}/status lacks the right c (create)"
    reason = f"{site.path}/status/h9 can't be created: NoAuthError: {lacks}; connected as digest:db: {GRANT}"
    assert agent.ending["reason"] == reason


def test_the_acl_of_the_environment_wins(zk: KazooClient, site: Site, containers: Containers) -> None:
    site.ctl("publish")
    given = {
        "KOLLA_ZK_AUTH_FILE": site.auth("db"),
        "KOLLA_ZK_ACL": f"{identity('operator')}:cdrwa,auth::cdrw",
    }
    are_ready({DB: containers.start(DB, "db1", **given)})
    acl = zk.get_acls(f"{site.path}/status/global/db/sync")[0]
    assert [entry.id.id.partition(":")[0] for entry in acl] == ["operator", "db"]


@pytest.mark.parametrize(
    ("words", "what", "node", "right"),
    [
        (["get", "region"], "region can't be read", "/region", "r (read)"),
        (["set", "region", "two"], "region can't be written", "/region", "w (write)"),
        (["set", "new", "1"], "new can't be created", "", "c (create)"),
        (["unset", "region", "--force"], "region can't be deleted", "", "d (delete)"),
    ],
    ids=["read", "write", "create", "delete"],
)
def test_an_operator_who_is_denied_something_is_told_which_right_is_missing(
    zk: KazooClient, site: Site, words: Sequence[str], what: str, node: str, right: str
) -> None:
    """In the ACL of which znode; and as whom they are connected."""
    site.ctl("publish")
    variables = f"{site.path}/variables"
    before, _ = zk.get_acls(variables + node)
    may_read = right != "r (read)"
    rights = [make_digest_acl("operator", "operator-password", read=may_read, admin=True)]
    zk.set_acls(variables + node, rights)
    acl = "its ACL" if node else f"the ACL of {variables}"
    _, err = site.ctl(*words, status=77)
    assert err == (
        f"kolla_mesos_ctl: {variables}/{what}: NoAuthError: {acl} lacks the right {right};"
        f" connected as digest:operator: {GRANT}\n"
    )
    zk.set_acls(variables + node, before)
