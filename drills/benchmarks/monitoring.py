"""What `kolla_mesos_ctl metrics` costs, and how soon it shows a change."""

from __future__ import annotations

import contextlib
import time
import urllib.request

import psutil

from drills.benchmarks.bench import Bench
from drills.benchmarks.costs import MEGABYTE
from drills.benchmarks.table import Row
from tests.conftest import Deployment
from tests.ctl.test_metrics import asked, serving
from tests.support import large
from tests.support.counting import Line, Request, summary
from tests.support.waiting import eventually

SERVICES, REPLICAS = 1000, 3
SCRAPES, CHANGES = 20, 10
QUIET = 30.0  # seconds in which nothing changes
SETTLED = 2.0  # seconds without a request


def metrics(bench: Bench) -> list[Row]:
    """Metrics of 1000 services x 3: a scrape, memory, requests while nothing changes, delay of a change."""
    deployment = Deployment(bench.server.hosts, "/metrics", "site")
    bench.zk.ensure_path(deployment.path)
    large.fill(bench.zk, deployment, SERVICES, REPLICAS)
    with contextlib.closing(Line(bench.server)) as line:
        watched = deployment._replace(hosts=line.hosts)
        with serving(watched, bench.directory) as endpoint:
            url = f"http://{endpoint.listen}/metrics"
            process = psutil.Process(endpoint.pid)
            requests = settled(line)
            read = summary(requests)
            scrapes = [scraped(url)[0] for _ in range(SCRAPES)]
            before = len(requests)
            packets = int(bench.server.mntr()["zk_packets_received"])
            watches = bench.server.mntr()["zk_watch_count"]
            begun, spent = time.monotonic(), sum(process.cpu_times()[:2])
            while time.monotonic() - begun < QUIET:
                scraped(url)
                time.sleep(1.0)
            assert requests is line.connections[-1], "the connection was lost: this machine is too busy"
            more = asked(requests[before:])
            packets = int(bench.server.mntr()["zk_packets_received"]) - packets
            spent = sum(process.cpu_times()[:2]) - spent
            delays = [delay(bench, deployment, url, number) for number in range(CHANGES)]
            memory = process.memory_info().rss / MEGABYTE
            size = len(scraped(url)[1]) / MEGABYTE
    title = f"metrics of {SERVICES} x {REPLICAS}"
    quiet = (
        f"in {QUIET:g} s with a scrape each second; the server counted {packets} packets of all sessions"
        f" (pings, and this count itself); the tool used {spent:.1f} s of a processor; the server has"
        f" {watches} watches; the tool had read all by {read}"
    )
    woken = "from the reply to the deletion of a ready instance until a whole scrape has shown it"
    return [
        Row(f"{title}: scrape", " s", scrapes, 0.3, note=f"{size:.1f} MB, uncompressed"),
        Row(f"{title}: memory", " MB", [memory], 120, note="resident, after all the scrapes and changes"),
        Row(f"{title}: requests while nothing changes", "", [float(len(more))], 0, note=quiet),
        Row(f"{title}: delay of a lost instance", " s", delays, 0.3, note=woken),
    ]


def settled(line: Line) -> list[Request]:
    """The requests of the tool, once it has read everything, again if its connection was lost."""

    def is_quiet() -> bool:
        before = len(line.connections), len(asked(line.connections[-1]))
        time.sleep(SETTLED)
        return before == (len(line.connections), len(asked(line.connections[-1])))

    eventually(is_quiet, "the tool asks nothing more", seconds=60)
    return line.connections[-1]


def scraped(url: str) -> tuple[float, bytes]:
    """How long a scrape took, in seconds, and what it brought."""
    begun = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as reply:
        body: bytes = reply.read()
    return time.monotonic() - begun, body


def delay(bench: Bench, deployment: Deployment, url: str, number: int) -> float:
    """Seconds until a scrape shows that an instance of a service is no longer ready."""
    ready = f"{deployment.path}/status/global/s{number}/daemon/ready/0__party__"
    bench.zk.delete(ready)
    begun = time.monotonic()
    shown = f'kolla_mesos_service_instances_ready{{service="s{number}"}} {REPLICAS - 1}.0'.encode()
    eventually(lambda: shown in scraped(url)[1], f"{ready} is gone", every=0.0)
    return time.monotonic() - begun
