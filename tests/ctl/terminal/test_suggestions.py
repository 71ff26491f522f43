"""What every subcommand is given: here, how a misspelt name is known."""

from __future__ import annotations

import pytest

from kolla_mesos_start.ctl.terminal.suggestions import existing, nearest, slip


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


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (["db", "web", "cache"], " (did you mean 'web'? there are: web, db, cache)"),
        (["db", "cache"], " (there are: db, cache)"),
        ([], " (none exists)"),
    ],
)
def test_existing_names_are_listed_nearest_first(others: list[str], expected: str) -> None:
    assert existing("webb", others) == expected


def test_of_many_existing_names_the_nearest_are_listed() -> None:
    names = [f"web-{number}" for number in range(50)]
    found = existing("web-49x", names)
    assert found.startswith(" (did you mean 'web-49'? there are: web-49, ")
    assert found.endswith(" and 40 more)")
    assert found.count(",") == 9


def test_a_name_that_is_not_near_is_not_suggested() -> None:
    assert nearest("greeting", ["election"]) == ""
    assert nearest("levle", ["election", "level"]) == " (did you mean 'level'?)"
