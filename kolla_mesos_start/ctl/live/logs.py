"""Where a container's log is, as its launcher says (KOLLA_LOGS). Pure.

The tool only prints the text: a container has written it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kolla_mesos_start.ctl.live.model import LiveService

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
ON_ITS_HOST = re.compile(rf"(podman|docker) logs {NAME}|journalctl (-u|--unit) {NAME}")
ANYWHERE = re.compile(rf"kubectl (-n {NAME} )?logs {NAME}( -c {NAME})?")


class LogLocation(NamedTuple):
    """How to read the log of a container on `host`: a command, or the path of a file there."""

    host: str
    logs: str

    @property
    def is_file(self) -> bool:
        return self.logs.startswith("/")

    @property
    def works_anywhere(self) -> bool:
        return bool(ANYWHERE.fullmatch(self.logs))

    @property
    def argv(self) -> Sequence[str]:
        """The words of the command, if it is a known one; else empty."""
        is_known = self.works_anywhere or ON_ITS_HOST.fullmatch(self.logs)
        return shlex.split(self.logs) if is_known else ()

    @property
    def restart(self) -> str:
        """The launcher's command that starts the container again; empty if it is not known.

        Only for people: a container must not choose which other one is restarted.
        """
        words = list(self.argv)
        if not words or self.is_file:
            return ""
        if words[0] == "journalctl":
            return f"systemctl restart {words[2]}"
        if words[0] == "kubectl":
            namespace = words[1 : words.index("logs")]
            return " ".join(["kubectl", *namespace, "delete", "pod", words[words.index("logs") + 1]])
        return f"{words[0]} restart {words[2]}"

    @property
    def text(self) -> str:
        """For a sentence: the command, and where it works."""
        what = self.logs if self.is_file else f"`{self.logs}`"
        return what if self.works_anywhere else f"{what} on {self.host}"


def see(service: LiveService, host: str, otherwise: str = "see its log") -> str:
    """A clause that says how to read the log of a container on `host`; `otherwise` if that is unknown."""
    found = next((each for each in locations(service) if each.host == host), None)
    return f"see {found.text}" if found else otherwise


def locations(service: LiveService) -> Iterator[LogLocation]:
    """The logs of the containers by host, and then those of failed starts on hosts without a container."""
    for each in sorted(service.containers, key=lambda container: container.host):
        if each.logs:
            yield LogLocation(each.host, each.logs)
    hosts = {each.host for each in service.containers if each.logs}
    for ended in service.ended:
        if ended.logs and ended.host not in hosts:
            yield LogLocation(ended.host, ended.logs)
