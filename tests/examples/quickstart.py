"""`bin/quickstart --keystone` and `--openstack`: what they need before `kolla_mesos_ctl up` can run them.

Installs the programs, and has the values of this machine. Prints the PATH of the programs, for the shell.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

import yaml

from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from kolla_mesos_start.ctl.up.up import STOP_SIGNALS
from kolla_mesos_start.errors import AgentError, BadUsage
from tests.examples import openstack, whole
from tests.examples.keystone import API, HOSTS, MARIADB, Secrets, Users, url, values

Stage = Callable[[], object]
DIRECTORIES = {"{{ root }}/var/lib/mysql": "mysql", "{{ root }}/run/mysqld": "mysqld"}


def main() -> None:
    """Prepare all of the deployment that is named first, below the directory that is named second.

    A third argument is the number of controllers.
    """
    received: list[int] = []
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda number, frame: received.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        for stage in STAGES[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:])):
            # An installation is not interrupted: it would have to be repaired by hand.
            if not received:
                stage()
    except AgentError as error:
        if not received:  # A child that Ctrl-C has ended looks like a failure.
            print(f"quickstart: {error.reason}", file=sys.stderr)
            sys.exit(error.status)
    sys.exit(128 + received[0] if received else 0)


def _keystone(home: Path) -> Sequence[Stage]:
    return (
        lambda: _check_place(home),
        lambda: openstack.install_packages(say),
        lambda: _print_path(openstack.keystone_environment(home / "cache", say)),
        lambda: write(home / "keystone", home / "volumes"),
    )


def _openstack(home: Path, controllers: int) -> Sequence[Stage]:
    def write() -> None:
        packaged = openstack.environment(home / "cache", openstack.WHOLE, say).parent / "etc"
        whole.write(home / "openstack", packaged, home / "volumes", controllers)
        whole.add_server(home / "openstack")

    packages = openstack.CLUSTER_PACKAGES if controllers > 1 else openstack.WHOLE_PACKAGES
    return (
        lambda: _check_place(home),
        lambda: openstack.install_packages(say, packages),
        lambda: _print_path(openstack.environment(home / "cache", openstack.WHOLE, say)),
        write,
    )


STAGES: Mapping[str, Callable[..., Sequence[Stage]]] = {"keystone": _keystone, "openstack": _openstack}


def _print_path(programs: Path) -> None:
    print(f"{programs}:{openstack.SYSTEM_PATH}")


def say(text: str) -> None:
    """Print the heading of a stage; standard output is for the shell."""
    print(f"\n-- {text}", file=sys.stderr, flush=True)


def write(site: Path, volumes: Path) -> None:
    """The example as it can be run here, without what an earlier run has stored."""
    for path in (site, volumes):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(openstack.EXAMPLE, site)
    users = Users.here()
    config = site / "services" / MARIADB / "files/my.cnf"
    text = config.read_text()
    for place, name in DIRECTORIES.items():
        # What a volume of the container would be.
        text = text.replace(place, str(_volume(volumes / name, users.mariadb)))
    config.write_text(text)
    ports = {host: free_port() for host in HOSTS}
    for host, port in ports.items():
        variable = site / "services" / API / "variables" / host / "keystone_port"
        variable.parent.mkdir(parents=True)
        variable.write_text(str(port))
    keys = _volume(volumes / "keys", users.keystone)
    own = values(users, Secrets.random(), url(ports[HOSTS[0]]), keys)
    variables = site / "variables.yml"
    given = yaml.safe_load(variables.read_text())
    variables.chmod(0o600)
    variables.write_text(yaml.safe_dump({**given, **{name: str(value) for name, value in own.items()}}))


def _volume(path: Path, user: str) -> Path:
    path.mkdir(parents=True)
    shutil.chown(path, user)
    return path


def _check_place(directory: Path) -> None:
    """Refuse a directory in which MariaDB or Keystone can't work."""
    _check_name(directory)
    if os.geteuid() == 0:
        for path in (directory, *directory.parents):
            if not path.stat().st_mode & stat.S_IXOTH:
                user = Users.here().mariadb
                raise BadUsage(f"MariaDB's user, {user}, can't enter {path}: choose another DIRECTORY")


def _check_name(directory: Path) -> None:
    """Refuse a directory whose name would mean something else in a config file."""
    if not re.fullmatch(r"[\w./@+-]*", str(directory), re.ASCII):
        raise BadUsage(
            f"{directory} can't stand in the config files of servers, which take letters, digits and _./@+-"
            " only: choose another DIRECTORY"
        )
