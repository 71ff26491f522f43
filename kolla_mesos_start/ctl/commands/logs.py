"""`kolla_mesos_ctl logs`: show the logs of a service's containers, or how to read them."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from typing import IO, BinaryIO, cast

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand
from kolla_mesos_start.ctl.live.logs import LogLocation, locations, no_log
from kolla_mesos_start.ctl.live.mirror import mirror, named
from kolla_mesos_start.ctl.text import NotThere, existing
from kolla_mesos_start.errors import AgentError

BLOCK = 1 << 16  # characters
ENGINES = ("docker", "podman")  # They take the same words.


class NoLog(AgentError):
    """No container says where its log is, or its log can't be read."""

    status = 1


def run(invocation: Invocation) -> int:
    """Show each log that can be read from here; print how to read the others."""
    options = invocation.options
    service = named(mirror(invocation).deployment(), options.service)
    if options.host is not None:
        hosts = sorted(service.hosts.union(service.started_on))
        if options.host not in hosts:
            raise NotThere(
                f"no container of {service.name} is on {options.host}{existing(options.host, hosts)}"
            )
        service = service.on_host(options.host)
    found = list(locations(service))
    if not found:
        raise NoLog(no_log(service))
    here = _names_of_this_host(invocation)
    failures = []
    for each in found:
        if not each.is_readable(here):
            print(f"{each.host}: {each.logs}", flush=True)
            continue
        if len(found) > 1:
            print(f"==> {each.host}: {each.logs} <==", flush=True)
        try:
            _show(each)
        except NoLog as error:  # A container must not hide the logs of the others.
            failures.append(error.reason)
    if failures:
        raise NoLog("; ".join(failures))
    return 0


def _names_of_this_host(invocation: Invocation) -> Collection[str]:
    name = socket.gethostname()
    return {name, name.partition(".")[0], invocation.environ.get("KOLLA_HOSTNAME", name)}


def _show(found: LogLocation) -> None:
    if found.is_file:
        _print_file(found.logs)
        return
    argv = _installed(found.argv)
    try:
        # Not directly to the terminal: a container has written it.
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            _copy(process.stdout)
    except OSError as error:
        raise NoLog(f"{argv[0]} can't be executed here: {error.strerror}; run: {found.logs}") from error
    if process.returncode:
        raise NoLog(f"{found.logs} ended with status {process.returncode}")


def _installed(argv: Sequence[str]) -> Sequence[str]:
    """The command with the engine that is installed: the manifests for Compose can't say which one runs."""
    if argv[0] in ENGINES and not shutil.which(argv[0]):
        other = next((each for each in ENGINES if shutil.which(each)), argv[0])
        return [other, *argv[1:]]
    return argv


def _print_file(path: str) -> None:
    # A container has named it: it must not be a link to another file, or a pipe that never ends.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise NoLog(f"{path} can't be read: {error.strerror}") from error
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NoLog(f"{path} is not a regular file")
        _copy(file)


def _copy(log: IO[bytes]) -> None:
    text = TextIOWrapper(cast(BinaryIO, log), "utf-8", "replace", newline="\n")
    while line := text.readline(BLOCK):
        sys.stdout.write(line)
    sys.stdout.flush()


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="SERVICE", help="a service, by its name or role")
    parser.add_argument("--host", metavar="H", help="only the container on this host")


SUBCOMMAND = Subcommand(
    description="""\
Show the logs of a service's containers: of all, or of those on one host. The launcher says how to read them
(KOLLA_LOGS, which `manifests` and `up` set).

The command is run if that is possible from here: kubectl anywhere; podman, docker, journalctl and files on
the container's host, if its hostname or KOLLA_HOSTNAME is the host's name in `status`. A file is also shown
if one of its directories has the host's name, as on a central log server. Everything else is printed with the
name of the host. The text comes from a container: only `podman logs NAME` and similar commands are run, never
in a shell, and only files with a name that ends in log are shown. Status 1: there is no log, or it can't be
read.
""",
    example="kolla_mesos_ctl logs nova-api --host ctl-1 | tail -n 50",
    add_arguments=_add_arguments,
    run=run,
)
