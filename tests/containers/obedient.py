"""A small service for tests of containers: a daemon that ends at once when told, with a status of its own."""

from __future__ import annotations

from tests.conftest import Deployment
from tests.containers.podman import Container
from tests.publishing import publish

SERVICE = "demo/obedient"
STATUS = 7  # that nobody else would choose
PROGRAM = f"import signal, sys; signal.signal(15, lambda *_: sys.exit({STATUS})); signal.pause()"


def publish_obedient(deployment: Deployment, content: str, dest: str) -> None:
    """The daemon has one config file, which it does not read."""
    daemon = {
        "command": ["python3", "-c", PROGRAM],
        "files": {"conf": {"dest": dest}},
        "ready": {"alive": 0.2},
    }
    publish(deployment, SERVICE, {"service": {"daemon": daemon}}, files={"conf": content})


def is_ready(container: Container) -> bool:
    """What the container's own readiness probe says."""
    assert container.running, container.said
    return container.exec("kolla_mesos_start", "health", "--ready").returncode == 0
