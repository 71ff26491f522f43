"""Small recordings, as the recorder would have written them, and the directories that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kolla_mesos_start.ctl.directory import directory as deployments
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.kolla_ansible import directory, facts, importing, rules
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.site import Site

CONFIG = "/etc/kolla"
GIVEN = {"zookeeper": "zk-1:2181", "agent": "site/agent:1"}  # for launch.yml


def imported(
    place: Path,
    hosts: Sequence[str],
    recorded: Callable[[int, Site], Sequence[Task]],
    passwords: Mapping[str, object] | None = None,
    overrides: str = "",
    action: str = importing.DEPLOY,
) -> tuple[Path, Imported]:
    """The directory that two recordings with these passwords become, and what was found on the way."""
    lines = (
        f"{host}: {{address: 192.0.2.1{number}, interface: eth0, cpus: 4, memory: 8192}}"
        for number, host in enumerate(hosts)
    )
    (place / "facts.yml").write_text(f"hosts: {{{', '.join(lines)}}}\n")
    (place / "passwords.yml").write_text(yaml.safe_dump(passwords or {}))
    (place / "own.yml").write_text(overrides or "{}\n")
    site = Site(facts.read(place / "facts.yml", hosts), {}, passwords or {})
    recordings = (recorded(0, site), recorded(1, site))
    made = importing.make(recordings, site, rules.read(place / "own.yml"), "22.2.0", GIVEN, action)
    directory.write(place / "site", made.emitted)
    return place / "site", made


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def errors(site: Path) -> list[str]:
    """What `kolla_mesos_ctl validate` finds."""
    deployment = deployments.read(site)
    secrets = dict.fromkeys(deployment.secrets, b"s3cret")
    deployment = deployment._replace(variables={**deployment.variables, **secrets})
    return [each.message for each in validate(deployment) if each.severity == "error"]


def joined(recorders: Iterable[Recorder]) -> list[Task]:
    """The tasks of several hosts, one host after the other."""
    every = (task for recorder in recorders for task in recorder.tasks)
    return [replace(task, number=number) for number, task in enumerate(every)]


class Recorder:
    """Makes tasks with growing numbers."""

    def __init__(self, host: str = "ctl-1") -> None:
        self.host, self.role, self.tasks = host, "keystone", list[Task]()

    def task(self, module: str, name: str = "a task", role: str = "", /, **args: Any) -> Task:
        """Add a task."""
        return self._add(module, name, role or self.role, args, None, None)

    def file(self, path: str, content: str) -> Task:
        """Add a file below the config directory."""
        return self._add("copy", f"Copying {path}", self.role, {}, f"{CONFIG}/{path}", content.encode())

    def daemon(self, name: str, healthcheck: str = "", timeout: int = 30, **settings: Any) -> None:
        """Add a container that is compared and then started."""
        test = {"test": ["CMD-SHELL", healthcheck], "timeout": timeout}
        volumes = [f"{CONFIG}/{name}/:/var/lib/kolla/config_files/:ro", "kolla_logs:/var/log/kolla/"]
        given = {
            "name": name,
            "image": f"quay.io/kolla/{name.replace('_', '-')}:2026.1",
            "volumes": volumes,
            **({"healthcheck": test} if healthcheck else {}),
            **settings,
        }
        self.task("kolla_container", f"Check containers for {name}", action="compare_container", **given)
        self.task("kolla_container", f"Restart {name}", action="recreate_or_restart_container", **given)

    def bootstrap(self, name: str, of: str, **settings: Any) -> None:
        """Add a container that runs once with the files of a daemon."""
        volumes = [f"{CONFIG}/{of}/:/var/lib/kolla/config_files/:ro", "kolla_logs:/var/log/kolla/"]
        image = f"quay.io/kolla/{of}:2026.1"
        once = {"detach": False, "restart_policy": "oneshot", "environment": {"KOLLA_BOOTSTRAP": None}}
        given = {"name": name, "image": image, "volumes": volumes, **once, **settings}
        self.task("kolla_container", f"Running {name}", action="start_container", **given)

    def toolbox(self, module: str, args: Mapping[str, Any], role: str = "", user: str | None = None) -> None:
        """Add a module that runs in kolla_toolbox, as the user of its image or another one."""
        named = {"user": user} if user else {}
        self.task("kolla_toolbox", f"Running {module}", role, module_name=module, module_args=args, **named)

    def _add(
        self,
        module: str,
        name: str,
        role: str,
        args: Mapping[str, Any],
        dest: str | None,
        content: bytes | None,
    ) -> Task:
        number = len(self.tasks)
        place = f"/playbooks/roles/{role}/tasks/main.yml:{number + 1}"
        made = Task(number, self.host, self.host, role, name, place, module, args, dest, content)
        self.tasks.append(made)
        return made
