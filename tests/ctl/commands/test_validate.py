"""What `validate` finds in a directory: each kind of mistake, with file, line and the right name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory.findings import Finding
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.render import variables_dir
from tests.ctl.sources import findings, load
from tests.support.publishing import write_files

TOOL = Path(__file__).parents[3] / "bin" / "kolla_mesos_ctl"
ETC = Path(__file__).parents[3] / "etc"

DB = """\
commands:
  sync:
    run_once: true
    generation: "{{ release }}"
    command: db-sync --port {{ port }}
    files:
      db.conf: {dest: /etc/db/db.conf}
service:
  instances: 2
  daemon:
    command: db
    dependencies: [db/sync]
    ready: {tcp: "{{ port }}"}
"""
CLUSTER = """\
commands:
  position: {command: db-position, user: db, timeout: 60}
service:
  instances: 3
  daemon:
    command: db
    user: db
    ready: {command: db-is-synced}
    election: {position: cluster/position, members: 3, start: db --new}
    files:
      db.conf: {dest: /etc/db/db.conf, owner: db}
"""
LAUNCH = """\
hosts: {control: [c1, c2, c3]}
services:
  infra/cluster: {image: db, placement: control, replicas: each}
"""
WEB = """\
service:
  daemon:
    command: [web, --port, "{{ web_port }}"]
    dependencies:
      - db/sync
      - {path: db/daemon, count: 2}
      - {members: infra/db, count: 2}
    files:
      web.conf: {dest: /etc/web/web.conf}
    ready: {http: "http://{{ get_ip_address() }}:{{ web_port }}/"}
"""
CONF = "{% for m in groups['db'] %}\ndb = {{ m }}:{{ port }}\n{% endfor %}\n"
SITE: dict[str, str | bytes] = {
    "variables_yml": "release: 1.10\nport: 3306\nweb_port: 80\ndebug: false\nroot_password: s3cret\n",
    "services__infra__db__definition_yml": DB,
    "services__infra__db__files__db.conf": "port = {{ port }}\n{{ debug }} {{ root_password | d }}\n",
    "services__shop__web__definition_yml": WEB,
    "services__shop__web__files__web.conf": CONF,
}
DB_YML, WEB_YML = "services/infra/db/definition.yml", "services/shop/web/definition.yml"
CLUSTER_YML = "services/infra/cluster/definition.yml"
WEB_CONF = "services/shop/web/files/web.conf"


def found_in(root: Path, files: Mapping[str, str | bytes]) -> list[Finding]:
    """What is wrong with the site, some of whose files are others."""
    return list(findings(write_files(root, **{**SITE, **files})))


def db(old: str, new: str) -> dict[str, str | bytes]:
    assert old in DB
    return {"services__infra__db__definition_yml": DB.replace(old, new)}


def web(old: str, new: str) -> dict[str, str | bytes]:
    assert old in WEB
    return {"services__shop__web__definition_yml": WEB.replace(old, new)}


def conf(text: str | bytes) -> dict[str, str | bytes]:
    return {"services__shop__web__files__web.conf": text}


def cluster(old: str, new: str, **more: str) -> dict[str, str | bytes]:
    """The site with a daemon that has an election."""
    assert old in CLUSTER
    return {
        "services__infra__cluster__definition_yml": CLUSTER.replace(old, new),
        "services__infra__cluster__files__db.conf": "role = {{ election.role }}\n",
        **more,
    }


def placed(db: str, web: str) -> str:
    """A launch.yml in which each service has one container on each of these hosts."""
    service = "{{image: i, placement: {0}, replicas: each}}".format
    services = f"services:\n  infra/db: {service('db')}\n  shop/web: {service('web')}\n"
    return f"hosts: {{db: {db}, web: {web}}}\n{services}"


WORKERS = {"services__shop__web__variables_yml": "workers: 4\n"}
TASK = db(DB[DB.index("service:") :], "")


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    """Loops over members and what only an agent knows are no mistakes."""
    assert found_in(tmp_path, {}) == []


def test_an_election_is_no_mistake(tmp_path: Path) -> None:
    """Templates of the daemon see its result."""
    assert found_in(tmp_path / "a", cluster("", "")) == []
    assert found_in(tmp_path / "b", cluster("", "", launch_yml=LAUNCH)) == []


def test_a_value_for_a_host_is_no_placement(tmp_path: Path) -> None:
    """A service with values for h1 may run anywhere: `restart --host` leaves one, and so does `set`."""
    values = {
        **web("- db/sync", "- {path: db/sync, scope: local}"),
        "services__infra__db__variables_yml": "h1: {rack: a}\n",
        "services__shop__web__variables_yml": "h1: {web_port: 3306}\nh2: {web_port: 3306}\n",
    }
    assert found_in(tmp_path / "a", values) == []
    needed = {**conf("{{ rack }}\n"), "services__shop__web__variables_yml": "h1: {rack: a}\n"}
    assert found_in(tmp_path / "b", needed) == []
    found = found_in(tmp_path / "c", {**needed, "launch_yml": placed(db="[h1, h2]", web="[h1, h2]")})
    (message,) = [each.message for each in found]
    has_none = "needs the variable 'rack', which has no value for the other hosts of its role: define it"
    assert message.startswith(f"file web.conf {has_none}")


@pytest.mark.parametrize(
    ("user", "file", "more"),
    [
        ("db", "owner: db", {}),
        ("db", "owner: 'db:root', perm: '0400'", {}),
        ("db", "perm: '0644'", {}),
        ("db", "owner: root, perm: '0640'", {}),  # It may be in the group.
        ("db", "owner: 42", {}),  # This may be its number.
        ("root", "perm: '0600'", {}),
        ("db", 'owner: "{{ get_hostname() }}"', {}),
        ("db", "perm: '0600'", {"launch_yml": "services: {infra/db: {image: db, user: 42}}\n"}),
    ],
)
def test_a_file_that_its_user_may_read_is_no_mistake(
    tmp_path: Path, user: str, file: str, more: Mapping[str, str]
) -> None:
    new = f"    user: {user}\n    files:\n      db.conf: {{dest: /db, {file}}}\n    ready:"
    found = found_in(tmp_path, {**db("    ready:", new), **more})
    assert not [each for each in found if "can't read" in each.message], found


def test_an_upgrade_is_no_mistake(tmp_path: Path) -> None:
    """Nor what depends on the generation of an image."""
    daemon = "      - {path: db/daemon, generation: '{{ release }}', exclusive: true}\n"
    text = WEB.replace("      - {path: db/daemon, count: 2}\n", daemon)
    text = text.replace("- db/sync", "- {path: db/sync, generation: '1.10'}")
    text = text.replace("    ready:", "    generations: ['1.10', '{{ release }}']\n    ready:")
    assert found_in(tmp_path / "a", {"services__shop__web__definition_yml": text}) == []
    image = "{{ image_generation }}"
    files = {**db("{{ release }}", image), "services__shop__web__definition_yml": text}
    assert found_in(tmp_path / "b", files) == []


MISTAKES: dict[str, tuple[Mapping[str, str | bytes], str, str, int | None, str]] = {
    "a misspelt key": (db("generation:", "generaton:"), "error", DB_YML, 4, "nearest is 'generation'"),
    "a wrong type": (db("command: db\n", "command: 3\n"), "error", DB_YML, 11,
     "service.daemon.command: expected"),
    "a missing key": (db("command: db\n", "user: db\n"), "error", DB_YML, 10,
     "service.daemon.command: is required"),
    "YAML that can't be read": (db("  sync:", "  sync: ["), "error", DB_YML, 4, "bad YAML"),
    "JSON that can't be read": ({"services__x__y__definition_json": '{"commands":\n }'}, "error",
     "services/x/y/definition.json", 2, "bad JSON"),
    "a number by a template": (db('{{ port }}"}', '{{ release }}"}'), "error", DB_YML, 13,
     "service.daemon.ready.tcp"),
    "a cycle in a definition": (db("    files:", "    dependencies: [db/sync]\n    files:"), "error", DB_YML,
     6, "depends on itself"),
    "an unknown role": (web("db/sync", "dbb/sync"), "error", WEB_YML, 5,
     "no service has the role 'dbb' (did you mean 'db'?)"),
    "an unknown command": (web("db/sync", "db/snyc"), "error", WEB_YML, 5,
     "has no command 'snyc' (did you mean 'sync'?)"),
    "a daemon of a task": ({**TASK, **web("      - {members: infra/db, count: 2}\n", "")}, "error", WEB_YML,
     6, "infra/db has no daemon"),
    "members of a task": ({**TASK, **web("      - {path: db/daemon, count: 2}\n", "")}, "error", WEB_YML, 6,
     "infra/db has no daemon, and a task has no members"),
    "an unknown service": (web("infra/db", "infra/bd"), "error", WEB_YML, 7,
     "infra/bd: no service has this name (did you mean 'infra/db'?)"),
    "a cycle across services": (db("[db/sync]", "[db/sync, web/daemon]"), "error", DB_YML, 12,
     "a cycle across services: db/daemon -> web/daemon -> db/daemon"),
    "two services of one role": ({"services__a__web__definition_yml": "commands: {a: {command: 'true'}}\n"},
     "error", WEB_YML, None, "a/web and shop/web have the same role, 'web'"),
    "a variable of a file": (conf("\nport = {{ prot }}\n"), "error", WEB_CONF, 2,
     "needs the variable 'prot', which has no value (did you mean 'port'?)"),
    "a variable that is used more than once": (conf("\n{{ prot }}\n{{ prot }}\n"), "error", WEB_CONF, 2,
     "file web.conf needs the variable 'prot'"),
    "a variable that is used twice on one line": (
     web('[web, --port, "{{ web_port }}"]', '["{{ prot }}", "{{ prot }}"]'), "error", WEB_YML, 3,
     "service.daemon.command[0] needs the variable 'prot'"),
    "a variable of a definition": (web('{{ web_port }}"]', '{{ webport }}"]'), "error", WEB_YML, 3,
     "'webport', which has no value (did you mean 'web_port'?)"),
    "a variable of an early template": (db("{{ release }}", "{{ relese }}"), "error", DB_YML, 4,
     "commands.sync.generation needs the variable 'relese'"),
    "a variable in a loop over members": (
     conf("{% for m in groups['db'] %}\n{{ m }}:{{ prot }}\n{% endfor %}\n"), "error", WEB_CONF, 2, "'prot'"),
    "a variable on another branch": (conf("{% if debug | bool %}\n{{ prot }}\n{% endif %}\n"), "warning",
     WEB_CONF, 2, "on a branch that is not taken"),
    "a variable of one host": (
     {**conf("{{ rack }}"), "services__shop__web__variables_yml": "h1: {rack: a}\nh2: {web_port: 81}\n"},
     "error", WEB_CONF, 1, "'rack', which has no value for host h2"),
    "a misspelt variable that has a default": (conf("\n{{ web_prot | default(80) }}\n"), "warning", WEB_CONF,
     2, "file web.conf takes the default of 'web_prot', which has no value (did you mean 'web_port'?)"),
    "a template that does not parse": (conf("a\n{% if port %}\n"), "error", WEB_CONF, 2,
     "Unexpected end of template"),
    "an unknown filter": (conf("a\n{{ port | boool }}\n"), "error", WEB_CONF, 2, "No filter named 'boool'"),
    "a template in a block of a definition": (
     db("    command: db-sync --port {{ port }}", "    command: |\n      echo one\n      echo {{ prot }}"),
     "error", DB_YML, 7, "'prot'"),
    "a wrong type in a template": (conf("a\n{{ port + 1 }}"), "error", WEB_CONF, 2, "TypeError"),
    "a template that is not UTF-8": (conf(b"{{ port }}\xff"), "error", WEB_CONF, None, "not UTF-8"),
    "a file without content": (web("web.conf: {dest", "wbe.conf: {dest"), "error", WEB_YML, 9,
     "has no content in files/ (did you mean 'web.conf'?): create services/shop/web/files/wbe.conf, or write"
     " optional: true"),
    "two files of one dest": (
        {
            **db("/db.conf}", "/db.conf}\n      web.conf: {dest: /etc//db/db.conf}"),
            "services__infra__db__files__web.conf": "",
        },
        "error",
        DB_YML,
        8,
        "/etc//db/db.conf is the dest of 'db.conf' of sync too",
    ),
    "two commands that write one dest": (
        {
            **db("    command: db\n", "    command: db\n    files: {web.conf: {dest: /etc/db/db.conf}}\n"),
            "services__infra__db__files__web.conf": "",
        },
        "error",
        DB_YML,
        12,
        "service.daemon.files.web.conf.dest: /etc/db/db.conf is the dest of 'db.conf' of sync too",
    ),
    "a dest below another's": (
        {
            **db("/etc/db/db.conf}", "/etc/db}\n      web.conf: {dest: /etc/db/db.conf}"),
            "services__infra__db__files__web.conf": "",
        },
        "error",
        DB_YML,
        8,
        "/etc/db/db.conf is below /etc/db",
    ),
    "a relative dest by a template": (db("/etc/db/db.conf", '"{{ port }}/db.conf"'), "error", DB_YML, 7,
     "expected the absolute path of a file"),
    "a count over what is wanted": (web("count: 2}\n      - {m", "count: 3}\n      - {m"), "error", WEB_YML,
     6, "count 3 of infra/db, of which 2 are wanted"),
    "more members than are wanted": (web("infra/db, count: 2", "infra/db, count: 4"), "error", WEB_YML, 7,
     "count 4 of infra/db, of which 2 are wanted"),
    "instances of a generation that the service is not for": (
     web("count: 2}\n      - {m", 'generation: "2"}\n      - {m'), "error", WEB_YML, 6,
     "db/daemon: generation '2', but infra/db is for '1.10'"),
    "a generation that is recorded on each host": (
     {**db("run_once: true", "run_once: host"), **web("- db/sync", '- {path: db/sync, generation: "1.10"}')},
     "error", WEB_YML, 5,
     "db/sync: its generations are recorded on each host, where it runs once: write `scope: local`"),
    "a generation that is recorded in the deployment": (
     web("- db/sync", '- {path: db/sync, generation: "1.10", scope: local}'), "error", WEB_YML, 5,
     "db/sync: its generations are recorded in the deployment, where it runs once: write `scope: global`"),
    "a generation of a command that has none": (
        {
            **db('    generation: "{{ release }}"\n', ""),
            **web("- db/sync", '- {path: db/sync, generation: "1.10"}'),
        },
        "error",
        WEB_YML,
        5,
        "db/sync: it has no generation, so it is never done for '1.10'",
    ),
    "a generation that may not run the daemon": (
        {
            "services__shop__web__definition_yml": "commands:\n  a: {command: a, run_once: true,"
            " generation: '2'}\n" + WEB.replace("    ready:", "    generations: ['1']\n    ready:")
        },
        "error",
        WEB_YML,
        12,
        "lacks 2, the generation of web/a",
    ),
    "instances that are no number": (db("instances: 2", "instances: many"), "error", DB_YML, 9,
     "service.instances: expected a whole number"),
    "a port used twice on a host": (
        {
            "launch_yml": placed(db="[h1, h2]", web="[h2]"),
            "services__shop__web__variables_yml": "h2: {web_port: 3306}\n",
        },
        "error",
        WEB_YML,
        10,
        "port 3306 of host h2 is used by infra/db too",
    ),
    "a port that there can't be": ({"services__shop__web__variables_yml": "web_port: 80000\n"}, "error",
     WEB_YML, 10, "service.daemon.ready.http: expected a port from 1 to 65535"),
    "a variable with a hyphen": ({**conf("\n{{ web-rack }}\n"), "variables__web-rack": "1"}, "error",
     WEB_CONF, 2, "file web.conf needs the variable 'web'"),
    "scopes that can't meet": (
        {
            **web("- db/sync", "- {path: db/sync, scope: local}"),
            "launch_yml": placed(db="[h1, h3]", web="[h2]"),
        },
        "error",
        WEB_YML,
        5,
        "db/sync of scope local is never on h2: launch.yml places infra/db on h1, h3",
    ),
    "a daemon without a check": (db('    ready: {tcp: "{{ port }}"}\n', ""), "warning", DB_YML, 10,
     "web/daemon waits for it, but it has no `ready` check"),
    "a one-time command without a generation": (
     db("    files:", "  other:\n    run_once: true\n    command: 'true'\n    files:"), "warning", DB_YML, 6,
     "commands.other: no generation, but sync has one"),
    "a placeholder": ({"variables_yml": "release: 1\nport: 1\nweb_port: 80\ndebug: replace-me\n"}, "warning",
     "variables.yml", 4, "debug is a placeholder"),
    "a placeholder in a file of its own": ({"services__infra__db__variables__key": "CHANGE_ME\n"}, "warning",
     "services/infra/db/variables/key", None, "key is a placeholder"),
    "an empty password": ({"services__infra__db__variables_yml": "h1:\n  db_password:\n"}, "warning",
     "services/infra/db/variables.yml", 2, "db_password is empty"),
    "a role that nothing has": (conf("\n{% for m in groups['dbb'] %}{{ m }}{% endfor %}\n"), "warning",
     WEB_CONF, 2, "file web.conf lists 'dbb', but no service has this role (did you mean 'db'?)"),
    "a service that is listed, and not there": (
     web('[web, --port, "{{ web_port }}"]', "web {{ ready_instances('infra/bd') | length }}"), "warning",
     WEB_YML, 3,
     "service.daemon.command lists 'infra/bd', but no service has this name (did you mean 'infra/db'?)"),
    "a template that includes another": (conf("\n{% include 'base.conf' %}\n"), "error", WEB_CONF, 2,
     "it includes another template, which an agent does not have"),
    "an attribute of a text": (conf("\n{{ port.number }}\n"), "error", WEB_CONF, 2,
     "file web.conf needs item 'number' of a text, which has none"),
    "a file that its user can't read": (
     db("    ready:", "    user: db\n    files: {db.conf: {dest: /db}}\n    ready:"), "warning", DB_YML, 14,
     "service.daemon.files.db.conf: db (`user`) can't read it: it has no `owner`"),
    "a file of another user": (db("command: db-sync", "user: db\n    command: db-sync"), "warning", DB_YML, 8,
     "commands.sync.files.db.conf: db (`user`) can't read it"),
    "a file in UTF-16": (conf("{{ port }}".encode("utf-16")), "warning", WEB_CONF, None, "UTF-16"),
    "no instances of what others wait for": (
        {
            **db("instances: 2", "instances: 0"),
            **web(WEB[WEB.index("      - db/sync") : WEB.index("    files")], "      - db/daemon\n"),
        },
        "error",
        WEB_YML,
        5,
        "dependencies[0]: count 1 of infra/db, of which 0 are wanted",
    ),
    "a key beside the daemon": (db("    ready:", "  ready:"), "warning", DB_YML, 13,
     "service.ready: is ignored: it belongs under service.daemon"),
    "a template as a value": ({"services__shop__web__variables_yml": "port: 1\nc: '{{ port }}'\n"}, "warning",
     "services/shop/web/variables.yml", 2, "c contains a template, but values are not rendered"),
    "a value from Windows": ({"variables__motd": "hello\r\n"}, "warning", "variables/motd", None,
     "motd ends with a carriage return"),
    "a mistake in an alias": (
        {
            "services__infra__db__definition_yml": DB.replace("files:", "files: &files")
            .replace("/etc/db/db.conf", "etc/db.conf")
            .replace("command: db\n", "command: db\n    files: *files\n")
        },
        "error",
        DB_YML,
        7,
        "expected the absolute path of a file",
    ),
    "a text that is tested for truth": (conf("a\n{% if not debug %}\nb\n{% endif %}\n"), "warning", WEB_CONF,
     2, "write debug | bool"),
    "a text that is multiplied": ({**conf("a\n{{ workers * 2 }}\n"), **WORKERS},
     "warning", WEB_CONF, 2, "compares with workers, a text: write workers | int"),
    "a text that is compared with a number": (
        {**conf("{% if 4 != workers %}a{% endif %}\n"), **WORKERS},
     "warning", WEB_CONF, 1, "compares with workers, a text: write workers | int"),
    "a name with a dash": ({**conf("{{ my-var }}\n"), "services__shop__web__variables_yml": "my-var: 4\n"},
     "error", WEB_CONF, 1, "'my', which has no value; templates can't use 'my-var'"),
    "a list as a value": ({"services__shop__web__variables_yml": "port: 1\nc: [d]\n"}, "error",
     "services/shop/web/variables.yml", 2, "c: expected a single value"),
    "two values of one variable": ({"variables__port": "1\n"}, "error", "variables.yml", 2,
     "port has a value in another file too"),
    "an election of fewer members": (cluster("instances: 3", "instances: 5"), "error", CLUSTER_YML, 9,
     "election.members: 3, but the service has 5 instances: an election waits for every member"),
    "an election without a command that prints the position": (
     cluster("cluster/position", "cluster/psition"), "error", CLUSTER_YML, 9,
     "has no command 'cluster/psition'; nearest is 'cluster/position'"),
    "an election whose position is a one-time command": (
     cluster("timeout: 60", "timeout: 60, run_once: host"), "error", CLUSTER_YML, 9,
     "expected a plain command"),
    "an election in which every daemon that runs is ready": (
     cluster("{command: db-is-synced}", "{alive: 1}"), "warning", CLUSTER_YML, 8,
     "service.daemon.ready: with an election, expected a check that holds only for a member"),
    "an election whose position command has another user": (
     cluster("user: db, ", ""), "warning", CLUSTER_YML, 9,
     "position: cluster/position runs as the agent's user, and the daemon as db"),
    "an election whose position command may hang": (
     cluster(", timeout: 60", ""), "warning", CLUSTER_YML, 9, "cluster/position has no `timeout`"),
    "an election whose position command may fail": (
     cluster("timeout: 60", "timeout: 60, succeeds: [0, 1]"), "warning", CLUSTER_YML, 9,
     "cluster/position succeeds with 0, 1"),
    "an election on more hosts than members": (
     cluster("", "", launch_yml=LAUNCH.replace("c3", "c3, c4")), "error", CLUSTER_YML, 9,
     "election.members: 3, but the service has 4 instances"),
    "a result without an election": (conf("{{ election.role }}\n"), "error", WEB_CONF, 1, "election"),
    "a misspelt file": ({"services__shop__web__varaibles_yml": ""}, "error",
     "services/shop/web/varaibles.yml", None, "unknown name"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_found_with_its_file_and_line(tmp_path: Path, kind: str) -> None:
    """And nothing else: what only follows from a mistake would be searched for in vain."""
    files, severity, file, line, message = MISTAKES[kind]
    found = found_in(tmp_path, files)
    assert [(each.severity, each.file, each.line) for each in found] == [(severity, file, line)], found
    assert message in found[0].message


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    """One in a definition hides neither those in other files nor those between services."""
    files = {
        **db("generation:", "generaton:"),
        **web("db/sync", "db/snyc"),
        **conf("{{ prot }}\n"),
        "services__x__y__definition_yml": "[",
    }
    messages = "\n".join(each.message for each in found_in(tmp_path, files))
    for expected in ("generaton", "snyc", "prot", "bad YAML"):
        assert expected in messages


def test_what_has_a_default_may_be_missing(tmp_path: Path) -> None:
    """`default` and `is defined` say that it is meant."""
    text = (
        "{{ a | default('b') }}{% if c is defined %}{{ c }}{% endif %}{% set d = 1 %}{{ d }}"
        "{% for i in range(1) %}{{ port.split('.')[i] }}{% endfor %}{{ dict(a=1).a }}"
        "{{ web_port2 | default(1) }}{{ web_ports | default(2) }}{{ web_host | default(3) }}"
    )
    assert found_in(tmp_path, conf(text)) == []


def test_no_finding_holds_a_value(tmp_path: Path) -> None:
    """Its output is read by others than those who may read the variables."""
    files = {
        "variables_yml": "release: s3cret\nport: s3cret\nweb_port: s3cret\nroot_password: s3cret\ndebug: x\n"
    }
    found = found_in(tmp_path, {**files, **conf("{{ port + 1 }}")})
    assert found
    assert "s3cret" not in str(found)


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(TOOL), "validate", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env=environ)


def test_the_command_prints_each_place_and_ends_with_1_for_an_error(tmp_path: Path) -> None:
    """It needs no ZooKeeper, and a warning is no error."""
    write_files(tmp_path, **{**SITE, "services__infra__db__variables_yml": "db_password:\n"})
    warned = run(tmp_path)
    assert (warned.returncode, warned.stderr) == (0, "")
    assert warned.stdout == (
        "services/infra/db/variables.yml:1: warning: db_password is empty: give it a value\n"
        "2 services, 0 errors, 1 warning\n"
    )
    write_files(tmp_path, **conf("{{ prot }}"))
    failed = run(tmp_path)
    assert failed.returncode == 1
    assert f"{WEB_CONF}:1: error: file web.conf needs the variable 'prot'" in failed.stdout


def test_the_findings_as_json(tmp_path: Path) -> None:
    write_files(tmp_path, **{**SITE, **conf("{{ prot }}")})
    found = json.loads(run(tmp_path, "--format", "json").stdout)
    assert {key: found[key] for key in ("services", "errors", "warnings")} == {
        "services": 2,
        "errors": 1,
        "warnings": 0,
    }
    (finding,) = found["findings"]
    assert (finding["severity"], finding["file"], finding["line"]) == ("error", WEB_CONF, 1)


def test_missing_variables_are_warnings_where_they_are_rendered_as_empty(tmp_path: Path) -> None:
    """As KOLLA_MISSING_VARIABLES tells the agents."""
    write_files(tmp_path, **{**SITE, **conf("{{ prot }}")})
    done = run(tmp_path, KOLLA_MISSING_VARIABLES="empty")
    assert done.returncode == 0
    assert "warning: file web.conf needs the variable 'prot'" in done.stdout


def test_variables_of_the_command_line_win(tmp_path: Path) -> None:
    """Those of later files over those of earlier ones, and single ones over all."""
    root = write_files(tmp_path / "site", **{**SITE, **conf("{{ a }}{{ b }}{{ c }}")})
    write_files(tmp_path, one_yml="a: replace-me\nb: replace-me\nc: replace-me\n", two_yml="b: 1\nc: 2\n")
    files: list[str | Path] = [
        "--variables-from",
        tmp_path / "one.yml",
        "--variables-from",
        tmp_path / "two.yml",
    ]
    done = run(root, *files, "--set", "b=replace-me")
    assert done.returncode == 0, done.stdout
    assert done.stdout == (
        "--set: warning: b is a placeholder: give it a value of your own\n"
        f"{tmp_path}/one.yml:1: warning: a is a placeholder: give it a value of your own\n"
        "2 services, 0 errors, 2 warnings\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--set", "a"], 64, "--set: expected NAME=VALUE"),
        (["--set", "a/b=c"], 64, "can't be the name of a variable"),
        (["--variables-from", "none.yml"], 66, "none.yml is not a file"),
        (["--variables-from", "list.yml"], 64, "list.yml: a: expected a single value"),
        (["--variables-from", "bad.yml"], 64, "bad.yml: bad YAML"),
    ],
)
def test_variables_that_can_not_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, message: str
) -> None:
    write_files(tmp_path, **SITE, list_yml="a: [1]", bad_yml="[")
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr


@pytest.mark.parametrize("services", sorted(ETC.glob("**/services")), ids=lambda path: path.parent.name)
def test_no_example_has_an_error(services: Path) -> None:
    """Their passwords are placeholders, which is a warning; some are for a directory of the containers'."""
    passwords = services.parent.parent / "passwords"
    given = variables_dir.read(str(passwords)) if passwords.is_dir() else {}
    assert {
        each.severity for each in validate(load(services.parent, given=given).deployment, given=given)
    } <= {"warning"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path / "none")
    assert (done.returncode, done.stdout) == (66, "")
    assert "none is not a directory: give the directory of a deployment" in done.stderr


def test_what_only_containers_are_given_is_found_in_a_directory_of_theirs(tmp_path: Path) -> None:
    """It can't be known without; then it is said what to do. No value is shown."""
    write_files(tmp_path, secrets__token="s3cret\n", secrets__n="s3cret", **SITE)
    write_files(tmp_path, services__shop__web__files__web_conf="{{ token }} {{ n }}")
    definition = WEB.replace("web.conf:", "web_conf:").replace(
        "count: 2}\n      - {members", 'count: "{{ n }}"}\n      - {members'
    )
    write_files(tmp_path, services__shop__web__definition_yml=definition)

    def said(**environ: str) -> str:
        done = subprocess.run(
            [sys.executable, TOOL, "validate", str(tmp_path)],
            env={"PATH": os.environ["PATH"], **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    hint = (
        "which has no value: define it, for example in variables.yml (in secrets.yml if it is a secret),"
        " or give --set token=VALUE;"
        " if containers find it in KOLLA_VARIABLES_DIR, set that here too"
    )
    assert f"needs the variable 'token', {hint}" in said()
    given = said(KOLLA_VARIABLES_DIR=str(tmp_path / "secrets"))
    assert "token" not in given
    assert "dependencies[1].count: expected a whole number" in given
    assert "s3cret" not in given
    (tmp_path / "secrets" / "n").write_text("2")
    assert "2 services, 0 errors" in said(KOLLA_VARIABLES_DIR=str(tmp_path / "secrets"))
    assert "/nowhere can't be read: No such file" in said(KOLLA_VARIABLES_DIR="/nowhere")
    (tmp_path / "secrets" / "token").write_text("replace-me\n")
    said_then = said(KOLLA_VARIABLES_DIR=str(tmp_path / "secrets"))
    assert (
        "KOLLA_VARIABLES_DIR/token: warning: token is a placeholder: give it a value of your own" in said_then
    )
    write_files(tmp_path, secrets__port="1")
    too = "port is in KOLLA_VARIABLES_DIR too, which has precedence; this value would be in ZooKeeper"
    assert f"variables.yml:2: warning: {too}" in said(KOLLA_VARIABLES_DIR=str(tmp_path / "secrets"))


def test_a_value_of_the_secrets_that_nothing_uses_is_not_checked(tmp_path: Path) -> None:
    """Nor is it published: kolla-ansible's passwords.yml has an empty one."""
    site = write_files(
        tmp_path / "site", services__a__definition_yml="commands: {a: {command: 'a {{ pin }}'}}\n"
    )
    (tmp_path / "passwords.yml").write_text("pin: '1'\ndocker_registry_password:\n")
    done = subprocess.run(
        (sys.executable, TOOL, "validate", site, "--secrets", tmp_path / "passwords.yml"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "1 service, 0 errors, 0 warnings\n")
