"""When `up` starts again what has ended."""

from __future__ import annotations

import io

from rich.console import Console

from kolla_mesos_start.ctl.up.up import Restarts


def test_what_ends_again_and_again_is_started_ever_later() -> None:
    """Each by itself; what has lived for a while begins at the start again."""
    instant = 0.0
    target = io.StringIO()
    restarts = Restarts(Console(file=target, width=200), lambda: instant)

    def waited() -> float:
        """Until it is started again."""
        nonlocal instant
        ended = instant
        while not restarts.is_due("db@here"):
            instant += 0.5
        return instant - ended

    assert not restarts.is_due("job@here", 78)
    assert [waited() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert not restarts.is_due("web@here")
    instant += 31
    assert waited() == 1
    said = target.getvalue().splitlines()
    assert (
        said[0]
        == "  job@here: starting it again in 1 s (status 78 is final unless the published data change)"
    )
    assert said[2:4] == [
        "  db@here: starting it again in 2 s",
        "  db@here: starting it again in 4 s",
    ]
