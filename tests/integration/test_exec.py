"""The daemon takes the agent's place: what it finds there, what it does not, and what stays beside it.

Whole agents against a real ZooKeeper. What a daemon finds is read from the kernel, not asked of
the daemon: most of it an interpreter would change before it could tell.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent

from tests import unprivileged
from tests.agents import Agent, Containers
from tests.conftest import Deployment
from tests.guarded import lives
from tests.instances import Site
from tests.link import Link
from tests.publishing import publish
from tests.waiting import eventually
from tests.zookeeper import Server

SERVICE = "openstack/web"
SLEEPS = ["sleep", "1000"]
AT_ONCE = {"alive": 0}
SHORT_SESSION = {"KOLLA_ZK_SESSION_TIMEOUT": "2"}
HELD = (sys.executable, str(Path(__file__).with_name("held_agent.py")))
PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
TERMINATED = 128 + signal.SIGTERM

# A launcher that leaves everything in the state that a daemon must not find.
CARELESS = """
import os, signal, sys
for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""
# One that passes things on, on purpose.
GENEROUS = 'umask 027; cd /; exec 7<"$0"; exec "$@" <"$0"'


@pytest.fixture
def site(deployment: Deployment, zk: KazooClient) -> Site:
    """The service that the tests here publish."""
    return Site(deployment, zk, SERVICE)


def publish_daemon(
    deployment: Deployment,
    command: str | Sequence[str] = SLEEPS,
    ready: Mapping[str, Any] | None = AT_ONCE,
    *,
    commands: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    daemon = {"command": command, "ready": ready, **more}
    publish(deployment, SERVICE, {"commands": commands or {}, "service": {"daemon": daemon}})


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process, in /proc/<pid>/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def words_of(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode().split("\0")[:-1]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sessions(zookeeper: Server) -> set[int]:
    """The sessions that the server keeps, connected or not."""
    lines = [line.strip() for line in zookeeper.ask("dump").splitlines()]
    return {int(line, 16) for line in lines if line.startswith("0x") and ":" not in line}


def await_nothing(agent: Agent, site: Site) -> None:
    """Wait until neither a registrar nor anything in the tree says that there is a daemon."""
    eventually(lambda: not agent.registrar, "the registrar has ended")
    site.await_members(0, seconds=8)  # Sooner than the session would expire.
    assert not site.instances() and not site.instances("web1")


# -- what the daemon finds ----------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["plain", "careless", "generous", "stingy"])
def test_the_daemon_is_what_the_launcher_started(
    deployment: Deployment, containers: Containers, site: Site, launcher: str
) -> None:
    """Process id, arguments, directory, umask and descriptors; default signals, no mask, no children.

    Where the launcher has closed the standard descriptors they are /dev/null, lest something else be there.
    """
    # With a command, so that there was a guard, and pipes to it.
    publish_daemon(deployment, commands={"first": {"command": "echo hello"}})
    (containers.directory / "input").touch()
    under = {
        "plain": (),
        "careless": (sys.executable, "-c", CARELESS),
        "generous": ("sh", "-c", GENEROUS, str(containers.directory / "input")),
        "stingy": ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"),
    }[launcher]
    agent = containers.start(SERVICE, under=under)
    site.await_instances(1)
    status = status_of(agent.pid)
    assert words_of(agent.pid, "cmdline") == SLEEPS
    assert [status[name].strip("0") for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")] == [""] * 4
    assert status["Threads"] == "1"
    assert children_of(agent.pid) == []
    assert os.getsid(agent.pid) == os.getpgid(agent.pid) == agent.pid
    generous = launcher == "generous"
    assert status["Umask"] == ("0027" if generous else "0022")
    assert os.readlink(f"/proc/{agent.pid}/cwd") == ("/" if generous else str(agent.directory))
    standard_input = str(containers.directory / "input") if generous else os.devnull
    output = os.devnull if launcher == "stingy" else str(agent.log)
    expected = {0: standard_input, 1: output, 2: output}
    descriptors = {int(fd.name): os.readlink(fd) for fd in Path(f"/proc/{agent.pid}/fd").iterdir()}
    assert descriptors == (expected | {7: standard_input} if generous else expected)


def test_the_environment_is_the_launchers_and_the_definitions(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """And what the contract adds; without what only the agent has any business with."""
    env = {"KOLLA_BOOTSTRAP": None, "NUMBER": 7, "TEXT": "a=b c\nd", "GIVEN": "by the definition"}
    publish_daemon(deployment, env=env)
    secret = containers.directory / "secret"
    secret.write_text("digest:agent:secret\n")
    agent = containers.start(
        SERVICE, KOLLA_ZK_AUTH_FILE=str(secret), GIVEN="by the launcher", EMPTY="", LANG="C"
    )
    site.await_instances(1)
    expected = {
        **agent.environ,
        **{"KOLLA_BOOTSTRAP": "", "NUMBER": "7", "TEXT": "a=b c\nd", "GIVEN": "by the definition"},
        "KOLLA_CONFIG_STRATEGY": "COPY_ALWAYS",
        "NOTIFY_SOCKET": str(agent.directory / "run" / "notify"),
    }
    del expected["KOLLA_ZK_AUTH_FILE"]
    found = words_of(agent.pid, "environ")
    assert dict(word.split("=", 1) for word in found) == expected
    assert len(found) == len(expected)


def test_a_daemon_that_waits_for_all_its_children_has_none(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Nor do others' orphans come to it: it is no subreaper, though the agent was one."""
    script = (
        "import os, subprocess, time\n"
        "try:\n"
        "    os.wait()\n"
        "except ChildProcessError:\n"
        "    subprocess.run(['sh', '-c', 'sleep 1000 & echo $! >orphan.new; mv orphan.new orphan'])\n"
        "    time.sleep(1000)\n"
    )
    publish_daemon(deployment, [sys.executable, "-c", script], commands={"first": {"command": "true"}})
    agent = containers.start(SERVICE)
    site.await_instances(1)
    orphan = agent.directory / "orphan"
    eventually(orphan.exists, "the daemon has no child to wait for")
    process = psutil.Process(int(orphan.read_text()))
    try:
        # The shell that has left it may not be reaped yet.
        eventually(lambda: children_of(agent.pid) == [], "the orphan isn't the daemon's")
    finally:
        process.kill()


def test_the_daemons_user(deployment: Deployment, containers: Containers, site: Site) -> None:
    """It has the user's group and supplementary groups, and can tell its notify socket that it is ready."""
    notifies = (
        "import os, socket, time\n"
        "notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "notify.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(1000)\n"
    )
    publish_daemon(deployment, [sys.executable, "-c", notifies], {"notify": True}, user="web")
    accounts = {
        "passwd": "root:x:0:0::/:/bin/sh\nweb:x:61234:61235::/nonexistent:/bin/false\n",
        "group": "root:x:0:\nweb:x:61235:\none:x:61236:web\ntwo:x:61237:other,web\nthree:x:61238:other\n",
    }
    for name, text in accounts.items():
        (containers.directory / name).write_text(text)
    mounts = "".join(f'mount --bind "{containers.directory / name}" /etc/{name} && ' for name in accounts)
    # The directories of the tests let nobody in but their owner.
    with tempfile.TemporaryDirectory(prefix="run-") as open_to_all:
        os.chmod(open_to_all, 0o755)
        agent = containers.start(
            SERVICE,
            under=(*unprivileged.launcher(0), "sh", "-c", f'{mounts} exec "$@"', "sh"),
            KOLLA_RUN_DIR=f"{open_to_all}/run",
        )
        site.await_instances(1)
        status = status_of(agent.pid)
        assert status["Uid"].split() == ["61234"] * 4
        assert status["Gid"].split() == ["61235"] * 4
        assert sorted(status["Groups"].split()) == ["61235", "61236", "61237"]
        agent.end()
        await_nothing(agent, site)


# -- how it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 75", 75), ("kill -KILL $$", 137), ("kill -HUP $$", 129)],
)
def test_the_exit_status_is_the_daemons_own(
    deployment: Deployment, containers: Containers, site: Site, command: str, status: int
) -> None:
    """And the last words in the log too; the agent has nothing to say any more."""
    publish_daemon(deployment, ["sh", "-c", f"echo last words; {command}"])
    agent = containers.start(SERVICE)
    assert agent.ends() == status
    assert "last words\n" in agent.said
    # Before its registrar has begun there may be nothing that is registered either.
    eventually(lambda: agent.state.startswith("ended "), "the end is told")
    await_nothing(agent, site)
    assert agent.health().returncode == 1
    assert not (agent.directory / "termination-log").exists()


@pytest.mark.parametrize(
    ("command", "status", "more"),
    [
        (["not-there"], 127, {}),
        (["/not/there"], 127, {}),
        (["./not-executable"], 126, {}),
        (["./directory"], 126, {}),
        (["./not-a-program"], 126, {}),
        (["./without-interpreter"], 127, {}),
        (["sleep", "1000"], 127, {"env": {"PATH": "/nowhere"}}),
        (["sleep", "1000"], 126, {"user": "nobody-knows"}),
    ],
)
def test_what_can_not_be_executed_leaves_nothing_behind(
    deployment: Deployment,
    containers: Containers,
    site: Site,
    command: list[str],
    status: int,
    more: Mapping[str, Any],
) -> None:
    """126 or 127 as a shell says it, told in the last line; no registrar, no ephemeral, never ready."""
    make = (
        "echo >not-executable; mkdir -p directory; printf '#!/not/there\\n' >without-interpreter; "
        "printf '\\0\\0' >not-a-program; chmod +x not-a-program without-interpreter; "
        "until [ -e seen ]; do sleep 0.01; done"
    )
    publish_daemon(deployment, command, commands={"make": {"command": make}}, **more)
    agent = containers.start(SERVICE)
    site.await_members(1)
    history = site.history(f"{site.daemon()}/ready")
    (agent.directory / "seen").touch()
    assert agent.ends() == status
    await_nothing(agent, site)
    assert agent.ending["stage"] in ("render", "exec")
    assert (agent.ending["command"], agent.ending["status"]) == ("web/daemon", status)
    assert agent.ending["retriable"] is False
    assert (agent.directory / "termination-log").read_text() == agent.said.splitlines()[-1]
    assert history == [[]]
    assert agent.health().returncode == 1


def test_the_registrar_of_a_daemon_that_never_was_ends_at_once(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """At the agent's word, while that is still there to close the session itself: they never fight for it."""
    publish_daemon(deployment, ["/not/there"])
    go = containers.directory / "go"
    agent = containers.start(SERVICE, under=(*HELD, "hold", 'self._report.write("ended"', str(go)))
    eventually(Path(f"{go}.reached").exists, "the exec has failed")
    eventually(lambda: list(agent.processes) == [agent.pid], "the registrar has ended")
    assert agent.running and site.members
    go.touch()
    assert agent.ends() == 127
    assert not site.members
    assert " WARNING " not in agent.said


# -- signals on the way -------------------------------------------------------------------------------


def ends_of(agents: Sequence[Agent]) -> list[int]:
    return [agent.ends() for agent in agents]


def lines_on_the_way(containers: Containers, site: Site) -> list[str]:
    """The lines of the agent from Launch.exec to the exec itself, in their order."""
    file = containers.directory / "lines"
    agent = containers.start(SERVICE, under=(*HELD, "signal", "0", str(file)))
    site.await_instances(1)
    agent.end()
    await_nothing(agent, site)
    return file.read_text().splitlines()


def test_a_signal_before_any_line_on_the_way_to_exec_ends_it(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """It is the agent's end or the daemon's, but never nobody's."""
    publish_daemon(deployment)
    lines = lines_on_the_way(containers, site)
    assert any("execvpe" in line for line in lines) and any("SIG_DFL" in line for line in lines)
    for first in range(1, len(lines) + 1, 4):
        agents = [
            containers.start(
                SERVICE, under=(*HELD, "signal", f"{number}", f"{containers.directory}/{number}")
            )
            for number in range(first, min(first + 4, len(lines) + 1))
        ]
        assert ends_of(agents) == [TERMINATED] * len(agents), lines[first - 1 : first + 3]
        for agent in agents:
            await_nothing(agent, site)


def test_a_signal_at_any_instant_ends_it(deployment: Deployment, containers: Containers, site: Site) -> None:
    """From the first instruction of the agent to those of the daemon; half of them around the exec."""
    publish_daemon(deployment)
    begun = time.monotonic()
    containers.start(SERVICE)
    site.await_instances(1)
    whole = time.monotonic() - begun

    def round(number: int) -> int:
        agent = containers.start(SERVICE)
        if number % 2:
            time.sleep(random.uniform(0, whole))
        else:
            eventually(lambda: "daemon: exec" in agent.said, "it is about to exec", every=0.0002)
            time.sleep(random.uniform(0, 0.01))
        agent.signal(signal.SIGTERM)
        return agent.ends()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(round, range(30))) == [TERMINATED] * 30
    # The one that was not asked to end.
    eventually(lambda: len(site.members) == 1, "the others are gone")


def test_the_agent_has_one_thread(deployment: Deployment, containers: Containers, site: Site) -> None:
    """Another one would take signals off the queue that is looked at last before the exec."""
    publish_daemon(deployment, dependencies=["db/daemon"])
    agent = containers.start(SERVICE)
    site.await_members(1)
    assert [int(task.name) for task in Path(f"/proc/{agent.pid}/task").iterdir()] == [agent.pid]


@pytest.mark.parametrize("launcher", ["plain", "careless"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_waiting_ends_the_agent_at_once(
    deployment: Deployment, containers: Containers, site: Site, launcher: str, signum: signal.Signals
) -> None:
    """Whatever mask and dispositions it was started with; the last line says so."""
    publish_daemon(deployment, dependencies=["db/daemon"])
    agent = containers.start(
        SERVICE, under=(sys.executable, "-c", CARELESS) if launcher == "careless" else ()
    )
    site.await_members(1)
    agent.signal(signum)
    assert agent.ends(30) == 128 + signum
    assert agent.ending["reason"] == f"stopped by {signum.name}"
    assert not site.members


# -- without ZooKeeper --------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", ["killed", "frozen", "expired"])
def test_exec_never_waits_for_zookeeper(
    zookeeper: Server, deployment: Deployment, containers: Containers, site: Site, link: Link, outage: str
) -> None:
    """With commands done and files written the daemon starts, and is registered when ZooKeeper is back."""
    publish_daemon(deployment, commands={"first": {"command": "true"}})
    go = containers.directory / "go"
    agent = containers.start(
        SERVICE,
        under=(*HELD, "hold", "os.getpid() == 1", str(go)),
        KOLLA_ZK_HOSTS=link.hosts,
        **SHORT_SESSION,
    )
    eventually(Path(f"{go}.reached").exists, "it is about to exec")
    (member,) = site.await_members(1)
    session = site.owner(f"{site.party}/{member}")
    if outage == "frozen":
        link.freeze()
    else:
        link.kill()
    if outage == "expired":
        eventually(lambda: session not in sessions(zookeeper), "the session expires")
    go.touch()
    eventually(lambda: words_of(agent.pid, "cmdline") == SLEEPS, "the daemon runs")
    eventually(lambda: agent.state == "ready", "probes see it ready")
    link.thaw()
    link.launch()
    assert list(site.await_instances(1)) == list(site.await_members(1)) == [member]
    assert agent.running


# -- the registrar ------------------------------------------------------------------------------------


def test_the_registrar_takes_over_without_a_gap(
    deployment: Deployment, containers: Containers, site: Site, zk: KazooClient
) -> None:
    """The member stays the same znode of the same session; who watches it never hears that it was deleted."""
    publish_daemon(deployment, commands={"first": {"command": "until test -e ../go; do sleep 0.01; done"}})
    agent = containers.start(SERVICE)
    (member,) = site.await_members(1)
    path = f"{site.party}/{member}"
    before = zk.exists(path)
    events: list[WatchedEvent] = []
    zk.exists(path, watch=events.append)
    history = site.history(site.party)
    (containers.directory / "go").touch()
    assert list(site.await_instances(1)) == [member]
    assert zk.exists(path) == before
    assert site.owner(f"{site.daemon()}/ready/{member}") == before.ephemeralOwner
    assert (events, history) == ([], [[member]])
    registrar = agent.registrar
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(registrar, signum)
    # It is nobody's surprise child, and in a session of its own.
    parent = psutil.Process(registrar).ppid()
    assert parent not in (agent.pid, os.getpid()) and os.getsid(registrar) not in (agent.pid, os.getsid(0))
    assert agent.registrar == registrar
    agent.signal(signal.SIGTERM)
    assert agent.ends() == TERMINATED
    await_nothing(agent, site)
    assert agent.running is False and events[0].type == "DELETED"


def test_a_dead_registrar_is_told_by_the_probes(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The daemon runs on, but nobody finds it: that is a failure, for the launcher to mend."""
    publish_daemon(deployment)
    agent = containers.start(SERVICE, **SHORT_SESSION)
    site.await_instances(1)
    os.kill(agent.registrar, signal.SIGKILL)
    eventually(lambda: agent.health().stdout == "daemon runs, unregistered\n", "the probe sees it")
    assert (agent.health().returncode, agent.health("--ready").returncode) == (1, 1)
    site.await_instances(0)
    assert agent.running


# -- as process 1 -------------------------------------------------------------------------------------


def process_1_of(agent: Agent) -> int:
    """The process id out here of the first one in the agent's pid namespace."""
    (first,) = eventually(lambda: children_of(agent.pid), "the namespace has its first process")
    return first


def test_as_process_1_it_ends_by_a_signal_and_reaps_orphans(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """While it waits, and while a command runs; the kernel itself would drop the signal for process 1."""
    wait = {"command": "echo $$ >pid; touch begun; sleep 1000"}
    publish_daemon(deployment, dependencies=["db/daemon"])
    publish(deployment, "infra/runs", {"commands": {"wait": wait}})
    agents = [containers.start(service, under=PROCESS_1) for service in (SERVICE, "infra/runs")]
    site.await_members(1)
    eventually((agents[1].directory / "begun").exists, "the command runs")
    for agent in agents:
        first = process_1_of(agent)
        before = children_of(first)
        script = "(sleep 0.1; touch orphan.ended) & touch orphan.begun"
        namespace = ("nsenter", "--target", str(first), "--pid", "--mount", "--wd")
        subprocess.run([*namespace, "sh", "-c", script], check=True)
        eventually((agent.directory / "orphan.ended").exists, "the orphan has ended")
        eventually(lambda: children_of(first) == before, "it is reaped")  # noqa: B023
        os.kill(first, signal.SIGTERM)
        assert agent.ends() == TERMINATED
        assert agent.ending["reason"] == "stopped by SIGTERM"
    assert not site.members


def test_as_process_1_no_signal_is_lost_while_the_agent_can_still_take_it(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Up to its last look at what has come: from there on it is the daemon's, as for any process 1."""
    publish_daemon(deployment)
    lines = lines_on_the_way(containers, site)
    last = next(number for number, line in enumerate(lines, 1) if "sigpending" in line)
    agents = [
        containers.start(
            SERVICE, under=(*PROCESS_1, *HELD, "signal", f"{number}", f"{containers.directory}/{number}")
        )
        for number in range(1, last + 1)
        if number > last - 6
    ]
    assert ends_of(agents) == [TERMINATED] * len(agents)


def test_as_process_1_the_daemon_gets_all_and_a_warning_is_given(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The registrar is then the daemon's child, as one warning tells; the kernel kills it with the daemon."""
    publish_daemon(deployment, ["sh", "-c", "trap 'exit 7' TERM; sleep 1000 & wait $!"])
    agent = containers.start(SERVICE, under=PROCESS_1, **SHORT_SESSION)
    usual = containers.start(SERVICE)
    site.await_instances(2)
    warnings = [line for line in agent.said.splitlines() if " WARNING " in line]
    assert len([line for line in warnings if "process 1" in line and "dumb-init" in line]) == 1
    assert "dumb-init" not in usual.said
    first = process_1_of(agent)
    assert status_of(first)["NSpid"].split()[-1] == "1"
    assert agent.registrar in children_of(first)
    os.kill(first, signal.SIGTERM)
    assert agent.ends() == 7
    assert not agent.registrar
    site.await_instances(1)


# -- launchers ----------------------------------------------------------------------------------------


def test_as_marathon_runs_it(deployment: Deployment, containers: Containers, site: Site) -> None:
    """Under `/bin/sh -c`, which stays, with Marathon's variables; ended as Mesos does it, the whole tree."""
    publish_daemon(deployment)
    # Several commands, so that the shell doesn't exec the last one by itself.
    under = ("env", "-u", "KOLLA_APP_ID", "-u", "KOLLA_HOSTNAME")
    script = 'cd . && "$0" "$@" && echo never'
    agent = containers.start(
        SERVICE,
        under=(*under, "/bin/sh", "-c", script),
        MARATHON_APP_ID=f"/{deployment.id}/{SERVICE}",
        MESOS_TASK_ID="web.1",
        HOST="agent7",
        PORT0="31001",
        PORTS="31001,31002",
    )
    try:
        (instance,) = site.await_instances(1).values()
        assert (instance["host"], instance["ports"]) == ("agent7", [31001, 31002])
        assert site.instances("agent7")
        (daemon,) = children_of(agent.pid)
        assert words_of(daemon, "cmdline") == SLEEPS
        assert agent.health("--ready", under=("/bin/sh", "-c", '"$0" "$@"; exit $?')).returncode == 0
    finally:
        os.killpg(agent.pid, signal.SIGTERM)
    assert agent.ends() == TERMINATED
    await_nothing(agent, site)
    eventually(lambda: not lives(daemon), "the daemon is gone, and whoever inherited it has noticed")


@pytest.mark.parametrize("end", ["exit", "stay"])
def test_a_finished_task(zookeeper: Server, deployment: Deployment, containers: Containers, end: str) -> None:
    """It exits with 0; or stays, healthy and without a session, until SIGTERM, and exits with 0 then."""
    publish(deployment, "infra/task", {"commands": {"only": {"command": "true"}}})
    before = sessions(zookeeper)
    agent = containers.start("infra/task", KOLLA_TASK_END=end)
    if end == "stay":
        eventually(lambda: agent.state.startswith("finished"), "the task is done")
        eventually(lambda: sessions(zookeeper) <= before, "its session is closed")
        for words in ([], ["--ready"]):
            health = agent.health(*words)
            assert (health.returncode, health.stdout) == (0, "finished all commands are done\n")
        assert agent.running
        agent.signal(signal.SIGTERM)
    assert agent.ends() == 0
    assert sessions(zookeeper) <= before
    assert agent.health().returncode == 1
    assert " WARNING " not in agent.said, "nothing here asks for action"


def test_two_agents_in_one_run_directory(
    deployment: Deployment, containers: Containers, zk: KazooClient
) -> None:
    """The second one is refused, by the variable's name; the first one does not even notice."""
    notifies = (
        "import os, socket, time\n"
        "while not os.path.exists('../go'): time.sleep(0.01)\n"
        "notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "notify.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(1000)\n"
    )
    daemon = {"daemon": {"command": [sys.executable, "-c", notifies], "ready": {"notify": True}}}
    wait = {"wait": {"command": "until test -e ../go; do sleep 0.01; done"}}
    publish(deployment, "infra/runs", {"service": daemon})
    publish(deployment, "infra/waits", {"service": daemon, "commands": wait})
    services, stages = ("infra/runs", "infra/waits"), ("starting ", "bootstrapping ")
    firsts = [containers.start(service) for service in services]
    eventually(
        lambda: all(first.state.startswith(stage) for first, stage in zip(firsts, stages)), "both are there"
    )
    seconds = [
        containers.start(service, KOLLA_RUN_DIR=str(first.directory / "run"))
        for service, first in zip(services, firsts)
    ]
    for second in seconds:
        assert second.ends() == 64
        assert second.ending["stage"] == "environment"
        assert "KOLLA_RUN_DIR" in second.ending["reason"]
        assert "another agent runs here" in second.ending["reason"]
    assert all(first.state.startswith(stage) for first, stage in zip(firsts, stages))
    (containers.directory / "go").touch()
    for service, first in zip(services, firsts):
        Site(deployment, zk, service).await_instances(1)
        assert first.health("--ready").returncode == 0
