"""Makes 200 small changes of the package (mutations), one at a time, and looks for a test that fails then.

    python -m drills.mutations calls     note which test calls which function, for the others (25 minutes)
    python -m drills.mutations record    complete the record: mutations, and the test that finds each (hours)
    python -m drills.mutations check     the same mutations again: which were found then, and are not now?

`record` replaces the mutations whose code is not in the package any more, and runs those that have no
result; with --survivors, also those that no test has found. It can be stopped at any time. `check` begins
with the test of the record, and goes on with others if there are `calls`. It names the mutations that
survive, and those whose code is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue

from drills.mutations.changes import Mutation, Place, apply, find, places, replaced
from drills.mutations.copies import Copy
from tests import CHECKOUT

RECORD = Path(__file__).with_name("record.jsonl")
CALLS = ".cache/calls.json"
COUNT, PROCESSES = 200, 2
# Seconds that tests of a mutation take, on a quiet machine: those that start programs, after all others.
LIMITS = {False: 60.0, True: 300.0}
GENEROUS = 600.0  # seconds for one test, on a busy machine; one that takes longer has not found anything
STARTS_PROGRAMS = ("tests/agent/", "tests/ctl/test_", "tests/server/")
NOT_RUN, GONE, SURVIVED = "not run", "gone", ""
SLOW, UNCERTAIN = "takes too long", "its test fails without it, too"
NO_RESULT = (NOT_RUN, GONE, SLOW, UNCERTAIN)
Recorded = tuple[Mutation, str]


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

    def all(self, wanted: Iterable[Recorded]) -> Iterator[Recorded]:
        """Each mutation with the test that finds it, or a word about it. `wanted` has the first tests."""
        with ThreadPoolExecutor(PROCESSES) as pool:
            for done in as_completed([pool.submit(self._one, *each) for each in wanted]):
                yield done.result()
        while not self._copies.empty():
            self._copies.get().remove()

    def _one(self, mutation: Mutation, known: str) -> Recorded:
        place, begun = find(self.places, mutation), time.monotonic()
        if place is None or begun > self._until:
            return mutation, NOT_RUN if place else GONE
        copy = self._copies.get()
        before = copy.write(place.module, apply((copy.root / place.module).read_bytes(), place, mutation.new))
        try:
            found = self._test_that_finds(copy, place, known)
            copy.write(place.module, before)
            if found and copy.failing([found], GENEROUS):
                found = UNCERTAIN
        except subprocess.TimeoutExpired:
            found = SLOW
        finally:
            copy.write(place.module, before)
            self._copies.put(copy)
        print(
            f"{time.monotonic() - begun:4.0f} s {place.module} {place.function}: {found or 'not found'}",
            flush=True,
        )
        return mutation, found

    def _test_that_finds(self, copy: Copy, place: Place, known: str) -> str:
        for tests in ([known], *(self._choose(place, programs) for programs in LIMITS)):
            failing = copy.failing(tests, GENEROUS + 10 * sum(self._seconds.get(test, 20) for test in tests))
            # Another one that starts programs may have failed by chance.
            if failing and (not failing.startswith(STARTS_PROGRAMS) or copy.failing([failing], GENEROUS)):
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


def read_record(everywhere: list[Place]) -> dict[Mutation, str]:
    """The mutations where their code is now, and the test that finds each, or a word about it."""
    record = {}
    for *words, found in map(json.loads, RECORD.read_text().splitlines()):
        place = find(everywhere, mutation := Mutation(*words))
        record[mutation._replace(module=place.module, function=place.function) if place else mutation] = found
    return record


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("calls", "record", "check"))
    parser.add_argument("--tree", type=Path, default=CHECKOUT, help="another checkout, which has a .venv")
    parser.add_argument("--survivors", action="store_true", help="with `record`: run those again, too")
    parser.add_argument("--minutes", type=float, default=600, help="when to begin no other mutation")
    options = parser.parse_args()
    tree, until = options.tree.resolve(), time.monotonic() + 60 * options.minutes
    os.nice(10)
    if options.what == "calls":
        note_calls(tree)
        return 0
    run = Run(tree, until)
    recorded = read_record(run.places)
    if options.what == "record":
        chosen = replaced(run.places, list(recorded), COUNT)
        record = {mutation: recorded.get(mutation, NOT_RUN) for mutation in chosen}
        wanted = (SURVIVED, *NO_RESULT) if options.survivors else NO_RESULT
        for mutation, found in run.all([(each, "") for each, found in record.items() if found in wanted]):
            record[mutation] = found
            RECORD.write_text("".join(json.dumps([*each, test]) + "\n" for each, test in record.items()))
    if options.what == "check":
        lost = 0
        for mutation, found in run.all([each for each in recorded.items() if each[1].startswith("tests/")]):
            lost += found == SURVIVED
            if not found.startswith("tests/"):
                print(f"{found or 'SURVIVED'}: {mutation.module} {mutation.function}")
                print(f"    found by {recorded[mutation]} before\n    {mutation.old}\n    {mutation.new}")
        return int(lost > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
