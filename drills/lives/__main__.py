"""Runs random lives by hand: `python -m drills.lives --runs 1000`; `--seed N --runs 1` replays one.

Prints a line for each life in which something was wrong, and a summary. What a seed chooses is the same each
time; the instants depend on the machine, so a rare fault may need several replays.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kazoo.client import KazooClient

from drills.lives.life import Life
from drills.lives.plan import plan
from tests.support.link import Link
from tests.support.zookeeper import Server

PREFIX = "/lives"


class Ground:
    """The server, and a link to it for each thread."""

    def __init__(self, directory: Path, server: Server, zk: KazooClient) -> None:
        self.directory, self.server, self.zk = directory, server, zk
        self.links: list[Link] = []
        self._own = threading.local()

    def close(self) -> None:
        for link in self.links:
            link.kill()

    def live(self, seed: int) -> tuple[int, list[str], Life]:
        """One life in this thread."""
        link = getattr(self._own, "link", None)
        if link is None:
            link = self._own.link = Link(self.server, self.directory / f"link-{threading.get_ident()}")
            self.links.append(link)
        life = Life(plan(seed), self.directory / str(seed), self.zk, link, PREFIX)
        return seed, life.run(), life


def main() -> int:
    """Run what the command line says; 0 where nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m drills.lives", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed (default: any)")
    parser.add_argument("--runs", type=int, default=100, help="so many lives (default 100)")
    parser.add_argument("--at-once", type=int, default=6, help="so many at the same time (default 6)")
    parser.add_argument("--keep", type=Path, help="where the directories of lives that went wrong are kept")
    parser.add_argument(
        "--show", action="store_true", help="print what happened in each life that went wrong"
    )
    options = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    first = random.randrange(1_000_000) if options.seed is None else options.seed
    seeds = range(first, first + options.runs)
    total: Counter[str] = Counter()
    wrong = done = 0
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lives-")))
        server = stack.enter_context(Server(directory / "zookeeper"))
        zk = KazooClient(server.hosts)
        zk.start()
        stack.callback(zk.stop)
        ground = Ground(directory, server, zk)
        stack.callback(ground.close)
        pool = ThreadPoolExecutor(options.at_once)
        stack.callback(lambda: pool.shutdown(cancel_futures=True))
        for seed, sentences, life in pool.map(ground.live, seeds):
            done += 1
            total.update(event.name for event in life.history)
            wrong += bool(sentences)
            for sentence in sentences:
                print(f"seed {seed}: WRONG: {sentence}", flush=True)
            if sentences and options.show:
                print(life.plan)
                for event in life.history:
                    print(f"    {event.at:7.3f} {event.name} {' '.join(event.words)}")
            if sentences and options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(life.directory / "log", options.keep / f"{seed}.log")
            shutil.rmtree(life.directory)
        print(
            f"{done} lives from seed {first}, {wrong} wrong, {time.monotonic() - begun:.0f} s;"
            f" {', '.join(f'{name} {count}' for name, count in sorted(total.items()))}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
