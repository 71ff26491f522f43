"""What kolla-ansible itself writes, and what our sandbox renders from an imported directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import directory, formats
from kolla_mesos_start.kolla_ansible.containers import CONFIG_FILES
from kolla_mesos_start.kolla_ansible.facts import HostFacts
from kolla_mesos_start.kolla_ansible.recording import Environment
from kolla_mesos_start.kolla_ansible.stand_ins import flattened
from kolla_mesos_start.render.context import file_text
from kolla_mesos_start.render.sandbox import Sandbox

# genconfig asks a live cloud for its hypervisors.
NO_HYPERVISORS = """\
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, "resources": []}
"""


def genconfig(
    environment: Environment, config: Path, facts: Mapping[str, HostFacts], out: Path, tags: str | None = None
) -> Path:
    """Run kolla-ansible's genconfig, unmodified; the directory has one of each host.

    ansible runs as this user, on this machine, and writes below `out` only.
    """
    cache, plugins = out / "cache", out / "plugins"
    for path in (cache, plugins, out / "home" / "tmp"):
        path.mkdir(parents=True, exist_ok=True)
    (plugins / "kolla_toolbox.py").write_text(NO_HYPERVISORS)
    for each in facts.values():
        payload = json.dumps({f"ansible_{name}": value for name, value in each.values.items()})
        (cache / f"s1_{each.host}").write_text(json.dumps({"__payload__": payload}))
        (cache / each.host).write_text(payload)  # for ansible-core before 2.19
    written = out / "hosts"
    where = {"node_config_directory": f"{written}/{{{{ inventory_hostname }}}}/etc/kolla"}
    program = environment.program
    done = subprocess.run(
        (
            *(str(program("ansible-playbook")), "-i", str(config / "inventory")),
            *("-e", f"@{config / 'globals.yml'}", "-e", f"@{config / 'passwords.yml'}"),
            *("-e", "kolla_action=config", "-e", f"CONFIG_DIR={config}", "-e", json.dumps(where)),
            *("-e", "ansible_connection=local", "-e", "ansible_become=false"),
            *("-e", f"ansible_python_interpreter={program('python')}"),
            *(("--tags", tags) if tags else ()),
            "site.yml",
        ),
        cwd=environment.playbooks,
        env={
            "PATH": f"{program('')}:{os.defpath}:/usr/sbin:/sbin",
            "HOME": str(out / "home"),
            "LC_ALL": "C.UTF-8",
            "PBR_VERSION": environment.release or "22.0.0",
            "ANSIBLE_ACTION_PLUGINS": str(plugins),
            "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(cache),
            "ANSIBLE_CACHE_PLUGIN_TIMEOUT": "0",
            "ANSIBLE_LOCAL_TEMP": str(out / "home" / "tmp"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-3000:].decode(errors="replace")
    return written


def files(written: Path, facts: Mapping[str, HostFacts]) -> Mapping[tuple[str, str], bytes]:
    """The files of genconfig by host and path below the config directory."""
    names = {each.host: name for name, each in facts.items()}
    return {
        (names[host.name], path.relative_to(host / "etc" / "kolla").as_posix()): path.read_bytes()
        for host in sorted(written.iterdir())
        for path in sorted(host.rglob("*"))
        if path.is_file()
    }


def rendered(root: Path, passwords: Path) -> Mapping[tuple[str, str], bytes]:
    """The files of an imported directory, rendered with the operator's passwords, by host and path."""
    return dict(_rendered(root, passwords))


def _rendered(root: Path, passwords: Path) -> Iterator[tuple[tuple[str, str], bytes]]:
    deployment = directory.read(root)
    secrets = flattened(formats.values(passwords))
    record = json.loads((root / "imported.json").read_bytes())
    values = {name: data.decode() for name, data in deployment.variables.items()}
    sandbox = Sandbox()
    for service in deployment.services:
        definition: Any = json.loads(service.definition)
        steps = [*definition.get("commands", {}).values(), *definition.get("service", {}).values()]
        entries = {
            name: each
            for step in steps
            if isinstance(step, dict)
            for name, each in step.get("files", {}).items()
        }
        for origin in record["services"].get(service.name, ()):
            if "file" not in origin:
                continue
            host, name = origin["host"], origin["file"]
            own = {**service.variables.own, **service.variables.hosts.get(host, {})}
            known = {**values, **secrets, **{each: data.decode() for each, data in own.items()}}
            yield (host, _below(origin["path"])), _content(sandbox, service.files[name], entries[name], known)


def _content(sandbox: Sandbox, data: bytes, entry: Mapping[str, Any], known: Mapping[str, str]) -> bytes:
    """As an agent would write it."""
    assert str(entry["dest"]).startswith(CONFIG_FILES)
    text = file_text(str(entry["dest"]), data, entry.get("template", True))
    if text is None:
        return data
    made = sandbox.render(text, known)
    assert not sandbox.missing, sandbox.missing
    return made.encode()


def _below(path: str) -> str:
    return path.partition("/etc/kolla/")[2]
