"""The HTTP endpoint that Prometheus scrapes.

What belongs here: which metrics are current, and serving them. Requests run in threads of their own: a slow
client must not delay the session. They only read what the main thread has left in `Exposition`.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from kolla_mesos_start import __version__
from kolla_mesos_start.ctl.live.metrics import families
from kolla_mesos_start.ctl.live.metrics.families import Connection, Text
from kolla_mesos_start.ctl.live.mirror import Mirror
from kolla_mesos_start.ctl.live.model import LiveDeployment, LiveService
from kolla_mesos_start.ctl.zk.connection import OperatorClient
from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.loop import now

PATH = "/metrics"
REQUEST_TIMEOUT = 10.0  # seconds; a client that is slower is disconnected
BACKLOG = 16  # connections that wait for a thread


class Exposition:
    """What is served. The main thread calls `read` after each change; other threads call `page`."""

    def __init__(self, client: OperatorClient, source: Mirror) -> None:
        self._client, self._source = client, source
        self._services: dict[str, tuple[LiveService, Text]] = {}
        self._parts: Sequence[Text] | None = None  # None: not read again since the last connection
        self._connections = 1
        client.session.on_connected(self._connect)

    def _connect(self) -> None:
        # All watches are gone: what is known is not served until it has been read again.
        self._parts = None
        self._connections += 1

    def read(self) -> None:
        """Read what has changed."""
        connections = self._connections
        deployment = self._source.deployment()
        whole = families.of_deployment(deployment, len(self._source.denied), time.time())
        services = self._of_services(deployment)
        if connections == self._connections:
            self._parts = [families.encoded(whole), *services]

    def _of_services(self, deployment: LiveDeployment) -> Sequence[Text]:
        """The lines of each service, made again only for those that have changed."""
        before, self._services = self._services, {}
        for name, service in deployment.services.items():
            known = before.get(name)
            if known is None or known[0] is not service:
                known = service, families.encoded(families.of_service(service))
            self._services[name] = known
        return [text for _, text in self._services.values()]

    def page(self) -> bytes:
        """What is served now."""
        session, parts = self._client.session, self._parts
        is_current = parts is not None and session.connected
        connection = Connection(
            version=__version__,
            is_current=is_current,
            connections=self._connections,
            sessions=session.sessions,
            timeout=session.timeout,
        )
        shown = parts if parts is not None and is_current else ()
        return families.page([families.encoded(families.of_connection(connection)), *shown]).encode()


# -- the server ---------------------------------------------------------------------------------------------


def address(text: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`; an IPv6 address is in brackets. BadUsage for anything else."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_number = port.isascii() and port.isdigit()
    if not colon or not host or not is_number or (":" in host and not is_bracketed):
        raise BadUsage(f"--listen {text}: expected HOST:PORT, such as 127.0.0.1:9105 or [::1]:9105")
    if not 0 < int(port) < 65536:
        raise BadUsage(f"--listen {text}: the port must be 1 to 65535")
    return host, int(port)


class Server(ThreadingHTTPServer):
    """Serves `page` at PATH."""

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, host: str, port: int) -> None:
        self.page: Callable[[], bytes] | None = None
        try:
            (self.address_family, *_, own), *_ = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            super().__init__(own[:2], _Handler)  # type: ignore[arg-type]
        except UnicodeError as error:  # The name has a label that is empty or too long.
            raise CannotWrite(f"--listen {host}:{port}: not the name of a host") from error
        except OSError as error:
            is_elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            remedy = (
                "an address of this machine, or 0.0.0.0" if is_elsewhere else "a free port of this machine"
            )
            raise CannotWrite(f"--listen {host}:{port}: {error.strerror or error}: give {remedy}") from error

    def serve(self, page: Callable[[], bytes]) -> None:
        """Serve in a thread from now on."""
        self.page = page
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that disconnect."""


class _Request(io.RawIOBase):
    """What a client sends until the deadline: each byte in time would otherwise hold a thread for ever."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._deadline = connection, now() + REQUEST_TIMEOUT

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - now()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH or self.server.page is None:
            self.send_error(404, f"the metrics are at {PATH}")
            return
        body = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.connection.settimeout(REQUEST_TIMEOUT)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
