"""Changes valid inputs at random, gives them to a parser, and counts the outcomes.

This module has the changes and the definition of a defect. Each test has its valid inputs and its parser.
"""

from __future__ import annotations

import json
import marshal
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, TypeVar

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.errors import AgentError

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
# Inputs from one seed: hypothesis needs longer for a seed than most borders for an input. FAST is for those
# that take some hundredths of a thousandth of a second.
BATCH, FAST = 30, 75
TIME_LIMIT = 20.0  # seconds for one input; on a busy machine all but a hang take some thousandths of one
MEMORY_LIMIT = 256 << 10  # KiB that a batch may need

# A test that is given many seeds. There is nothing to be made smaller of a seed, nor to be explained.
SEEDS = st.integers(0, 2**64 - 1)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

# Values that are no value of the kind that is expected, or are one, but only just.
STRINGS = (
    " ;a;0;-1;007;1e9;true;null;/;..;.;a/b;a/b/c;//;{{ a }};{{;{%;{#;127.0.0.1;::1;fe80::1%eth0;[::1]:80;"
    "http://[::1;global;daemon;$(a);';\""
)
ODD: Sequence[Any] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, 65536, 2**31, 2**63, -(2**63), 10**30, 1e308, -0.0, "", "\0"),
    *("\n", "\x1b[2J", "\u2028", "é", "\ud800", "\U0001f600", "x" * 5000, "9" * 5000, [], {}, [[]], [{}]),
    *({"": None}, {"a": []}, [None, 1, "a"], {"\ud800": 1}),
    *STRINGS.split(";"),
)
BYTES: Sequence[bytes] = (
    *(b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xc3"),
    *(b"\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\t", b"9" * 400, b"9" * 5000, b"[" * 3000),
    *(b'{"a":' * 3000, b"A" * 20000),
    *(b" ;{;};[;];\";';:;,;-;\\;\\ud800;{{;}};{%;%};null;true;NaN;Infinity;-1;1e999").split(b";"),
)


def seeded(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test many values of `seed`: a fourth of what other tests are given, since each is a batch."""
    assert settings.default is not None
    count = settings.default.max_examples // 4
    return settings(phases=PHASES, max_examples=count)(given(seed=SEEDS)(test))


class Fuzz:
    """Tries inputs, and counts them by border."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()

    def __call__(
        self,
        border: str,
        seed: int,
        make: Callable[[Random], T],
        attempt: Callable[[T], object],
        *,
        batch: int = BATCH,
    ) -> None:
        """Try a batch of the inputs that `make` makes. An error of ours is fine, unless it says `defect`."""
        random = Random(seed)
        before = _memory()
        for _ in range(batch):
            tried = make(random)
            self.tried[border] += 1
            try:
                with limited():
                    attempt(tried)
            except AgentError as error:
                assert error.status != AgentError.status, f"{tried!r}: {error}"
                assert error.reason.encode(errors="surrogateescape"), (
                    tried
                )  # So Python has the names of files.
            except BaseException:
                note(f"of {tried!r}")
                raise
        assert _memory() - before < MEMORY_LIMIT, f"it took {_memory() - before} KiB"


@contextmanager
def limited() -> Iterator[None]:
    """What takes too long ends with an error. It stands in for pytest's timeout, which has the same timer."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {TIME_LIMIT:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# -- changes ------------------------------------------------------------------------------------------


def changed(random: Random, valid: Sequence[bytes], words: Sequence[bytes] = BYTES) -> bytes:
    """One of these texts with some parts cut out, repeated, replaced, or taken from another one."""
    data = random.choice(valid)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((0, 1, 1, 2, 4, 8, 40)))
        other = random.choice(valid)
        cut = random.randrange(len(other) + 1)
        data = random.choice(
            (
                data[:start] + data[end:],
                data[:end] + data[start:],
                data[:start],
                data[:start] + random.choice(words) + data[end:],
                data[:start] + random.choice(words) + data[start:],
                data[:start] + bytes([random.randrange(256)]) + data[start + 1 :],
                data[:start] + other[cut : cut + 60] + data[end:],
            )
        )
    return data


def changed_document(random: Random, valid: Sequence[Any], odd: Sequence[Any] = ODD) -> Any:
    """One of these documents (of dicts and lists) with some of its values or keys replaced or left out."""
    root = [_copy(random.choice(valid))]
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at: Any = root
        key: Any = 0
        while isinstance(at[key], (dict, list)) and at[key] and random.random() < 0.85:
            at = at[key]
            key = random.choice(list(at)) if isinstance(at, dict) else random.randrange(len(at))
        kind = random.randrange(6)
        if kind == 0 and at is not root:
            del at[key]
        elif kind == 1 and isinstance(at, dict):
            at[random.choice([each for each in odd if isinstance(each, str)])] = at.pop(key)
        elif kind == 2:
            at[key] = [at[key]]
        elif kind == 3 and isinstance(at, dict):
            at[key] = _copy(at[random.choice(list(at))])
        elif kind == 4 and isinstance(at[key], str):
            at[key] = changed(random, [at[key].encode("utf-8", "surrogatepass")]).decode("utf-8", "replace")
        else:
            at[key] = _copy(random.choice(odd))
    return root[0]


def _copy(document: Any) -> Any:
    return marshal.loads(marshal.dumps(document))


def changed_json(random: Random, valid: Sequence[Any], odd: Sequence[Any] = ODD) -> bytes:
    """The JSON of a changed document, or that of a valid one with changes in its text."""
    if random.random() < 0.8:
        return json.dumps(changed_document(random, valid, odd)).encode()
    return changed(random, [json.dumps(random.choice(valid)).encode()])


# -- what is valid ------------------------------------------------------------------------------------


def published(pattern: str) -> list[Path]:
    """The files of our own deployments."""
    return sorted(path for path in (ROOT / "etc").rglob(pattern) if path.is_file())


def definitions() -> list[dict[str, Any]]:
    """The definitions of our own deployments."""
    return [json.loads(formats.definition(path)) for path in published("definition.yml")]
