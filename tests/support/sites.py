"""A deployment as its operator has it: a directory that is published, the tool, and containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.publishing import write_files
from tests.support.tool import TOOL, ctl, environ


class Site:
    """`root` is the directory, below `place`; nothing is published at first."""

    def __init__(self, deployment: Deployment, zk: KazooClient, containers: Containers, place: Path) -> None:
        self.deployment, self.zk, self.containers, self.place = deployment, zk, containers, place
        self.root = place / "site"
        self.path = deployment.path
        self.znodes = Znodes(deployment.prefix, deployment.id, "", "")

    def write(self, **files: str | bytes) -> None:
        """Write files, whose names are as for `write_files`."""
        write_files(self.root, **files)

    def ctl(self, *words: str | Path, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the tool; `more` are variables."""
        return ctl(self.deployment, *words, status=status, **more)

    def publish(self, *options: str, status: int = 0, **files: str) -> subprocess.CompletedProcess[str]:
        """Publish the directory, with these files in it."""
        self.write(**files)
        return self.ctl("publish", self.root, *options, status=status)

    def begin(self, *words: str | Path, **more: str) -> subprocess.Popen[str]:
        """Start the tool."""
        argv = [sys.executable, str(TOOL), *map(str, words)]
        return subprocess.Popen(argv, env=environ(self.deployment, **more), stderr=subprocess.PIPE, text=True)

    def start(self, service: str, host: str = "web1", **environ: Any) -> Agent:
        """Start a container."""
        return self.containers.start(service, host, **environ)
