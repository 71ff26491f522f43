"""Processes that run for months survive that no file descriptor is free: nothing they need is imported late.

Each case runs in a fresh Python process, because pytest has imported most modules already.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT

PROGRAM = """
import os, resource, sys
{setup}
used = {{int(name) for name in os.listdir("/proc/self/fd")}}
for fd in range(max(used)):
    try:
        os.fstat(fd)
    except OSError:
        os.dup2(0, fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(used), max(used)))
try:
    open("/dev/null")
except OSError:
    pass
else:
    sys.exit("a descriptor is free")
{work}
print("alive")
"""

REFRESHER = """
from kolla_mesos_start.daemon.handoff import Refreshing
from kolla_mesos_start.daemon.refresher import Refresher
from kolla_mesos_start.loop import Loop, now
class Session:
    def on_connected(self, handler): pass
    def on_watch(self, handler): pass
    def request(self, operation, done): pass
class Registrar:
    session, loop = Session(), Loop()
loop = Registrar.loop
order = Refreshing(None, ("/k", "d", "s/web", "h"), {{}}, {{}}, dict(os.environ), 0)
refresher = Refresher(Registrar(), order, {run_dir!r})
"""
READINESS = """
from kolla_mesos_start.loop import now
from kolla_mesos_start.daemon.readiness import Readiness
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.probes import http
url = "http://127.0.0.1:1/"
readiness = Readiness(Ready("http", url, 1.0, 1.0, 1), lambda: http(url), now())
"""
DRAIN = """
from types import SimpleNamespace as Record
from kolla_mesos_start.daemon.drain import Drain
from kolla_mesos_start.daemon.handoff import Stopping
from kolla_mesos_start.loop import Loop, now
handoff = Record(run_dir={run_dir!r}, service="s/web", check_env={{}}, check_ids=None, supervised=True)
registrar = Record(session=Record(connected=False), loop=Loop(), presence=Record(withdrawn=False))
drain = Drain(registrar, handoff, Stopping(0.0, ["true"], 0.5))
"""
LOG = """
from kolla_mesos_start import log
log.configure("info", json_lines=True)
"""

CASES = {
    "a defect is described": (
        "from kolla_mesos_start.errors import where",
        "try:\n    1 / 0\nexcept Exception as error:\n    assert where(error)[-1] == 'ZeroDivisionError'",
        "",
    ),
    "the guard reports a defect": (
        "from kolla_mesos_start.commands import guard\nos._exit = lambda status: print('status', status)\n"
        "def fail(fd): raise ValueError\nguard.serve = fail",
        "guard.main(0)",
        "status 70",
    ),
    "a JSON line is logged": (LOG, "log.Logger('x').error('no descriptor')", ""),
    "an http check fails": (READINESS, "readiness.run(True)\nprint(readiness.reason)", "check http port 1: "),
    "a refresh is not started": (
        REFRESHER,
        "refresher._due = 0.0\nrefresher.run(False)\nprint(refresher.reason)",
        "it can't be started: Too many open files; trying again",
    ),
    "a command before the stop is not started": (
        DRAIN,
        "drain.begin()\nprint(drain.is_over, drain.failure)",
        "True before_stop failed: Too many open files",
    ),
    "nobody can ask for a refresh": (
        REFRESHER
        + "import socket\nasking = socket.socket(socket.AF_UNIX)\nasking.connect({run_dir!r} + '/refresh')",
        "loop.wait(lambda: False, now() + 0.1)",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_survives_without_a_free_descriptor(case: str, tmp_path: Path) -> None:
    setup, work, output = (part.format(run_dir=str(tmp_path)) for part in CASES[case])
    program = PROGRAM.format(setup=setup, work=work)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith("alive\n"), done.stderr
    assert output in done.stdout
