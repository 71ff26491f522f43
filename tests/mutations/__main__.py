"""Makes 200 small changes of the package (mutations), one at a time, and looks for a test that fails then.

    python -m tests.mutations calls     note which test calls which function, for the others (25 minutes)
    python -m tests.mutations record    choose the mutations, and note the test that finds each (an hour)
    python -m tests.mutations check     the same mutations again: which were found then, and are not now?

`check` begins with the test of the record, and goes on with others if there are `calls`. It names the
mutations that survive, and those whose code is not in the package any more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests import CHECKOUT
from tests.mutations.changes import Mutation, Place, apply, choose, find, places
from tests.mutations.copies import Copy

RECORD = Path(__file__).with_name("record.jsonl")
CALLS = ".cache/calls.json"
COUNT, PROCESSES = 200, 2
# Seconds that tests of a mutation may take: those that start programs, after all others.
LIMITS = {False: 8.0, True: 20.0}
STARTS_PROGRAMS = "tests/integration/"
NOT_RUN, GONE, SURVIVED = "not run", "gone", ""


def note_calls(tree: Path) -> None:
    """Write the seconds of each test that passes, and the tests that call each function."""
    copy = Copy(tree)
    lines = copy.note_calls()
    copy.remove()
    seconds: dict[str, float] = defaultdict(float)
    failed = {line[1] for line in lines if line[0] == "failed"}
    tests_of = defaultdict(set)
    for line in lines:
        if len(line) == 3:
            tests_of[":".join(line[1:])].add(line[0])
        elif line[0] not in ("begins", "failed") and line[1] not in failed:
            seconds[line[1]] += float(line[0])
    known = {name: sorted(tests & seconds.keys()) for name, tests in tests_of.items()}
    (tree / CALLS).parent.mkdir(exist_ok=True)
    (tree / CALLS).write_text(json.dumps([seconds, known]))
    print(f"{len(seconds)} tests; left out, since they failed: {sorted(failed)}")


class Run:
    """Mutations of a tree, in copies of it."""

    def __init__(self, tree: Path, until: float) -> None:
        self.places = places(tree)
        self._until = until
        calls = tree / CALLS
        self._seconds, self._tests_of = json.loads(calls.read_text()) if calls.exists() else ({}, {})
        self._counts = Counter(test for tests in self._tests_of.values() for test in tests)
        self._copies: Queue[Copy] = Queue()
        for _ in range(PROCESSES):
            self._copies.put(Copy(tree))

    def all(self, wanted: list[tuple[Mutation, str]]) -> list[str]:
        """The test that finds each mutation, or a word about it. Each is given with a test to begin with."""
        found = [SURVIVED] * len(wanted)
        for programs in LIMITS:
            left = [number for number, test in enumerate(found) if test == SURVIVED]
            with ThreadPoolExecutor(PROCESSES) as pool:
                tests = pool.map(lambda number: self._one(*wanted[number], programs), left)  # noqa: B023
                for number, test in zip(left, tests):
                    found[number] = test
        while not self._copies.empty():
            self._copies.get().remove()
        return found

    def _one(self, mutation: Mutation, known: str, programs: bool) -> str:
        place, begun = find(self.places, mutation), time.monotonic()
        if place is None or begun > self._until:
            return NOT_RUN if place else GONE
        copy = self._copies.get()
        before = copy.write(place.module, apply((copy.root / place.module).read_bytes(), place, mutation.new))
        try:
            found = self._test_that_finds(copy, place, "" if programs else known, programs)
        finally:
            copy.write(place.module, before)
            self._copies.put(copy)
        said = f"found by {found}" if found else "not found" + programs * " at all"
        print(f"{time.monotonic() - begun:4.0f} s {place.module} {place.function}: {said}", flush=True)
        return found

    def _test_that_finds(self, copy: Copy, place: Place, known: str, programs: bool) -> str:
        for tests in ([known], self._choose(place, programs)):
            failing = copy.failing(tests, 30 + 3 * sum(self._seconds.get(test, 20) for test in tests))
            # Another one that starts programs may have failed by chance.
            if failing and (not failing.startswith(STARTS_PROGRAMS) or copy.failing([failing], 100)):
                return failing
        return SURVIVED

    def _choose(self, place: Place, programs: bool) -> list[str]:
        """First what is quick, and what calls few functions."""
        tests = self._tests_of.get(f"{place.module}:{place.function}", [])
        tests = [test for test in tests if test.startswith(STARTS_PROGRAMS) == programs]
        tests.sort(key=lambda test: self._seconds[test] + self._counts[test] / 100)
        chosen: list[str] = []
        left = LIMITS[programs]
        for test in tests:
            if left > 0:
                chosen.append(test)
                left -= self._seconds[test]
        return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("calls", "record", "check"))
    parser.add_argument("--tree", type=Path, default=CHECKOUT, help="another checkout, which has a .venv")
    parser.add_argument("--minutes", type=float, default=120, help="when to begin no other mutation")
    options = parser.parse_args()
    tree, until = options.tree.resolve(), time.monotonic() + 60 * options.minutes
    os.nice(10)
    if options.what == "calls":
        note_calls(tree)
    if options.what == "record":
        run = Run(tree, until)
        chosen = choose(run.places, COUNT)
        found = run.all([(mutation, "") for mutation in chosen])
        lines = (json.dumps([*mutation, test]) for mutation, test in zip(chosen, found))
        RECORD.write_text("\n".join(lines) + "\n")
    if options.what == "check":
        recorded = [json.loads(line) for line in RECORD.read_text().splitlines()]
        wanted = [(Mutation(*each[:-1]), each[-1]) for each in recorded if each[-1].startswith("tests/")]
        found = Run(tree, until).all(wanted)
        for (mutation, test), now in zip(wanted, found):
            if now in (NOT_RUN, GONE, SURVIVED):
                print(f"{now or 'SURVIVED'}: {mutation.module} {mutation.function}, found by {test} before")
                print(f"    {mutation.old}\n    {mutation.new}")
        return int(SURVIVED in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
