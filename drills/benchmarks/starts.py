"""How long a container's start takes where nothing has to be waited for, and how long a probe."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from drills.benchmarks.bench import Bench, in_turn, ratios
from drills.benchmarks.table import Row, milliseconds
from kolla_mesos_start.zookeeper.tls import make_context
from tests.conftest import connected
from tests.support.agents import PROGRAM
from tests.support.certificates import certify
from tests.support.secured import JAVA, shows
from tests.support.zookeeper import HOST, Server, free_port

SERVICE = "openstack/keystone/keystone-api"
VARIABLES = {f"{name}_variable": f"the value of {name}" for name in ("one", "two", "three", "four", "five")}
TEMPLATE = "[DEFAULT]\n" + "".join(f"{name} = {{{{ {name} }}}}\n" for name in VARIABLES)


def with_template(dest: Path) -> dict[str, object]:
    """What the daemon of a definition needs to have TEMPLATE rendered."""
    return {"files": {"config": {"dest": str(dest), "perm": "0600"}}}


def cold_start(bench: Bench) -> list[Row]:
    """Spawn to the daemon's first instruction, nothing to wait for, no template."""
    deployment = bench.deployment(SERVICE)
    floor, agent = in_turn(
        25,
        lambda: bench.floor_to_mark(deployment.hosts, f"{deployment.path}/{SERVICE}"),
        lambda: bench.start_to_mark(deployment, SERVICE),
    )
    note = (
        f"{milliseconds(agent)} over {milliseconds(floor)} of a script that connects, reads one znode, execs"
    )
    return [Row("cold start, no template", "x", ratios(agent, floor), 1.0, (1.0,), "1.75x", note)]


def template(bench: Bench) -> list[Row]:
    """The same with one template of five variables, over the same floor."""
    dest = bench.directory / "rendered"
    deployment = bench.deployment(
        SERVICE, daemon=with_template(dest), files={"config": TEMPLATE}, variables=VARIABLES
    )
    service = f"{deployment.path}/{SERVICE}"

    def rendered() -> float:
        dest.unlink(missing_ok=True)  # An agent leaves alone what is right already.
        return bench.start_to_mark(deployment, SERVICE)

    plain, rendering, agent = in_turn(
        25,
        lambda: bench.floor_to_mark(deployment.hosts, service),
        lambda: bench.floor_to_mark(deployment.hosts, service, "--template", str(dest), ",".join(VARIABLES)),
        rendered,
    )
    note = (
        f"{milliseconds(agent)} over {milliseconds(plain)}, the floor of a start without template;"
        f" a script that renders the same with jinja2: {median(rendering):.0f} ms"
    )
    figures = ratios(agent, plain)
    return [Row("cold start, one template", "x", figures, 1.5, ratios(rendering, plain), "2x", note)]


def under_tls(bench: Bench) -> list[Row]:
    """A start without template under TLS, with a certificate, over one without; of one server."""
    directory, port = bench.directory / "tls", free_port()
    directory.mkdir()
    certify(directory)
    settings = {**shows(directory, "server-both.pem", "ca.pem"), "secureClientPort": port}
    java = (*JAVA, "-XX:TieredStopAtLevel=4")  # With all compilers, as servers run elsewhere.
    with ExitStack() as stack:
        server = stack.enter_context(Server(directory / "server", settings=settings, java=java))
        zk = stack.enter_context(contextmanager(connected)(server))
        own = Bench(directory, server, zk, bench.replicas)
        stack.callback(own.close)
        plain = own.deployment(SERVICE)
        secure = plain._replace(hosts=f"{HOST}:{port}")
        files = {"KOLLA_ZK_CA": "ca.pem", "KOLLA_ZK_CERT": "client.pem", "KOLLA_ZK_KEY": "client.key"}
        environ = {name: str(directory / file) for name, file in files.items()}
        _warm_up(port, make_context(*environ.values()))
        without, with_tls = in_turn(
            25,
            lambda: own.start_to_mark(plain, SERVICE),
            lambda: own.start_to_mark(secure, SERVICE, **environ),
        )
    note = f"{milliseconds(with_tls)} over {milliseconds(without)} without TLS"
    return [Row("cold start under TLS", "x", ratios(with_tls, without), 1.3, (1.0,), note=note)]


def _warm_up(port: int, context: ssl.SSLContext) -> None:
    """Have the server compile what a handshake takes, as one that has served for a while."""
    for _ in range(1000):
        with (
            socket.create_connection((HOST, port)) as plain,
            context.wrap_socket(plain, server_hostname=HOST),
        ):
            pass


def health(bench: Bench) -> list[Row]:
    """The probe `health` in a container whose daemon runs, over bare Python."""
    deployment = bench.deployment(SERVICE)
    agent = bench.start(deployment, SERVICE)
    bench.marks.take()

    def run(*words: str) -> float:
        begun = time.monotonic()
        subprocess.run([sys.executable, *words], env=agent.environ, stdout=subprocess.DEVNULL, check=True)
        return (time.monotonic() - begun) * 1000

    bare, probe = in_turn(40, lambda: run("-c", "pass"), lambda: run(str(PROGRAM), "health"))
    bench.end(agent)
    note = f"{milliseconds(probe)} over {milliseconds(bare)} of `python -c pass`"
    return [Row("health", "x", ratios(probe, bare), 1.3, (1.0,), note=note)]
