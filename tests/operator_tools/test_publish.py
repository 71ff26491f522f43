"""What an operator's directory says, what is wrong with it, and how YAML is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kolla_mesos_start.definition.document import load
from kolla_mesos_start.errors import BadDefinition, BadUsage, CannotRender
from kolla_mesos_start.operator import directory, notation
from kolla_mesos_start.operator.directory import MAX_DATA
from kolla_mesos_start.operator.publish import arguments, settings_of
from kolla_mesos_start.operator.rehearsal import Rehearsal
from kolla_mesos_start.tree.znodes import Znodes

DEFINITION = '{"commands": {"sync": {"command": "true"}}}'


def write(root: Path, **files: str | bytes) -> Path:
    """Files below `root`; a `__` in a name stands for `/`, a `_yml` at its end for `.yml`."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_yml", ".yml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def issues(root: Path) -> str:
    with pytest.raises(BadDefinition) as caught:
        directory.read(root)
    return "\n".join(caught.value.issues)


# -- the directory --------------------------------------------------------------------------------


def test_a_directory_is_read_as_the_tree_that_it_draws(tmp_path: Path) -> None:
    """Each file goes to the place in the tree that its path says."""
    write(
        tmp_path,
        variables__region="one\n",
        services__db__definition_json=DEFINITION,
        services__db__variables__size="3",
        services__db__variables__web1__size="5\n\n",
        services__db__files__conf=b"\xff\x00",
        services__a__b__definition_yml="commands: {}\n",
    )
    deployment = directory.read(tmp_path)
    nested, db = deployment.services
    assert deployment.variables == {"region": b"one"}
    assert (nested.name, nested.source) == ("a/b", "services/a/b/definition.yml")
    assert db.definition == DEFINITION.encode()
    assert db.variables == ({"size": b"3"}, {"web1": {"size": b"5\n"}})
    assert db.files == {"conf": b"\xff\x00"}


def test_a_service_may_lie_below_another_one(tmp_path: Path) -> None:
    """The tree allows it, so the directory does."""
    write(tmp_path, services__a__definition_json=DEFINITION, services__a__b__definition_json=DEFINITION)
    assert {service.name for service in directory.read(tmp_path).services} == {"a", "a/b"}


def test_values_come_from_a_file_and_a_directory_alike(tmp_path: Path) -> None:
    """Both may be there, and in a file a mapping holds the values of one host."""
    write(
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


def test_what_lies_beside_services_is_left_out_and_told(tmp_path: Path) -> None:
    """A README does no harm, and neither do the hidden files of editors and git."""
    write(tmp_path, README="", services__db__definition_json=DEFINITION)
    (tmp_path / ".git").mkdir()
    (tmp_path / "services" / "db" / ".definition.yml.swp").write_text("")
    assert directory.read(tmp_path).left_out == ("README",)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "holds neither services nor variables"),
        ({"services__db__defintion_yml": "a: 1"}, "services/db/defintion.yml: not known here"),
        ({"services__note": ""}, "services/note: expected a directory"),
        ({"services__db__files__conf": ""}, "services/db: expected a definition.yml beside"),
        (
            {"services__db__definition_yml": "a: 1", "services__db__definition_json": "{}"},
            "services/db: expected one definition, found definition.json, definition.yml",
        ),
        ({"services__variables__definition_json": "{}"}, "no service can have variables in its name"),
        ({"services__a__status__definition_json": "{}"}, "no service can have status in its name"),
        ({"services__db__definition_yml": "a: [1"}, "services/db/definition.yml: bad YAML: "),
        ({"services__db__definition_json": "{}", "services__db__files__a__b": ""}, "files/a: a directory"),
        ({"variables__web1__size": "3"}, "variables: web1: values for one host belong to a service"),
        ({"variables_yml": "a: 1\n", "variables__a": "2"}, "variables.yml: a has a value elsewhere already"),
        ({"variables_yml": "a: [1]\n"}, "variables.yml: a: expected a single value"),
        ({"variables_yml": "a/b: 1\n"}, "variables.yml: a/b: a znode can't have this name"),
        ({"variables_yml": "- a\n"}, "variables.yml: expected a mapping"),
        ({"variables__a": b"\xff"}, "variables/a: not UTF-8 text (byte 0)"),
        ({"variables__a": b"x" * (MAX_DATA + 1)}, "variables/a: 1000001 bytes are more than ZooKeeper takes"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(
    tmp_path: Path, files: dict[str, str | bytes], expected: str
) -> None:
    """Nothing below `services` is ignored in silence."""
    assert expected in issues(write(tmp_path, **files))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Three mistakes in three files are one error."""
    write(tmp_path, variables_yml="a: [1]", services__x="", services__db__definition_yml="a: {")
    told = issues(tmp_path)
    assert all(path in told for path in ("variables.yml", "services/x", "services/db/definition.yml"))


def test_an_error_never_shows_a_value(tmp_path: Path) -> None:
    """A password in a file that can't be read stays there."""
    write(tmp_path, variables_yml="password: [s3cret]\n", variables__token=b"s3cret\xff")
    assert "s3cret" not in issues(tmp_path)
    for value in ("s3cret: s3cret", "*s3cret", "!s3cret x", "{s3cret}", "{[s3cret]: 1}", "&s3cret &s3cret"):
        write(tmp_path, variables_yml=f"password: {value}\n")
        assert "s3cret" not in issues(tmp_path)


# -- the notation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("True", "True"),
        ("0644", "0644"),
        ("0o644", "0o644"),
        ("30:15", "30:15"),
        ("2026-11-21", "2026-11-21"),
        ("1_000", "1_000"),
        (".5", ".5"),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-1", -1),
        ("1.5", 1.5),
        ("'12'", "12"),
    ],
)
def test_a_plain_word_means_what_it_means_in_json(tmp_path: Path, written: str, value: object) -> None:
    """No octal, no sexagesimal, no dates and no `yes`: `perm: 0644` stays the text that is written."""
    path = write(tmp_path, d_yml=f"key: {written}\n") / "d.yml"
    assert json.loads(notation.definition(path)) == {"key": value}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("v.yml", "a: yes\nb: 0644\nc: 1.10\nd:\ne: ~\nf: ''\ng: true\n", "yes|0644|1.10||||true"),
        ("v.json", '{"a": "yes", "b": 12, "c": 1.10, "d": null, "e": false}', "yes|12|1.10||false"),
    ],
)
def test_a_variables_value_is_the_text_that_is_written(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    """A version 1.10 is not 1.1, and a file mode 0644 is not 420."""
    (tmp_path / name).write_text(content)
    assert (
        "|".join(notation.text(value) or "" for value in notation.values(tmp_path / name).values())
        == expected
    )


def test_anchors_and_merges_work_in_definitions(tmp_path: Path) -> None:
    """What YAML has to say a thing once; a key of one's own wins over a merged one."""
    content = "x: &x {a: 1, b: 2}\ny: &y\n  <<: *x\n  b: 3\nz:\n  <<: *y\n  1: one\n"
    path = write(tmp_path, d_yml=content) / "d.yml"
    assert json.loads(notation.definition(path)) == {
        "x": {"a": 1, "b": 2},
        "y": {"a": 1, "b": 3},
        "z": {"a": 1, "b": 3, "1": "one"},
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' is there more than once, line 3 column 1"),
        ("a: [1\n", "bad YAML: "),
        ("a: *b\n", "bad YAML: found undefined alias, line 1 column 4"),
        ("a: {{ b }}\n", "a value that begins with {{ in quotes), line 1 column 5"),
        ("a: !!python/object:os.system {}\n", "bad YAML: could not determine a constructor"),
        ("a: !!binary aGk=\n", "something that JSON has no notation for"),
        ("a: &a [*a]\n", "something that JSON has no notation for"),
        ("a: \x01\n", "control characters"),
        ("[" * 5000, "nested too deep"),
    ],
)
def test_yaml_that_is_no_definition_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    """With line and column, where there is one."""
    path = write(tmp_path, d_yml=content) / "d.yml"
    with pytest.raises(BadDefinition) as caught:
        notation.definition(path)
    assert expected in caught.value.reason


def test_a_definition_in_json_is_published_as_it_is(tmp_path: Path) -> None:
    """Then a line and column that an agent names are those of the operator's file."""
    path = write(tmp_path, d_json='{"a":\n 1}') / "d.json"
    assert notation.definition(path) == b'{"a":\n 1}'


# -- a definition before it is published ----------------------------------------------------------


def rehearse(definition: str, **variables: str) -> bool:
    """Whether the graph could be built."""
    rehearsal = Rehearsal(Znodes("/kolla", "site", "a/db", "web1"), variables, missing_is_empty=False)
    return rehearsal.build(load(definition.encode())) is not None


def dependent(count: str) -> str:
    """A definition whose dependency has this count."""
    dependencies = [{"path": "x/daemon", "count": count}]
    return json.dumps({"commands": {"sync": {"command": "true", "dependencies": dependencies}}})


def test_numbers_are_checked_with_the_published_variables() -> None:
    """A count that comes from a variable is right or wrong like one that stands there."""
    assert rehearse(dependent("{{ n }}"), n="3")
    with pytest.raises(BadDefinition, match="count"):
        rehearse(dependent("{{ n }}"), n="three")


def test_a_variable_that_a_definition_needs_is_missed_before_it_is_published() -> None:
    """And the message says where it was looked for, not that the number is wrong."""
    with pytest.raises(CannotRender, match=r"missing: n .*/kolla/site/a/db/variables/web1/n"):
        rehearse(dependent("{{ n }}"))


@pytest.mark.parametrize(
    "count", ["{{ groups['x'] | length }}", "{{ hostvars['10.0.0.1'].n }}", "{{ groups['x'][0] }}"]
)
def test_what_only_an_agent_can_know_is_left_to_it(count: str) -> None:
    """Nobody is there yet when a deployment is published for the first time."""
    assert not rehearse(dependent("{{ " + count + " }}"))


def test_what_is_wrong_beside_an_unknowable_number_is_told() -> None:
    """A misspelt key is one wherever the count comes from."""
    with pytest.raises(BadDefinition, match="retrys"):
        rehearse(dependent("{{ groups['x'] | length }}").replace('"command"', '"retrys": 1, "command"', 1))


# -- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["", "DIR", "--deployment x", "DIR --deployment a/b", "DIR --deployment x --prnue"]
)
def test_a_wrong_command_line_is_bad_usage(line: str) -> None:
    """It ends with 64, as the agent's does, and not with argparse's 2."""
    with pytest.raises(BadUsage):
        arguments(line.split())


def test_options_win_over_the_environment_and_a_containers_variables_dont_matter() -> None:
    """The publisher runs outside: what is wrong with KOLLA_PORTS there is nobody's business."""
    options = arguments(["DIR", "--deployment", "site", "--hosts", "zoo:2181/x", "--prefix", "/p"])
    environ = {
        "KOLLA_ZK_HOSTS": "other",
        "KOLLA_SYSTEM_PREFIX": "/other",
        "KOLLA_PORTS": "none",
        "KOLLA_ZK_CONNECT_TIMEOUT": "7",
    }
    found = settings_of(options, environ)
    assert (found.hosts, found.chroot, found.prefix, found.deployment_id) == ("zoo:2181", "/x", "/p", "site")
    assert found.connect_timeout == 7
