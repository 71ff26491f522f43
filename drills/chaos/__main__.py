"""Runs seeds of chaos by hand, one line each, and a summary: `python -m drills.chaos --runs 200`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import pprint
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from drills.chaos.checker import Verdict, judge
from drills.chaos.plan import plan
from drills.chaos.run import Chaos, Ground, ground
from tests.conftest import connected, made
from tests.support.zookeeper import Ensemble

STOCK = {"tickTime": 2000, "syncLimit": 5}


def main() -> int:
    """Run what the command line says; 0 where nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m drills.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed (default: any)")
    parser.add_argument("--runs", type=int, default=1, help="so many seeds, one after the other (default 1)")
    parser.add_argument("--stock", action="store_true", help="servers with ZooKeeper's own ticks: slower")
    parser.add_argument("--keep", type=Path, help="where logs of seeds that went wrong are kept")
    options = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # It tells each connection that was lost.
    for signum in (signal.SIGINT, signal.SIGTERM):
        # Nothing that was started may stay; in the background of a shell SIGINT would even be ignored.
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    first = random.randrange(1_000_000) if options.seed is None else options.seed
    total: Counter[str] = Counter()
    done = wrong = 0
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: print(f"{done} seeds, {wrong} of them wrong: {told(total)}"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        ensemble = stack.enter_context(
            Ensemble(directory / "zookeeper", settings=STOCK if options.stock else None)
        )
        zk = stack.enter_context(contextlib.contextmanager(connected)(ensemble))
        here = stack.enter_context(ground(ensemble, zk, directory))
        for seed in range(first, first + options.runs):
            place = (options.keep or directory).absolute() / str(seed)
            verdict = run(seed, here, place, shortest=4 if options.stock else 2)
            print(f"seed {seed}: {told(verdict.counts)}", flush=True)
            for sentence in verdict.wrong:
                print(f"    WRONG: {sentence}", flush=True)
            if not verdict.wrong:
                shutil.rmtree(place)
            wrong += bool(verdict.wrong)
            total.update(verdict.counts)
            done += 1
    return 1 if wrong else 0


def run(seed: int, here: Ground, directory: Path, shortest: int = 2) -> Verdict:
    """One seed, and what is to be said of it. See `plan` for `shortest`."""
    directory.mkdir(parents=True)
    with contextlib.contextmanager(made)(here.ensemble, here.zk) as deployment:
        history = Chaos(plan(seed, shortest), here, deployment, directory).run()
    (directory / "history").write_text(pprint.pformat(history, width=160))
    return judge(history)


def told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
