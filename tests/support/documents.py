"""The documents as docutils reads them, as GitHub and PyPI do: their blocks, tables and names.

This module only reads; the tests compare.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles

ROOT = Path(__file__).resolve().parents[2]
README, CONTRIBUTING = "README.rst", "CONTRIBUTING.rst"
KEYSTONE, QUICKSTART = "etc/examples/keystone/README.rst", "etc/examples/quickstart/README.rst"
KUBERNETES, PODMAN = "etc/kubernetes/README.rst", "etc/podman/README.rst"
PAGES = tuple(sorted(os.path.relpath(path, ROOT) for path in ROOT.glob("docs/**/*.rst")))
"""Those that Sphinx builds."""
DOCUMENTS = (
    *(README, CONTRIBUTING, "CHANGELOG.rst"),
    *sorted(os.path.relpath(path, ROOT) for path in ROOT.glob("etc/**/README.rst")),
)
"""Those that GitHub shows and PyPI renders."""
# As PyPI does: a page can neither read a file nor bring HTML of its own.
SETTINGS = {"report_level": 1, "halt_level": 5, "file_insertion_enabled": False, "raw_enabled": False}
GENERATED = (
    "toctree",
    "literalinclude",
    "definition-keys",
    "exit-statuses",
    "subcommands",
    "metrics",
    "alerts",
)


class _Sphinx(Directive):  # type: ignore[misc]
    """A directive that only Sphinx can run: it leaves nothing behind here."""

    optional_arguments = 1
    has_content = True
    option_spec = {"caption": str, "maxdepth": int, "hidden": bool, "language": str}  # noqa: RUF012 (for docutils)

    def run(self) -> list[nodes.Node]:
        return []


for _name in GENERATED:
    directives.register_directive(_name, _Sphinx)
for _name in ("doc", "ref"):
    roles.register_generic_role(_name, nodes.emphasis)


class Block(NamedTuple):
    """One literal block: text that a reader will type, or believe."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text.strip().splitlines()[0]}"


def parsed(document: str) -> tuple[Any, str]:
    """The document's tree, and what docutils has to say against it."""
    complaints = io.StringIO()
    text = (ROOT / document).read_text(encoding="utf-8")
    level = 2 if document in PAGES else 1  # Sphinx itself finds labels that nothing refers to.
    settings = {**SETTINGS, "report_level": level, "warning_stream": complaints}
    tree = publish_doctree(text, settings_overrides=settings)
    return tree, complaints.getvalue()


def blocks(document: str) -> list[Block]:
    """Every literal block, in the document's order."""
    return [Block(document, node.astext()) for node in parsed(document)[0].findall(nodes.literal_block)]


def literals(node: Any) -> list[str]:
    """What stands in double backquotes."""
    return [literal.astext() for literal in node.findall(nodes.literal)]


def table(document: str, heading: str) -> list[list[Any]]:
    """The rows of the table whose first column has this heading, without the head; a node for each cell."""
    for found in parsed(document)[0].findall(nodes.table):
        head, *rows = (list(row.findall(nodes.entry)) for row in found.findall(nodes.row))
        if head[0].astext() == heading:
            return rows
    raise AssertionError(f"{document} has no table of {heading}")


def items(document: str, section: str) -> Iterator[Any]:
    """The items of the list in a section."""
    for found in parsed(document)[0].findall(nodes.section):
        if found.next_node(nodes.title).astext() == section:
            yield from found.findall(nodes.list_item)
