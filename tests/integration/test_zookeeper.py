"""The servers that the tests stand on do what their names say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.waiting import eventually
from tests.zookeeper import Ensemble, Server, free_port


def test_no_port_is_given_twice() -> None:
    """A server that a test has killed would find its port taken."""
    assert len({free_port() for _ in range(500)}) == 500


def test_a_killed_server_comes_back_with_its_data(
    zookeeper: Server, zk: KazooClient, deployment: Deployment
) -> None:
    """What was written before kill -9 is there after the restart, on the same port."""
    zk.create(f"{deployment.path}/kept", b"value")
    zookeeper.kill()
    assert zookeeper.mode == ""
    zookeeper.start()
    assert zk.retry(zk.get, f"{deployment.path}/kept")[0] == b"value"


def test_a_frozen_server_answers_nobody_until_it_is_thawed(zookeeper: Server) -> None:
    """SIGSTOP leaves the port open and the server mute."""
    zookeeper.freeze()
    assert zookeeper.ask("ruok", seconds=0.5) == ""
    zookeeper.thaw()
    assert eventually(lambda: zookeeper.ask("ruok"), "the server answers") == "imok"


def test_requests_are_counted(zookeeper: Server, zk: KazooClient) -> None:
    """Ten reads of a client show in the server's own count."""
    before = zookeeper.packets()
    for _ in range(10):
        zk.exists("/")
    assert zookeeper.packets() - before >= 10


def test_the_ensemble_outlives_its_leader(
    ensemble: Ensemble, ensemble_zk: KazooClient, ensemble_deployment: Deployment
) -> None:
    """Two of three elect a new leader, and go on serving."""
    old = ensemble.leader
    old.kill()
    eventually(lambda: any(server.mode == "leader" for server in ensemble.servers), "a new leader")
    ensemble_zk.retry(ensemble_zk.create, f"{ensemble_deployment.path}/after", b"")
    assert ensemble.leader is not old


def test_a_follower_that_is_cut_off_serves_until_it_notices_and_comes_back(ensemble: Ensemble) -> None:
    """A silent link: still a follower at first, then none, and a follower again once the link is back."""
    follower = ensemble.followers[0]
    ensemble.cut(follower)
    assert follower.mode == "follower"
    eventually(lambda: follower.mode == "", "the follower gives up its leader")
    ensemble.heal(follower)
    eventually(lambda: follower.mode == "follower", "the follower is back")


def test_a_server_is_no_child_of_the_tests_and_ends_with_them(tmp_path: Path) -> None:
    """Tests that count or end their own children don't meet it; kill -9 of a test run leaves none behind."""
    script = (
        "import psutil, sys, time; from pathlib import Path; from tests.zookeeper import Process\n"
        "process = Process(['sleep', '1000'], Path(sys.argv[1]))\n"
        "process.launch()\n"
        "print(process.pid, len(psutil.Process().children()), flush=True)\n"
        "time.sleep(1000)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, children = map(int, run.stdout.readline().split())
        assert psutil.pid_exists(pid)
        assert children == 0
        run.kill()
    eventually(lambda: not psutil.pid_exists(pid), "it is gone")
