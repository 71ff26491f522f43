"""One account of all that is tried, told at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.inputs import Fuzz
from tests.support.arrangement import section


@pytest.fixture(scope="session")
def fuzz(pytestconfig: pytest.Config) -> Iterator[Fuzz]:
    """Tries inputs (`inputs.Fuzz`), and tells how many at each border."""
    fuzz = Fuzz()
    yield fuzz
    lines = section(pytestconfig, "inputs tried by tests/fuzz")
    lines += [f"{count:>9,}  {border}" for border, count in sorted(fuzz.tried.items())]
    lines.append(f"{sum(fuzz.tried.values()):>9,}  in all")
