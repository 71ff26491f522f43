"""The environment of commands and daemon: what the launcher set, without the agent's own credentials."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Callable


CREDENTIALS = ("KOLLA_ZK_AUTH_FILE", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")
COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python sets LC_CTYPE to if the locale is C."""


def _read_first_environ() -> str:
    """The environment that this process was started with, before Python changed it."""
    with open("/proc/self/environ", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def child_environ(environ: Mapping[str, str], *, copy_once: bool) -> dict[str, str]:
    """The environment for a child: without credentials, and with the config strategy in effect."""
    kept = {name: value for name, value in environ.items() if name not in CREDENTIALS}
    return {**kept, "KOLLA_CONFIG_STRATEGY": "COPY_ONCE" if copy_once else "COPY_ALWAYS"}


def launcher_environ(
    environ: Mapping[str, str], read_first_environ: Callable[[], str] = _read_first_environ
) -> dict[str, str]:
    """The environment as the launcher set it: `environ` without the LC_CTYPE that Python adds.

    In the C locale Python sets LC_CTYPE for itself (PEP 538); a daemon must not inherit that.
    """
    if environ.get("LC_CTYPE") not in COERCED:
        return dict(environ)
    others = {name: value for name, value in environ.items() if name != "LC_CTYPE"}
    try:
        entries = read_first_environ().split("\0")
    except OSError:  # /proc is not mounted.
        return others
    for entry in entries:
        if entry.startswith("LC_CTYPE="):
            others["LC_CTYPE"] = entry.partition("=")[2]
    return others
