"""Text of others is never interpreted; lines are folded; a misspelt name is recognized."""

from __future__ import annotations

import io
import sys

import pytest
from rich.live import Live
from rich.text import Text

from kolla_mesos_start.ctl.invocation import Line, OutputConsole, show
from kolla_mesos_start.ctl.text import escaped, existing, guarded, nearest, slip, wrapped

CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]
CONTROLS += [*"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"]
HOSTILE = f"[/red] [link=x]:smile: a\tb é {''.join(CONTROLS)}\x1b]0;title\x07\x1b[2J"


def test_control_characters_are_written_out() -> None:
    """Of C0 and C1, and those that change the direction of text or end a line; lines and tabs stay."""
    shown = escaped(HOSTILE)
    assert not set(shown) & set(CONTROLS)
    assert shown.startswith("[/red] [link=x]:smile: a\tb é \\x00\\x01")
    assert r"\x1b]0;title\x07\x1b[2J" in shown and r"\x9b" in shown and r"\u202e" in shown
    assert escaped("two\nlines") == "two\nlines"


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


def test_what_is_printed_is_guarded() -> None:
    target = io.StringIO()
    stream = guarded(target)
    print(HOSTILE, file=stream, flush=True)
    assert target.getvalue() == f"{escaped(HOSTILE)}\n"
    assert stream.isatty() is False


def test_a_message_is_folded_between_words() -> None:
    """A path or a command line's option stays whole, however narrow the terminal is."""
    path = f"/a/{'b' * 30}-{'c' * 30}"
    text = f"kolla_mesos_ctl: can't be written: {path}; leave out --dry-run"
    assert wrapped(text, 40) == f"kolla_mesos_ctl: can't be written:\n  {path};\n  leave out --dry-run"
    assert wrapped(text, 200) == text
    assert wrapped("  db@node-1  /a/place/  log", 24, " " * 6) == "  db@node-1  /a/place/\n      log"


def test_what_has_lines_and_columns_keeps_them() -> None:
    assert wrapped("one  1\ntwo  2\n\n  three", 10) == "one  1\ntwo  2\n\n  three"


@pytest.mark.parametrize("name", ["web_pprt", "webport", "web_portt", "web_prot"])
def test_one_letter_that_is_wrong_missing_too_many_or_swapped(name: str) -> None:
    assert slip(name, ["other", "web_port"]) == " (did you mean 'web_port'?)"


@pytest.mark.parametrize(
    ("name", "other"),
    [("host_1", "host_2"), ("host_1", "host_12"), ("server", "servers"), ("port", "prot"), ("cpus", "mem")],
)
def test_names_that_may_both_be_meant(name: str, other: str) -> None:
    """Numbers, one and many, short words."""
    assert slip(name, [other]) == slip(other, [name]) == slip(name, [name]) == ""


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (["db", "web", "cache"], " (did you mean 'web'? there are: web, db, cache)"),
        (["db", "cache"], " (there are: db, cache)"),
        ([], " (none exists)"),
    ],
)
def test_existing_names_are_listed_nearest_first(others: list[str], expected: str) -> None:
    assert existing("webb", others) == expected


def test_of_many_existing_names_the_nearest_are_listed() -> None:
    names = [f"web-{number}" for number in range(50)]
    found = existing("web-49x", names)
    assert found.startswith(" (did you mean 'web-49'? there are: web-49, ")
    assert found.endswith(" and 40 more)")
    assert found.count(",") == 9


def test_a_name_that_is_not_near_is_not_suggested() -> None:
    assert nearest("greeting", ["election"]) == ""
    assert nearest("levle", ["election", "level"]) == " (did you mean 'level'?)"
