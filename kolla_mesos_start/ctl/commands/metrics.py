"""`kolla_mesos_ctl metrics`: the state of a deployment for Prometheus, served or printed once."""

from __future__ import annotations

import signal
import sys

from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.live.metrics import endpoint
from kolla_mesos_start.ctl.live.metrics.endpoint import PATH, Exposition, Server
from kolla_mesos_start.ctl.live.mirror import Mirror, mirror
from kolla_mesos_start.ctl.subcommand import argument, subcommand
from kolla_mesos_start.errors import BadUsage, Stopped


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
    with Server(*endpoint.address(options.listen)) as server:
        _serve(invocation, server)
    return 0


def _serve(invocation: Invocation, server: Server) -> None:
    source, exposition = _read(invocation, watching=True)
    invocation.client.loop.on_signal(signal.SIGTERM, _stop)  # Process 1 of a container would ignore it.
    server.serve(exposition.page)
    listen = invocation.options.listen
    invocation.err.print(f"serving http://{listen}{PATH} until Ctrl-C or SIGTERM")
    while True:
        source.wait()
        exposition.read()


def _read(invocation: Invocation, *, watching: bool = False) -> tuple[Mirror, Exposition]:
    source = mirror(invocation, watching=watching, partly=True)
    exposition = Exposition(invocation.client, source)
    exposition.read()
    return source, exposition


def _stop(signum: int) -> None:
    raise Stopped(signum, signal.Signals(signum).name)
