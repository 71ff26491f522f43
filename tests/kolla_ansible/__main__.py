"""Imports a whole deployment, and compares each file with kolla-ansible's own genconfig.

It takes minutes of processor time, and runs by hand only::

    .venv/bin/python -m tests.kolla_ansible --deployment multinode --release 21
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kolla_mesos_start.ctl.directory import formats, source
from kolla_mesos_start.kolla_ansible import facts, importing, recording
from tests import CHECKOUT
from tests.kolla_ansible import oracle, sites
from tests.kolla_ansible.installed import NEWEST, RELEASES
from tests.kolla_ansible.installed import environment as installed

TOOL = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_ctl"))


def main() -> int:
    """Print the figures; the status is 1 if a file differs or the directory is not valid."""
    parser = argparse.ArgumentParser(prog="tests.kolla_ansible", description=__doc__)
    parser.add_argument("--deployment", choices=sites.NAMES, default="all-in-one")
    parser.add_argument("--release", choices=sorted(RELEASES), default=NEWEST)
    parser.add_argument("--ansible", type=Path, help="a virtual environment with another release")
    parser.add_argument("--action", choices=importing.ACTIONS, default=importing.DEPLOY)
    parser.add_argument("--tags", help="only these tags of kolla-ansible")
    parser.add_argument("--overrides", type=Path, help="rules, as for `kolla_mesos_ctl import`")
    options = parser.parse_args()
    venv = options.ansible or installed(print, options.release)
    with tempfile.TemporaryDirectory(prefix="kolla-oracle-") as name:
        return compare(venv, options.deployment, options.tags, given(options), Path(name))


def given(options: argparse.Namespace) -> list[str]:
    """The options that are those of `kolla_mesos_ctl import`."""
    found = {"--action": options.action, "--tags": options.tags, "--overrides": options.overrides}
    return [word for name, value in found.items() if value for word in (name, str(value))]


def compare(venv: Path, deployment: str, tags: str | None, chosen: Sequence[str], place: Path) -> int:
    """Import and compare in an empty directory."""
    (place / "config").mkdir()
    config, site = sites.make(venv, deployment, place / "config"), place / "site"
    found = recording.find_environment(None, venv)
    started = time.monotonic()
    where = ("--config", config, "--inventory", config / "inventory", "--facts", config / "facts.yml")
    subprocess.run(
        (*TOOL, "import", "kolla-ansible", "--ansible", venv, *where, *chosen, "--output", site), check=True
    )
    imported = time.monotonic()
    known = facts.read(config / "facts.yml", sites.hosts_of(deployment))
    wanted = oracle.files(oracle.genconfig(found, config, known, place, tags), known)
    written = time.monotonic()
    got = oracle.rendered(site, config / "passwords.yml")
    differing = [path for path, data in wanted.items() if got.get(path) != data]
    edges = json.loads((site / "imported.json").read_bytes())["edges"]
    secrets = dict(source.flattened(formats.values(config / "passwords.yml")))
    texts = [path.read_text(errors="replace") for path in site.rglob("*") if path.is_file()]
    leaked = [name for name, value in secrets.items() if value and any(str(value) in text for text in texts)]
    equal, hard = len(wanted) - len(differing), sum(edge["hard"] for edge in edges)
    print(f"kolla-ansible {found.release}, {deployment}: {equal} of {len(wanted)} files equal")
    print(f"{len(edges)} edges, {hard} hard; {len(leaked)} secrets in the directory")
    print(f"import {imported - started:.0f} s, genconfig {written - imported:.0f} s")
    for host, path in differing:
        print(f"  differs: {host} {path}")
    valid = subprocess.run((*TOOL, "validate", site, "--secrets", config / "passwords.yml"))
    return 1 if differing or leaked or valid.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
