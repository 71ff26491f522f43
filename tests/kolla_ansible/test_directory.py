"""A later import keeps what the operator has changed, and an interrupted one can't be published."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import directory as deployments
from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotWrite
from kolla_mesos_start.kolla_ansible import directory
from kolla_mesos_start.kolla_ansible.emitted import Emitted

KEY = "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n"


def emitted(links: dict[str, str] | None = None, /, **files: str) -> Emitted:
    """A `__` in a name stands for `/`."""
    named = {name.replace("__", "/"): text.encode() for name, text in files.items()}
    return Emitted({**named, "imported.json": b"{}"}, dict(links or {}))


DEFINITION = "commands: {run: {command: 'true', files: {conf: {dest: /conf}}}}\n"
FILES = {
    "services__a__definition.yml": DEFINITION,
    "services__a__files__conf": "1",
    "services__b__definition.yml": DEFINITION,
}
FIRST = emitted({"services/b/files/conf": "services/a/files/conf"}, **FILES)
SECOND = emitted(**{"services__a__definition.yml": DEFINITION, "services__a__files__conf": "2"})


def test_two_imports_write_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the directory would have files of both, and nothing would say so."""
    write, others = directory._write, list[Thread]()

    def write_beside_another(path: Path, content: bytes | str) -> None:
        if not others:
            others.append(Thread(target=directory.write, args=(tmp_path, FIRST)))
            others[0].start()
            others[0].join(0.5)
        write(path, content)

    monkeypatch.setattr(directory, "_write", write_beside_another)
    directory.write(tmp_path, SECOND)
    others[0].join()
    directory.write(tmp_path / "wanted", FIRST)
    assert tree(tmp_path / "services") == tree(tmp_path / "wanted/services")


def test_an_unchanged_file_is_replaced_and_an_old_one_removed(tmp_path: Path) -> None:
    directory.write(tmp_path, emitted(a="1", old="1"))
    new = emitted(a="2")
    assert not directory.changed(tmp_path, new)
    assert directory.write(tmp_path, new) == ["old"]
    assert (tmp_path / "a").read_text() == "2"
    assert not (tmp_path / "old").exists()


def test_nothing_is_left_of_a_service_that_is_no_longer_imported(tmp_path: Path) -> None:
    """Its links and its directories neither: a service without a definition can't be published."""
    directory.write(tmp_path, FIRST)
    removed = directory.write(tmp_path, SECOND)
    assert removed == ["services/b/definition.yml", "services/b/files/conf"]
    assert not (tmp_path / "services/b").exists()
    assert [each.name for each in deployments.read(tmp_path).services] == ["a"]


def test_a_file_of_the_operator_is_named(tmp_path: Path) -> None:
    directory.write(tmp_path, emitted(a="1", b="1", old="1"))
    for name in ("a", "b", "old"):
        (tmp_path / name).write_text("ours")
    assert directory.changed(tmp_path, emitted(a="2", b="ours")) == ["a"]
    assert directory.write(tmp_path, emitted(a="2", b="ours")) == []
    assert (tmp_path / "old").read_text() == "ours"


def test_what_the_operator_has_changed_is_kept_if_the_import_has_nothing_new(tmp_path: Path) -> None:
    """For example `zookeeper` in launch.yml; also in the imports after that. A removed file stays removed."""
    directory.write(tmp_path, emitted(a="1", b="1", c="1"))
    (tmp_path / "a").write_text("ours")
    (tmp_path / "b").unlink()
    for content in ("1", "2"):
        new = emitted(a="1", b="1", c=content)
        assert not directory.changed(tmp_path, new)
        assert directory.kept(tmp_path, new) == ["a", "b"]
        directory.write(tmp_path, new)
        assert tree(tmp_path).keys() == {"a", "c", "imported.json"}
        assert [(tmp_path / name).read_text() for name in ("a", "c")] == ["ours", content]
    assert directory.changed(tmp_path, emitted(a="2", b="2", c="2")) == ["a", "b"]


def test_a_file_in_place_of_a_link_is_the_operators_and_a_link_in_place_of_a_file(tmp_path: Path) -> None:
    """An editor may replace a link by a file."""
    directory.write(tmp_path, FIRST)
    link, file = tmp_path / "services/b/files/conf", tmp_path / "services/a/definition.yml"
    link.unlink()
    link.write_text("ours")
    file.rename(tmp_path / "ours.yml")
    file.symlink_to("../../ours.yml")
    assert directory.kept(tmp_path, FIRST) == ["services/a/definition.yml", "services/b/files/conf"]
    new = emitted(
        {"services/b/files/conf": "services/b/definition.yml"},
        **{**FILES, "services__a__definition.yml": "commands: {}\n"},
    )
    assert directory.changed(tmp_path, new) == ["services/a/definition.yml", "services/b/files/conf"]
    directory.write(tmp_path, new)
    assert link.is_symlink() and not file.is_symlink()
    assert (tmp_path / "ours.yml").read_text() == DEFINITION


@pytest.mark.parametrize(
    "what, why",
    [
        ("", "is not empty, and has no imported.json"),
        ("{", "imported.json is not the record of an import"),
        ("[]", "imported.json is not the record of an import"),
        ('{"files": []}', "imported.json is not the record of an import"),
        ('{"files": {"a": []}}', "imported.json is not the record of an import"),
    ],
)
def test_another_directory_is_refused(tmp_path: Path, what: str, why: str) -> None:
    (tmp_path / "letter").touch()
    if what:
        (tmp_path / "imported.json").write_text(what)
    with pytest.raises(BadUsage, match=why):
        directory.check(tmp_path)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    directory.check(tmp_path)  # A new repository counts as empty.
    (tmp_path / "site").touch()
    with pytest.raises(BadUsage, match="site is not a directory"):
        directory.check(tmp_path / "site")


@pytest.mark.parametrize("path", ["../outside/conf", "/outside/conf", "services/a/conf"])
def test_nothing_outside_of_the_directory_is_changed(tmp_path: Path, path: str) -> None:
    """Neither by a record nor by a link that somebody else has put there."""
    outside, site = tmp_path / "outside", tmp_path / "site"
    outside.mkdir()
    (outside / "conf").write_text("1")
    path = path.replace("/outside", str(outside), 1) if path.startswith("/") else path
    directory.write(site, emitted(**{"services__b": "1"}))
    record = json.loads((site / "imported.json").read_bytes())
    record["files"][path] = record["files"]["services/b"]
    (site / "imported.json").write_text(json.dumps(record))
    (site / "services/a").symlink_to(outside)
    with pytest.raises(BadUsage, match="outside of"):
        directory.write(site, emitted(**{"services__b": "2"}))
    with pytest.raises(BadUsage, match="outside of"):
        directory.write(site, emitted(**{"services__a__conf": "2"}))
    assert (outside / "conf").read_text() == "1"
    assert (site / "services/b").read_text() == "1"


def test_only_the_owner_can_read_a_key_and_a_new_directory(tmp_path: Path) -> None:
    site = tmp_path / "site"
    directory.write(site, emitted(a="1", key="1"))
    assert stat.S_IMODE(site.stat().st_mode) == 0o700
    assert (site / "a").stat().st_mode & 0o044
    directory.write(site, emitted(a="2", key=KEY))
    assert stat.S_IMODE((site / "key").stat().st_mode) == 0o600


class Killed(BaseException):
    """Stands for a SIGKILL."""


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End this process before its nth change of a directory."""
    left = iter(range(number))
    for name in ("mkdir", "symlink", "unlink", "replace", "rmdir"):
        real = getattr(os, name)

        def stopping(*args: Any, real: Callable[..., None] = real, **others: Any) -> None:
            if next(left, None) is None:
                raise Killed
            real(*args, **others)

        monkeypatch.setattr(os, name, stopping)


@pytest.mark.parametrize("before", [None, FIRST], ids=["first", "later"])
def test_an_import_that_is_killed_cannot_be_published_and_is_completed_by_the_next(
    before: Emitted | None, tmp_path: Path
) -> None:
    complete = [{}, made(tmp_path / "done", before, SECOND), made(tmp_path / "before", before)]
    for number in itertools.count():
        site = tmp_path / str(number)
        made(site, before)
        with pytest.MonkeyPatch.context() as monkeypatch, suppress(Killed):
            kill_at(number, monkeypatch)
            directory.write(site, SECOND)
            break
        if tree(site) not in complete:
            with pytest.raises(BadDefinition, match="an import was interrupted: run it again"):
                deployments.read(site)
        directory.check(site)
        assert directory.changed(site, SECOND) == []
        assert made(site, SECOND) == complete[1]
    assert number > 1


def made(site: Path, *imports: Emitted | None) -> Mapping[str, str]:
    """The files of a directory after these imports."""
    for each in filter(None, imports):
        directory.write(site, each)
    return tree(site)


def tree(root: Path) -> Mapping[str, str]:
    """The files of a directory. Hidden ones, such as a stage that a killed process has left, do not count."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_full_disk_is_an_error_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CannotWrite, match="can't be written: No space left on device"):
        directory.write(tmp_path, emitted(a="1"))


def test_the_reasons_of_an_import_are_known_by_the_roles_of_both_ends(tmp_path: Path) -> None:
    edge = {"name": "keystone", "on": "mariadb", "reason": "keystone.conf:12 connection", "hard": True}
    directory.write(tmp_path, Emitted({"imported.json": json.dumps({"edges": [edge]}).encode()}))
    assert directory.reasons(tmp_path) == {("mariadb", "keystone"): "keystone.conf:12 connection"}
    for text in ("[]", '{"edges": ["a"]}', '{"edges": [{"name": "a"}]}', ""):
        (tmp_path / "imported.json").write_text(text)
        with pytest.raises(BadUsage, match="give the directory of `kolla_mesos_ctl import`"):
            directory.reasons(tmp_path)
