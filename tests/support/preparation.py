"""Makes what the tests keep in `.cache`, while bin/test still checks style and types.

    .venv/bin/python -m tests.support.preparation [--full]

Tests that need a part wait for that part only: the file locks are those of the fixtures. If a part can't be
made, the reason is printed, and the first test that needs the part tries again and fails with the reason.
What exists already is not made again.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

from kolla_mesos_start.errors import BadUsage
from tests import CHECKOUT
from tests.containers.conftest import lacking
from tests.containers.images import Images
from tests.examples import openstack
from tests.kolla_ansible import installed
from tests.kubernetes import build
from tests.stack.upgrade import NEW, OLD
from tests.support import pythons


def main() -> int:
    """Make all parts; the status is 1 if one of them failed."""
    # Installers are children of ours that nobody else would end.
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    cache = CHECKOUT / ".cache"
    # The images come mostly from the network, the others mostly take processor time.
    with ThreadPoolExecutor() as pool:
        parts = (kubernetes, environments, images) if "--full" in sys.argv else (keystone, images)
        done = list(pool.map(lambda make: succeeds(make, cache), parts))
    return 0 if all(done) else 1


def keystone(cache: Path) -> None:
    openstack.keystone_environment(cache, say)


def environments(cache: Path) -> None:
    """In the order in which the tests need them."""
    keystone(cache)
    for release in (OLD, NEW):
        openstack.release_environment(cache, release, say)
    for python in pythons.found():
        pythons.environment(python, cache, say)
    openstack.environment(cache, openstack.WHOLE, say)
    installed.environment(say)


def kubernetes(cache: Path) -> None:
    """Its programs, and what its nodes need; nothing on a machine that can't run containers."""
    if not list(lacking(cache)):
        build.install(say)
        build.programs(cache, say)


def images(cache: Path) -> None:
    """None on a machine that can't run containers: each test then says why."""
    if not list(lacking(cache)):
        made = Images(cache, say)
        try:
            made.make()
        finally:
            made.release()


def succeeds(make: Callable[[Path], None], cache: Path) -> bool:
    try:
        make(cache)
    except (BadUsage, OSError) as error:
        print(f"-- not prepared, {make.__name__}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
