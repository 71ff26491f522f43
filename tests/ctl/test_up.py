"""`kolla_mesos_ctl up` of a directory that it knows nothing of, as a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import psutil
import pytest
import yaml
from kazoo.client import KazooClient

from kolla_mesos_start.ctl.up.containers import processes_of
from tests.conftest import Deployment
from tests.support.guarded import state
from tests.support.link import Link
from tests.support.publishing import write_files
from tests.support.tool import TOOL, environ
from tests.support.waiting import eventually

WEB = """
commands:
  prepare: {command: 'echo preparing', run_once: true}
service:
  daemon:
    command: [python3, -m, http.server, "{{ port }}", --bind, 127.0.0.1]
    dependencies: [web/prepare, db/daemon]
    files: {index.html: {dest: "{{ root }}/srv/index.html"}}
    ready: {tcp: "{{ port }}", interval: 0.2}
"""
DB = "service: {daemon: {command: sleep 600, ready: {alive: 0}}, instances: 1}\n"
BROKEN_DB = DB.replace("sleep 600", "ls /no-disk").replace("alive: 0", "alive: 60")


_numbers = itertools.count()


class Run:
    """One `up`, and what it has said so far."""

    def __init__(self, place: Path, environ: dict[str, str], *words: str) -> None:
        self.place, self.log = place, place / f"said-{next(_numbers)}"
        (place / "tmp").mkdir(exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, TOOL, "up", *words],
                env={**environ, "TMPDIR": str(place / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def says(self, words: str) -> None:
        eventually(lambda: words in self.said or self.process.poll() is not None, words)
        assert words in self.said, self.said

    def ends(self, signum: int | None = None) -> int:
        """Its exit status; nothing may be left then."""
        if signum is not None:
            self.process.send_signal(signum)
        status = self.process.wait(120)
        assert "Traceback" not in self.said
        assert list(processes_of(self.place)) == []
        kept = {path.name for path in (self.place / "tmp").rglob("*") if path.is_file()}
        assert kept == ({"log"} if "all logs are in" in self.said else set()), kept
        return status


Start = Callable[..., Run]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short name, for sockets, that holds a deployment: `site`."""
    place = tmp_path_factory.mktemp("u")
    write_files(
        place / "site",
        services__a__web__definition_yml=WEB,
        **{"services/a/web/files/index.html": "{{ greeting }} from {{ port }}"},
        services__a__db__definition_yml=DB,
        variables_yml="greeting: hello\n",
    )
    return place


@pytest.fixture
def up(place: Path, deployment: Deployment, zk: KazooClient) -> Iterator[Start]:
    """Starts `up site` (`up(*words)`), on the ensemble of the tests, and ends it."""
    zk.delete(deployment.path)
    runs: list[Run] = []

    def start(*words: str, **more: str) -> Run:
        given = environ(deployment, KOLLA_DEPLOYMENT="", **more)
        runs.append(Run(place, given, "site", *words))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()


def test_it_comes_up_with_its_logs_in_one_stream(up: Start, zk: KazooClient, deployment: Deployment) -> None:
    """On a ZooKeeper that is given; nothing is left there, nor here."""
    run = up("--once", "--replicas", "web=2", "--host", "a/web=left")
    assert run.ends() == 0
    for name in ("web@left   | ", "db@node-1  | ", "web@node-2 | "):
        assert f"\n{name}" in run.said
    assert len(re.findall(r"\nweb@\S+ +\| preparing\n", run.said)) == 1
    assert re.search(r"\n\* web/daemon \(", run.said)
    assert zk.get_children(deployment.prefix) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_stays_and_what_it_suggests_works_anywhere(up: Start, place: Path, signum: int) -> None:
    """In 80 columns, with the programs of the containers. Then a signal is a good end, and leaves nothing."""
    write_files(place, bin__ours="#!/bin/sh\necho one of ours\n", site__launch_yml="try: [ours]\n")
    (place / "bin/ours").chmod(0o755)
    run = up("--quiet", KOLLA_ZK_HOSTS="", PATH=f"{place / 'bin'}:{os.environ['PATH']}")
    run.says("-- up; Ctrl-C ends it, and so does SIGTERM; with --once it ends by itself\n")
    assert not re.search(r"^web@node-1 +\| ", run.said, re.MULTILINE)
    assert re.search(r"\d s  web@node-1 +ready\n", run.said)
    suggested = run.said.partition("What to try next")[2].partition("\n\n")[0].splitlines()[1:]
    assert suggested and all(len(line) <= 80 for line in suggested)
    load, kill, health, own, status, tool = (line.strip() for line in suggested)
    assert shell(f"{load}; {own}").stdout == "one of ours\n"
    assert shell(f"{load}; {health}").stdout.startswith("ready")
    assert shell(f"{load}; kolla_mesos_ctl get greeting").stdout == "hello\n"
    assert "1 of 1 ready" in shell(f"{load}; {status}").stdout
    assert shell(f"{load}; {tool}").returncode == 0
    address = re.search(r"index.html  127\.0\.0\.1:(\d+)\n", run.said)
    assert address is not None
    curl = f"python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:{address[1]}\"))'"
    assert shell(curl).returncode == 0
    assert shell(kill).returncode == 0
    again = r"(?s)-- up.* ended +by signal 9\n.* ready\n"
    eventually(lambda: re.search(again, run.said), "it is started again")
    assert run.ends(signum) == 0
    assert "ending all containers" in run.said and "lost the connection" not in run.said


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """What happens when the line is typed in some other directory."""
    return subprocess.run(
        ["sh", "-c", line],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_ends_too_early_ends_the_start(up: Start, place: Path) -> None:
    """With status 1 and the end of its log, as `wait` would."""
    write_files(place / "site", services__a__db__definition_yml=BROKEN_DB)
    run = up()
    assert run.ends() == 1
    assert re.search(r"\ndb@node-1  \| .*No such file.*\ndb@node-1  \| ended with status 2\n", run.said)
    assert "kolla_mesos_ctl: the deployment did not come up\nROOT CAUSE  " in run.said
    assert re.search(r"ROOT CAUSE  db/daemon on node-1 ended \d+\.\d s after its start, ", run.said)
    (log,) = (place / "tmp").glob("kolla-up-*/site/node-1/db/log")
    assert f"\n--- db@node-1: ended with status 2; the end of {log}:\n" in run.said
    assert "No such file" in log.read_text()
    (kept_in,) = (place / "tmp").iterdir()
    assert f"all logs are in {kept_in}; remove them when you have read them" in run.said
    assert kept_in.stat().st_mode & 0o077 == 0
    shutil.rmtree(kept_in)
    kept = up("--in", "kept")
    assert kept.ends() == 1
    assert f"; the end of {place}/kept/site/node-1/db/log:\n" in kept.said
    assert "all logs are in" not in kept.said


# Ends in its first start, and serves in the second one: as a host whose first transfer was interrupted.
CLUSTER = """
commands:
  position: {command: echo none}
service:
  daemon:
    command: &start
      - sh
      - -c
      - "cd {{ root }}; echo >>starts; test $(wc -l <starts) -gt ENDS || exit 1; touch up; exec sleep 600"
    ready: {command: [test, -e, "{{ root }}/up"]}
    election: {position: db/position, members: 1, start: *start}
  instances: 1
"""


@pytest.mark.parametrize(("ends", "status"), [(1, 0), (9, 1)])
def test_a_member_of_a_cluster_is_started_again(up: Start, place: Path, ends: int, status: int) -> None:
    """It may end while it joins. But not for ever."""
    (place / "site/services/a/db/definition.yml").write_text(CLUSTER.replace("ENDS", str(ends)))
    run = up("--once")
    assert run.ends() == status, run.said
    assert run.said.count("db@node-1: starting it again") == (1 if status == 0 else 3)
    assert ("the deployment did not come up" in run.said) == (status != 0)


def test_a_start_that_takes_too_long_ends_with_its_cause(up: Start, place: Path) -> None:
    """With status 75, as `wait` ends then."""
    write_files(place / "site", services__a__db__definition_yml=DB.replace("alive: 0", "tcp: 1"))
    run = up("--timeout", "4")
    assert run.ends() == 75
    said = run.said.partition("kolla_mesos_ctl: ")[2]
    assert said.startswith("not up after 4 s\n")
    assert "db/daemon on node-1" in said
    assert "\n  blocks    web/daemon\n" in said


def test_what_would_be_waited_for_in_vain_is_refused(up: Start, place: Path) -> None:
    """As `publish` refuses it: with file and line, and before anything is started."""
    write_files(place / "site", services__a__web__definition_yml=WEB.replace("db/daemon", "dbs/daemon"))
    run = up()
    assert run.ends() == 65
    assert "services/a/web/definition.yml:7: " in run.said
    assert "no service has the role 'dbs' (did you mean 'db'?)" in run.said
    assert "-- " not in run.said
    write_files(place / "site", services__a__web__definition_yml="[]")
    assert up().ends() == 65
    (place / "site/services/a/web/definition.yml").unlink()
    write_files(place / "site", services__a__web__definition_json='{"service":\n[')
    run = up("--replicas", "web=1")
    assert run.ends() == 65
    assert run.said.startswith("kolla_mesos_ctl: error: services/a/web/definition.json:2: bad JSON")


def test_what_only_an_agent_can_know_can_be_run(up: Start, place: Path) -> None:
    """A count, a place and a port that come from who is there."""
    own = "hostvars[inventory_hostname]"
    knowing = WEB.replace("db/daemon", "{path: db/daemon, count: \"{{ [groups['db'] | length, 1] | max }}\"}")
    knowing = knowing.replace('index.html"', f'{{{{ {own}.ansible_hostname }}}}.html"')
    knowing = knowing.replace(
        '{{ port }}", interval', "{{ [port | int, groups['db'] | length] | max }}\", interval"
    )
    write_files(place / "site", services__a__web__definition_yml=knowing)
    run = up("--once")
    assert run.ends() == 0, run.said


def test_variables_can_be_given_and_what_runs_is_what_is_wanted(up: Start, place: Path) -> None:
    """As to `publish`; and the tool counts the containers that there are."""
    run = up("--set", "greeting=bye", "--replicas", "web=2", "--in", "kept", KOLLA_ZK_HOSTS="")
    run.says("-- up; Ctrl-C ends it")
    load = f". {place}/kept/site/env"
    assert "a/web  2 of 2 ready" in shell(f"{load}; kolla_mesos_ctl status").stdout
    ports = f"{load}; for h in node-1 node-2; do kolla_mesos_ctl get port --service web --host $h; done"
    before = shell(ports).stdout
    assert len(before.split()) == 2
    pruned = shell(f"{load}; kolla_mesos_ctl publish {place}/site --set greeting=bye --prune")
    assert pruned.returncode == 0, pruned.stderr
    assert shell(ports).stdout == before
    assert "--prune" not in shell(f"{load}; kolla_mesos_ctl diff {place}/site --set greeting=bye").stdout
    assert run.ends(signal.SIGINT) == 0
    assert (place / "kept/site/node-2/web/srv/index.html").read_text().startswith("bye from ")


def test_other_users_can_neither_read_nor_change_what_runs(up: Start, place: Path) -> None:
    """Each znode of the private ZooKeeper is for the credential of the run, which is only in a file."""
    run = up("--set", "greeting=bye", "--in", "kept", KOLLA_ZK_HOSTS="")
    run.says("-- up; Ctrl-C ends it")
    given = shell(f". {place}/kept/site/env; env -0").stdout
    environ = dict(line.partition("=")[::2] for line in given.split("\0"))
    credential = Path(environ["KOLLA_ZK_AUTH_FILE"]).read_text().strip()
    assert credential.partition(":")[0] == "digest"
    client = KazooClient(environ["KOLLA_ZK_HOSTS"], auth_data=[tuple(credential.split(":", 1))])
    client.start(30)
    paths = [path for path in below(client, "/") if path != "/zookeeper/config"]
    acls = {path: client.get_acls(path)[0] for path in paths}
    client.stop()
    client.close()
    assert len(paths) > 20
    (own,) = acls["/"]
    assert own.id.scheme == "digest" and own.id.id.startswith("up:")
    assert {path: acl for path, acl in acls.items() if acl != [own]} == {}
    password = credential.rpartition(":")[2].encode()
    for pid in (run.process.pid, *processes_of(place)):
        for name in ("cmdline", "environ"):
            assert password not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert run.ends(signal.SIGINT) == 0
    home = place / "kept/site/zookeeper"
    assert sorted(path.name for path in home.iterdir()) == ["log", "zoo.cfg"]
    assert home.stat().st_mode & 0o777 == 0o700


def below(client: KazooClient, path: str) -> Iterator[str]:
    """The znode and all znodes below it."""
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path.rstrip('/')}/{name}")


def test_secrets_are_generated_for_one_run_or_kept(up: Start, place: Path) -> None:
    """No value is printed; what a file has is used again by the next run."""
    write_files(place / "site", variables_yml="", secrets_yml="greeting: password\n")
    once = up("--once", "--in", "kept")
    assert once.ends() == 0, once.said
    assert "generated 1 secret for this run alone" in once.said
    index = place / "kept/site/node-1/web/srv/index.html"
    made = [index.read_text()]
    for said in ("generated 1 secret into own.yml\n", ""):
        run = up("--once", "--in", "kept", "--secrets", "own.yml")
        assert run.ends() == 0, run.said
        assert ("generated" in run.said) == bool(said)
        assert said in run.said
        made.append(index.read_text())
        assert made[-1].partition(" from ")[0] not in run.said
    texts = [each.partition(" from ")[0] for each in made]
    assert len(texts[0]) == len(texts[1]) == 32
    assert texts[0] != texts[1] == texts[2]
    assert texts[1] in (place / "own.yml").read_text()


FORKING = """
import http.server, os, sys
if os.fork():
    os.wait()
    sys.exit()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_what_a_daemon_has_left_ends_before_it_is_started_again(up: Start, place: Path) -> None:
    """A worker goes on without the process that has forked it, and would keep the port from the next one."""
    worker = WEB.replace(
        '-m, http.server, "{{ port }}", --bind, 127.0.0.1', f'-c, {json.dumps(FORKING)}, "{{{{ port }}}}"'
    )
    write_files(place / "site", services__a__web__definition_yml=worker)
    run = up("--quiet")
    run.says("-- up")
    (master,) = (
        each for each in psutil.Process(run.process.pid).children() if "http.server" in str(each.cmdline())
    )
    (worker,) = (each for each in master.children() if "http.server" in str(each.cmdline()))
    master.kill()
    again = r"(?s)-- up.* web@node-1 +ended .* web@node-1 +ready\n"
    eventually(lambda: re.search(again, run.said), "it is started again")
    assert state(worker.pid) in ("", "Z")
    assert run.ends(signal.SIGINT) == 0


def test_what_a_killed_run_has_left_is_removed_by_the_next(up: Start, place: Path) -> None:
    """Its processes end with it; its directory stays until then. One that runs is left alone."""
    (place / "tmp/kolla-up-of-somebody").mkdir(parents=True)
    other = up("--deployment", "other")
    other.says("-- up")
    (its,) = set((place / "tmp").iterdir()) - {place / "tmp/kolla-up-of-somebody"}
    killed = up(KOLLA_ZK_HOSTS="")
    killed.says("-- up")
    (left,) = set((place / "tmp").iterdir()) - {place / "tmp/kolla-up-of-somebody", its}
    killed.process.kill()
    eventually(lambda: list(processes_of(left)) == [], "its processes end")
    run = up("--once", "--deployment", "third")
    assert run.process.wait(120) == 0
    assert f"removing {left}: the `up` that made it was killed" in run.said
    assert not left.exists() and its.exists()
    (place / "tmp/kolla-up-of-somebody").rmdir()
    assert other.ends(signal.SIGINT) == 0


def test_of_two_at_the_same_moment_one_is_refused(
    up: Start, zk: KazooClient, deployment: Deployment, link: Link
) -> None:
    """Else the containers of both would be one deployment, which the first to end removes."""
    link.freeze()
    runs = [up("--once", KOLLA_ZK_HOSTS=link.hosts) for _ in range(2)]
    for run in runs:
        run.says(f"-- ZooKeeper: {link.hosts}")
    link.thaw()
    assert sorted(run.process.wait(120) for run in runs) == [0, 64], [run.said for run in runs]
    assert zk.get_children(deployment.prefix) == []


LAUNCH = """
tag: "7"
hosts: {control: [ctl-1], compute: [cmp-1]}
defaults: {placement: control}
services: {a/web: {placement: compute, replicas: each}}
"""


def test_containers_are_where_their_role_has_hosts(up: Start, place: Path) -> None:
    """One on each of them; their generation is the tag, so that a migration is run by the right image."""
    web = WEB.replace("run_once: true", 'run_once: host, generation: "7"')
    write_files(place / "site", launch_yml=LAUNCH, services__a__web__definition_yml=web)
    run = up("--role", "compute=cmp-1,cmp-2", "--in", "kept", KOLLA_ZK_HOSTS="")
    run.says("-- up; Ctrl-C ends it")
    assert set(re.findall(r"\n(\w+@\S+) +\| ", run.said)) == {"db@ctl-1", "web@cmp-1", "web@cmp-2"}
    assert "KOLLA_GENERATION is not set" not in run.said
    load = f". {place}/kept/site/env"
    status = shell(f"{load}; kolla_mesos_ctl status").stdout
    assert "a/web  2 of 2 ready" in status and "a/db   1 of 1 ready" in status
    assert run.ends(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("instances", "expected"),
    [(2, "launch.yml:4: a/db wants 2 containers, and its role control has 1 host: "), (1, "launch.yml:5: ")],
)
def test_a_place_that_there_is_not_is_refused(up: Start, place: Path, instances: int, expected: str) -> None:
    """Before anything is started."""
    db = DB.replace("instances: 1", f"instances: {instances}")
    launch = LAUNCH if instances > 1 else LAUNCH.replace("a/web", "a/wbe")
    write_files(place / "site", launch_yml=launch, services__a__db__definition_yml=db)
    run = up()
    assert run.ends() == 65
    assert run.said.startswith(f"kolla_mesos_ctl: error: {expected}")


def test_a_file_that_would_lie_among_this_machines_own_is_refused(
    up: Start, place: Path, zk: KazooClient, deployment: Deployment
) -> None:
    """Before anything is published or started."""
    path = place / "site/services/a/web/definition.yml"
    for dest in ("/etc/index.html", "{{ root }}/../index.html"):
        path.write_text(WEB.replace("{{ root }}/srv/index.html", dest))
        run = up()
        assert run.ends() == 65
        assert "services/a/web/definition.yml: service.daemon.files.index.html.dest: begin it" in run.said
    assert zk.get_children(deployment.prefix) == []


def test_a_place_that_is_given_is_kept(up: Start, place: Path) -> None:
    """To be looked at afterwards; it is not taken from another run, nor from anything else."""
    run = up("--in", "kept", "--quiet")
    run.says("-- up")
    second = up("--in", "kept")
    assert second.process.wait(60) == 1
    assert "another deployment is up in" in second.said
    assert run.ends(signal.SIGTERM) == 0
    assert "preparing" in (place / "kept/site/node-1/web/log").read_text()
    (place / "other/site").mkdir(parents=True)
    third = up("--in", "other")
    assert third.ends() == 64
    assert "no earlier run has created it" in third.said


def test_a_directory_that_is_too_long_for_sockets_is_refused(up: Start, place: Path) -> None:
    run = up("--in", f"kept/{'x' * 100}")
    assert run.ends() == 64
    assert "is too long for the sockets in it: choose a shorter one" in run.said
    assert list((place / "kept").rglob("site")) == []


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["--replicas", "wbe=2"], 64, "is no service of the directory"),
        (["--deployment", "x"], 64, "/x exists already in ZooKeeper: "),
        (["--hosts", "127.0.0.1:1"], 69, "check --hosts or KOLLA_ZK_HOSTS, and that ZooKeeper runs there"),
        (["--hosts", "{hosts}/typo"], 64, "the chroot /typo does not exist; create it, or correct it"),
    ],
)
def test_what_is_wrong_is_named(
    up: Start, zk: KazooClient, deployment: Deployment, words: list[str], status: int, expected: str
) -> None:
    zk.create(f"{deployment.prefix}/x", b"theirs")
    run = up(*(word.format(hosts=deployment.hosts) for word in words), KOLLA_ZK_CONNECT_TIMEOUT="1")
    assert run.ends() == status
    assert expected in run.said
    assert zk.get(f"{deployment.prefix}/x")[0] == b"theirs"


def test_it_drains_before_it_ends_a_daemon(up: Start, place: Path) -> None:
    """SIGTERM waits for `before_stop`, whatever the usual grace is."""
    web = yaml.safe_load(WEB)
    before_stop = {"command": f"sleep 0.5 && touch {place}/stopped", "timeout": 60}
    web["service"]["daemon"].update(drain=60, before_stop=before_stop)
    write_files(place / "site", services__a__web__definition_yml=yaml.safe_dump(web))
    run = up()
    run.says("-- up; Ctrl-C ends it")
    assert run.ends(signal.SIGINT) == 0
    assert (place / "stopped").exists()
