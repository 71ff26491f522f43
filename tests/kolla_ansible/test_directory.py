"""A later import keeps what the operator has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.kolla_ansible import directory
from kolla_mesos_start.operator.kolla_ansible.emit import Emitted


def emitted(**files: str) -> Emitted:
    return Emitted({"imported.json": b"{}", **{name: text.encode() for name, text in files.items()}})


def test_the_first_import_makes_the_directory(tmp_path: Path) -> None:
    made = emitted(a="1")
    made.links["b/link"] = "a"
    directory.write(tmp_path / "site", made)
    assert (tmp_path / "site" / "b" / "link").read_text() == "1"


def test_an_unchanged_file_is_replaced_and_an_old_one_removed(tmp_path: Path) -> None:
    directory.write(tmp_path, emitted(a="1", old="1"))
    new = emitted(a="2")
    assert not directory.changed(tmp_path, new)
    assert directory.write(tmp_path, new) == ["old"]
    assert (tmp_path / "a").read_text() == "2"
    assert not (tmp_path / "old").exists()


def test_a_file_of_the_operator_is_named(tmp_path: Path) -> None:
    directory.write(tmp_path, emitted(a="1", b="1", old="1"))
    for name in ("a", "b", "old"):
        (tmp_path / name).write_text("ours")
    assert directory.changed(tmp_path, emitted(a="2", b="ours")) == ["a"]
    assert directory.write(tmp_path, emitted(a="2", b="ours")) == []
    assert (tmp_path / "old").read_text() == "ours"


def test_another_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with pytest.raises(BadUsage, match="is not empty"):
        directory.changed(tmp_path, emitted(a="1"))


def test_the_reasons_of_an_import_are_known_by_the_roles_of_both_ends(tmp_path: Path) -> None:
    edge = {"name": "keystone", "on": "mariadb", "reason": "keystone.conf:12 connection", "hard": True}
    directory.write(tmp_path, Emitted({"imported.json": json.dumps({"edges": [edge]}).encode()}))
    assert directory.reasons(tmp_path) == {("mariadb", "keystone"): "keystone.conf:12 connection"}
    with pytest.raises(BadUsage, match="give the directory of `kolla_mesos_ctl import`"):
        directory.reasons(tmp_path / "other")
