"""Lines that fit a terminal."""

from __future__ import annotations

from kolla_mesos_start.ctl.terminal.folding import wrapped


def test_a_message_is_folded_between_words() -> None:
    """A path or a command line's option stays whole, however narrow the terminal is."""
    path = f"/a/{'b' * 30}-{'c' * 30}"
    text = f"kolla_mesos_ctl: can't be written: {path}; leave out --dry-run"
    assert wrapped(text, 40) == f"kolla_mesos_ctl: can't be written:\n  {path};\n  leave out --dry-run"
    assert wrapped(text, 200) == text
    assert wrapped("  db@node-1  /a/place/  log", 24, " " * 6) == "  db@node-1  /a/place/\n      log"


def test_what_has_lines_and_columns_keeps_them() -> None:
    assert wrapped("one  1\ntwo  2\n\n  three", 10) == "one  1\ntwo  2\n\n  three"
