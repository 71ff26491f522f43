"""The deployment of etc/examples/quickstart on this machine.

    db-1     database
    web-1, web-2, web-3     api
    work-1   worker
    edge-1   front

What lives here: its containers and their ports, and what can be asked of it.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from kolla_mesos_start.errors import AgentError
from kolla_mesos_start.operator.containers import Container
from kolla_mesos_start.operator.local_deployment import LocalDeployment
from kolla_mesos_start.operator.private_zookeeper import HOST, free_port
from tests import EXAMPLES

EXAMPLE = EXAMPLES / "quickstart"
API = "jobs/api"
ANSWER_TIMEOUT, ASK_EVERY = 30.0, 0.05  # seconds


class Jobs(LocalDeployment):
    """The containers and their deployment."""

    once = "api/schema"  # a one-time command

    def __init__(self, *args: Any) -> None:
        """As LocalDeployment, without `source`."""
        super().__init__(EXAMPLE, *args)
        self.database_port = free_port()
        self.add("jobs/database", "db-1", self.database_port)
        self.replicas = [self._listening(API, host) for host in ("web-1", "web-2", "web-3")]
        self.add("jobs/worker", "work-1")
        self.front = self._listening("jobs/front", "edge-1")

    def _listening(self, service: str, host: str) -> Container:
        port = free_port()
        return self.add(service, host, port, {"port": port})

    @property
    def values(self) -> Mapping[str, object]:
        return {"database_port": self.database_port}

    @property
    def victim(self) -> Container:
        """One to be killed, to see what happens then."""
        return self.replicas[0]

    def request(self) -> Iterator[str]:
        """Give the front a job, and ask until the worker has done it; yields requests and answers as text."""
        url, text = f"http://{HOST}:{self.front.environ['KOLLA_PORTS']}/jobs", "good morning"
        job = ask(url, text)
        yield f"POST {url} {text!r}"
        yield f"  {json.dumps(job)}"
        url, deadline = f"{url}/{job['job']}", time.monotonic() + ANSWER_TIMEOUT
        while not (found := ask(url))["result"]:
            if time.monotonic() > deadline:
                raise AgentError(f"the worker has not done its job within {ANSWER_TIMEOUT:g} s")
            time.sleep(ASK_EVERY)
        yield f"GET {url}"
        yield f"  {json.dumps(found)}"


def ask(url: str, text: str | None = None) -> dict[str, Any]:
    """The JSON answer to a GET, or to a POST of `text`."""
    try:
        with urllib.request.urlopen(url, text.encode() if text else None, timeout=ANSWER_TIMEOUT) as reply:
            answer: dict[str, Any] = json.load(reply)
    except OSError as error:
        raise AgentError(f"{url}: {error}") from error
    return answer
