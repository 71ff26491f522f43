"""Starts the registrar's process: reads its handoff, closes inherited descriptors, runs its loop.

The agent starts this process (`handoff`) just before it execs the daemon. The registrar takes over the
session once the agent's connection is closed.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal

from kolla_mesos_start.daemon.handoff import IGNORED_SIGNALS, NO_DAEMON, Handoff
from kolla_mesos_start.errors import AgentError, where
from kolla_mesos_start.log import Logger, configure
from kolla_mesos_start.processes import hide_memory


def main(record: int) -> None:
    """Run the registrar; `record` is the descriptor of its handoff."""
    try:
        _live(record)
    except Exception as defect:
        for line in (*where(defect), "this is a defect of the registrar: please report it with these lines"):
            Logger(__name__).error("%s", line)
        os._exit(AgentError.status)


def _live(record: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # only for `ps`
        comm.write("kolla_registrar")
    hide_memory()  # After this, the name can't be written.
    with open(record, "rb") as file:
        handoff = Handoff(*marshal.load(file))
    for signum in (*IGNORED_SIGNALS, handoff.stop_signal):
        # Not SIG_IGN: the command of a check would inherit that.
        signal.signal(signum, lambda number, frame: None)
    _detach(handoff)
    if handoff.supervised:
        from kolla_mesos_start.daemon.supervise import Supervisor

        os._exit(Supervisor(handoff).run())
    from kolla_mesos_start.daemon.registrar import Registrar

    registrar = Registrar(handoff)
    # While the agent is connected, the two connections would close each other.
    if os.read(handoff.exec_fd, len(NO_DAEMON)):
        return  # The agent itself removes the registration.
    os.close(handoff.exec_fd)
    registrar.run()


def _detach(handoff: Handoff) -> None:
    """Close the descriptors that the agent was started with, and configure the log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if not handoff.supervised:  # A daemon that is started again needs those of the first one.
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
    # One of the others may be a pipe, and another process wait for its end.
    own = {handoff.lock_fd, handoff.pidfd, handoff.notify_fd, handoff.exec_fd}
    # Another daemon gets the sockets of the first one.
    sockets = int(handoff.of_manager.get("LISTEN_FDS", 0)) if handoff.supervised else 0
    kept = {0, 1, 2, *own, *range(3, 3 + sockets)}
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # The descriptor of this listing is already closed.
            os.close(fd)
    for fd in own - {-1}:
        os.set_inheritable(fd, False)  # Programs that are started from here must not get it.
    configure(handoff.loglevel, handoff.json_logs)
