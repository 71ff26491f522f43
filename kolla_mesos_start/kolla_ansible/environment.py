"""Finds ansible's programs and the playbooks of kolla-ansible on this machine."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kolla_mesos_start.errors import BadUsage

PLAYBOOK = "site.yml"
SHARE = ("share", "kolla-ansible")
INSTALL = "pip install 'kolla-ansible==22.*' ansible-core ansible"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with ansible-core, and the directory of playbooks with `site.yml`.

    `release` is kolla-ansible's version, such as 22.2.0; empty for a checkout.
    """

    prefix: Path
    playbooks: Path
    release: str

    def program(self, name: str) -> Path:
        """The path of one of ansible's programs."""
        return self.prefix / "bin" / name


def find(share: Path | None, ansible: Path | None) -> Environment:
    """The environment that the command line names, by default the one that this program runs in.

    Raises BadUsage if a part of it is missing.
    """
    prefix = (ansible or Path(sys.prefix)).absolute()
    program = prefix / "bin" / "ansible-playbook"
    if not program.exists():
        raise BadUsage(
            f"{program} does not exist: install the tool with its extra `import`, or give --ansible VENV,"
            f" where you ran: {INSTALL}"
        )
    top = (share or prefix.joinpath(*SHARE)).absolute()
    for playbooks in (top / "ansible", top):
        if (playbooks / PLAYBOOK).is_file():
            # An installed one is PREFIX/share/kolla-ansible.
            return Environment(prefix, playbooks, _release(top.parent.parent))
    raise BadUsage(f"{top} has no ansible/{PLAYBOOK}: give SHARE, an installed kolla-ansible or a checkout")


def _release(prefix: Path) -> str:
    for found in sorted(prefix.glob("lib/python3*/site-packages/kolla_ansible-*.dist-info")):
        version = re.fullmatch(r"kolla_ansible-(.*)\.dist-info", found.name)
        if version:
            return version[1]
    return ""
