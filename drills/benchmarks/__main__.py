"""Measures all that the agent is to be quick at, or some of it, and prints one table."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from kazoo.client import KazooClient

import kolla_mesos_start
from drills.benchmarks import costs, events, openstack, scale, starts
from drills.benchmarks.bench import Bench
from drills.benchmarks.machine import describe
from drills.benchmarks.table import Row, as_json, as_text
from tests.support.zookeeper import Server

MEASURES: dict[str, Callable[[Bench], list[Row]]] = {
    "cold-start": starts.cold_start,
    "template": starts.template,
    "tls": starts.under_tls,
    "dependency": events.dependency,
    "chain": events.chain,
    "replicas": events.replicas,
    "rendering": costs.rendering,
    "starting": costs.starting,
    "running": costs.running,
    "memory": costs.memory,
    "health": starts.health,
    "scale": scale.scale,
    "openstack": openstack.openstack,
}


def main() -> None:
    """Run what the command line names, in the order of the table."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and end what runs
    # Byte code is a third of a start.
    compileall.compile_dir(str(Path(kolla_mesos_start.__file__).parent), quiet=1)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        server = stack.enter_context(Server(directory / "zookeeper"))
        machine = describe(server)
        zk = KazooClient(server.hosts)
        zk.start()
        stack.callback(zk.stop)
        bench = Bench(directory, server, zk, options.replicas)
        stack.callback(bench.close)
        try:
            for name in [name for name in MEASURES if name in (options.names or MEASURES)]:
                begun = time.monotonic()
                print(f"{name} ...", end="", flush=True, file=sys.stderr)
                rows += MEASURES[name](bench)
                print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr)
        finally:  # What is measured is measured, whatever comes then.
            print(as_text(machine, rows))
            if options.json:
                options.json.write_text(as_json(machine, rows))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m drills.benchmarks",
        description=__doc__,
        epilog="\n".join(f"{name:12} {measure.__doc__}" for name, measure in MEASURES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to measure; default: all of it")
    parser.add_argument(
        "--replicas", metavar="N", type=int, default=100, help="of each service in `scale`; default: 100"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the same there, with all samples")
    options = parser.parse_args()
    unknown = set(options.names) - MEASURES.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    return options


main()
