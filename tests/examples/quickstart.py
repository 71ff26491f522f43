"""`bin/quickstart --keystone`: the Keystone example, shown to somebody who has never seen it.

What lives here: what it needs before, and what is shown once it is up. The stages are those of
`kolla_mesos_start.operator.up`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.containers import AGENT
from kolla_mesos_start.operator.up import Up, say, short
from tests.examples import openstack
from tests.examples.keystone import Keystone, Users

NAME = "quickstart"
ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
TRY = """
What to try next, in another terminal; this one shows what happens:
  kill {victim}; it is started again, and does not repeat what is done:
    {kill}
  look at a znode, for instance the record of the one-time command:
    {get}
  ask {asked} how it is:
    KOLLA_RUN_DIR={run_dir} {agent} health --ready"""


def main() -> None:
    """Run the example, and exit."""
    parser = argparse.ArgumentParser(prog="bin/quickstart")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    sys.exit(Quickstart(options.directory, stays=not options.once).main())


class Quickstart(Up[Keystone]):
    """Keystone with its servers, in `home`."""

    def __init__(self, home: Path, *, stays: bool) -> None:
        super().__init__(home / "site", NAME, stays=stays)
        self.home = home

    def prepare(self) -> str:
        _check_place(self.directory)
        openstack.install_packages(say)
        self.check_signals()
        return f"{openstack.keystone_environment(self.home / 'cache', say)}:{openstack.SYSTEM_PATH}"

    def deployment(self, client: KazooClient, environ: Mapping[str, str]) -> Keystone:
        return Keystone(self.directory, client, environ, self.prefix, self.name)

    def show_when_up(self, deployment: Keystone) -> None:
        say("a request and its answer")
        for line in self.aside(lambda: list(deployment.request())):
            print(f"  {line}")
        self.show_places(deployment)
        if self.stays:
            print(_directions(deployment))


def _directions(deployment: Keystone) -> str:
    """Commands that show something, as they can be typed."""
    asked, detail = deployment.containers[-1], f"{deployment.path}/status/global/{deployment.once}/detail"
    zkcli = ZKCLI if Path(ZKCLI).exists() else "zkCli.sh"
    return TRY.format(
        victim=deployment.victim.name,
        kill=f"kill -9 {deployment.victim.pid}",
        get=f"{zkcli} -server {deployment.environ['KOLLA_ZK_HOSTS']} get {detail}",
        asked=asked.name,
        run_dir=shlex.quote(short(asked.run_dir)),
        agent=shlex.join(short(Path(word)) for word in AGENT),
    )


def _check_place(directory: Path) -> None:
    """Refuse a directory in which MariaDB or Keystone can't work."""
    if not re.fullmatch(r"[\w./@+-]*", str(directory), re.ASCII):
        raise BadUsage(f"{directory} can't stand in the config files of servers: choose another DIRECTORY")
    if os.geteuid() == 0:
        for path in directory.parents:
            if not path.stat().st_mode & stat.S_IXOTH:
                user = Users.here().mariadb
                raise BadUsage(f"MariaDB's user, {user}, can't enter {path}: choose another DIRECTORY")
