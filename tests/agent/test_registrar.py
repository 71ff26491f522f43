"""The registrar beside a real daemon: what it keeps registered, and what it survives."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from kolla_mesos_start.health import health as probe
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, free_port

STAND_IN = CHECKOUT / "tests" / "support" / "stand_in_agent.py"
NOTIFY, ALIVE = ["notify", None, 1.0, 1.0, 1], ["alive", 0.2, 1.0, 1.0, 1]

SLEEP = ["sleep", "300"]
PYTHON_NOTIFIES = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for line in sys.stdin:
    ours.sendto(line.strip().encode().decode("unicode_escape").encode("latin-1"), os.environ["NOTIFY_SOCKET"])
    print("sent", flush=True)
"""
NOTIFIES = [sys.executable, "-c", PYTHON_NOTIFIES]


class Container:
    """A daemon and its registrar, started by an agent reduced to its end."""

    def __init__(self, zookeeper: Server, zk: KazooClient, deployment: Deployment, run_dir: Path) -> None:
        self.zk = zk
        self._hosts = [["127.0.0.1", zookeeper.port]]
        self.run_dir = run_dir
        self.log = run_dir.with_name(f"{run_dir.name}.log")
        self.service = f"{deployment.path}/openstack/web"
        daemon = f"{deployment.path}/status/global/web/daemon"
        self.member, self.ready, self.state = (
            f"{self.service}/.party/one",
            f"{daemon}/ready/one",
            daemon,
        )
        self.parents = [
            [f"{deployment.path}/status", ""],
            [f"{deployment.path}/status/global", ""],
            [f"{deployment.path}/status/global/web", "openstack/web"],
            [daemon, "waiting"],
            [f"{daemon}/ready", ""],
            [f"{self.service}/.party", ""],
        ]
        self.session: tuple[int, bytes] = (0, b"")
        self.process: subprocess.Popen[bytes]

    def start(self, daemon: Sequence[str], check: list[Any], **more: Any) -> Container:
        self.zk.ensure_path(self.service)
        options = {
            "hosts": self._hosts,
            "run_dir": str(self.run_dir),
            "presence": [[self.member, '{"host": "h"}']],
            "ready": [[self.ready, '{"host": "h"}']],
            "parents": self.parents,
            "states": [self.state],
            "acl": [],
            "check": check,
            "daemon": list(daemon),
            "linger": 0.0,
            "member": True,
            **more,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(STAND_IN), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "MARK": "of the daemon",
                    "KOLLA_RUN_DIR": str(self.run_dir),
                },
            )
        assert self.process.stdout
        session, password = json.loads(self.process.stdout.readline())
        self.session = (session, bytes.fromhex(password))
        assert json.loads(self.process.stdout.readline()) == [], "the agent's connection was disturbed"
        return self

    def say(self, line: str) -> None:
        """Have the daemon send a datagram, and wait until it has."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"sent\n"

    @property
    def registrar(self) -> int:
        """The registrar's process id; 0 where there is none."""
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdigit() and (entry / "comm").read_text() == "kolla_registrar\n"
                mark = f"KOLLA_RUN_DIR={self.run_dir}"
                if ours and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue  # It has ended meanwhile.
        return 0

    @property
    def stage(self) -> str:
        return (self.run_dir / "state").read_text().split()[0]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()
        eventually(lambda: not self.registrar, "the registrar ends with its daemon")


@pytest.fixture
def container(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, tmp_path: Path
) -> Iterator[Container]:
    """A container that a test starts; its daemon and registrar are ended afterwards."""
    container = Container(zookeeper, zk, deployment, tmp_path / "run")
    yield container
    zookeeper.mend()
    container.end()


def exists(zk: KazooClient, path: str) -> Callable[[], bool]:
    return lambda: zk.retry(zk.exists, path) is not None


def gone(zk: KazooClient, path: str) -> Callable[[], bool]:
    return lambda: zk.retry(zk.exists, path) is None


def owner(zk: KazooClient, path: str) -> int:
    stat = zk.exists(path)
    return stat.ephemeralOwner if stat else 0


def expire(zookeeper: Server, session: tuple[int, bytes]) -> None:
    """End a session from outside, as its expiry would."""
    thief = KazooClient(hosts=zookeeper.hosts, client_id=session)
    thief.start()
    thief.stop()
    thief.close()


def test_an_early_registrar_leaves_the_agents_connection_alone(container: Container, zk: KazooClient) -> None:
    """It may be up long before the exec."""
    container.start(SLEEP, ALIVE, linger=1.0)
    eventually(lambda: owner(zk, container.ready) == container.session[0], "it is ready")


def test_a_check_can_be_a_command(container: Container, zk: KazooClient) -> None:
    """It has the daemon's environment, and does not ignore the signals that the registrar ignores."""
    script = 'test "$MARK" || exit 1; sh -c "kill -TERM \\$\\$; exit 0"; test $? = 143'
    container.start(SLEEP, ["command", ["sh", "-c", script], 0.1, 5.0, 1])
    eventually(exists(zk, container.ready), "it is ready")


def test_a_check_that_hangs_ends_with_the_daemon(
    container: Container, zk: KazooClient, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    zk.ensure_path(container.service)
    script = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 300"
    container.start(SLEEP, ["command", ["sh", "-c", script], 1.0, 300.0, 1])
    eventually(pid.exists, "the check runs")
    container.process.kill()
    eventually(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "it has ended")


def test_a_check_can_be_a_url(container: Container, zookeeper: Server, zk: KazooClient) -> None:
    """Names are resolved, also that of ZooKeeper."""
    port = free_port()
    container.start(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        ["http", f"http://localhost:{port}/", 0.1, 5.0, 1],
        hosts=[["localhost", zookeeper.port]],
    )
    eventually(exists(zk, container.ready), "it is ready")


def test_a_check_can_be_a_url_with_tls(container: Container, zk: KazooClient, tmp_path: Path) -> None:
    """The registrar loads TLS only when it needs it."""
    port, key, cert = free_port(), str(tmp_path / "key"), str(tmp_path / "cert")
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=elsewhere"
    subprocess.run(
        ["openssl", *request.split(), "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL
    )
    container.start(
        ["openssl", "s_server", "-quiet", "-www", "-accept", str(port), "-cert", cert, "-key", key],
        ["http", f"https://127.0.0.1:{port}/", 0.1, 5.0, 1],
    )
    eventually(exists(zk, container.ready), "it is ready")


def test_a_daemon_that_ends_at_once_leaves_nothing(container: Container, zk: KazooClient) -> None:
    """Also if it ends before the registrar has attached."""
    container.start(["true"], ALIVE)
    container.process.wait()
    eventually(gone(zk, container.member), "the member is gone")
    eventually(lambda: not container.registrar, "the registrar has ended")


def test_an_outage_ends_neither_daemon_nor_registrar(
    container: Container, zookeeper: Server, zk: KazooClient
) -> None:
    """Readiness is followed during the outage, and registered after it."""
    container.start(NOTIFIES, NOTIFY)
    eventually(lambda: container.stage == "starting", "the registrar is there")
    zookeeper.kill()
    container.say("READY=1")
    eventually(lambda: container.stage == "ready", "probes see it ready")
    registrar = container.registrar
    zookeeper.start()
    eventually(exists(zk, container.ready), "it is ready")
    assert container.registrar == registrar and container.process.poll() is None
    warnings = [line for line in container.log.read_text().splitlines() if " WARNING " in line]
    # The server may have gone before the registrar had taken the session over, or after.
    outages = [line for line in warnings if "can't connect" in line or "lost the connection" in line]
    assert len(outages) == 1


def test_a_flooded_notify_socket_does_not_block(container: Container, zk: KazooClient) -> None:
    """Thousands of datagrams, some of them garbage, are read; READY=1 after them counts."""
    flood = (
        "import os, socket, time\n"
        "ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "ours.settimeout(60)\n"
        "for n in range(20000):\n"
        "    ours.sendto(os.urandom(n % 2000), os.environ['NOTIFY_SOCKET'])\n"
        "ours.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(300)\n"
    )
    container.start([sys.executable, "-c", flood], NOTIFY)
    eventually(exists(zk, container.ready), "it is ready", seconds=120)
    assert owner(zk, container.member) == container.session[0]


STRANGER = """
import os, socket, sys
theirs = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
theirs.connect(sys.argv[1])
os.setuid(4711)
for message in sys.argv[2:]:
    theirs.send(message.encode())
"""


def test_notifications_of_another_user_are_refused(container: Container, zk: KazooClient) -> None:
    """Neither READY=1 nor STOPPING=1; the log names the user once."""

    def stranger(*messages: str) -> None:
        path = str(container.run_dir / "notify")
        subprocess.run([sys.executable, "-c", STRANGER, path, *messages], check=True)

    container.start(NOTIFIES, NOTIFY)
    eventually(lambda: container.registrar, "the registrar is there")
    stranger("READY=1", "READY=1")
    eventually(lambda: "of uid 4711" in container.log.read_text(), "the registrar has read it")
    container.say("STATUS=after the stranger")
    assert container.stage == "starting" and not zk.exists(container.ready)
    container.say("READY=1")
    eventually(exists(zk, container.ready), "it is ready")
    stranger("STOPPING=1")
    container.say("RELOADING=1")
    container.say("READY=1")
    assert container.stage == "ready"
    assert container.log.read_text().count("refused a message to the notify socket") == 1


def test_a_process_of_the_daemon_may_notify_as_any_user(container: Container, zk: KazooClient) -> None:
    """A service may start as root, become another user, and notify then."""
    notifies = (
        "import os, socket, time\n"
        "if os.fork():\n"
        "    time.sleep(300)\n"
        "ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "ours.connect(os.environ['NOTIFY_SOCKET'])\n"
        "os.setuid(4711)\n"
        "ours.send(b'READY=1')\n"
        "time.sleep(300)\n"
    )
    container.start([sys.executable, "-c", notifies], NOTIFY)
    eventually(exists(zk, container.ready), "it is ready")


def test_the_registrar_is_no_child_of_the_daemon(container: Container, zk: KazooClient) -> None:
    """Neither of them holds a descriptor of the other."""
    container.start(SLEEP, ALIVE)
    eventually(exists(zk, container.ready), "it is ready")
    daemon, registrar = Path(f"/proc/{container.process.pid}"), Path(f"/proc/{container.registrar}")
    assert (daemon / "task" / daemon.name / "children").read_text() == ""
    assert {int(fd.name) for fd in (daemon / "fd").iterdir()} == {0, 1, 2}
    session_id = (registrar / "stat").read_text().rpartition(")")[2].split()[3]
    assert session_id not in (registrar.name, str(os.getsid(0)))
    held = sorted(os.readlink(fd).split(":")[0] for fd in (registrar / "fd").iterdir())
    lock, log = str(container.run_dir / "lock"), str(container.log)
    expected = ["/dev/null", "/dev/null", lock, log, "anon_inode", "socket", "socket"]
    assert held == sorted(expected)


def test_the_registrar_is_small(container: Container, zk: KazooClient) -> None:
    """At most 15 MB and one thread, once it has registered everything."""
    container.start(SLEEP, ALIVE)
    eventually(lambda: zk.exists(container.ready) and zk.get(container.state)[0] == b"running", "it is ready")
    lines = Path(f"/proc/{container.registrar}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    assert int(status["VmRSS"].split()[0]) < 15 * 1024
    assert status["Threads"].strip() == "1"


def test_a_registrar_without_descriptors_connects_when_it_has_some(
    container: Container, zookeeper: Server, zk: KazooClient
) -> None:
    """After its connection is lost it can open no socket; it keeps trying."""

    def wakes() -> int:
        """How often it has woken up: each failed attempt is one."""
        status = Path(f"/proc/{registrar}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    container.start(SLEEP, ALIVE)
    eventually(exists(zk, container.ready), "it is ready")
    registrar = container.registrar
    limits = resource.prlimit(registrar, resource.RLIMIT_NOFILE)
    resource.prlimit(registrar, resource.RLIMIT_NOFILE, (3, limits[1]))
    zookeeper.kill()
    zookeeper.start()
    eventually(lambda: "lost the connection" in container.log.read_text(), "it has no connection")
    before = wakes()
    eventually(lambda: wakes() > before, "it tries to connect")
    assert "connected to ZooKeeper again" not in container.log.read_text()
    resource.prlimit(registrar, resource.RLIMIT_NOFILE, limits)
    eventually(lambda: "connected to ZooKeeper again" in container.log.read_text(), "it is back")
    eventually(exists(zk, container.ready), "it is ready")
    assert container.registrar == registrar


@pytest.fixture
def small_disk(container: Container) -> Iterator[Path]:
    """The container's run directory, on a file system of its own with little room."""
    container.run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(container.run_dir)], check=True)
    yield container.run_dir
    subprocess.run(["umount", "--lazy", str(container.run_dir)], check=True)


def test_a_full_disk_does_not_stop_registering(
    container: Container, zk: KazooClient, small_disk: Path
) -> None:
    """The state for probes is written when there is room again."""
    container.start(NOTIFIES, NOTIFY)
    eventually(lambda: container.stage == "starting", "the registrar is there")
    with pytest.raises(OSError, match="No space left on device"):
        (small_disk / "filler").write_bytes(bytes(1 << 20))
    container.say("READY=1")
    eventually(exists(zk, container.ready), "it is ready")
    eventually(lambda: "No space left on device" in container.log.read_text(), "it says so")
    assert container.stage == "starting"
    container.say("STOPPING=1")
    eventually(gone(zk, container.ready), "it is withdrawn")
    container.say("READY=1")
    eventually(exists(zk, container.ready), "it is ready again")
    (small_disk / "filler").unlink()
    eventually(lambda: container.stage == "ready", "it is written when there is room", seconds=60)
    assert container.log.read_text().count("No space left on device") == 1


def test_a_deleted_instance_is_created_again(container: Container, zk: KazooClient) -> None:
    """Also if the whole status tree was deleted."""
    container.start(SLEEP, ALIVE)
    eventually(exists(zk, container.ready), "it is ready")
    zk.delete(container.parents[0][0], recursive=True)
    eventually(exists(zk, container.ready), "it is back")
    assert zk.get(container.parents[2][0])[0] == b"openstack/web"


def test_a_deleted_deployment_stays_deleted(
    container: Container, deployment: Deployment, zk: KazooClient
) -> None:
    """Nothing is created until it is published again."""
    container.start(SLEEP, ALIVE)
    eventually(exists(zk, container.ready), "it is ready")
    zk.delete(deployment.path, recursive=True)
    eventually(lambda: "can't be created" in container.log.read_text(), "it says so")
    assert zk.exists(deployment.path) is None
    zk.ensure_path(container.service)
    eventually(exists(zk, container.ready), "it is back", seconds=60)
    eventually(exists(zk, container.member), "it is back", seconds=60)


def test_an_instance_created_by_hand_is_replaced(container: Container, zk: KazooClient) -> None:
    """Also if it is not ephemeral."""
    zk.create(container.ready, b"{}", makepath=True)
    container.start(SLEEP, ALIVE)
    eventually(lambda: owner(zk, container.ready) == container.session[0], "it is replaced")


def test_a_member_that_the_agent_could_not_create_is_created(container: Container, zk: KazooClient) -> None:
    """An outage may have kept the agent from replacing its previous member."""
    zk.create(container.member, b"{}", ephemeral=True, makepath=True)
    container.start(SLEEP, ALIVE, member=False)
    eventually(lambda: owner(zk, container.member) == container.session[0], "it is replaced")


def test_two_containers_with_one_id_do_not_fight(container: Container, zk: KazooClient) -> None:
    """The later one keeps the instance; when it is gone, the first one registers again."""
    container.start(SLEEP, ALIVE)
    # Not when the instance is there: before the registrar has looked, another one's would be a predecessor's.
    eventually(lambda: zk.get(container.state)[0] == b"running", "it has seen that the instance is its own")
    transaction = zk.transaction()
    transaction.delete(container.ready)
    transaction.create(container.ready, b"{}", ephemeral=True)
    transaction.commit()
    eventually(lambda: "another container has taken" in container.log.read_text(), "it sees him")
    assert owner(zk, container.ready) == zk.client_id[0]
    zk.delete(container.ready)
    eventually(lambda: owner(zk, container.ready) == container.session[0], "it is back")


def test_a_daemon_whose_registration_is_denied_is_alive_but_not_ready(
    container: Container, zookeeper: Server, zk: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """The readiness probe says what is denied; when it is allowed again, the instance is created."""

    def health(*options: str) -> tuple[int, str]:
        status = probe(options, {"KOLLA_RUN_DIR": str(container.run_dir)})
        return status, capsys.readouterr().out

    container.start(SLEEP, ALIVE)
    eventually(lambda: health("--ready")[0] == 0, "it is ready")
    parent = container.parents[4][0]
    zk.set_acls(parent, [make_acl("world", "anyone", read=True, admin=True)])
    expire(zookeeper, container.session)
    eventually(lambda: health("--ready")[0] == 1, "it is no longer registered")
    said = f"not registered: {container.ready} can't be created: NoAuthError: the ACL of"
    assert said in health("--ready")[1]
    assert health()[0] == 0
    assert "NoAuthError" in container.log.read_text()
    zk.set_acls(parent, [make_acl("world", "anyone", all=True)])
    eventually(lambda: health("--ready")[0] == 0, "it is registered again", seconds=60)
