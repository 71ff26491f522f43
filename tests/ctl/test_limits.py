"""Every subcommand ends within its limit, whenever ZooKeeper stops answering."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Callable

import pytest

from kolla_mesos_start.ctl.cli import SUBCOMMANDS
from tests.conftest import Deployment
from tests.support.publishing import write_files
from tests.support.tap import Tap, read_packet
from tests.support.tool import ctl, run_ctl
from tests.support.zookeeper import Server

# The words of each subcommand that asks ZooKeeper; {} is a directory with all that they need.
WORDS = {
    "diff": "{}/site",
    "publish": "{}/site",
    "status": "",
    "explain": "",
    "wait": "--timeout 2.5",
    "events": "--follow",
    "timeline": "",
    "metrics": "--once",
    "graph": "",
    "restart": "web",
    "rerun": "web/sync",
    "adopt": "web/sync",
    "elect": "web",
    "get": "size",
    "set": "size 2",
    "unset": "size",
    "remove": "web --yes",
    "reset": "--yes",
    "snapshot": "{}/out.tar",
    "restore": "{}/saved.tar --deployment other",
    "up": "{}/site --deployment third --once --timeout 3",
}
WITHOUT_ZOOKEEPER = {"validate", "schema", "manifests", "import", "completion"}
DEFINITION = """\
commands: {sync: {command: "true", run_once: true}}
service: {daemon: {command: "sleep 600", ready: {alive: 0.1}}}
"""


class Mute(Tap):
    """Passes on so many replies of the server, over all connections, and then none; connections stay open.

    With `greets` each new connection still gets a session.
    """

    def __init__(self, server: Server, replies: int, *, greets: bool = False) -> None:
        self._left, self._greets = replies, greets
        super().__init__(server, "", lambda: None)

    def _pumps(self) -> Sequence[Callable[[socket.socket, socket.socket], None]]:
        return self._ask, self._reply

    def _reply(self, client: socket.socket, server: socket.socket) -> None:
        is_greeting = self._greets
        with suppress(OSError):
            while packet := read_packet(server):
                if self._left > 0 or is_greeting:
                    client.sendall(packet)
                    self._left -= not is_greeting
                is_greeting = False
        client.close()


def test_each_subcommand_is_known_here() -> None:
    assert WORDS.keys() | WITHOUT_ZOOKEEPER == {each.name for each in SUBCOMMANDS}


@pytest.mark.parametrize(("replies", "greets"), [(0, False), (1, False), (4, False), (5, False), (2, True)])
def test_each_subcommand_ends_when_zookeeper_stops_answering(
    zookeeper: Server, deployment: Deployment, tmp_path: Path, replies: int, greets: bool
) -> None:
    """With one line that names the servers."""
    write_files(tmp_path / "site", variables_yml="size: 1", services__web__definition_yml=DEFINITION)
    ctl(deployment, "publish", tmp_path / "site")
    ctl(deployment, "snapshot", tmp_path / "saved.tar")

    def run(name: str) -> str:
        """What is wrong with the end of one."""
        tap = Mute(zookeeper, replies, greets=greets)
        words = WORDS[name].format(tmp_path).split()
        begun = time.monotonic()
        done = run_ctl(deployment, name, *words, KOLLA_ZK_HOSTS=tap.hosts, KOLLA_ZK_CONNECT_TIMEOUT="2.5")
        tap.close()
        print(f"{name:10} {done.returncode} after {time.monotonic() - begun:.1f} s: {done.stderr}")
        causes = [line for line in done.stderr.splitlines() if f" ZooKeeper at {tap.hosts} within" in line]
        is_right = done.returncode in (69, 75) and len(causes) == 1
        return "" if is_right else f"{name} {done.returncode}: {done.stdout}{done.stderr}"

    with ThreadPoolExecutor(len(WORDS)) as pool:
        assert not [*filter(None, pool.map(run, WORDS))]


def test_a_deployment_that_is_not_named_is_asked_for_in_time(
    zookeeper: Server, deployment: Deployment
) -> None:
    """The existing ones are listed only if the server answers."""
    tap = Mute(zookeeper, 1)
    done = run_ctl(deployment, "status", KOLLA_ZK_HOSTS=tap.hosts, KOLLA_DEPLOYMENT="")
    tap.close()
    assert done.returncode == 64
    assert done.stderr.endswith("the first part of KOLLA_APP_ID\n")
