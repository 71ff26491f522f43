"""The test servers do what their methods promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble, Server, free_port


def test_no_port_is_returned_twice() -> None:
    assert len({free_port() for _ in range(500)}) == 500


def test_a_killed_server_comes_back_with_its_data(
    zookeeper: Server, zk: KazooClient, deployment: Deployment
) -> None:
    zk.create(f"{deployment.path}/kept", b"value")
    zookeeper.kill()
    assert zookeeper.mode == ""
    zookeeper.start()
    assert zk.retry(zk.get, f"{deployment.path}/kept")[0] == b"value"


def test_a_frozen_server_does_not_answer(zookeeper: Server) -> None:
    zookeeper.freeze()
    assert zookeeper.ask("ruok", seconds=0.5) == ""
    zookeeper.thaw()
    assert eventually(lambda: zookeeper.ask("ruok"), "the server answers") == "imok"


def test_requests_are_counted(zookeeper: Server, zk: KazooClient) -> None:
    before = zookeeper.packets()
    for _ in range(10):
        zk.exists("/")
    assert zookeeper.packets() - before >= 10


def test_the_ensemble_survives_its_leader(
    ensemble: Ensemble, ensemble_zk: KazooClient, ensemble_deployment: Deployment
) -> None:
    old = ensemble.leader
    old.kill()
    eventually(lambda: any(server.mode == "leader" for server in ensemble.servers), "a new leader")
    ensemble_zk.retry(ensemble_zk.create, f"{ensemble_deployment.path}/after", b"")
    assert ensemble.leader is not old


def test_a_follower_that_is_cut_off_still_serves_at_first(ensemble: Ensemble) -> None:
    """And rejoins when the link is back."""
    follower = ensemble.followers[0]
    ensemble.cut(follower)
    assert follower.mode == "follower"
    eventually(lambda: follower.mode == "", "the follower gives up its leader")
    ensemble.heal(follower)
    eventually(lambda: follower.mode == "follower", "the follower is back")


def test_a_server_is_no_child_of_the_tests_but_ends_with_them(tmp_path: Path) -> None:
    script = (
        "import psutil, sys, time; from pathlib import Path; from tests.support.zookeeper import Process\n"
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
