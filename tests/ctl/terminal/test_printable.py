"""Text of others is shown as it is written, and never interpreted: by rich, or by a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from rich.live import Live
from rich.text import Text

from kolla_mesos_start.ctl.invocation import OutputConsole
from kolla_mesos_start.ctl.terminal.lines import Line, show
from kolla_mesos_start.ctl.terminal.printable import guarded, printable, unguarded

CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
CONTROLS += [*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"]
HOSTILE = f"[/red] [link=x]:smile: a\tb é {''.join(CONTROLS)}\x1b]0;title\x07\x1b[2J"


def test_control_characters_are_written_out() -> None:
    """Of C0 and C1, and those that change the direction of text or end a line; lines and tabs stay."""
    shown = printable(HOSTILE)
    assert not set(shown) & set(CONTROLS)
    assert shown.startswith("[/red] [link=x]:smile: a\tb é \\x00\\x01")
    assert r"\x1b]0;title\x07\x1b[2J" in shown and r"\x9b" in shown and r"\u202e" in shown
    assert printable("two\nlines") == "two\nlines"


@pytest.mark.parametrize("how", ["print", "text", "line", "out", "live"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_console_sends_no_sequence_of_others(
    how: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own ones, such as colours, it sends to a terminal."""
    target = io.StringIO()
    monkeypatch.setattr(sys, "stdout", guarded(target))
    monkeypatch.setattr(target, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    console = OutputConsole()
    console.width = 500
    if how == "print":
        console.print(HOSTILE)
    elif how == "text":
        console.print(Text(HOSTILE, "red"))
    elif how == "line":
        show(console, [Line(HOSTILE, "red", HOSTILE)])
    elif how == "out":
        console.out(HOSTILE)
    else:
        with Live(console=console, screen=is_terminal, auto_refresh=False) as live:
            live.update(Text(HOSTILE), refresh=True)
    said = target.getvalue()
    assert r"[/red] [link=x]:smile: a" in said and r"\x1b]0;title" in said
    assert (r"\x07\x1b[2J" in said) or how in ("text", "live")  # Text itself drops it.
    assert "\x1b]" not in said and "\x1b[2J" not in said
    assert not set(said) & set(CONTROLS) - {"\x1b", "\r"}
    if how == "text":
        assert ("\x1b[31m" in said) == is_terminal


def test_what_is_printed_is_guarded_and_our_own_sequences_are_not() -> None:
    target = io.StringIO()
    stream = guarded(target)
    print(HOSTILE, file=stream, flush=True)
    assert target.getvalue() == f"{printable(HOSTILE)}\n"
    print("\x1b[K", end="", file=unguarded(stream))
    assert target.getvalue().endswith("\n\x1b[K")
    assert unguarded(target) is target
    assert stream.isatty() is False
