"""Runs a copy of kolla-ansible's playbooks, in which the recorder takes the place of every module.

Ansible prefers an action beside the playbooks to a module of the same short name. So the names of collections
are removed from the heads of tasks, and the recorder is there under each name of answers.yml. What only
ansible itself executes (variables, includes, templates) stays. What kolla-ansible delegates to localhost, the
machine that it runs on, is delegated to another name, because a host of the inventory may be localhost, too.

Ansible is a process of its own, with its own directories and without the operator's ansible.cfg.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import psutil

from kolla_mesos_start.ctl.directory import formats
from kolla_mesos_start.errors import AgentError, BadUsage, CannotWrite
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns

PLAYBOOK = "site.yml"
SHARE = ("share", "kolla-ansible")
INSTALL = "pip install 'kolla-ansible==22.*' ansible-core ansible"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with ansible-core, and the directory of playbooks with `site.yml`.

    `release` is kolla-ansible's version, such as 22.2.0; empty for a checkout.
    """

    prefix: Path
    playbooks: Path
    release: str

    def program(self, name: str) -> Path:
        """The path of one of ansible's programs."""
        return self.prefix / "bin" / name


def find_environment(share: Path | None, ansible: Path | None) -> Environment:
    """The environment that the command line names, by default the one that this program runs in.

    Raises BadUsage if a part of it is missing.
    """
    prefix = (ansible or Path(sys.prefix)).absolute()
    program = prefix / "bin" / "ansible-playbook"
    if not program.exists():
        raise BadUsage(
            f"{program} does not exist: install the tool with its extra `import`, or give --ansible VENV,"
            f" where you ran: {INSTALL}"
        )
    top = (share or prefix.joinpath(*SHARE)).absolute()
    for playbooks in (top / "ansible", top):
        if (playbooks / PLAYBOOK).is_file():
            # An installed one is PREFIX/share/kolla-ansible.
            return Environment(prefix, playbooks, _release(top.parent.parent))
    raise BadUsage(f"{top} has no ansible/{PLAYBOOK}: give SHARE, an installed kolla-ansible or a checkout")


def _release(prefix: Path) -> str:
    for found in sorted(prefix.glob("lib/python3*/site-packages/kolla_ansible-*.dist-info")):
        version = re.fullmatch(r"kolla_ansible-(.*)\.dist-info", found.name)
        if version:
            return version[1]
    return ""


PLUGINS = Path(__file__).with_name("plugins")
ANSWERS, COMPUTATIONS = "answers.json", "computations.json"
# Heads of tasks: `- ansible.builtin.command:`. The rest of the line may hold arguments.
LOCAL = re.compile(r"^(\s*delegate_to: *)([\"']?)localhost\2 *$", re.MULTILINE)
COLLECTIONS = r"(?:ansible\.(?:builtin|posix|legacy)|community\.\w+|containers\.podman)"


def copy_playbooks(source: Path, into: Path) -> Path:
    """Copy the playbooks, and return the copy. `into` also gets the tables that the recorder reads."""
    table = formats.document((PLUGINS / "answers.yml").read_bytes())
    assert isinstance(table, dict)
    answers: Sequence[Mapping[str, Any]] = table["answers"]
    names = sorted({str(each["module"]) for each in answers})
    (into / ANSWERS).write_text(json.dumps(answers), encoding="utf-8")
    (into / COMPUTATIONS).write_text(json.dumps(table["computations"]), encoding="utf-8")
    copied = into / "playbooks"
    try:
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("library", "releasenotes", "*.pyc"))
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise CannotWrite(f"{path} can't be copied: {why}") from error
    heads = re.compile(rf"^(\s*(?:- )?){COLLECTIONS}\.({'|'.join(names)}):", re.MULTILINE)
    for file in copied.rglob("*.yml"):
        text = file.read_text(encoding="utf-8")
        short = LOCAL.sub(r"\1this machine", heads.sub(r"\1\2:", text))
        if short != text:
            file.write_text(short, encoding="utf-8")
    for name in names:
        shutil.copyfile(PLUGINS / "record.py", copied / "action_plugins" / f"{name}.py")
    for name, kind in (("refuse", "connection"), ("progress", "callback")):
        folder = copied / f"{kind}_plugins"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(PLUGINS / f"{name}.py", folder / f"{name}.py")
    return copied


KILL_TIMEOUT = 5.0  # seconds
SETTINGS = """\
[inventory]
any_unparsed_is_failed = True
[defaults]
home = {home}
local_tmp = {home}/tmp
"""
SETTINGS_OF_A_RECORDING = """\
gathering = explicit
stdout_callback = progress
callback_plugins = {playbooks}/callback_plugins
connection_plugins = {playbooks}/connection_plugins
retry_files_enabled = False
forks = {forks}
localhost_warning = False
"""
# Where the recorded files are, whatever the operator's directory is: no container sees it.
CONFIG_DIRECTORY = "/etc/kolla"
WITHOUT_SERVICES = {"_meta", "all", "ungrouped", "deployment", "bifrost"}  # groups of an inventory
Progress = Callable[[str], None]


class CannotRecord(AgentError):
    """kolla-ansible's playbooks failed, or did what the import does not record."""

    status = 65


@dataclass(frozen=True)
class Request:
    """What to record: the operator's configuration, and the action and tags of kolla-ansible."""

    environment: Environment
    config: Path
    inventory: Path
    action: str
    tags: str | None = None


@dataclass(frozen=True)
class Task:
    """One task on one host, in the recorded order. `dest` and `content` are those of a file that it writes.

    `host` is where it would run, and `target` the host for which it does so. `place` is the file and the line
    of the task, below the playbooks.
    """

    number: int
    host: str
    target: str
    role: str
    name: str
    place: str
    module: str
    args: Mapping[str, Any]
    dest: str | None
    content: bytes | None


@dataclass(frozen=True)
class Recording:
    """A run of ansible-playbook, whose output goes to a pipe or to `said` in the directory.

    `names` are those of the hosts in the deployment, by those of the inventory.
    """

    process: subprocess.Popen[str]
    directory: Path
    names: Mapping[str, str]

    def tasks(self, progress: Progress = lambda play: None) -> Sequence[Task]:
        """Wait for its end. Raises CannotRecord with the module and the task that failed."""
        failures: list[Mapping[str, str]] = []
        for said in self._said():
            if "failed" in said:
                failures.append(said["failed"])
            elif failures:  # The next play: it would go on for minutes with the other hosts.
                break
            elif "play" in said:
                progress(said["play"])
        if failures:
            raise CannotRecord("; ".join(map(shown, failures)))
        status = self.process.wait()
        if status:
            last = (self.directory / "stderr").read_text(encoding="utf-8", errors="replace").strip()
            raise CannotRecord(f"ansible-playbook ended with status {status}: {last[-1500:]}")
        return ordered(read(self.directory / "trace", self.names), list(self.names.values()))

    def _said(self) -> Iterator[Mapping[str, Any]]:
        """What the callback says; other lines are ansible's own warnings."""
        lines: Iterable[str] = self.process.stdout or ()
        if self.process.stdout is None:
            self.process.wait()
            lines = (self.directory / "said").read_text(encoding="utf-8").splitlines()
        return (json.loads(line) for line in lines if line.startswith("{"))


@contextmanager
def started(
    request: Request, playbooks: Path, directory: Path, stand_ins: StandIns, *, is_silent: bool = False
) -> Iterator[Recording]:
    """Start one recording, which is killed at the end of the block if it still runs.

    `directory` has the recorder's tables, and gets its trace. A recording beside another one is silent: its
    pipe would be full while that of the other is read.
    """
    home = directory / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    settings = SETTINGS.format(home=home) + SETTINGS_OF_A_RECORDING.format(
        playbooks=playbooks, forks=min(len(stand_ins.facts), 5)
    )
    (directory / "ansible.cfg").write_text(settings, encoding="utf-8")
    _write(directory / "passwords.json", stand_ins.passwords)
    _write(directory / "facts.json", {each.host: each.values for each in stand_ins.facts.values()})
    forced = {
        "kolla_action": request.action,
        "CONFIG_DIR": str(request.config),
        "node_config_directory": CONFIG_DIRECTORY,
        "ansible_connection": "refuse",
        "ansible_become": False,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    _write(directory / "overrides.json", {**stand_ins.overrides, **forced})
    with (directory / "said").open("wb") as said, (directory / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            _command(request, playbooks, directory),
            cwd=playbooks,
            env=_environ(request.environment, directory),
            stdin=subprocess.DEVNULL,
            stdout=said if is_silent else subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C on the terminal is for the tool, which kills it.
        )
    with process:
        try:
            names = {each.host: name for name, each in stand_ins.facts.items()}
            yield Recording(process, directory, names)
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill ansible and its workers, which are in sessions of their own, and wait until they are gone.

    Otherwise a worker would still write to a directory that is being removed. In a container whose process 1
    does not reap, workers stay zombies for ever, so the wait has a limit.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)  # It starts no further worker.
        workers = psutil.Process(process.pid).children(recursive=True)
        for each in workers:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        psutil.wait_procs(workers, timeout=KILL_TIMEOUT)


def ordered(tasks: Iterable[Task], hosts: Sequence[str]) -> Sequence[Task]:
    """The tasks in the same order in each recording: ansible runs a task on all hosts side by side."""
    places = {host: number for number, host in enumerate(hosts)}
    found: list[Task] = []
    for _, together in itertools.groupby(tasks, key=lambda task: task.place):
        found += sorted(together, key=lambda task: places.get(task.target, len(places)))
    return [replace(task, number=number) for number, task in enumerate(found)]


def inventory(environment: Environment, path: Path, directory: Path) -> Mapping[str, Mapping[str, Any]]:
    """The hosts of an inventory with their variables, as ansible reads them.

    Those from which kolla-ansible only deploys are left out.

    Raises BadUsage if it can't be read, or has no hosts.
    """
    if not path.exists():
        raise BadUsage(f"the inventory {path} does not exist")
    (directory / "ansible.cfg").write_text(SETTINGS.format(home=directory / "home"), encoding="utf-8")
    done = subprocess.run(
        (str(environment.program("ansible-inventory")), "-i", str(path), "--list"),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=_environ(environment, directory),
    )
    if done.returncode:
        raise BadUsage(f"the inventory {path} can't be read: {done.stderr.strip()[-1000:]}")
    groups = json.loads(done.stdout)
    used = {host for name in groups.keys() - WITHOUT_SERVICES for host in _members(groups, name)}
    only_deploy = {host for host in _members(groups, "deployment") if host not in used}
    hosts = [host for host in _members(groups, "all") if host not in only_deploy]
    if not hosts:
        raise BadUsage(f"the inventory {path} has no hosts for services")
    variables = groups.get("_meta", {}).get("hostvars", {})
    return {host: variables.get(host, {}) for host in hosts}


def read(trace: Path, names: Mapping[str, str]) -> Iterator[Task]:
    """The recorded tasks, in their order."""
    if not trace.exists():
        return
    with trace.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            entry = json.loads(line)
            content, args = entry.get("content"), entry["args"]
            if content is not None and "src" in args:
                args["src"] = os.path.basename(args["src"])  # Templates come from a temporary file.
            yield Task(
                number,
                names.get(entry["host"], entry["host"]),
                names.get(entry["target"], entry["target"]),
                entry["role"],
                entry["task"],
                entry["place"].partition("/playbooks/")[2],
                entry["module"],
                args,
                entry.get("dest"),
                None if content is None else base64.b64decode(content),
            )


def _members(groups: Mapping[str, Any], name: str) -> list[str]:
    group = groups.get(name, {})
    found = dict.fromkeys(group.get("hosts", ()))
    for child in group.get("children", ()):
        found.update(dict.fromkeys(_members(groups, child)))
    return list(found)


def _command(request: Request, playbooks: Path, directory: Path) -> Sequence[str]:
    config = request.config
    values = [
        config / "globals.yml",
        directory / "passwords.json",
        *globals_files(config),
        directory / "overrides.json",
    ]
    return (
        str(request.environment.program("ansible-playbook")),
        *("-i", str(request.inventory.absolute())),
        *(part for file in values for part in ("-e", f"@{file}")),
        *(("--tags", request.tags) if request.tags else ()),
        str(playbooks / PLAYBOOK),
    )


def globals_files(config: Path) -> Sequence[Path]:
    """The files of globals.d, in the order in which kolla-ansible reads them."""
    folder = config / "globals.d"
    return (
        sorted(
            path for path in folder.iterdir() if path.suffix in (".yml", ".yaml", ".json") and path.is_file()
        )
        if folder.is_dir()
        else []
    )


def _environ(environment: Environment, directory: Path) -> Mapping[str, str]:
    """Nothing of the operator's own environment changes what is recorded."""
    kept = {
        name: os.environ[name]
        for name in ("ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_VAULT_PASSWORD_FILE")
        if name in os.environ
    }
    return {
        **kept,
        "PATH": f"{environment.prefix / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "home" / "tmp"),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(directory / "ansible.cfg"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PBR_VERSION": environment.release or "22.0.0",
        "KOLLA_MESOS_RECORD": str(directory),
    }


def _write(path: Path, content: object) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        json.dump(content, file)


def shown(failure: Mapping[str, str]) -> str:
    """A failure in one line: the module, the task and its place, the host and the reason."""
    place = failure["place"].partition("/playbooks/")[2] or failure["place"]
    what = f"{failure['module']} of the task {failure['task']!r} ({place})"
    return f"{what} on {failure['host']}: {failure['message']}"
