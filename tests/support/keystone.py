"""The Keystone example as a deployment on this machine, which tests start, ask and break."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from tests.examples.keystone import (
    API,
    HOSTS,
    MARIADB,
    MEMCACHED,
    TASKS,
    Secrets,
    Users,
    issue_token,
    url,
    validate_token,
    values,
)
from tests.examples.openstack import EXAMPLE
from tests.support.local_deployment import LocalDeployment


class Keystone(LocalDeployment):
    """The containers and their deployment. Their programs are on the PATH of `environ`."""

    example = EXAMPLE
    once = "keystone-api/db_sync"  # a one-time command

    def __init__(self, *args: Any) -> None:
        """As LocalDeployment, without `source`."""
        super().__init__(self.example, *args)
        self.users = Users.here()
        self.secrets = Secrets.random()
        self.keys = self.directory / "keys"
        self.ports = {host: free_port() for host in HOSTS}
        self.mariadb = self.add(MARIADB, HOSTS[0])
        self.memcached = self.add(MEMCACHED, HOSTS[1])
        self.tasks = self.add(TASKS, HOSTS[2])
        self.replicas = [
            self.add(API, host, port, {"keystone_port": port}) for host, port in self.ports.items()
        ]
        self._prepare_volumes()

    def _prepare_volumes(self) -> None:
        """The directories that an image or a volume would bring."""
        for path in ("var/lib/mysql", "run/mysqld"):
            directory = self.mariadb.root / path
            directory.mkdir(parents=True)
            shutil.chown(directory, self.users.mariadb)
        self.keys.mkdir()
        shutil.chown(self.keys, self.users.keystone)

    @property
    def values(self) -> Mapping[str, object]:
        return values(self.users, self.secrets, self.url(HOSTS[0]), self.keys)

    def url(self, host: str) -> str:
        return url(self.ports[host])

    def issue_token(self, host: str) -> str:
        """A token for the administrator, issued by the replica on `host`."""
        return issue_token(self.url(host), self.secrets.keystone_admin_password)

    def validate_token(self, host: str, token: str) -> dict[str, Any]:
        """What the replica on `host` knows about `token`; HTTPError if it does not accept it."""
        return validate_token(self.url(host), token)
