"""What is recorded, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import recording, rules
from kolla_mesos_start.kolla_ansible.recording import PLUGINS
from tests.kolla_ansible.examples import Recorder

TABLE: Any = formats.document((PLUGINS / "answers.yml").read_bytes())


def test_each_answer_and_each_rule_has_a_reason() -> None:
    content: Any = formats.document(rules.FILE.read_bytes())
    rows = [*TABLE["answers"], *TABLE["computations"]]
    tables = ("dropped", "rewritten", "ready", "ignored", "needs", "inside")
    rows += (row for key in tables for row in content[key])
    assert all(row["reason"] for row in rows)
    for row in rows:
        for pattern in (row.get("match", ""), *row.get("args", {}).values()):
            re.compile(pattern)


QUERY = 'SHOW STATUS LIKE "wsrep_local_state_comment"'
CELLS = "bash -c 'sudo -E kolla_set_configs && nova-manage cell_v2 list_cells --verbose'"
ANSWERS: Mapping[str, tuple[str, Mapping[str, object], Mapping[str, object]]] = {
    "a look for a cluster": ("wait_for", {"port": "3306", "timeout": 10}, {"failed": True}),
    "a wait": ("wait_for", {"port": "3306", "timeout": 100}, {}),
    "a query": (
        "kolla_toolbox",
        {"module_args": {"query": QUERY}},
        {"query_result": [[{"Value": "Synced"}]]},
    ),
    "a longer query": ("kolla_toolbox", {"module_args": {"query": f"{QUERY}; DROP"}}, {"rc": 0}),
    "a list of cells": ("kolla_container", {"command": CELLS}, {"stdout": ""}),
    "IPv6": ("command", {"_raw_params": "sysctl -n net.ipv6.conf.all.disable_ipv6\n"}, {"stdout": "0"}),
    "another key": ("command", {"argv": ["sysctl", "-n", "net.ipv6.conf.all.disable_ipv6s"]}, {"stdout": ""}),
    "etcd": (
        "command",
        {"cmd": "docker exec etcd etcdctl endpoint health"},
        {"stdout": '[{"health": true}]'},
    ),
    "after etcd": ("command", {"cmd": "docker exec etcd etcdctl endpoint health; true"}, {"stdout": ""}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_row_is_for_the_whole_of_an_argument(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, wanted = ANSWERS[name]
    fits = recorder(monkeypatch)._fits
    rows = [row for row in TABLE["answers"] if "after" not in row]
    answer = next(row["answer"] for row in rows if fits(row, module, "mariadb", "deploy", args))
    assert wanted.items() <= answer.items()
    assert wanted or not answer


def test_a_computation_can_neither_write_nor_use_a_device_nor_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also not in a file system of its own, such as /dev/shm, or one below it."""
    for name in ("temporary", "temporary/bound"):
        (tmp_path / name).mkdir()
    (tmp_path / "bound").mkdir()
    mounts = 'mount -t tmpfs none "$1"; mkdir "$1/bound"; mount --bind "$2" "$1/bound"; shift 2; exec "$@"'
    places = [*(str(tmp_path / name) for name in ("", "temporary", "temporary/bound")), "/dev/shm"]
    tries = """\
cat /proc/self/mountinfo
mount -o remount,bind,rw "$2"
for each; do touch "$each/a" && echo "$each"; done
true </dev/zero && echo device
cat /proc/net/dev
"""
    command = (
        *(
            "unshare",
            "--mount",
            "sh",
            "-ec",
            mounts,
            "sh",
            str(tmp_path / "temporary"),
            str(tmp_path / "bound"),
        ),
        *(*recorder(monkeypatch).ISOLATED, "sh", "-c", tries, "sh", *places),
    )
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    lines = done.stdout.splitlines()
    mounted = [line.split() for line in lines if " - " in line]
    assert str(tmp_path / "temporary/bound") in [fields[4] for fields in mounted]
    assert all({"ro", "nodev"} <= set(fields[5].split(",")) for fields in mounted), done.stdout
    said = [line.strip() for line in lines[len(mounted) :]]
    assert [line.partition(":")[0] for line in said[2:]] == ["lo"], done.stdout
    assert done.stderr.count("Read-only file system") == len(places), done.stderr


def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recorder as a module, without ansible."""
    action, errors = ModuleType("ansible.plugins.action"), ModuleType("ansible.errors")
    monkeypatch.setattr(action, "ActionBase", object, raising=False)
    monkeypatch.setattr(errors, "AnsibleError", Exception, raising=False)
    for each in (ModuleType("ansible"), ModuleType("ansible.plugins"), action, errors):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    spec = spec_from_file_location("record", PLUGINS / "record.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_recorder_is_beside_the_playbooks_under_the_short_name_of_each_module(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    for folder in (source / "action_plugins", source / "roles" / "a" / "tasks", made):
        folder.mkdir(parents=True)
    tasks = "- ansible.builtin.command: ls\n- block:\n    - name: a\n      community.general.modprobe:\n"
    kept = "- ansible.builtin.set_fact: {a: 1}\n- ansible.builtin.unknown_module: {}\n"
    (source / "roles" / "a" / "tasks" / "main.yml").write_text(tasks + kept)
    copied = recording.copy_playbooks(source, made)
    assert (copied / "roles" / "a" / "tasks" / "main.yml").read_text() == (
        f"- command: ls\n- block:\n    - name: a\n      modprobe:\n{kept}"
    )
    modules = {row["module"] for row in TABLE["answers"]}
    assert {path.stem for path in (copied / "action_plugins").iterdir()} == modules
    assert (source / "roles" / "a" / "tasks" / "main.yml").read_text() == tasks + kept


def test_a_failure_names_module_task_place_and_host() -> None:
    failure = {
        "module": "ansible.builtin.unknown_module",
        "task": "a : Do it",
        "place": "/tmp/x/playbooks/roles/a/tasks/main.yml:3",
        "host": "ctl-1",
        "message": "refused",
    }
    assert recording.shown(failure) == (
        "ansible.builtin.unknown_module of the task 'a : Do it' (roles/a/tasks/main.yml:3) on ctl-1: refused"
    )


def test_the_operators_rules_precede_those_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("hard: mine\nneeds: [{name: a, on: b, reason: ours}]\n")
    found = rules.read(tmp_path / "own.yml")
    assert (found["hard"], found["needs"][0]["name"], len(found["needs"]) > 1) == ("mine", "a", True)


def test_the_rules_of_the_package_have_no_mistakes() -> None:
    rules.read(rules.FILE)


def test_an_unknown_table_of_rules_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("need: []\n")
    with pytest.raises(BadUsage, match=r"unknown key need .did you mean 'needs'"):
        rules.read(tmp_path / "own.yml")


def test_each_recording_has_the_same_order_of_hosts() -> None:
    """Within a task, ansible's processes write as they come."""
    recorder = Recorder()
    for place, host in (
        ("a:1", "cmp-1"),
        ("a:1", "ctl-1"),
        ("a:1", "cmp-1"),
        ("a:2", "cmp-1"),
        ("a:2", "ctl-1"),
    ):
        recorder.host = host
        recorder.tasks[-1] = replace(recorder.task("command"), place=place)
    found = recording.ordered(recorder.tasks, ["ctl-1", "cmp-1"])
    assert [(task.number, task.place, task.host) for task in found] == [
        (0, "a:1", "ctl-1"),
        (1, "a:1", "cmp-1"),
        (2, "a:1", "cmp-1"),
        (3, "a:2", "ctl-1"),
        (4, "a:2", "cmp-1"),
    ]
