"""What commands and daemon find in their environment."""

from __future__ import annotations

import pytest

from kolla_mesos_start.child_environ import child_environ, launcher_environ
from kolla_mesos_start.settings import parse

NEEDED = {"KOLLA_ZK_HOSTS": "h1", "KOLLA_APP_ID": "/site/infra/db"}


def test_commands_get_the_environment_without_our_credentials() -> None:
    """Kolla's script needs the strategy in effect."""
    mine = {name: f"/{name[9:].lower()}" for name in ("KOLLA_ZK_CA", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")}
    environ = {**NEEDED, **mine, "KOLLA_ZK_AUTH_FILE": "/auth", "PATH": "/bin"}
    assert child_environ(environ, copy_once=False) == {
        **NEEDED,
        "KOLLA_ZK_CA": "/ca",
        "PATH": "/bin",
        "KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS",
    }


@pytest.mark.parametrize(
    ("given", "effective"), [("COPY_ONCE", "COPY_ONCE"), ("COPY_ALWAYS", "COPY_ALWAYS"), ("", "COPY_ALWAYS")]
)
def test_the_strategy_in_effect_is_exported(given: str, effective: str) -> None:
    """Kolla's own script refuses to start without it."""
    environ = {"KOLLA_CONFIG_STRATEGY": given}
    copy_once = parse({**NEEDED, **environ}).copy_once
    assert child_environ(environ, copy_once=copy_once) == {"KOLLA_CONFIG_STRATEGY": effective}


@pytest.mark.parametrize(
    ("now", "first_environ", "given"),
    [
        ({"LC_CTYPE": "C.UTF-8"}, "A=1\0LANG=C\0", {}),
        ({"LC_CTYPE": "C.utf8"}, "LC_CTYPE=POSIX\0XLC_CTYPE=no\0", {"LC_CTYPE": "POSIX"}),
        ({"LC_CTYPE": "C.UTF-8"}, "LC_CTYPE=C.UTF-8\0", {"LC_CTYPE": "C.UTF-8"}),
        ({"LC_CTYPE": "de_DE.UTF-8"}, "", {"LC_CTYPE": "de_DE.UTF-8"}),
        ({}, "LC_CTYPE=C\0", {}),
    ],
)
def test_the_locale_is_the_launchers(now: dict[str, str], first_environ: str, given: dict[str, str]) -> None:
    """What Python sets for itself in the C locale is not passed on; what the launcher has set is."""
    found = launcher_environ({"A": "1", **now}, lambda: first_environ)
    assert found == {"A": "1", **given}


def test_without_proc_the_locale_of_python_is_not_passed_on() -> None:
    """It is not known then who set it, but hardly ever the launcher."""

    def no_proc() -> str:
        raise FileNotFoundError

    assert launcher_environ({"A": "1", "LC_CTYPE": "C.UTF-8"}, no_proc) == {"A": "1"}
