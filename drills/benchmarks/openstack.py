"""The start of a whole OpenStack, beside the same commands in plain shell, and the agents' part of it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from drills.benchmarks.bench import FLOORS, Bench, ratios
from drills.benchmarks.table import Row
from drills.openstack.deployment import OpenStack
from kolla_mesos_start.ctl.timeline import critical_path
from kolla_mesos_start.ctl.up.containers import end_all
from tests import CHECKOUT
from tests.examples import openstack as programs
from tests.examples.openstack import SYSTEM_PATH

ROUNDS = 3
LOOK_EVERY = 0.05  # seconds
TICK = os.sysconf("SC_CLK_TCK")
NANOSECONDS = 1e9
AGENT = b"kolla_mesos_start"


class Start(NamedTuple):
    """Seconds that a start took, and those of its critical path."""

    whole: float
    path: float


class Cpu(NamedTuple):
    """Seconds of CPU of a start: in all, and by the agents."""

    whole: float
    agents: float


def openstack(bench: Bench) -> list[Row]:
    """All containers of etc/openstack at once, until the last one is ready; over plain shell, in turn."""
    say = partial(print, flush=True)
    programs.install_packages(say, programs.WHOLE_PACKAGES)
    path = programs.environment(CHECKOUT / ".cache", programs.WHOLE, say)
    starts, floors, cpu = [], [], []
    for _ in range(ROUNDS):
        with _published(bench, path) as cloud:
            starts.append(_by_agents(cloud))
            end_all(cloud.directory)
            floors.append(_by_shell(cloud, path))
        with _published(bench, path) as cloud:  # Counting takes time too.
            cpu.append(_cpu(cloud))
    whole = [each.whole for each in starts]
    return [
        Row(
            "a whole OpenStack, all at once, over plain shell",
            "",
            ratios(whole, floors),
            1.05,
            note=_note(starts, floors, cpu),
        ),
        Row("over the work on its critical path", "", [each.whole / each.path for each in starts], 1.1),
        Row("agents' own part of its CPU", " %", [100 * each.agents / each.whole for each in cpu], 5),
    ]


def _note(starts: Sequence[Start], floors: Sequence[float], cpu: Sequence[Cpu]) -> str:
    whole, plain = median(each.whole for each in starts), median(floors)
    spent, agents = median(each.whole for each in cpu), median(each.agents for each in cpu)
    return f"{whole:.1f} s and {plain:.1f} s; of {spent:.0f} s of CPU the agents' {agents:.1f} s"


@contextmanager
def _published(bench: Bench, programs: Path) -> Iterator[OpenStack]:
    cloud = OpenStack(bench.directory / "openstack", programs, bench.zk, bench.server.hosts)
    bench.zk.ensure_path(cloud.path)
    try:
        cloud.publish()
        yield cloud
    finally:
        cloud.close()


def _by_agents(cloud: OpenStack) -> Start:
    cloud.start(cloud.seed)
    cloud.await_up()
    path = critical_path.critical_path(cloud.steps())
    return Start(path[-1].finished - cloud.started_at, sum(step.duration for step in path))


def _cpu(cloud: OpenStack) -> Cpu:
    before = _busy()
    with _counted(cloud.directory) as agents:
        cloud.start(cloud.seed)
        cloud.await_up()
        return Cpu(_busy() - before, sum(agents.values()))


def _by_shell(cloud: OpenStack, programs: Path) -> float:
    """Seconds; the containers have ended, and what they have rendered is used again."""
    values = cloud.values
    environ = {
        "PATH": f"{programs}:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "HOME": str(cloud.directory),
        "PACKAGED": str(values["packaged"]),
        "DIST_PORT": str(values["rabbitmq_distribution_port"]),
        "EPMD_PORT": str(values["rabbitmq_epmd_port"]),
        "KOLLA_RUN_DIR": str(cloud.directory / "run/plain"),  # by which its processes are found
    }
    begun = time.monotonic()
    try:
        subprocess.run(
            ["bash", str(FLOORS / "openstack.sh"), str(cloud.directory), "ctl-1", "cmp-1"],
            env=environ,
            check=True,
            start_new_session=True,
        )
        return time.monotonic() - begun
    finally:
        for file in (cloud.directory / "marks").glob("*.pid"):  # Nova overwrites its environment.
            with suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)
        end_all(cloud.directory)


def _busy() -> float:
    """Seconds that the machine's processors have worked."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / TICK


@contextmanager
def _counted(directory: Path) -> Iterator[Mapping[str, float]]:
    """Meanwhile count the seconds of CPU of each process in `directory` as long as it is an agent."""
    found: dict[str, float] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):
                    process = Path("/proc", pid)
                    if AGENT not in (process / "cmdline").read_bytes():
                        continue
                    if pid in found or os.fsencode(directory) in (process / "environ").read_bytes():
                        found[pid] = int((process / "schedstat").read_text().split()[0]) / NANOSECONDS

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
