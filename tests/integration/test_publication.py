"""Publications are atomic: one at a time, all of it at one moment, or marked until all of it is there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kolla_mesos_start import settings
from kolla_mesos_start.operator.ensemble import connection, publication
from kolla_mesos_start.operator.ensemble.connection import OperatorClient
from kolla_mesos_start.operator.ensemble.publication import Busy, LockLost, ZnodeChange
from kolla_mesos_start.tree.publication import Mark
from kolla_mesos_start.tree.znodes import Znodes
from tests.agents import Containers
from tests.conftest import Deployment
from tests.publishing import write_files
from tests.tool import TOOL, ctl, environ, run_ctl, tool
from tests.waiting import LIMIT, eventually

CONF = "{{ one }} {{ two }}"
TASK = "commands: {{render: {{command: 'true', files: {{conf: {{dest: {}}}}}}}}}\n"
LARGE = 12  # values of 100 kB each: more than one transaction holds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A service that renders two variables."""
    return write_files(
        tmp_path / "site",
        variables_yml="one: a\ntwo: a\n",
        services__svc__definition_yml=TASK.format(tmp_path / "conf"),
        services__svc__files__conf=CONF,
    )


def make_large(root: Path) -> None:
    """Add so much that it takes several transactions."""
    for number in range(LARGE):
        write_files(root, **{f"services__svc__variables__v{number}": f"{number}" * 100_000})


@pytest.fixture
def client(deployment: Deployment) -> Iterator[OperatorClient]:
    """The operator's connection."""
    found = connection.connect(
        settings.parse(
            {
                "KOLLA_APP_ID": f"/{deployment.id}/tool",
                "KOLLA_ZK_HOSTS": deployment.hosts,
                "KOLLA_SYSTEM_PREFIX": deployment.prefix,
            }
        )
    )
    yield found
    connection.close(found)


def znodes_of(deployment: Deployment) -> Znodes:
    return Znodes(deployment.prefix, deployment.id, "", "")


def mark_of(zk: KazooClient, deployment: Deployment) -> Mark:
    return Mark(**json.loads(zk.get(f"{deployment.path}/.publication")[0]))


def leave_unfinished(zk: KazooClient, deployment: Deployment, what: str = "publication") -> None:
    """The mark of a publication that was killed."""
    zk.set(f"{deployment.path}/.publication", Mark(what, "root on h", "12:00", None).encoded())


WRITES = [["set", "one", "b"], ["unset", "one"], ["publish", "ROOT"], ["remove", "svc"], ["reset"]]

# -- the lock -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", WRITES)
def test_the_second_one_waits_and_names_the_first(
    deployment: Deployment, client: OperatorClient, root: Path, words: list[str]
) -> None:
    ctl(deployment, "publish", str(root), "--no-validate")
    answer = {"unset": ["--force"], "remove": ["--yes"], "reset": ["--yes"]}.get(words[0], [])
    given = [str(root) if word == "ROOT" else word for word in words] + answer
    with publication.locked(client, znodes_of(deployment)):
        run = subprocess.Popen(
            [sys.executable, str(TOOL), *given], env=environ(deployment), stderr=subprocess.PIPE, text=True
        )
        assert run.stderr is not None
        said = run.stderr.readline()
        assert said.startswith("kolla_mesos_ctl: waiting for the publication by ")
        assert " since " in said and "its session expires within" in said
        assert run.poll() is None
    with run:
        assert run.wait(LIMIT) == 0


def test_what_was_published_meanwhile_is_removed_too(
    deployment: Deployment, client: OperatorClient, root: Path, zk: KazooClient
) -> None:
    """Nothing is left of the service."""
    ctl(deployment, "publish", str(root))
    line = [sys.executable, str(TOOL), "remove", "svc", "--yes"]
    with publication.locked(client, znodes_of(deployment)):
        run = subprocess.Popen(line, env=environ(deployment), stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None and "waiting for the publication" in run.stderr.readline()
        zk.create(f"{deployment.path}/svc/variables/three", b"c", makepath=True)
    with run:
        assert run.wait(LIMIT) == 0
    assert not zk.exists(f"{deployment.path}/svc")


def test_it_gives_up_after_a_while(deployment: Deployment, client: OperatorClient, zk: KazooClient) -> None:
    """With 75, and leaves nothing in the queue."""
    znodes = znodes_of(deployment)
    with publication.locked(client, znodes):
        with (
            pytest.raises(Busy, match=r"the publication by .* since"),
            publication.locked(zk, znodes, limit=0.2),
        ):
            pass
        assert len(zk.get_children(znodes.publication)) == 1
    assert Busy.status == 75
    with publication.locked(zk, znodes, limit=0.2):
        pass


def test_ctrl_c_releases_the_lock_at_once(deployment: Deployment, root: Path, zk: KazooClient) -> None:
    ctl(deployment, "publish", str(root))
    make_large(root)
    run = subprocess.Popen([sys.executable, str(TOOL), "publish", str(root)], env=environ(deployment))
    mark = f"{deployment.path}/.publication"
    eventually(lambda: zk.get_children(mark), "it has the lock", every=0.001)
    run.send_signal(signal.SIGINT)
    assert run.wait(LIMIT) in (0, 130)
    assert zk.get_children(mark) == []


def test_who_has_lost_the_lock_writes_nothing_more(
    deployment: Deployment, client: OperatorClient, zk: KazooClient
) -> None:
    """Its session may have expired in an outage, and somebody else be publishing."""
    path = f"{deployment.path}/variables"
    with pytest.raises(LockLost), publication.locked(client, znodes_of(deployment)) as lock:
        (contender,) = zk.get_children(f"{deployment.path}/.publication")
        zk.delete(f"{deployment.path}/.publication/{contender}")
        lock.publish([ZnodeChange(path)], {})
    assert not zk.exists(path)


def test_two_publications_are_never_mixed(deployment: Deployment, tmp_path: Path, zk: KazooClient) -> None:
    """Of two directories at the same time one is there in the end, whole."""
    roots = [
        write_files(
            tmp_path / side,
            **{f"variables__v{n}": side for n in range(20)},
            services__svc__definition_yml=f"commands: {{{side}: {{command: 'true'}}}}",
        )
        for side in ("left", "right")
    ]
    for _ in range(3):
        runs = [
            subprocess.Popen([sys.executable, str(TOOL), "publish", str(root)], env=environ(deployment))
            for root in roots
        ]
        assert [run.wait(LIMIT) for run in runs] == [0, 0]
        values = {zk.get(f"{deployment.path}/variables/v{n}")[0] for n in range(20)}
        (value,) = values
        assert list(json.loads(zk.get(f"{deployment.path}/svc")[0])["commands"]) == [value.decode()]


# -- the mark -------------------------------------------------------------------------------------


def test_a_small_publication_takes_place_at_one_moment(
    deployment: Deployment, root: Path, zk: KazooClient
) -> None:
    """What --prune removes too."""
    ctl(deployment, "publish", str(root))
    write_files(root, variables_yml="one: b\n", services__svc__variables__two="b")
    ctl(deployment, "publish", str(root), "--prune")
    paths = ("variables/one", "svc/variables/two", ".publication")
    zxids = {path: zk.get(f"{deployment.path}/{path}")[1].mzxid for path in paths}
    zxids["variables"] = zk.get(f"{deployment.path}/variables")[1].pzxid
    assert len(set(zxids.values())) == 1, zxids
    assert mark_of(zk, deployment).finished


def test_a_publication_that_was_killed_is_reported_until_it_is_repeated(
    deployment: Deployment, root: Path, zk: KazooClient
) -> None:
    ctl(deployment, "publish", str(root))
    make_large(root)
    write_files(root, variables_yml="one: b\ntwo: b\n")
    run = subprocess.Popen(
        [sys.executable, str(TOOL), "publish", str(root)],
        env=environ(deployment, KOLLA_ZK_SESSION_TIMEOUT="4"),
    )
    eventually(lambda: mark_of(zk, deployment).finished is None, "it has begun", every=0.001)
    run.kill()
    run.wait()
    mark = f"{deployment.path}/.publication"
    eventually(lambda: not zk.get_children(mark), "its session has expired")
    problem = "has not finished: publish again"
    assert problem in ctl(deployment, "status", status=1).stdout.splitlines()[0]
    first = ctl(deployment, "explain", status=1).stdout.splitlines()[0]
    assert first.startswith("ROOT CAUSE  publication begun at ") and problem in first
    assert problem in ctl(deployment, "diff", str(root), status=1).stderr
    assert problem in ctl(deployment, "wait", "--timeout", "60", status=1).stderr
    assert "note: an earlier publication begun at " in ctl(deployment, "publish", str(root)).stderr
    assert mark_of(zk, deployment).finished
    assert "not finished" not in run_ctl(deployment, "status").stdout
    ctl(deployment, "diff", str(root))


def test_another_directory_does_not_hide_it(deployment: Deployment, zk: KazooClient, tmp_path: Path) -> None:
    """It stays unfinished until its services are published again, or removed."""
    for name in ("big", "small"):
        publish_directory(deployment, tmp_path / name, name, "1")
    mark = Mark("publication", "root on h", "12:00", None, ("big",))
    zk.set(f"{deployment.path}/.publication", mark.encoded())
    said = publish_directory(deployment, tmp_path / "small", "small", "2")
    assert "publication begun at 12:00 by root on h has not finished: publish again" in said
    assert "(it has changes of big)" in tool(deployment, "explain", status=1)
    publish_directory(deployment, tmp_path / "big", "big", "1")
    assert mark_of(zk, deployment).finished is not None


def publish_directory(deployment: Deployment, root: Path, service: str, value: str) -> str:
    """Publish a directory with one service; what the tool prints."""
    place = root / "services" / service
    write_files(place, definition_yml="commands: {a: {command: 'true'}}", variables__x=value)
    return tool(deployment, "publish", str(root))


def test_a_starting_container_waits_for_a_publication(
    deployment: Deployment, root: Path, zk: KazooClient, containers: Containers, tmp_path: Path
) -> None:
    """It sees nothing of what was there before."""
    ctl(deployment, "publish", str(root))
    leave_unfinished(zk, deployment)
    agent = containers.start("svc")
    agent.says("publication begun at 12:00 by root on h has not finished; waiting for at most 30 s")
    zk.set(f"{deployment.path}/variables/one", b"b")
    assert agent.running
    ctl(deployment, "publish", str(write_files(root, variables_yml="one: b\ntwo: b\n")))
    assert agent.ends() == 0
    assert (tmp_path / "conf").read_text() == "b b"
    assert "going on" not in agent.said


def test_a_start_is_not_held_up_for_ever(
    deployment: Deployment, root: Path, zk: KazooClient, containers: Containers, tmp_path: Path
) -> None:
    """Nobody may be there to publish again."""
    ctl(deployment, "publish", str(root))
    leave_unfinished(zk, deployment)
    agent = containers.start("svc")
    assert agent.ends() == 0
    assert agent.said.count("publish again; going on with what is there") == 1
    assert (tmp_path / "conf").read_text() == "a a"


def test_what_a_newer_definition_does_not_need_is_not_missed(
    deployment: Deployment, root: Path, zk: KazooClient, containers: Containers, tmp_path: Path
) -> None:
    """A container that has read the older one begins again, instead of ending with 78."""
    write_files(root, services__other__definition_yml="commands: {go: {command: 'true'}}\n")
    task = TASK.replace("{command", "{dependencies: [other/go], command")
    write_files(root, services__svc__definition_yml=task.format(tmp_path / "conf"))
    ctl(deployment, "publish", str(root))
    agent = containers.start("svc")
    agent.says("svc/render waits for other/go")
    (root / "services/svc/files/conf").rename(root / "services/svc/files/new")
    newer = task.format(tmp_path / "new").replace("conf:", "new:")
    write_files(root, services__svc__definition_yml=newer)
    ctl(deployment, "publish", str(root), "--prune")
    assert containers.start("other").ends() == 0
    assert agent.ends() == 0
    assert "has changed since it was read: beginning again" in agent.said
    assert (tmp_path / "new").read_text() == "a a"


def test_running_daemons_wait_for_a_publication(
    deployment: Deployment, root: Path, zk: KazooClient, containers: Containers, tmp_path: Path
) -> None:
    """Their files never hold a part of it."""
    daemon = {
        "command": "sleep 600",
        "ready": {"alive": 0},
        "on_change": {"command": "true"},
        "files": {"conf": {"dest": str(tmp_path / "conf")}},
    }
    write_files(root, services__svc__definition_yml=json.dumps({"service": {"daemon": daemon}}))
    ctl(deployment, "publish", str(root))
    agent = containers.start("svc")
    eventually(lambda: agent.health("--ready").returncode == 0, "it is ready")
    leave_unfinished(zk, deployment)
    zk.set(f"{deployment.path}/variables/one", b"b")
    agent.says("publication begun at 12:00 by root on h has not finished; waiting for at most 30 s")
    assert (tmp_path / "conf").read_text() == "a a"
    ctl(deployment, "publish", str(write_files(root, variables_yml="one: b\ntwo: b\n")))
    eventually(lambda: (tmp_path / "conf").read_text() != "a a", "the files are refreshed")
    assert (tmp_path / "conf").read_text() == "b b"


def test_a_snapshot_of_a_part_says_so(
    deployment: Deployment, root: Path, zk: KazooClient, tmp_path: Path
) -> None:
    ctl(deployment, "publish", str(root))
    file = str(tmp_path / "site.tar")
    assert "has not finished" not in ctl(deployment, "snapshot", file).stderr
    leave_unfinished(zk, deployment)
    said = ctl(deployment, "snapshot", file).stderr
    assert "publication begun at 12:00 by root on h has not finished" in said
    assert f"{file} may contain only a part of it" in said


# -- a restore that was killed --------------------------------------------------------------------


def test_no_publication_passes_for_the_rest_of_a_restore(
    deployment: Deployment, root: Path, zk: KazooClient, tmp_path: Path
) -> None:
    """What is done may not be recorded yet: one-time commands would run again."""
    ctl(deployment, "publish", str(root))
    file = str(tmp_path / "site.tar")
    ctl(deployment, "snapshot", file)
    leave_unfinished(zk, deployment, "restore")
    said = ctl(deployment, "publish", str(root), status=1).stderr
    assert "restore begun at 12:00 by root on h has not finished" in said
    assert "nothing was changed" in said
    assert mark_of(zk, deployment).finished is None
    ctl(deployment, "restore", file)
    ctl(deployment, "publish", str(root))


def test_a_reset_replaces_a_restore_that_was_killed(
    deployment: Deployment, root: Path, zk: KazooClient
) -> None:
    """For those who have lost the snapshot: then nothing is done, and what is published may be a part."""
    ctl(deployment, "publish", str(root))
    leave_unfinished(zk, deployment, "restore")
    said = ctl(deployment, "reset", "--yes").stdout
    assert "publish again" in said
    assert mark_of(zk, deployment)[0::3] == ("publication", None)
    ctl(deployment, "publish", str(root))
    assert mark_of(zk, deployment).finished
