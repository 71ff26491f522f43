"""The reference tables that come from the code, as Sphinx directives.

    .. definition-keys:: command        the keys of one kind of object in a definition
    .. exit-statuses::                  of the agent
    .. subcommands::                    of kolla_mesos_ctl, each with its --help
    .. metrics::                        of kolla_mesos_ctl metrics
    .. alerts::                         of etc/monitoring/alerts.yml

What a key or a status means is written in the code, beside what it does; these directives only lay it out.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from kolla_mesos_start import errors
from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import json_schema
from kolla_mesos_start.ctl.live.metrics import FAMILIES, PREFIX, SUFFIXES

CHECKOUT = Path(__file__).resolve().parents[1]
COLUMNS = "88"  # of the terminal for which --help is printed


class Generated(Directive):  # type: ignore[misc]
    """A directive whose content is reStructuredText that is made here."""

    def run(self) -> list[nodes.Node]:
        """Parse the lines of `text` where the directive is."""
        lines = StringList("\n".join(self.text()).splitlines(), "generated")
        section = nodes.section()
        section.document = self.state.document
        self.state.nested_parse(lines, self.content_offset, section, match_titles=True)
        found: list[nodes.Node] = section.children
        return found

    def text(self) -> Iterator[str]:
        """Parts of the text, each of one or more lines."""
        raise NotImplementedError


def table(widths: str, head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """A list-table."""
    yield f".. list-table::\n   :header-rows: 1\n   :widths: {widths}\n"
    for row in (head, *rows):
        for number, cell in enumerate(row):
            yield f"   {' ' if number else '*'} - {cell}".rstrip()
    yield ""


class DefinitionKeys(Generated):
    """The keys of one kind of object."""

    required_arguments = 1

    def text(self) -> Iterator[str]:
        """A row for each key of the agent's table."""
        kind = self.arguments[0]
        meanings = json_schema.MEANINGS[kind].items()
        rows = ((f"``{key}``", _default(kind, key), meaning) for key, meaning in meanings)
        yield from table("20 15 65", ("key", "default", "meaning"), rows)


def _default(kind: str, key: str) -> str:
    found = json_schema.default_of(kind, key)
    return "" if found is None else f"``{str(found).lower() if isinstance(found, bool) else found}``"


class ExitStatuses(Generated):
    """The exit statuses of the agent."""

    def text(self) -> Iterator[str]:
        """A row for each status; what it means is the first sentence about each of its errors."""
        yield from table("15 65 20", ("status", "meaning", "worth retrying"), self._rows())

    def _rows(self) -> Iterator[Sequence[str]]:
        yield "any other", "The daemon's own status: it runs with the agent's process id.", ""
        yield "0", "A task has finished.", ""
        found: dict[int, list[type[errors.AgentError]]] = {}
        for kind in _kinds(errors.AgentError):
            found.setdefault(kind.status, []).append(kind)
        for status, kinds in sorted(found.items()):
            meanings = dict.fromkeys(_first_sentence(kind) for kind in kinds if "status" in vars(kind))
            yield str(status), " ".join(meanings), "yes" if kinds[0].retriable else "no"
        yield "128 + n", "Signal n stopped the agent.", ""


def _kinds(root: type[errors.AgentError]) -> Iterator[type[errors.AgentError]]:
    """All errors of the agent, in the order in which they are written."""
    if root.__module__ == errors.__name__ and root is not errors.Stopped:
        yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _first_sentence(kind: type[object]) -> str:
    text = " ".join((kind.__doc__ or "").split())
    return re.split(r"(?<=\.) ", text)[0]


class Subcommands(Generated):
    """Every subcommand with its help."""

    def text(self) -> Iterator[str]:
        """A section for each, in the order of the tool's own help."""
        os.environ["COLUMNS"] = COLUMNS
        parser = cli.parser()
        yield from _help(parser.format_help())
        for name, each in _subparsers(parser):
            yield f"\n.. _ctl-{name}:\n\n{name}\n{'-' * len(name)}\n"
            yield from _help(each.format_help())


class Metrics(Generated):
    """The metrics that the tool serves."""

    def text(self) -> Iterator[str]:
        """A row for each, with its labels."""
        rows = (
            (f"``{PREFIX}{name}{SUFFIXES.get(kind, '')}``", ", ".join(labels), meaning)
            for name, (kind, labels, meaning) in FAMILIES.items()
        )
        yield from table("45 20 35", ("metric", "labels", "meaning"), rows)


class Alerts(Generated):
    """The alerts for Prometheus."""

    def text(self) -> Iterator[str]:
        """A row for each, without the values that Prometheus puts into its texts."""
        groups = yaml.safe_load((CHECKOUT / "etc/monitoring/alerts.yml").read_text())["groups"]
        rows = (
            (f"``{each['alert']}``", each["labels"]["severity"], _plain(each["annotations"]["action"]))
            for group in groups
            for each in group["rules"]
        )
        yield from table("35 10 55", ("alert", "severity", "what to do"), rows)


def _plain(text: str) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda label: label[1].upper(), text)


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                each.fill()
                yield name, each


def _help(text: str) -> Iterator[str]:
    yield ".. code-block:: text\n"
    yield from (f"   {line}".rstrip() for line in text.splitlines())
    yield ""


def setup(app: Any) -> Mapping[str, bool]:
    """Called by Sphinx."""
    app.add_directive("definition-keys", DefinitionKeys)
    app.add_directive("exit-statuses", ExitStatuses)
    app.add_directive("subcommands", Subcommands)
    app.add_directive("metrics", Metrics)
    app.add_directive("alerts", Alerts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
