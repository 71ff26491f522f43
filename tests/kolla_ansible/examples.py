"""Small recordings, as the recorder would have written them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kolla_mesos_start.kolla_ansible.recording import Task

CONFIG = "/etc/kolla"


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
            "image": f"quay.io/kolla/{name}:2026.1",
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
        made = Task(number, self.host, self.host, role, name, place, module, args, False, dest, content)
        self.tasks.append(made)
        return made
