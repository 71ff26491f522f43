"""Running daemons whose files are refreshed while something else goes wrong, or is changed, at that moment.

Whole agents against a real ZooKeeper. A refresh is held in the check of its file (`HELD`) while a file `hold`
is there, and so is what else a test wants to meet it.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.agents import Agent
from tests.integration.test_refresh import Web, command_line
from tests.integration.test_refresh import web as web
from tests.waiting import eventually

HELD = {"check": ["sh", "-c", "while [ -e hold ]; do sleep 0.05; done", "sh", "{}"]}


def process(agent: Agent, words: bytes) -> int:
    """The process of a container whose command line holds these words; 0 while there is none."""
    return next((pid for pid in agent.processes if words in command_line(pid)), 0)


def refreshes(agent: Agent) -> int:
    """The process that refreshes; 0 while there is none."""
    return process(agent, b"start refresh")


def hold(agent: Agent) -> None:
    (agent.directory / "hold").touch()


def let_go(agent: Agent) -> None:
    (agent.directory / "hold").unlink()


def is_held(agent: Agent) -> bool:
    """Whether a refresh has come to its check."""
    return "sleep" in agent.processes.values()


# -- the end of a daemon, or of a container -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_daemon_that_dies_during_a_refresh_ends_as_any_other(web: Web, mode: str) -> None:
    """With its own status, and whoever stayed beside it leaves in good order."""
    web.publish("old", HELD)
    agent = web.start(KOLLA_START_MODE=mode)
    hold(agent)
    web.publish("new", HELD)
    eventually(lambda: is_held(agent), "a refresh runs")
    os.kill(process(agent, b"signal.pause"), signal.SIGKILL)
    assert agent.ends() == 128 + signal.SIGKILL
    eventually(lambda: not agent.processes, "all of it has ended")
    assert "Traceback" not in agent.said
    eventually(lambda: web.site.state() == "waiting", "it has left nothing that says it is ready")
