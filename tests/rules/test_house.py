"""The rules of the house that no single module can keep: who imports what, and what a start may cost."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from kolla_mesos_start.ctl.cli import SUBCOMMANDS
from tests.support.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kolla_mesos_start"
TOOLS = ("kolla_mesos_start.ctl", "kolla_mesos_start.kolla_ansible")
CTL, IMPORTER = PACKAGE / "ctl", PACKAGE / "kolla_ansible"
OPERATOR = sorted([*CTL.rglob("*.py"), *IMPORTER.rglob("*.py")])
AGENT = [path for path in sorted(PACKAGE.rglob("*.py")) if path not in OPERATOR]
NEEDED = {"kazoo", "jinja2", "psutil", "retrying", "six"}
# What the operator's tools may have of the agent: what is pure, its log, and its client of ZooKeeper. The
# stages are for a process that execs.
SHARED = (
    "kolla_mesos_start.addresses",
    "kolla_mesos_start.definition",
    "kolla_mesos_start.election.decide",
    "kolla_mesos_start.election.records",
    "kolla_mesos_start.election.records",
    "kolla_mesos_start.election.words",
    "kolla_mesos_start.errors",
    "kolla_mesos_start.files.permissions",
    "kolla_mesos_start.files.paths",
    "kolla_mesos_start.identities",
    "kolla_mesos_start.log",
    "kolla_mesos_start.loop",
    *TOOLS,
    "kolla_mesos_start.processes",
    "kolla_mesos_start.report",
    "kolla_mesos_start.render.context",
    "kolla_mesos_start.render.sandbox",
    "kolla_mesos_start.render.variables_dir",
    "kolla_mesos_start.settings",
    "kolla_mesos_start.tree.codec",
    "kolla_mesos_start.tree.states",
    "kolla_mesos_start.tree.znodes",
    "kolla_mesos_start.zookeeper",
)
# What a start must not pay for. Who needs one imports it when it does.
COSTLY = {
    *("jinja2", "psutil", "yaml", "six", "retrying", "ctypes", "ssl", "http", "tempfile", "argparse"),
    *("dataclasses", "uuid", "subprocess", "asyncio", "multiprocessing", "concurrent", "difflib", "email"),
    *("urllib.request", "xml", "sqlite3", "unittest", "hashlib", "shlex", "shutil", "inspect", "ast"),
    *("threading", "queue", "logging", "traceback", "datetime", "decimal", "pathlib"),
}
# What only templates need: `sandbox` imports it, and is itself imported for a template only.
JINJA2 = {"jinja2", "threading", "inspect", "ast"}
ALLOWED = {
    "kolla_mesos_start.zookeeper.tls": {"ssl"},  # itself imported where TLS is used
    "kolla_mesos_start.render.sandbox": JINJA2,
}
# What a process of one thread has no use for, anywhere in it: a fork would leave the other threads' locks
# taken, a handler of `logging` blocks while nobody reads, and kazoo's client runs on threads.
NEVER = (
    "threading",
    "_thread",
    "queue",
    "concurrent",
    "asyncio",
    "multiprocessing",
    "logging",
    "kazoo.client",
)
# The parts of kazoo that the agent's own session is made of.
KAZOO_PARTS = ("kazoo.exceptions", "kazoo.protocol.serialization", "kazoo.security")
# A probe runs every few seconds, a guard beside every command, a registrar in every container for months.
NO_TYPES = {"json", "typing", "six", "random"}
LEAN = {
    "kolla_mesos_start.health": {*NO_TYPES, "re", "collections", "contextlib", "kazoo", "socket"},
    "kolla_mesos_start.__main__": {*NO_TYPES, "re", "collections", "contextlib", "kazoo", "socket"},
    "kolla_mesos_start.log": {*NO_TYPES, "re", "collections", "contextlib", "kazoo", "socket"},
    "kolla_mesos_start.loop": {*NO_TYPES, "re", "contextlib", "kazoo", "socket"},
    "kolla_mesos_start.commands.guard": {*NO_TYPES, "re", "kazoo", "socket"},
    "kolla_mesos_start.zookeeper.connect": {*NO_TYPES, "kazoo"},
    "kolla_mesos_start.zookeeper.session": NO_TYPES,
    "kolla_mesos_start.zookeeper.ephemerals": NO_TYPES,
    "kolla_mesos_start.tree.presence": NO_TYPES,
    "kolla_mesos_start.daemon.registrar": {"json", "six", "random", "kolla_mesos_start.daemon.drain"},
    "kolla_mesos_start.daemon.supervise": {"json", "six", "random", "kolla_mesos_start.daemon.drain"},
}
# What decides is apart from what does: the same input has the same output.
DECIDE = (
    *(
        "definition/*",
        "election/decide",
        "election/records",
        "election/words",
        "zookeeper/view",
        "tree/znodes",
        "tree/states",
        "render/context",
        "commands/lease",
        "wait/judge",
    ),
    *(
        "ctl/directory/acl",
        "ctl/live/*cause*",
        "ctl/live/definitions",
        "ctl/live/model",
        "ctl/live/reader",
        "ctl/live/unread",
        "ctl/timeline/report",
        "ctl/timeline/critical_path",
        "ctl/directory/launch",
        "ctl/directory/container_settings",
        "ctl/directory/pod_template",
        "ctl/manifests/model",
        "ctl/manifests/kubernetes",
        "ctl/manifests/marathon",
        "ctl/manifests/per_host",
        "ctl/manifests/quadlet",
        "ctl/manifests/compose",
    ),
)
# The folders and modules of the operator's tool, lowest first: each imports only those before it.
LAYERS = (
    *("text", "directory", "zk", "invocation", "subcommand", "validate", "live", "timeline"),
    *("manifests", "kolla_ansible", "up", "commands", "cli"),
)
EFFECTS = {
    "os",
    "io",
    "time",
    "socket",
    "subprocess",
    "threading",
    "signal",
    "pathlib",
    "random",
    "kazoo",
    "psutil",
}


def module_name(path: Path) -> str:
    """As it is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def tool_component(name: str) -> str:
    """The folder or module of the operator's tool that a module belongs to; empty for any other module."""
    _, folder, *below = f"{name}..".split(".")
    return folder if folder == "kolla_ansible" else below[0] if folder == "ctl" else ""


def is_third_party(name: str) -> bool:
    """Whether a top-level module is neither ours nor Python's own."""
    spec = find_spec(name)
    return spec is None or (spec.origin is not None and "site-packages" in spec.origin)


def loaded_by(statement: str) -> set[str]:
    """The modules that are there after a statement, in a Python of its own."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def component(name: str) -> str:
    """The module or folder of our package that has a module: the tool and its importer are one."""
    found = name.split(".")[1] if name.startswith("kolla_mesos_start.") else ""
    return "ctl" if found == "kolla_ansible" else found


def components() -> dict[str, set[str]]:
    """Each component at the top level of the package, and the others that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = component(f"{module_name(path)}.")
        names = {component(name) for name in imported(path)}
        found.setdefault(own, set()).update(names - {own, ""})
    return found


def cycles(edges: dict[str, set[str]]) -> set[str]:
    """The components that import themselves through others."""
    left = dict(edges)
    while True:
        free = {name for name, others in left.items() if not others & left.keys()}
        if not free:
            break
        left = {name: others for name, others in left.items() if name not in free}
    # What only imports a cycle is not part of it.
    while True:
        free = left.keys() - {other for others in left.values() for other in others}
        if not free:
            return set(left)
        left = {name: others for name, others in left.items() if name not in free}


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """What a bare Python has loaded."""
    return loaded_by("pass")


@pytest.fixture(scope="module")
def kazoo() -> set[str]:
    """What the parts of kazoo bring that the agent is made of."""
    return loaded_by(f"import {', '.join(KAZOO_PARTS)}")


def test_components_do_not_import_each_other_in_a_circle() -> None:
    """Imports for the type checker count, too."""
    assert cycles(components()) == set()


@pytest.mark.parametrize("path", sorted((PACKAGE / "definition").glob("*.py")), ids=module_name)
def test_the_definition_imports_nothing_but_records_and_errors(path: Path) -> None:
    """It is pure; `test_what_decides_has_no_effects` forbids modules with effects."""
    assert {component(name) for name in imported(path)} <= {"", "definition", "errors", "records"}


@pytest.mark.parametrize("path", [*AGENT, ROOT / "bin" / "kolla_mesos_start"], ids=lambda path: path.name)
def test_the_agent_never_imports_the_operators_tools(path: Path) -> None:
    """They may need packages that no container has."""
    assert not [name for name in imported(path) if name.startswith((".", *TOOLS))]


@pytest.mark.parametrize("path", [*OPERATOR, ROOT / "bin" / "kolla_mesos_ctl"], ids=lambda path: path.name)
def test_the_operators_tools_have_nothing_of_the_agents_stages(path: Path) -> None:
    """Only what is pure, the client of ZooKeeper, and the version."""
    ours = {name for name in imported(path) if name.startswith((".", "kolla_mesos_start."))}
    shared = {name for name in ours if f"{name}.".startswith(tuple(f"{each}." for each in SHARED))}
    packages = {each.rpartition(".")[0] for each in SHARED}
    assert ours - shared - packages <= {"kolla_mesos_start.__version__"}


@pytest.mark.parametrize("path", OPERATOR, ids=module_name)
def test_the_operators_folders_import_only_lower_ones(path: Path) -> None:
    """The order in which the package's docstring lists them; no command imports another one."""
    own = tool_component(module_name(path))
    lower = LAYERS[: LAYERS.index(own)] if own else ()
    # The command line lists commands by name, and imports the one that is used.
    allowed = {*lower, own} - {"commands"}
    found = {tool_component(name): name for name in imported(path)}
    assert not [name for folder, name in found.items() if folder and folder not in allowed]


def test_every_folder_of_the_operator_has_its_place() -> None:
    """One that is new needs a place in the order, and in the package's docstring."""
    names = {path.stem for path in CTL.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names - {"__init__", "__pycache__"} == set(LAYERS) - {"kolla_ansible"}
    listed = re.findall(r"^    (\w+)  ", (CTL / "__init__.py").read_text(), re.MULTILINE)
    assert tuple(listed) == LAYERS


@pytest.mark.parametrize("folder", [*filter(Path.is_dir, sorted(CTL.iterdir())), IMPORTER], ids=str)
def test_the_modules_of_a_folder_import_each_other_in_one_direction(folder: Path) -> None:
    """A cycle would make them one module."""
    modules = {module_name(path): set(imported(path)) for path in folder.glob("*.py")}
    TopologicalSorter({name: names & modules.keys() - {name} for name, names in modules.items()}).prepare()


# The deployment directory gives these znodes their ACL.
READS_CONTAINERS = {"zk/containers", "directory/acl"}
CONTAINERS_ZNODES = re.compile(
    r"""\.(containers|party)["']|/ready["']|\.party\(|\bBY_AGENTS\b|znodes\.containers|\)\.ready\b|\bat\.ready\b"""
)


@pytest.mark.parametrize("path", OPERATOR, ids=module_name)
def test_one_module_of_the_operator_reads_what_containers_write_while_they_exist(path: Path) -> None:
    """The znodes in `.containers`, `.party` and `ready`."""
    name = path.relative_to(CTL if CTL in path.parents else PACKAGE).with_suffix("").as_posix()
    found = CONTAINERS_ZNODES.search(path.read_text(encoding="utf-8"))
    assert (found is not None) == (name in READS_CONTAINERS), found


def test_a_container_needs_five_packages_and_no_other() -> None:
    """Each of them is used, is said in setup.py, and nothing else is imported."""
    names = {name.split(".")[0] for path in AGENT for name in imported(path)}
    assert set(filter(is_third_party, names)) == NEEDED - {"psutil"}  # Only the operator's tool uses it.
    said = re.search(r"install_requires=\[(.*?)\]", (ROOT / "setup.py").read_text(), re.DOTALL)
    assert said is not None
    assert set(re.findall(r'"([a-z0-9]+)', said[1])) == NEEDED


@pytest.mark.parametrize("path", AGENT, ids=module_name)
def test_no_module_of_the_agent_can_start_a_thread(path: Path) -> None:
    """Wherever in it the import stands."""
    never = tuple(f"{name}." for name in NEVER)
    assert not [name for name in imported(path) if f"{name}.".startswith(never)]


@pytest.mark.parametrize("path", AGENT, ids=module_name)
def test_importing_a_module_costs_nothing_heavy(path: Path, bare: set[str], kazoo: set[str]) -> None:
    """Every container pays for every import at each start."""
    name = module_name(path)
    loaded = loaded_by(f"import {name}") - bare
    assert (loaded - kazoo) & COSTLY <= ALLOWED.get(name, set())
    assert {module for module in loaded if module.startswith("kazoo")} <= kazoo


def test_the_parts_of_kazoo_are_the_light_ones(bare: set[str], kazoo: set[str]) -> None:
    """What they bring is no excuse for more: of what is costly only hashlib, for kazoo.security."""
    assert (kazoo - bare) & COSTLY == {"hashlib"}
    assert "kazoo.client" not in kazoo


@pytest.mark.parametrize("name", LEAN)
def test_what_runs_often_or_for_long_is_lean(name: str, bare: set[str], kazoo: set[str]) -> None:
    """What they import besides is small, and written in C."""
    loaded = loaded_by(f"import {name}") - bare
    assert not loaded & LEAN[name]
    assert not (loaded - kazoo) & COSTLY


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--version", set()),
        ("--help", set()),
        ("schema --help", {"publish"}),
        ("graph --help", {"explain"}),
    ],
)
def test_help_imports_the_module_of_its_command_only(line: str, expected: set[str]) -> None:
    """All of them, with kazoo, jinja2, rich and the rest, take a quarter of a second."""
    statement = f"""
import sys
from contextlib import redirect_stdout, suppress
from kolla_mesos_start.ctl.cli import parser
with redirect_stdout(None), suppress(SystemExit):
    parser().parse_args({line.split()})
"""
    loaded = loaded_by(statement)
    if not expected:
        assert not loaded & {"kazoo", "jinja2", "rich", "shtab", "yaml", "psutil", "difflib"}
    commands = {listed.at.partition(".")[0] for listed in SUBCOMMANDS}
    named = {name for name in commands if f"kolla_mesos_start.ctl.commands.{name}" in loaded}
    assert named == expected


def test_a_daemon_without_an_election_does_not_pay_for_them() -> None:
    """Nothing of it is imported where the stages and the registrar are."""
    modules = (
        "agent",
        "daemon.launch",
        "daemon.supervise",
        "wait.waiting",
        "commands.bootstrap",
        "tree.status",
    )
    loaded = loaded_by("import " + ", ".join(f"kolla_mesos_start.{name}" for name in modules))
    assert not [name for name in loaded if "election" in name or name.endswith(".participant")]


@pytest.mark.parametrize("name", ["registrar", "supervise"])
def test_the_process_beside_a_daemon_has_neither_openssl_nor_re(name: str) -> None:
    """It would be a quarter of its memory: see `zookeeper.wire`."""
    loaded = loaded_by(f"import kolla_mesos_start.daemon.{name}")
    assert "kazoo.security" in loaded
    assert not loaded & {"hashlib", "_hashlib", "ssl", "_ssl", "re", *COSTLY}


def test_tls_has_no_more_than_openssl(bare: set[str], tmp_path: Path) -> None:
    """The registrar has no regular expressions otherwise, and nobody the tables of all of Unicode."""
    Authority(tmp_path).issue("web")
    files = [str(tmp_path / name) for name in ("ca.pem", "web.pem", "web.key")]
    begin = f"""
import select
import socket
from kolla_mesos_start.zookeeper.connect import connect_with_tls
from kolla_mesos_start.zookeeper.tls import make_context
server = socket.create_server(("127.0.0.1", 0))
address = (socket.AF_INET, server.getsockname())
connecting = connect_with_tls([address], make_context(*{files}), "zk1.example.org")
poller = select.poll()
poller.register(*next(connecting))
poller.poll()
next(connecting)
theirs = server.accept()[0]
assert theirs.recv(1) == b"\\x16", "the handshake has begun"
"""
    loaded = loaded_by(begin) - bare
    assert "ssl" in loaded
    assert not loaded & {"re", "base64", "encodings.idna", "stringprep", "unicodedata", *COSTLY - {"ssl"}}


@pytest.mark.parametrize(
    "path", [path for name in DECIDE for path in sorted(PACKAGE.glob(f"{name}.py"))], ids=module_name
)
def test_what_decides_has_no_effects(path: Path) -> None:
    """No clock, no file, no process, no ZooKeeper; types for the checker don't count."""
    checked_only = re.sub(r"(?m)^if TYPE_CHECKING:\n((    .*)?\n)+", "", path.read_text(encoding="utf-8"))
    names = {
        (node.names[0].name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(ast.parse(checked_only))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert not names & EFFECTS
