"""One container on its way: its signals, its log, its connection, and its end, happy or not.

The only place that catches what ends the agent, says so, and exits. The stages themselves are in
`main`: all that they import is imported while the connection is being made.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from kolla_mesos_start import log as logs
from kolla_mesos_start import settings as environment
from kolla_mesos_start.errors import AgentError, BadUsage, Stopped, Unkillable
from kolla_mesos_start.facts import begin as begin_facts
from kolla_mesos_start.health import StateFile
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.orphans import reap

if TYPE_CHECKING:
    from kolla_mesos_start.commands.bootstrap import Bootstrap
    from kolla_mesos_start.settings import Settings
    from kolla_mesos_start.zookeeper.client import Ensemble

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A session that can't be closed in this time ends with its timeout instead.
CLOSE_TIMEOUT = 1.0
# Most starts are over by then; who waits longer has the time to look for garbage.
IN_A_HURRY = 1.0


def live(verb: str = "run", show: bool = False) -> NoReturn:
    """Start the container, or `check` what a start would do, and exit with what the operator expects."""
    container = Container()
    try:
        status = container.check(show) if verb == "check" else container.run()
    except AgentError as error:
        status = container.end(error)
    except Exception as defect:
        # Whatever this is, the operator has to learn of it like of any other end, and that it is ours.
        # Its own message is left out: that may hold a value.
        told = AgentError(f"a defect of the agent: {type(defect).__name__}")
        log.error("please report this", exc_info=(AgentError, told, defect.__traceback__))
        status = container.end(told)
    _exit(status)


def refuse(usage: str) -> NoReturn:
    """End for words that mean nothing to the agent; told as every end is, they may be an entrypoint's."""
    container = Container()
    container.stage = "usage"
    container.settle_log()
    _exit(container.end(BadUsage(usage)))


def _exit(status: int) -> NoReturn:
    # What nobody can read any more must not change the status.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # kazoo's threads may be in the middle of an outage: nothing of theirs is worth waiting for.
    os._exit(status)


class Container:
    """`stage` is how far the container has come, `command` what it is about there.

    `ensemble` is None until a connection is begun, `bootstrap` until commands may run.
    """

    def __init__(self) -> None:
        self.stage = "environment"
        self.command: str | None = None
        self.termination_log: str | None = None
        self.loop = Loop()
        self.ensemble: Ensemble | None = None
        self.bootstrap: Bootstrap | None = None

    def run(self) -> int:
        """All stages. Returns the exit status of a task; a daemon takes this process over instead."""
        settings = self._settle()
        state_file = StateFile.take(settings.run_dir)
        facts = begin_facts(settings)
        ensemble = self._dial(settings)
        from kolla_mesos_start import main

        self.loop.call_at(now() + IN_A_HURRY, _collect_garbage_again)
        return main.run(self, settings, facts, ensemble, state_file)

    def check(self, show: bool) -> int:
        """Say what a start would do to this container's files; write nothing at all."""
        settings = self._settle()
        self.termination_log = None  # It is for the end of the container, not of a look into it.
        facts = begin_facts(settings)
        ensemble = self._dial(settings)
        from kolla_mesos_start import main

        return main.check(self, settings, facts, ensemble, show)

    def settle_log(self) -> None:
        """Where to tell what is wrong, even if that is the environment."""
        logs.configure("info", json_lines=os.environ.get("KOLLA_LOG_FORMAT") == "json")
        self.termination_log = environment.termination_log(os.environ)

    def end(self, error: AgentError) -> int:
        """End unhappily: close all, say why in the last line, and return the exit status."""
        try:
            self.close(session=not isinstance(error, Unkillable))
        except Unkillable as worse:
            error = worse
        error.command = error.command or self.command
        sys.stdout.flush()  # What a check has found so far comes before the last line.
        logs.last_line(logs.ending(self.stage, error), self.termination_log)
        return error.status

    def close(self, *, session: bool = True) -> None:
        """End what was begun: first the running command, then the `session` that held its lock."""
        if self.bootstrap is not None:
            self.bootstrap.close()
        if session and self.ensemble is not None and self.ensemble.connected:
            closing = threading.Thread(target=self.ensemble.close, daemon=True)
            closing.start()
            closing.join(CLOSE_TIMEOUT)

    def _settle(self) -> Settings:
        """The environment understood, and signals heard from here on."""
        for signum in STOP_SIGNALS:
            self.loop.on_signal(signum, self._on_stop)
        # As process 1, or as the parent that a dead guard leaves behind.
        self.loop.on_signal(signal.SIGCHLD, lambda number: reap())
        self.settle_log()
        settings = environment.parse(os.environ)
        logs.configure(settings.loglevel, settings.json_logs)
        self.termination_log = settings.termination_log
        return settings

    def _dial(self, settings: Settings) -> Ensemble:
        """A connection begun: the stages are imported while it is made."""
        from kolla_mesos_start.zookeeper.client import Ensemble

        self.stage = "connect"
        ensemble = self.ensemble = Ensemble(settings, self.loop)
        ensemble.dial()
        return ensemble

    def _on_stop(self, signum: int) -> None:
        """A stop signal ends the agent at once, unless a command is running."""
        if self.bootstrap is not None:
            self.bootstrap.on_stop(signum)
        else:
            raise Stopped(signum, signal.Signals(signum).name)


def _collect_garbage_again() -> None:
    gc.freeze()
    gc.enable()
