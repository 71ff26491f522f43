"""`kolla_mesos_ctl metrics`: the state of a deployment for Prometheus, served or printed once.

Requests run in threads of their own: a slow client must not delay the session. They only read what the main
thread has left in `Exposition`.
"""

from __future__ import annotations

import errno
import io
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from kolla_mesos_start import __version__
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live import metrics as families
from kolla_mesos_start.ctl.live.metrics import Sample
from kolla_mesos_start.ctl.live.mirror import Mirror, mirror
from kolla_mesos_start.ctl.subcommand import argument, subcommand
from kolla_mesos_start.ctl.zk.connection import INTERRUPTS, OperatorClient
from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.loop import now

PATH = "/metrics"
REQUEST_TIMEOUT = 10.0  # seconds; a client that is slower is disconnected
BACKLOG = 16  # connections that wait for a thread


@subcommand(
    "kolla_mesos_ctl metrics --listen 127.0.0.1:9105 --deployment site",
    argument("--listen", metavar="HOST:PORT", help=f"serve http://HOST:PORT{PATH} until Ctrl-C or SIGTERM"),
    argument("--once", action="store_true", help="print the metrics and end"),
)
def metrics(invocation: Invocation) -> int:
    """Serve the state of a deployment as metrics for Prometheus, in the OpenMetrics format. ZooKeeper is read
    once and then watched: it is asked again only for what has changed, however often Prometheus scrapes. A
    running container is never asked.

    While the connection to ZooKeeper is lost, kolla_mesos_zookeeper_connected is 0 and nothing is served
    about the deployment. Services that this identity may not read have kolla_mesos_service_readable 0.

    The metrics contain names of services, hosts and commands, but no variable, no file content and no
    message. Anybody who reaches the address can read them: listen on an address of the monitoring network.

    The exit status is 64 for a bad address, 73 if it is in use, and 143 after SIGTERM.
    """
    options = invocation.options
    if options.once == bool(options.listen):
        raise BadUsage("give either --listen HOST:PORT or --once; see kolla_mesos_ctl metrics --help")
    if options.once:
        _, exposition = _read(invocation)
        sys.stdout.write(exposition.page().decode())
        return 0
    signal.signal(signal.SIGTERM, INTERRUPTS.handle)  # Process 1 of a container would ignore it.
    with Server(*address(options.listen)) as server:
        source, exposition = _read(invocation, watching=True)
        server.serve(exposition.page)
        invocation.err.print(f"serving http://{options.listen}{PATH} until Ctrl-C or SIGTERM")
        while True:
            source.wait()
            exposition.read()


def _read(invocation: Invocation, *, watching: bool = False) -> tuple[Mirror, Exposition]:
    source = mirror(invocation, watching=watching, partly=True)
    exposition = Exposition(invocation.client, source)
    exposition.read()
    return source, exposition


# -- what is served -----------------------------------------------------------------------------------------


class Exposition:
    """What is served. The main thread calls `read` after each change; other threads call `page`."""

    def __init__(self, client: OperatorClient, source: Mirror) -> None:
        self._client, self._source = client, source
        self._samples: Sequence[Sample] | None = None  # None: not read again since the last connection
        self._connections = 1
        client.session.on_connected(self._connect)

    def _connect(self) -> None:
        # All watches are gone: what is known is not served until it has been read again.
        self._samples = None
        self._connections += 1

    def read(self) -> None:
        """Read what has changed."""
        connections = self._connections
        deployment = self._source.deployment()
        samples = list(families.of_deployment(deployment, len(self._source.denied), time.time()))
        for service in deployment.services.values():
            samples += families.of_service(service)
        if connections == self._connections:
            self._samples = samples

    def page(self) -> bytes:
        """What is served now."""
        session, samples = self._client.session, self._samples
        is_current = samples is not None and session.connected
        own = families.of_connection(
            __version__, is_current, self._connections, session.sessions, session.timeout
        )
        return families.page([*own, *(samples if samples is not None and is_current else ())])


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
    """Serves `page` at PATH. Before `serve` it has the address, and refuses connections."""

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, host: str, port: int) -> None:
        self._given = f"--listen {host}:{port}"
        self.page: Callable[[], bytes] | None = None
        with self._faults():
            (self.address_family, *_, own), *_ = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            super().__init__(own[:2], _Handler, bind_and_activate=False)  # type: ignore[arg-type]
            try:
                self.server_bind()
            except BaseException:
                self.server_close()
                raise

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """CannotWrite names the address that can't be used."""
        try:
            yield
        except UnicodeError as error:  # The name has a label that is empty or too long.
            raise CannotWrite(f"{self._given}: not the name of a host") from error
        except OSError as error:
            is_elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            remedy = (
                "an address of this machine, or 0.0.0.0" if is_elsewhere else "a free port of this machine"
            )
            raise CannotWrite(f"{self._given}: {error.strerror or error}: give {remedy}") from error

    def serve(self, page: Callable[[], bytes]) -> None:
        """Serve in a thread from now on."""
        self.page = page
        with self._faults():
            self.server_activate()
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
