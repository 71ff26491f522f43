"""What a refresh by hand prints while it waits for the registrar."""

from __future__ import annotations

import socket

import pytest

from kolla_mesos_start.daemon import control


class Connection:
    """A connection to the registrar that gives these parts; an exception is raised."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self._parts = list(parts)

    def settimeout(self, seconds: float | None) -> None:
        pass

    def recv(self, size: int) -> bytes:
        part = self._parts.pop(0)
        if isinstance(part, Exception):
            raise part
        return part


@pytest.mark.parametrize(
    ("parts", "answer", "complaint"),
    [
        ([b"0 re", b"freshed\n", b""], b"0 refreshed\n", ""),
        ([socket.timeout(), b"0 refreshed\n", b""], b"0 refreshed\n", f"{control.TAKES_LONG}\n"),
        ([b"0 re", ConnectionResetError()], b"", ""),
        ([b""], b"", ""),
    ],
    ids=["in two parts", "late", "reset", "none"],
)
def test_the_answer_of_the_registrar(
    parts: list[bytes | Exception], answer: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After ten seconds, a line says where to look."""
    connection = Connection(*parts)
    assert control._answer(connection, control.TAKES_LONG) == answer  # type: ignore[arg-type]
    assert capsys.readouterr().err == complaint
