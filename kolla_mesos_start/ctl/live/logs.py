"""Where a container's log is, and how its launcher restarts it, as it says itself (KOLLA_LOGS). Pure.

The tool only prints both: a container has written the text, and must not choose what is run.
"""

from __future__ import annotations

import re

from kolla_mesos_start.ctl.live.model import LiveService

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
ON_ITS_HOST = re.compile(rf"(podman|docker) logs {NAME}|journalctl (-u|--unit) {NAME}")
ANYWHERE = re.compile(rf"kubectl (-n {NAME} )?logs {NAME}( -c {NAME})?")


# Of a container that did not even start, or has not reached ZooKeeper.
LAUNCHER = "see its log, or ask its launcher: kubectl describe pod, systemctl status, podman ps -a"


def see(service: LiveService, host: str, otherwise: str = "see its log") -> str:
    """A clause that says how to read the log of a container on `host`, or of the last start that failed
    there; `otherwise` if that is unknown."""
    found = [(each.host, each.logs) for each in service.containers]
    found += [(each.host, each.logs) for each in service.ended]
    logs = next((logs for place, logs in found if place == host and logs), "")
    return f"see {located(host, logs)}" if logs else otherwise


def located(host: str, logs: str) -> str:
    """The path of a file, or a command, and where it works."""
    what = logs if logs.startswith("/") else f"`{logs}`"
    return what if ANYWHERE.fullmatch(logs) else f"{what} on {host}"


def restart(host: str, logs: str) -> str:
    """How to restart a container, with its launcher's command if that is known."""
    words = logs.split()
    if ANYWHERE.fullmatch(logs):
        at = words.index("logs")
        return f"restart its container: {' '.join([*words[:at], 'delete', 'pod', words[at + 1]])}"
    if not ON_ITS_HOST.fullmatch(logs):
        return "restart its container"
    launcher = "systemctl" if words[0] == "journalctl" else words[0]
    return f"restart its container on {host}: {launcher} restart {words[2]}"
