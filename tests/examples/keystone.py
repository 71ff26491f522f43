"""The Keystone example on this machine: MariaDB, memcached, and Keystone three times.

    ctl-1   mariadb     keystone-api
    ctl-2   memcached   keystone-api
    ctl-3   keystone_tasks (ends by itself)   keystone-api

Has the values that depend on this machine (ports, users, passwords), and the requests to Keystone.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import secrets
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kolla_mesos_start.ctl.up.private_zookeeper import HOST, free_port

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
