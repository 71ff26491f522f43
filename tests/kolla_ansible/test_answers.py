"""What is recorded, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.deployment import formats
from kolla_mesos_start.operator.kolla_ansible import playbooks, recording, rules
from kolla_mesos_start.operator.kolla_ansible.playbooks import PLUGINS

TABLE: Any = formats.document((PLUGINS / "answers.yml").read_bytes())


def test_each_answer_and_each_rule_has_a_reason() -> None:
    content: Any = formats.document(rules.FILE.read_bytes())
    rows = [*TABLE["answers"], *TABLE["computations"]]
    tables = ("dropped", "rewritten", "ready", "ignored", "needs", "inside")
    rows += (row for key in tables for row in content[key])
    assert all(row["reason"] for row in rows)
    for row in rows:
        re.compile(row.get("match", ""))


def test_the_recorder_is_beside_the_playbooks_under_the_short_name_of_each_module(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    for folder in (source / "action_plugins", source / "roles" / "a" / "tasks", made):
        folder.mkdir(parents=True)
    tasks = "- ansible.builtin.command: ls\n- block:\n    - name: a\n      community.general.modprobe:\n"
    kept = "- ansible.builtin.set_fact: {a: 1}\n- ansible.builtin.unknown_module: {}\n"
    (source / "roles" / "a" / "tasks" / "main.yml").write_text(tasks + kept)
    copied = playbooks.copy(source, made)
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
    assert (found.hard, found.needs[0]["name"], len(found.needs) > 1) == ("mine", "a", True)


def test_an_unknown_table_of_rules_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("need: []\n")
    with pytest.raises(BadUsage, match=r"unknown key need .did you mean 'needs'"):
        rules.read(tmp_path / "own.yml")
