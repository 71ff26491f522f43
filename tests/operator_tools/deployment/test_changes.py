"""What differs is shown, and no secret with it."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.operator.deployment.changes import (
    Change,
    Mask,
    affected,
    changes,
    is_secret,
    not_run_again,
)


def test_only_what_would_be_written_is_a_change() -> None:
    """What is there besides is not: publishing leaves it. An empty znode counts as absent."""
    found = changes({"a": b"1", "b": b"", "c": b"3", "e": b"5"}, {"a": b"2", "b": b"2", "c": b"3", "d": b""})
    assert [(each.node, each.kind) for each in found] == [
        ("a", "updated"),
        ("b", "created"),
        ("d", "created"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"command": "a"}, {"command": "b"}, ["db: sync"]),
        ({"command": "a", "generation": "1"}, {"command": "b", "generation": "1"}, ["db: sync"]),
        ({"command": "a", "generation": "1"}, {"command": "b", "generation": "2"}, []),
        ({"command": "a", "generation": "{{ g }}"}, {"command": "b", "generation": "{{ g }}"}, []),
        ({"command": "a"}, {"command": "a", "retries": 3}, []),
        ({"command": "a"}, {"command": "b", "run_once": False}, []),
    ],
)
def test_a_changed_command_with_the_same_generation_does_not_run_again(
    before: dict[str, object], after: dict[str, object], found: list[str]
) -> None:
    nodes = [
        {"db": json.dumps({"commands": {"sync": {"run_once": True, **each}}})} for each in (before, after)
    ]
    assert list(not_run_again(*({"db": each["db"].encode()} for each in nodes))) == found


def test_a_definition_that_cannot_be_read_has_no_changed_command() -> None:
    assert (
        list(not_run_again({"db": b"[]", "web": b"{"}, {"db": b'{"commands": {"sync": {}}}', "new": b""}))
        == []
    )


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "DB_PASSWD", "db_pw", "api_token", "ssh_keys", "rabbitmq_cluster_cookie"],
)
def test_names_that_say_that_a_value_is_a_secret(name: str) -> None:
    assert is_secret(f"variables/{name}")


@pytest.mark.parametrize("name", ["keystone_port", "passive", "tokenizer"])
def test_names_that_do_not(name: str) -> None:
    assert not is_secret(f"variables/{name}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("uses hunter22 twice: hunter22", "uses *** twice: ***"),
        ("mysql://nova:other@db/nova", "mysql://nova:***@db/nova"),
        ("rabbit://nova:other@a:5672,nova:other@b:5672//", "rabbit://nova:***@a:5672,nova:***@b:5672//"),
        ("rabbit://nova:{{ p }}@a:5672,nova:{{ p }}@b//", "rabbit://nova:{{ p }}@a:5672,nova:{{ p }}@b//"),
        ("password = other", "password = ***"),
        ('"DB_PASSWORD": "other",', '"DB_PASSWORD": "***",'),
        ("password = {{ db_password }}", "password = {{ db_password }}"),
        ("http://[::1]:5000/v3", "http://[::1]:5000/v3"),
        ("port = 5000", "port = 5000"),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    """Those of variables by their value, others by what stands beside them."""
    mask = Mask({"variables/db_password": b"hunter22\n"}, {"a/variables/h1/db_password": b"old-one"})
    assert mask.hide(text) == shown
    assert mask.hide("old-one") == "***"


def test_a_changed_secret_is_a_change_without_its_value() -> None:
    mask = Mask({}, {})
    assert mask.value("variables/db_password", b"hunter22") == "***"
    assert mask.value("variables/port", b"80") == "80"
    assert list(mask.lines(Change("a", b"x\npassword: hunter22\n", b"x\npassword: other\n"))) == [
        "@@ -1,2 +1,2 @@",
        " x",
        "-password: ***",
        "+password: ***",
    ]
    assert list(mask.lines(Change("a", b"", b"\xff"))) == ["not text, and not shown"]


def test_a_private_key_is_not_shown() -> None:
    """Whatever the name of its variable or file: an import has those that kolla-ansible copies."""
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"
    mask = Mask({}, {})
    assert mask.value("variables/haproxy_pem", key) == "***"
    for change in (Change("a/files/pem", key, key.replace(b"MIIE", b"MIIF")), Change("a", b"", key)):
        assert list(mask.lines(change)) == ["a private key, and not shown"]
    assert list(mask.lines(Change("a", key, b""))) == ["a private key, and not shown"]


def test_a_shared_variable_concerns_the_services_that_name_it() -> None:
    texts = {"a/x": b"{{ port }}", "a/y": b"{{ port_2 }}", "b": b"", "a": b""}
    assert affected(["variables/port"], texts) == {"a/x"}
    assert affected(["b/files/port", "a/x"], texts) == {"b", "a", "a/x"}
