"""The question before something is removed or replaced."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.prompt import Confirm

from kolla_mesos_start.errors import BadUsage

DECLINED = 1  # exit status


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option that answers the question beforehand."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def confirmed(what: str, options: argparse.Namespace, console: Console) -> bool:
    """Whether the operator wants it: asked on a terminal, unless --yes is given. BadUsage without one."""
    if options.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadUsage(f"{what}? There is no terminal to ask: give --yes; nothing was changed")
    try:
        # A name in brackets is no markup.
        if Confirm.ask(what.replace("[", r"\["), console=console, default=False):
            return True
    except EOFError:
        pass
    console.print("nothing was changed")
    return False
