"""The daemon replaces the agent: what it inherits, what it does not, and what runs beside it.

Whole agents with a real ZooKeeper. What a daemon inherits is read from the kernel: an interpreter would
change most of it before it could report it.
"""

from __future__ import annotations

import os
import random
import signal
import socket
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

from tests import CHECKOUT
from tests.agent.test_presence import SERVICE, SHORT_SESSION, publish_daemon, sessions
from tests.agent.test_presence import site as site
from tests.conftest import Deployment
from tests.support import unprivileged
from tests.support.agents import Agent, Containers
from tests.support.guarded import lives
from tests.support.instances import Site
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

SLEEPS = ["sleep", "1000"]  # the words of the default daemon
HELD = (sys.executable, str(CHECKOUT / "tests" / "support" / "held_agent.py"))
PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
REFUSED_CALLS = (sys.executable, str(Path(unprivileged.__file__).with_name("refused_calls.py")))
UNREADABLE_PYTHON = (
    "unshare",
    "--mount",
    sys.executable,
    f"{Path(unprivileged.__file__).parent}/unreadable_python.py",
)
TERMINATED = 128 + signal.SIGTERM

# A launcher that leaves signals as a daemon must not inherit them.
CARELESS = """
import os, signal, sys
for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""
# One that passes on umask, directory and descriptors on purpose.
GENEROUS = 'umask 027; cd /; exec 7<"$0"; exec "$@" <"$0"'


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process, in /proc/<pid>/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def words_of(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode().split("\0")[:-1]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def await_nothing(site: Site, *agents: Agent) -> None:
    """Wait until all processes have ended, and nothing is registered."""
    # Not only the registrar: one that is just starting does not have its name yet.
    eventually(lambda: not any(agent.processes for agent in agents), "all processes have ended")
    eventually(
        lambda: not (site.members or site.instances() or site.instances("web1")), "nothing is registered"
    )


# -- what the daemon inherits ----------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["plain", "careless", "generous", "stingy"])
def test_the_daemon_runs_as_if_the_launcher_had_started_it(
    deployment: Deployment, containers: Containers, site: Site, launcher: str
) -> None:
    """Process id, arguments, directory, umask and descriptors; default signals, no mask, no children.

    Standard descriptors that the launcher has closed are /dev/null."""
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


def test_the_daemons_environment(deployment: Deployment, containers: Containers, site: Site) -> None:
    """The launcher's, the definition's and what the contract adds, without the agent's credentials.

    The command that checks it has the same.
    """
    env = {"KOLLA_BOOTSTRAP": None, "NUMBER": 7, "TEXT": "a=b c\nd", "GIVEN": "by the definition"}
    publish_daemon(deployment, SLEEPS, {"command": ["cp", "/proc/self/environ", "check"]}, env=env)
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
    assert sorted((agent.directory / "check").read_text().split("\0")[:-1]) == sorted(found)


def test_a_daemon_that_waits_for_all_its_children_has_none(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """It is no subreaper either, although the agent was one: it does not inherit orphans."""
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


def test_the_daemon_can_run_as_another_user(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """With the user's groups; it can still notify that it is ready."""
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
    # Only its owner can enter the temporary directory of a test.
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
        await_nothing(site, agent)


# -- how it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 75", 75), ("kill -KILL $$", 137)],
)
def test_the_exit_status_is_the_daemons_own(
    deployment: Deployment, containers: Containers, site: Site, command: str, status: int
) -> None:
    """Its last output is in the log too; the agent adds nothing."""
    publish_daemon(deployment, ["sh", "-c", f"echo last words; {command}"])
    agent = containers.start(SERVICE)
    assert agent.ends() == status
    assert "last words\n" in agent.said
    # Before its registrar has begun there may be nothing that is registered either.
    eventually(lambda: agent.state.startswith("ended "), "the end is reported")
    await_nothing(site, agent)
    assert agent.health().returncode == 1
    assert not (agent.directory / "run" / "notify").exists()
    assert not (agent.directory / "termination-log").exists()


@pytest.mark.parametrize(
    ("command", "status", "more"),
    [
        (["not-there"], 127, {}),
        (["./not-executable"], 126, {}),
        (["./not-a-program"], 126, {}),
        (["./without-interpreter"], 127, {}),
        (["sleep", "1000"], 127, {"env": {"PATH": "/nowhere"}}),
        (["sleep", "1000"], 126, {"user": "nobody-knows"}),
    ],
)
def test_a_daemon_that_cannot_be_executed_leaves_nothing(
    deployment: Deployment,
    containers: Containers,
    site: Site,
    command: list[str],
    status: int,
    more: Mapping[str, Any],
) -> None:
    """126 or 127, as in a shell, in the last line; no registrar, no ephemeral, never ready."""
    make = (
        "echo >not-executable; printf '#!/not/there\\n' >without-interpreter; "
        "printf '\\0\\0' >not-a-program; chmod +x not-a-program without-interpreter; "
        "until [ -e seen ]; do sleep 0.01; done"
    )
    publish_daemon(deployment, command, commands={"make": {"command": make}}, **more)
    agent = containers.start(SERVICE)
    site.await_members(1)
    history = site.history(f"{site.daemon()}/ready")
    (agent.directory / "seen").touch()
    assert agent.ends() == status
    await_nothing(site, agent)
    assert agent.ending["stage"] in ("render", "exec")
    assert (agent.ending["command"], agent.ending["status"]) == ("web/daemon", status)
    assert agent.ending["retriable"] is False
    assert (agent.directory / "termination-log").read_text() == agent.said.splitlines()[-1]
    assert history == [[]]
    assert agent.health().returncode == 1


def test_the_registrar_ends_if_exec_fails(deployment: Deployment, containers: Containers, site: Site) -> None:
    """The agent tells it to, and then closes the session itself: they never compete for it."""
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
    await_nothing(site, agent)
    return file.read_text().splitlines()


def test_a_signal_before_any_line_on_the_way_to_exec_is_honoured(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """It ends the agent or the daemon, and is never lost."""
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
        await_nothing(site, *agents)


def test_a_signal_at_any_instant_is_honoured(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """From the first instruction of the agent to the daemon; half of them around the exec."""
    publish_daemon(deployment)
    begun = time.monotonic()
    containers.start(SERVICE)
    site.await_instances(1)
    whole = time.monotonic() - begun

    instants = random.Random(1)

    def interrupt(agent: Agent, number: int, instant: float) -> int:
        if number % 2:
            time.sleep(instant * whole)
        else:
            eventually(lambda: "daemon: exec" in agent.said, "it is about to exec", every=0.0002)
            time.sleep(instant * 0.01)
        agent.signal(signal.SIGTERM)
        return agent.ends()

    with ThreadPoolExecutor(3) as pool:
        for numbers in zip(*[iter(range(30))] * 3):
            agents = [containers.start(SERVICE) for _ in numbers]
            ends = pool.map(interrupt, agents, numbers, [instants.random() for _ in numbers])
            assert list(ends) == [TERMINATED] * 3, numbers
    # The one that was not asked to end.
    eventually(lambda: len(site.members) == 1, "the others are gone")


@pytest.mark.parametrize("launcher", ["plain", "careless"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_waiting_ends_the_agent_at_once(
    deployment: Deployment, containers: Containers, site: Site, launcher: str, signum: signal.Signals
) -> None:
    """Whatever mask and dispositions it inherited; the last line names the signal."""
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


@pytest.mark.parametrize(
    ("outage", "before", "more"),
    [
        ("killed", "os.getpid() == 1", {}),
        ("frozen", "latest = ", {"generations": None}),
        ("expired", "os.getpid() == 1", {}),
    ],
)
def test_exec_never_waits_for_zookeeper(
    zookeeper: Server,
    deployment: Deployment,
    containers: Containers,
    site: Site,
    link: Link,
    outage: str,
    before: str,
    more: Mapping[str, Any],
) -> None:
    """When commands are done and files are written, the daemon starts; it is registered later.

    Only with a list of generations, it must know that the definition is the latest; null is no list.
    """
    publish_daemon(deployment, commands={"first": {"command": "true"}}, **more)
    go = containers.directory / "go"
    agent = containers.start(
        SERVICE,
        under=(*HELD, "hold", before, str(go)),
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
    """The member stays the same znode of the same session; a watcher sees no deletion."""
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
    # It is not a child of daemon or launcher, and has its own session.
    parent = psutil.Process(registrar).ppid()
    assert parent not in (agent.pid, os.getpid()) and os.getsid(registrar) not in (agent.pid, os.getsid(0))
    assert agent.registrar == registrar
    agent.signal(signal.SIGTERM)
    assert agent.ends() == TERMINATED
    await_nothing(site, agent)
    assert agent.running is False and events[0].type == "DELETED"


def test_probes_report_a_dead_registrar(deployment: Deployment, containers: Containers, site: Site) -> None:
    """The daemon still runs, but others cannot find it: the launcher has to restart the container."""
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


def test_as_process_1_no_signal_is_lost_before_exec(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """Up to its last check for pending signals: then it is the daemon's, as for any process 1."""
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


def test_as_process_1_one_warning_names_dumb_init(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The registrar is then the daemon's child, and the kernel kills it with the daemon."""
    publish_daemon(deployment, ["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"])
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
    """Under `/bin/sh -c`, with Marathon's variables; Mesos ends the whole process tree."""
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
    await_nothing(site, agent)
    eventually(lambda: not lives(daemon), "the daemon is gone, and reaped")


@pytest.mark.parametrize("end", ["exit", "stay"])
def test_a_finished_task_exits_or_stays(
    zookeeper: Server, deployment: Deployment, containers: Containers, end: str
) -> None:
    """It exits with 0; or it stays, healthy and without a session, until SIGTERM."""
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
    assert not (agent.directory / "termination-log").exists()


# -- what the container refuses --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exec", "supervise"])
@pytest.mark.parametrize("call", ["pidfd_open", "memfd_create"])
def test_a_system_call_that_is_refused_is_named(
    deployment: Deployment, containers: Containers, call: str, mode: str
) -> None:
    publish_daemon(deployment)
    agent = containers.start(SERVICE, under=(*REFUSED_CALLS, call), KOLLA_START_MODE=mode)
    assert agent.ends() == 126
    reason = agent.ending["reason"]
    assert f"the system call {call} is refused (Operation not permitted)" in reason
    assert "seccomp profile" in reason


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_the_user_of_a_daemon_need_not_read_python(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """Nor need that of a command, of its checks, and of `before_stop`."""
    commands = {"first": {"command": "id -u", "user": "65534"}}
    ready = {"command": "true"}
    publish_daemon(deployment, ready=ready, commands=commands, user="65534", before_stop="true")
    agent = containers.start(SERVICE, under=UNREADABLE_PYTHON, KOLLA_START_MODE=mode)
    eventually(site.instances, "it is ready", seconds=40)
    stopped = agent.stop()
    assert (stopped.returncode, stopped.stdout) == (0, "drained; the daemon has ended\n")
    assert "before_stop has succeeded" in agent.said


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_another_user_may_open_the_standard_streams_by_name(
    deployment: Deployment, containers: Containers, site: Site, mode: str
) -> None:
    """As in a container whose user is set by its launcher: for commands, hooks and the daemon."""
    writes = "echo said by {} >/dev/stderr; echo >>/proc/self/fd/1"
    commands = {"first": {"command": writes.format("a command"), "user": "65533"}}
    daemon = ["sh", "-ec", writes.format("the daemon") + "; exec sleep 1000"]
    before_stop = ["sh", "-ec", writes.format("before_stop")]
    publish_daemon(deployment, daemon, commands=commands, user="65534", before_stop=before_stop)
    piped = ("bash", "-c", 'exec "$@" > >(exec cat) 2>&1', "bash")
    agent = containers.start(SERVICE, under=piped, KOLLA_START_MODE=mode)
    site.await_instances(1)
    assert agent.stop().returncode == 0
    for who in ("a command", "the daemon", "before_stop"):
        eventually(lambda: f"said by {who}" in agent.said, who)  # noqa: B023


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_a_missing_program_is_named_although_its_user_cannot_read_python(
    deployment: Deployment, containers: Containers, mode: str
) -> None:
    publish_daemon(deployment, ["/no/such-program"], user="65534")
    agent = containers.start(SERVICE, under=UNREADABLE_PYTHON, KOLLA_START_MODE=mode)
    assert agent.ends() == 127
    assert "program '/no/such-program' was not found" in agent.ending["reason"]


@pytest.mark.parametrize(("uid", "runs_as"), [("65534", "nobody (uid 65534)"), ("0", "root (uid 0)")])
def test_a_user_that_the_container_may_not_become_is_named(
    deployment: Deployment, containers: Containers, uid: str, runs_as: str
) -> None:
    """With whose the container is."""
    ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    under = ("setpriv", *ids, "--bounding-set=-all", "--inh-caps=-all")
    with tempfile.TemporaryDirectory(prefix="run-") as open_to_all:
        os.chmod(open_to_all, 0o777)
        environ = {name: f"{open_to_all}/{name}" for name in ("KOLLA_RUN_DIR", "KOLLA_STATE_DIR")}
        publish_daemon(deployment, user="1")
        agent = containers.start(SERVICE, under=under, **environ)
        assert agent.ends() == 126
        assert (
            f"user '1' (uid 1): this container runs as {runs_as}, without the right (capabilities "
            "SETGID, SETUID) to become another user: start it as uid 1 (`user` in launch.yml), or change the "
            "user in the definition"
        ) in agent.said


def test_root_without_rights_stays_root(deployment: Deployment, containers: Containers, site: Site) -> None:
    """A daemon of root's needs no right; a command of another user's ends the agent before anything runs."""
    under = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    publish_daemon(deployment, user="root")
    agent = containers.start(SERVICE, under=under)
    site.await_instances(1)
    agent.end()
    await_nothing(site, agent)
    publish_daemon(deployment, commands={"go": {"command": "true", "user": "1"}})
    agent = containers.start(SERVICE, under=under)
    assert agent.ends() == 126
    assert agent.ending["command"] == "web/go"


# -- an outer service manager ----------------------------------------------------------------------------

# As systemd starts a service with a socket; it passes the process id of the shell, which execs.
MANAGED = ("sh", "-c", 'exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 WATCHDOG_PID=$$ exec "$@"', "sh")
SERVES = """
import os, signal, socket
def stops(number, frame):
    say("STOPPING=1\\nMAINPID=1")
    with open("heard", "a") as file:
        file.write("TERM")
def say(text):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
signal.signal(15, stops)
is_own = all(os.environ[name] == str(os.getpid()) for name in ("LISTEN_PID", "WATCHDOG_PID"))
target = os.readlink("/proc/self/fd/3")
with open("served", "w") as file:
    file.write(f"{is_own} {os.environ['LISTEN_FDS']} {target} {os.environ['WATCHDOG_USEC']}")
say("WATCHDOG=1\\nSTATUS=secret")
say("READY=1")
while True:
    signal.pause()
"""
OF_MANAGER = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_PID", "WATCHDOG_USEC")


@pytest.mark.parametrize("mode", ["exec", "supervise"])
def test_an_outer_service_manager_sees_the_daemon(
    deployment: Deployment, containers: Containers, site: Site, tmp_path: Path, mode: str
) -> None:
    """Its sockets reach the daemon, and READY and STOPPING reach it; commands see nothing of it."""
    commands = {"first": {"command": f"env | grep -E '{'|'.join(OF_MANAGER)}' || :", "succeeds": [0]}}
    daemon = [sys.executable, "-I", "-S", "-c", SERVES]
    publish_daemon(deployment, daemon, {"notify": True}, commands=commands)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        manager.settimeout(30)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "manager"), "WATCHDOG_USEC": "5", "KOLLA_START_MODE": mode}
        agent = containers.start(SERVICE, under=MANAGED, **environ)
        assert [manager.recv(4096), manager.recv(4096)] == [b"WATCHDOG=1", b"READY=1"]
        assert (agent.directory / "served").read_text() == "True 1 /dev/null 5"
        assert not any(name in agent.said for name in OF_MANAGER)
        os.kill(next(pid for pid in agent.processes if SERVES in words_of(pid, "cmdline")), signal.SIGTERM)
        assert manager.recv(4096) == b"STOPPING=1"
        eventually(lambda: not site.instances(), "it is withdrawn")


def test_a_daemon_that_stops_on_its_own_is_killed_after_stop_grace(
    deployment: Deployment, containers: Containers, site: Site
) -> None:
    """The launcher has signalled all processes: the daemon does not get the signal twice."""
    source = SERVES.replace("is_own = ", "is_own = True or ").replace("/proc/self/fd/3", "/proc/self/exe")
    source = source.replace("os.environ['LISTEN_FDS']", "0").replace("os.environ['WATCHDOG_USEC']", "0")
    daemon = [sys.executable, "-I", "-S", "-c", source]
    publish_daemon(deployment, daemon, {"notify": True}, stop_grace=1)
    agent = containers.start(SERVICE, KOLLA_START_MODE="supervise")
    eventually(site.instances, "it is ready", seconds=30)
    os.kill(next(pid for pid in agent.processes if source in words_of(pid, "cmdline")), signal.SIGTERM)
    eventually(lambda: not site.instances(), "it is withdrawn", seconds=30)
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 128 + signal.SIGKILL
    assert (agent.directory / "heard").read_text() == "TERM"
