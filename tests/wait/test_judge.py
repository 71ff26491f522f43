"""Whether a command's turn has come, for tables of znodes."""

from __future__ import annotations

import pytest

from kolla_mesos_start.wait.judge import SUPERSEDED, Blocked, Progress, Runnable, judge
from tests.tree.test_states import SYNC, ZNODES, Tree, once_view, one_time

V1 = {f"{SYNC}/generations/v1": b"7 3"}
V2 = {f"{SYNC}/generations/v2": b"9 5"}
FOREIGN = "db/sync is for v2, this image is v1"


@pytest.mark.parametrize(
    ("image", "generation", "tree", "expected"),
    [
        ("v2", "v2", V1, None),
        (None, "v2", V1, None),
        ("v1", None, {}, None),
        # An image of another generation runs nothing, old or new.
        ("v1", "v2", {}, FOREIGN),
        ("v1", "v2", V1, FOREIGN),
        ("v3", "v2", V1, "db/sync is for v2, this image is v3"),
        # It passes through what is done.
        ("v1", "v2", V2, Runnable),
        ("v3", "v2", V2, Runnable),
        # What helps is a restart: then the newer definition is read.
        ("v1", "v2", {f"{SYNC}/generations/v3": b"9 11"}, SUPERSEDED),
    ],
)
def test_an_image_of_another_generation_never_comes_to_the_lock(
    image: str | None, generation: str | None, tree: Tree, expected: object
) -> None:
    """None is left to the lock. Old code must not be recorded as the new migration."""
    command = one_time(generation=generation)
    progress = Progress(frozenset({"db/sync"}), frozenset(), 10, image, {})
    verdict = judge(command, once_view(command, tree), ZNODES, progress)
    found = verdict.reason if isinstance(verdict, Blocked) else verdict and type(verdict)
    assert found == expected
