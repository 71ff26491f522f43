"""`kolla_mesos_ctl import`: what it refuses before the recording, which takes minutes, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.commands.importing import CannotImport
from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.kolla_ansible import recording
from tests import CHECKOUT
from tests.kolla_ansible import fake_ansible
from tests.kolla_ansible.fake_ansible import FACTS
from tests.support.waiting import eventually

TOOL = (sys.executable, str(CHECKOUT / "bin" / "kolla_mesos_ctl"))


def test_another_directory_is_refused_before_anything_else(tmp_path: Path) -> None:
    words = fake_ansible.make(tmp_path, inventory="exit 1")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/letter").touch()
    with pytest.raises(BadUsage, match="is not empty"):
        cli.run(words)


@pytest.mark.parametrize("agent", ["An image", "/srv/../agent", ""])
def test_what_is_no_agent_is_refused_before_the_recording(agent: str, tmp_path: Path) -> None:
    words = fake_ansible.make(tmp_path, inventory="exit 1")
    with pytest.raises(
        BadUsage, match=r"--agent .*: expected the name of an image, or the path of a directory"
    ):
        cli.run([*words, "--agent", agent])


def test_a_failure_on_one_host_ends_the_import_before_the_next_play(tmp_path: Path) -> None:
    """Ansible goes on with the other hosts, for minutes."""
    failed = (
        '{"failed": {"host": "ctl-1", "task": "a", "module": "copy", "place": "", "message": "no such file"}}'
    )
    play = f"""echo '{failed}'; echo '{{"play": "the next"}}'; exec sleep 600"""
    with pytest.raises(recording.CannotRecord, match="on ctl-1: no such file"):
        cli.run(fake_ansible.make(tmp_path, playbook=play))


def test_the_network_of_a_host_is_checked_before_the_recording(tmp_path: Path) -> None:
    """globals.yml replaces what the inventory says."""
    hosts = '{"all": {"hosts": ["ctl-1"]}, "_meta": {"hostvars": {"ctl-1": {"network_interface": "eth1"}}}}'
    words = fake_ansible.make(tmp_path, inventory=f"echo '{hosts}'", playbook="exit 1")
    with pytest.raises(BadUsage, match="ctl-1: its facts have no IPv4 address of eth1 "):
        cli.run(words)
    (tmp_path / "config/globals.yml").write_text("network_interface: eth0\n")
    with pytest.raises(recording.CannotRecord, match="ansible-playbook ended with status 1"):
        cli.run(words)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_ansible_and_leaves_nothing(signum: signal.Signals, tmp_path: Path) -> None:
    """The temporary directory has the operator's files, perhaps with private keys."""
    (tmp_path / "tmp").mkdir()
    pids = tmp_path / "pids"
    # The workers of ansible are in sessions of their own.
    worker = f"setsid sh -c 'echo $$ >>{pids}; exec sleep 600' &"
    play = """echo '{"play": "both have started"}'"""
    words = fake_ansible.make(tmp_path, playbook=f"{worker} sleep 600 & echo $$ $! >>{pids}; {play}; wait")
    said_by_tool = tmp_path / "said"
    with said_by_tool.open("wb") as said:
        tool = subprocess.Popen(
            (*TOOL, *words), stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        )
    try:
        eventually(lambda: "both have started" in said_by_tool.read_text(), "the tool reads what they say")
        eventually(lambda: len(pids.read_text().split()) == 6, "all processes run")
        tool.send_signal(signum)
        assert tool.wait(timeout=20) == 128 + signum, said_by_tool.read_text()
        eventually(lambda: not any(map(is_running, pids.read_text().split())), "all processes have ended")
    finally:
        for pid in (str(tool.pid), *pids.read_text().split()):
            if is_running(pid):
                os.kill(int(pid), signal.SIGKILL)
        tool.wait()
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "site").exists()


def is_running(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path("/proc", pid, "status").read_text()
    except FileNotFoundError:
        return False


MISTAKES = {
    "no inventory": ("inventory", None, "inventory does not exist"),
    "no globals": ("globals.yml", None, "config/globals.yml does not exist"),
    "no passwords": ("passwords.yml", None, "config/passwords.yml does not exist"),
    "broken globals": ("globals.yml", "a: [", "globals.yml: bad YAML: "),
    "encrypted passwords": (
        "passwords.yml",
        "$ANSIBLE_VAULT;1.1;AES256\n313\n",
        "passwords.yml: ansible-vault has encrypted it: decrypt a copy",
    ),
    "passwords without values": (
        "passwords.yml",
        "docker_registry_password:\na: {b: }\nc: \nd: ''\n",
        "passwords.yml: a_b, c: no value: run kolla-genpwd",
    ),
    "a password in globals.d": (
        "globals.d/a.yml",
        "keystone_admin_password: s3cret\n",
        "a.yml: keystone_admin_password is in .*passwords.yml too: keep it there only",
    ),
    "no facts": ("facts.yml", None, "facts.yml: there is no such file"),
    "facts as a list": ("facts.yml", "- a\n", "facts.yml: expected hosts:"),
    "a number in words": (
        "facts.yml",
        FACTS.replace("4", "many"),
        "ctl-1: cpus: expected a positive number, found 'many'",
    ),
    "no memory": ("facts.yml", FACTS.replace("8192", "0"), "ctl-1: memory: expected a positive number"),
    "a list of interfaces": (
        "facts.yml",
        FACTS.replace("cpus", "interfaces: [eth1], cpus"),
        "ctl-1: interfaces: expected a mapping",
    ),
    "a cache with a list": ("facts.yml/ctl-1", "[]", "ctl-1 is no file of Ansible's cache"),
    "rules as a list": ("own.yml", "- a\n", "own.yml: expected a mapping"),
    "a table that is no list": ("own.yml", "needs: {a: b}\n", "own.yml: needs: expected a list of mappings"),
    "a row without a key": ("own.yml", "needs: [{name: a}]\n", "own.yml: needs, row 1: on is missing"),
    "a row with an unknown key": (
        "own.yml",
        "needs: [{name: a, on: b, reason: c, locl: true}]\n",
        r"own.yml: needs, row 1: unknown key locl \(did you mean 'local'",
    ),
    "a port that is no list": (
        "own.yml",
        "listeners: [{daemon: redis, ports: 6379}]\n",
        "own.yml: listeners, row 1: ports: expected a list of numbers",
    ),
    "a bad pattern": (
        "own.yml",
        "ignored: [{daemon: '*', reason: a}]\n",
        "own.yml: ignored, row 1: daemon: expected a regular expression, found '\\*'",
    ),
    "a bad pattern of keys": ("own.yml", "hard: '['\n", "own.yml: hard: expected a regular expression"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file_of_the_operator_is_named(name: str, tmp_path: Path) -> None:
    path, content, why = MISTAKES[name]
    words = fake_ansible.make(tmp_path)
    file = tmp_path / "config" / path
    if file.parent.is_file():
        file.parent.unlink()
    file.parent.mkdir(exist_ok=True)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    rules = ["--overrides", str(file)] if path == "own.yml" else []
    with pytest.raises(BadUsage, match=why):
        cli.run([*words, *rules])


@pytest.mark.parametrize(
    "said, why",
    [
        ("echo '{}'", "inventory has no hosts for services"),
        ("echo broken >&2; exit 1", "inventory can't be read: broken"),
    ],
)
def test_an_inventory_without_hosts_is_refused(said: str, why: str, tmp_path: Path) -> None:
    """Otherwise the import of nothing would remove all services of an earlier one."""
    with pytest.raises(BadUsage, match=why):
        cli.run(fake_ansible.make(tmp_path, inventory=said))


def test_an_import_of_nothing_is_refused(tmp_path: Path) -> None:
    """Such as one with a misspelt tag: it would remove all services of an earlier import."""
    with pytest.raises(CannotImport, match="no container was recorded: correct --tags memcahed"):
        cli.run([*fake_ansible.make(tmp_path), "--tags", "memcahed"])
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("where", ["venv/share/kolla-ansible", "other/share/kolla-ansible", "checkout"])
def test_the_release_is_that_of_the_playbooks(where: str, tmp_path: Path) -> None:
    fake_ansible.make(tmp_path)
    playbooks = tmp_path / where / "ansible"
    playbooks.mkdir(parents=True, exist_ok=True)
    (playbooks / "site.yml").touch()
    for prefix, release in (("venv", "22.2.0"), ("other", "21.3.0")):
        (tmp_path / prefix / f"lib/python3.11/site-packages/kolla_ansible-{release}.dist-info").mkdir(
            parents=True
        )
    found = recording.find_environment(tmp_path / where, tmp_path / "venv")
    releases = {"venv": "22.2.0", "other": "21.3.0", "checkout": ""}
    assert found.release == releases[where.partition("/")[0]]


def test_playbooks_that_cannot_be_copied_are_named(tmp_path: Path) -> None:
    words = fake_ansible.make(tmp_path)
    (tmp_path / "venv/share/kolla-ansible/ansible/broken").symlink_to("absent")
    with pytest.raises(CannotWrite, match=r"broken.* No such file"):
        cli.run(words)
