"""The guard by itself: what it promises for its commands, with real processes, over its socketpair."""

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

import pytest

from kolla_mesos_start.commands.guard import frame, now, unframe
from tests.guarded import HANDSHAKE_TIMEOUT, PATH, SLEEP, TREES, Alone, lives, state
from tests.waiting import eventually

NOBODY = 65534
# One fork after the other, each in a session of its own, until there are `count`.
STORM = "import os, time\nfor _ in range({doublings}):\n    if os.fork() == 0: os.setsid()\ntime.sleep(1000)"


@pytest.fixture
def root() -> None:
    """For what only root can set up: other users' processes."""
    assert os.geteuid() == 0, "this test needs root: it changes users"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory in which everybody may execute what is there."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


# -- the frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 20])
def test_a_message_is_taken_once_it_is_whole(size: int) -> None:
    """A stream knows no messages: what has not come yet stays where it is."""
    first, second = frame(("extend", 1.5)), frame(("spawn", [b"\xff"], {b"A": b""}, None))
    heard = bytearray(first + second[:size])
    assert unframe(heard) == [("extend", 1.5)]
    heard += second[size:]
    assert unframe(heard) == [("spawn", [b"\xff"], {b"A": b""}, None)]
    assert heard == b""


# -- how a command starts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 127", 127), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_the_exit_status_is_that_of_the_command(script: str, code: int) -> None:
    """Also where a signal has ended it; 127 said by the command itself is no failed start."""
    with Alone() as alone:
        assert alone.hear() == ("ready",)
        alone.sh(script)
        word = alone.ended()
        assert word.status is not None
        assert os.waitstatus_to_exitcode(word.status) == code
        assert word[1:] == ("exited", 0, None, None, False)


def test_one_command_after_the_other() -> None:
    """A guard serves for the whole life of its agent."""
    with Alone() as alone:
        for number in range(5):
            alone.sh(f"exit {number}")
            assert alone.ended().status == number << 8


def test_argv_and_environment_arrive_as_they_are() -> None:
    """Bytes that are no text, empty values, and nothing that was not given."""
    with Alone() as alone:
        alone.spawn("printf", b"<%s>", b"\xff\xfe", "", "a b\nc", env={**PATH, "EMPTY": "", "RAW": "\udcff"})
        alone.ended()
        alone.spawn("/usr/bin/env", env={"EMPTY": "", "RAW": "\udcff"})
        alone.ended()
        assert alone.read(lambda text: b"RAW" in text) == b"<\xff\xfe><><a b\nc>EMPTY=\nRAW=\xff\n"


def test_an_environment_of_a_megabyte() -> None:
    """More than the socket holds at once."""
    env = {f"VARIABLE_{number}": "x" * 100_000 for number in range(10)}
    with Alone() as alone:
        alone.sh("echo ${#VARIABLE_0} ${#VARIABLE_9}", env={**PATH, **env})
        assert alone.ended().status == 0
        assert alone.read(lambda text: text.endswith(b"\n")) == b"100000 100000\n"


def test_no_signal_is_ignored_or_blocked() -> None:
    """Whatever the launcher and Python do to signals, a command begins as from a fresh shell."""

    def spoil() -> None:
        for signum in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])

    with Alone(preexec=spoil) as alone:
        alone.spawn("cat", "/proc/self/status")
        assert alone.ended().status == 0
        text = alone.read(lambda text: text.endswith(b"\n")).decode()
        fields = dict(line.split(":\t", 1) for line in text.splitlines())
        assert {name: int(fields[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")} == {
            "SigBlk": 0,
            "SigIgn": 0,
            "SigCgt": 0,
            "SigPnd": 0,
        }
        assert fields["NoNewPrivs"] == "0"


def test_no_descriptor_but_the_three() -> None:
    """Standard input is /dev/null; what somebody left open for the agent is not passed on."""
    leak = os.open("/etc/passwd", os.O_RDONLY)
    with Alone(leak=leak) as alone:
        os.close(leak)
        alone.sh(SLEEP)
        (pid,) = alone.pids(1)
        # While a program is being loaded its libraries are open.
        eventually(lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], "three descriptors")
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull


def test_its_own_group_in_the_session_of_the_agent() -> None:
    """A group, so that it can be signalled; not a session, so that it keeps a terminal. So the guard too."""
    with Alone() as alone:
        alone.sh(SLEEP)
        (pid,) = alone.pids(1)
        assert os.getpgid(pid) == pid
        assert os.getpgid(alone.pid) == alone.pid
        assert os.getsid(pid) == os.getsid(0)


def test_a_command_is_looked_up_in_its_own_path(tmp_path: Path) -> None:
    """Not in the guard's; an empty PATH element is the working directory."""
    (tmp_path / "mine").write_text("#!/bin/sh\necho found $0\n")
    (tmp_path / "mine").chmod(0o755)
    with Alone() as alone:
        alone.spawn("mine", env={"PATH": f"/nonexistent:/etc/passwd:{tmp_path}:/bin"})
        assert alone.ended().status == 0
        alone.spawn("sh", "-c", "true", env={})
        assert alone.ended().status == 0
        assert alone.read(lambda text: text.endswith(b"\n")) == f"found {tmp_path}/mine\n".encode()


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
def test_a_program_that_cannot_be_executed_is_told(tmp_path: Path, argv: list[str], number: int) -> None:
    """By errno, and the guard is ready for the next."""
    for name, text, mode in [
        ("plain", "#!/bin/sh\n", 0o644),
        ("garbage", "no program", 0o755),
        ("no-interpreter", "#!/nonexistent/interpreter\n", 0o755),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with Alone() as alone:
        path = {"PATH": f"/nonexistent:{tmp_path}:/bin"}
        alone.spawn(*[word.format(tmp=tmp_path) for word in argv], env=path)
        word = alone.ended()
        assert (word.reason, word.errno, word.at) == ("spawn-failed", number, "program")
        alone.spawn("true", env=path)
        assert alone.ended().status == 0


def test_a_working_directory_that_is_gone_harms_relative_programs_only(tmp_path: Path) -> None:
    """The guard starts in it, and so do commands."""
    gone = tmp_path / "gone"

    def enter() -> None:
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    with Alone(preexec=enter) as alone:
        alone.spawn("/bin/true")
        assert alone.ended().status == 0
        alone.spawn("./program")
        word = alone.ended()
        assert (word.reason, word.errno) == ("spawn-failed", errno.ENOENT)


def test_another_user_with_all_his_groups(root: None) -> None:
    """And nothing left of root: not as saved id, not as group."""
    with Alone() as alone:
        alone.spawn("grep", "-E", "^(Uid|Gid|Groups):", "/proc/self/status", ids=(1234, 2345, [2345, 3456]))
        assert alone.ended().status == 0
        text = alone.read(lambda text: b"Groups" in text and text.endswith(b"\n"))
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
    """Told as such, and the program has not run as anybody."""
    with Alone(fork=True, preexec=become_nobody if nobody else None) as alone:
        alone.sh("echo ran", ids=ids)
        word = alone.ended()
        assert (word.reason, word.errno, word.at) == ("spawn-failed", number, "user")
        alone.leave()
        assert alone.read() == b""


def test_no_room_for_another_process_is_a_failed_start(root: None) -> None:
    """As in a container whose limit of processes is reached: the guard lives on."""

    def confine() -> None:
        become_nobody()
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    with Alone(fork=True, preexec=confine) as alone:
        alone.spawn("true")
        word = alone.ended()
        assert (word.status, word.reason, word.errno, word.at) == (None, "spawn-failed", errno.EAGAIN, "fork")


# -- when a command has ended ---------------------------------------------------------------------


@pytest.mark.parametrize("setsid", ["", "setsid "])
@pytest.mark.parametrize("fork", ["{} & echo $!", "({} & echo $!)"])
def test_left_overs_get_term_before_the_end_is_told(setsid: str, fork: str) -> None:
    """The leader has exited with 0, its work goes on: it gets time to tidy up, and only then it is over."""
    worker = f"{setsid}sh -c 'trap \"echo tidied; exit\" TERM; echo up; while :; do sleep 0.02; done'"
    with Alone() as alone:
        alone.sh(fork.format(worker) + "; read line < /proc/self/stat; exit 0")
        assert alone.hear() == ("ready",)
        verb, count = alone.hear()
        assert verb == "leftovers"
        assert count >= 1
        word = alone.ended()
        assert (word.status, word.reason, word.unkillable) == (0, "exited", False)
        assert word.leftovers == count
        text = alone.read(lambda text: b"tidied" in text)
        assert not lives(int(text.split()[0]) if text[:1].isdigit() else int(text.split()[1]))


def test_left_overs_that_ignore_term_are_killed_after_their_grace() -> None:
    """However long they would go on."""
    with Alone() as alone:
        began = now()
        alone.sh("trap '' TERM; setsid sleep 1000 & (sleep 1000 & echo $!); echo $!", stop_grace=0.5)
        word = alone.ended()
        assert (word.status, word.reason, word.leftovers) == (0, "exited", 2)
        assert now() - began >= 0.5
        assert not any(map(lives, alone.pids(2)))


def test_what_ends_by_itself_just_after_the_leader_is_no_left_over() -> None:
    """`exec > >(tee log)` has its last lines to write: no TERM, no warning."""
    with Alone() as alone:
        alone.sh("(trap 'echo cut off' TERM; sleep 0.05; echo last line) & exit 0")
        assert alone.hear() == ("ready",)
        verb, *words = alone.hear()
        assert verb == "ended"
        assert words == [0, "exited", 0, None, None, False]
        assert alone.read(lambda text: text.endswith(b"\n")) == b"last line\n"


def test_orphans_are_reaped_while_the_command_runs() -> None:
    """A command may make many: none stays as a zombie, and none is taken for the command."""
    with Alone() as alone:
        alone.sh(f"for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 9' & echo $!); done; {SLEEP}")
        pids = alone.pids(9)
        eventually(lambda: not any(map(lives, pids[:8])), "orphans are reaped")
        assert lives(pids[8])
        assert alone.words in ([], [("ready",)])


# -- how a command is ended -----------------------------------------------------------------------


@pytest.mark.parametrize("tree", [name for name in TREES if name != "without ears"])
def test_end_is_heard_by_everybody(tree: str) -> None:
    """TERM goes to all descendants wherever they are, stopped ones too: no KILL is needed."""
    with Alone() as alone:
        pids = alone.grow(tree)
        alone.say("end", 2 * HANDSHAKE_TIMEOUT)
        word = alone.ended()
        assert (word.reason, word.status) == ("ended", signal.SIGTERM)
        assert not any(map(lives, pids))


def test_end_kills_what_ignores_term_after_the_grace() -> None:
    """The grace is what it gets, and no more."""
    with Alone() as alone:
        pids = alone.grow("without ears")
        began = now()
        alone.say("end", 0.3)
        word = alone.ended()
        assert (word.reason, word.status) == ("ended", signal.SIGKILL)
        assert now() - began >= 0.3
        assert not any(map(lives, pids))


def test_end_without_grace_sends_no_term() -> None:
    """For what must not do another thing."""
    with Alone() as alone:
        alone.sh("trap 'echo had time' TERM; echo up; while :; do sleep 0.01; done")
        alone.read(lambda text: b"up" in text)
        alone.say("end", 0)
        assert alone.ended().status == signal.SIGKILL
        alone.leave()
        assert alone.read() == b"up\n"


def test_a_second_end_can_only_hasten() -> None:
    """KILL at once means at once, and a longer grace prolongs nothing."""
    with Alone() as alone:
        alone.grow("without ears")
        alone.say("end", 10 * HANDSHAKE_TIMEOUT)
        alone.say("end", 0)
        alone.say("end", 10 * HANDSHAKE_TIMEOUT)
        assert alone.ended().reason == "ended"


def test_term_comes_once() -> None:
    """A second one means "now, without tidying up" to many programs."""
    with Alone() as alone:
        script = "trap 'echo term' TERM; echo up; while :; do sleep 0.02; done"
        alone.sh(f'setsid sh -c "{script}" & {script}')
        alone.read(lambda text: text.count(b"up") == 2)
        alone.say("end", 0.6)
        alone.say("end", 0.5)
        alone.ended()
        assert alone.read(lambda text: text.count(b"term") >= 2).count(b"term") == 2


def test_end_hastens_the_end_of_left_overs() -> None:
    """The leader has exited by itself, and that stays the reason."""
    with Alone() as alone:
        alone.sh("trap '' TERM; sleep 1000 & echo $!; exit 5", stop_grace=10 * HANDSHAKE_TIMEOUT)
        while alone.hear()[0] != "leftovers":
            pass
        alone.say("end", 0.05)
        word = alone.ended()
        assert (word.status, word.reason, word.leftovers) == (5 << 8, "exited", 1)
        assert not lives(alone.pids(1)[0])


def test_an_end_that_crosses_the_word_of_the_end_does_not_hit_the_next_command() -> None:
    """What the agent says to a command that has ended is for nobody."""
    with Alone() as alone:
        alone.sh("exit 0")
        alone.ended()
        for late in [("end", 0), ("extend", 0.0), ("signal", 9)]:
            alone.say(*late)
        alone.sh("exit 7")
        assert alone.ended().status == 7 << 8


def test_a_signal_reaches_the_group() -> None:
    """SIGTERM of a container goes to all that the command is, and says nothing of an end."""
    with Alone() as alone:
        script = "trap 'echo got it; exit 3' USR1; echo up; while :; do sleep 0.02; done"
        alone.sh(f'sh -c "{script}" & {script}')
        alone.read(lambda text: text.count(b"up") == 2)
        alone.say("signal", int(signal.SIGUSR1))
        word = alone.ended()
        assert (word.status, word.reason) == (3 << 8, "exited")
        assert alone.read(lambda text: text.count(b"got") == 2).count(b"got it") == 2


def test_the_guard_heeds_no_signal() -> None:
    """Nobody but the agent has anything to say to it; what others send harms neither it nor the command."""
    with Alone() as alone:
        alone.hear()
        alone.sh(SLEEP)
        (pid,) = alone.pids(1)
        for signum in ("HUP", "INT", "QUIT", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "PIPE", "ALRM"):
            os.kill(alone.pid, signal.Signals[f"SIG{signum}"])
        alone.say("signal", int(signal.SIGUSR1))
        assert alone.ended().status == signal.SIGUSR1
        assert not lives(pid)


def test_what_cannot_be_killed_is_told(root: None, open_directory: Path) -> None:
    """A command of an unprivileged agent that made itself root, as with sudo."""
    program = open_directory / "become-root"
    shutil.copy(shutil.which("setpriv") or "", program)
    program.chmod(0o4755)
    with Alone(fork=True, preexec=become_nobody) as alone:
        alone.sh(f"exec {program} --reuid 0 sh -c '{SLEEP}'", deadline=now() + 1.5)
        (pid,) = alone.pids(1)
        eventually(lambda: "sleep" in Path(f"/proc/{pid}/comm").read_text(), "it is root and sleeps")
        word = alone.ended()
        assert (word.reason, word.unkillable, word.status) == ("deadline", True, None)
        assert lives(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lives(pid), "it is reaped nevertheless")
        assert alone.says_nothing()
        alone.spawn("true")
        assert alone.ended().status == 0


# -- the deadline ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_nothing_outlives_the_deadline(tree: str) -> None:
    """KILL at once, to everybody, and not before."""
    with Alone() as alone:
        deadline = now() + 1.0
        pids = alone.grow(tree, deadline=deadline)
        word = alone.ended()
        assert deadline <= now() < deadline + 5
        assert (word.status, word.reason, word.unkillable) == (signal.SIGKILL, "deadline", False)
        assert not any(map(lives, pids))


def test_deadlines_are_of_the_clock_that_goes_on_while_the_machine_is_suspended(root: None) -> None:
    """On both sides: in a namespace in which the two clocks differ."""
    suspended = 10**9
    code = (
        "from kolla_mesos_start import loop; from kolla_mesos_start.commands import guard; "
        "print(guard.now(), loop.now())"
    )
    done = subprocess.run(
        ["unshare", "--time", "--boottime", f"{suspended}", sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert all(float(word) > suspended for word in done.stdout.split())


def test_no_term_at_the_deadline() -> None:
    """A command gets no time to do more harm."""
    with Alone() as alone:
        alone.sh("trap 'echo had time' TERM; while :; do sleep 0.01; done", deadline=now() + 0.5)
        assert alone.ended().reason == "deadline"
        alone.leave()
        assert alone.read() == b""


def test_a_deadline_moves_with_each_extension() -> None:
    """As long as the agent proves its lease, the command runs."""
    with Alone() as alone:
        assert alone.hear() == ("ready",)
        first = now() + 0.8
        alone.sh(SLEEP, deadline=first)
        (pid,) = alone.pids(1)
        while now() < first + 0.5:
            last = now() + 0.8
            alone.say("extend", last)
            assert not select.select([alone.socket], [], [], 0.1)[0]
            assert lives(pid)
        assert alone.ended().reason == "deadline"
        assert now() >= last


def test_an_extension_brings_no_command_back() -> None:
    """Past the deadline nothing saves it: not while it is being killed, not after."""
    with Alone() as alone:
        deadline = now() + 0.5
        alone.sh(SLEEP, deadline=deadline)
        eventually(lambda: now() >= deadline + 0.2, "the deadline has passed", every=0.05)
        alone.say("extend", now() + 1000)
        assert alone.ended().reason == "deadline"


def test_a_deadline_can_come_nearer() -> None:
    """The agent's last word counts."""
    with Alone() as alone:
        alone.sh(SLEEP, deadline=now() + 10 * HANDSHAKE_TIMEOUT)
        alone.pids(1)
        alone.say("extend", now())
        assert alone.ended().reason == "deadline"


def test_past_the_deadline_nothing_is_started() -> None:
    """The agent may have been stopped between its claim and this."""
    with Alone() as alone:
        alone.sh("echo ran", deadline=now() - 0.001)
        assert alone.ended() == (None, "deadline", 0, None, None, False)
        alone.sh("exit 4", deadline=now() + HANDSHAKE_TIMEOUT)
        assert alone.ended().status == 4 << 8
        alone.leave()
        assert alone.read() == b""


def test_the_deadline_cuts_a_grace_short() -> None:
    """`end` gives time only as far as the lease does."""
    with Alone() as alone:
        deadline = now() + 1.0
        pids = alone.grow("without ears", deadline=deadline)
        alone.say("end", 10 * HANDSHAKE_TIMEOUT)
        word = alone.ended()
        assert now() >= deadline
        assert (word.reason, word.status) == ("deadline", signal.SIGKILL)
        assert not any(map(lives, pids))


def test_the_deadline_cuts_the_grace_of_left_overs_short() -> None:
    """The leader's own success stays what it was."""
    with Alone() as alone:
        deadline = now() + 1.0
        alone.sh("trap '' TERM; sleep 1000 & echo $!", deadline=deadline, stop_grace=10 * HANDSHAKE_TIMEOUT)
        word = alone.ended()
        assert now() >= deadline
        assert (word.reason, word.status, word.leftovers) == ("exited", 0, 1)
        assert not any(map(lives, alone.pids(1)))


def test_a_guard_that_was_stopped_past_the_deadline_kills_on_waking() -> None:
    """A whole container frozen and thawed: the clock goes on meanwhile."""
    with Alone() as alone:
        alone.sh(SLEEP, deadline=now() + 0.5)
        (pid,) = alone.pids(1)
        os.kill(alone.pid, signal.SIGSTOP)
        eventually(lambda: state(alone.pid) == "T", "the guard is stopped")
        os.kill(pid, signal.SIGSTOP)
        thaw = now() + 1.0
        eventually(lambda: now() >= thaw, "the deadline has passed", every=0.05)
        assert state(pid) == "T"
        os.kill(pid, signal.SIGCONT)
        os.kill(alone.pid, signal.SIGCONT)
        assert alone.ended().reason == "deadline"
        assert not lives(pid)


# -- the agent is gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_nothing_outlives_the_agent(tree: str) -> None:
    """End of file is all that the guard needs to see."""
    with Alone() as alone:
        pids = alone.grow(tree)
        alone.leave()
        assert alone.wait() == 0
        assert not any(map(lives, pids))


def test_left_overs_do_not_outlive_the_agent() -> None:
    """Their grace ends with it."""
    with Alone() as alone:
        alone.sh("trap '' TERM; setsid sleep 1000 & echo $!", stop_grace=10 * HANDSHAKE_TIMEOUT)
        while alone.hear()[0] != "leftovers":
            pass
        alone.leave()
        assert alone.wait() == 0
        assert not lives(alone.pids(1)[0])


def test_a_dead_agent_is_not_obeyed() -> None:
    """What it said last would start a command that nobody watches."""
    with Alone() as alone:
        alone.hear()
        os.kill(alone.pid, signal.SIGSTOP)
        eventually(lambda: state(alone.pid) == "T", "the guard is stopped")
        alone.sh("echo ran")
        alone.leave()
        os.kill(alone.pid, signal.SIGCONT)
        assert alone.wait() == 0
        assert alone.read() == b""


@pytest.mark.parametrize("how", ["deadline", "agent gone", "end"])
def test_a_storm_of_forks_is_over_when_it_is_told_to_be(how: str) -> None:
    """Hundreds of processes, each in a session of its own, still forking when the kill begins."""
    with Alone() as alone:
        began = now()
        deadline = began + 0.5 if how == "deadline" else None
        alone.spawn(sys.executable, "-I", "-S", "-c", STORM.format(doublings=9), deadline=deadline)
        eventually(lambda: now() > began + 0.3, "it storms")
        if how == "end":
            alone.say("end", 0)
        if how != "agent gone":
            word = alone.ended()
            # So many may take longer to die than there is time past a deadline; then that is told instead.
            assert not word.unkillable or how == "deadline"
            assert word.reason == ("ended" if how == "end" else how)
        # Leaving the block awaits the guard and the end of its output: nobody is left to hold it.


def test_a_killed_guard_takes_the_leader_with_it() -> None:
    """The last line of defence, for who kills all of Python at once: agent and guard."""
    with Alone() as alone:
        alone.sh("setsid sleep 1 & exec sleep 1000")
        alone.hear()
        eventually(lambda: b"sleep\0" + b"1000\0" in _command_lines(alone.pid), "it runs")
        os.kill(alone.pid, signal.SIGKILL)
        assert alone.wait() == signal.SIGKILL
        alone.exit_status = 0
        assert alone.read() == b""


def _command_lines(parent: int) -> bytes:
    """What the children of `parent` run."""
    found = b""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found += (path / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
