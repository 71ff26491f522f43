"""The end of a recording that is interrupted."""

from __future__ import annotations

import subprocess
import sys

from tests import CHECKOUT

# Process 1 does not reap, as a shell or `sleep` in a container may not.
NEVER_REAPS = """
import subprocess, sys, time
tool = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
while tool.poll() is None:
    time.sleep(0.05)
sys.exit(tool.returncode)
"""
INTERRUPTED = """
import subprocess, time
from kolla_mesos_start.kolla_ansible import recording

recording.KILL_TIMEOUT = 0.5
ansible = subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo; wait"], stdout=subprocess.PIPE, text=True)
ansible.stdout.readline()
recording._kill(ansible)
"""


def test_an_interrupted_import_ends_although_nobody_reaps_the_workers_of_ansible() -> None:
    alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = (*alone, sys.executable, "-c", NEVER_REAPS, INTERRUPTED)
    assert subprocess.run(command, cwd=CHECKOUT, timeout=20).returncode == 0
