"""What a container says of itself, as JSON that is made without `json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kolla_mesos_start.health import StateFile
from kolla_mesos_start.report import (
    MAX_OUTSIDE,
    MAX_REASON,
    Report,
    StatusZnode,
    status_znode,
    utc,
    with_texts,
)
from kolla_mesos_start.zookeeper.ephemerals import Ephemeral

PATH = "/kolla/site/shop/.containers/1"


@pytest.mark.parametrize("data", [b"{}", b" { } ", b'{"host": "h"}', b'{"a": {"b": "}"}}\n'])
def test_a_text_is_one_more_member_of_the_json_object(data: bytes) -> None:
    """Times are in UTC."""
    since = utc(0.9)
    assert json.loads(with_texts(data, since=since)) == {**json.loads(data), "since": "1970-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, None),
        ("", ""),
        ('say "no" \\n', 'say "no" \\n'),
        ("h\u00f6st \U0001f600", "h\u00f6st \U0001f600"),
        ("two\nlines \x1b[2J \ud800", "two\ufffdlines \ufffd[2J \ufffd"),
    ],
)
def test_every_text_is_json_that_no_terminal_obeys(text: str | None, shown: str | None) -> None:
    """It may come from other containers."""
    assert json.loads(with_texts(b"{}", reason=text))["reason"] == shown


class Ephemerals:
    """Those of a session that is not there."""

    def keep(self, path: str, data: bytes) -> Ephemeral:
        return Ephemeral(path, data, wanted=True)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(StateFile(str(tmp_path), -1))


def show(report: Report) -> Ephemeral:
    return report.show(Ephemerals(), StatusZnode(PATH, b'{"host": "h1"}', 0.0))  # type: ignore[arg-type]


def test_what_was_said_before_is_shown(report: Report) -> None:
    """The container says it to its probes long before it has a znode."""
    report.write("waiting", "for this")
    said = json.loads(show(report).data)
    assert (said["host"], said["state"], said["reason"], said["command"]) == (
        "h1",
        "waiting",
        "for this",
        None,
    )


def test_programs_read_a_code_and_no_sentence(report: Report) -> None:
    """Fields that do not apply are left out; of external services only some are named."""
    ephemeral = show(report)
    assert not {"code", "outside"} & json.loads(ephemeral.data).keys()
    report.write("ready", "its turn comes", "x/daemon", code="refresh-pending")
    assert json.loads(ephemeral.data)["code"] == "refresh-pending"
    report.write("waiting", "for much", outside={f"tcp {each}": 'a "b"' for each in range(1000)})
    shown = json.loads(ephemeral.data)
    assert "code" not in shown
    assert (len(shown["outside"]), shown["outside"]["tcp 0"]) == (MAX_OUTSIDE, 'a "b"')


def test_a_state_has_one_beginning_whatever_its_reason(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`since` is when this state of this command began."""
    ephemeral = show(report)
    times = []
    for instant, (stage, reason, command) in enumerate(
        [
            ("waiting", "a", "x/y"),
            ("waiting", "b", "x/y"),
            ("waiting", "b", "x/z"),
            ("bootstrapping", "", "x/z"),
        ]
    ):
        monkeypatch.setattr("time.time", lambda instant=instant: float(instant))
        report.write(stage, reason, command)  # type: ignore[arg-type]
        times.append(json.loads(ephemeral.data)["since"][-3:-1])
    assert times == ["00", "00", "02", "03"]


def test_a_probe_reads_the_same(report: Report, tmp_path: Path) -> None:
    """Of what runs they learn the name."""
    report.write("bootstrapping", "", "x/y")
    assert (tmp_path / "state").read_text() == "bootstrapping x/y\n"
    report.write("ready", "", "x/daemon")
    assert (tmp_path / "state").read_text() == "ready\n"


def test_a_long_reason_is_cut(report: Report, tmp_path: Path) -> None:
    """A definition may have a thousand dependencies: no znode, and no line of a probe, can hold them."""
    ephemeral = show(report)
    report.write("waiting", "x" * 4_000_000)
    shown = "x" * (MAX_REASON - 3) + "..."
    assert json.loads(ephemeral.data)["reason"] == shown
    assert (tmp_path / "state").read_text() == f"waiting {shown}\n"


def test_the_definition_is_its_mzxid_in_hex() -> None:
    """As ZooKeeper's shell shows it."""
    facts = json.loads(status_znode("h1", 0x1F, "d1e5", "2026.1", None, PATH).constants)
    assert facts == {
        "host": "h1",
        "definition": "0x1f",
        "digest": "d1e5",
        "generation": "2026.1",
        "read": None,
        "follows": False,
    }


def test_the_command_for_its_log_costs_nothing_where_there_is_none() -> None:
    facts = json.loads(status_znode("h1", 0x1F, "d1e5", None, "podman logs web", PATH).constants)
    assert facts["logs"] == "podman logs web"
    assert b"logs" not in status_znode("h1", 0x1F, "d1e5", None, None, PATH).constants
