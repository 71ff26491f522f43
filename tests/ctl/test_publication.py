"""Publications are atomic: one at a time, all of it at one moment, or marked until all of it is there."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.zk import publication
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.publication import Busy, LockLost, ZnodeChange
from kolla_mesos_start.tree.codec import PublicationMark
from tests.conftest import Deployment
from tests.support import sites
from tests.support.agents import Containers
from tests.support.publishing import write_files
from tests.support.sessions import kept_alive
from tests.support.tool import operator_client, run_ctl
from tests.support.waiting import LIMIT, eventually

TASK = "commands: {{render: {{command: 'true', files: {{conf: {{dest: {}}}}}}}}}\n"
LARGE = {f"services__svc__variables__v{n}": f"{n}" * 100_000 for n in range(12)}
"""Files that do not fit into one transaction."""
UNFINISHED = "begun at 12:00 by root on h has not finished"


class Site(sites.Site):
    """The service `svc` renders two variables into `conf`."""

    @property
    def conf(self) -> str:
        return (self.place / "conf").read_text()

    @property
    def lock(self) -> list[str]:
        """Those who have the lock, or wait for it."""
        found: list[str] = self.zk.get_children(f"{self.path}/.publication")
        return found

    @property
    def mark(self) -> PublicationMark:
        return PublicationMark(**json.loads(self.zk.get(f"{self.path}/.publication")[0]))

    def leave_unfinished(self, what: str = "publication", services: tuple[str, ...] = ()) -> None:
        """Write the mark of a publication that was killed."""
        mark = PublicationMark(what, "root on h", "12:00", None, services)
        self.zk.set(f"{self.path}/.publication", mark.encoded())


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    site = Site(deployment, zk, containers, tmp_path)
    site.write(
        variables_yml="one: a\ntwo: a\n",
        services__svc__definition_yml=TASK.format(tmp_path / "conf"),
        services__svc__files__conf="{{ one }} {{ two }}",
    )
    return site


@pytest.fixture
def client(zk: KazooClient, deployment: Deployment) -> Iterator[OperatorClient]:
    """The operator's connection."""
    found = operator_client(zk, deployment.prefix, deployment.id)
    yield found
    found.close()


# -- the lock -------------------------------------------------------------------------------------


@contextmanager
def waiting(site: Site, client: OperatorClient, *words: str | Path) -> Iterator[None]:
    """The tool waits for another publication meanwhile, and names it; afterwards it ends well."""
    # The client sends no pings while it is not used.
    with kept_alive(site.deployment.hosts, client.session.id), publication.locked(client, site.znodes):
        run = site.begin(*words)
        assert run.stderr is not None
        said = run.stderr.readline()
        while "connecting to ZooKeeper at" in said:  # It takes long on a busy machine.
            said = run.stderr.readline()
        assert said.startswith("kolla_mesos_ctl: waiting for the publication by ")
        assert " since " in said and "its session expires within" in said
        yield
        assert run.poll() is None
    with run:
        assert run.wait(LIMIT) == 0


@pytest.mark.parametrize(
    "words", ["set one b", "unset one --force", "publish", "remove svc --yes", "reset --yes"]
)
def test_a_second_writer_waits_for_the_first_and_names_it(
    site: Site, client: OperatorClient, words: str
) -> None:
    site.publish("--no-validate")
    with waiting(site, client, *words.split(), *([site.root] if words == "publish" else [])):
        pass


def test_remove_also_removes_variables_published_while_it_waits(site: Site, client: OperatorClient) -> None:
    site.publish()
    with waiting(site, client, "remove", "svc", "--yes"):
        site.zk.create(f"{site.path}/svc/variables/three", b"c", makepath=True)
    assert not site.zk.exists(f"{site.path}/svc")


def test_waiting_for_the_lock_has_a_limit(site: Site, client: OperatorClient) -> None:
    """The status is 75, and nothing is left in the queue."""
    by_another = pytest.raises(Busy, match=r"the publication by .* since")
    other = operator_client(site.zk, site.deployment.prefix, site.deployment.id)
    with publication.locked(client, site.znodes):
        with by_another, publication.locked(other, site.znodes, limit=0.2):
            pass
        other.close()
        assert len(site.lock) == 1
    assert Busy.status == 75
    with publication.locked(client, site.znodes, limit=0.2):
        pass


def test_ctrl_c_releases_the_lock_at_once(site: Site) -> None:
    site.publish()
    site.write(**LARGE)
    with site.begin("publish", site.root) as run:
        eventually(lambda: site.lock, "it has the lock", every=0.001)
        run.send_signal(signal.SIGINT)
        # It may be over by then: Python itself ends at an interruption of its own end.
        assert run.wait(LIMIT) in (0, 130, -signal.SIGINT)
    assert site.lock == []


def test_a_lost_lock_stops_all_writes(site: Site, client: OperatorClient) -> None:
    """After an outage in which the session has expired, someone else may be publishing."""
    path = f"{site.path}/variables"
    with pytest.raises(LockLost), publication.locked(client, site.znodes) as lock:
        (contender,) = site.lock
        site.zk.delete(f"{site.path}/.publication/{contender}")
        lock.publish([ZnodeChange(path)], {})
    assert not site.zk.exists(path)


def test_two_publications_are_never_mixed(site: Site) -> None:
    """Of two directories that are published at the same time, one is there in the end, whole."""
    roots = [
        write_files(
            site.place / side,
            **{f"variables__v{n}": side for n in range(20)},
            services__svc__definition_yml=f"commands: {{{side}: {{command: 'true'}}}}",
        )
        for side in ("left", "right")
    ]
    for _ in range(3):
        runs = [site.begin("publish", root) for root in roots]
        for run in runs:
            run.communicate(timeout=LIMIT)
        assert [run.returncode for run in runs] == [0, 0]
        (value,) = {site.zk.get(f"{site.path}/variables/v{n}")[0] for n in range(20)}
        assert list(json.loads(site.zk.get(f"{site.path}/svc")[0])["commands"]) == [value.decode()]


# -- the mark -------------------------------------------------------------------------------------


def test_a_small_publication_takes_place_at_one_moment(site: Site) -> None:
    """Removals by --prune included."""
    site.publish()
    site.publish("--prune", variables_yml="one: b\n", services__svc__variables__two="b")
    paths = ("variables/one", "svc/variables/two", ".publication")
    zxids = {path: site.zk.get(f"{site.path}/{path}")[1].mzxid for path in paths}
    zxids["variables"] = site.zk.get(f"{site.path}/variables")[1].pzxid
    assert len(set(zxids.values())) == 1, zxids
    assert site.mark.finished


def test_a_killed_publication_is_reported_until_it_is_repeated(site: Site) -> None:
    site.publish()
    site.write(**LARGE, variables_yml="one: b\ntwo: b\n")
    with site.begin("publish", site.root, KOLLA_ZK_SESSION_TIMEOUT="4") as run:
        eventually(lambda: site.mark.finished is None, "it has begun", every=0.001)
        run.kill()
    eventually(lambda: not site.lock, "its session has expired")
    problem = "has not finished: publish again"
    assert problem in site.ctl("status", status=1).stdout.splitlines()[0]
    first = site.ctl("explain", status=1).stdout.splitlines()[0]
    assert first.startswith("ROOT CAUSE  publication begun at ") and problem in first
    assert problem in site.ctl("diff", site.root, status=1).stderr
    assert problem in site.ctl("wait", "--timeout", "60", status=1).stderr
    assert "note: an earlier publication begun at " in site.publish().stderr
    assert site.mark.finished
    assert "not finished" not in run_ctl(site.deployment, "status").stdout
    site.ctl("diff", site.root)


def test_publishing_another_directory_does_not_finish_it(site: Site) -> None:
    """It stays unfinished until its own services are published again."""
    small, big = (
        write_files(site.place / name / "services" / name, definition_yml="commands: {a: {command: a}}")
        for name in ("small", "big")
    )
    for service in (big, small):
        site.ctl("publish", service.parents[1])
    site.leave_unfinished(services=("big",))
    write_files(small, variables__x="2")
    assert f"publication {UNFINISHED}: publish again" in site.ctl("publish", small.parents[1]).stderr
    assert "(it has changes of big)" in site.ctl("explain", status=1).stdout
    site.ctl("publish", big.parents[1])
    assert site.mark.finished


def test_a_starting_container_waits_for_a_publication(site: Site) -> None:
    """It reads no older value."""
    site.publish()
    site.leave_unfinished()
    agent = site.start("svc")
    agent.says(f"publication {UNFINISHED}; waiting for at most 30 s")
    site.zk.set(f"{site.path}/variables/one", b"b")
    assert agent.running
    site.publish(variables_yml="one: b\ntwo: b\n")
    assert agent.ends() == 0
    assert site.conf == "b b"
    assert "going on" not in agent.said


def test_a_start_waits_for_an_unfinished_publication_for_a_limited_time(site: Site) -> None:
    site.publish()
    site.leave_unfinished()
    agent = site.start("svc")
    assert agent.ends() == 0
    assert agent.said.count("publish again; continuing with what is published") == 1
    assert site.conf == "a a"


def test_a_container_with_an_outdated_definition_reads_it_again(site: Site) -> None:
    """It does not end with 78 because a file of the older definition is gone."""
    task = TASK.replace("{command", "{dependencies: [other/go], command")
    site.publish(
        services__other__definition_yml="commands: {go: {command: 'true'}}\n",
        services__svc__definition_yml=task.format(site.place / "conf"),
    )
    agent = site.start("svc")
    agent.says("svc/render waits for other/go")
    (site.root / "services/svc/files/conf").rename(site.root / "services/svc/files/new")
    newer = task.format(site.place / "new").replace("conf:", "new:")
    site.publish("--prune", services__svc__definition_yml=newer)
    assert site.start("other").ends() == 0
    assert agent.ends() == 0
    assert "has changed since it was read: beginning again" in agent.said
    assert (site.place / "new").read_text() == "a a"


def test_running_daemons_wait_for_a_publication(site: Site) -> None:
    """Their files never contain only a part of it."""
    files = {"conf": {"dest": str(site.place / "conf")}}
    daemon = {"command": "sleep 600", "ready": {"alive": 0}, "on_change": {"command": "true"}, "files": files}
    site.publish(services__svc__definition_yml=json.dumps({"service": {"daemon": daemon}}))
    agent = site.start("svc")
    eventually(lambda: agent.health("--ready").returncode == 0, "it is ready")
    site.leave_unfinished()
    site.zk.set(f"{site.path}/variables/one", b"b")
    agent.says(f"publication {UNFINISHED}; waiting for at most 30 s")
    assert site.conf == "a a"
    site.publish(variables_yml="one: b\ntwo: b\n")
    eventually(lambda: site.conf != "a a", "the files are refreshed")
    assert site.conf == "b b"


# -- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_warns_of_an_unfinished_publication(site: Site) -> None:
    site.publish()
    file = site.place / "site.tar"
    assert "has not finished" not in site.ctl("snapshot", file).stderr
    site.leave_unfinished()
    said = site.ctl("snapshot", file).stderr
    assert f"publication {UNFINISHED}" in said and f"{file} may contain only a part of it" in said


def test_nothing_is_published_over_an_unfinished_restore(site: Site) -> None:
    """Commands that are done may not be recorded yet, and would run again."""
    site.publish()
    site.ctl("snapshot", site.place / "site.tar")
    site.leave_unfinished("restore")
    said = site.publish(status=1).stderr
    assert f"restore {UNFINISHED}" in said and "nothing was changed" in said
    assert site.mark.finished is None
    site.ctl("restore", site.place / "site.tar")
    site.publish()


def test_a_reset_ends_an_unfinished_restore(site: Site) -> None:
    """For users who have lost the snapshot: nothing is done then, and everything is published again."""
    site.publish()
    site.leave_unfinished("restore")
    assert "publish again" in site.ctl("reset", "--yes").stdout
    assert site.mark[0::3] == ("publication", None)
    site.publish()
    assert site.mark.finished
