"""How a subcommand is declared: a function with a decorator, which has its example and its arguments."""

from __future__ import annotations

import argparse
import inspect
from typing import Any, Callable, NamedTuple

from kolla_mesos_start.ctl.invocation import Invocation

# Adds arguments to a parser, or to a group of one.
Argument = Callable[[Any], object]


class Subcommand(NamedTuple):
    """One subcommand of the tool. `run` returns the exit status, or raises AgentError."""

    description: str
    example: str
    arguments: tuple[Argument, ...]
    run: Callable[[Invocation], int]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add its help and its arguments to its parser."""
        parser.description, parser.epilog = self.description, f"example:\n  {self.example}\n"
        for add in self.arguments:
            add(parser)
        parser.set_defaults(run=self.run)


def subcommand(example: str, *arguments: Argument) -> Callable[[Callable[[Invocation], int]], Subcommand]:
    """Make a subcommand of a function, whose docstring is its help."""
    return lambda run: Subcommand(inspect.getdoc(run) or "", example, arguments, run)


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


YES = argument("--yes", action="store_true", help="do not ask")
FORMAT = argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
