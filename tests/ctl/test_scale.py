"""The benchmark `scale` at a small size: what it measures is there, and plausible."""

from __future__ import annotations

from pathlib import Path

from drills.benchmarks import scale

WORK = 0.2  # seconds


def test_a_deployment_starts_in_order_and_its_figures_are_plausible(tmp_path: Path) -> None:
    """Three services in a chain, 20 containers of each."""
    start = scale.start(tmp_path, 3, 20, WORK)
    requests, makespan, slowest = scale.rows(start)
    assert len(start.containers) == 60
    # A third of them reads the 20 members of another service, and a third waits for its 20 instances.
    assert 10 < min(each["requests"] for each in start.containers) <= requests.samples[0] < 120
    assert sum(start.kinds.values()) == sum(each["requests"] for each in start.containers)
    assert all([name for name, *_ in each["turns"]] == ["schema", "daemon"] for each in start.containers)
    # One of each service runs its command, and the others find it done.
    assert sum(not done for each in start.containers for _, _, _, done in each["turns"][:1]) == 3
    assert start.makespan >= 6 * WORK
    assert 0.5 < makespan.samples[0] < 10
    assert 0 < slowest.samples[0] < start.makespan
    assert len(start.floors) == 6
    assert all(floor > 0 for floor in start.floors)
