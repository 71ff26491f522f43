"""Checks the tables, names and walk-throughs of the documents, and builds the pages with Sphinx.

`test_blocks.py` executes their code blocks.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docutils import nodes
from jinja2 import Environment
from playwright.sync_api import sync_playwright

from kolla_mesos_start import errors, settings
from kolla_mesos_start.ctl.live.model import KINDS
from kolla_mesos_start.render.context import BUILTIN
from kolla_mesos_start.render.sandbox import Sandbox
from tests.ctl.timeline.test_html_page_in_browser import CHROMIUM
from tests.rules.test_house import PACKAGE
from tests.support.attacks import OUTCOMES
from tests.support.documents import (
    CONTRIBUTING,
    DOCUMENTS,
    PAGES,
    README,
    ROOT,
    items,
    literals,
    parsed,
    table,
)

ENVIRONMENT, TEMPLATES = "docs/reference/environment.rst", "docs/reference/templates.rst"
SECURE, TROUBLESHOOT = "docs/guide/secure.rst", "docs/guide/troubleshoot.rst"
REQUIRED = {"KOLLA_ZK_HOSTS": "zk1:2181", "KOLLA_APP_ID": "/site/web"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built without a warning with a Python that has no Sphinx, and gets none."""
    place = tmp_path_factory.mktemp("pages")
    environ = {**os.environ, "PYTHON": os.path.realpath(sys.executable)}
    done = subprocess.run(
        [ROOT / "bin/docs", place],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return place


def test_the_pages_have_what_is_generated_from_the_code(built: Path) -> None:
    assert "keep_last" in (built / "reference/definition.html").read_text(encoding="utf-8")
    assert "completion" in (built / "man/kolla_mesos_ctl.8").read_text(encoding="utf-8")
    assert (built / "man/kolla_mesos_start.8").is_file()


# How often a page, or the name of the project in its frame, is too wide for the screen.
TOO_WIDE = """() => (document.documentElement.scrollWidth > window.innerWidth)
    + [...document.querySelectorAll('h1, .sidebar-brand-text')].filter(each => {
        const words = document.createRange();
        words.selectNodeContents(each);
        const lines = new Set([...words.getClientRects()].map(line => line.top));
        return lines.size > each.firstChild.textContent.trim().split(' ').length;
    }).length"""


def test_the_pages_fit_a_wide_and_a_narrow_screen(built: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        for width in (1440, 400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            for name in ("guide/monitor", "reference/agent", "reference/definition", "index"):
                page.goto((built / f"{name}.html").as_uri())
                assert page.evaluate(TOO_WIDE) == 0, (name, width)
                # Commands and drawings are no Python.
                assert not page.locator(".highlight-default span[class], .highlight-text span[class]").count()
                assert page.get_by_text("Copyright \u00a9 the kolla_mesos_start developers").count() == 1
            assert page.locator("article img").evaluate("each => each.complete && each.naturalWidth > 0")
            assert page.locator("article .toctree-wrapper a").count() == 0  # The sidebar has these.
        browser.close()


def test_every_page_is_named_in_the_readme() -> None:
    text = (ROOT / README).read_text(encoding="utf-8")
    assert [page for page in PAGES if f"<{page}>" not in text] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / README).read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("document", [*DOCUMENTS, *PAGES])
def test_docutils_accepts_a_document(document: str) -> None:
    """After an error, GitHub shows the source text and PyPI rejects the page."""
    assert parsed(document)[1] == ""


@pytest.mark.parametrize("document", [*DOCUMENTS, *PAGES])
def test_a_picture_exists(document: str) -> None:
    for image in parsed(document)[0].findall(nodes.image):
        assert ((ROOT / document).parent / image["uri"]).stat().st_size < 150_000
        assert image["alt"]


# -- tables -----------------------------------------------------------------------------------------


def variables_read() -> set[str]:
    """The KOLLA_ variables that `settings` reads."""
    tree = ast.parse((PACKAGE / "settings.py").read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and re.fullmatch("KOLLA_[A-Z_]+", text)}


def test_every_variable_of_the_environment_is_in_the_table() -> None:
    """The table lists no other variables, and only alternatives that `settings` reads."""
    named = [name for row in table(ENVIRONMENT, "variable") for name in literals(row[0])]
    assert len(named) == len(set(named))
    assert {name for name in named if name.startswith("KOLLA_")} == variables_read()
    source = (PACKAGE / "settings.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in source for name in named)


def defaults() -> Iterator[tuple[str, str]]:
    """The variables with a default in the table that can be set as a value."""
    for variable, default, _ in table(ENVIRONMENT, "variable"):
        names = [name for name in literals(variable) if name.startswith("KOLLA_")]
        values = literals(default) or re.findall("^[0-9]+", default.astext())
        if len(names) == len(values) and " if " not in default.astext():
            yield from zip(names, values)


@pytest.mark.parametrize(("name", "value"), list(defaults()))
def test_setting_a_variable_to_its_default_changes_nothing(name: str, value: str) -> None:
    given, default = settings.parse({**REQUIRED, name: value}), settings.parse(REQUIRED)
    assert given._replace(environ={}) == default._replace(environ={})


def test_every_exit_status_has_a_row_that_says_what_to_do() -> None:
    statuses = {kind.status for kind in errors_of(errors.AgentError) if ".ctl." not in kind.__module__}
    found = [
        int(status)
        for cell, meaning, what in table(TROUBLESHOOT, "status")
        for status in re.findall("[0-9]+", cell.astext().partition("+")[0])
        if meaning.astext() and what.astext()
    ]
    assert sorted(found) == sorted({*statuses, 128})


def test_every_kind_of_cause_has_a_row_that_says_what_to_do() -> None:
    rows = table(TROUBLESHOOT, "kind")
    assert [cell.astext() for row in rows for cell in row if not cell.astext()] == []
    assert sorted(cell.astext() for cell, _, _ in rows) == sorted(KINDS)


def errors_of(root: type[errors.AgentError]) -> Iterator[type[errors.AgentError]]:
    """An error class and all its subclasses."""
    yield root
    for cls in root.__subclasses__():
        yield from errors_of(cls)


def test_every_name_in_templates_is_in_the_table() -> None:
    """The names are variables, functions and filters."""
    named = {re.split(r"[(\[]", name)[0] for row in table(TEMPLATES, "name") for name in literals(row[0])}
    filters = set(Sandbox()._environment.filters) - set(Environment().filters)
    assert named == BUILTIN | {"api_interface"} | filters


def test_every_attack_is_in_the_table_with_its_outcome() -> None:
    """Every possible attack has a remedy."""
    rows = [[cell.astext() for cell in row] for row in table(SECURE, "attack")]
    assert {attack: outcome for attack, outcome, _ in rows} == OUTCOMES
    assert [attack for attack, _, what in rows if what] == [
        attack for attack, outcome in OUTCOMES.items() if outcome == "possible"
    ]


# -- walk-throughs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["How to add a key to the definition", "How to add a kind of readiness"])
def test_the_files_and_names_of_a_walk_through_exist(section: str) -> None:
    """Each file that a step names exists, and contains the other names of the step."""
    steps = list(items(CONTRIBUTING, section))
    assert steps
    for step in steps:
        named = literals(step)
        files = {name: place(name) for name in named if "/" in name or name.endswith((".py", ".rst"))}
        sources = "".join(path.read_text(encoding="utf-8") for path in files.values() if path.is_file())
        for word in re.findall(r"\w+", " ".join(set(named) - files.keys())):
            assert word in sources, f"{word} is in none of {', '.join(files)}"


def place(name: str) -> Path:
    """The path of a file that the documents name relative to the checkout or the package."""
    (path,) = (base / name for base in (ROOT, PACKAGE) if (base / name).exists())
    return path
