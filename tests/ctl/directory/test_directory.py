"""What a deployment's directory holds, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import MAX_DATA
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.errors import BadDefinition, BadUsage
from tests.support.publishing import write_files

DEFINITION = '{"commands": {"sync": {"command": "true"}}}'


def issues(root: Path) -> str:
    with pytest.raises(BadDefinition) as caught:
        directory.read(root)
    return "\n".join(caught.value.issues)


def test_a_directory_is_read_as_the_tree_that_it_draws(tmp_path: Path) -> None:
    """Each file goes to the place in the tree that its path says."""
    write_files(
        tmp_path,
        variables__region="one\n",
        services__db__definition_json=DEFINITION,
        services__db__variables__size="3",
        services__db__variables__web1__size="5\n6\n",
        services__db__files__conf=b"\xff\x00",
        services__a__b__definition_yml="commands: {}\n",
    )
    deployment = directory.read(tmp_path)
    nested, db = deployment.services
    assert deployment.variables == {"region": b"one"}
    assert (nested.name, nested.source) == ("a/b", "services/a/b/definition.yml")
    assert db.definition == DEFINITION.encode()
    assert db.variables == ({"size": b"3"}, {"web1": {"size": b"5\n6\n"}})
    assert db.files == {"conf": b"\xff\x00"}


def test_values_come_from_a_file_and_a_directory_alike(tmp_path: Path) -> None:
    """Both may be there, and in a file a mapping holds the values of one host."""
    write_files(
        tmp_path,
        services__db__definition_json=DEFINITION,
        services__db__variables_yml="size: 3\nweb1: {size: 5}\n",
        services__db__variables__name="x",
        services__db__variables__web1__name="y",
    )
    assert directory.read(tmp_path).services[0].variables == (
        {"name": b"x", "size": b"3"},
        {"web1": {"name": b"y", "size": b"5"}},
    )


def test_what_lies_beside_services_is_left_out_and_listed(tmp_path: Path) -> None:
    """A README does no harm, and neither do the hidden files of editors and git."""
    write_files(tmp_path, README="", services__db__definition_json=DEFINITION)
    (tmp_path / ".git").mkdir()
    (tmp_path / "services" / "db" / ".definition.yml.swp").write_text("")
    assert directory.read(tmp_path).left_out == ("README",)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "holds neither services nor variables"),
        ({"services__db__defintion_yml": "a: 1"},
         "variables.yml, variables/ or files/ (did you mean 'definition.yml'?)"),
        ({"services__note": ""}, "services/note: expected a directory"),
        ({"services__db__files__conf": ""}, "services/db: expected a definition.yml beside"),
        ({"services__db__definition_yml": "a: 1", "services__db__definition_json": "{}"},
         "services/db: expected one definition, found definition.json, definition.yml"),
        ({"services__variables__definition_json": "{}"}, "no service can have variables in its name"),
        ({"services__a__status__definition_json": "{}"}, "no service can have status in its name"),
        ({"services__db__definition_yml": "a: [1"}, "services/db/definition.yml: bad YAML: "),
        ({"services__db__definition_json": "{}", "services__db__files__a__b": ""}, "files/a: a directory"),
        ({"services__db__definition_yml": "# later\n"}, "services/db/definition.yml: empty: expected"),
        ({"services__db__definition_yml__x": ""}, "services/db/definition.yml: a directory: expected a file"),
        ({"variables_yml__x": ""}, "variables.yml: a directory: expected a file"),
        ({"variables__web1__size": "3"}, "variables/web1: a directory: values for one host belong to a"),
        ({"variables_yml": "web1: {a: 1}\n"}, "variables.yml: web1: expected a single value: values for one"),
        ({"service__db__definition_yml": ""}, "service: unknown name, so it is ignored; near"),
        ({"variable_yml": "a: 1\n"}, "nearest is 'variables.yml'"),
        ({"variables_yml": "a: 1\n", "variables__a": "2"}, "a has a value in another file too"),
        ({"variables_yml": "a: [1]\n"}, "variables.yml: a: expected a single value"),
        ({"variables_yml": "a/b: 1\n"}, "variables.yml: a/b: a znode can't have this name"),
        ({"variables_yml": "- a\n"}, "variables.yml: expected a mapping"),
        ({"variables__a": b"\xff"}, "variables/a: not UTF-8 text (byte 0)"),
        ({"variables__a": b"x" * (MAX_DATA + 1)}, "variables/a: 1000001 bytes are more than ZooKeeper"),
    ],
)  # fmt: skip
def test_an_issue_names_its_path(tmp_path: Path, files: dict[str, str | bytes], expected: str) -> None:
    """Nothing below `services` is ignored in silence."""
    assert expected in issues(write_files(tmp_path, **files))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def looped(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "name", ["variables/a", "variables.yml", "services/db/definition.yml", "services/db/files/b"]
)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (piped, "can't be read: it is not a regular file"),
        (dangling, "a link to a missing"),
        (looped, "can't be read: Too many levels of"),
    ],
)
def test_what_can_not_be_read_is_one_issue(
    tmp_path: Path, name: str, change: Callable[[Path], None], why: str
) -> None:
    """Nobody waits for the other end of a pipe, and the rest is read all the same."""
    files = {"variables__a": "1", "variables_yml": "c: 1", "services__db__files__b": "{{ c }}"}
    db = "commands: {sync: {command: 'true {{ c }} {{ a }}', files: {b: {dest: /b}}}}"
    root = write_files(tmp_path, **files, services__db__definition_yml=db)
    change(root / name)
    deployment, findings = directory.look(root)
    assert [each.file for each in findings] == [name]
    assert why in findings[0].message
    assert validate(deployment) == []


def test_a_directory_that_may_not_be_read_is_one_issue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever validates need not be who publishes."""

    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    root = write_files(tmp_path, services__db__definition_json=DEFINITION, services__db__files__conf="x")
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: denied(path) if path.name == "files" else listed(path))
    assert issues(root) == "services/db/files: can't be read: Permission denied"


@pytest.mark.parametrize(
    "link",
    [
        "variables.yml",
        "variables/region",
        "services",
        "services/web",
        "services/db/definition.yml",
        "services/db/variables",
        "services/db/variables/web1",
        "services/db/files",
        "services/db/files/conf",
    ],
)
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, link: str) -> None:
    """Whoever writes the directory could publish what only its publisher may read."""
    root, secret = tmp_path / "site", tmp_path / "secret"
    secret.write_text("a: 1")
    write_files(root, services__db__definition_json=DEFINITION)
    (root / "README").symlink_to(secret)  # Nothing is read from it.
    assert directory.read(root).left_out == ("README",)
    path = root / link
    if path.name == "services":
        path.rename(tmp_path / "elsewhere")
        secret = tmp_path / "elsewhere"
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "hop").symlink_to(secret)
    path.symlink_to(tmp_path / "hop")
    with pytest.raises(BadUsage) as caught:
        directory.read(root)
    assert f"{path} is a link to {secret}, outside of {root}: put a copy" in caught.value.reason


def test_what_editors_and_packages_leave_is_named_and_not_published(tmp_path: Path) -> None:
    """Wherever it is; a similar name of its own is published."""
    left = [
        "x~",
        "#x#",
        "x.orig",
        "x.rej",
        "x.bak",
        "x.swp",
        "x.rpmsave",
        "x.rpmnew",
        "x.dpkg-old",
        "x.ucf-dist",
    ]
    kept = ["x.conf", "x.original", "x#", "bak"]
    write_files(tmp_path, services__a__definition_json=DEFINITION)
    write_files(tmp_path / "services/a", **{"definition.json~": "{"})
    write_files(tmp_path / "services/a~", **{"definition.json": "{"})
    for place in ("services/a/files", "services/a/variables", "variables"):
        write_files(tmp_path / place, **dict.fromkeys([*left, *kept], "text"))
    found, findings = directory.look(tmp_path)
    (service,) = found.services
    for contents in (service.files, service.variables.own, found.variables):
        assert sorted(contents) == sorted(kept)
    named = [each for each in findings if "left out" in each.message]
    assert {each.severity for each in named} == {"warning"}
    assert len(named) == 3 * len(left) + 2


def test_a_link_inside_of_the_directory_is_followed(tmp_path: Path) -> None:
    """As in a ConfigMap that is mounted, where each file is one."""
    write_files(tmp_path / "site", services__db__definition_json=DEFINITION, services__db__data__conf="x")
    root, files = tmp_path / "site", tmp_path / "site" / "services" / "db" / "files"
    (files.parent / "data").rename(root / "common")
    files.symlink_to("../../common")
    (tmp_path / "link").symlink_to(root)
    assert directory.read(tmp_path / "link").services[0].files == {"conf": b"x"}


def test_a_link_that_leads_back_is_refused(tmp_path: Path) -> None:
    """It would be followed without end."""
    write_files(tmp_path, services__a__definition_json=DEFINITION, services__b__definition_json=DEFINITION)
    (tmp_path / "services" / "a" / "x").symlink_to("../b")
    (tmp_path / "services" / "b" / "y").symlink_to("../a")
    with pytest.raises(
        BadUsage, match=r"services/a/x/y is a link to .*/services/a, which contains it: remove it"
    ):
        directory.read(tmp_path)


def test_an_error_never_shows_a_value(tmp_path: Path) -> None:
    """A password in a file that can't be read stays there."""
    write_files(tmp_path, variables_yml="password: [s3cret]\n", variables__token=b"s3cret\xff")
    assert "s3cret" not in issues(tmp_path)
    for value in ("s3cret: s3cret", "*s3cret", "!s3cret x", "{s3cret}", "{[s3cret]: 1}", "&s3cret &s3cret"):
        write_files(tmp_path, variables_yml=f"password: {value}\n")
        assert "s3cret" not in issues(tmp_path)
