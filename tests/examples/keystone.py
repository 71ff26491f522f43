"""The Keystone example on this machine: MariaDB, memcached, and Keystone three times.

    ctl-1   mariadb     keystone-api
    ctl-2   memcached   keystone-api
    ctl-3   keystone_tasks (ends by itself)   keystone-api

Has the values that depend on this machine (ports, users, passwords), the directories that an image or a
volume would contain, and the requests to Keystone.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import secrets
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.up.local_deployment import LocalDeployment
from kolla_mesos_start.ctl.up.private_zookeeper import HOST, free_port
from tests.examples.openstack import EXAMPLE

MARIADB = "infra/mariadb/mariadb"
MEMCACHED = "infra/memcached/memcached"
TASKS = "openstack/keystone/keystone_tasks"
API = "openstack/keystone/keystone-api"
HOSTS = ("ctl-1", "ctl-2", "ctl-3")


class Users(NamedTuple):
    """The owners of the servers' processes and files."""

    mariadb: str
    memcached: str
    keystone: str
    keystone_group: str
    haproxy: str = ""

    @classmethod
    def here(cls) -> Users:
        """As root those that Debian's packages have made, else only ourselves."""
        own = pwd.getpwuid(os.geteuid())
        if own.pw_uid == 0:
            # Not root's own group: so it shows that a file was given to it.
            return cls("mysql", "memcache", own.pw_name, "www-data", "haproxy")
        group = grp.getgrgid(own.pw_gid).gr_name
        return cls(own.pw_name, own.pw_name, own.pw_name, group, own.pw_name)


class Secrets(NamedTuple):
    """Passwords; the first part of each can be searched for, however a file has quoted the rest."""

    mariadb_root_password: str
    keystone_database_password: str
    keystone_admin_password: str

    @classmethod
    def random(cls) -> Secrets:
        # The last characters are special in SQL, in URLs, in option files.
        return cls(*(f"{secrets.token_hex(12)}'\"@/%\\" for _ in cls._fields))

    def needles(self) -> dict[str, str]:
        """The part of each password that can be searched for, by name."""
        return {name: value[:24] for name, value in self._asdict().items()}


def url(port: int) -> str:
    """Where a replica serves."""
    return f"http://{HOST}:{port}/v3"


def values(users: Users, secrets: Secrets, url: str, keys: Path) -> Mapping[str, object]:
    """The variables of the deployment that depend on the machine."""
    return {
        **secrets._asdict(),
        "mariadb_user": users.mariadb,
        "mariadb_port": free_port(),
        "memcached_user": users.memcached,
        "memcached_port": free_port(),
        "keystone_user": users.keystone,
        "keystone_group": users.keystone_group,
        "keystone_workers": 1,
        "keystone_url": url,
        "keystone_keys": keys,
    }


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


def issue_token(url: str, password: str) -> str:
    """A token for the administrator of the Keystone at `url`; HTTPError for a wrong password."""
    user = {"name": "admin", "domain": {"id": "default"}, "password": password}
    wanted = {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": {"name": "admin", "domain": {"id": "default"}}},
    }
    request = urllib.request.Request(
        f"{url}/auth/tokens",
        data=json.dumps({"auth": wanted}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.headers["X-Subject-Token"])


def validate_token(url: str, token: str) -> dict[str, Any]:
    """What the Keystone at `url` knows about `token`; HTTPError if it does not accept it."""
    request = urllib.request.Request(
        f"{url}/auth/tokens", headers={"X-Auth-Token": token, "X-Subject-Token": token}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        known: dict[str, Any] = json.load(reply)["token"]
    return known
