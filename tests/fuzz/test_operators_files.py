"""What an operator writes: a deployment's YAML and JSON, `acl.yml`, `launch.yml` and secrets among it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import acl, formats, launch, pod_template
from kolla_mesos_start.ctl.directory.findings import DataSource
from kolla_mesos_start.ctl.zk import services
from kolla_mesos_start.ctl.zk.connection import recorded as plan_recorded
from kolla_mesos_start.errors import BadDefinition
from tests.ctl.sources import findings
from tests.fuzz.inputs import (
    BYTES,
    FAST,
    ODD,
    Fuzz,
    changed,
    changed_document,
    changed_json,
    definitions,
    published,
    seeded,
)

YAML = [path.read_bytes() for path in published("*.yml") if "kubernetes" not in path.parts]
TOKENS = [
    *(each for each in BYTES if len(each) < 1000),
    *(b"<<: *a\n", b"| \n", b"> \n", b"|+9\n", b"---\n", b"...\n", b"%YAML 1.1\n---\n"),
    *(b"%TAG ! a\n---\n", b"\n  ", b"\n- ", b"\xc2\x85", b"\xe2\x80\xa8", b"a: &a [*a]\n"),
    *(
        b"!!int ;!!float ;!!bool ;!!timestamp ;!!binary ;!!set ;!!omap ;!!null ;!!str ;"
        b"!!python/name:os ;!x ;!<y> ;&a ;*a;<<: ;? ;# ;\\U00110000;2020-13-01;1:30;: ;yes;0644;~;@;"
        b"`"
    ).split(b";"),
]
ACL = {
    "operator": "digest:operator:Dp2pT+dZUlvZWqBS2vPWBqy0NiM=",
    "services": {"infra/db/db": "x509:CN=db", "infra/web": "digest:web:Dp2pT+dZUlvZWqBS2vPWBqy0NiM="},
    "variables": {"db_root_password": ["infra/db/db"]},
    "hosts": ["h1", "h2"],
}
POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "hostNetwork": False,
        "containers": [{"name": "agent", "env": [{"name": "A", "value": "a"}], "resources": {"limits": {}}}],
    },
}
LAUNCH = {
    "tag": "2026.1",
    "hosts": {"control": ["ctl-1"], "compute": ["cmp-1", "cmp-2"]},
    "defaults": {"placement": "control", "kubernetes": POD},
    "services": {
        "infra/web": {"placement": "compute", "replicas": "each"},
        "infra/db/db": {"replicas": "each"},
    },
    "try": ["openstack server list"],
}
WORDS = [
    *ODD,
    *ACL,
    *LAUNCH,
    *("each", "placement", "replicas", "x509:", "digest:a:b", "world:anyone", "infra/db/db"),
]
DEFINITIONS = [*definitions(), {"service": {"instances": 3, "daemon": {"command": "a"}}}]


@seeded
def test_yaml(fuzz: Fuzz, seed: int) -> None:
    """It is read, or what is wrong is said with its line."""

    def attempt(data: bytes) -> None:
        formats.places(data)
        for loader in (formats._Values, formats._Definition, formats._AsWritten):
            try:
                formats._yaml(data, loader)
            except BadDefinition as error:
                assert len(error.issues[0]) < 1000

    fuzz("YAML", seed, lambda random: changed(random, YAML, TOKENS), attempt, batch=10)


@seeded
def test_acl_yml(fuzz: Fuzz, seed: int) -> None:
    """Also as it is recorded in ZooKeeper."""

    def attempt(content: Any) -> None:
        if isinstance(content, dict):
            plan, issues = acl.parse(content)
            if not issues:
                list(acl.check(plan, {"infra/db/db": ["db_root_password"]}, ["db_root_password"]))
                assert plan.recorded() and plan.made()
                acl.shown(acl.wider(plan.acl("infra/db/db/.party"), {}))
        plan_recorded("/kolla/site/.acl", json.dumps(content).encode())

    fuzz("acl.yml", seed, lambda random: changed_document(random, [ACL], WORDS), attempt)


@seeded
def test_launch_yml(fuzz: Fuzz, seed: int) -> None:
    """It says where containers run, or what is wrong in it."""

    def attempt(content: dict[str, Any]) -> None:
        found, wrong = launch.parse(content, DataSource("launch.yml"), ["infra/web", "infra/db/db"])
        assert all(str(each) for each in wrong)
        for service in ("infra/web", "infra/db/db"):
            found.hosts_of(service)
            found.too_few(service, 3)
            for part in found.of(service).kubernetes or ():
                list(pod_template.conflicts(POD, part))
                json.dumps(pod_template.merged(pod_template.merged(POD, part.content), part.content))

    def make(random: Random) -> dict[str, Any]:
        content = changed_document(random, [LAUNCH], WORDS)
        return content if isinstance(content, dict) else {}

    fuzz("launch.yml", seed, make, attempt, batch=FAST)


@seeded
def test_what_the_tool_reads_of_a_definition(fuzz: Fuzz, seed: int) -> None:
    """Where it is not the definition itself that is asked for, whatever it can't use counts as nothing."""

    def attempt(data: bytes) -> None:
        services.follows(data)
        services.used_variables(data, {})
        services.counted_commands(data)
        services.one_time_commands("infra/web", data)
        launch.with_instances(data, 2)
        launch.wanted_instances(services._parsed(data), lambda text: text.text)

    fuzz(
        "definitions as the tool reads them", seed, lambda random: changed_json(random, DEFINITIONS), attempt
    )


@seeded
def test_a_directory(fuzz: Fuzz, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All that is wrong in it is found, as `validate` does; each file of it may be anything."""
    root = tmp_path_factory.mktemp("d")
    valid = {
        "variables.yml": [b"db_root_password: a\nport: 80\n"],
        "secrets.yml": [b"a_key: fernet\na_password: password\n"],
        "acl.yml": [json.dumps(ACL).encode()],
        "launch.yml": [json.dumps(LAUNCH).encode()],
        "services/infra/web/definition.yml": YAML,
        "services/infra/web/variables.yml": [b"port: 80\nh1: {port: 81}\n"],
        "services/infra/web/files/a": [b"{{ port }} {% if a %}b{% endif %}"],
        "services/infra/db/db/definition.yml": [json.dumps(DEFINITIONS[-1]).encode()],
    }
    for name, content in valid.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content[0])

    def make(random: Random) -> tuple[str, bytes]:
        name = random.choice(list(valid))
        return name, changed(random, valid[name], TOKENS)

    def attempt(tried: tuple[str, bytes]) -> None:
        name, data = tried
        (root / name).write_bytes(data)
        read(root)
        (root / name).write_bytes(valid[name][0])

    fuzz("a deployment's directory", seed, make, attempt, batch=2)


def read(root: Path) -> None:
    for finding in findings(root):
        assert finding.message.encode()


@seeded
def test_what_is_added_to_a_file_of_secrets(fuzz: Fuzz, seed: int) -> None:
    """Nothing else changes in it, or nothing is added."""

    def attempt(data: bytes) -> None:
        before = formats._yaml(data)
        after = formats._yaml(formats.appended(data, {"new": "a: 'b"}))
        assert after == {**(before or {}), "new": "a: 'b"}  # type: ignore[dict-item]

    valid = [b"# mine\na: b\nc: 'd'\n", b"---\na: |\n  b\n  c\n", b'{"a": "b"}\n']
    fuzz("a file of secrets", seed, lambda random: changed(random, valid, TOKENS), attempt)
