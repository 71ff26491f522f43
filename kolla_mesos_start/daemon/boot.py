"""How the registrar's process begins: its handoff read, its descriptors in order, its loop run.

The agent starts this process (`handoff`) just before it execs the daemon. It takes the session over as
soon as the agent's own connection is gone.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal

from kolla_mesos_start.daemon.handoff import IGNORED_SIGNALS, NO_DAEMON, Handoff
from kolla_mesos_start.errors import AgentError, where
from kolla_mesos_start.processes import hide_memory


def main(record: int) -> None:
    """The registrar's whole life; `record` is the descriptor of its handoff."""
    try:
        _live(record)
    except Exception as defect:
        from kolla_mesos_start.log import Logger

        for line in (*where(defect), "this is a defect of the registrar: please report it with these lines"):
            Logger(__name__).error("%s", line)
        os._exit(AgentError.status)


def _live(record: int) -> None:
    for signum in IGNORED_SIGNALS:
        # Not ignored: the command of a check would inherit that.
        signal.signal(signum, lambda number, frame: None)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # only for `ps`
        comm.write("kolla_registrar")
    hide_memory()  # From here on that name can't be written.
    with open(record, "rb") as file:
        handoff = Handoff(*marshal.load(file))
    _detach(handoff)
    if handoff.supervised:
        from kolla_mesos_start.daemon import supervise

        os._exit(supervise.run(handoff))
    from kolla_mesos_start.daemon.registrar import Registrar

    registrar = Registrar(handoff)
    # While the agent's connection lives, ours would be thrown out by it, and it by ours.
    if os.read(handoff.exec_fd, len(NO_DAEMON)):
        return  # The agent itself gives back what is registered.
    os.close(handoff.exec_fd)
    registrar.run()


def _detach(handoff: Handoff) -> None:
    """Close the files that the agent was started with, and log as it did."""
    from kolla_mesos_start.log import configure

    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # What the agent was started with, perhaps a pipe whose end another process waits for.
    kept = {0, 1, 2, handoff.lock_fd, handoff.pidfd, handoff.notify_fd, handoff.exec_fd}
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # the one that listed them is gone already
            os.close(fd)
    configure(handoff.loglevel, handoff.json_logs)
