"""A confirmation before something is removed or replaced."""

from __future__ import annotations

import argparse
import sys
from typing import Callable

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from kolla_mesos_start.errors import BadUsage

DECLINED = 1  # exit status


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the option that skips the question."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


class _Input:
    """Standard input. `wait` returns once a line can be read: meanwhile a session is kept alive."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def readline(self) -> str:
        self._wait()
        return sys.stdin.readline().rstrip("\n")


def confirmed(
    what: str, options: argparse.Namespace, console: Console, wait: Callable[[], object] = lambda: None
) -> bool:
    """Ask on the terminal, unless --yes is given. Raises BadUsage if there is no terminal.

    `wait` is called before the answer is read.
    """
    if options.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadUsage(f"{what}? There is no terminal to ask: give --yes; nothing was changed")
    # A string would be taken for markup. The end of the input stands for the default.
    if Confirm.ask(Text(what), console=console, default=False, stream=_Input(wait)):  # type: ignore[call-overload]
        return True
    console.print("nothing was changed")
    return False
