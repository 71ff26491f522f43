"""The subcommands: a function for each, with its arguments, what it prints, and its exit status.

No module of commands imports another one: what several of them need is in the folders below.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any, Callable

from kolla_mesos_start.ctl.invocation import Invocation, Subcommand

# Adds an argument to a parser, or to a group of one.
Argument = Callable[[Any], object]


def argument(*names: str, **settings: Any) -> Argument:
    """An argument, as argparse's `add_argument` describes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def either(*arguments: Argument) -> Argument:
    """Arguments of which only one can be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


def subcommand(example: str, *arguments: Argument) -> Callable[[Callable[[Invocation], int]], Subcommand]:
    """Make a subcommand of a function, whose docstring is its help."""

    def add(parser: argparse.ArgumentParser) -> None:
        for each in arguments:
            each(parser)

    return lambda run: Subcommand(inspect.getdoc(run) or "", example, add, run)
