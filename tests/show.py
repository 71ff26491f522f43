"""A deployment of many small containers, to be brought up, watched, broken, explained and mended by hand.

    .venv/bin/python -m tests.show DIR     # writes ten services, each in ten containers
    kolla_mesos_ctl up DIR --quiet --replicas schema=10     # says which file names it to other shells
    kolla_mesos_ctl status --watch
    kolla_mesos_ctl set queue_users 0; kolla_mesos_ctl rerun queue/users; kill -9 <a daemon of queue>
    kolla_mesos_ctl explain
    kolla_mesos_ctl set queue_users 3; kolla_mesos_ctl wait; kolla_mesos_ctl timeline --html start.html

Plain `sleep` and `python3 -m http.server`, with dependencies across all services, commands that run once,
and templates that list members. `tests/integration/test_show.py` does all of it with fewer containers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.publishing import write_files

REPLICAS = 10
SLEEP = "command: sleep 3600, ready: {alive: 0.2}"
SERVE = (
    'command: [python3, -m, http.server, "{{ port }}", --bind, 127.0.0.1, --directory, "{{ root }}/srv"],'
    ' ready: {tcp: "{{ port }}", interval: 1}'
)
FILES = 'files: {members: {dest: "{{ root }}/srv/members"}}'
LISTED = "{%% for each in ready_instances('%s') %%}{{ each.host }}:{{ each.ports[0] }}\n{%% endfor %%}"
MEMBERS = {
    "infra/store": "{{ list_ips_by_service('infra/store', 80) }}\n",
    "app/api": LISTED % "infra/store",
    "edge/proxy": LISTED % "app/api",
}


def definitions(replicas: int) -> dict[str, str]:
    """The definition of each service, but for how many are wanted."""
    once = "run_once: true, timeout: 60"
    return {
        "infra/store": daemon(f"{SERVE}, {FILES}"),
        "infra/cache": daemon(SLEEP),
        "infra/queue": daemon(
            SERVE.replace('"{{ root }}/srv"', '"{{ root }}"'),
            # It fails with a value that is no number above 0.
            f"users: {{command: 'test {{{{ queue_users }}}} -gt 0', {once}, dependencies: [store/daemon]}}",
        ),
        "app/schema": "commands:\n"
        f"  create: {{command: sleep 0.3, {once},"
        f" dependencies: [{{path: store/daemon, count: {replicas}}}]}}\n"
        f"  migrate: {{command: sleep 0.3, {once}, generation: '{{{{ release }}}}',"
        " dependencies: [schema/create, queue/users]}\n",
        "app/api": daemon(
            f"{SERVE}, {FILES}, dependencies: [schema/migrate, {{members: infra/cache, count: {replicas}}}]"
        ),
        "app/worker": daemon(f"{SLEEP}, dependencies: [queue/users, queue/daemon, api/daemon]"),
        "app/search": daemon(
            SERVE.replace('"{{ root }}/srv"', '"{{ root }}"'),
            f"index: {{command: sleep 0.5, {once}, dependencies: [api/daemon]}}",
        ),
        "edge/static": daemon(SERVE.replace('"{{ root }}/srv"', '"{{ root }}"')),
        "edge/proxy": daemon(
            f"{SERVE}, {FILES}, dependencies: [static/daemon, {{path: api/daemon, count: {replicas}}}]"
        ),
        "ops/monitor": daemon(f"{SLEEP}, dependencies: [worker/daemon, search/daemon, proxy/daemon]"),
    }


def daemon(keys: str, commands: str = "") -> str:
    return (f"commands:\n  {commands}\n" if commands else "") + f"service:\n  daemon: {{{keys}}}\n"


def write(root: Path, replicas: int) -> Path:
    """The deployment, of which each service has so many containers."""
    write_files(root, variables_yml="queue_users: 3\nrelease: '1'\nroot: ''\nport: 80\n")
    for service, definition in definitions(replicas).items():
        place = root / "services" / service
        wanted = f"  instances: {replicas}\n" if "service:" in definition else ""
        write_files(place, definition_yml=definition + wanted)
        if service in MEMBERS:
            write_files(place, files__members=MEMBERS[service])
    return root


if __name__ == "__main__":
    write(Path(sys.argv[1]), REPLICAS)
