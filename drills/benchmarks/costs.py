"""What a container costs the server, and its machine: requests, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing, suppress

import psutil
from kazoo.exceptions import NoNodeError

from drills.benchmarks.bench import Bench
from drills.benchmarks.starts import SERVICE, TEMPLATE, VARIABLES, with_template
from drills.benchmarks.table import Row
from tests.conftest import Deployment
from tests.support.agents import Agent
from tests.support.counting import Line, Request, summary
from tests.support.instances import INSTANCE_DATA
from tests.support.waiting import eventually

HOSTS = ("web1", "web2", "web3")
MEGABYTE = 1_000_000


def rendering(bench: Bench) -> list[Row]:
    """Requests of a start that renders one template of five variables, in a small and a large deployment."""
    rows = []
    counts = []
    for services in (60, 600):
        requests = _rendered_among(bench, services)
        counts.append(float(len(requests)))
        service = [r for r in requests if "/variables/" in r.path or "/files/" in r.path]
        note = (
            f"connect to exec: {summary(requests)}; {len(service)} of them ask for the file and its variables"
        )
        figure = f"requests to render, among {services} x 3"
        rows.append(Row(figure, "", [counts[-1]], 30, (6.0,), "1732" if services == 60 else "", note))
    rows.append(Row("more of them among 600 than among 60", "", [counts[1] - counts[0]], 0, (0.0,)))
    return rows


def starting(bench: Bench) -> list[Row]:
    """Requests of a start with a one-time command, two dependencies that hold, one file, and a daemon."""
    once = {"command": "true", "run_once": True, "dependencies": ["other/step", "mq/daemon"]}
    dest = bench.directory / "started"
    files = {"config": {"dest": str(dest), "perm": "0600"}}
    role = SERVICE.rsplit("/", 1)[-1]
    deployment = bench.deployment(
        SERVICE,
        {"once": once},
        daemon={"dependencies": [f"{role}/once"], "files": files},
        files={"config": "a = {{ x }}\n"},
        variables={"x": "1"},
    )
    status = f"{deployment.path}/status/global"
    bench.zk.create(f"{status}/other/step", b"done", makepath=True)
    bench.zk.create(f"{status}/mq/daemon/ready/one", INSTANCE_DATA, ephemeral=True, makepath=True)
    with closing(Line(bench.server)) as line:
        agent = bench.start(deployment._replace(hosts=line.hosts), SERVICE)
        bench.marks.take()
        requests = line.connections[0]  # The registrar comes by another.
        bench.end(agent)
    writes = [request for request in requests if request.name in ("multi", "create", "delete", "setData")]
    note = summary(requests)
    return [
        Row("requests of one start", "", [len(requests)], 30, note=note),
        Row("transactions among them", "", [len(writes)], 6),
    ]


def running(bench: Bench) -> list[Row]:
    """What a running container asks of the server in a minute, besides pings."""
    deployment = bench.deployment(SERVICE)
    with closing(Line(bench.server)) as line:
        agent = bench.start(deployment._replace(hosts=line.hosts), SERVICE)
        await_ready(bench, deployment, agent)
        before = [len(requests) for requests in line.connections]
        time.sleep(60)
        after = [requests[start:] for requests, start in zip(line.connections, before)]
        after += line.connections[len(before) :]
        bench.end(agent)
    requests = [request for connection in after for request in connection]
    assert requests, "it has lost its session"
    others = [request for request in requests if request.name != "ping"]
    figure = "requests of a minute, pings aside"
    return [Row(figure, "", [len(others)], 0, (0.0,), "8100", f"a running container: {summary(requests)}")]


def memory(bench: Bench) -> list[Row]:
    """Resident memory of all that stays beside the daemon."""
    deployment = bench.deployment(SERVICE)
    rss, notes = [], ""
    for _ in range(5):
        agent = bench.start(deployment, SERVICE)
        await_ready(bench, deployment, agent)
        stays = [psutil.Process(pid) for pid in agent.processes if pid != agent.pid]
        found = [process.memory_full_info() for process in stays]
        rss.append(sum(each.rss for each in found) / MEGABYTE)
        own = sum(each.uss for each in found) / MEGABYTE
        threads = sum(process.num_threads() for process in stays)
        names = ", ".join(process.name() for process in stays)
        notes = f"{names}: {own:.1f} MB are its own (USS), {threads} threads; kolla-mesos has 4"
        bench.end(agent)
    return [Row("memory beside a daemon", " MB", rss, 11, [bare_python() for _ in rss], "26 MB", notes)]


def _rendered_among(bench: Bench, services: int) -> list[Request]:
    dest = bench.directory / f"rendered-among-{services}"
    deployment = bench.deployment(
        SERVICE, daemon=with_template(dest), files={"config": TEMPLATE}, variables=VARIABLES
    )
    _fill(bench, deployment, services)
    with closing(Line(bench.server)) as line:
        agent = bench.start(deployment._replace(hosts=line.hosts), SERVICE)
        bench.marks.take()
        assert dest.read_text().count("the value of") == len(VARIABLES)
        requests = line.connections[0]  # The registrar comes by another.
        bench.end(agent)
    return requests


def _fill(bench: Bench, deployment: Deployment, services: int) -> None:
    """Services as they stand in a tree when all have started, present and ready on three hosts each."""
    nodes: dict[str, bytes] = {f"{deployment.path}/{name}": b"" for name in ("status", "status/global")}
    for number in range(services):
        service, role = (
            f"{deployment.path}/service{number}",
            f"{deployment.path}/status/global/service{number}",
        )
        nodes[service] = json.dumps({"service": {"daemon": {"command": "true"}}}).encode()
        nodes.update(dict.fromkeys([f"{service}/variables", f"{service}/.party"], b""))
        nodes.update({f"{service}/variables/{name}": b"value" for name in VARIABLES})
        nodes.update({role: b"", f"{role}/daemon": b"done", f"{role}/daemon/ready": b""})
        for host in HOSTS:
            facts = json.dumps({"host": host, "address": "192.0.2.1", "ports": [5000]}).encode()
            nodes[f"{service}/variables/{host}"] = b""
            nodes[f"{service}/variables/{host}/{next(iter(VARIABLES))}"] = b"value"
            nodes[f"{service}/.party/{host}"] = nodes[f"{role}/daemon/ready/{host}"] = facts
    for reply in [bench.zk.create_async(path, data) for path, data in nodes.items()]:
        reply.get()


def await_ready(bench: Bench, deployment: Deployment, agent: Agent) -> None:
    """Wait until the container has done all it does at its start."""
    bench.marks.take()
    path = f"{deployment.path}/status/global/{SERVICE.rsplit('/', 1)[-1]}/daemon"
    eventually(lambda: bench.zk.get_children(f"{path}/ready"), "it is ready")
    eventually(lambda: agent.state.startswith("ready"), "it says so")
    eventually(lambda: bench.zk.get(path)[0] != b"waiting", "it is told in the tree")
    eventually(lambda: _shown(bench, f"{deployment.path}/{SERVICE}/.containers") == ["ready"], "so here")


def _shown(bench: Bench, path: str) -> list[str]:
    """What the containers below this path say of themselves, as tools show it."""
    found = []
    for name in bench.zk.get_children(path):
        with suppress(NoNodeError):  # A container makes its own again.
            found.append(json.loads(bench.zk.get(f"{path}/{name}")[0])["state"])
    return found


def bare_python() -> float:
    """Resident memory of a Python that does nothing."""
    argv = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rss: int = psutil.Process(process.pid).memory_info().rss
        process.kill()
    return rss / MEGABYTE
