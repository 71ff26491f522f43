"""A library is imported without modules that we do not need, or with them if it can't be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kolla_mesos_start.lean_import import import_without

COSTLY = "digest = len\nclass Cache: pass\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for the modules of a test; they are removed from sys.modules afterwards."""
    (tmp_path / "costly.py").write_text(COSTLY)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("costly", "library"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is taken out again
        del sys.modules[name]
    return tmp_path


def test_unused_modules_are_not_imported(modules: Path) -> None:
    (modules / "library.py").write_text("import costly\nfrom costly import digest, Cache\n")
    import_without("library", {"costly": ("digest", "Cache")})
    library = sys.modules["library"]
    assert (library.digest, library.Cache) == (None, None)
    # A later import gets the real module.
    assert "costly" not in sys.modules
    import costly  # type: ignore[import-not-found]

    assert costly.digest("four") == 4


@pytest.mark.parametrize(
    "use",
    ["from costly import other, digest", "import costly; costly.digest(())", "class C(costly.Cache): 1"],
)
def test_a_library_that_needs_more_gets_it(modules: Path, use: str) -> None:
    (modules / "costly.py").write_text(f"{COSTLY}other = 1\n")
    (modules / "library.py").write_text(f"import costly\n{use}\n")
    import_without("library", {"costly": ("digest",)})
    assert sys.modules["library"].costly is sys.modules["costly"]
    assert sys.modules["costly"].digest("four") == 4


def test_what_is_there_already_is_used(modules: Path) -> None:
    (modules / "library.py").write_text("import costly\n")
    costly = __import__("costly")
    import_without("library", {"costly": ()})
    assert sys.modules["library"].costly is sys.modules["costly"] is costly


def test_an_error_of_the_library_is_raised(modules: Path) -> None:
    (modules / "library.py").write_text("import costly, nowhere\n")
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        import_without("library", {"costly": ()})
    assert "costly" in sys.modules
