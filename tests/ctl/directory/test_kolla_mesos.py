"""kolla-mesos's own layout: it becomes what its deploy tool published, and its mistakes are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory import directory, kolla_mesos
from kolla_mesos_start.ctl.directory.directory import Deployment, Given
from kolla_mesos_start.ctl.directory.findings import DataSource, Finding
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.errors import BadUsage

ALL = """\
---
registry:
namespace: "kolla"
image_prefix: "{{ registry ~ '/' if registry else '' }}{{ namespace }}/{{ distro }}"
distro: "centos"
release: 2.10
debug: yes
quoted: "yes"
database_address: "{{ internal_address }}"
database_port: "3306"
auth:
    url: "http://{{ internal_address }}:5000"
    password: "{{ admin_password }}"
enable_db: "yes"
enable_log: "no"
"""
DB = """\
{% set dir = 'mysql' if distro in ['ubuntu'] else '' %}
name: infra/db/db
enabled: {{ enable_db | bool }}
container:
  image: "{{ db_image }}:{{ db_tag }}"
  parameters:
    - key: volume
      value: "db_{{ deployment_id }}_{{ timestamp }}:/var/lib/mysql"
service:
  daemon:
    command: mysqld_safe
    reload_signal: SIGHUP
    dependencies: [db/bootstrap]
    ready: {tcp: "{{ database_port }}"}
  mem: {{ db_mem }}
  instances: {{ controller_nodes }}
  constraints: {{ controller_constraints }}
commands:
  bootstrap:
    run_once: True
    command: kolla_extend_start -e "{{ '{{ db_token }}' }}"
    env:
      KOLLA_BOOTSTRAP:
      PASSWORD: "{{ auth.password }}"
    files:
      galera.cnf.j2:
        source: ["/etc/kolla-mesos/config/galera.cnf",
                 "config/db/templates/galera.cnf.j2",
                 "config/db/templates/more.cnf"]
        dest: /etc/{{ dir }}/my.cnf
        owner: mysql
        perm: "0600"
"""
LOG = """\
name: infra/log/log
enabled: {{ enable_log | bool }}
service:
  daemon:
    command: log {{ log_levle }}
    dependencies:
     - path: db/nothing
"""
DEFAULTS = """\
db_image: "{{ image_prefix }}-db"
db_tag: "{{ release }}"
db_mem: "512"
db_token: t0ken
distro: suse
"""
FILES = {
    "config/all.yml": ALL,
    "config/db/defaults/main.yml": DEFAULTS,
    "config/db/templates/galera.cnf.j2": "[mysqld]\nport = {{ database_port }}\n",
    "config/db/templates/more.cnf": "[mysqld]\nport = 1\n",
    "etc/globals.yml": "internal_address: 10.0.0.1\ndistro: debian\n",
    "etc/passwords.yml": "admin_password: s3cret\n",
    "services/db/db.yml.j2": DB,
    "services/log/log.yml.j2": LOG,
    "services/default.marathon.j2": "{}",
    "README": "",
}


def look(root: Path, files: dict[str, str] | None = None, **given: str) -> tuple[Deployment, list[Finding]]:
    """What a directory holds, and all that is wrong with it."""
    for name, content in {**FILES, **(files or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert kolla_mesos.is_one(root)
    values = {name: Given(value, DataSource("--set")) for name, value in given.items()}
    deployment, findings = kolla_mesos.look(root, values, "site")
    return deployment, [*findings, *validate(deployment, deployment_id="site")]


def test_it_becomes_what_the_deploy_tool_published(tmp_path: Path) -> None:
    """Values and graphs are rendered once, files are not; later files win."""
    deployment, _ = look(tmp_path)
    db, log = deployment.services
    assert (db.name, db.source, db.enabled) == ("infra/db/db", "services/db/db.yml.j2", True)
    definition = json.loads(db.definition)
    assert definition["commands"]["bootstrap"]["command"] == 'kolla_extend_start -e "{{ db_token }}"'
    assert definition["commands"]["bootstrap"]["env"] == {"KOLLA_BOOTSTRAP": None, "PASSWORD": "s3cret"}
    assert definition["container"]["image"] == "kolla/debian-db:2.10"
    assert definition["service"]["instances"] == 1
    assert db.files == {"galera.cnf.j2": b"[mysqld]\nport = {{ database_port }}\n\n[mysqld]\nport = 1\n"}
    assert db.variables.own == {
        "db_image": b"kolla/debian-db",
        "db_tag": b"2.10",
        "db_mem": b"512",
        "db_token": b"t0ken",
    }
    assert (log.name, log.enabled) == ("infra/log/log", False)
    assert deployment.left_out == ("README",)


@pytest.mark.parametrize("half", ["{% set a = '\\ud800' %}{{ a }}", '"\\ud800"'])
def test_half_of_a_surrogate_pair_is_named(tmp_path: Path, half: str) -> None:
    """Wherever it comes from; it can't be written as UTF-8."""
    _, findings = look(tmp_path, {"services/db/db.yml.j2": DB.replace("mysqld_safe", half)})
    assert any("UTF-8" in each.message for each in findings)


def test_values_are_those_that_the_deploy_tool_made(tmp_path: Path) -> None:
    """YAML's booleans become Python's words, other plain words stay as they are, mappings become JSON."""
    values = look(tmp_path)[0].variables
    assert {
        name: values[name] for name in ("registry", "release", "debug", "quoted", "database_address")
    } == {
        "registry": b"",
        "release": b"2.10",
        "debug": b"True",
        "quoted": b"yes",
        "database_address": b"10.0.0.1",
    }
    assert json.loads(values["auth"]) == {"url": "http://10.0.0.1:5000", "password": "s3cret"}
    assert values["controller_nodes"] == b"1"
    assert "deployment_id" not in values


def test_a_service_that_is_not_enabled_is_not_published(tmp_path: Path) -> None:
    """It is read, so that its mistakes are found."""
    deployment, _ = look(tmp_path)
    assert list(directory.definitions(deployment)) == ["infra/db/db"]
    assert not [node for node in directory.nodes(deployment) if node.startswith("infra/log")]


def test_the_command_line_wins(tmp_path: Path) -> None:
    deployment, findings = look(tmp_path, enable_log="yes", controller_nodes="3", distro="ubuntu")
    db, log = deployment.services
    assert log.enabled
    assert json.loads(db.definition)["service"]["instances"] == 3
    assert (
        json.loads(db.definition)["commands"]["bootstrap"]["files"]["galera.cnf.j2"]["dest"]
        == "/etc/mysql/my.cnf"
    )
    assert {each.severity for each in findings if "log_levle" in each.message} == {"error"}


def test_nothing_is_wrong_with_what_is_right(tmp_path: Path) -> None:
    """What the deploy tool supplied counts as given; a service that is not enabled has warnings only."""
    _, findings = look(tmp_path)
    assert [(each.severity, each.file, each.line) for each in findings] == [
        ("warning", "services/log/log.yml.j2", 5),
        ("warning", "services/log/log.yml.j2", 7),
    ]
    assert "'log_levle'" in findings[0].message
    assert "infra/db/db has no command 'nothing'" in findings[1].message


DB_YML = "services/db/db.yml.j2"


@pytest.mark.parametrize(
    ("files", "severity", "file", "line", "message"),
    [
        ({DB_YML: DB.replace("controller_constraints", "controler_constraints")}, "error", DB_YML, 17,
         "'controler_constraints', which has no value (did you mean 'controller_constraints'?)"),
        ({DB_YML: DB.replace("auth.password", "auth.pasword")}, "error", DB_YML, 24, "pasword"),
        ({DB_YML: DB.replace("{% set", "{% sett")}, "error", DB_YML, 1, "unknown tag"),
        ({DB_YML: DB.replace("reload_signal", "relaod_signal")}, "error", DB_YML, 12,
         "unknown key; nearest is 'reload_signal'"),
        ({DB_YML: DB.replace("db/bootstrap", "db/boostrap")}, "error", DB_YML, 13, "nearest is 'bootstrap'"),
        ({DB_YML: DB.replace("    files:", "   files:")}, "error", DB_YML, 25, "bad YAML"),
        ({DB_YML: DB.replace('galera.cnf.j2"', 'glera.cnf.j2"')}, "error", DB_YML, 27,
         "glera.cnf.j2 does not exist (did you mean 'galera.cnf.j2'?)"),
        ({"config/all.yml": ALL.replace("{{ internal_address }}:5000", "{{ internal_adress }}:5000")},
         "error", "config/all.yml", 12,
         "auth.url needs the variable 'internal_adress', which has no value (did you mean 'internal_ad"),
        ({"config/db/defaults/main.yml": DEFAULTS.replace("release", "relaese")}, "error",
         "config/db/defaults/main.yml", 2, "'relaese'"),
        ({"config/db/defaults/main.yml": DEFAULTS.replace('"512"', "\"{{ db_mme | default('512') }}\"")},
         "warning", "config/db/defaults/main.yml", 3,
         "db_mem takes the default of 'db_mme', which has no value (did you mean 'db_mem'?)"),
        ({DB_YML: DB.replace("db_mem }}", "db_memm | default(1) }}")}, "warning", DB_YML, 15,
         "takes the default of 'db_memm', which has no value (did you mean 'db_mem'?)"),
        ({"config/db/templates/galera.cnf.j2": "\n{{ databse_port }}\n"}, "error",
         "config/db/templates/galera.cnf.j2", 2, "(did you mean 'database_port'?)"),
        ({"etc/globals.yml": "internal_address: [\n"}, "error", "etc/globals.yml", 2, "bad YAML"),
        ({"etc/passwords.yml": "admin_password:\n"}, "warning", "etc/passwords.yml", 1,
         "admin_password is empty"),
        ({"config/log/defaults/main.yml": "a: '{{ b }}'\n"}, "warning", "config/log/defaults/main.yml", 1,
         "'b'"),
        ({DB_YML: DB + "{% if quoted %}# a comment\n{% endif %}\n"}, "warning", DB_YML, 33,
         "tests quoted, a text"),
        ({DB_YML: DB + "{% if not debug %}# {{ nothing }}\n{% endif %}\n"}, "warning", DB_YML, 33,
         "'nothing', which has no value, on a branch"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_where_it_was_made(
    tmp_path: Path, files: dict[str, str], severity: str, file: str, line: int | None, message: str
) -> None:
    _, findings = look(tmp_path, files)
    found = [(each.severity, each.file, each.line) for each in findings if message in each.message]
    assert found == [(severity, file, line)], findings


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config/all.yml", "a: [\n", "bad YAML"),
        ("config/db/defaults/main.yml", "- a\n", "expected a mapping"),
        ("etc/globals.yml", "a: 1\na: 2\n", "occurs more than once"),
        (DB_YML, "# later\n", "empty: expected"),
        (DB_YML, "- a\n", "expected a mapping"),
    ],
)
def test_what_can_not_be_read_is_one_finding(tmp_path: Path, file: str, content: str, message: str) -> None:
    """The values that are missing may stand there; what a service that is not enabled lacks is a warning."""
    _, findings = look(tmp_path, {file: content})
    errors = [each for each in findings if each.severity == "error"]
    assert [each.file for each in errors] == [file], errors
    assert message in errors[0].message


def test_a_template_that_is_none_is_one_finding(tmp_path: Path) -> None:
    """A link to nowhere is said with its file, and the others are read."""
    (tmp_path / "services" / "db").mkdir(parents=True)
    (tmp_path / "services" / "db" / "old.yml.j2").symlink_to("nowhere")
    _, findings = look(tmp_path)
    errors = [(each.file, each.message) for each in findings if each.severity == "error"]
    assert errors == [("services/db/old.yml.j2", "a link to a missing file")]


def test_a_mistake_in_a_file_of_several_services_is_said_once(tmp_path: Path) -> None:
    """As an error, if one of them is enabled."""
    template = "config/db/templates/galera.cnf.j2"
    log = LOG + f"    files:\n      galera: {{source: {template}, dest: /etc/my.cnf}}\n"
    text = "{{ databse_port }}\n{{ databse_port }}"
    for order in ("log", "zlog"):
        files = {f"services/{order}/log.yml.j2": log.replace("infra/log", f"infra/{order}"), template: text}
        _, findings = look(tmp_path / order, files)
        found = [(each.severity, each.line) for each in findings if each.file == template]
        assert found == [("error", 1)], findings


def test_a_default_may_name_itself(tmp_path: Path) -> None:
    """As kolla-mesos wrote what others may set, and chains of values."""
    defaults = (
        DEFAULTS.replace('"512"', "\"{{ db_mem | default('128') }}\"") + "b: '{{ a }}'\na: '{{ db_tag }}'\n"
    )
    files = {"config/db/defaults/main.yml": defaults}
    own = look(tmp_path, files)[0].services[0].variables.own
    assert (own["db_mem"], own["b"]) == (b"128", b"2.10")
    deployment, _ = look(tmp_path, files, db_mem="64")
    assert "db_mem" not in deployment.services[0].variables.own
    assert json.loads(deployment.services[0].definition)["service"]["mem"] == 64


def test_sources_of_the_deploy_tools_host_may_be_missing(tmp_path: Path) -> None:
    """Then the file is empty, if all of its sources are there."""
    conf = '"/etc/kolla-mesos/config/{}.conf"'
    source = DB[DB.index("        source: [") : DB.index("        dest:")]
    elsewhere = f"        source: [{conf.format('global')}, {conf.format('db')}]\n"
    deployment, findings = look(tmp_path, {DB_YML: DB.replace(source, elsewhere)})
    assert deployment.services[0].files == {"galera.cnf.j2": b""}
    assert not [each for each in findings if each.severity == "error"]


def test_a_source_outside_of_the_directory_is_refused(tmp_path: Path) -> None:
    """A link, or a path with `..` in it."""
    (tmp_path / "secret").write_text("x")
    source = "config/db/templates/more.cnf"
    with pytest.raises(BadUsage, match="outside of"):
        look(tmp_path / "site", {DB_YML: DB.replace(source, "config/../../secret")})
