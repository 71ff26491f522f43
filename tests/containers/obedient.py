"""A small service for tests of containers: a daemon that ends at once when told, with a status of its own.

Its one config file, which nobody reads, is that of a one-time command before it: a container in which the
command has nothing to do any more has the file all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.conftest import Deployment
from tests.containers.podman import Container
from tests.support.publishing import publish
from tests.support.waiting import eventually

SERVICE = "demo/obedient"
STATUS = 7  # that nobody else would choose
# It is ready when it would obey: whatever has started it may take its time, as Kolla's script does.
PROGRAM = f"""
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({STATUS}))
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""
# What becomes of the file when its znode changes, and the same container is started again.
STRATEGIES = (("COPY_ONCE", "first"), ("COPY_ALWAYS", "second"))
COMMAND = ("python3", "-c", PROGRAM)


def publish_obedient(
    deployment: Deployment, content: str, dest: str, *, command: Sequence[str] | str = COMMAND
) -> None:
    """`command` becomes the daemon, or is it."""
    once = {"command": "true", "run_once": True, "files": {"conf": {"dest": dest}}}
    daemon = {"command": command, "dependencies": ["obedient/once"], "ready": {"notify": True}}
    definition = {"commands": {"once": once}, "service": {"daemon": daemon}}
    publish(deployment, SERVICE, definition, files={"conf": content})


def is_ready(container: Container) -> bool:
    """What the container's own readiness probe says."""
    assert container.running, container.said
    return container.exec("kolla_mesos_start", "health", "--ready").returncode == 0


def contents(
    deployment: Deployment,
    first: Container,
    second: Container,
    dest: str,
    path: str,
    command: Sequence[str] | str = COMMAND,
) -> list[str]:
    """What its file, at `path`, holds in one container, in the same one after a change, and in another one.

    Two containers of the service that have not been started; the second is as if the first were made again.
    """
    publish_obedient(deployment, "first", dest, command=command)
    found = [_content_after_start(first, path)]
    publish_obedient(deployment, "second", dest, command=command)
    found += [_content_after_start(each, path) for each in (first, second)]
    assert [each.said.count("obedient/once: starting") for each in (first, second)] == [1, 0]
    return found


def _content_after_start(container: Container, path: str) -> str:
    container.start()
    eventually(lambda: is_ready(container), "it is ready")
    content = container.read(path)
    assert container.stop() == STATUS
    return content
