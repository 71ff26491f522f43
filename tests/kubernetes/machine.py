"""A machine of a cluster: namespaces of its own for network, processes, mounts and hostname.

Nothing of it is visible outside but its cgroups, and all its processes end with the tests, even if those
are killed. Its `/var` and `/run` are its own.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kolla_mesos_start.ctl.up.containers import dies_with_us
from tests.support.waiting import eventually

CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = CGROUPS / "cgroup.controllers"  # cgroup v2 alone
NEW = ("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
# $0 is the name, $1 the directory. A kubelet would set three sysctls for the whole kernel: it finds them set.
# Volumes can be shared among mount namespaces only if / is, as systemd has it.
SET_UP = """
set -e
hostname "$0"
mount --make-rshared /
mount --bind "$1/var" /var
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs run /run
for each in kernel/panic=10 kernel/panic_on_oops=1 vm/overcommit_memory=1; do
    value=/run/$(basename ${each%=*})
    echo ${each#*=} >$value
    mount --bind $value /proc/sys/${each%=*}
done
ip link set lo up
touch "$1/is_up"
# Until the end of its standard input.
exec dumb-init cat >/dev/null
"""
NETWORK = 0x40000000  # CLONE_NEWNET


class Machine:
    """One machine; `programs` come first in its PATH."""

    def __init__(self, name: str, directory: Path, programs: Path, hosts: str) -> None:
        self.name, self.directory = name, directory
        self.cgroup = f"kolla-{os.getpid()}-{name}"
        self.environ = {"PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/root"}
        for path in ("var/tmp", "var/lib", "var/log", "log"):
            (directory / path).mkdir(parents=True)
        (directory / "var/run").symlink_to("/run")
        (directory / "hosts").write_text(hosts)
        self._processes: list[subprocess.Popen[bytes]] = []  # The first one holds the namespaces.

    def boot(self) -> None:
        """Make it; `end` is needed even if this fails."""
        for place in _cgroups(self.cgroup):
            place.mkdir()
        self._give_processors()
        self._start("machine", *dies_with_us(), *NEW, "sh", "-c", SET_UP, self.name, str(self.directory))

        def is_up() -> bool:
            assert self._processes[0].poll() is None, (self.directory / "log/machine").read_text()
            return (self.directory / "is_up").exists()

        eventually(is_up, f"the machine {self.name} is up")

    def end(self) -> None:
        """Kill all its processes, as a power cut does, and remove its cgroups."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
        eventually(lambda: _removed(self.cgroup), f"the cgroups of {self.name} are empty")

    def _give_processors(self) -> None:
        """Without them no process can be in a cpuset; cgroup v2 inherits them where controllers are on."""
        if UNIFIED.exists():
            controllers = " ".join(f"+{name}" for name in UNIFIED.read_text().split())
            for place in (CGROUPS, CGROUPS / self.cgroup):
                (place / "cgroup.subtree_control").write_text(controllers)
            return
        for name in ("cpuset.cpus", "cpuset.mems"):
            root = CGROUPS / "cpuset"
            (root / self.cgroup / name).write_text((root / name).read_text())

    # -- its programs ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process whose namespaces they are."""
        return self._processes[0].pid

    def _inside(self, line: str) -> list[str]:
        """A command that runs in this machine."""
        places = {"net": "net", "mount": "mnt", "uts": "uts", "pid": "pid_for_children"}
        enter = [f"--{name}=/proc/{self.pid}/ns/{file}" for name, file in places.items()]
        return ["nsenter", *enter, *shlex.split(line)]

    def start(self, line: str) -> None:
        """Start a program, which runs until the machine ends; its log has its name."""
        self._start(line.split()[0], *self._inside(line))

    def _start(self, name: str, *argv: str) -> None:
        with (self.directory / "log" / name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    argv,
                    env=self.environ,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def run(self, line: str, check: bool = True) -> str:
        """The output of one command."""
        done = subprocess.run(
            self._inside(line),
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 or not check, f"{self.name}: {line}: {done.stderr}"
        return done.stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """Meanwhile this thread, and every thread and process that it starts, is in the machine's network."""
        own = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        with open(own) as before, open(f"/proc/{self.pid}/ns/net") as inside:
            _enter(inside.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def _enter(network: int) -> None:
    """Let this thread enter a network namespace (setns(2), which os has from Python 3.12 on)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


# -- cgroups ---------------------------------------------------------------------------------------------


def _cgroups(name: str) -> list[Path]:
    """A directory in each hierarchy."""
    if UNIFIED.exists():
        return [CGROUPS / name]
    # One hierarchy may have several names.
    return [root / name for root in CGROUPS.iterdir() if root.is_dir() and not root.is_symlink()]


def _removed(name: str) -> bool:
    """Whether all are removed: the kernel keeps them until their last process is gone."""
    for root in _cgroups(name):
        for place, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                os.rmdir(place)
    return not any(root.exists() for root in _cgroups(name))


def remove_leftovers() -> None:
    """The cgroups of machines whose tests were killed."""
    for place in _cgroups("")[0].glob("kolla-[0-9]*-*"):
        if not Path("/proc", place.name.split("-")[1]).exists():
            _removed(place.name)
