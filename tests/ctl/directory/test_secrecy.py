"""No secret is shown: neither a variable's value, nor a text that holds it."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.ctl.directory.secrecy import IN_URL, Mask, is_secret, likeness


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "DB_PASSWD", "db_pw", "api_token", "ssh_keys", "rabbitmq_cluster_cookie"],
)
def test_names_that_say_that_a_value_is_a_secret(name: str) -> None:
    assert is_secret(f"variables/{name}")


@pytest.mark.parametrize("name", ["keystone_port", "passive", "tokenizer", "tipsk", "soundsdsn", "oauth"])
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
        ("password = 'two words' x", "password = '***' x"),
        ('"password": "a \\" b", "port": 80', '"password": "***", "port": 80'),
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
    assert list(mask.lines("a", b"x\npassword: hunter22\n", b"x\npassword: other\n")) == [
        "@@ -1,2 +1,2 @@",
        " x",
        "-password: ***",
        "+password: ***",
    ]
    assert list(mask.lines("a", b"", b"\xff")) == ["not text, and not shown"]


def test_a_private_key_is_not_shown() -> None:
    """Whatever the name of its variable or file: an import has those that kolla-ansible copies."""
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"
    mask = Mask({}, {})
    assert mask.value("variables/haproxy_pem", key) == "***"
    for change in (("a/files/pem", key, key.replace(b"MIIE", b"MIIF")), ("a", b"", key)):
        assert list(mask.lines(*change)) == ["a private key, and not shown"]
    assert list(mask.lines("a", key, b"")) == ["a private key, and not shown"]


def test_a_declared_variable_is_secret_whatever_its_name() -> None:
    """Wherever its value stands: in other values, in a file, escaped in a definition or in a URL."""
    value = 'a"b/c d é'
    mask = Mask({"variables/seed": value.encode()}, declared=frozenset(["seed"]))
    assert is_secret("variables/seed", {"seed"}) and not is_secret("variables/seed")
    assert mask.value("variables/seed", b"anything") == "***"
    assert mask.value("variables/other", f"x {value}".encode()) == "x ***"
    definition = json.dumps({"command": f"echo {value}"}, ensure_ascii=False)
    escaped = json.dumps({"command": f"echo {value}"})
    for text in (value, definition, escaped, "http://h/a%22b%2Fc%20d%20%C3%A9"):
        (_, line) = mask.lines("a", None, text.encode())
        assert "***" in line and "c" not in line.replace("command", "").replace("echo", "")


def test_each_line_of_a_secret_is_hidden() -> None:
    mask = Mask({"variables/ring": b"first line\nsecond\n"}, declared=frozenset(["ring"]))
    lines = list(mask.lines("a", None, b"x\n  first line\n  second\n"))
    assert lines == ["@@ -0,0 +1,3 @@", "+x", "+  ***", "+  ***"]


@pytest.mark.parametrize("name", ["server.key", "erlang.cookie", "ceph.client.keyring", "http.keytab"])
def test_a_file_that_is_secret_by_its_name_is_not_shown(name: str) -> None:
    assert list(Mask().lines(f"a/files/{name}", None, b"x")) == ["secret by its name, and not shown"]


def test_other_private_keys_are_not_shown_either() -> None:
    key = b"-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n"
    assert Mask().value("variables/x", key) == "***"


@pytest.mark.parametrize("name", ["wsrep_sst_auth", "haproxy_stats_auth", "ceph_nova_keyring", "ipsec_psk"])
def test_a_name_that_ends_with_such_a_word_is_secret(name: str) -> None:
    """In the middle, the same word says what has no secret."""
    assert is_secret(f"variables/{name}")
    assert not is_secret(f"variables/{name}_type")
    assert "s3cr3t" not in Mask().hide(f"{name} = root:s3cr3t")


def test_the_password_of_haproxys_statistics_is_hidden() -> None:
    """No = or : stands after the name there."""
    assert Mask().hide("  stats auth admin:s3cr3t") == "  stats auth ***"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\n", "a private key"),
        ("mysql+pymysql://nova:s3cr3t@192.0.2.1/nova", IN_URL),
        ("cache://:s3cr3t@192.0.2.1:6379/0", IN_URL),
        ("q8Zt1LmW5xKc0VbN7rYp2DsF4gHj6TkA", "random text"),
        ("q8zt1lmw5xkc0vbn7ryp2dsf4ghj6tka\n", "random text"),
        ("YbJ3kq+T9vX/2mWn8ZrLp0Qe5CsUd1Hg", "random text"),
        ("r1Kz8_T4mQv7XcB2nLw9YpJ5sHd3FgA6uE0iRtVbNoM=", "random text"),
        ("kX9!vT2#qL7$mZ4@wB5c", "random text"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJub3ZhIn0.c2lnbmF0dXJl", "random text"),
    ],
)
def test_a_value_that_looks_like_a_secret(value: str, what: str) -> None:
    assert likeness(value) == what
    assert value.strip() not in f"{Mask().value('variables/blob', value.encode())}"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "/var/lib/kolla/Venv3/lib64/python3.12/site-packages",
        "quay.io/openstack.kolla/nova-api:2024.1-ubuntu-noble",
        "ctl-1=192.0.2.1 ctl-2=192.0.2.2",
        "ctl1.Example.COM,ctl2.Example.COM:5672",
        "RegionOne-2024-Production-Cluster",
        "node1node2node3node4node5",
        "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384",
        "x86_64-v2-AVX512-F16C",
        "http://192.0.2.1:5000/v3",
        "http://[2001:db8::1]:5000/v3",
        "mlx5_core0_vf0_pf1_en0s31f6",
        "00:1B:44:11:3A:B7",
        "%(asctime)s.%(msecs)03d %(process)d %(levelname)s",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_a_value_that_does_not(value: str) -> None:
    assert not likeness(value)
    assert Mask().value("variables/other", value.encode()) == value
