"""The environment becomes Settings, or one message that names every bad variable."""

from __future__ import annotations

import inspect
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kolla_mesos_start import settings as module
from kolla_mesos_start.errors import BadEnvironment
from kolla_mesos_start.health import default_run_dir
from kolla_mesos_start.settings import NEVER_EMPTY, WORLD, Settings, child_environ, parse
from kolla_mesos_start.zookeeper import tls

NEEDED = {"KOLLA_ZK_HOSTS": "zoo:2181", "KOLLA_APP_ID": "/prod/openstack/keystone"}
DIGEST = "digest:kolla:Dp2pT+dZUlvZWqBS2vPWBqy0NiM="
DIRECTORY = tempfile.TemporaryDirectory(prefix="settings-")
HERE = DIRECTORY.name
FILES = {
    "auth": "digest:kolla:s3cr3t\n\nip:10.0.0.1\r\n",
    "empty": "\n",
    "no-scheme": "digest:kolla:s3cr3t\nkolla-s3cr3t\n",
    "no-password": "digest:s3cr3t\n",
    "sasl": "digest:kolla:s3cr3t\nsasl:kolla:s3cr3t\n",
    "ca": "",
    "cert": "",
    "key": "",
    "latin-1": "digest:kolla:\xe9s3cr3t",
}


def shown(value: object) -> str | None:
    """A parameter in the name of a test, which is the same in all processes; None: as pytest writes it."""
    return value.replace(HERE, "") if isinstance(value, str) else None


def settings(**environ: str) -> Settings:
    """The settings of these variables and the required ones, on a machine that has only FILES."""
    return parsed(**environ)._replace(environ={})


def parsed(**environ: str) -> Settings:
    for name, text in FILES.items():
        Path(HERE, name).write_bytes(text.encode("latin-1"))
    os.makedirs(f"{HERE}/secrets", exist_ok=True)
    real: dict[str, Any] = {
        "_first_environ": str,
        "TERMINATION_LOG": f"{HERE}/none",
    }
    with (
        patch.multiple(module, **real),
        patch.object(os, "getuid", return_value=42424),
        patch.object(tls, "make_context"),
    ):
        return parse({**NEEDED, **environ}, hostname=lambda: "machine")


def issues(**environ: str) -> tuple[str, ...]:
    with pytest.raises(BadEnvironment) as caught:
        settings(**environ)
    return caught.value.issues


def test_a_variable_that_is_not_set_has_its_default() -> None:
    """With the two required variables only."""
    assert settings() == Settings(
        hosts="zoo:2181",
        chroot="",
        prefix="/kolla",
        deployment_id="prod",
        service_name="openstack/keystone",
        host="machine",
        host_is_pod=False,
        address=None,
        ports=(),
        private_interface=None,
        public_interface=None,
        copy_once=False,
        generation=None,
        logs=None,
        variables_dir=None,
        supervise=False,
        stop_signal=signal.SIGTERM,
        stay=False,
        wait_timeout=None,
        missing_is_empty=False,
        loglevel="info",
        json_logs=False,
        run_dir=default_run_dir(42424),
        state_dir="/var/lib/kolla_mesos_start",
        session_timeout=10.0,
        connect_timeout=None,
        auth=(),
        ca=None,
        cert=None,
        key=None,
        acl=(WORLD,),
        termination_log=None,
        environ={},
    )


GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("KOLLA_ZK_HOSTS", "h1:2181,h2:2182", {"hosts": "h1:2181,h2:2182", "chroot": ""}),
    ("KOLLA_ZK_HOSTS", "zk://h1:2181,h2:2181/a/b/", {"hosts": "h1:2181,h2:2181", "chroot": "/a/b"}),
    ("KOLLA_ZK_HOSTS", " h_1 , 10.0.0.1:99/", {"hosts": "h_1:2181,10.0.0.1:99", "chroot": ""}),
    ("KOLLA_ZK_HOSTS", "[fe80::1]:2181,[::1]", {"hosts": "[fe80::1]:2181,[::1]:2181"}),
    ("KOLLA_ZK_HOSTS", f"{'a' * 63}.b:1,h2:65535", {"hosts": f"{'a' * 63}.b:1,h2:65535"}),
    ("KOLLA_ZK_HOSTS", "xn--bcher-kva.de", {"hosts": "xn--bcher-kva.de:2181"}),
    ("KOLLA_APP_ID", "/dev/keystone", {"deployment_id": "dev", "service_name": "keystone"}),
    ("KOLLA_APP_ID", "/dev/files/web", {"deployment_id": "dev", "service_name": "files/web"}),
    ("KOLLA_APP_ID", "/dév/\u6771 a", {"deployment_id": "dév", "service_name": "\u6771 a"}),
    ("KOLLA_SYSTEM_PREFIX", "/clouds/kolla/", {"prefix": "/clouds/kolla"}),
    ("KOLLA_SYSTEM_PREFIX", "/", {"prefix": ""}),
    ("KOLLA_HOSTNAME", "node-1", {"host": "node-1"}),
    ("NODE_NAME", "node-2", {"host": "node-2"}),
    ("HOST", "not beside MESOS_TASK_ID", {"host": "machine"}),
    ("KOLLA_ADDRESS", "10.0.0.7", {"address": "10.0.0.7"}),
    ("KOLLA_ADDRESS", "2001:db8::7", {"address": "2001:db8::7"}),
    ("KOLLA_HOSTNAME", "n\u0153ud_1.site:2@a+b", {"host": "n\u0153ud_1.site:2@a+b"}),
    ("KOLLA_ADDRESS", "agent-7.example.org", {"address": "agent-7.example.org"}),
    ("KOLLA_ADDRESS", "host.example.", {"address": "host.example."}),
    ("KOLLA_PORTS", "5000, 35357", {"ports": (5000, 35357)}),
    ("PORTS", "31000", {"ports": (31000,)}),
    ("KOLLA_ZK_HOSTS", "zk.site.:2181,zk2.", {"hosts": "zk.site.:2181,zk2.:2181"}),
    ("KOLLA_PRIVATE_INTERFACE", "eth0", {"private_interface": "eth0"}),
    ("KOLLA_PUBLIC_INTERFACE", "br-ex.100", {"public_interface": "br-ex.100"}),
    ("KOLLA_CONFIG_STRATEGY", "COPY_ONCE", {"copy_once": True}),
    ("KOLLA_CONFIG_STRATEGY", "COPY_ALWAYS", {"copy_once": False}),
    ("KOLLA_GENERATION", "quay.io/keystone:2026.1", {"generation": "quay.io/keystone:2026.1"}),
    ("KOLLA_LOGS", "podman logs site_web", {"logs": "podman logs site_web"}),
    ("MESOS_CONTAINER_NAME", "mesos-1", {"logs": "docker logs mesos-1"}),
    ("KOLLA_VARIABLES_DIR", f"{HERE}/secrets/", {"variables_dir": f"{HERE}/secrets"}),
    ("KOLLA_START_MODE", "exec", {}),
    ("KOLLA_STOP_SIGNAL", "SIGQUIT", {"stop_signal": signal.SIGQUIT}),
    ("KOLLA_STOP_SIGNAL", "winch", {"stop_signal": signal.SIGWINCH}),
    ("KOLLA_STOP_SIGNAL", "10", {"stop_signal": 10}),
    ("KOLLA_STOP_SIGNAL", "SIGRTMIN+3", {"stop_signal": signal.SIGRTMIN + 3}),
    ("KOLLA_TASK_END", "stay", {"stay": True}),
    ("KOLLA_TASK_END", "exit", {"stay": False}),
    ("KOLLA_WAIT_TIMEOUT", "90.5", {"wait_timeout": 90.5}),
    ("KOLLA_WAIT_TIMEOUT", "0", {"wait_timeout": None}),
    ("KOLLA_MISSING_VARIABLES", "empty", {"missing_is_empty": True}),
    ("KOLLA_LOGLEVEL", "DEBUG", {"loglevel": "debug"}),
    ("KOLLA_LOG_FORMAT", "json", {"json_logs": True}),
    ("KOLLA_RUN_DIR", "/run/x/", {"run_dir": "/run/x"}),
    ("KOLLA_STATE_DIR", "/var/x", {"state_dir": "/var/x"}),
    ("KOLLA_ZK_SESSION_TIMEOUT", "4", {"session_timeout": 4.0}),
    ("KOLLA_ZK_CONNECT_TIMEOUT", "60", {"connect_timeout": 60.0}),
    (
        "KOLLA_ZK_AUTH_FILE",
        f"{HERE}/auth",
        {"auth": (("digest", "kolla:s3cr3t"), ("ip", "10.0.0.1")), "auth_file": f"{HERE}/auth"},
    ),
    ("KOLLA_ZK_CA", f"{HERE}/ca", {"ca": f"{HERE}/ca"}),
    ("KOLLA_ZK_ACL", "world:anyone:r", {"acl": (("world", "anyone", "r"),)}),
    (
        "KOLLA_ZK_ACL",
        f"{DIGEST}:cdrwa, auth::r",
        {"acl": ((*DIGEST.split(":", 1), "cdrwa"), ("auth", "", "r"))},
    ),
    ("KOLLA_ZK_ACL", "ip:2001:db8::/32:rw", {"acl": (("ip", "2001:db8::/32", "rw"),)}),
    ("KOLLA_ZK_ACL", "x509:CN=a,O=b:r,sasl:c:w", {"acl": (("x509", "CN=a,O=b", "r"), ("sasl", "c", "w"))}),
    ("KOLLA_TERMINATION_LOG", "/tmp/end", {"termination_log": "/tmp/end"}),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOOD, ids=shown)
def test_a_good_value_is_taken(name: str, value: str, expected: dict[str, Any]) -> None:
    """Each variable reaches its fields, in the form that the rest of the agent relies on."""
    assert settings(**{name: value}) == settings()._replace(**expected)


BAD = [
    ("KOLLA_ZK_HOSTS", "", "h1:2181,h2:2181[/chroot]"),
    ("KOLLA_ZK_HOSTS", "h1:2181,,h2:2181", "'h1:2181,,h2:2181'"),
    ("KOLLA_ZK_HOSTS", "h1,a..b:2181", "'a..b' is no"),
    ("KOLLA_ZK_HOSTS", "h1,.a", "'.a' is no"),
    ("KOLLA_ZK_HOSTS", f"h1,{'a' * 64}.b", f"'{'a' * 64}.b' is no"),
    ("KOLLA_ZK_HOSTS", f"h1,{'a.' * 127}b", f"'{'a.' * 127}b' is no"),
    ("KOLLA_ZK_HOSTS", "h1,b\xfccher.de", "'b\xfccher.de' is no IPv4 address, and no name of ASCII letters"),
    ("KOLLA_ZK_HOSTS", "h1,\u2024b", "'\u2024b' is no"),
    ("KOLLA_ZK_HOSTS", "h1:2181,", "'' is no server"),
    ("KOLLA_ZK_HOSTS", "h1..:2181", "'h1..' is no IPv4 address"),
    ("KOLLA_ZK_HOSTS", "10.0.0.:2181", "'10.0.0.' is no IPv4 address"),
    ("KOLLA_ZK_HOSTS", ".", "'.' is no IPv4 address"),
    ("KOLLA_ZK_HOSTS", "h1:", "'h1:' is no server"),
    ("KOLLA_ZK_HOSTS", "h1:http", "'h1:http' is no server"),
    ("KOLLA_ZK_HOSTS", "h2,h1:0", "port 0 of 'h1'"),
    ("KOLLA_ZK_HOSTS", "h2,h1:65536", "port 65536 of 'h1'"),
    ("KOLLA_ZK_HOSTS", "h1:99999999999999999999", "'h1:99999999999999999999' is no server"),
    ("KOLLA_ZK_HOSTS", "::1:2181", "brackets; '::1:2181' is no server"),
    ("KOLLA_ZK_HOSTS", "[::1", "'[::1' is no server"),
    ("KOLLA_ZK_HOSTS", "[h1]:2181", "'h1' is no IPv6 address"),
    ("KOLLA_ZK_HOSTS", "10.0.0.256:2181", "'10.0.0.256' is no IPv4 address"),
    ("KOLLA_ZK_HOSTS", "http://h1:2181", "zk://h1:2181"),
    ("KOLLA_ZK_HOSTS", "h1:2181/a//b", "'/a//b' is no path of a znode"),
    ("KOLLA_ZK_HOSTS", "h1:2181/a/../b", "'/a/../b' is no path of a znode"),
    ("KOLLA_ZK_HOSTS", "h1:2181/a\tb", r"'/a\tb' is no path of a znode"),
    ("KOLLA_ZK_HOSTS", "h1:2181/\ue000", r"'/\ue000' is no path of a znode"),
    ("KOLLA_ZK_HOSTS", "h1:2181/a,h2:2181/a", "write the chroot once, after the last server"),
    ("KOLLA_APP_ID", "", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "prod/keystone", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/keystone/", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/a\n", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/a\udce9", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/a\x7f", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/\U0001f600", "/<deployment>/<service>"),
    ("KOLLA_APP_ID", "/prod/keystone/files", "variables, status, files"),
    ("KOLLA_APP_ID", "/prod/variables", "variables, status, files"),
    ("KOLLA_APP_ID", "/prod/status/keystone", "begin with variables or status"),
    ("KOLLA_SYSTEM_PREFIX", "kolla", "absolute path of a znode"),
    ("KOLLA_SYSTEM_PREFIX", "/kolla//x", "absolute path of a znode"),
    ("KOLLA_HOSTNAME", "rack/node", "the name of a host"),
    ("KOLLA_HOSTNAME", "global", "other than global"),
    ("KOLLA_HOSTNAME", "..", "the name of a host"),
    ("NODE_NAME", "global", "other than global"),
    ("KOLLA_ADDRESS", "10.0.0.7:5000", "an IP address"),
    ("KOLLA_ADDRESS", "10.0.0.300", "an IP address"),
    ("KOLLA_ADDRESS", "10.0.0.7.", "an IP address"),
    ("KOLLA_ADDRESS", "host..", "an IP address"),
    ("KOLLA_ADDRESS", ".", "an IP address"),
    ("KOLLA_ADDRESS", "[::1]", "without brackets"),
    ("KOLLA_PORTS", "5000,http", "1 to 65535"),
    ("KOLLA_PORTS", "0", "1 to 65535"),
    ("KOLLA_PORTS", "5000 5001", "1 to 65535"),
    ("KOLLA_PRIVATE_INTERFACE", "eth 0", "like eth0"),
    ("KOLLA_PUBLIC_INTERFACE", "a-name-of-16-bytes", "like eth0"),
    ("KOLLA_CONFIG_STRATEGY", "copy_once", "COPY_ALWAYS or COPY_ONCE"),
    ("KOLLA_GENERATION", "  ", "the name of a generation, such as an image tag"),
    ("KOLLA_LOGS", "podman logs\nweb", "a command or the path of a file"),
    ("KOLLA_LOGS", "/" + "x" * 512, "at most 512 characters"),
    ("KOLLA_VARIABLES_DIR", "secrets", "an absolute path"),
    ("KOLLA_VARIABLES_DIR", "/nowhere", "a directory that this user can read"),
    ("KOLLA_START_MODE", "fork", "exec or supervise"),
    ("KOLLA_STOP_SIGNAL", "KILL", "a signal that a process can handle"),
    ("KOLLA_STOP_SIGNAL", "SIGSTOPPED", "a signal that a process can handle"),
    ("KOLLA_STOP_SIGNAL", "0", "a signal that a process can handle"),
    ("KOLLA_STOP_SIGNAL", "RTMIN+31", "a signal that a process can handle"),
    ("KOLLA_TASK_END", "idle", "exit or stay"),
    ("KOLLA_WAIT_TIMEOUT", "5m", "seconds, or 0 for no limit"),
    ("KOLLA_WAIT_TIMEOUT", "-1", "seconds, or 0 for no limit"),
    ("KOLLA_WAIT_TIMEOUT", "nan", "seconds, or 0 for no limit"),
    ("KOLLA_WAIT_TIMEOUT", "9" * 5000, "seconds, or 0 for no limit"),
    ("KOLLA_MISSING_VARIABLES", "ignore", "error or empty"),
    ("KOLLA_LOGLEVEL", "loud", "debug, info, warning or error"),
    ("KOLLA_LOG_FORMAT", "xml", "text or json"),
    ("KOLLA_RUN_DIR", "run", "absolute path"),
    ("KOLLA_RUN_DIR", "/" + "x" * 80, "at most 80 bytes"),
    ("KOLLA_STATE_DIR", "state", "absolute path"),
    ("KOLLA_ZK_SESSION_TIMEOUT", "0", "more than 0"),
    ("KOLLA_ZK_SESSION_TIMEOUT", "10000", "not milliseconds"),
    ("KOLLA_ZK_CONNECT_TIMEOUT", "soon", "seconds, or 0 for no limit"),
    ("KOLLA_ZK_AUTH_FILE", "/nowhere", "No such file or directory"),
    ("KOLLA_ZK_AUTH_FILE", f"{HERE}/latin-1", "UTF-8"),
    ("KOLLA_ZK_AUTH_FILE", f"{HERE}/empty", "scheme:credential"),
    ("KOLLA_ZK_AUTH_FILE", f"{HERE}/no-scheme", "scheme:credential in line 2"),
    ("KOLLA_ZK_AUTH_FILE", f"{HERE}/sasl", "sasl in line 2: sasl is not supported"),
    ("KOLLA_ZK_AUTH_FILE", f"{HERE}/no-password", "digest:user:password in line 1"),
    ("KOLLA_ZK_AUTH_FILE", "", "absolute path"),
    ("KOLLA_ZK_CA", "/nowhere", "this user can read"),
    ("KOLLA_ZK_CA", "", "absolute path"),
    ("KOLLA_ZK_ACL", "", "scheme:id:perms"),
    ("KOLLA_ZK_ACL", "world:anyone", "scheme:id:perms"),
    ("KOLLA_ZK_ACL", "world:everyone:r", "scheme:id:perms"),
    ("KOLLA_ZK_ACL", "world:anyone:rx", "cdrwa"),
    ("KOLLA_ZK_ACL", "world:anyone:r,", "cdrwa"),
    ("KOLLA_ZK_ACL", "digest:kolla:password:r", "base64 of the digest"),
    ("KOLLA_TERMINATION_LOG", "end", "absolute path"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD, ids=shown)
def test_a_bad_value_is_reported_with_its_name_and_what_was_expected(
    name: str, value: str, words: str
) -> None:
    """One bad variable is one issue, which begins with its name."""
    (issue,) = issues(**{name: value})
    assert issue.startswith(f"{name} is " if value and name != "KOLLA_ZK_ACL" else name)
    assert words in issue


# Text in which a value arrives that was meant, and what its message says to do.
DISGUISES = [
    ('"{}"', "it is in quotes, which are a part of it: write it without them"),
    ("'{}'", "it is in quotes, which are a part of it: write it without them"),
    ("{} ", "it begins or ends with a blank (U+0020): remove that"),
    (" {}", "it begins or ends with a blank (U+0020): remove that"),
    ("{}\t", "it begins or ends with a blank (U+0009): remove that"),
    ("{}\r", "it begins or ends with a blank (U+000D): remove that"),
    ("{}\n", "it begins or ends with a blank (U+000A): remove that"),
    ("{}\xa0", "it begins or ends with a blank (U+00A0): remove that"),
    ("{}\u200b", "it has a character that nobody sees (U+200B): remove that"),
    ("\ufeff{}", "it has a character that nobody sees (U+FEFF): remove that"),
    ("{}\u202e", "it has a character that nobody sees (U+202E): remove that"),
    ("{}e\u0301", "form NFC"),
    ("{}${{SITE}}", "it has a placeholder that nothing has replaced: write the value"),
    ("{}{{{{ site }}}}", "it has a placeholder that nothing has replaced: write the value"),
]
# These remove blanks themselves, or are a list or a command.
FREE = {
    "KOLLA_ZK_HOSTS",
    "KOLLA_PORTS",
    "PORTS",
    "KOLLA_ZK_ACL",
    "KOLLA_LOGS",
    "MESOS_CONTAINER_NAME",
    "HOST",
}


@pytest.mark.parametrize(("form", "words"), DISGUISES, ids=ascii)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=name)
        for name, value in {name: value for name, value, _ in GOOD if name not in FREE}.items()
    ],
)
def test_a_good_value_with_what_an_env_file_keeps_is_refused(
    name: str, value: str, form: str, words: str
) -> None:
    """Else a host, a generation or a deployment gets a twin that nobody can tell from it."""
    (issue,) = issues(**{name: form.format(value)})
    assert issue.startswith(name) and issue.endswith(words) and issue.count(words) == 1


@pytest.mark.parametrize("name", ["KOLLA_APP_ID", "KOLLA_SYSTEM_PREFIX"])
@pytest.mark.parametrize("path", ["/a /b", "/ a/b", '/"a"/b', "/a\u200b/b"])
def test_each_part_of_a_path_is_checked(name: str, path: str) -> None:
    """A deployment is a part of KOLLA_APP_ID."""
    (issue,) = issues(**{name: path})
    assert "a part of it" in issue


@pytest.mark.parametrize(
    "host", ["ctl 1", "ctl-1,ctl-2", "HOST=ctl-1", "%H", "$(hostname)", "ctl-1#a", "c\\1"]
)
def test_a_host_has_the_name_of_a_host(host: str) -> None:
    """Not everything that can be the name of a znode."""
    (issue,) = issues(KOLLA_HOSTNAME=host)
    assert "the name of a host, of letters, digits and" in issue


def test_every_variable_has_a_good_and_a_bad_value_here() -> None:
    """A variable that parse() reads must not be forgotten in the tables."""
    source = inspect.getsource(parse) + inspect.getsource(module._tls)
    variables = set(re.findall(r'"(KOLLA_\w+)"', source))
    assert len(variables) > 20
    elsewhere = {"KOLLA_ZK_CERT", "KOLLA_ZK_KEY"}  # in the table TLS, since they need one another
    assert variables - elsewhere - {name for name, _, _ in GOOD} == set()
    assert variables - elsewhere - {name for name, _, _ in BAD} == set()


def test_all_bad_values_are_reported_in_one_message() -> None:
    """One start is enough to see them all."""
    bad = {"KOLLA_START_MODE": "fork", "KOLLA_LOGLEVEL": "loud", "KOLLA_ZK_HOSTS": ":", "KOLLA_PORTS": "x"}
    with pytest.raises(BadEnvironment) as caught:
        settings(**bad)
    assert len(caught.value.issues) == len(bad)
    assert all(name in str(caught.value) for name in bad)
    assert caught.value.status == 64
    assert not caught.value.retriable


@pytest.mark.parametrize("value", ["x y $KOLLA_ZK_AUTH_FILE", "'KOLLA_ZK_HOSTS", "it's KOLLA_ZK_HOSTS\"\\"])
def test_variables_can_have_other_names_and_values_stay_as_they_are(value: str) -> None:
    """The tool names its options."""
    names = {"KOLLA_ZK_HOSTS": "--hosts", "KOLLA_ZK_AUTH_FILE": "--auth-file", "KOLLA_ZK_KEY": "--key"}
    with pytest.raises(BadEnvironment) as caught:
        parse({**NEEDED, "KOLLA_ZK_HOSTS": value, "KOLLA_ZK_KEY": f"{HERE}/key"}, names=names)
    hosts, key, *_ = caught.value.issues
    assert key == "--key is set, KOLLA_ZK_CERT is not: expected both or none"
    assert hosts.startswith(f"--hosts is {value!r}: expected h1:2181")
    assert f"; {value!r} is no" in hosts
    with pytest.raises(BadEnvironment, match=r"--hosts: .*; credentials belong in --auth-file"):
        parse({**NEEDED, "KOLLA_ZK_HOSTS": "kolla:s3cr3t@zoo"}, names=names)


def test_required_variables_are_reported_when_missing() -> None:
    """There are two that the agent can't do without."""
    with pytest.raises(BadEnvironment) as caught:
        parse({})
    hosts, app_id = caught.value.issues
    assert hosts.startswith("KOLLA_ZK_HOSTS is not set: expected h1:2181")
    assert app_id.startswith("KOLLA_APP_ID is not set: expected /<deployment>/<service>")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KOLLA_ZK_HOSTS", "zk://kolla:s3cr3t@h1:2181"),
        ("KOLLA_ZK_AUTH_FILE", "digest:kolla:s3cr3t"),
        ("KOLLA_ZK_AUTH_FILE", f"{HERE}/no-scheme"),
        ("KOLLA_ZK_AUTH_FILE", f"{HERE}/sasl"),
        ("KOLLA_ZK_AUTH_FILE", f"{HERE}/no-password"),
        ("KOLLA_ZK_AUTH_FILE", f"{HERE}/latin-1"),
        ("KOLLA_ZK_KEY", "-----BEGIN PRIVATE KEY-----s3cr3t"),
        ("KOLLA_ZK_ACL", "digest:kolla:s3cr3t:cdrwa"),
    ],
    ids=shown,
)
def test_no_credential_is_shown(name: str, value: str) -> None:
    """Not even a credential in the wrong variable: the message goes to the log."""
    found = issues(**{name: value})
    assert any(issue.startswith(name) for issue in found)
    assert not any("s3cr3t" in issue for issue in found)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in GOOD} - set(NEEDED) - set(NEVER_EMPTY)))
def test_a_variable_set_to_nothing_counts_as_not_set(name: str) -> None:
    """Launchers pass on empty values."""
    assert settings(**{name: ""}) == settings()


@pytest.mark.parametrize("name", NEVER_EMPTY)
def test_a_variable_for_security_may_not_be_empty(name: str) -> None:
    """A forgotten value must not mean: no credentials, no TLS, or an ACL for the world."""
    assert issues(**{name: ""})[-1].startswith(name)


HOSTS: list[tuple[dict[str, str], tuple[str, bool]]] = [
    ({}, ("machine", False)),
    ({"NODE_NAME": "node"}, ("node", False)),
    ({"NODE_NAME": "node", "HOST": "agent"}, ("node", False)),
    ({"NODE_NAME": "node", "HOST": "agent", "MESOS_TASK_ID": "t1"}, ("agent", False)),
    ({"KOLLA_HOSTNAME": "given", "HOST": "agent", "MESOS_TASK_ID": "t1"}, ("given", False)),
    ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, ("machine", True)),
    ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NODE_NAME": ""}, ("machine", True)),
    ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "NODE_NAME": "node"}, ("node", False)),
    ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KOLLA_HOSTNAME": "given"}, ("given", False)),
]


@pytest.mark.parametrize(("environ", "expected"), HOSTS)
def test_the_host_is_named_by_the_first_that_knows_it(
    environ: dict[str, str], expected: tuple[str, bool]
) -> None:
    """KOLLA_HOSTNAME, Marathon's HOST, NODE_NAME, the hostname; a pod without any of these is marked."""
    found = settings(**environ)
    assert (found.host, found.host_is_pod) == expected


def test_a_hostname_that_can_not_be_a_host_is_reported() -> None:
    """The message says what to set instead."""
    with pytest.raises(
        BadEnvironment, match=r"KOLLA_HOSTNAME \(from the hostname\) is 'global': expected the name of a host"
    ):
        parse(NEEDED, hostname=lambda: "global")


def test_the_own_variable_wins_over_the_launchers() -> None:
    """KOLLA_APP_ID and KOLLA_PORTS win over what Marathon sets."""
    found = settings(MARATHON_APP_ID="/m/s", PORTS="31000", KOLLA_PORTS="5000")
    assert (found.deployment_id, found.ports) == ("prod", (5000,))
    found = settings(KOLLA_APP_ID="", MARATHON_APP_ID="/m/a/s")
    assert (found.deployment_id, found.service_name) == ("m", "a/s")
    (issue,) = issues(KOLLA_APP_ID="", MARATHON_APP_ID="m")
    assert issue.startswith("MARATHON_APP_ID is 'm': ")


TLS: list[tuple[dict[str, str], list[str]]] = [
    ({"KOLLA_ZK_CA": f"{HERE}/ca", "KOLLA_ZK_CERT": f"{HERE}/cert", "KOLLA_ZK_KEY": f"{HERE}/key"}, []),
    ({"KOLLA_ZK_CA": f"{HERE}/ca", "KOLLA_ZK_CERT": f"{HERE}/cert"}, []),
    (
        {"KOLLA_ZK_CA": f"{HERE}/ca", "KOLLA_ZK_KEY": f"{HERE}/key"},
        ["KOLLA_ZK_KEY is set, KOLLA_ZK_CERT is not"],
    ),
    ({"KOLLA_ZK_CERT": f"{HERE}/cert"}, ["KOLLA_ZK_CERT is set, KOLLA_ZK_CA is not"]),
    ({"KOLLA_ZK_CA": f"{HERE}/ca", "KOLLA_ZK_CERT": "/x"}, ["KOLLA_ZK_CERT is '/x': expected a file"]),
    (
        {"KOLLA_ZK_CA": f"{HERE}/ca", "KOLLA_ZK_CERT": f"{HERE}/cert", "KOLLA_ZK_KEY": "/x"},
        ["KOLLA_ZK_KEY is '/x': expected a file"],
    ),
]


@pytest.mark.parametrize(("environ", "expected"), TLS)
def test_a_certificate_needs_its_companions(environ: dict[str, str], expected: list[str]) -> None:
    """A key needs a certificate, and a certificate needs a CA."""
    try:
        found = settings(**environ)
    except BadEnvironment as error:
        assert len(error.issues) == len(expected)
        assert all(issue.startswith(words) for issue, words in zip(error.issues, expected))
    else:
        assert not expected
        names = ("KOLLA_ZK_CA", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")
        assert [found.ca, found.cert, found.key] == [environ.get(name) for name in names]


def test_files_are_read_from_the_machine(tmp_path: Path) -> None:
    """Without doubles: a file is read, a directory is no certificate, a missing one is reported."""
    (tmp_path / "auth").write_text("digest:kolla:s3cr3t\n")
    assert parse({**NEEDED, "KOLLA_ZK_AUTH_FILE": f"{tmp_path}/auth"}).auth == (("digest", "kolla:s3cr3t"),)
    with pytest.raises(BadEnvironment) as caught:
        parse({**NEEDED, "KOLLA_ZK_AUTH_FILE": f"{tmp_path}/none", "KOLLA_ZK_CA": f"{tmp_path}"})
    ca, auth = caught.value.issues
    assert "No such file or directory" in auth
    assert "this user can read" in ca


def test_the_termination_log_is_kubernetes_own_where_there_is_one() -> None:
    """In a pod a failure is written to the file that the kubelet reads, without any setting."""
    with patch.object(os.path, "exists", "/dev/termination-log".__eq__):
        assert parse(NEEDED).termination_log == "/dev/termination-log"


# -- names that nothing reads -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("KOLLA_WAIT_TIMOUT", "KOLLA_WAIT_TIMEOUT"),
        ("KOLLA_ZK_AUTHFILE", "KOLLA_ZK_AUTH_FILE"),
        ("KOLLA_PORT", "KOLLA_PORTS"),
        ("KOLLA_LOG_LEVEL", "KOLLA_LOGLEVEL"),
    ],
)
def test_a_variable_that_nothing_reads_has_a_nearest_name(name: str, nearest: str) -> None:
    """Without its value, which may be a secret."""
    expected = (f"{name!r} is no variable of the agent; nearest is {nearest!r}",)
    assert settings(**{name: "s3cret"}).unknown == expected


@pytest.mark.parametrize(
    "name",
    [
        *("KOLLA_BASE_DISTRO", "KOLLA_BOOTSTRAP", "KOLLA_CONFIG", "KOLLA_CONFIG_FILE", "KOLLA_UPGRADE_CHECK"),
        *("KOLLA_SERVICE_NAME", "KOLLA_SKIP_EXTEND_START", "KOLLA_DEPLOYMENT_ID", "KOLLA_FENCING_TOKEN"),
        *("KOLLA_WEB_SERVICE_HOST", "KOLLA_WEB_SERVICE_PORT_HTTP", "KOLLA_WEB_PORT"),
        *("KOLLA_WEB_PORT_80_TCP_ADDR", "KOLLA_ZK_CA", "KOLLA_TASK_END", "kolla_x", "MY_KOLLA_X"),
    ],
)
def test_what_others_read_is_no_mistake(name: str) -> None:
    """Kolla's images and scripts, kolla-mesos, Kubernetes; ours that are empty count as not set."""
    assert settings(**{name: ""} if name != "KOLLA_ZK_CA" else {name: f"{HERE}/ca"}).unknown == ()


def test_commands_inherit_the_environment_without_our_credentials() -> None:
    mine = {name: f"{HERE}/{name[9:].lower()}" for name in ("KOLLA_ZK_CA", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")}
    assert parsed(**mine, KOLLA_ZK_AUTH_FILE=f"{HERE}/auth", PATH="/bin").environ == {
        **NEEDED,
        "KOLLA_ZK_CA": f"{HERE}/ca",
        "PATH": "/bin",
        "KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS",
    }


@pytest.mark.parametrize(
    ("given", "effective"), [("COPY_ONCE", "COPY_ONCE"), ("COPY_ALWAYS", "COPY_ALWAYS"), ("", "COPY_ALWAYS")]
)
def test_commands_inherit_the_effective_config_strategy(given: str, effective: str) -> None:
    """Kolla's own script refuses to start without it."""
    assert parsed(KOLLA_CONFIG_STRATEGY=given).environ["KOLLA_CONFIG_STRATEGY"] == effective


@pytest.mark.parametrize(
    ("now", "first_environ", "expected"),
    [
        ({"LC_CTYPE": "C.UTF-8"}, "A=1\0LANG=C\0", {}),
        ({"LC_CTYPE": "C.utf8"}, "LC_CTYPE=POSIX\0XLC_CTYPE=no\0", {"LC_CTYPE": "POSIX"}),
        ({"LC_CTYPE": "C.UTF-8"}, "LC_CTYPE=C.UTF-8\0", {"LC_CTYPE": "C.UTF-8"}),
        ({"LC_CTYPE": "de_DE.UTF-8"}, "", {"LC_CTYPE": "de_DE.UTF-8"}),
        ({}, "LC_CTYPE=C\0", {}),
        ({"LC_CTYPE": "C.UTF-8"}, "", {}),  # /proc is not mounted.
    ],
)
def test_commands_inherit_the_locale_of_the_launcher(
    now: dict[str, str], first_environ: str, expected: dict[str, str]
) -> None:
    """Not the one that Python sets for itself in the C locale."""
    found = child_environ(now, False, lambda: first_environ)
    assert found == {**expected, "KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS"}


@pytest.mark.parametrize("ports", ["80/tcp", "65536", "http", "80:80", "31000 31001"])
def test_ports_of_a_base_image_are_ignored(ports: str) -> None:
    """Its variable of that name may have another meaning; ours is checked."""
    found = settings(PORTS=ports)
    assert found.ports == ()
    assert found.unknown == (
        "PORTS is ignored, as it is not port numbers from 1 to 65535, like 5000,35357; set KOLLA_PORTS",
    )
    assert settings(PORTS=ports, KOLLA_PORTS="80").unknown == ()
