"""Starts an imported deployment with programs that only sleep, and compares it with its critical path.

It takes minutes, and runs by hand only, with the directory of an import of any deployment::

    .venv/bin/python -m tests.kolla_ansible.asleep site --secrets /etc/kolla/passwords.yml

Each command and each daemon sleeps for some seconds, which depend on its name alone, before it is done or
ready. The agents are real: each renders its files, waits and registers, but on one machine and without
containers.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl.directory import formats
from tests import CHECKOUT
from tests.waiting import eventually

TOOL = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_ctl"))
LIMIT = 1800.0
TARGET = 1.2
# What only the real program needs.
REPLACED = ("command", "env", "ready", "user", "timeout", "election", "before_stop", "drain", "succeeds")


def main() -> int:
    """Print the figures; the status is 1 if the start takes too much longer than its critical path."""
    parser = argparse.ArgumentParser(prog="tests.kolla_ansible.asleep", description=__doc__)
    parser.add_argument("directory", type=Path, help="the directory of an import")
    parser.add_argument("--secrets", type=Path, required=True, help="the operator's passwords.yml")
    parser.add_argument("--seconds", type=float, default=4.0, help="the longest sleep; default: %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="asleep-") as name:
        place = Path(name)
        shutil.copytree(options.directory, place / "site")
        shutil.copy(options.secrets, place / "passwords.yml")
        asleep = [
            put_to_sleep(path, options.seconds)
            for path in (place / "site").glob("services/*/*/*/definition.yml")
        ]
        work = sum(asleep)
        steps = start(place)
    whole, path = figures(steps)
    print(f"{len(steps)} commands and daemons, of which the definitions sleep {work:.0f} s in all")
    print(f"whole start {whole:.1f} s, critical path {path:.1f} s: {whole / path:.2f} (target {TARGET})")
    return 0 if whole <= TARGET * path else 1


def put_to_sleep(file: Path, longest: float) -> float:
    """Replace the programs of a definition, and return how long they sleep."""
    definition: Any = formats.document(file.read_bytes())
    service = file.parent.name
    total = 0.0
    commands: Mapping[str, Any] = definition.get("commands", {})
    for name, command in commands.items():
        seconds = _seconds(f"{service}/{name}", longest)
        total += seconds
        _replace(command, {"command": f"sleep {seconds}"})
    for daemon in [definition["service"]["daemon"]] if "service" in definition else []:
        seconds = _seconds(f"{service}/daemon", longest)
        total += seconds
        _replace(daemon, {"command": f"sleep {LIMIT}", "ready": {"alive": seconds}})
    file.write_text(formats.dumped([definition]))
    return total


def _replace(step: dict[str, Any], own: Mapping[str, Any]) -> None:
    for key in REPLACED:
        step.pop(key, None)
    for entry in step.get("files", {}).values():
        entry["dest"] = "{{ root }}" + entry["dest"]
        entry.pop("owner", None)
    step.update(own)


def _seconds(name: str, longest: float) -> float:
    """From a tenth of the longest time to the whole of it, the same in each run."""
    return round(longest * (0.1 + 0.9 * (zlib.crc32(name.encode()) % 1000) / 1000), 1)


def start(place: Path) -> list[Mapping[str, Any]]:
    """Start all containers at the same moment, and return the steps of their timeline."""
    kept, log = place / "kept", place / "log"
    words = (
        "up",
        "site",
        "--quiet",
        "--in",
        str(kept),
        "--secrets",
        "passwords.yml",
        "--timeout",
        str(LIMIT),
    )
    with log.open("wb") as output:
        up = subprocess.Popen(
            (*TOOL, *words), cwd=place, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        eventually(
            lambda: "-- up; Ctrl-C ends it" in log.read_text() or up.poll() is not None, "up", seconds=LIMIT
        )
        assert up.poll() is None, log.read_text()[-3000:]
        found = re.search(r"KOLLA_ZK_HOSTS=(\S+)", (kept / "site" / "env").read_text())
        assert found is not None
        which = ("--hosts", found[1], "--deployment", "site", "--format", "json")
        done = subprocess.run((*TOOL, "timeline", *which), check=True, capture_output=True)
        report = json.loads(done.stdout)
    finally:
        up.terminate()
        up.wait()
    return [{**step, "began": report["began"]} for step in report["steps"]]


def figures(steps: list[Mapping[str, Any]]) -> tuple[float, float]:
    """The seconds of the whole start, and those that the steps of its critical path took."""
    whole = max(step["finished"] for step in steps) - steps[0]["began"]
    path = sum(step["finished"] - step["started"] for step in steps if step["critical"] and step["started"])
    return whole, path


if __name__ == "__main__":
    sys.exit(main())
