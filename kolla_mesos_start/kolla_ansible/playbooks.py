"""A copy of kolla-ansible's playbooks in which the recorder takes the place of every module.

Ansible prefers an action beside the playbooks to a module of the same short name. So the names of collections
are removed from the heads of tasks, and the recorder is there under each name of answers.yml. What only
ansible itself executes (variables, includes, templates) stays. What kolla-ansible delegates to localhost, the
machine that it runs on, is delegated to another name, because a host of the inventory may be localhost, too.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.errors import CannotWrite

PLUGINS = Path(__file__).with_name("plugins")
ANSWERS, COMPUTATIONS = "answers.json", "computations.json"
# Heads of tasks: `- ansible.builtin.command:`. The rest of the line may hold arguments.
LOCAL = re.compile(r"^(\s*delegate_to: *)([\"']?)localhost\2 *$", re.MULTILINE)
COLLECTIONS = r"(?:ansible\.(?:builtin|posix|legacy)|community\.\w+|containers\.podman)"


def copy(source: Path, into: Path) -> Path:
    """Copy the playbooks, and return the copy. `into` also gets the tables that the recorder reads."""
    table = formats.document((PLUGINS / "answers.yml").read_bytes())
    assert isinstance(table, dict)
    answers: Sequence[Mapping[str, Any]] = table["answers"]
    names = sorted({str(each["module"]) for each in answers})
    (into / ANSWERS).write_text(json.dumps(answers), encoding="utf-8")
    (into / COMPUTATIONS).write_text(json.dumps(table["computations"]), encoding="utf-8")
    copied = into / "playbooks"
    try:
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("library", "releasenotes", "*.pyc"))
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise CannotWrite(f"{path} can't be copied: {why}") from error
    heads = re.compile(rf"^(\s*(?:- )?){COLLECTIONS}\.({'|'.join(names)}):", re.MULTILINE)
    for file in copied.rglob("*.yml"):
        text = file.read_text(encoding="utf-8")
        short = LOCAL.sub(r"\1this machine", heads.sub(r"\1\2:", text))
        if short != text:
            file.write_text(short, encoding="utf-8")
    for name in names:
        shutil.copyfile(PLUGINS / "record.py", copied / "action_plugins" / f"{name}.py")
    _copy_plugin("refuse", copied / "connection_plugins")
    _copy_plugin("progress", copied / "callback_plugins")
    return copied


def _copy_plugin(name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    shutil.copyfile(PLUGINS / f"{name}.py", folder / f"{name}.py")
