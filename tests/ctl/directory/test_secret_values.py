"""Which secrets still need a value, and what is generated."""

from __future__ import annotations

import base64
import re
import uuid
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import KINDS, Deployment
from kolla_mesos_start.ctl.directory.secret_values import MAKERS, generate
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets
from tests.ctl.sources import load
from tests.support.publishing import write_files

DEPLOYMENT = Deployment({}, [], (), secrets={"db": "password", "key": "fernet"})


def test_every_kind_can_be_generated_except_given() -> None:
    assert (*MAKERS, "given") == KINDS


def test_a_secret_that_is_not_generated_is_named_until_it_has_a_value(tmp_path: Path) -> None:
    secrets = "ssh_key: given\nproject: uuid\n"
    root = write_files(tmp_path / "site", secrets_yml=secrets, services__a__definition_json=USING)
    (error,) = [each for each in validate(load(root).deployment) if each.severity == "error"]
    assert (error.place, error.message) == (
        "secrets.yml:1",
        "ssh_key: it has no value, and is never generated: add `ssh_key: VALUE` to the file of --secrets",
    )
    (tmp_path / "own.yml").write_text("ssh_key: KEY\n")
    found = load(root, "--secrets", str(tmp_path / "own.yml"))
    assert list(found.generated) == ["project"]
    assert str(uuid.UUID(found.generated["project"].decode())) == found.generated["project"].decode()


def test_an_empty_value_of_kolla_ansibles_passwords_is_named_with_its_line(tmp_path: Path) -> None:
    """There it is below the name of a mapping."""
    site = {"secrets_yml": "ssh_key: given\nproject: uuid\n", "services__a__definition_json": USING}
    root = write_files(tmp_path / "site", **site)
    file = tmp_path / "passwords.yml"
    file.write_text("other: 1\nssh:\n  key:\n")
    (error,) = validate(load(root, "--secrets", str(file)).deployment)
    assert (error.file, error.line) == (str(file), 3)
    assert error.message.startswith("ssh_key: it has no value, and is never generated: ")


def test_only_used_values_of_the_file_are_kept(tmp_path: Path) -> None:
    """And those that the directory names. Without the text of each template, nothing is left out."""
    site = {
        "secrets_yml": "named: password\n",
        "variables_yml": "region: one\n",
        "services__a__definition_json": USING,
        "services__a__files__conf": "",
    }
    file = tmp_path / "passwords.yml"
    file.write_text("{ssh: {key: K, other: O}, project: P, region: two, named: N, more: M}\n")
    found, left = without_unused_secrets(load(write_files(tmp_path / "site", **site), "--secrets", str(file)))
    assert left == ["more", "ssh_other"]
    assert {name: value.decode() for name, value in found.deployment.variables.items()} == {
        "ssh_key": "K",
        "project": "P",
        "region": "two",
        "named": "N",
    }
    unread = {**site, "services__a__definition_json": "{"}
    found, left = without_unused_secrets(load(write_files(tmp_path / "b", **unread), "--secrets", str(file)))
    assert (len(found.deployment.variables), left) == (6, ())


def test_an_empty_file_is_known_to_use_nothing(tmp_path: Path) -> None:
    """Such as Horizon's own settings, which are in each import of kolla-ansible."""
    site = {
        "services__a__definition_json": USING,
        "services__a__files__conf": "",
        "services__b__definition_json": '{"commands": {"b": {"command": "b", "files": {"settings": {}}}}}',
        "services__b__files__settings": "",
    }
    file = tmp_path / "passwords.yml"
    file.write_text("{ssh_key: K, project: P, aodh_database_password: A}\n")
    found, left = without_unused_secrets(load(write_files(tmp_path / "site", **site), "--secrets", str(file)))
    assert left == ["aodh_database_password"]
    assert found.deployment.variables.keys() == {"ssh_key", "project"}


def test_a_published_value_takes_the_place_of_one_that_is_not_generated() -> None:
    lacking = DEPLOYMENT._replace(variables={}, secrets={"ssh_key": "given"})
    generated = generate(lacking.secrets, {})
    source = Source("site", lacking._replace(variables=generated), generated=generated)
    assert source.with_published({"variables/ssh_key": b"KEY"}).kept == {"ssh_key": b"KEY"}


def test_a_password_needs_no_quotes_anywhere() -> None:
    made = [MAKERS["password"]() for _ in range(100)]
    assert all(re.fullmatch("[A-Za-z0-9]{32}", each) for each in made)
    assert len(set(made)) == 100


def test_a_fernet_key_is_as_its_library_makes_it() -> None:
    assert len(base64.urlsafe_b64decode(MAKERS["fernet"]())) == 32
    assert len(MAKERS["fernet"]()) == 44


@pytest.mark.parametrize(
    ("variables", "given", "published", "kept", "new"),
    [
        ({}, {}, {}, set(), {"db", "key"}),
        ({"db": b"x"}, {}, {}, set(), {"key"}),
        ({}, {"db": "x"}, {}, set(), {"key"}),
        ({}, {}, {"variables/db": b"x"}, {"db"}, {"key"}),
        ({"db": b"y"}, {"key": "z"}, {"variables/db": b"x"}, set(), set()),
        ({}, {}, {"variables/db": b"", "a/variables/key": b"x"}, {"db"}, {"key"}),
    ],
)
def test_what_has_a_value_or_is_published_is_not_generated(
    variables: dict[str, bytes],
    given: dict[str, str],
    published: dict[str, bytes],
    kept: set[str],
    new: set[str],
) -> None:
    deployment = DEPLOYMENT._replace(variables=variables)
    generated = generate(deployment.secrets, {*variables, *given})
    complete = deployment._replace(variables={**variables, **generated})
    done = Source("site", complete, generated=generated).with_published(published)
    assert (set(done.kept), set(done.generated)) == (kept, new)
    assert done.deployment.variables == {**variables, **done.kept, **done.generated}
    assert all(done.kept[name] == published[f"variables/{name}"] for name in kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [("db", ""), ("db", " "), ("key", ""), ("key", "hunter2"), ("key", "A" * 43), ("key", "é" * 44)],
)
def test_a_value_that_can_be_no_secret_is_an_error_with_its_line(
    tmp_path: Path, name: str, value: str
) -> None:
    """What is left of a file that was cut off would lock out all that runs with the whole value."""
    file = tmp_path / "own.yml"
    file.write_text(yaml.safe_dump({name: value}, allow_unicode=True))
    root = write_files(tmp_path / "site", secrets_yml="db: password\nkey: fernet\n", variables_yml="x: y\n")
    (found,) = validate(load(root, "--secrets", str(file)).deployment)
    assert (found.severity, found.file, found.line) == ("error", str(file), 1)
    assert found.message.startswith(f"{name}: it is ")
    assert "hunter2" not in found.message


USING = '{"commands": {"c": {"command": "login {{ ssh_key }} {{ project }}"}}}'
SERVICE = '{"commands": {"c": {"command": "login {{ db }} {{ key | d }} {{ region | d }}"}}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("db: password\nkey: fernet\n", []),
        ("db: pasword\n", ["1 db: unknown kind (did you mean 'password'?): secrets.yml names"]),
        (
            "key: fernet\ndb: hunter2\n",
            ["2 db: unknown kind: secrets.yml names the kind of each secret (password, fernet, uuid or"],
        ),
        ("key: [fernet]\ndb: password\n", ["1 key: unknown kind"]),
        ("a/b: fernet\ndb: password\n", ["1 a/b: a znode can't have this name"]),
        ("region: password\ndb: password\n", ["1 region: it has a value in variables.yml too"]),
        ("- db\n", ["None expected a mapping"]),
    ],
)
def test_what_is_wrong_in_secrets_yml_is_found_and_no_value_shown(
    tmp_path: Path, text: str, said: list[str]
) -> None:
    """Nothing is missing then: a template may name a secret."""
    write_files(tmp_path, secrets_yml=text, variables_yml="region: one", services__a__definition_json=SERVICE)
    loaded = load(tmp_path)
    deployment, findings = loaded.deployment, loaded.unreadable
    found = [f"{each.line} {each.message}" for each in findings]
    assert len(found) == len(said)
    assert all(each.startswith(start) for each, start in zip(found, said))
    assert {each.file for each in findings} <= {"secrets.yml"}
    assert "hunter2" not in str(found)
    assert validate(deployment) == []
    assert deployment.left_out == ()


def test_a_secret_is_in_one_file(tmp_path: Path) -> None:
    write_files(tmp_path, secrets_yml="db: password", secrets_json='{"db": "password"}')
    write_files(tmp_path, services__a__definition_json=SERVICE)
    assert "it is in another file too" in directory.look(tmp_path)[1][0].message
