"""What the documents tell to type is typed, as a stranger would; definitions and files in them are read.

One substitution is made: the ensemble that the documents call zk1:2181,zk2:2181 is the test's server.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.findings import ERROR
from kolla_mesos_start.ctl.manifests.kubernetes import conflicts, manifests
from kolla_mesos_start.ctl.manifests.model import Site, build
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.kolla_ansible import facts, rules
from tests.conftest import Deployment
from tests.ctl import sources
from tests.support.agents import Containers
from tests.support.documents import (
    DOCUMENTS,
    KEYSTONE,
    KUBERNETES,
    PAGES,
    README,
    ROOT,
    Block,
    blocks,
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
    assert keys.build(document, "keystone-api", lambda text: text.text).all_commands


def has_an_election(block: Block, ground: Ground) -> None:
    """The directory can be published: `validate` finds no error."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory))
    service = root / "services/infra/mariadb"
    service.mkdir(parents=True)
    (service / "definition.yml").write_text(block.text)
    deployment = sources.load(root).deployment
    assert [each for each in validate(deployment) if each.severity == ERROR] == []
    assert yaml.safe_load(block.text)["service"]["daemon"]["election"]["members"] == 3


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
    assert directory.look(root)[0].left_out == ()


MESOS_DEFINITION = """\
name: infra/mariadb/mariadb
enabled: True
container:
  image: "kollaglue/centos-binary-mariadb:2.0.0"
  parameters:
    - {key: volume, value: "logs:/var/log"}
service:
  daemon:
    command: /usr/bin/mysqld_safe --wsrep-new-cluster
    reload_signal: SIGHUP
    dependencies: [{path: mariadb/bootstrap}]
  mem: 128
  cpus: 0.3
  instances: 3
  constraints: [["hostname", "UNIQUE"]]
commands:
  bootstrap:
    run_once: True
    command: kolla_extend_start
    env: {KOLLA_BOOTSTRAP: , DB_MAX_TIMEOUT: "60"}
    files:
      galera.cnf.j2:
        source: config/mariadb/templates/galera.cnf.j2
        dest: /etc//my.cnf
        owner: mysql
        perm: "0600"
"""
MESOS_TEMPLATE = """\
{% set library = 'lib' if kolla_base_distro == 'ubuntu' else 'lib64' %}
[mysqld]
bind-address={{ hostvars[inventory_hostname]['ansible_' + api_interface]['ipv4']['address'] }}
wsrep_cluster_address=gcomm://{% if (groups['mariadb'] | length) > 1 %}{% for host in groups['mariadb'] -%}
{{ hostvars[host]['ansible_' + api_interface]['ipv4']['address'] }}:{{ mariadb_port }}{% endfor %}{% endif %}
wsrep_node_name={{ ansible_hostname }}
wsrep_provider=/usr/{{ library }}/galera/libgalera_smm.so
"""


def moves_a_service_of_kolla_mesos(block: Block, ground: Ground) -> None:
    """`validate` finds nothing, and it is published."""
    moved = ground.stranger.home / "mesos"
    (moved / "config/mariadb/templates").mkdir(parents=True)
    (moved / "mariadb.yml").write_text(MESOS_DEFINITION)
    (moved / "config/mariadb/templates/galera.cnf.j2").write_text(MESOS_TEMPLATE)
    (moved / "variables.yml").write_text("kolla_base_distro: ubuntu\n")
    ground.stranger.types(f"cd {moved}\n{block.text}")
    assert "mariadb_port" in ground.stranger.types(f"kolla_mesos_ctl validate {moved}")
    (moved / "variables.yml").write_text('kolla_base_distro: ubuntu\nmariadb_port: "3306"\n')
    assert "0 errors, 0 warnings" in ground.stranger.types(f"kolla_mesos_ctl validate {moved}")
    environ = {"KOLLA_ZK_HOSTS": ground.stranger.hosts, "KOLLA_DEPLOYMENT": "mesos"}
    assert "published " in ground.stranger.types(f"kolla_mesos_ctl publish {moved}", **environ)


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
        the_block(f"{GUIDE}/rotate.rst", f"ALTER USER 'nova'@'%' {word}")
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


def fits_the_example(block: Block, ground: Ground) -> None:
    """It can be published with the deployment that the document publishes before."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory)) / "keystone"
    shutil.copytree(ROOT / "etc/examples/keystone", root)
    (root / "acl.yml").write_text(block.text)
    assert sources.load(root).deployment.acl is not None
    assert [each for each in sources.findings(root) if each.severity == ERROR] == []


def places_the_containers(block: Block, ground: Ground) -> None:
    """Those of a deployment that has such services."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory)) / "openstack"
    shutil.copytree(ROOT / "etc/openstack", root, symlinks=True)
    (root / "launch.yml").write_text(block.text)
    deployment = sources.load(root).deployment
    assert [each for each in validate(deployment) if each.severity == ERROR] == []
    assert deployment.launch.hosts_of("openstack/nova/nova-compute") == ["cmp-1", "cmp-2"]


def adds_to_pods(block: Block, ground: Ground) -> None:
    """And contradicts nothing in the manifests."""
    root = Path(tempfile.mkdtemp(dir=ground.containers.directory)) / "keystone"
    shutil.copytree(ROOT / "etc/examples/keystone", root)
    settings = "zookeeper: zk\n" + block.text.replace(
        "defaults:\n", "defaults:\n  image: kolla/{{ role }}:1\n"
    )
    (root / "launch.yml").write_text(settings)
    model, findings = build(sources.load(root).deployment, Site("site"))
    assert not findings and not list(conflicts(model))
    assert "tolerationSeconds: 30" in "".join(manifests(model).files.values())


def are_rules(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "overrides.yml"
    file.write_text(block.text)
    found = rules.read(file)
    assert found.row("listeners", "redis")["ports"] == [6379]
    assert (found["addresses"][0]["port"], found.row("addresses", "glance_api")["on"]) == (8080, None)


def are_clusters(block: Block, ground: Ground) -> None:
    file = ground.stranger.home / "overrides.yml"
    file.write_text(block.text)
    found = rules.read(file)
    assert found.row("clusters", "mariadb")["definition"] == "/etc/kolla/my-galera"
    assert found.row("clusters", "rabbitmq")["instead"] is None


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
        "bin/quickstart": is_typed,
        "commands:": is_parsed,
        "python3 -m venv": is_typed,
        "kolla_mesos_ctl publish": is_published,
        START: is_started,
    },
    f"{TUTORIAL}/first-service.rst": {"": is_typed_in_order},
    f"{GUIDE}/publish.rst": {
        "python3 -m venv": is_typed,
        "variables.yml": is_read_as_a_directory,
        "mkdir -p services": moves_a_service_of_kolla_mesos,
        "kolla_mesos_ctl publish": is_published,
        START: is_started,
    },
    f"{GUIDE}/rotate.rst": {"ALTER USER 'nova'@'%' IDENTIFIED BY": changes_a_password},
    f"{GUIDE}/kubernetes.rst": {MANIFESTS: is_typed},
    f"{GUIDE}/marathon.rst": {MANIFESTS: is_typed},
    f"{GUIDE}/podman.rst": {MANIFESTS: is_typed},
    f"{GUIDE}/compose.rst": {MANIFESTS: is_typed},
    f"{GUIDE}/from-kolla-ansible.rst": {
        "hosts:\n  ctl-1": are_facts,
        "hosts:\n  localhost": give_a_hostname,
        "listeners:\n": are_rules,
        "clusters:\n": are_clusters,
    },
    f"{GUIDE}/operate.rst": {
        f"export KOLLA_ZK_HOSTS={ENSEMBLE}": shows_who_waits,
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
    f"{GUIDE}/live-change.rst": {"service:\n  daemon:": is_parsed},
    f"{GUIDE}/high-availability.rst": {"name: infra/mariadb": has_an_election},
    f"{GUIDE}/secure.rst": {"operator: ": fits_the_example, "umask 077": makes_a_credential},
    f"{REFERENCE}/definition.rst": {'{"name": ': is_a_definition},
    f"{REFERENCE}/launch.rst": {"tag: ": places_the_containers, "defaults:": adds_to_pods},
    f"{REFERENCE}/agent.rst": {"kolla_mesos_start check": is_typed_in_a_container},
    f"{REFERENCE}/tree.rst": {"<prefix>/<deployment>/": is_what_a_run_leaves},
    KEYSTONE: {PUBLISH: is_published},
    KUBERNETES: {"export KOLLA_VARIABLES_DIR": is_published},
    MIGRATION: {PUBLISH: is_published},
    OPENSTACK: {f"export KOLLA_ZK_HOSTS={ENSEMBLE}": is_published},
    LOAD_BALANCER: {PUBLISH: is_published},
    UPGRADE: {PUBLISH: is_published},
}
BLOCKS = [block for document in (*DOCUMENTS, *PAGES) for block in blocks(document)]


def the_block(document: str, start: str) -> Block:
    """The one block that begins so."""
    (found,) = (each for each in BLOCKS if each.document == document and f"{each.text}\n".startswith(start))
    return found


def claims() -> Iterator[Any]:
    """Each claim with the blocks that begin so; one without a block fails, since it would test nothing."""
    for document, checks in CLAIMS.items():
        for start, check in checks.items():
            found = [each for each in BLOCKS if each.document == document and each.text.startswith(start)]
            for block in found or [Block(document, start)]:
                yield pytest.param(block, check, id=str(block))


@pytest.mark.parametrize(("block", "check"), list(claims()))
def test_a_block_is_executed(block: Block, check: Check, ground: Ground) -> None:
    assert block in BLOCKS
    check(block, ground)


def calls() -> Iterator[Any]:
    """Each line of a document that calls the operator's tool."""
    for block in BLOCKS:
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith(f"{cli.PROGRAM} "):
                command = re.split(" && | [|>] ", line)[0]
                yield pytest.param(shlex.split(command, comments=True)[1:], id=f"{block.document}: {command}")


@pytest.mark.parametrize("words", list(calls()))
def test_the_tool_understands_a_line(words: list[str]) -> None:
    """Also where a block is not executed: its command and its options are those of the tool."""
    assert cli.parser().parse_args(words).run
