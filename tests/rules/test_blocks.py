"""Every block of the documents is executed: typed as a stranger would, or held against what it speaks of.

A block that no check claims fails, and so does a claim that no block has. One substitution is made:
the ensemble that the documents call zk1:2181,zk2:2181 is the test's server.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.findings import ERROR
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.kolla_ansible import facts, rules
from kolla_mesos_start.tree.znodes import Znodes
from tests.conftest import Deployment
from tests.ctl import sources
from tests.support import secured
from tests.support.agents import Containers
from tests.support.documents import (
    CONTRIBUTING,
    DOCUMENTS,
    KEYSTONE,
    KUBERNETES,
    PAGES,
    PODMAN,
    QUICKSTART,
    README,
    ROOT,
    Block,
    blocks,
    literals,
    table,
)
from tests.support.publishing import publish
from tests.support.quickstarts import copy_tests
from tests.support.tool import tool
from tests.support.waiting import eventually
from tests.support.walking import znodes
from tests.support.zookeeper import Server

GUIDE, REFERENCE, TUTORIAL = "docs/guide", "docs/reference", "docs/tutorial"
AGENT, TREE = f"{REFERENCE}/agent.rst", f"{REFERENCE}/tree.rst"
ARCHITECTURE = "docs/explanation/architecture.rst"
FIRST_QUICKSTART = f"{TUTORIAL}/quickstart.rst"
MIGRATION = "etc/examples/migration/README.rst"
UPGRADE = "etc/examples/upgrade/README.rst"
OPENSTACK = "etc/openstack/README.rst"
GALERA = "etc/examples/galera/README.rst"
LOAD_BALANCER = "etc/examples/loadbalancer/README.rst"
KOLLA_BUILD = "etc/kolla-build/README.rst"
MONITORING = "etc/monitoring/README.rst"
ENSEMBLE = "zk1:2181,zk2:2181"
START = f"KOLLA_ZK_HOSTS={ENSEMBLE} KOLLA_APP_ID="
PUBLISH, SET = (f"KOLLA_ZK_HOSTS={ENSEMBLE} kolla_mesos_ctl {word}" for word in ("publish", "set"))
CHECKED = "web: 1 command checked, no errors; none of 0 files would change"
WAITS = "keystone_tasks/create_database waits for mariadb/daemon: 0 of 1 instances ready"

MANIFESTS = "kolla_mesos_ctl manifests"
STAYS = "kolla_mesos_ctl up ~/shop --in ~/run"

pytestmark = pytest.mark.timeout(600)  # The first ones wait for virtual environments.


class Stranger:
    """Somebody with a fresh checkout, an empty home, and an ensemble. What was installed stays."""

    def __init__(self, place: Path, hosts: str) -> None:
        self.checkout, self.home, self.hosts = place / "c", place / "h", hosts
        hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "tests")
        shutil.copytree(ROOT, self.checkout, ignore=hidden)
        copy_tests(self.checkout)
        self.home.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KOLLA_")}
        path = (self.home / "venv/bin", Path(sys.executable).parent, inherited["PATH"])
        self.environ = {
            # From where pip gets its packages is the machine's business.
            "XDG_CONFIG_HOME": str(Path.home() / ".config"),
            "XDG_CACHE_HOME": str(Path.home() / ".cache"),
            **inherited,
            "HOME": str(self.home),
            "PATH": ":".join(map(str, (*path, "/usr/share/zookeeper/bin"))),
            # The defaults would be the machine's own directories.
            "KOLLA_RUN_DIR": str(place / "run"),
            "KOLLA_STATE_DIR": str(place / "state"),
        }
        self._printed: dict[str, str] = {}

    def has_typed(self, document: str, start: str) -> str:
        """What the block that begins so has printed."""
        return self.has_typed_text(the_block(document, start).text)

    def has_typed_text(self, text: str) -> str:
        """What the text has printed; it is typed once, for all tests together."""
        if text not in self._printed:
            self._printed[text] = self.types(text)
        return self._printed[text]

    def types(self, text: str, **environ: str) -> str:
        """What is printed when the text is typed in the checkout; it has to end well."""
        done = subprocess.run(
            self._argv(text),
            cwd=self.checkout,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    @contextmanager
    def starts(self, text: str, says: str) -> Iterator[None]:
        """Type the text, wait until the agent has said `says`, and end it by Ctrl-C afterwards."""
        log = self.home / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._argv(text),
                cwd=self.checkout,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            eventually(lambda: says in log.read_text(), says)
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)
        eventually(lambda: '"status": 130' in log.read_text(), "the agent has ended by Ctrl-C")

    def _argv(self, text: str) -> list[str]:
        return ["sh", "-ec", text.replace(ENSEMBLE, self.hosts)]


class Ground(NamedTuple):
    """What a check may need: the stranger, and a deployment of the test's own."""

    stranger: Stranger
    zk: KazooClient
    deployment: Deployment
    containers: Containers


@pytest.fixture(scope="module")
def stranger(shared_zookeeper: Server) -> Iterator[Stranger]:
    """The directory has a short name, since sockets will lie in it."""
    place = Path(tempfile.mkdtemp(prefix="r-"))
    yield Stranger(place, shared_zookeeper.hosts)
    shutil.rmtree(place)


@pytest.fixture
def ground(
    stranger: Stranger, zk: KazooClient, deployment: Deployment, containers: Containers
) -> Iterator[Ground]:
    yield Ground(stranger, zk, deployment, containers)
    zk.delete("/kolla", recursive=True)  # where the documents publish


# -- checks: each is told the block that it claims --------------------------------------------------


def is_typed(block: Block, ground: Ground) -> None:
    """It ends well; others go on from what it has made."""
    ground.stranger.has_typed(block.document, block.text)


def names_the_stages(block: Block, ground: Ground) -> None:
    """Those of `agent.py`; and each of the places is in the tree."""
    stages = re.findall(r"^(?:\W*)([a-z]{4,9})  +[a-z]", block.text, re.MULTILINE)
    drawn = (ROOT / "kolla_mesos_start/agent.py").read_text().split("\n\n")[1]
    assert sorted(stages) == sorted(drawn.replace("->", "").split())
    tree = the_block(TREE, "<prefix>/").text
    places = re.findall(r"\.?\w+/(?:<\w+>)?|<service>", block.text)
    assert len(places) == 5 and all(place in tree for place in places)


def is_what_the_quickstart_prints(block: Block, ground: Ground) -> None:
    """Each line, in whatever time, and whichever replica comes first."""
    said = ground.stranger.has_typed(README, "bin/quickstart")
    assert said.count("\n") > block.text.count("\n")
    lines = {abstract(line) for line in said.splitlines()}
    assert [line for line in block.text.splitlines() if abstract(line) not in lines] == []


def abstract(line: str) -> str:
    words = line.removeprefix("* ").split()
    return re.sub(r"\d+\.\d+", "N", re.sub(r"web-\d", "web-N", " ".join(words)))


def are_the_stages(block: Block, ground: Ground) -> None:
    """Those of `agent.py`."""
    drawn = (ROOT / "kolla_mesos_start/agent.py").read_text().split("\n\n")[1]
    assert [line.split()[0] for line in block.text.splitlines()] == drawn.replace("->", "").split()


def is_typed_in_order(block: Block, ground: Ground) -> None:
    """After all blocks of the page that come before it; the one with a mistake ends with status 1."""
    page = [found for found in BLOCKS if found.document == block.document]
    texts = ["", *(each.text for each in page), ""]
    for each, before, following in zip(page, texts, texts[2:]):
        text = f"! ({each.text})" if "web/daemon:wbe" in each.text else each.text
        if STAYS in (text, before):  # The two are typed at the same time, in two terminals.
            text = f"{beside(STAYS)}; {following if text == STAYS else text}"
        said = ground.stranger.has_typed_text(text)
        if text.startswith("!"):
            assert "definition.yml:5" in said and "'web'" in said, said
        if each == block:
            return


def beside(command: str) -> str:
    """Start a command in the background, wait until its deployment is up, and end it with the shell."""
    is_up = "until grep -q 'Ctrl-C ends it' ~/log; do sleep 0.2; done"
    end = "trap 'kill $up; wait $up || :' EXIT"
    return f'{command} >~/log 2>&1 & up=$!; {end}; timeout 120 sh -c "{is_up}"'


def is_parsed(block: Block, ground: Ground) -> None:
    """As a definition, by the agent's own parser."""
    document = load(json.dumps(yaml.safe_load(block.text)).encode())
    assert keys.build(document, "keystone-api", lambda text: text.text).steps


def has_an_election(block: Block, ground: Ground) -> None:
    """The directory can be published: `validate` finds no error."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory))
    service = root / "services/infra/mariadb"
    service.mkdir(parents=True)
    (service / "definition.yml").write_text(block.text)
    deployment = sources.load(root).deployment
    assert [each for each in validate(deployment) if each.severity == ERROR] == []
    assert yaml.safe_load(block.text)["service"]["daemon"]["election"]["members"] == 3


def is_recorded_for_an_election(block: Block, ground: Ground) -> None:
    """While ctl-3 is missing, or has lost its data. Without an option the command only shows the election."""
    ctl, at = "kolla_mesos_ctl elect mariadb", "/kolla/site/status/global/mariadb/election"
    site = Deployment(ground.stranger.hosts, "/kolla", "site")
    shown = the_block(f"{GUIDE}/high-availability.rst", "name: infra/mariadb")
    publish(site, "infra/mariadb", yaml.safe_load(shown.text))
    hosts = ("ctl-1", "ctl-2", "ctl-3")
    decision = {"epoch": 1, "winner": "ctl-1", "group": "g", "value": 1, "positions": {}, "state": "formed"}
    here = hosts if "--accept-empty" in block.text else hosts[:2]
    data = {"ctl-1": {"group": "g", "value": 7}, "ctl-2": {"group": "g", "value": 5}}
    found: dict[str, object] = {"turn": None, "decision": decision, "running": None}
    found.update({f"members/{host}": {"epoch": 1, "state": "joined"} for host in hosts})
    found.update({f"candidates/{host}": data.get(host, {"group": None, "value": None}) for host in here})
    for path, value in found.items():
        if path.startswith("candidates/"):
            ground.zk.create(f"{at}/{path}", ephemeral=True, makepath=True)
        ground.zk.ensure_path(f"{at}/{path}")
        ground.zk.set(f"{at}/{path}", json.dumps(value).encode() if value else b"")
    ground.zk.set("/kolla/site/status/global/mariadb", b"infra/mariadb")
    options = block.text.strip().removeprefix(ctl)
    typed = f"{block.text.strip()} --yes" if options else f"! {ctl}"
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "site"}
    said = ground.stranger.types(typed, **environ)
    assert "missing" in said or "ctl-3 may be empty" in said, said
    assert bool(ground.zk.exists(f"{at}/members/ctl-3")) == ("--forget" not in options)
    assert bool(ground.zk.exists(f"{at}/override")) == any(
        word in options for word in ("--winner", "--accept")
    )


def is_read_as_a_directory(block: Block, ground: Ground) -> None:
    """Every file that it names is read, and nothing is left out."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory))
    above = root
    for line in block.text.splitlines():
        indent, names = len(line) - len(line.lstrip()), re.split(" {2,}", line.strip())[0]
        for name in names.split(", "):
            path = (above if indent else root) / re.sub("<.*?>", "web", name.replace("<host>", "web1"))
            if name.endswith("/"):
                above = path
                path.mkdir(parents=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}" if path.suffix == ".yml" else "")
    assert {path.name for path in root.iterdir()} >= {"secrets.yml", "acl.yml", "launch.yml", "services"}
    assert directory.read(root).left_out == ()


def moves_a_directory_of_kolla_mesos(block: Block, ground: Ground) -> None:
    """The moved directory has no mistake."""
    root = ground.stranger.home / "mesos"
    files = {
        "config/all.yml": "database_port: 3306\n",
        "config/mariadb/defaults/main.yml": "mariadb_user: mysql\n",
        "config/mariadb/templates/galera.cnf.j2": "port = {{ database_port }}\n",
        "services/mariadb/mariadb.yml.j2": (
            "name: mariadb/mariadb\nservice:\n  daemon:\n    command: mysqld_safe\n    files:\n"
            '      galera.cnf.j2: {source: a.j2, dest: /etc/my.cnf, owner: "{{ mariadb_user }}"}\n'
        ),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    ground.stranger.types(f"cd {root}\n{block.text}")
    assert list(validate(directory.read(root))) == []


def is_accepted_as_secrets(block: Block, ground: Ground) -> None:
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory))
    (root / "secrets.yml").write_text(block.text)
    (root / "variables.yml").write_text("region: one")
    assert set(directory.read(root).secrets) == {line.partition(":")[0] for line in block.text.splitlines()}


def is_published_and_waited_for(block: Block, ground: Ground) -> None:
    """Nothing is started here, so that the second command is only parsed."""
    publishing, waiting = block.text.split(" && ")
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "site"}
    assert "published " in ground.stranger.types(publishing, **environ)
    assert cli.parser().parse_args(shlex.split(waiting)[1:]).timeout == 600


def forgets_a_host(block: Block, ground: Ground) -> None:
    """One on which something has run."""
    site = Deployment(ground.stranger.hosts, "/kolla", "site")
    publish(site, "web", {"commands": {"once": {"command": "true"}}})
    agent = ground.containers.start("web", "OLD", **site.environ("web"))
    assert agent.ends() == 0
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "site"}
    assert "removed the records of OLD" in ground.stranger.types(block.text, **environ)


def rolls_back(block: Block, ground: Ground) -> None:
    """A change that set one variable and added another one; no container runs, so nothing is waited for."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory))
    (root / "services/web").mkdir(parents=True)
    (root / "services/web/definition.yml").write_text("commands: {once: {command: 'true'}}\n")
    who = {
        f"GIT_{role}_{key}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")
    }
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "site", **who}
    (root / "variables.yml").write_text("region: one\n")
    ground.stranger.types(
        f"git init --quiet {root} && cd {root} && git add . && git commit -qm one", **environ
    )
    (root / "variables.yml").write_text("region: two\nadded: bad\n")
    ground.stranger.types(f"cd {root} && git commit -qam two && kolla_mesos_ctl publish .", **environ)
    *typed, waiting = block.text.splitlines()
    said = ground.stranger.types("\n".join(["set +e", f"cd {root}", *typed]), **environ)
    assert "only with --prune: would remove variables/added" in said
    assert ground.zk.get("/kolla/site/variables/region")[0] == b"one"
    assert not ground.zk.exists("/kolla/site/variables/added")
    assert cli.parser().parse_args(shlex.split(waiting)[1:]).timeout == 600


def moves_to_another_ensemble(block: Block, ground: Ground) -> None:
    """Which is another part of the same one here; a command that is done stays done."""
    site = Deployment(ground.stranger.hosts, "/kolla", "site")
    publish(site, "web", {"commands": {"once": {"command": "true", "run_once": True}}})
    assert ground.containers.start("web", **site.environ("web")).ends() == 0
    ground.zk.ensure_path("/moved")
    text = block.text.replace("zk4:2181,zk5:2181", f"{ground.stranger.hosts}/moved")
    assert "restored " in ground.stranger.types(text)
    assert ground.zk.get("/moved/kolla/site/status/global/web/once")[0] == b"done"
    ground.zk.delete("/moved", recursive=True)


def changes_a_password(block: Block, ground: Ground) -> None:
    """In a private MariaDB: after the first block both passwords work, after the second only the new one."""
    overlap, final = (
        the_block(f"{GUIDE}/secrets.rst", f"ALTER USER 'nova'@'%' {word}")
        for word in ("IDENTIFIED VIA", "IDENTIFIED BY")
    )
    with tempfile.TemporaryDirectory() as place:
        statements = Path(place, "statements.sql")
        script = f"""
        mariadb-install-db --no-defaults --user={getpass.getuser()} --datadir={place}/data \
            --skip-test-db --auth-root-authentication-method=socket >{place}/log 2>&1
        mariadbd --no-defaults --user={getpass.getuser()} --datadir={place}/data --socket={place}/s \
            --skip-networking --pid-file={place}/pid >>{place}/log 2>&1 &
        trap 'kill $!; wait $!' EXIT
        sql="mariadb --no-defaults --socket={place}/s"
        timeout 60 sh -c "until $sql -e 'SELECT 1' >>{place}/log 2>&1; do sleep 0.1; done"
        $sql <{statements}
        for word in old new; do
            $sql --user=nova --password="$word password" -e "SELECT '$word works'" --skip-column-names || true
        done
        """
        made = "DROP USER IF EXISTS ''@localhost; CREATE USER 'nova'@'%' IDENTIFIED BY 'old password';"
        works = []
        for text in (overlap.text, f"{overlap.text}\n{final.text}"):
            shutil.rmtree(f"{place}/data", ignore_errors=True)
            statements.write_text(f"{made}\n{text}\n")
            said = ground.stranger.types(script)
            works.append([line for line in said.splitlines() if line.endswith(" works")])
        assert works == [["old works", "new works"], ["new works"]]


def makes_a_credential(block: Block, ground: Ground) -> None:
    """The digest that it prints is that of the credential, with which the example is then published."""
    ground.stranger.has_typed(README, "python3 -m venv")
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "site"}
    said = ground.stranger.types(block.text, **environ)
    scheme, user, password = (ground.stranger.checkout / "operator.auth").read_text().strip().split(":")
    assert f"{scheme}:{user}:{said.splitlines()[0]}" == f"digest:{make_digest_acl_credential(user, password)}"
    assert "published " in said


def is_a_probe_in_a_pod(block: Block, ground: Ground) -> None:
    """The words behind `--` are a command of the agent; a test in containers has pods with this probe."""
    assert block.text.rpartition(" -- ")[2] in the_block(AGENT, "kolla_mesos_start check").text


def is_in_the_help_of_manifests(block: Block, ground: Ground) -> None:
    """With the reader's own names."""
    usage = ground.stranger.types("kolla_mesos_ctl manifests --help")
    assert re.sub("site|made/kubernetes", "*", block.text) in re.sub(
        "NAME|DIR2", "*", " ".join(usage.split())
    )


def is_one_of_the_agents_commands(block: Block, ground: Ground) -> None:
    assert block.text in the_block(AGENT, "kolla_mesos_start check").text


def is_published(block: Block, ground: Ground) -> None:
    """All of it is new, and nothing is complained of."""
    ground.stranger.has_typed(README, "python3 -m venv")
    assert re.search(
        r"\npublished \S+ to /kolla/\w+: [1-9]\d+ created, 0 ", ground.stranger.types(block.text)
    )


def is_started(block: Block, ground: Ground) -> None:
    """It says what the document says that it says, until it is told to stop."""
    assert f"``{WAITS}``" in " ".join((ROOT / block.document).read_text(encoding="utf-8").split())
    is_published(the_block(README, "kolla_mesos_ctl publish"), ground)
    with ground.stranger.starts(block.text, WAITS):
        pass


def sets_the_release(block: Block, ground: Ground) -> None:
    """Of what the document has published."""
    is_published(the_block(UPGRADE, PUBLISH), ground)
    ground.stranger.types(block.text)
    words = block.text.split()
    name, value = words[words.index("set") + 1 :][:2]
    assert ground.zk.get(f"/kolla/cloud/variables/{name}")[0].decode() == value


def starts_the_upgrade(block: Block, ground: Ground) -> None:
    """Nothing else is up yet."""
    sets_the_release(the_block(UPGRADE, f"{SET} keystone_release 29"), ground)
    with ground.stranger.starts(block.text, "keystone_upgrade/expand waits for mariadb/daemon"):
        pass


def is_typed_in_a_container(block: Block, ground: Ground) -> None:
    """One whose daemon is ready."""
    ground.stranger.has_typed(README, "python3 -m venv")
    publish(
        ground.deployment,
        "web",
        {
            "service": {
                "daemon": {
                    "command": "sleep 300",
                    "ready": {"alive": 0.1},
                    "on_change": {"signal": "HUP"},
                    "drain": 30,
                }
            }
        },
    )
    agent = ground.containers.start("web")
    eventually(lambda: agent.state == "ready", "its daemon is ready")
    container = {name: value for name, value in agent.environ.items() if name.startswith("KOLLA_")}
    said = ground.stranger.types(block.text, **container)
    told = [line for line in said.splitlines() if not line.startswith("connected to ")]
    refreshed = "nothing has changed in its files"
    stopped = ["drained", "drained; the daemon has ended"]
    assert told == [*[CHECKED] * 2, *["ready"] * 3, refreshed, *stopped]


def are_the_znodes_of_an_election(block: Block, ground: Ground) -> None:
    """Those that agents and the operator's tool use."""
    at = Znodes("<prefix>", "<id>", "a/<role>", "<host>").election
    wanted = [at.top, at.turn, at.decision, at.member("<host>"), at.candidate("<host>"), at.runner("<host>")]
    drawn = [f"<prefix>/<id>/{path}" for path in paths(block)]
    assert sorted(drawn) == sorted([*wanted, at.override])


def is_what_a_run_leaves(block: Block, ground: Ground) -> None:
    """Everything in the tree is drawn, and everything drawn is there."""
    # The token of a service that was removed is kept.
    publish(ground.deployment, "infra/old", {"commands": {"sync": {"command": "true", "run_once": True}}})
    assert ground.containers.start("infra/old", "web1").ends() == 0
    tool(ground.deployment, "remove", "infra/old", "--yes")
    publish(
        ground.deployment,
        "infra/web",
        {
            "commands": {"sync": {"command": "true", "run_once": True, "generation": "1"}},
            "service": {
                "daemon": {
                    "command": "sleep 300",
                    "ready": {"alive": 0.1},
                    "files": {"conf": {"dest": f"{ground.containers.directory}/conf"}},
                    "on_change": {"command": "true"},
                    "width": 1,
                }
            },
        },
        files={"conf": ""},
        variables={"size": "1"},
        host_variables={"web1": {"size": "2"}},
        shared={"region": "one"},
    )
    ground.containers.start("infra/web", "web1")
    for scope in ("global", "web1"):
        ready = f"{ground.deployment.path}/status/{scope}/web/daemon/ready"
        eventually(partial(_has_children, ground.zk, ready), f"an instance in {ready}")
    telling = f"{ground.deployment.path}/infra/web/.containers"
    eventually(partial(_has_children, ground.zk, telling), f"a container in {telling}")
    ground.zk.set(f"{ground.deployment.path}/infra/web/files/conf", b"changed")
    turns = f"{ground.deployment.path}/status/global/web/daemon/refreshes"
    eventually(partial(_has_children, ground.zk, f"{turns}/slots"), "it refreshes")
    eventually(lambda: not ground.zk.get_children(f"{turns}/slots"), "it has refreshed")
    names = {
        "<prefix>/<deployment>": re.escape(ground.deployment.path),
        **{"<service>": "infra/web", "<role>": "web", "<host>": "web1", "<command>": "(sync|daemon)"},
        **{"<name>": r"\w+", "<id>": "[0-9a-f]{32}__party__"},
    }
    drawn = [
        functools.reduce(lambda path, name: path.replace(*name), names.items(), path) for path in paths(block)
    ]
    found = list(znodes(ground.zk, ground.deployment.path))
    assert [path for path in drawn if not any(re.fullmatch(path, one) for one in found)] == []
    # "The same on one host"; and what lies between is not drawn: `variables`, `status`, `infra`.
    known = [*drawn, *(path.replace("/global/", "/web1/") for path in drawn)]
    known = ["/".join(path.split("/")[:depth]) for path in known for depth in range(2, path.count("/") + 2)]
    assert [one for one in found if not any(re.fullmatch(path, one) for path in known)] == []


def _has_children(zk: KazooClient, path: str) -> bool:
    return bool(zk.exists(path) and zk.get_children(path))


def paths(tree: Block) -> Iterator[str]:
    """The paths that are drawn, each name two spaces to the right of the one above it."""
    above: list[str] = []
    for line in tree.text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [line.split()[0].rstrip("/")]
        yield "/".join(above)


def is_a_definition(block: Block, ground: Ground) -> None:
    """The publisher takes it; where its variable, file and user are there, so does an agent."""
    service = json.loads(block.text)["name"]
    definition = json.loads(block.text.replace('"keystone"', json.dumps(getpass.getuser())))
    conf, tag = {"keystone.conf": "[DEFAULT]\n"}, {"keystone_tag": "30.0.0"}
    publish(ground.deployment, service, definition, files=conf, variables=tag)
    agent = ground.containers.start(service, words=["check"])
    assert agent.ends() == 1, agent.said
    assert f"{service}: 2 commands checked, no errors; 1 of 1 files would change" in agent.said


def shows_metrics(block: Block, ground: Ground) -> None:
    """Of what is published there."""
    ground.zk.create("/kolla/site/web", b'{"service": {"daemon": {"command": "web"}}}', makepath=True)
    assert 'kolla_mesos_service_up{service="web"} 0.0' in ground.stranger.types(block.text)


def is_accepted_by_prometheus(block: Block, ground: Ground) -> None:
    """The alerts are where it looks for them."""
    place = ground.stranger.home / "prometheus.yml"
    alerts = ROOT / "etc/monitoring/alerts.yml"
    place.write_text(block.text.replace("/etc/prometheus/kolla/alerts.yml", str(alerts)))
    ground.stranger.types(f"promtool check config {place}")


def shows_who_waits(block: Block, ground: Ground) -> None:
    """Nothing is up yet, so two of them end with 1."""
    is_published(the_block(README, "kolla_mesos_ctl publish"), ground)
    with ground.stranger.starts(the_block(README, START).text, WAITS):
        said = ground.stranger.types(f"set +e\n{block.text}")
    assert "keystone_tasks/create_database" in said
    assert "ROOT CAUSE" in said


def makes_it_run_again(block: Block, ground: Ground) -> None:
    """A one-time command that is done, and that a start of a container did not run any more."""
    service, runs = "openstack/keystone/keystone-api", ground.stranger.home / "runs"
    site = Deployment(ground.stranger.hosts, "/kolla", "site")
    command = {"command": f"echo ran >>{runs}", "run_once": True, "generation": "1"}
    publish(site, service, {"commands": {"db_sync": command}})

    def count() -> int:
        assert ground.containers.start(service, **site.environ(service)).ends() == 0
        return runs.read_text().count("ran")

    assert (count(), count()) == (1, 1)
    ground.stranger.types(block.text)
    assert count() == 2


def is_understood_by_the_tool(block: Block, ground: Ground) -> None:
    """A test of the command runs it."""
    for line in block.text.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == cli.PROGRAM
        assert cli.parser().parse_args(words).run


def is_in_a_manifest(block: Block, ground: Ground) -> None:
    """Whose file is run, as it is, by a test of its own; further to the left in the document."""
    places = ("etc/marathon/*.json", "etc/kubernetes/*.yml", "etc/examples/migration/**/*.sh")
    files = [file for place in places for file in ROOT.glob(place)]
    texts = [textwrap.dedent(file.read_text(encoding="utf-8")) for file in files]
    indents = [" " * width for width in range(12)]
    assert any(
        f"\n{textwrap.indent(block.text, indent)}\n" in f"\n{text}" for text in texts for indent in indents
    )


def is_the_secret_that_is_mounted(block: Block, ground: Ground) -> None:
    """Of a directory that is there; a test of its own runs pods that have it."""
    *_, name, source = block.text.split()
    assert list((ROOT / source.removeprefix("--from-file=")).iterdir())
    for manifest in ("job.yml", "deployment.yml"):
        assert f"secretName: {name}\n" in (ROOT / "etc/kubernetes" / manifest).read_text(encoding="utf-8")


def are_the_identities_that_are_mounted(block: Block, ground: Ground) -> None:
    """Under the name that the manifests give it; pods of a test have them."""
    manifests = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("etc/kubernetes/*.yml")}
    assert "KOLLA_ZK_AUTH_FILE: /etc/kolla-zookeeper/auth\n" in manifests["configmap.yml"]
    for line in block.text.splitlines():
        *_, secret, source = line.split()
        assert source.startswith("--from-file=auth=")
        assert f"secretName: {secret}\n" in manifests["deployment.yml"]


def is_typed_beside_containers(block: Block, ground: Ground) -> None:
    """By a test of its own, which reads the document."""
    source = (ROOT / "tests/containers/test_podman_secrets.py").read_text(encoding="utf-8")
    (typed,) = (start for start in re.findall(r'\.types\("(.*?)"\)', source) if block.text.startswith(start))
    assert typed and "documents.blocks(documents.PODMAN)" in source


def names_files_of_a_secret(block: Block, ground: Ground) -> None:
    """Variables of the agent; a test in containers has a pod with them."""
    for line in block.text.splitlines():
        name, place = line.split(": ")
        assert name in {
            literal
            for row in table(f"{REFERENCE}/environment.rst", "variable")
            for literal in literals(row[0])
        }
        assert Path(place).parent == Path("/etc/kolla-zookeeper")


def is_what_the_images_are_rendered_with(block: Block, ground: Ground) -> None:
    """The files are there, and the options those of the test."""
    words = block.text.split()
    assert all((ROOT / word).exists() for word in words if word.startswith("etc/"))
    source = (ROOT / "tests/containers/test_kolla_build.py").read_text(encoding="utf-8")
    options = [
        word[2:].replace("-", "_") for word in block.text.split("kolla-build ")[-1].split() if "--" in word
    ]
    assert options and all(f"{option}=" in source for option in options)


def is_a_call_of_the_tests(block: Block, ground: Ground) -> None:
    """Pytest finds tests by these words; they are not run, since this is one of them."""
    usage = subprocess.run(
        [ROOT / "bin/test", "--help"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    for line in block.text.splitlines():
        words = shlex.split(line)
        before, after = words[: words.index("bin/test")], words[words.index("bin/test") + 1 :]
        assert all(word.partition("=")[0] in usage for word in before)
        if after == ["--full"]:
            assert "--full " in usage
        elif after:
            collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *after]
            done = subprocess.run(collect, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert done.returncode == 0, done.stdout


def is_a_call_of_the_benchmarks(block: Block, ground: Ground) -> None:
    """They know what they are asked to measure; that takes longer than a test may."""
    for line in block.text.splitlines():
        python, *words = shlex.split(line)
        assert python == ".venv/bin/python"
        done = subprocess.run(
            [sys.executable, *words[:2], "--help"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        assert all(re.search(rf"^{name} ", done.stdout, re.MULTILINE) for name in words[2:])


def are_modules(block: Block, ground: Ground) -> None:
    """One would change the checkout, and needs PyPI; what the other prints has a test of its own."""
    for line in block.text.splitlines():
        python, option, module = shlex.split(line.partition(">")[0])
        assert (python, option) == (".venv/bin/python", "-m")
        source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        assert f"    .venv/bin/python -m {module}" in source and "__main__" in source


def is_the_order(block: Block, ground: Ground) -> None:
    """Each arrow is a dependency of the example, and each dependency follows from the arrows."""
    drawn = {
        pair
        for chain in block.text.splitlines()
        for pair in pairs([name.strip() for name in chain.split("->")])
    }
    written = set(dependencies(Path(block.document).parent))
    assert drawn <= written
    assert closure(drawn) == closure(written)


def pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    return zip(names, names[1:])


def closure(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows, and all that follows from them."""
    more = arrows | {(a, d) for a, b in arrows for c, d in arrows if b == c}
    return arrows if more == arrows else closure(more)


def dependencies(example: Path) -> Iterator[tuple[str, str]]:
    """What waits for what in a published directory: the one that must come first, first."""
    for service in directory.read(ROOT / example).services:
        definition = json.loads(service.definition)
        steps = {**definition.get("commands", {}), **definition.get("service", {})}
        for name, step in steps.items():
            if not isinstance(step, dict):  # How many are wanted.
                continue
            position = step.get("election", {}).get("position")
            for needed in [*step.get("dependencies", ()), *filter(None, [position])]:
                before = needed if isinstance(needed, str) else needed["path"]
                yield before, f"{service.name.rsplit('/', 1)[-1]}/{name}"


def fits_the_example(block: Block, ground: Ground) -> None:
    """It can be published with the deployment that the document publishes before."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory)) / "keystone"
    shutil.copytree(ROOT / "etc/examples/keystone", root)
    (root / "acl.yml").write_text(block.text)
    assert sources.load(root).deployment.acl is not None
    assert [each for each in sources.findings(root) if each.severity == ERROR] == []


def secures_an_ensemble(block: Block, ground: Ground) -> None:
    """By the lines that the secured ensemble of the tests has; the quorum shares no file with clients."""
    shown = dict(line.split("=") for line in block.text.splitlines())
    ours = secured.lines(Path("/etc/zookeeper"), int(shown["secureClientPort"]))
    assert shown.keys() == ours.keys()
    places = {name for name in shown if name.endswith(".location")}
    for each in (shown, ours):
        assert len({each[name] for name in places}) == len(places) == 4
    assert {name: shown[name] for name in shown.keys() - places} == {
        name: str(ours[name]) for name in ours.keys() - places
    }


def places_the_containers(block: Block, ground: Ground) -> None:
    """Those of a deployment that has such services."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory)) / "openstack"
    shutil.copytree(ROOT / "etc/openstack", root, symlinks=True)
    (root / "launch.yml").write_text(block.text)
    deployment = sources.load(root).deployment
    assert [each for each in validate(deployment) if each.severity == ERROR] == []
    assert deployment.launch.hosts_of("openstack/nova/nova-compute") == ["cmp-1", "cmp-2"]


def is_in_what_is_made(block: Block, ground: Ground) -> None:
    """Ten lines of a file that the commands above them write, at their indent."""
    ground.stranger.has_typed(block.document, MANIFESTS)
    assert len(block.text.splitlines()) == 10
    files = [path.read_text() for path in (ground.stranger.checkout / "made").rglob("*.*")]
    indented = (textwrap.indent(block.text, " " * width) for width in range(0, 12, 2))
    assert any(text in file for text in indented for file in files)


def is_an_option_of_the_quickstart(block: Block, ground: Ground) -> None:
    """A test of its own types it, with the programs that all tests share."""
    name, option = block.text.split()
    usage = subprocess.run([ROOT / name, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"\n    {option} " in usage


def has_options_of_its_command(block: Block, ground: Ground) -> None:
    """Its own test runs it: tests/kolla_ansible/test_import.py."""
    usage = ground.stranger.types(" ".join([*block.text.split()[:2], "--help"]))
    assert all(f"{option} " in usage for option in re.findall("--[a-z]+", block.text))


def are_rules(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "overrides.yml"
    file.write_text(block.text)
    found = rules.read(file)
    assert found.ports("redis") == [6379]
    assert found.answering("glance_api", 8080) == [None]


def are_clusters(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "overrides.yml"
    file.write_text(block.text)
    found = rules.read(file)
    assert found.cluster("mariadb")["definition"] == "/etc/kolla/my-galera"
    assert found.cluster("rabbitmq")["instead"] is None


def are_facts(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "facts.yml"
    file.write_text(block.text)
    found = facts.read(file, ["ctl-1", "cmp-1"])
    assert found["cmp-1"].interfaces == {"eth0": "192.0.2.21", "eth1": "198.51.100.21"}


def give_a_hostname(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "facts.yml"
    file.write_text(block.text)
    assert list(facts.read(file, ["localhost"])) == ["ctl-1"]


# -- claims: how a block begins, and its check ------------------------------------------------------

Check = Callable[[Block, Ground], None]
CLAIMS: Mapping[str, Mapping[str, Check]] = {
    README: {
        "in each container": names_the_stages,
        "bin/quickstart": is_typed,
        "commands:": is_parsed,
        "python3 -m venv": is_typed,
        "kolla_mesos_ctl publish": is_published,
        START: is_started,
        "bin/test": is_a_call_of_the_tests,
    },
    FIRST_QUICKSTART: {
        "bin/quickstart": is_typed,
        "-- starting 6 containers": is_what_the_quickstart_prints,
    },
    f"{TUTORIAL}/first-service.rst": {"": is_typed_in_order},
    f"{GUIDE}/publish.rst": {
        "python3 -m venv": is_typed,
        "variables.yml": is_read_as_a_directory,
        "mkdir -p": moves_a_directory_of_kolla_mesos,
        "kolla_mesos_ctl publish": is_published,
        START: is_started,
    },
    f"{GUIDE}/secrets.rst": {
        "mariadb_root_password: ": is_accepted_as_secrets,
        "ALTER USER 'nova'@'%' IDENTIFIED VIA": changes_a_password,
        "ALTER USER 'nova'@'%' IDENTIFIED BY": changes_a_password,
    },
    f"{GUIDE}/kubernetes.rst": {
        MANIFESTS: is_typed,
        "- name: KOLLA_APP_ID": is_in_what_is_made,
        "kubectl apply": is_in_the_help_of_manifests,
        "containers:\n": is_in_a_manifest,
    },
    f"{GUIDE}/marathon.rst": {
        MANIFESTS: is_typed,
        '"id": ': is_in_what_is_made,
        '{\n  "id": ': is_in_a_manifest,
    },
    f"{GUIDE}/podman.rst": {MANIFESTS: is_typed, "ContainerName=": is_in_what_is_made},
    f"{GUIDE}/compose.rst": {MANIFESTS: is_typed, "nova-api:": is_in_what_is_made},
    f"{GUIDE}/from-kolla-ansible.rst": {
        "kolla_mesos_ctl import kolla-ansible --ansible ~/kolla ": has_options_of_its_command,
        "kolla_mesos_ctl import kolla-ansible --ansible ~/kolla-22": has_options_of_its_command,
        "hosts:\n  ctl-1": are_facts,
        "hosts:\n  localhost": give_a_hostname,
        "kolla_mesos_ctl publish": has_options_of_its_command,
        "listeners:\n": are_rules,
        "clusters:\n": are_clusters,
        "kolla_mesos_ctl graph": has_options_of_its_command,
        "kolla_mesos_ctl adopt": has_options_of_its_command,
    },
    f"{GUIDE}/operate.rst": {
        f"export KOLLA_ZK_HOSTS={ENSEMBLE}": shows_who_waits,
        "kolla_mesos_ctl events": is_understood_by_the_tool,
        "kolla_mesos_ctl restart": is_understood_by_the_tool,
        "kolla_mesos_ctl get": is_understood_by_the_tool,
        "kolla_mesos_ctl publish": is_published_and_waited_for,
        "git revert": rolls_back,
        "kolla_mesos_ctl rerun": makes_it_run_again,
        "kolla_mesos_ctl reset": forgets_a_host,
        "kolla_mesos_ctl snapshot": moves_to_another_ensemble,
    },
    f"{GUIDE}/monitor.rst": {
        f"export KOLLA_ZK_HOSTS={ENSEMBLE}": shows_metrics,
        "rule_files:": is_accepted_by_prometheus,
    },
    MONITORING: {"promtool": is_typed},
    f"{GUIDE}/live-change.rst": {
        "service:\n  daemon:\n    command: haproxy": is_parsed,
        "service:\n  daemon:\n    command: [nova-api]": is_parsed,
        "kolla_mesos_start refresh": is_one_of_the_agents_commands,
    },
    f"{GUIDE}/high-availability.rst": {
        "name: infra/mariadb": has_an_election,
        "kolla_mesos_ctl elect mariadb\n": is_recorded_for_an_election,
        "kolla_mesos_ctl elect mariadb --winner": is_recorded_for_an_election,
        "kolla_mesos_ctl elect mariadb --forget": is_recorded_for_an_election,
        "kolla_mesos_ctl elect mariadb --accept-empty": is_recorded_for_an_election,
    },
    f"{GUIDE}/secure.rst": {
        "operator: ": fits_the_example,
        "umask 077": makes_a_credential,
        "serverCnxnFactory=": secures_an_ensemble,
    },
    f"{GUIDE}/troubleshoot.rst": {
        "kolla_mesos_ctl adopt": is_understood_by_the_tool,
        "kubectl exec": is_a_probe_in_a_pod,
    },
    f"{REFERENCE}/definition.rst": {'{"name": ': is_a_definition},
    f"{REFERENCE}/launch.rst": {"tag: ": places_the_containers},
    AGENT: {"kolla_mesos_start check": is_typed_in_a_container},
    TREE: {
        "<prefix>/<deployment>/": is_what_a_run_leaves,
        "status/global/<role>/election": are_the_znodes_of_an_election,
    },
    ARCHITECTURE: {"read ": are_the_stages},
    CONTRIBUTING: {
        "bin/test\n": is_a_call_of_the_tests,
        "bin/test tests/": is_a_call_of_the_tests,
        ".venv/bin/python -m drills.benchmarks": is_a_call_of_the_benchmarks,
        ".venv/bin/python -m tests.support.pins": are_modules,
        ".venv/bin/python -m tests.support.materials": are_modules,
    },
    KEYSTONE: {
        "mariadb/bootstrap -> ": is_the_order,
        PUBLISH: is_published,
    },
    KOLLA_BUILD: {
        "mkdir -p kolla/base": is_what_the_images_are_rendered_with,
    },
    KUBERNETES: {
        "kubectl create secret generic keystone-passwords": is_the_secret_that_is_mounted,
        "kubectl create secret generic keystone-tasks-zookeeper": are_the_identities_that_are_mounted,
        "KOLLA_ZK_CA: ": names_files_of_a_secret,
        "export KOLLA_VARIABLES_DIR": is_published,
    },
    PODMAN: {
        "podman secret create": is_typed_beside_containers,
        "umask 077": is_typed_beside_containers,
        "podman run": is_typed_beside_containers,
    },
    QUICKSTART: {"database/daemon -> ": is_the_order},
    MIGRATION: {
        "mariadb/bootstrap -> ": is_the_order,
        "SELECT token": is_in_a_manifest,
        PUBLISH: is_published,
    },
    OPENSTACK: {
        "bin/quickstart --openstack": is_an_option_of_the_quickstart,
        f"export KOLLA_ZK_HOSTS={ENSEMBLE}": is_published,
    },
    GALERA: {"mariadb/directories -> ": is_the_order},
    LOAD_BALANCER: {"web/daemon -> ": is_the_order, PUBLISH: is_published},
    UPGRADE: {
        "mariadb/bootstrap -> ": is_the_order,
        PUBLISH: is_published,
        f"{SET} keystone_release 29": sets_the_release,
        f"{SET} keystone_release 28": sets_the_release,
        f"{SET} keystone_release_before 29": sets_the_release,
        START: starts_the_upgrade,
    },
}
BLOCKS = [block for document in (*DOCUMENTS, *PAGES) for block in blocks(document)]


def the_block(document: str, start: str) -> Block:
    """The one block that begins so."""
    (found,) = (each for each in BLOCKS if each.document == document and f"{each.text}\n".startswith(start))
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_executed(block: Block, ground: Ground) -> None:
    """By the one check that claims it."""
    claims = CLAIMS.get(block.document, {}).items()
    checks = [check for start, check in claims if f"{block.text}\n".startswith(start)]
    assert checks, f"this block of {block.document} is executed by nothing:\n{block.text}"
    (check,) = checks
    check(block, ground)


def test_every_claim_has_a_block() -> None:
    """A check that no block needs would look as if it tested something."""
    for document, claims in CLAIMS.items():
        for start in filter(None, claims):
            assert the_block(document, start)
