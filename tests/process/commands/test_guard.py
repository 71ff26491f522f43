"""The guard alone: its promises, tested with real processes over its socketpair."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kolla_mesos_start.commands import guard as guard_module
from kolla_mesos_start.commands.guard import RunningCommand, frame, now, unframe
from tests.support.guarded import HANDSHAKE_TIMEOUT, PATH, SLEEP, TREES, BareGuard, lives, state
from tests.support.waiting import eventually

NOBODY = 65534
# Forks until there are 2 ** `doublings` processes, each in a session of its own.
STORM = "import os, time\nfor _ in range({doublings}):\n    if os.fork() == 0: os.setsid()\ntime.sleep(1000)"


@pytest.fixture
def root() -> None:
    """For tests that need root: they start processes of other users."""
    assert os.geteuid() == 0, "this test needs root: it changes users"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory in which every user may execute files."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


# -- the frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 20])
def test_an_incomplete_message_stays_in_the_buffer(size: int) -> None:
    """A stream has no message borders: an incomplete message stays in the buffer."""
    first, second = frame(("extend", 1.5)), frame(("spawn", [b"\xff"], {b"A": b""}, None))
    buffer = bytearray(first + second[:size])
    assert unframe(buffer) == [("extend", 1.5)]
    buffer += second[size:]
    assert unframe(buffer) == [("spawn", [b"\xff"], {b"A": b""}, None)]
    assert buffer == b""


# -- how a command starts -------------------------------------------------------------------------


def test_argv_and_environment_are_passed_unchanged() -> None:
    """Bytes that are not text, empty values, and no variable that was not given."""
    with BareGuard() as guard:
        guard.spawn("printf", b"<%s>", b"\xff\xfe", "", "a b\nc", env={**PATH, "EMPTY": "", "RAW": "\udcff"})
        guard.ended()
        guard.spawn("/usr/bin/env", env={"EMPTY": "", "RAW": "\udcff"})
        guard.ended()
        assert guard.read(lambda text: b"RAW" in text) == b"<\xff\xfe><><a b\nc>EMPTY=\nRAW=\xff\n"


def test_no_signal_is_ignored_or_blocked() -> None:
    """A command starts with default signals, whatever the launcher and Python have set."""

    def spoil() -> None:
        for signum in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])

    with BareGuard(preexec=spoil) as guard:
        guard.spawn("cat", "/proc/self/status")
        assert guard.ended().status == 0
        text = guard.read(lambda text: text.endswith(b"\n")).decode()
        fields = dict(line.split(":\t", 1) for line in text.splitlines())
        assert {name: int(fields[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")} == {
            "SigBlk": 0,
            "SigIgn": 0,
            "SigCgt": 0,
            "SigPnd": 0,
        }
        assert fields["NoNewPrivs"] == "0"


def test_no_descriptor_but_the_three() -> None:
    """Standard input is /dev/null. Descriptors that the launcher left open are not inherited."""
    leak = os.open("/etc/passwd", os.O_RDONLY)
    with BareGuard(leak=leak) as guard:
        os.close(leak)
        guard.sh(SLEEP)
        (pid,) = guard.pids(1)
        # While a program is being loaded its libraries are open.
        eventually(lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], "three descriptors")
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull


def test_a_group_of_its_own_in_the_session_of_the_agent() -> None:
    """A group of its own, to be signalled; no session of its own, to keep the terminal."""
    with BareGuard() as guard:
        guard.sh(SLEEP)
        (pid,) = guard.pids(1)
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) == os.getsid(0)


def test_a_command_is_looked_up_in_its_own_path(tmp_path: Path) -> None:
    """Not in that of the guard. An empty element of PATH is the working directory."""
    (tmp_path / "mine").write_text("#!/bin/sh\necho found $0\n")
    (tmp_path / "mine").chmod(0o755)
    with BareGuard() as guard:
        guard.spawn("mine", env={"PATH": f"/nonexistent:/etc/passwd:{tmp_path}:/bin"})
        assert guard.ended().status == 0
        guard.spawn("sh", "-c", "true", env={})
        assert guard.ended().status == 0
        assert guard.read(lambda text: text.endswith(b"\n")) == f"found {tmp_path}/mine\n".encode()


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        (["/nonexistent/program"], errno.ENOENT),
        (["no-such-program"], errno.ENOENT),
        ([""], errno.EINVAL),
        (["{tmp}/no-interpreter"], errno.ENOENT),
        (["/etc/passwd/program"], errno.ENOTDIR),
        (["{tmp}/plain"], errno.EACCES),
        (["plain"], errno.EACCES),
        (["{tmp}"], errno.EACCES),
        (["{tmp}/garbage"], errno.ENOEXEC),
        (["/bin/true", "x" * 200_000], errno.E2BIG),
        (["/bin/true", "nul\0byte"], errno.EINVAL),
    ],
)
def test_a_program_that_cannot_be_executed_is_reported(tmp_path: Path, argv: list[str], number: int) -> None:
    """With its errno; the guard can start another command."""
    for name, text, mode in [
        ("plain", "#!/bin/sh\n", 0o644),
        ("garbage", "no program", 0o755),
        ("no-interpreter", "#!/nonexistent/interpreter\n", 0o755),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with BareGuard() as guard:
        path = {"PATH": f"/nonexistent:{tmp_path}:/bin"}
        guard.spawn(*[report.format(tmp=tmp_path) for report in argv], env=path)
        report = guard.ended()
        assert (report.reason, report.errno, report.at) == ("spawn-failed", number, "program")
        guard.spawn("true", env=path)
        assert guard.ended().status == 0


def test_another_user_with_all_its_groups(root: None) -> None:
    """And nothing of root remains: no saved id, no group."""
    with BareGuard() as guard:
        guard.spawn("grep", "-E", "^(Uid|Gid|Groups):", "/proc/self/status", ids=(1234, 2345, [2345, 3456]))
        assert guard.ended().status == 0
        text = guard.read(lambda text: b"Groups" in text and text.endswith(b"\n"))
        assert text.split() == b"Uid: 1234 1234 1234 1234 Gid: 2345 2345 2345 2345 Groups: 2345 3456".split()


@pytest.mark.parametrize(
    ("nobody", "ids", "number"),
    [
        (True, (0, 0, [0]), errno.EPERM),
        (True, (1234, 1234, [1234]), errno.EPERM),
        (False, (2**40, 0, [0]), errno.EINVAL),
        (False, (0, -7, [0]), errno.EINVAL),
    ],
)
def test_a_user_that_it_cannot_become(
    root: None, nobody: bool, ids: tuple[int, int, list[int]], number: int
) -> None:
    """The report says so, and the program has not run under any user."""
    with BareGuard(fork=True, preexec=become_nobody if nobody else None) as guard:
        guard.sh("echo ran", ids=ids)
        report = guard.ended()
        assert (report.reason, report.errno, report.at) == ("spawn-failed", number, "user")
        guard.close()
        assert guard.read() == b""


def test_no_room_for_another_process_is_a_failed_start(root: None) -> None:
    """As in a container that has reached its limit of processes. The guard goes on."""

    def confine() -> None:
        become_nobody()
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    with BareGuard(fork=True, preexec=confine) as guard:
        guard.spawn("true")
        report = guard.ended()
        assert (report.status, report.reason, report.errno, report.at) == (
            None,
            "spawn-failed",
            errno.EAGAIN,
            "fork",
        )


# -- when a command has ended ---------------------------------------------------------------------


@pytest.mark.parametrize("setsid", ["", "setsid "])
@pytest.mark.parametrize("fork", ["{} & echo $!", "({} & echo $!)"])
def test_left_overs_get_term_before_the_end_is_reported(setsid: str, fork: str) -> None:
    """The leader has exited with 0 but left processes: they may clean up before the end is reported."""
    worker = f"{setsid}sh -c 'trap \"echo tidied; exit\" TERM; echo up; while :; do sleep 0.02; done'"
    with BareGuard() as guard:
        guard.sh(fork.format(worker) + "; read line < /proc/self/stat; exit 0")
        assert guard.receive() == ("ready",)
        verb, count = guard.receive()
        assert verb == "leftovers"
        assert count >= 1
        report = guard.ended()
        assert (report.status, report.reason, report.unkillable) == (0, "exited", False)
        text = guard.read(lambda text: b"tidied" in text)
        assert not lives(int(text.split()[0]) if text[:1].isdigit() else int(text.split()[1]))


def test_left_overs_that_ignore_term_are_killed_after_their_grace() -> None:
    """However long they would run."""
    with BareGuard() as guard:
        began = now()
        guard.sh("trap '' TERM; setsid sleep 1000 & (sleep 1000 & echo $!); echo $!", stop_grace=0.5)
        report = guard.ended()
        assert (report.status, report.reason) == (0, "exited")
        assert now() - began >= 0.5
        assert not any(map(lives, guard.pids(2)))


def test_a_process_that_ends_just_after_the_leader_is_no_left_over() -> None:
    """`exec > >(tee log)` may write its last lines: no TERM, no warning."""
    with BareGuard() as guard:
        guard.sh("(trap 'echo cut off' TERM; sleep 0.05; echo last line) & exit 0")
        assert guard.receive() == ("ready",)
        verb, *words = guard.receive()
        assert verb == "ended"
        assert words == [0, "exited", None, None, False]
        assert guard.read(lambda text: text.endswith(b"\n")) == b"last line\n"


def test_orphans_are_reaped_while_the_command_runs() -> None:
    """None stays as a zombie, and none is mistaken for the command."""
    with BareGuard() as guard:
        guard.sh(f"for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 9' & echo $!); done; {SLEEP}")
        pids = guard.pids(9)
        eventually(lambda: not any(map(lives, pids[:8])), "orphans are reaped")
        assert lives(pids[8])
        assert guard.messages in ([], [("ready",)])


# -- how a command is ended -----------------------------------------------------------------------


@pytest.mark.parametrize("tree", [name for name in TREES if name != "ignoring signals"])
def test_end_reaches_all_descendants(tree: str) -> None:
    """TERM reaches every descendant, stopped ones too: no KILL is needed."""
    with BareGuard() as guard:
        pids = guard.start_tree(tree)
        guard.send("end", 2 * HANDSHAKE_TIMEOUT)
        report = guard.ended()
        assert (report.reason, report.status) == ("ended", signal.SIGTERM)
        assert not any(map(lives, pids))


def test_processes_that_ignore_term_are_killed_after_the_grace() -> None:
    """After exactly the grace period."""
    with BareGuard() as guard:
        pids = guard.start_tree("ignoring signals")
        began = now()
        guard.send("end", 0.3)
        report = guard.ended()
        assert (report.reason, report.status) == ("ended", signal.SIGKILL)
        assert now() - began >= 0.3
        assert not any(map(lives, pids))


def test_end_without_grace_sends_no_term() -> None:
    """For a command that must stop at once."""
    with BareGuard() as guard:
        guard.sh("trap 'echo had time' TERM; echo up; while :; do sleep 0.01; done")
        guard.read(lambda text: b"up" in text)
        guard.send("end", 0)
        assert guard.ended().status == signal.SIGKILL
        guard.close()
        assert guard.read() == b"up\n"


def test_a_second_end_can_only_shorten_the_grace() -> None:
    """A shorter grace period counts, a longer one changes nothing."""
    with BareGuard() as guard:
        guard.start_tree("ignoring signals")
        guard.send("end", 10 * HANDSHAKE_TIMEOUT)
        guard.send("end", 0)
        guard.send("end", 10 * HANDSHAKE_TIMEOUT)
        assert guard.ended().reason == "ended"


def test_term_is_sent_once() -> None:
    """To many programs a second one means: end at once, without cleaning up."""
    with BareGuard() as guard:
        script = "trap 'echo term' TERM; echo up; while :; do sleep 0.02; done"
        guard.sh(f'setsid sh -c "{script}" & {script}')
        guard.read(lambda text: text.count(b"up") == 2)
        guard.send("end", 0.6)
        guard.send("end", 0.5)
        guard.ended()
        assert guard.read(lambda text: text.count(b"term") >= 2).count(b"term") == 2


@pytest.mark.parametrize(("descendant_group", "signalled"), [(None, []), (500, []), (400, [400])])
def test_a_group_without_its_leader_is_signalled_only_if_a_descendant_is_in_it(
    monkeypatch: pytest.MonkeyPatch, descendant_group: int | None, signalled: list[int]
) -> None:
    """Otherwise another process may have got the leader's id."""
    groups: list[int] = []
    found = {401: descendant_group} if descendant_group else {}
    monkeypatch.setattr(guard_module, "descendants", lambda: found)
    monkeypatch.setattr(os, "killpg", lambda group, signum: groups.append(group))
    monkeypatch.setattr(os, "kill", lambda pid, signum: None)
    leader: Any = SimpleNamespace(pid=400, status=0, signal=lambda signum: None)
    RunningCommand(leader, None, 1.0).signal_all(signal.SIGTERM)
    assert groups == signalled


@pytest.mark.parametrize("how", ["end", "deadline", "agent gone"])
def test_left_overs_lose_their_grace(how: str) -> None:
    """The report still says that the leader has exited by itself."""
    with BareGuard() as guard:
        deadline = now() + 3.0 if how == "deadline" else None
        script = "trap '' TERM; setsid sleep 1000 & echo $!; exit 5"
        guard.sh(script, deadline=deadline, stop_grace=10 * HANDSHAKE_TIMEOUT)
        while guard.receive()[0] != "leftovers":
            pass
        if how == "agent gone":
            guard.close()
            assert guard.wait() == 0
        else:
            if how == "end":
                guard.send("end", 0.05)
            report = guard.ended()
            assert deadline is None or now() >= deadline
            assert (report.status, report.reason) == (5 << 8, "exited")
        assert not lives(guard.pids(1)[0])


def test_a_late_request_does_not_affect_the_next_command() -> None:
    """Requests for a command that has ended are dropped."""
    with BareGuard() as guard:
        guard.sh("exit 0")
        guard.ended()
        for late in [("end", 0), ("extend", 0.0), ("signal", 9)]:
            guard.send(*late)
        guard.sh("exit 7")
        assert guard.ended().status == 7 << 8


def test_a_signal_reaches_the_group() -> None:
    """The whole group gets it, and whether the command ends is up to the command."""
    with BareGuard() as guard:
        script = "trap 'echo got it; exit 3' USR1; echo up; while :; do sleep 0.02; done"
        guard.sh(f'sh -c "{script}" & {script}')
        guard.read(lambda text: text.count(b"up") == 2)
        guard.send("signal", int(signal.SIGUSR1))
        report = guard.ended()
        assert (report.status, report.reason) == (3 << 8, "exited")
        assert guard.read(lambda text: text.count(b"got") == 2).count(b"got it") == 2


def test_the_guard_acts_on_no_signal() -> None:
    """Only the agent controls it. Signals of others change neither the guard nor the command."""
    with BareGuard() as guard:
        guard.receive()
        guard.sh(SLEEP)
        (pid,) = guard.pids(1)
        for signum in ("HUP", "INT", "QUIT", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "PIPE", "ALRM"):
            os.kill(guard.pid, signal.Signals[f"SIG{signum}"])
        guard.send("signal", int(signal.SIGUSR1))
        assert guard.ended().status == signal.SIGUSR1
        assert not lives(pid)


def test_a_process_that_cannot_be_killed_is_reported(root: None, open_directory: Path) -> None:
    """An unprivileged agent has started a command that became root, as with sudo."""
    program = open_directory / "become-root"
    shutil.copy(shutil.which("setpriv") or "", program)
    program.chmod(0o4755)
    with BareGuard(fork=True, preexec=become_nobody) as guard:
        guard.sh(f"exec {program} --reuid 0 sh -c '{SLEEP}'", deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        (pid,) = guard.pids(1)
        eventually(lambda: "sleep" in Path(f"/proc/{pid}/comm").read_text(), "it runs as root")
        guard.send("extend", now())
        report = guard.ended()
        assert (report.reason, report.unkillable, report.status) == ("deadline", True, None)
        assert lives(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lives(pid), "it is reaped after all")
        assert guard.is_silent()
        guard.spawn("true")
        assert guard.ended().status == 0


# -- the deadline ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_nothing_outlives_the_deadline(tree: str) -> None:
    """All processes get KILL at the deadline, and not before."""
    with BareGuard() as guard:
        pids = guard.start_tree(tree, deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        deadline = now() + 0.5
        guard.send("extend", deadline)
        report = guard.ended()
        assert deadline <= now() < deadline + 30
        assert (report.status, report.reason, report.unkillable) == (signal.SIGKILL, "deadline", False)
        assert not any(map(lives, pids))


def test_the_clock_of_deadlines_counts_while_the_machine_is_suspended(root: None) -> None:
    """In agent and guard; tested in a namespace in which the two clocks differ."""
    suspended = 10**9
    code = (
        "from kolla_mesos_start import loop; from kolla_mesos_start.commands import guard; "
        "print(guard.now(), loop.now())"
    )
    done = subprocess.run(
        ["unshare", "--time", "--boottime", f"{suspended}", sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert all(float(report) > suspended for report in done.stdout.split())


def test_no_term_at_the_deadline() -> None:
    """After its deadline a command must not do anything more."""
    with BareGuard() as guard:
        guard.sh("trap 'echo had time' TERM; while :; do sleep 0.01; done", deadline=now() + 0.5)
        assert guard.ended().reason == "deadline"
        guard.close()
        assert guard.read() == b""


def test_each_extension_moves_the_deadline() -> None:
    """As long as the agent proves its lease, the command runs."""
    with BareGuard() as guard:
        assert guard.receive() == ("ready",)
        guard.sh(SLEEP, deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        (pid,) = guard.pids(1)
        first = now() + 2.0
        guard.send("extend", first)
        while now() < first + 0.5:
            last = now() + 2.0
            guard.send("extend", last)
            assert not select.select([guard.socket], [], [], 0.1)[0]
            assert lives(pid)
        assert guard.ended().reason == "deadline"
        assert now() >= last


def test_an_extension_after_the_deadline_is_too_late() -> None:
    """After the deadline an extension has no effect: not during the kill, not later."""
    with BareGuard() as guard:
        deadline = now() + 0.5
        guard.sh(SLEEP, deadline=deadline)
        eventually(lambda: now() >= deadline + 0.2, "the deadline has passed", every=0.05)
        guard.send("extend", now() + 1000)
        assert guard.ended().reason == "deadline"


def test_no_command_starts_after_its_deadline() -> None:
    """The agent may have been stopped between its claim and the start."""
    with BareGuard() as guard:
        guard.sh("echo ran", deadline=now() - 0.001)
        assert guard.ended() == (None, "deadline", None, None, False)
        guard.sh("exit 4", deadline=now() + HANDSHAKE_TIMEOUT)
        assert guard.ended().status == 4 << 8
        guard.close()
        assert guard.read() == b""


def test_the_deadline_shortens_a_grace() -> None:
    """A grace period does not extend the lease."""
    with BareGuard() as guard:
        pids = guard.start_tree("ignoring signals", deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        deadline = now() + 0.5
        guard.send("extend", deadline)
        guard.send("end", 10 * HANDSHAKE_TIMEOUT)
        report = guard.ended()
        assert now() >= deadline
        assert (report.reason, report.status) == ("deadline", signal.SIGKILL)
        assert not any(map(lives, pids))


def test_a_guard_that_was_stopped_past_the_deadline_kills_when_it_continues() -> None:
    """A whole container was frozen: the clock kept counting."""
    with BareGuard() as guard:
        guard.sh(SLEEP, deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        (pid,) = guard.pids(1)
        deadline = now() + 2.0
        guard.send("extend", deadline)
        os.kill(guard.pid, signal.SIGSTOP)
        eventually(lambda: state(guard.pid) == "T", "the guard is stopped")
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: now() >= deadline + 0.2, "the deadline has passed", every=0.05)
        assert state(pid) == "T"
        os.kill(pid, signal.SIGCONT)
        os.kill(guard.pid, signal.SIGCONT)
        assert guard.ended().reason == "deadline"
        assert not lives(pid)


# -- the agent has ended --------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_nothing_outlives_the_agent(tree: str) -> None:
    """The guard sees the end of file."""
    with BareGuard() as guard:
        pids = guard.start_tree(tree)
        guard.close()
        assert guard.wait() == 0
        assert not any(map(lives, pids))


def test_messages_of_an_agent_that_has_ended_are_dropped() -> None:
    """Its last message would start a command without an agent."""
    with BareGuard() as guard:
        guard.receive()
        os.kill(guard.pid, signal.SIGSTOP)
        eventually(lambda: state(guard.pid) == "T", "the guard is stopped")
        guard.sh("echo ran")
        guard.close()
        os.kill(guard.pid, signal.SIGCONT)
        assert guard.wait() == 0
        assert guard.read() == b""


@pytest.mark.parametrize("how", ["deadline", "agent gone", "end"])
def test_a_fork_bomb_is_killed_completely(how: str) -> None:
    """Hundreds of processes, each in a session of its own, still forking when the kill begins."""
    with BareGuard() as guard:
        began = now()
        deadline = began + 0.5 if how == "deadline" else None
        guard.spawn(sys.executable, "-I", "-S", "-c", STORM.format(doublings=9), deadline=deadline)
        eventually(lambda: now() > began + 0.3, "it is forking")
        if how == "end":
            guard.send("end", 0)
        if how != "agent gone":
            report = guard.ended()
            assert not report.unkillable
            assert report.reason == ("ended" if how == "end" else how)
        # The end of `with` waits until the guard has ended and no process has its output open.


def test_a_killed_guard_takes_the_leader_with_it() -> None:
    """The last resort, if somebody kills all Python processes together: agent and guard."""
    with BareGuard() as guard:
        guard.sh("setsid sleep 1 & exec sleep 1000")
        guard.receive()
        children = psutil.Process(guard.pid).children
        eventually(lambda: ["sleep", "1000"] in [each.cmdline() for each in children()], "it runs")
        os.kill(guard.pid, signal.SIGKILL)
        assert guard.wait() == signal.SIGKILL
        guard.exit_status = 0
        assert guard.read() == b""
