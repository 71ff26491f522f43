"""A deployment on this machine for tests of real programs: published from a directory, and asked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.timeline.critical_path import TimelineStep
from kolla_mesos_start.ctl.timeline.reader import HistoryReader
from kolla_mesos_start.ctl.up import deployment
from kolla_mesos_start.ctl.up.deployment import texts
from kolla_mesos_start.ctl.zk import connection
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.ctl.zk.publication import Counts


class LocalDeployment(deployment.LocalDeployment):
    """The deployment of the directory `source`; `client` is connected to the servers of `environ`."""

    def __init__(
        self,
        source: Path,
        directory: Path,
        client: OperatorClient,
        environ: Mapping[str, str],
        prefix: str,
        id: str,
    ) -> None:
        super().__init__(directory, environ, prefix, id)
        self.source, self.client = source, client

    @property
    def values(self) -> Mapping[str, object]:
        """Variables of the deployment, besides those of its directory; they take precedence."""
        return {}

    def read(self) -> Deployment:
        """Read the directory."""
        return directory.read(self.source)

    def publish(self) -> Counts:
        """Publish the directory as it is now, with the values of this machine."""
        contents = self.read()
        contents = contents._replace(variables={**contents.variables, **texts(self.values)})
        prepared = self.with_values(contents)
        self.read_definitions(prepared)
        return self.publish_contents(prepared)

    @property
    def is_up(self) -> bool:
        """Whether it seems up, and every instance is ready in ZooKeeper."""
        daemons = [each for each in self.containers if not self.is_task(each)]
        return self.seems_up and all(each.host in self.ready_hosts(each.service) for each in daemons)

    def ready(self, service: str) -> dict[str, dict[str, Any]]:
        """The ready instances of a service's daemon: id -> its znode's JSON, and `ready_at`."""
        parent = f"{self.path}/status/global/{service.rsplit('/', 1)[-1]}/daemon/ready"
        paths = {f"{parent}/{name}": name for name in self.children(parent)}
        return {
            paths[path]: {**json.loads(znode.data), "ready_at": znode.stat.ctime / 1000}
            for path, znode in self.client.read(paths).items()
            if znode
        }

    def ready_hosts(self, service: str) -> dict[str, float]:
        """The hosts on which the service's daemon is ready, and since when (seconds since the epoch)."""
        return {each["host"]: each["ready_at"] for each in self.ready(service).values()}

    def detail(self, command: str, scope: str = "global") -> dict[str, Any]:
        """The record of the last attempt of a command."""
        path = f"{self.path}/status/{scope}/{command}/detail"
        decoded: dict[str, Any] = json.loads(connection.read(self.client, [path])[path] or b"{}")
        return decoded

    def children(self, path: str) -> list[str]:
        """The names of the children of `path`; none if it does not exist."""
        return list(connection.children(self.client, [path])[path])

    def steps(self) -> list[TimelineStep]:
        """The timeline of the start; call it once all are up."""
        reader = HistoryReader(self.znodes, self.given)
        found = Mirror(self.client, reader).read(lambda view: reader.report(view, time.time()))
        return found.finished
