"""A snapshot as a tar file: what is packed is unpacked, and nothing else is taken for one."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.zk.archive import ABOUT, Snapshot, pack, unpack
from kolla_mesos_start.errors import BadDefinition

PUBLISHED = {
    "variables/region": b"one\ntwo\n",
    "variables/empty": b"",
    "infra/db": b'{"commands": {}}',
    "infra/db/variables/size": b"3",
    "infra/db/variables/web1/size": b"5",
    "infra/db/files/conf": b"\x00\xff\n",
    "infra/db/web": b"{}",
}
RECORDED = {
    "status": b"",
    "status/global": b"",
    "status/global/db": b"infra/db",
    "status/global/db/sync": b"done",
    "status/global/db/sync/generations": b"",
    "status/global/db/sync/generations/a%2Fb": b"7 5",
}
SNAPSHOT = Snapshot(
    PUBLISHED, RECORDED, "/kolla/site", "2026-01-01T00:00:00Z", b'{"operator": "x509:CN=x"}', 2**62, b"[]"
)


def tar(**members: bytes) -> bytes:
    """A tar file; a `__` in a name stands for `/`, and one `_json` at its end for `.json`."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as file:
        for name, data in members.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_json", ".json"))
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return target.getvalue()


def about(**changes: Any) -> bytes:
    texts = {"deployment": "", "taken": ""}
    return json.dumps(
        {"format": 1, **texts, "recorded": {}, "token_floor": 0, "sha256": {}, **changes}
    ).encode()


def sparse(size: int) -> bytes:
    """A member that claims to be of this size, and holds nothing."""
    member = tarfile.TarInfo("variables/x")
    member.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    head[386:410], head[483:495] = b"%011o\0" % 0 * 2, b"%011o\0" % size
    head[148:156] = b"%06o\0 " % (256 + sum(head[:148]) + sum(head[156:512]))
    return bytes(head) + tar(snapshot_json=about())


def test_unpacking_returns_what_was_packed() -> None:
    assert unpack(pack(SNAPSHOT)) == SNAPSHOT


def test_only_the_owner_can_read_unpacked_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack(SNAPSHOT))) as file:
        assert {member.mode for member in file.getmembers()} == {0o600}


def test_an_unpacked_snapshot_can_be_published(tmp_path: Path) -> None:
    """Without its records."""
    with tarfile.open(fileobj=io.BytesIO(pack(SNAPSHOT))) as file:
        for member in file.getmembers():
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = file.extractfile(member)
            assert data is not None
            path.write_bytes(data.read())
    found = directory.read(tmp_path)
    assert found.variables == {"region": b"one\ntwo\n", "empty": b""}
    service = next(each for each in found.services if each.name == "infra/db")
    assert service.files == {"conf": b"\x00\xff\n"}
    assert (service.variables.own, service.variables.hosts) == ({"size": b"3"}, {"web1": {"size": b"5"}})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a tar file"),
        (b"PK" * 600, "not a tar file"),
        (tar(variables__x=b"1"), f"not a snapshot: it holds no {ABOUT}"),
        (tar(snapshot_json=b"{"), "not as a snapshot has it"),
        (tar(snapshot_json=b"[]"), "not as a snapshot has it"),
        (tar(snapshot_json=about(format=2)), "expected format 1, found 2"),
        (tar(snapshot_json=about(recorded={"variables/x": "1"})), "expected a path below status"),
        (tar(snapshot_json=about(recorded={"status/../x": "1"})), "no znode can have this path"),
        (tar(snapshot_json=about(recorded={"status/x/y": "1"})), "the znode above it is missing"),
        (
            tar(snapshot_json=about(sha256={"variables/x": ""})),
            "variables/x: missing: the tar file is not whole",
        ),
        (tar(snapshot_json=about(), variables__x=b"1"), "variables/x: not as it was"),
        (tar(snapshot_json=about(sha256=5)), "not as a snapshot has it"),
        (tar(snapshot_json=about(token_floor="x")), "not as a snapshot has it"),
        (tar(snapshot_json=about(token_floor=-1)), "token_floor: expected a number"),
        (tar(snapshot_json=about(token_floor=2**62 + 1)), "token_floor: expected a number"),
        (sparse(7 * 1024**3), "variables/x: expected a regular file"),
        (gzip.compress(pack(SNAPSHOT)), "not a tar file"),
        (tar(snapshot_json=about(), other=b""), "other: unknown name"),
        (tar(snapshot_json=about(), services__x__files=b""), "services/x/files: unknown name"),
        (tar(snapshot_json=about(), services__status__definition_json=b""), "no service can have status"),
        (tar(snapshot_json=about(), **{"variables/../../x": b""}), "unknown name"),
        (tar(snapshot_json=about(), **{"services/../definition.json": b""}), "no znode can have this path"),
        (tar(snapshot_json=about(), variables__x=b"1" * 1_000_002), "more than ZooKeeper takes"),
    ],
)
def test_other_files_are_refused(data: bytes, expected: str) -> None:
    """The message says why."""
    with pytest.raises(BadDefinition, match=expected):
        unpack(data)


def test_a_cut_or_changed_snapshot_is_refused() -> None:
    """Only zeros at its end may be missing."""
    whole = pack(SNAPSHOT)
    end = len(whole.rstrip(b"\0"))
    for length in range(0, end, 100):
        with pytest.raises(BadDefinition):
            unpack(whole[:length])
    assert unpack(whole[: end + 512]) == SNAPSHOT
    with pytest.raises(BadDefinition, match=r"infra/db/definition\.json: not as it was"):
        unpack(whole.replace(b'"commands"', b'"commandz"'))


def test_texts_in_a_snapshot_have_no_control_characters() -> None:
    found = unpack(pack(SNAPSHOT._replace(deployment="\x1b[2J")))
    assert found.deployment == "\N{REPLACEMENT CHARACTER}[2J"
