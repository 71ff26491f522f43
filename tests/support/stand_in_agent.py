"""An agent reduced to its end: it has a session and a member, starts the registrar, and execs the daemon.

python stand_in_agent.py '{"hosts": [["127.0.0.1", 2181]], "run_dir": "...", "daemon": ["sleep", "9"], ...}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from kazoo.client import KazooClient

from kolla_mesos_start.daemon import notify_socket
from kolla_mesos_start.daemon.handoff import Handoff, spawn
from kolla_mesos_start.health import StateFile


def main(options: dict[str, Any]) -> None:
    state_file = StateFile.take(options["run_dir"])
    client = KazooClient(hosts=",".join(f"{host}:{port}" for host, port in options["hosts"]))
    client.start()
    for path, data in options["parents"]:
        client.ensure_path(path)
        client.set(path, data.encode())
    for path, data in options["presence"] if options["member"] else ():
        client.create(path, data.encode(), ephemeral=True)
    session_id, password = client.client_id
    print(json.dumps([session_id, password.hex()]), flush=True)
    path = f"{options['run_dir']}/notify"
    notify = notify_socket.bind(path)
    os.environ["NOTIFY_SOCKET"] = path
    # The agent's handoff happens between two heartbeats, at any log level.
    held, await_registrar = spawn(
        Handoff(
            servers=([tuple(host) for host in options["hosts"]], "", [], None, None, None),
            session=(session_id, password, client.last_zxid, 10.0),
            registration=(
                "one",
                _entries(options["presence"]),
                _entries(options["ready"]),
                _entries(options["parents"]),
                options["states"],
                options["acl"],
            ),
            container=(f"{options['parents'][0][0]}/container", b"{}", 0.0),
            service="openstack/x",
            command="x/daemon",
            check=tuple(options["check"]),
            check_env=dict(os.environ),
            check_ids=None,
            addresses=["127.0.0.1"],
            run_dir=options["run_dir"],
            lock_fd=state_file.fd,
            pidfd=os.pidfd_open(os.getpid()),
            notify_fd=notify.fileno(),
            loglevel="debug",
            json_logs=False,
            daemon=os.getpid(),
        )
    )
    await_registrar()
    assert not os.get_inheritable(held)
    # The states of its own connection while the registrar runs already.
    states: list[str] = []
    client.add_listener(states.append)
    time.sleep(options["linger"])
    print(json.dumps(states), flush=True)
    os.execvp(options["daemon"][0], options["daemon"])


def _entries(pairs: list[list[str]]) -> list[tuple[str, bytes]]:
    return [(path, data.encode()) for path, data in pairs]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
