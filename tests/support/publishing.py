"""Publishing for tests: what a test says in Python goes through the operator's own tool.

It is not validated: a service may be published before those that it depends on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kolla_mesos_start.ctl import cli
from tests.conftest import Deployment

Texts = Mapping[str, "str | bytes"]


def publish(
    deployment: Deployment,
    service: str,
    definition: Mapping[str, Any],
    *,
    files: Texts | None = None,
    variables: Texts | None = None,
    host_variables: Mapping[str, Texts] | None = None,
    shared: Texts | None = None,
) -> None:
    """Publish one service: its definition, and what else is given.

    `variables` are the service's own, `host_variables` those of single hosts, `shared` the
    deployment's. `name` is added to the definition. Published again, only what differs is written.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        place = root / "services" / service
        _write(place, {"definition.json": json.dumps({"name": service, **definition})})
        _write(place / "files", files or {})
        _write(place / "variables", variables or {})
        for host, values in (host_variables or {}).items():
            _write(place / "variables" / host, values)
        _write(root / "variables", shared or {})
        where = ["--deployment", deployment.id, "--prefix", deployment.prefix, "--hosts", deployment.hosts]
        cli.run(["publish", name, "--no-validate", *where])


def write_files(root: Path, **files: str | bytes) -> Path:
    """Files below `root`; a `__` in a name stands for `/`, a `_yml` at its end for `.yml`."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_yml", ".yml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def _write(directory: Path, contents: Texts) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
