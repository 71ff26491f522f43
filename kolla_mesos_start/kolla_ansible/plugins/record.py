"""The action of every module that would touch a host: writes what was asked for, and answers.

Ansible runs this file, under the name of each module in turn (`playbooks`). It imports nothing from the
package. Only files that the operator has on this machine are read, because kolla-ansible merges them.
"""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

# A directory with answers.json. `trace` is written into it.
DIRECTORY = os.environ.get("KOLLA_MESOS_RECORD", "")
# What `playbooks` writes in place of `delegate_to: localhost`: a host of the inventory may have that name.
THIS_MACHINE = "this machine"
# mount_setattr for all mounts: MOUNT_ATTR_RDONLY, NOSUID and NODEV, with AT_RECURSIVE. Without capabilities
# (PR_CAPBSET_DROP) it can't be undone.
READ_ONLY = """\
import ctypes, os, sys
attributes = (ctypes.c_uint64 * 4)(0x1 | 0x2 | 0x4)
libc, size = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t(ctypes.sizeof(attributes))
if libc.syscall(442, -1, b"/", 0x8000, attributes, size):
    why = os.strerror(ctypes.get_errno())
    sys.exit(f"the file systems can't be made read-only for it: {why}: it needs Linux 5.12, or root")
for capability in range(64):
    libc.prctl(24, capability)
os.execvp(sys.argv[1], sys.argv[1:])
"""
# The computation gets no network and no devices, and can't write anywhere.
ISOLATED = (
    *("unshare", "--user", "--map-root-user", "--net", "--mount"),
    *(sys.executable, "-I", "-c", READ_ONLY),
)


class ActionModule(ActionBase):
    """Records one task on one host."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp=None, task_vars=None):
        """Write a line, and return the answer."""
        task_vars = task_vars or {}
        # Not the name of the task: `template` and `merge_configs` end in our `copy`.
        module = os.path.splitext(os.path.basename(__file__))[0]
        args = dict(self._task.args)
        delegate = self._task.delegate_to
        if delegate == THIS_MACHINE:
            local = getattr(self, f"_local_{module}", None)
            if local is not None:
                return local(args)
        if module == "setup":
            return self._facts(delegate or task_vars.get("inventory_hostname"))
        contents = self._contents(args) if module == "copy" and not args.get("remote_src") else {}
        args.pop("content", None)
        entry = {
            "host": delegate or task_vars.get("inventory_hostname"),
            "target": task_vars.get("inventory_hostname"),
            "role": self._task._role.get_name() if self._task._role else "",
            "task": self._task.get_name(),
            "place": self._task.get_path() or "",
            "module": module,
            "args": args,
        }
        for dest, data in contents.items() or {None: None}.items():
            file = {} if dest is None else {"dest": dest, "content": base64.b64encode(data).decode()}
            self._write({**entry, **file})
        return self._answer(module, entry["role"], task_vars.get("kolla_action"), args)

    def _facts(self, host):
        with open(os.path.join(DIRECTORY, "facts.json"), encoding="utf-8") as file:
            facts = json.load(file).get(host, {})  # A host without services needs none.
        return {
            "changed": False,
            "ansible_facts": {f"ansible_{name}": value for name, value in facts.items()},
        }

    def _write(self, entry):
        try:
            line = json.dumps(entry, default=str, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError as error:  # The name of a file.
            raise AnsibleError(f"{entry.get('dest') or entry['args']!a} is not UTF-8: rename it") from error
        with open(os.path.join(DIRECTORY, "trace"), "ab") as trace:
            fcntl.flock(trace, fcntl.LOCK_EX)
            trace.write(line)

    def _answer(self, module, role, action, args):
        with open(os.path.join(DIRECTORY, "answers.json"), encoding="utf-8") as file:
            answers = json.load(file)
        for each in answers:
            if _fits(each, module, role, action, args) and self._is_after(each):
                answer = {**each["answer"], **self._for_each_host(each.get("for_each_host"))}
                # Callers such as merge_configs read `invocation`.
                return {"changed": True, "invocation": {"module_args": args}, **answer}
        return {
            "failed": True,
            "msg": f"the module {module} has no answer for this task: the import can't follow it",
        }

    def _is_after(self, row):
        """Whether an earlier task has what the row wants."""
        if "after" not in row:
            return True
        with open(os.path.join(DIRECTORY, "trace"), encoding="utf-8") as trace:
            return any(row["after"] in line for line in trace)

    def _for_each_host(self, rows):
        """Output in JSON with these rows for each host, made of its facts."""
        if not rows:
            return {}
        with open(os.path.join(DIRECTORY, "facts.json"), encoding="utf-8") as file:
            hosts = json.load(file).values()
        filled = [{name: text.format(**host) for name, text in row.items()} for row in rows for host in hosts]
        return {"stdout": json.dumps(filled)}

    def _contents(self, args):
        """The bytes of each file that `copy` would write, by its path."""
        dest = args["dest"]
        if args.get("content") is not None:
            content = args["content"]
            text = content if isinstance(content, str) else json.dumps(content)
            return {dest: text.encode()}
        source = args["src"]
        if not os.path.isabs(source) or not os.path.exists(source):
            source = self._find_needle("files", source)
        if os.path.isdir(source):
            return dict(self._tree(source, dest))
        path = os.path.join(dest, os.path.basename(source)) if dest.endswith("/") else dest
        with open(source, "rb") as file:
            return {path: file.read()}

    def _tree(self, source, dest):
        """As for rsync: a final / copies what is in the directory, and not the directory."""
        top = dest if source.endswith("/") else os.path.join(dest, os.path.basename(source))
        for directory, _, names in sorted(os.walk(source)):
            for name in sorted(names):
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    yield os.path.join(top, os.path.relpath(path, source)), file.read()

    # -- on this machine --------------------------------------------------------------------------

    def _local_stat(self, args):
        path = args["path"]
        found = {"exists": os.path.exists(path), "path": path}
        if found["exists"]:
            found.update(isdir=os.path.isdir(path), isreg=os.path.isfile(path), islnk=os.path.islink(path))
        return {"changed": False, "stat": found}

    def _local_find(self, args):
        paths, patterns = _listed(args.get("paths", args.get("path"))), _listed(args.get("patterns") or "*")
        kind, recurse = args.get("file_type", "file"), _is_true(args.get("recurse"))
        found = []
        for path in paths:
            for directory, directories, names in sorted(os.walk(path)):
                if not recurse:
                    del directories[:]
                wanted = {"file": names, "directory": directories, "any": [*names, *directories]}.get(
                    kind, names
                )
                for name in sorted(wanted):
                    if any(_is_like(name, each, _is_true(args.get("use_regex"))) for each in patterns):
                        whole = os.path.join(directory, name)
                        size = os.path.getsize(whole)
                        found.append({"path": whole, "isdir": os.path.isdir(whole), "size": size})
        return {"changed": False, "files": found, "matched": len(found), "examined": len(found)}

    def _local_command(self, args):
        """A computation without side effects, if answers.yml lists it."""
        text = _command_line(args)
        with open(os.path.join(DIRECTORY, "computations.json"), encoding="utf-8") as file:
            allowed = any(re.fullmatch(each["match"], text) for each in json.load(file))
        if not allowed:
            why = "this command would run on this machine: the import runs none"
            return {"failed": True, "msg": f"{why}. If it makes a file, make it first: {text}"}
        # Without a shell: what follows a `;` would run outside of the namespaces.
        words = [*ISOLATED, *(args.get("argv") or shlex.split(text))]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        failed = {"failed": True, "msg": done.stderr[-500:]} if done.returncode else {}
        return {
            "changed": True,
            "rc": done.returncode,
            "stdout": done.stdout.rstrip("\n"),
            "stdout_lines": done.stdout.splitlines(),
            "stderr": done.stderr,
            **failed,
        }


def _fits(row, module, role, action, args):
    """Whether a row of answers.yml is for this task."""
    if (
        row["module"] != module
        or row.get("role") not in (None, role)
        or row.get("action") not in (None, action)
    ):
        return False
    if module in ("command", "shell"):
        args = {**args, "command": _command_line(args)}
    wanted = row.get("args", {}).items()
    return all(re.fullmatch(pattern, _argument(args, path), re.DOTALL) for path, pattern in wanted)


def _argument(args, path):
    """The text of an argument; empty if the task does not have it."""
    for key in path.split("."):
        args = args.get(key) if isinstance(args, dict) else None
    return "" if args is None else str(args).strip()


def _command_line(args):
    return (args.get("_raw_params") or args.get("cmd") or " ".join(args.get("argv") or ())).strip()


def _listed(value):
    return value.split(",") if isinstance(value, str) else list(value or ())


def _is_true(value):
    return str(value).lower() in ("true", "yes", "1", "on")


def _is_like(name, pattern, is_regex):
    return bool(re.match(pattern, name)) if is_regex else fnmatch.fnmatch(name, pattern)
