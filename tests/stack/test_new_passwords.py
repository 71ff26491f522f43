"""etc/openstack with new passwords and controllers: what its first start has written into databases."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.ctl.up.private_zookeeper import free_port
from kolla_mesos_start.kolla_ansible import rules
from kolla_mesos_start.render.context import file_text
from kolla_mesos_start.render.sandbox import Sandbox
from tests.examples.openstack import SYSTEM_PATH, WHOLE
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

NOVA = WHOLE / "services/openstack/nova"
RABBITMQ = WHOLE / "services/infra/rabbitmq/files"
NOVA_CONF = """\
[DEFAULT]
transport_url = rabbit://{brokers}/
[api_database]
connection = sqlite:///{database}
[database]
connection = mysql+pymysql://nova:{password}@192.0.2.100:3306/nova
"""


LIST = "nova-manage cell_v2 list_cells"
MAP_CELL0, CREATE_CELL1 = (
    command if isinstance(command, str) else " ".join(command)
    for command in (
        yaml.safe_load((NOVA / role / "definition.yml").read_text())["commands"][name]["command"]
        for role, name in (("nova-api", "map_cell0"), ("nova-conductor", "create_cell1"))
    )
)
KOLLA = "bash -c 'sudo -E kolla_set_configs && nova-manage cell_v2 {}'"


class Cells:
    """nova-manage with a database, as in a container of Kolla."""

    def __init__(self, programs: Path, root: Path) -> None:
        self.root, self.database = root, root / "api.db"
        self.environ = {"PATH": f"{root / 'bin'}:{programs}:{SYSTEM_PATH}", "HOME": str(root)}
        for name in ("bin", "etc/nova"):
            (root / name).mkdir(parents=True)
        (root / "bin/sudo").write_text("#!/bin/sh\n")  # `sudo -E kolla_set_configs`
        (root / "bin/sudo").chmod(0o755)
        (root / ".nova").symlink_to(root / "etc/nova")  # where nova-manage looks
        script = (NOVA / "nova-conductor/files/cell1.sh").read_text()
        (root / "etc/nova/cell1.sh").write_text(script.replace("{{ root }}", str(root)))

    def configure(self, password: str, controllers: int) -> str:
        """Write nova.conf, and return the brokers."""
        found = ",".join(f"openstack:{password}@ctl-{number}.site:5672" for number in range(controllers))
        text = NOVA_CONF.format(brokers=found, database=self.database, password=password)
        (self.root / "etc/nova/nova.conf").write_text(text)
        return found

    def run(self, command: str) -> str:
        """What a command prints, which has to succeed."""
        argv = ["sh", "-ec", command.replace("{{ root }}", str(self.root))]
        return subprocess.run(argv, env=self.environ, stdout=subprocess.PIPE, text=True, check=True).stdout

    def listed(self) -> Mapping[str, tuple[str, str]]:
        """The URLs of each cell, of its brokers and of its database; fails if two have the same name."""
        rows = re.findall(r"\| (\S*) *\| [-0-9a-f]{36} \| +(\S+) +\| +(\S+)", self.run(f"{LIST} --verbose"))
        assert len(rows) == len({name for name, *_ in rows})
        return {name: (brokers, database) for name, brokers, database in rows}


@pytest.mark.parametrize("name", ["etc/openstack", "imported", "imported with a name"])
def test_novas_cells_follow_its_configuration(name: str, whole_programs: Path, tmp_path: Path) -> None:
    """There is one cell 1 after each release. In etc/openstack the database has no password."""
    cells = Cells(whole_programs, tmp_path)
    for release, (password, controllers) in enumerate((("first", 1), ("second", 3), ("third", 2))):
        brokers = cells.configure(password, controllers)
        url = f"mysql+pymysql://nova:{password}@192.0.2.100:3306/nova"
        if release == 0:
            cells.run("nova-manage api_db sync")
        if name == "etc/openstack":
            if release < 2:  # Later the configuration alone has changed.
                cells.run(MAP_CELL0)
                cells.run(CREATE_CELL1)
        else:
            table = rules.read()
            cell1 = " --name cell1" if name.endswith("name") else ""
            cells.run(table.command(KOLLA.format(f"map_cell0 --database_connection {url}_cell0")))
            cells.run(table.command(KOLLA.format(f"create_cell{cell1}")))
        cell1 = "" if name == "imported" else "cell1"
        assert cells.listed() == {"cell0": ("none:///", f"{url}_cell0"), cell1: (f"rabbit://{brokers}/", url)}
    if name == "etc/openstack":
        with closing(sqlite3.connect(cells.database)) as connection:
            assert "first" not in str(connection.execute("SELECT * FROM cell_mappings").fetchall())


def test_rabbitmq_takes_a_new_password_when_it_is_restarted(whole_programs: Path, place: Path) -> None:
    root = place / "rabbitmq"
    values = {
        **{
            name: free_port(set())
            for name in ("rabbitmq_port", "rabbitmq_distribution_port", "rabbitmq_epmd_port")
        },
        **{"root": str(root), "controllers": "ctl-1=127.0.0.1", "kolla_hostname": "ctl-1"},
        "rabbitmq_epmd_addresses": "",
    }
    address = f"127.0.0.1:{values['rabbitmq_port']}"

    def accepts(password: str) -> bool:
        connect = f"import amqp; amqp.Connection({address!r}, 'openstack', {password!r}).connect()"
        python = [str(whole_programs / "python"), "-c", connect]
        return subprocess.run(python, stderr=subprocess.DEVNULL).returncode == 0

    for password, other in (("first", "second"), ("second", "first")):
        with started(root, {**values, "rabbitmq_password": password}):
            eventually(partial(accepts, password), f"it accepts {password}", seconds=120)
            assert not accepts(other)


@contextmanager
def started(root: Path, values: dict[str, object]) -> Iterator[None]:
    """A node with the files of etc/openstack; its data stay."""
    (root / "etc/rabbitmq").mkdir(parents=True, exist_ok=True)
    (root / "var/lib/rabbitmq").mkdir(parents=True, exist_ok=True)
    for file in RABBITMQ.iterdir():
        text = file_text(file.name, file.read_bytes())
        (root / "etc/rabbitmq" / file.name).write_text(
            Sandbox().render(text, values) if text else file.read_text()
        )
    node = subprocess.Popen(
        ["sh", str(root / "etc/rabbitmq/start.sh")],
        env={"PATH": SYSTEM_PATH},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(timeout=60)
        subprocess.run(
            ["epmd", "-port", str(values["rabbitmq_epmd_port"]), "-kill"],
            stdout=subprocess.DEVNULL,
            check=False,
        )
