"""What the probe says of a container, from the lock and the state that the agent left."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

from kolla_mesos_start import health as health_module
from kolla_mesos_start.errors import BadEnvironment, CannotWrite
from kolla_mesos_start.health import VERDICTS, StateFile, default_run_dir, health

if TYPE_CHECKING:
    from kolla_mesos_start.health import Stage


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def state_file(run_dir: str) -> Iterator[StateFile]:
    """The state of an agent that runs as long as the test."""
    taken = StateFile.take(run_dir)
    yield taken
    os.close(taken.fd)


# The exit statuses of `health` and `health --ready` while the lock is held, and after it is gone.
STAGES: list[tuple[Stage, int, int, str]] = [
    ("waiting", 0, 1, "no agent runs here; its last state: waiting on mariadb"),
    ("bootstrapping", 0, 1, "no agent runs here; its last state: bootstrapping on mariadb"),
    ("starting", 0, 1, "daemon runs, unregistered"),
    ("ready", 0, 0, "daemon runs, unregistered"),
    ("unready", 0, 1, "daemon runs, unregistered"),
    ("draining", 0, 1, "daemon runs, unregistered"),
    ("finished", 0, 0, "no agent runs here; its last state: finished on mariadb"),
    ("ended", 1, 1, "no agent runs here; on mariadb: start the container again"),
]


@pytest.mark.parametrize(("stage", "alive", "ready", "without"), STAGES)
def test_the_probe_prints_the_stage_while_the_lock_is_held(
    capsys: pytest.CaptureFixture[str], run_dir: str, stage: Stage, alive: int, ready: int, without: str
) -> None:
    """If the lock is free, the agent or registrar has died, and the status is 1."""
    environ = {"KOLLA_RUN_DIR": run_dir}
    state_file = StateFile.take(run_dir)
    state_file.write(stage, "on mariadb")
    assert health([], environ) == alive
    assert health(["--ready"], environ) == ready
    os.close(state_file.fd)
    assert health([], environ) == health(["--ready"], environ) == 1
    held = f"{stage} on mariadb"
    assert capsys.readouterr().out.splitlines() == [held, held, without, without]


def test_every_stage_is_in_the_table() -> None:
    """A new stage needs a verdict here too."""
    assert {stage for stage, *_ in STAGES} == set(VERDICTS)


@pytest.mark.parametrize(
    ("age", "status"), [(None, 0), (599, 0), (601, 1)], ids=["has been ready", "in time", "late"]
)
@pytest.mark.parametrize("argv", [["--started", "600"], ["--started=600"]])
def test_a_start_may_be_limited(
    capsys: pytest.CaptureFixture[str],
    run_dir: str,
    state_file: StateFile,
    argv: list[str],
    age: int | None,
    status: int,
) -> None:
    """Only until the daemon has been ready; the other probes have no limit."""
    environ = {"KOLLA_RUN_DIR": run_dir}
    started = None if age is None else time.clock_gettime(time.CLOCK_BOOTTIME) - age
    state_file.write("starting", "exit status 1", started)
    assert (health([], environ), health(["--ready"], environ)) == (0, 1)
    capsys.readouterr()
    assert health(argv, environ) == status
    late = "not ready within 600 s of its start; " if status else ""
    assert capsys.readouterr().out == f"{late}starting exit status 1\n"


@pytest.mark.parametrize(
    "argv",
    [
        *(["--redy"], ["--ready", "--ready"], [""], ["--ready", ""], ["--started"], ["--started", "0"]),
        *(["--started", "-1"], ["--started", "1.5"], ["--started", "\N{SUPERSCRIPT TWO}"]),
        *(["--started", "9" * 10], ["--started", "1", "--ready"], ["--started=1=1"]),
    ],
)
def test_an_unknown_argument_is_64(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """A misspelt probe must not look like a healthy or an unhealthy container."""
    assert health(argv, {}) == 64
    assert capsys.readouterr().out == "usage: kolla_mesos_start health [--ready | --started SECONDS]\n"


@pytest.mark.parametrize(
    ("run_dir", "expected"),
    [("run", "an absolute path"), ("/" + "x" * 80, "a path of at most 80 bytes, because it holds a socket")],
)
def test_a_directory_that_no_agent_takes_is_64(
    capsys: pytest.CaptureFixture[str], run_dir: str, expected: str
) -> None:
    """An agent says the same of it, so no probe may take another one's."""
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 64
    assert capsys.readouterr().out == f"KOLLA_RUN_DIR is {run_dir!r}: expected {expected}\n"


def test_without_an_agent_it_is_1(capsys: pytest.CaptureFixture[str], run_dir: str) -> None:
    """The line names the directory, which may be the wrong one."""
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 1
    assert capsys.readouterr().out == f"no agent runs here; its last state: nothing in {run_dir}\n"


def test_a_directory_that_can_not_be_read_is_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line says why; there is no traceback."""
    (tmp_path / "file").touch()
    assert health([], {"KOLLA_RUN_DIR": f"{tmp_path}/file"}) == 1
    assert capsys.readouterr().out == f"{tmp_path}/file/lock: Not a directory\n"


@pytest.mark.parametrize("content", ["", "\n", "read", "b\xe4d \udcff\n"])
def test_an_unknown_state_is_1(
    capsys: pytest.CaptureFixture[str], run_dir: str, state_file: StateFile, content: str
) -> None:
    """Only the stages of the table can be healthy."""
    Path(run_dir, "state").write_bytes(content.encode(errors="surrogateescape"))
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_two_probes_at_the_same_time_do_not_look_like_an_agent(run_dir: str) -> None:
    """A liveness and a readiness probe at the same time do not make a dead container look alive."""
    os.close(StateFile.take(run_dir).fd)
    with ThreadPoolExecutor(2) as probes:
        assert set(probes.map(lambda _: health([], {"KOLLA_RUN_DIR": run_dir}), range(2000))) == {1}


@pytest.fixture(params=["flock", "fcntl"])
def strangers_lock(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Locks a file in each way that somebody can who may only read it."""
    with contextlib.ExitStack() as opened:

        def lock(path: str) -> None:
            file = opened.enter_context(open(path))
            if request.param == "flock":
                fcntl.flock(file, fcntl.LOCK_EX)
            else:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, fcntl.F_RDLCK.to_bytes(2, sys.byteorder) + bytes(30))

        yield lock


def test_a_strangers_lock_keeps_no_agent_from_starting(
    run_dir: str, strangers_lock: Callable[[str], None]
) -> None:
    """Whoever may read what a previous run has left can lock it."""
    os.close(StateFile.take(run_dir).fd)
    for name in os.listdir(run_dir):
        if stat.S_IMODE(os.stat(f"{run_dir}/{name}").st_mode) & stat.S_IROTH:
            strangers_lock(f"{run_dir}/{name}")
    os.close(StateFile.take(run_dir, timeout=0.1).fd)


def test_a_strangers_lock_does_not_look_like_an_agent(
    run_dir: str, strangers_lock: Callable[[str], None]
) -> None:
    """A registrar that has died is not hidden by it."""
    state_file = StateFile.take(run_dir)
    state_file.write("ready", "")
    os.close(state_file.fd)
    strangers_lock(f"{run_dir}/lock")
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 1


def test_only_one_of_many_agents_takes_the_lock(run_dir: str) -> None:
    """Whichever comes first, however many start in the same moment."""
    script = """
        import os, sys
        from kolla_mesos_start.errors import BadEnvironment
        from kolla_mesos_start.health import StateFile
        print("begun", flush=True)
        os.read(int(sys.argv[2]), 1)
        try:
            StateFile.take(sys.argv[1], timeout=0.5)
        except BadEnvironment:
            print("refused", flush=True)
        else:
            print("taken", flush=True)
        sys.stdin.read()
    """
    gate, signal = os.pipe()
    argv = [sys.executable, "-c", textwrap.dedent(script), run_dir, f"{gate}"]
    pipe = subprocess.PIPE
    agents = [subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, pass_fds=[gate]) for _ in range(8)]
    outputs = [agent.stdout for agent in agents if agent.stdout]
    assert [output.readline() for output in outputs] == ["begun\n"] * 8
    os.close(signal)  # All go on at once.
    os.close(gate)
    said = [output.readline() for output in outputs]
    for agent in agents:
        agent.communicate()
    assert sorted(said) == ["refused\n"] * 7 + ["taken\n"]


def test_a_new_agent_starts_with_a_state_of_its_own(run_dir: str) -> None:
    """`ready` of the previous run does not count."""
    first = StateFile.take(run_dir)
    first.write("ready", "")
    os.close(first.fd)
    second = StateFile.take(run_dir)
    assert health(["--ready"], {"KOLLA_RUN_DIR": run_dir}) == 1
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 0
    os.close(second.fd)


def test_the_files_can_be_read_by_every_probe_whatever_the_umask(run_dir: str) -> None:
    """A probe may run as another user."""
    before = os.umask(0o077)
    try:
        os.close(StateFile.take(run_dir).fd)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(run_dir).iterdir()}
    assert modes == {"lock": 0o644, "state": 0o644, "private": 0o700}
    assert stat.S_IMODE(os.stat(run_dir).st_mode) == 0o755


def test_a_reader_never_sees_a_part_of_a_state(run_dir: str, state_file: StateFile) -> None:
    """Each write replaces the state completely."""
    texts = {"waiting " + letter * 5000 for letter in "ab"}
    seen = set()
    state_file.write("waiting", "a" * 5000)

    def rewrite() -> None:
        for n in range(500):
            state_file.write("waiting", "ab"[n % 2] * 5000)

    writer = threading.Thread(target=rewrite)
    writer.start()
    while writer.is_alive():
        seen.add(Path(run_dir, "state").read_text().rstrip("\n"))
    writer.join()
    assert seen <= texts


def test_a_second_agent_is_refused(run_dir: str, state_file: StateFile) -> None:
    """Two agents would overwrite each other's state; the message names the variable to change."""
    state_file.write("ready", "")
    with pytest.raises(BadEnvironment, match=r"KOLLA_RUN_DIR is .* another agent runs here"):
        StateFile.take(run_dir, timeout=0.1)
    assert Path(run_dir, "state").read_text() == "ready\n"


def test_the_agent_waits_for_the_registrar_of_the_previous_run(run_dir: str) -> None:
    """In a restarted container it may need a moment to end."""
    first = StateFile.take(run_dir)
    threading.Timer(0.3, os.close, [first.fd]).start()
    started = time.monotonic()
    second = StateFile.take(run_dir, timeout=30)
    assert 0.2 < time.monotonic() - started < 15
    os.close(second.fd)


def test_a_run_dir_that_can_not_be_created_is_an_error(tmp_path: Path) -> None:
    """The message names the obstacle and the variable."""
    (tmp_path / "file").touch()
    with pytest.raises(BadEnvironment, match=r"KOLLA_RUN_DIR is .*/file: File exists"):
        StateFile.take(f"{tmp_path}/file/run")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["lock", "lock.new", "state", "state.new", "private"])
def test_no_link_in_the_run_dir_is_followed(
    tmp_path: Path, run_dir: str, name: str, link: Callable[[str, str], None]
) -> None:
    """What somebody has made there is replaced; what it leads to is left as it is."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    os.mkdir(run_dir)
    link(str(precious), f"{run_dir}/{name}")
    os.close(StateFile.take(run_dir).fd)
    assert precious.read_text() == "precious"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory where everybody may make files, as in /tmp."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


def _of_another_user(path: Path) -> None:
    path.mkdir()
    os.chown(path, 4711, 4711)


def _open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _a_link(path: Path) -> None:
    target = path.with_name("target")
    target.mkdir()
    path.symlink_to(target)


STRANGE: list[tuple[Callable[[Path], None], str]] = [
    (_of_another_user, "it belongs to uid 4711, not to uid 0: remove it, or choose another directory"),
    (_open_to_others, r"others may write in it \(mode 0777\): remove it"),
    (_a_link, "it is not a directory: remove it"),
]


@pytest.mark.parametrize(("make", "why"), STRANGE)
def test_a_run_dir_that_somebody_else_may_have_made_is_refused(
    shared: Path, make: Callable[[Path], None], why: str
) -> None:
    """/tmp/kolla_mesos_start-<uid> is a name that everybody knows; the message says what to do."""
    make(shared / "run")
    with pytest.raises(BadEnvironment, match=rf"KOLLA_RUN_DIR is .*/shared/run: {why}"):
        StateFile.take(str(shared / "run"))
    assert os.listdir(shared / "run") == []


@pytest.mark.parametrize("make", [_of_another_user, _open_to_others, _a_link])
def test_a_run_dir_elsewhere_may_be_anybodys(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """It may be a volume, or a directory of the image for the users of all services."""
    make(tmp_path / "run")
    os.close(StateFile.take(str(tmp_path / "run")).fd)


def test_a_volume_may_be_open_to_others(shared: Path) -> None:
    """As an empty volume of Kubernetes is, wherever it is mounted."""
    run_dir = shared / "run"
    run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0777", "none", str(run_dir)], check=True)
    try:
        os.close(StateFile.take(str(run_dir)).fd)
    finally:
        subprocess.run(["umount", str(run_dir)], check=True)


def test_the_probe_believes_no_strangers_directory(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the agent would have refused to start, nobody else says that it is ready."""
    state_file = StateFile.take(str(shared / "run"))
    state_file.write("ready", "")
    monkeypatch.setattr(health_module, "default_run_dir", lambda uid: str(shared / "run"))
    assert health([], {}) == 0
    os.chown(shared / "run", 4711, 4711)
    assert health([], {}) == 1
    assert "it belongs to uid 4711" in capsys.readouterr().out
    assert health([], {"KOLLA_RUN_DIR": str(shared / "run")}) == 0
    os.close(state_file.fd)


def test_a_state_that_finds_no_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""

    def find_no_room(path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(health_module, "replace", find_no_room)
    with pytest.raises(CannotWrite, match=r"state: No space left on device: .* free space there, let this"):
        StateFile(str(tmp_path), -1).write("ready", "")


def _directory_with_content(path: Path) -> None:
    path.mkdir()
    (path / "content").touch()


def _bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


OBSTACLES = [
    os.mkfifo,
    Path.mkdir,
    _directory_with_content,
    _bound,
    _of_another_user,
    _open_to_others,
    _a_link,
]


@pytest.mark.parametrize("make", OBSTACLES)
@pytest.mark.parametrize("name", ["lock", "lock.new", "state", "state.new", "private"])
def test_whatever_stands_in_the_way_is_replaced(
    run_dir: str, name: str, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon's user may write in the directory of an agent that is root."""
    os.mkdir(run_dir)
    make(Path(run_dir, name))
    assert health([], {"KOLLA_RUN_DIR": run_dir}) == 1
    state_file = StateFile.take(run_dir, timeout=0.5)
    state_file.write("ready", "")
    assert health(["--ready"], {"KOLLA_RUN_DIR": run_dir}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready"
    there = os.stat(f"{run_dir}/private")
    assert (there.st_uid, stat.S_IMODE(there.st_mode)) == (os.geteuid(), 0o700)
    os.close(state_file.fd)


def test_a_lock_of_another_user_keeps_nobody_out(run_dir: str) -> None:
    os.mkdir(run_dir)
    os.chmod(run_dir, 0o777)
    os.close(StateFile.take(run_dir).fd)
    os.unlink(f"{run_dir}/lock")
    held = os.open(f"{run_dir}/lock", os.O_RDWR | os.O_CREAT)
    os.fchown(held, 4711, 4711)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, health_module._whole_file(fcntl.F_WRLCK))
    os.close(StateFile.take(run_dir, timeout=0.5).fd)
    os.close(held)


@pytest.mark.parametrize(
    ("writable", "expected"), [(True, "/run/kolla_mesos_start"), (False, "/tmp/kolla_mesos_start-7")]
)
def test_the_run_dir_of_an_unprivileged_agent_is_in_tmp(writable: bool, expected: str) -> None:
    """/run belongs to root in most images."""
    assert default_run_dir(7, {"/run/kolla_mesos_start": writable}.__getitem__) == expected


def test_a_directory_counts_as_writable_if_it_can_be_created(tmp_path: Path) -> None:
    """The agent asks before the directory exists, the probe later: the answer is the same."""
    path = f"{tmp_path}/run"
    assert health_module.writable_directory(path)
    os.mkdir(path)
    assert health_module.writable_directory(path)
    assert not health_module.writable_directory(f"{tmp_path}/no/run")
