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
from kolla_mesos_start.operator.containers import CHECKOUT, Container
from kolla_mesos_start.operator.site import Site
from kolla_mesos_start.operator.zookeeper import HOST, free_port

EXAMPLE = CHECKOUT / "etc" / "examples" / "quickstart"
API = "jobs/api"
ANSWER_LIMIT, ASK_EVERY = 30.0, 0.05  # seconds


class Jobs(Site):
    """The containers and their deployment."""

    once = "api/schema"

    def __init__(self, *args: Any) -> None:
        """As a Site, but for the example."""
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
        return self.replicas[0]

    def request(self) -> Iterator[str]:
        """Give the front a job, and ask until the worker has done it."""
        url, text = f"http://{HOST}:{self.front.environ['KOLLA_PORTS']}/jobs", "good morning"
        job = ask(url, text)
        yield f"POST {url} {text!r}"
        yield f"  {json.dumps(job)}"
        url, deadline = f"{url}/{job['job']}", time.monotonic() + ANSWER_LIMIT
        while not (found := ask(url))["result"]:
            if time.monotonic() > deadline:
                raise AgentError("the worker has not done its job")
            time.sleep(ASK_EVERY)
        yield f"GET {url}"
        yield f"  {json.dumps(found)}"


def ask(url: str, text: str | None = None) -> dict[str, Any]:
    """The JSON that is answered to a GET, or a POST of `text`."""
    try:
        with urllib.request.urlopen(url, text.encode() if text else None, timeout=ANSWER_LIMIT) as reply:
            answer: dict[str, Any] = json.load(reply)
    except OSError as error:
        raise AgentError(f"{url}: {error}") from error
    return answer
