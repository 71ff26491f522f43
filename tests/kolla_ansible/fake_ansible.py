"""An environment whose programs of ansible are scripts of a test, and an operator's configuration."""

from __future__ import annotations

from pathlib import Path

INVENTORY = """echo '{"all": {"hosts": ["ctl-1"]}}'"""
FACTS = "hosts: {ctl-1: {address: 192.0.2.11, interface: eth0, cpus: 4, memory: 8192}}\n"


def make(place: Path, playbook: str = "true", inventory: str = INVENTORY) -> list[str]:
    """The arguments of an import in which `ansible-playbook` and `ansible-inventory` are these scripts."""
    venv, config = place / "venv", place / "config"
    playbooks = venv / "share/kolla-ansible/ansible"
    for path in (venv / "bin", playbooks / "action_plugins", config):
        path.mkdir(parents=True)
    for name, script in (("ansible-playbook", playbook), ("ansible-inventory", inventory)):
        (venv / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (venv / "bin" / name).chmod(0o755)
    (playbooks / "site.yml").write_text("[]\n")
    (config / "globals.yml").write_text("{}\n")
    (config / "passwords.yml").write_text("keystone_admin_password: s3cret\n")
    (config / "inventory").write_text("ctl-1\n")
    (config / "facts.yml").write_text(FACTS)
    given = {
        "--ansible": venv,
        "--config": config,
        "--inventory": config / "inventory",
        "--facts": config / "facts.yml",
        "--output": place / "site",
    }
    return ["import", "kolla-ansible", *(str(word) for pair in given.items() for word in pair)]
