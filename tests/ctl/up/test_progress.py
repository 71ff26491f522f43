"""What is shown of each container: a row, or its log."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from kolla_mesos_start.ctl.invocation import OutputConsole
from kolla_mesos_start.ctl.up.containers import LocalContainer
from kolla_mesos_start.ctl.up.progress import LogStream, ProgressRow, ProgressView, merge, row, table

WAITING = ProgressRow(
    "front@edge-1",
    "waiting",
    "daemon waits for api/daemon: 0 of 3 instances ready, worker/daemon: 0 of 1 instances ready",
    101.5,
    101.0,
)


def test_the_lines_of_a_log_have_columns_and_say_since_when() -> None:
    """However long a name is."""
    target = io.StringIO()
    front = WAITING._replace(since=time.time() + 5)
    rows = [front, front._replace(name="keystone_catalog@controller-1", text="")]
    ProgressView(lambda: rows, Console(file=target, width=200)).show()
    second, first = sorted(target.getvalue().splitlines(), key=len)
    assert re.match(r" +[45]\.\d\d s  front@edge-1 +waiting +daemon waits for api/daemon: 0 of 3", first)
    assert first.index("waiting") == second.index("waiting")


def drawn(rows: list[ProgressRow], width: int, height: int) -> list[str]:
    """The lines of the live view."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(table(rows, 104.0, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_view_says_for_how_long_each_is_in_its_stage_and_for_what() -> None:
    """Folded below it where there is no room."""
    ready = ProgressRow("db@db-1", "ready", "", 94.0, 94.0)
    wide = drawn([WAITING, ready], 120, 24)
    assert wide == [
        "  front@edge-1 waiting         3.0 s  daemon for api/daemon: 0 of 3, worker/daemon: 0 of 1",
        "  db@db-1      ready          10.0 s",
    ]
    narrow = drawn([WAITING, ready], 60, 24)
    assert max(map(len, narrow)) <= 60
    assert narrow[0].startswith("  front@edge-1 waiting         3.0 s  daemon for")
    assert narrow[-1] == wide[-1]


def test_a_hundred_containers_fit_a_terminal() -> None:
    """What is up is counted."""
    ready = [ProgressRow(f"db@db-{number}", "ready", "", 94.0, 94.0) for number in range(60)]
    waiting = [WAITING._replace(name=f"front@edge-{number}") for number in range(40)]
    shown = drawn([*ready, *waiting], 120, 24)
    assert len(shown) == 41
    assert shown[0] == "  60 of 100 are up"
    assert shown[1].startswith("  front@edge-0  waiting         3.0 s  daemon for api/daemon")


def test_a_view_shows_how_long_a_container_has_been_waiting() -> None:
    """Also if what it waits for changes meanwhile; a new stage starts from 0."""
    before = WAITING._replace(
        text="daemon waits for api/daemon: 1 of 3 instances ready", since=103.0, began=103.0
    )
    assert merge(WAITING, before).began == WAITING.began
    assert merge(WAITING, before).since == 103.0
    assert merge(WAITING, WAITING._replace(since=109.0, began=109.0)) == WAITING
    assert merge(WAITING, before._replace(stage="starting")).began == 103.0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, ("begins", "")),
        ("waiting api/daemon waits for api/schema: running", ("waiting", "daemon waits for schema: running")),
        ("starting api/daemon is started, not ready yet", ("starting", "not ready yet")),
        ("starting", ("starting", "not ready yet")),
        ("starting Connection refused", ("starting", "Connection refused")),
        ("ready", ("ready", "")),
        # The last word of the one before it.
        ("ended the daemon has ended", ("begins", "")),
    ],
)
def test_a_row_is_what_the_containers_probes_read(
    tmp_path: Path, state: str | None, expected: tuple[str, str]
) -> None:
    """Without the role, which its name has already."""
    container = LocalContainer("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    if state is not None:
        container.run_dir.mkdir()
        (container.run_dir / "state").write_text(f"{state}\n")
    assert row(container)[:3] == ("api@web-1", *expected)


def test_a_row_ignores_the_state_of_a_previous_run(tmp_path: Path) -> None:
    """A container that was killed together with its registrar has left an old state."""
    container = LocalContainer("jobs/api", "web-1", tmp_path / "api", tmp_path / "run", {})
    container.run_dir.mkdir()
    (container.run_dir / "state").write_text("ready\n")
    container.started_at = time.time() + 1.0
    assert row(container)[:4] == ("api@web-1", "begins", "", container.started_at)


def test_logs_become_one_stream_of_whole_lines(tmp_path: Path) -> None:
    """Each behind the name of its container, once, whatever is in it."""
    made = [LocalContainer(f"a/{role}", "x", tmp_path / role, tmp_path / "run", {}) for role in ("db", "web")]
    target = io.StringIO()
    stream = LogStream(made, Console(file=target))
    stream.show()
    made[0].log.write_bytes(b"one [bold]\nSTORED\r\ntw")
    made[1].log.write_bytes(b"\xff \x1b[31mred\x1b[0m\n\n")
    stream.show()
    with made[0].log.open("ab") as log:
        log.write(b"o" * 200 + b"\n")
    stream.show()
    stream.show()
    assert target.getvalue().splitlines() == [
        "db@x  | one [bold]",
        "db@x  | STORED",
        "web@x | \N{REPLACEMENT CHARACTER} red",
        "web@x | ",
        "db@x  | tw" + "o" * 200,
    ]


def test_a_log_may_have_colours_and_no_other_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LocalContainer("a/db", "x", tmp_path / "db", tmp_path / "run", {})
    target = io.StringIO()
    monkeypatch.setattr(target, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", target)
    monkeypatch.setenv("TERM", "xterm")
    stream = LogStream([made], OutputConsole())
    made.log.write_text(
        "\x1b[31mred\x1b[0m \x1bc \x1b[2J \x9b2J \x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\n"
    )
    stream.show()
    said = target.getvalue()
    assert "\x1b[31mred\x1b[0m" in said
    assert r" \x1bc \x1b[2J \x9b2J \x1b]8;;http://evil" in said
    assert re.findall(r"\x1b(?!\[\d*m)", said) == []


class EndsMeanwhile(LocalContainer):
    """A container that writes its last line and ends between two looks at it."""

    @property
    def status(self) -> int:
        if not self.log.exists():
            self.log.write_text("the last line\n")
        return 2


def test_the_end_of_a_container_comes_after_its_last_line(tmp_path: Path) -> None:
    made = EndsMeanwhile("a/db", "x", tmp_path / "db", tmp_path / "run", {})
    target = io.StringIO()
    stream = LogStream([made], Console(file=target))
    stream.show()
    stream.show()
    last, end = target.getvalue().splitlines()
    assert last == "db@x | the last line"
    assert end.startswith("db@x | ended")
