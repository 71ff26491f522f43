"""The operator's tool with closed or full streams, other locales, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.test_presence import sessions
from tests.conftest import Deployment
from tests.support.publishing import publish
from tests.support.tool import TOOL, environ
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

DAEMON = {"service": {"daemon": {"command": "sleep {{ size }}"}}}


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    publish(deployment, "infra/db", DAEMON, shared={"size": "gr\u00f6\u00dfer"})
    return deployment


def shell(site: Deployment, line: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line in a shell in which `ctl` is the tool."""
    script = f"set -o pipefail; ctl() {{ '{sys.executable}' '{TOOL}' \"$@\"; }}; {line}"
    done = subprocess.run(
        ["bash", "-c", script], env=environ(site, **more), capture_output=True, timeout=60, check=False
    )
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize("words", ["get size", "status", "set more 1", "graph", "explain --format json"])
def test_a_full_disk_is_reported(site: Deployment, words: str) -> None:
    """With the status of output that cannot be written."""
    done = shell(site, f"ctl {words} >/dev/full")
    assert done.returncode == 73
    assert b"kolla_mesos_ctl: standard output can't be written: No space left on device" in done.stderr


@pytest.mark.parametrize("words", ["get size", "status", "graph", "schema"])
def test_a_closed_pipe_ends_the_tool_silently(site: Deployment, tmp_path: Path, words: str) -> None:
    """A status of 1 would mean that something is not up."""
    done = shell(site, f"ctl {words} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in (0, 141)  # It may have been quicker than its reader.
    gone = tmp_path / "gone"
    waiting = f"until [ -e '{gone}' ]; do sleep 0.01; done"
    done = shell(site, f"{{ {waiting}; ctl {words}; echo $? >&2; }} | {{ exec <&-; touch '{gone}'; }}")
    assert done.stderr.splitlines()[-1] == b"141"


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_no_status(site: Deployment, streams: str) -> None:
    assert shell(site, f"ctl get size {streams}").returncode == 0
    assert shell(site, f"ctl get nope {streams}").returncode == 1
    assert shell(site, f"ctl status --deployment siet {streams}").returncode == 66


def test_a_message_that_cannot_be_written_changes_no_status(site: Deployment) -> None:
    assert shell(site, "ctl status --deployment siet 2>/dev/full").returncode == 66


def test_closed_standard_input_is_reported(site: Deployment) -> None:
    """It is not taken for an empty value, or for an answer."""
    done = shell(site, "ctl set size - <&-")
    assert (done.returncode, b"standard input is closed" in done.stderr) == (64, True)
    done = shell(site, "ctl reset <&-")
    assert (done.returncode, b"There is no terminal to ask: give --yes" in done.stderr) == (64, True)


@pytest.mark.parametrize("more", [{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "ascii"}])
def test_values_are_the_same_in_every_locale(site: Deployment, more: dict[str, str]) -> None:
    """Also without HOME, and on a narrow terminal."""
    assert shell(site, "ctl get size", COLUMNS="20", **more).stdout == "gr\u00f6\u00dfer\n".encode()
    found = json.loads(shell(site, "ctl get size --format json", **more).stdout)
    assert found["value"] == "gr\u00f6\u00dfer"
    assert shell(site, "ctl status", COLUMNS="20", **more).returncode == 1
    assert shell(site, "ctl rerun \u00fc/x", **more).returncode == 66


@pytest.mark.parametrize("delay", [*(0.1 + step / 10 for step in range(6)), None])
def test_ctrl_c_at_any_instant_ends_the_tool_with_130(
    zookeeper: Server, site: Deployment, delay: float | None
) -> None:
    """Without a traceback; the signal alone ends it while it still imports. None: it is connected."""
    before = sessions(zookeeper)
    line = [sys.executable, str(TOOL), "wait", "infra/db"]
    tool = subprocess.Popen(
        line, env=environ(site), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        if delay is None:
            eventually(lambda: sessions(zookeeper) - before, "it is connected")
        else:
            time.sleep(delay)
        tool.send_signal(signal.SIGINT)
        said = tool.communicate(timeout=60)[0]
    finally:
        tool.kill()
    if delay is not None and ("    import signal\n" in said or "Fatal Python error" in said):
        return  # Python itself was still starting.
    assert "Traceback" not in said, said
    assert tool.returncode == 130
