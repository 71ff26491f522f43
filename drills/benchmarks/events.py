"""How long it takes from what happens in ZooKeeper to what a waiting container does of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from drills.benchmarks.bench import FLOORS, Bench, in_turn
from drills.benchmarks.table import Row, milliseconds
from tests.support.agents import Agent
from tests.support.waiting import eventually

ROLE = "db"
SERVICE = f"infra/{ROLE}"
PAUSE = 0.3  # seconds: what is waited for comes long after a guard has started and a machine gone quiet


def dependency(bench: Bench) -> list[Row]:
    """A dependency's `done` to the first instruction of the command that waited, guard included."""
    step = {"command": ["/bin/sh", "-c", bench.marks.leave], "dependencies": ["other/step"]}
    deployment = bench.deployment(SERVICE, {"step": step}, daemon=None)
    path = f"{deployment.path}/status/global/other/step"
    bench.zk.ensure_path(path)

    def satisfied() -> float:
        time.sleep(PAUSE)
        begun = time.time()
        bench.zk.set(path, b"done")
        return begun

    def command() -> float:
        bench.zk.set(path, b"waiting")
        agent = bench.start(deployment, SERVICE)
        agent.says("waits for other/step")
        begun = satisfied()
        (marked,) = bench.marks.take()
        bench.end(agent)
        return (marked - begun) * 1000

    def watch() -> float:
        with crowd(1, str(FLOORS / "fan_out.py"), bench.server.hosts, path, "1") as processes:
            standing(processes)
            begun = satisfied()
            (times,) = told(processes)
        return float(times["told"][0] - begun) * 1000

    floor, measured = in_turn(20, watch, command)
    note = "from before the write is sent; the floor is a bare session that is told, and starts nothing"
    return [Row("dependency to first instruction", " ms", measured, 6, floor, "5 to 10 s", note)]


def chain(bench: Bench) -> list[Row]:
    """Five plain commands in a chain, beyond one."""

    def chained(length: int) -> Any:
        steps = {
            f"step{n}": {"command": "true", "dependencies": [f"{ROLE}/step{n - 1}"] if n > 1 else []}
            for n in range(1, length + 1)
        }
        return bench.deployment(SERVICE, steps, daemon={"dependencies": [f"{ROLE}/step{length}"]})

    one, six = chained(1), chained(6)

    def floor() -> float:
        begun = time.time()
        for _ in range(5):
            bench.zk.set("/bench", b"running")
            subprocess.run(["true"], check=True)
            bench.zk.set("/bench", b"done")
        return (time.time() - begun) * 1000

    bench.zk.ensure_path("/bench")
    least, short, long = in_turn(
        15, floor, lambda: bench.start_to_mark(one, SERVICE), lambda: bench.start_to_mark(six, SERVICE)
    )
    beyond = [more - less for more, less in zip(long, short)]
    note = "six in a chain less one, pair by pair; the floor is five spawns and ten writes, one after another"
    return [Row("five plain commands in a chain", " ms", beyond, 200, least, "51800 ms", note)]


def replicas(bench: Bench) -> list[Row]:
    """20 agents wait for a one-time command that one of them runs: `done` to the last one going on."""
    gate = bench.directory / "gate"
    os.mkfifo(gate)
    once = {"command": ["/bin/sh", "-c", f"read line <{gate}"], "run_once": True}
    after = {"command": bench.daemon, "dependencies": [f"{ROLE}/once"]}

    told_so = []

    def agents() -> float:
        deployment = bench.deployment(SERVICE, {"once": once, "after": after}, daemon=None)
        agents = [bench.start(deployment, SERVICE) for _ in range(20)]
        eventually(lambda: sum("is running it" in agent.state for agent in agents) == 19, "19 wait")
        time.sleep(PAUSE)
        gate.write_text("go\n")
        went_on = bench.marks.take(20)
        done = changed(bench, f"{deployment.path}/status/global/{ROLE}/once")
        told_so.append((max(said(agent, f"{ROLE}/once: already done") for agent in agents) - done) * 1000)
        bench.end(*agents)
        return (max(went_on) - done) * 1000

    floor, measured = in_turn(5, lambda: fan_out(bench, 20, 1), agents)
    note = (
        "20 processes; from the server's stamp on `done` until the next command of each has begun;"
        f" the last one has learned of it after {milliseconds(told_so[1:])};"
        " the floor is 20 processes, a bare session each, that have the znode's value"
    )
    return [Row("20 replicas of a one-time command", " ms", measured, 90, floor, "4 to 6 s", note)]


def fan_out(bench: Bench, processes: int, each: int) -> float:
    """Milliseconds until the last of so many bare sessions has the new value of a znode."""
    bench.zk.ensure_path("/bench")
    words = (str(FLOORS / "fan_out.py"), bench.server.hosts, "/bench", str(each))
    with crowd(processes, *words) as started:
        standing(started)
        time.sleep(PAUSE)
        bench.zk.set("/bench", b"done")
        last: float = max(max(times["read"]) for times in told(started))
    return (last - changed(bench, "/bench")) * 1000


def changed(bench: Bench, path: str) -> float:
    """When the server took the last write to `path` in, by its own stamp: milliseconds of the wall clock."""
    return float(bench.zk.exists(path).mtime) / 1000


def said(agent: Agent, words: str) -> float:
    """When an agent has written a line with `words`, seconds since the epoch; 0 if it hasn't."""
    lines = [line for line in agent.said.splitlines() if words in line]
    return datetime.fromisoformat(lines[-1].split("Z ")[0] + "+00:00").timestamp() if lines else 0.0


# -- processes that stand and wait ------------------------------------------------------------------


@contextlib.contextmanager
def crowd(count: int, *words: str, number: bool = False) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """So many Python processes of the same words; with `number` each is told which it is."""
    with contextlib.ExitStack() as stack:
        processes = []
        for each in range(count):
            argv = [sys.executable, *words, *([f"crowd{each}"] if number else [])]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def standing(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all say so."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "standing\n", process.args


def told(processes: Sequence[subprocess.Popen[str]], word: str = "") -> list[Any]:
    """What each says in the end; before, `word` is said to each. They stay: an end would cost the others."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(word)
        process.stdin.flush()
    return [json.loads(process.stdout.readline()) for process in processes if process.stdout]
