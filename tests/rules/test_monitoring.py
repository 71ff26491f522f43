"""What is in etc/monitoring: alert rules, which promtool tests, and a dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kolla_mesos_start.ctl.live.metrics import FAMILIES, PREFIX, SUFFIXES
from tests import CHECKOUT

MONITORING = CHECKOUT / "etc" / "monitoring"
RULES, TESTS, DASHBOARD = (MONITORING / name for name in ("alerts.yml", "alerts_test.yml", "dashboard.json"))
PAGE = CHECKOUT / "docs" / "guide" / "monitor.rst"
SERVED = {f"{PREFIX}{name}{SUFFIXES.get(kind, '')}" for name, (kind, *_) in FAMILIES.items()}


def promtool(*words: object) -> None:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """Those of the dashboard, with a value for each of its variables."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"].replace("$deployment", "site") for target in panel["targets"])


def test_the_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", TESTS)


def test_each_alert_has_a_test_that_it_fires() -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    tested = {each["alertname"] for test in tests for each in test["alert_rule_test"] if "exp_alerts" in each}
    assert tested == {rule["alert"] for rule in rules()}


def test_each_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "action"}


def test_the_dashboard_has_only_valid_expressions(tmp_path: Path) -> None:
    found = [{"record": f"panel{number}", "expr": each} for number, each in enumerate(expressions())]
    place = tmp_path / "dashboard.yml"
    place.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": found}]}))  # JSON is YAML.
    promtool("check", "rules", place)
    assert len(found) > 10


def test_only_metrics_that_are_served_are_used() -> None:
    for place in (RULES, TESTS, DASHBOARD, MONITORING / "README.rst", PAGE):
        used = set(re.findall(rf"\b{PREFIX}\w+", place.read_text()))
        # The program has the same prefix, and so have the groups of rules.
        used = {each for each in used if not each.startswith(f"{PREFIX}ctl")}
        groups = {group["name"] for group in yaml.safe_load(RULES.read_text())["groups"]}
        assert used - SERVED - groups == set(), place
