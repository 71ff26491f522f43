"""`snapshot` and `restore`, of deployments in which agents have been at work."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.zk import archive, connection, snapshots, status_records
from kolla_mesos_start.ctl.zk.connection import ChangedMeanwhile
from tests.agent.test_one_time import Site
from tests.conftest import Deployment
from tests.ctl.test_publish import tree
from tests.support.agents import Containers
from tests.support.publishing import publish
from tests.support.tool import ctl

AHEAD = 2**40  # a token
NOT_PUBLISHED = ("status/", ".token_floor")
ROUNDS = int(os.environ.get("ROUNDS", "1"))


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient, containers: Containers, tmp_path: Path) -> Site:
    """The service infra/db, whose commands are `sync`, `host` on each host, and a plain one."""
    site = Site(deployment, zk, containers, tmp_path / "work")
    published(site)
    return site


def published(site: Site, tag: str = "1") -> None:
    commands = {
        "sync": site.once("sync", gate=None),
        "tagged": site.once("tagged", gate=None, generation="{{ tag }}"),
        "host": site.once("host", gate=None, lock="host.$KOLLA_HOSTNAME", run_once="host"),
        "plain": site.plain("plain", gate=None, files={"conf": {"dest": str(site.path / "conf")}}),
    }
    publish(
        site.deployment,
        "infra/db",
        {"commands": commands},
        files={"conf": "size = {{ size }}\n"},
        variables={"size": "1"},
        host_variables={"web1": {"size": "2"}},
        shared={"tag": tag, "secret": "s3cret\n"},
    )


def names(site: Site) -> list[str]:
    """The runs of one-time commands so far, as command@host."""
    return [f"{run.command}@{run.host}" for name in ("sync", "tagged", "host") for run in site.runs(name)]


def contents(site: Site) -> dict[str, bytes]:
    """What is published and what is recorded, without what differs from one start to the next."""
    found = tree(site.zk, site.deployment.path)
    return {
        path: data
        for path, data in found.items()
        if not any(each in f"{path}/" for each in ("/detail/", "/.containers/", ".token_floor/"))
    }


def test_what_is_done_survives_into_another_deployment(site: Site, tmp_path: Path) -> None:
    """The prefix is made, as after the loss of an ensemble; each command that was done is passed through."""
    assert site.start("web1").ends() == 0
    before = contents(site)
    file = tmp_path / "site.tar"
    done = ctl(site.deployment, "snapshot", str(file))
    assert f"wrote {file}: 1 service, 5 variables and files; " in done.stdout
    assert "done: db/sync, db/tagged, db/host on web1" in done.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    site.zk.delete(site.deployment.prefix, recursive=True)
    assert "restored" in ctl(site.deployment, "restore", str(file)).stdout
    after = contents(site)
    own = ("status/web1/db/sync", "status/web1/db/tagged")  # Each host's next start writes these.
    kept = {path for path in before if "db/plain" not in path and path not in own}
    assert {path: data for path, data in before.items() if path in kept} == after
    assert "is already as in" in ctl(site.deployment, "restore", str(file)).stdout
    assert [site.start(host).ends() for host in ("web1", "web2")] == [0, 0]
    assert names(site) == ["sync@web1", "tagged@web1", "host@web1", "host@web2"]


def test_tokens_go_on_growing_in_another_ensemble(site: Site, zk: KazooClient, tmp_path: Path) -> None:
    """Whose zxids are smaller than those of the one in which the snapshot was taken."""
    assert site.start("web1").ends() == 0
    token = site.detail("tagged")["token"]
    ahead = 2**40
    detail = zk.get(f"{site.at('tagged')}/detail")[0].replace(b"%d" % token, b"%d" % ahead)
    zk.set(f"{site.at('tagged')}/detail", detail)
    zk.set(f"{site.at('tagged')}/generations/1", b"%d %d" % (ahead, ahead - 1))
    file = str(tmp_path / "site.tar")
    ctl(site.deployment, "snapshot", file)
    zk.delete(site.deployment.path, recursive=True)
    ctl(site.deployment, "restore", file)
    published(site, tag="2")
    assert site.start("web1").ends() == 0
    assert [run.token for run in site.runs("tagged")] == [token, ahead + 1]


def test_an_attempt_that_runs_is_one_without_an_outcome(site: Site, tmp_path: Path) -> None:
    """The next holder learns so, as after the death of an agent."""
    site.publish(sync=site.once())
    agent = site.start()
    site.running()
    file = str(tmp_path / "site.tar")
    assert "db/sync is running, or was interrupted" in ctl(site.deployment, "snapshot", file).stderr
    agent.signal(signal.SIGKILL)
    agent.ends()
    site.zk.delete(site.deployment.path, recursive=True)
    ctl(site.deployment, "restore", file)
    site.let_go()
    assert site.start().ends() == 0
    first, second = site.runs()
    assert (second.previous, second.token > first.token) == ("unfinished", True)


def test_only_what_agents_record_of_a_command_is_saved(site: Site, tmp_path: Path) -> None:
    """Without the znodes of others, and with a last attempt where it is missing: a restore repairs that."""
    ctl(site.deployment, "adopt", "db/sync")
    site.zk.delete(f"{site.at()}/detail")
    for path in ("foreign", "foreign/x", "hosts/web1/foreign"):
        site.zk.create(f"{site.at()}/{path}", makepath=True)
    file, at = tmp_path / "site.tar", "status/global/db/sync"
    ctl(site.deployment, "snapshot", str(file))
    recorded = archive.unpack(file.read_bytes()).recorded
    assert {path for path in recorded if path.startswith(f"{at}/")} == {
        *(f"{at}/{name}" for name in ("detail", "generations", "hosts", "hosts/web1", "lock"))
    }
    assert (recorded[at], recorded[f"{at}/detail"]) == (b"done", b"")
    site.zk.delete(site.deployment.path, recursive=True)
    ctl(site.deployment, "restore", str(file))
    assert site.start("web1").ends() == 0
    assert not site.runs()


def keep_changing(site: Site, over: threading.Event) -> None:
    """Attempts without a pause: those with an odd number succeed, the others have taken that back."""
    detail, mark = (f"{site.at('tagged')}/{name}" for name in ("detail", "generations/1"))
    for number in count(1):
        if over.is_set():
            return
        done = number % 2 == 1
        transaction = site.zk.transaction()
        found = {"attempt": number, "started": 1.0, "token": AHEAD + number}
        transaction.set_data(detail, json.dumps(found).encode())
        transaction.set_data(site.at("tagged"), b"done" if done else b"waiting")
        if done:
            transaction.create(mark, b"1 1")
        else:
            transaction.delete(mark)
        assert not any(isinstance(result, Exception) for result in transaction.commit())


def test_a_command_that_keeps_changing_is_saved_as_it_was_at_one_moment(site: Site, tmp_path: Path) -> None:
    """State, last attempt and mark belong together, although they change while they are read."""
    ctl(site.deployment, "adopt", "db/tagged")
    site.zk.delete(f"{site.at('tagged')}/generations/1")
    over, file, at = threading.Event(), tmp_path / "site.tar", "status/global/db/tagged"
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(keep_changing, site, over)
        try:
            for _ in range(ROUNDS):
                ctl(site.deployment, "snapshot", str(file))
                saved = archive.unpack(file.read_bytes()).recorded
                done = json.loads(saved[f"{at}/detail"])["attempt"] % 2 == 1
                assert (saved[at] == b"done", f"{at}/generations/1" in saved) == (done, done)
        finally:
            over.set()
    writer.result()


def test_an_attempt_between_any_two_readings_does_not_prolong_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a command that is tried again every second, in a deployment that takes longer to read."""
    ctl(site.deployment, "adopt", "db/sync")
    detail, states, readings = f"{site.at()}/detail", status_records.read, count(1)

    def changing(*given: Any) -> Any:
        number = next(readings)
        site.zk.set(detail, json.dumps({"attempt": number, "started": 1.0, "token": number}).encode())
        assert number < 10
        return states(*given)

    monkeypatch.setattr(status_records, "read", changing)
    where = ["--deployment", "site", "--prefix", site.deployment.prefix, "--hosts", site.deployment.hosts]
    cli.run(["snapshot", str(tmp_path / "site.tar"), *where])


def test_what_is_published_is_saved_as_it_was_at_one_moment(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes while it is read is read again, for a limited time."""
    file, stats = str(tmp_path / "site.tar"), connection.stats
    words = ["snapshot", file, "--deployment", "site", "--prefix", site.deployment.prefix]
    rest = [f"{number}" for number in range(3)]

    def publish_more(client: KazooClient, paths: Iterable[str]) -> Any:
        value = rest.pop().encode() if rest else b"last"
        if value != b"last" or keeps_changing:
            site.zk.set(f"{site.deployment.path}/variables/tag", value)
        return stats(client, paths)

    keeps_changing = False
    monkeypatch.setattr(connection, "stats", publish_more)
    cli.run([*words, "--hosts", site.deployment.hosts])
    assert archive.unpack(Path(file).read_bytes()).published["variables/tag"] == b"0"
    keeps_changing = True
    monkeypatch.setattr(snapshots, "PATIENCE", 0.1)
    with pytest.raises(ChangedMeanwhile, match="/site/variables/tag keeps changing"):
        cli.run([*words, "--hosts", site.deployment.hosts])


def clear(site: Site) -> None:
    """Make the deployment absent; shared variables stay."""
    ctl(site.deployment, "reset", "--yes")
    ctl(site.deployment, "remove", "infra/db", "--yes")


def test_an_existing_deployment_is_not_replaced(site: Site, zk: KazooClient, tmp_path: Path) -> None:
    """Neither its services nor its records; afterwards it is as it was, no more and no less."""
    file = str(tmp_path / "site.tar")
    assert site.start("web1").ends() == 0
    before = tree(zk, site.deployment.path)
    ctl(site.deployment, "snapshot", file)
    ctl(site.deployment, "set", "secret", "0th3r")
    found = contents(site)
    refused = ctl(site.deployment, "restore", file, "--yes", status=1).stderr
    assert "exists: remove its services first (infra/db), and reset it; nothing was changed" in refused
    zk.set(f"{site.deployment.path}/infra/db", b"")
    refused = ctl(site.deployment, "restore", file, "--yes", status=1).stderr
    assert "exists: reset it first; done: db/host on web1, db/sync, db/tagged; nothing was" in refused
    zk.set(f"{site.deployment.path}/infra/db", before["infra/db"])
    assert contents(site) == found
    clear(site)
    ctl(site.deployment, "set", "more", "1")
    asked = ctl(site.deployment, "restore", file, status=64).stderr
    assert "remove variables/more, which the snapshot does not contain" in asked and "give --yes" in asked
    ctl(site.deployment, "restore", file, "--yes")
    after = tree(zk, site.deployment.path)
    shared = {path: data for path, data in before.items() if not path.startswith(NOT_PUBLISHED)}
    assert {path: data for path, data in after.items() if not path.startswith(NOT_PUBLISHED)} == shared
    assert site.start("web1").ends() == 0
    assert names(site) == ["sync@web1", "tagged@web1", "host@web1"]


def test_what_is_done_is_not_lost_to_a_container_that_starts(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the znodes of its commands before they are restored."""
    assert site.start("web1").ends() == 0
    file = str(tmp_path / "site.tar")
    ctl(site.deployment, "snapshot", file)
    clear(site)
    record = snapshots._record

    def started(client: KazooClient, *others: Any) -> None:
        site.zk.create(site.at(), b"waiting", makepath=True)
        record(client, *others)

    monkeypatch.setattr(snapshots, "_record", started)
    where = ["--deployment", site.deployment.id, "--prefix", site.deployment.prefix]
    with pytest.raises(ChangedMeanwhile, match="a container has started"):
        cli.run(["restore", file, "--yes", *where, "--hosts", site.deployment.hosts])
    monkeypatch.undo()
    ctl(site.deployment, "reset", "--yes")
    ctl(site.deployment, "restore", file, "--yes")
    assert site.start("web1").ends() == 0
    assert names(site) == ["sync@web1", "tagged@web1", "host@web1"]


def test_nothing_is_told_to_be_restored_that_somebody_else_has_changed(
    site: Site, zk: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another restore, for instance, at the same time."""
    file = str(tmp_path / "site.tar")
    ctl(site.deployment, "snapshot", file)
    clear(site)
    record = snapshots._record

    def recorded(*given: Any) -> None:
        record(*given)
        zk.set(f"{site.deployment.path}/variables/tag", b"9")

    monkeypatch.setattr(snapshots, "_record", recorded)
    where = ["--deployment", "site", "--prefix", site.deployment.prefix, "--hosts", site.deployment.hosts]
    with pytest.raises(ChangedMeanwhile, match="somebody else has changed"):
        cli.run(["restore", file, "--yes", *where])


def test_what_is_wrong_is_named(site: Site, tmp_path: Path) -> None:
    """A file that is none, one that can't be written, a deployment that is not there."""
    nothing = tmp_path / "nothing.tar"
    assert "does not exist" in ctl(site.deployment, "restore", str(nothing), status=66).stderr
    assert "can't be read" in ctl(site.deployment, "restore", str(tmp_path), status=64).stderr
    nothing.write_text("nothing")
    refusal = ctl(site.deployment, "restore", str(nothing), status=65).stderr
    assert refusal.startswith(f"kolla_mesos_ctl: {nothing}: not a tar file")
    assert (
        "can't be written" in ctl(site.deployment, "snapshot", str(tmp_path / "no" / "x"), status=73).stderr
    )
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "link", tmp_path / "pipe"):
        assert "can't be replaced" in ctl(site.deployment, "snapshot", str(place), status=73).stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    file = str(tmp_path / "site.tar")
    assert "'site'" in ctl(site.deployment, "snapshot", file, "--deployment", "siet", status=66).stderr
