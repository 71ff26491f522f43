"""What a container is started with: its environment, the files named in it, what its former run left."""

from __future__ import annotations

import io
import os
import re
import tempfile
from contextlib import redirect_stdout, suppress
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from kolla_mesos_start import identities, settings
from kolla_mesos_start.daemon.identity import identity
from kolla_mesos_start.health import VERDICTS, health
from kolla_mesos_start.render import variables_dir
from kolla_mesos_start.zookeeper import tls
from tests.fuzz.inputs import BYTES, FAST, Fuzz, changed, seeded

DIRECTORY = tempfile.TemporaryDirectory(prefix="environment-")
HERE = DIRECTORY.name
for name in ("ca", "cert", "key"):
    Path(HERE, name).touch()
VALID = {
    **{
        "KOLLA_ZK_HOSTS": "zk://h1:2181,[::1]:2181,h3/a/b",
        "KOLLA_APP_ID": "/site/openstack/keystone/keystone-api",
    },
    **{"KOLLA_SYSTEM_PREFIX": "/kolla", "KOLLA_HOSTNAME": "ctl-1", "NODE_NAME": "node-1", "HOST": "h"},
    **{"KOLLA_ADDRESS": "10.0.0.1", "KOLLA_PORTS": "5000,35357", "KOLLA_PRIVATE_INTERFACE": "eth0"},
    **{"KOLLA_PUBLIC_INTERFACE": "eth1", "KOLLA_CONFIG_STRATEGY": "COPY_ONCE", "KOLLA_GENERATION": "2026.1"},
    **{"KOLLA_VARIABLES_DIR": HERE, "KOLLA_START_MODE": "supervise", "KOLLA_TASK_END": "stay"},
    **{"KOLLA_WAIT_TIMEOUT": "600", "KOLLA_MISSING_VARIABLES": "empty", "KOLLA_LOGLEVEL": "DEBUG"},
    **{"KOLLA_LOG_FORMAT": "json", "KOLLA_RUN_DIR": "/run/a", "KOLLA_STATE_DIR": "/var/lib/a"},
    **{"KOLLA_ZK_SESSION_TIMEOUT": "10", "KOLLA_ZK_CONNECT_TIMEOUT": "0.5"},
    **{"KOLLA_ZK_AUTH_FILE": f"{HERE}/auth"},
    **{
        "KOLLA_ZK_CA": f"{HERE}/ca",
        "KOLLA_ZK_CERT": f"{HERE}/cert",
        "KOLLA_ZK_KEY": f"{HERE}/key",
        "KOLLA_TERMINATION_LOG": "/log",
    },
    **{"KOLLA_ZK_ACL": "world:anyone:r, digest:kolla:Dp2pT+dZUlvZWqBS2vPWBqy0NiM=:cdrwa,x509:CN=a,O=b:r"},
    **{"MESOS_TASK_ID": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
}
AUTH = [b"digest:kolla:s3cr3t\n\nip:10.0.0.1\r\n", b"x509:CN=a\n"]
VALUES = [value.encode() for value in VALID.values()]
WORDS = [each for each in BYTES if b"\0" not in each]
MEMBER = b"0123456789abcdef0123456789abcdef__party__\n"
STATES = [f"{stage} since then".encode() for stage in VERDICTS]


def environment(random: Random) -> tuple[dict[str, str], bytes]:
    """Variables as Python shows them, and what KOLLA_ZK_AUTH_FILE holds."""
    environ = {name: value for name, value in VALID.items() if random.random() < 0.8}
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        name = random.choice(list(VALID))
        value = changed(random, [VALID[name].encode(), VALID[name].encode(), random.choice(VALUES)], WORDS)
        environ[name] = os.fsdecode(value.replace(b"\0", b""))
    return environ, changed(random, AUTH) if random.random() < 0.5 else AUTH[0]


@seeded
def test_variables(fuzz: Fuzz, seed: int) -> None:
    """They are settings, or each that is bad is named (64)."""

    def attempt(tried: tuple[dict[str, str], bytes]) -> None:
        environ, auth = tried
        Path(HERE, "auth").write_bytes(auth)
        with patch.object(tls, "make_context"):
            found = settings.parse(environ, hostname=lambda: "host")
        assert all(each.isprintable() for each in found.unknown)
        assert found.service_name.encode() and found.host.encode() and found.hosts.isascii()

    fuzz("environment", seed, environment, attempt, batch=FAST)


@seeded
def test_the_acl_that_was_published(fuzz: Fuzz, seed: int) -> None:
    """It is one, or ValueError says that it is none."""
    valid = [VALID["KOLLA_ZK_ACL"].encode(), b"x509:CN=db:cdrw"]

    def attempt(text: str) -> None:
        with suppress(ValueError):
            identities.acl(text)

    fuzz(
        "a published ACL",
        seed,
        lambda random: changed(random, valid).decode("utf-8", "replace"),
        attempt,
        batch=FAST,
    )


@seeded
def test_the_files_of_the_variables_directory(
    fuzz: Fuzz, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They are texts, or the file is named (78)."""
    directory = tmp_path_factory.mktemp("v")

    def make(random: Random) -> tuple[bytes, bytes]:
        name = (
            changed(random, [b"db_password", b"..data"], WORDS).replace(b"/", b"").replace(b"\0", b"")[:200]
        )
        return name, changed(random, [b"s3cr3t\n", "\u00e9\n".encode(), b""])

    def attempt(tried: tuple[bytes, bytes]) -> None:
        name, data = tried
        path = os.path.join(os.fsencode(directory), name or b"a")
        if not os.path.isdir(path):
            Path(os.fsdecode(path)).write_bytes(data)
        try:
            assert all(isinstance(value, str) for value in variables_dir.read(str(directory)).values())
        finally:
            if not os.path.isdir(path):
                os.unlink(path)

    fuzz("KOLLA_VARIABLES_DIR", seed, make, attempt)


@seeded
def test_the_state_that_a_probe_reads(
    fuzz: Fuzz, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One line is printed, with nothing that moves a cursor."""
    run_dir = tmp_path_factory.mktemp("r")

    def attempt(data: bytes) -> None:
        (run_dir / "state").write_bytes(data)
        said = io.StringIO()
        with redirect_stdout(said):
            assert health((), {"KOLLA_RUN_DIR": str(run_dir)}) == 1
        line = said.getvalue()
        assert line.endswith("\n") and line[:-1].isprintable() and len(line) < 70000, line

    fuzz("the state for probes", seed, lambda random: changed(random, STATES), attempt)


@seeded
def test_the_id_of_the_former_run(fuzz: Fuzz, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is used again, or there is a new one."""
    state_dir = tmp_path_factory.mktemp("s")

    def attempt(data: bytes) -> None:
        (state_dir / "registration").write_bytes(data)
        member, known = identity(str(state_dir), lambda text, *words: (text % words).encode())
        assert re.fullmatch("[0-9a-f]{32}__party__", member) and (not known or member.encode() in data)

    fuzz("the id of the former run", seed, lambda random: changed(random, [MEMBER]), attempt)
