"""What every subcommand is given: here, how a misspelt name is known."""

from __future__ import annotations

import pytest

from kolla_mesos_start.operator.terminal.suggestions import slip


@pytest.mark.parametrize("name", ["web_pprt", "webport", "web_portt", "web_prot"])
def test_one_letter_that_is_wrong_missing_too_many_or_swapped(name: str) -> None:
    assert slip(name, ["other", "web_port"]) == " (did you mean 'web_port'?)"


@pytest.mark.parametrize(
    ("name", "other"),
    [("host_1", "host_2"), ("host_1", "host_12"), ("server", "servers"), ("port", "prot"), ("cpus", "mem")],
)
def test_names_that_may_both_be_meant(name: str, other: str) -> None:
    """Numbers, one and many, short words."""
    assert slip(name, [other]) == slip(other, [name]) == slip(name, [name]) == ""
