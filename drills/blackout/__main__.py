"""Runs blackouts by hand, one line each, and a summary: `python -m drills.blackout --rounds 20`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from drills.blackout.cluster import Cluster
from drills.blackout.drill import EVENTS, Drill, Round, Violation, plan
from drills.blackout.members import HOSTS, PACKAGES
from tests.conftest import connected
from tests.examples.openstack import install_packages
from tests.support.zookeeper import Ensemble

NEW_MOUNT_NAMESPACE = 0x20000  # CLONE_NEWNS, for unshare(2)


def main() -> int:
    """Run what the command line says; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m drills.blackout", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: any")
    parser.add_argument(
        "--rounds", type=int, default=len(EVENTS), help="blackouts (default: one of each event)"
    )
    parser.add_argument(
        "--event", action="append", choices=sorted(EVENTS), help="only this one; can be repeated"
    )
    parser.add_argument("--transfer", choices=("rsync", "mariabackup"), help="default: by the seed")
    parser.add_argument("--power-cut", action="store_true", help="lose what was not synced (needs root)")
    parser.add_argument("--flush", type=int, default=1, help="innodb_flush_log_at_trx_commit (default 1)")
    options = parser.parse_args()
    if options.power_cut:
        hide_mounts()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    install_packages(print, PACKAGES)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    dice = random.Random(f"cluster {seed}")
    method = options.transfer or dice.choice(("rsync", "mariabackup"))
    exec_hosts = [host for host in HOSTS if dice.random() < 0.5]
    print(f"seed {seed}: {method}, exec mode on {', '.join(exec_hosts) or 'no host'}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kolla-"))
    directory.chmod(0o755)
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: print(summary(rounds)))
        ensemble = stack.enter_context(Ensemble(directory / "zookeeper"))
        zk = stack.enter_context(contextlib.contextmanager(connected)(ensemble))
        more = {"galera_transfer": method, "mariadb_flush_log": options.flush}
        cluster = stack.enter_context(
            Cluster(directory / "c", zk, ensemble, has_disks=options.power_cut, exec_hosts=exec_hosts, **more)
        )
        drill = Drill(cluster, ensemble, seed)
        event = "first start"
        try:
            drill.form()
            print(f"first start: {drill.first_start:.1f} s", flush=True)
            for event in plan(seed, options.rounds, options.event or ()):
                done = drill.round(event)
                rounds.append(done)
                load = os.getloadavg()[0]
                times = f"formed {done.formed:5.1f} s, synced {done.seconds:5.1f} s"
                said = f"{done.event:27} {times}, {done.rows} rows, load {load:.0f}"
                print(f"{len(rounds):3} {said}", flush=True)
        except (Violation, AssertionError) as error:
            kind = "VIOLATION" if isinstance(error, Violation) else "NOT RECOVERED"
            print(f"{kind} in {event}, seed {seed}: {str(error)[:2000]}")
            for host in HOSTS:
                print(f"--- {host}: {cluster.hosts[host].state} {cluster.record(f'candidates/{host}')}")
            print(f"{cluster.record('decision')}\nkept: {directory}")
            return 1
    shutil.rmtree(directory)
    return 0


def hide_mounts() -> None:
    """Keep the disks from containers that start on this machine meanwhile: they would keep them mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNT_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(("mount", "--make-rprivate", "/"), check=True, timeout=60)


def summary(rounds: list[Round]) -> str:
    if not rounds:
        return "no blackout"
    seconds = [each.seconds for each in rounds]
    return (
        f"{len(rounds)} blackouts; last power-on to three synced members: "
        f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
