"""A small import of kolla-ansible's own playbooks, compared with its genconfig."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import formats, source
from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.kolla_ansible import (
    facts,
    importing,
    lift,
    recording,
    rules,
)
from kolla_mesos_start.kolla_ansible.recording import CannotRecord, Request, Task
from tests import CHECKOUT
from tests.kolla_ansible import oracle, sites
from tests.kolla_ansible.installed import environment as installed
from tests.support.arrangement import say

TAGS = "memcached"
# A machine without programs except Python, without a network, on which only $1 can be changed.
ISOLATED = """\
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro /
mount -t tmpfs none /dev/shm
python=$(readlink -f "$2")
mkdir "$1/programs"
touch "$1/programs/${python##*/}"
mount --bind "$python" "$1/programs/${python##*/}"
mount --rbind "$1/programs" /usr/bin
export TMPDIR="$1/tmp"
shift 2
exec "$@"
"""


@pytest.fixture(scope="module")
def venv(pytestconfig: pytest.Config) -> Path:
    return installed(lambda text: say(pytestconfig, text))


@pytest.fixture(scope="module")
def config(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator's configuration, made with kolla-ansible's own examples. Its only host is localhost."""
    return sites.make(venv, "own-all-in-one", tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def imported(venv: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an import that could neither run a program nor change anything else."""
    writable = tmp_path_factory.mktemp("writable")
    (writable / "tmp").mkdir()
    command = (
        *(sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_ctl"), "import", "kolla-ansible"),
        *("--ansible", str(venv), "--config", str(config), "--inventory", str(config / "inventory")),
        *("--facts", str(config / "facts.yml"), "--tags", TAGS, "--output", str(writable / "site")),
    )
    isolated = ("unshare", "--mount", "--net", "sh", "-c", ISOLATED, "sh", str(writable), sys.executable)
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(writable)}
    done = subprocess.run((*isolated, *command), capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "recording: Apply role memcached" in done.stderr
    return writable / "site"


def test_each_file_is_that_of_genconfig(venv: Path, config: Path, imported: Path, tmp_path: Path) -> None:
    known = facts.read(config / "facts.yml", ["localhost"])
    written = oracle.genconfig(recording.find_environment(None, venv), config, known, tmp_path, TAGS)
    wanted = oracle.files(written, known)
    assert (socket.gethostname(), "memcached/config.json") in wanted
    assert oracle.rendered(imported, config / "passwords.yml") == wanted


def test_localhost_has_the_hostname_of_this_machine(imported: Path) -> None:
    """This is kolla-ansible's name for it, but no other host can use it, nor a launcher."""
    launch: Any = formats.document((imported / "launch.yml").read_bytes())
    assert launch["hosts"] == {"hosts": [socket.gethostname()]}
    variables: Any = formats.document((imported / "variables.yml").read_bytes())
    assert f"address_{lift.variable(socket.gethostname())}" in variables


def test_no_password_is_in_the_directory(config: Path, imported: Path) -> None:
    secrets = dict(source.flattened(formats.values(config / "passwords.yml")))
    texts = [path.read_text() for path in imported.rglob("*") if path.is_file()]
    assert not [
        name for name, value in secrets.items() if value and any(str(value) in text for text in texts)
    ]


def test_the_directory_is_valid_with_the_operators_passwords(config: Path, imported: Path) -> None:
    command = (sys.executable, CHECKOUT / "bin" / "kolla_mesos_ctl", "validate", imported)
    done = subprocess.run((*command, "--secrets", config / "passwords.yml"), capture_output=True, text=True)
    assert (done.returncode, " 0 errors" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(
    "task, why",
    [
        ("ansible.builtin.dnf: {name: x}", "ansible.builtin.dnf of the task 'Do it' (site.yml:"),
        ("ansible.builtin.raw: touch {marker}", "ansible.builtin.raw of the task 'Do it' (site.yml:"),
        (
            "ansible.builtin.command: touch {marker}\n      delegate_to: localhost",
            "command of the task 'Do it' (site.yml:4) on localhost: this command would run on this machine",
        ),
        (
            "ansible.builtin.command: {crontab} -n 1; touch {marker}\n      delegate_to: localhost",
            "command of the task 'Do it' (site.yml:4) on localhost: this command would run on this machine",
        ),
    ],
)
def test_what_is_not_recorded_fails_by_name(
    task: str, why: str, venv: Path, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(CannotRecord) as error:
        record(task.replace("{marker}", str(tmp_path / "marker")), venv, config, tmp_path)
    assert why in error.value.reason
    assert not (tmp_path / "marker").exists()


def test_a_host_named_localhost_is_a_host(venv: Path, config: Path, tmp_path: Path) -> None:
    """Only what kolla-ansible delegates to localhost by this name concerns the machine that it runs on."""
    on_host = "delegate_to: \"{{ groups['control'][0] }}\""
    task = f"command: podman exec keystone true\n      {on_host}"
    stats = (
        f"stat: {{path: /etc}}\n      register: {name}\n      {where}"
        for name, where in (("remote", on_host), ("local", "delegate_to: localhost"))
    )
    used = "copy: {dest: /etc/kolla/a, content: '{{ remote.stat.exists }} {{ local.stat.exists }}'}"
    text = "\n    - ".join([task, *stats, used])
    ran, looked, copied = record(text, venv, config, tmp_path)
    assert (ran.module, ran.host, looked.module) == ("command", socket.gethostname(), "stat")
    assert copied.content == b"False True"


def test_an_allowed_computation_runs_without_a_shell(venv: Path, config: Path, tmp_path: Path) -> None:
    task = "ansible.builtin.command: {crontab} -t 4320 -i 0 -n 1\n      delegate_to: localhost"
    content = "{{ (jobs.stdout | from_json).cron_jobs }}"
    used = f"register: jobs\n    - copy: {{dest: /etc/kolla/a, content: '{content}'}}"
    (copied,) = record(f"{task}\n      {used}", venv, config, tmp_path)
    arguments = ("-t", "4320", "-i", "0", "-n", "1")
    wanted = subprocess.run((*crontab(venv), *arguments), capture_output=True, check=True).stdout
    assert json.loads(copied.content or b"") == json.loads(wanted)["cron_jobs"]


def test_a_name_that_is_no_text_is_named(venv: Path, config: Path, tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / os.fsdecode(b"caf\xe9.conf")).touch()
    with pytest.raises(
        CannotRecord, match=r"copy of .*: '/etc/kolla/a/caf\\udce9.conf' is not UTF-8: rename it"
    ):
        record(f"copy: {{src: {tmp_path}/copied/, dest: /etc/kolla/a/}}", venv, config, tmp_path)


def test_in_an_upgrade_volumes_exist(venv: Path, config: Path, tmp_path: Path) -> None:
    """Otherwise kolla-ansible would bootstrap MariaDB."""
    task = "kolla_container: {action: create_volume, name: mariadb}\n      register: volume"
    used = "- copy: {dest: /etc/kolla/a, content: '{{ volume is changed }}'}"
    _, copied = record(f"{task}\n    {used}", venv, config, tmp_path, "upgrade")
    assert copied.content == b"false"


FILTER = """
import json, sys
from kolla_ansible.kolla_address import kolla_address
for name, values in json.loads(sys.argv[1]).items():
    host = {"api_interface": name, "api_address_family": "ipv4", "ansible_facts": values}
    print(kolla_address({"inventory_hostname": "ctl-1", "hostvars": {"ctl-1": host}}, "api"))
"""


def test_kolla_ansible_finds_the_address_of_each_interface_in_a_file_of_facts(
    venv: Path, tmp_path: Path
) -> None:
    hosts: dict[str, object] = {}
    for interface in ("eth0", "bond0.100", "br-ex", "br-ex.7", "bond_0"):
        host = f"hosts: {{ctl-1: {{address: 192.0.2.11, interface: {interface}, cpus: 4, memory: 8192}}}}\n"
        (tmp_path / "facts.yml").write_text(host)
        hosts[interface] = facts.read(tmp_path / "facts.yml", ["ctl-1"])["ctl-1"].values
    command = (venv / "bin/python", "-c", FILTER, json.dumps(hosts))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["192.0.2.11"] * len(hosts)


def test_a_host_from_which_one_only_deploys_has_no_services(venv: Path, tmp_path: Path) -> None:
    """kolla-ansible's multinode has localhost in `deployment`, and so in `bifrost`."""
    found = recording.find_environment(None, venv)
    multinode = found.playbooks / "inventory" / "multinode"
    assert list(recording.inventory(found, multinode, tmp_path)) == list(sites.INVENTORIES["multinode"])
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts").write_text("[deployment]\nctl-1\n[control]\nctl-1\nctl-2\n")
    assert list(recording.inventory(found, tmp_path / "inventory", tmp_path)) == ["ctl-1", "ctl-2"]


def test_an_inventory_that_ansible_understands_in_part_is_refused(venv: Path, tmp_path: Path) -> None:
    """Ansible itself would only warn, and leave out the hosts of this file."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "good").write_text("[control]\nctl-1\n")
    (tmp_path / "inventory" / "bad").write_text("[compute\ncmp-1\n")
    with pytest.raises(BadUsage, match=r"(?s)inventory can't be read: .*bad"):
        recording.inventory(recording.find_environment(None, venv), tmp_path / "inventory", tmp_path)


def crontab(venv: Path) -> tuple[str, str]:
    """The computation that kolla-ansible runs on localhost."""
    role = venv / "share" / "kolla-ansible" / "ansible" / "roles" / "keystone"
    return str(venv / "bin" / "python"), str(role / "files" / "fernet_rotate_cron_generator.py")


def record(task: str, venv: Path, config: Path, place: Path, action: str = "deploy") -> Sequence[Task]:
    """Record a playbook of one task."""
    source, directory = place / "source", place / "recording"
    (source / "action_plugins").mkdir(parents=True)
    directory.mkdir()
    text = f"- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Do it\n      {task}\n"
    (source / "site.yml").write_text(text.replace("{crontab}", " ".join(crontab(venv))))
    found = recording.Environment(venv, source, "22.2.0")
    request = Request(found, config, config / "inventory", action)
    used = importing.look(request, config / "facts.yml", rules.read()).stand_ins(0)
    with recording.started(request, recording.copy_playbooks(source, directory), directory, used) as running:
        return running.tasks()
