"""The position script of etc/examples/galera with real data directories, most of them of killed servers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drills.blackout.members import HOSTS, NO_GROUP, Member, Ports, Refused
from tests.support.processes import command_line
from tests.support.waiting import eventually

# Packages may have to be installed first.
pytestmark = pytest.mark.timeout(600)

ROWS, ROW = 40_000, 900  # of the table that is transferred: 50 MB
CHANGES = 20  # of the table, each of 1 MB: the cache for incremental transfers has 8 MB
PROGRAMS = {"rsync": "rsync", "mariabackup": "mariadb-backup"}


class Trio(list[Member]):
    """Three members."""

    def __init__(self, directory: Path, method: str) -> None:
        ports = Ports.free()
        super().__init__(Member(host, directory, ports, galera_transfer=method) for host in HOSTS)
        self.program = PROGRAMS[method]

    def form(self, count: int = 3) -> None:
        """Start so many of them, one after the other."""
        for member in self[:count]:
            member.start("join" if member is not self[0] else "first")
            member.await_ready()

    def kill(self) -> None:
        for member in self:
            member.kill()


@contextmanager
def trio(directory: Path, method: str = "rsync") -> Iterator[Trio]:
    members = Trio(directory, method)
    try:
        yield members
    finally:
        members.kill()


def write(member: Member, statement: str) -> None:
    """Write; the cluster may refuse for some seconds after one of its members was killed."""
    refusal = Refused()

    def written() -> bool:
        nonlocal refusal
        try:
            member.sql(statement)
        except Refused as error:
            refusal = error
            return False
        return True

    try:
        eventually(written, f"{member.host} writes", every=0.2, seconds=180)
    except AssertionError as error:
        raise AssertionError(f"{error}; {refusal}; {member.log_end()}") from None


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def donors(place: Path, request: pytest.FixtureRequest) -> Iterator[Trio]:
    """Two members with a large table, and a third one that is to join."""
    directory = place / request.param
    directory.mkdir(mode=0o755)
    with trio(directory, request.param) as members:
        members.form(2)
        members[0].sql(
            "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(1000))"
        )
        members[0].sql(f"INSERT INTO d.t (v) SELECT REPEAT('x', {ROW}) FROM d.seq_1_to_{ROWS}")
        yield members


def stop_transfer(members: Trio) -> list[int]:
    """Stop the donor's program as soon as it transfers; its processes."""

    def found() -> list[int]:
        return [
            pid
            for donor in members[:2]
            for pid in donor.processes
            if os.path.basename(command_line(pid).partition(" ")[0]) == members.program
        ]

    pids = eventually(found, f"a transfer; {members[2].log_end()}", every=0.002, seconds=180)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return pids


@pytest.mark.parametrize(
    ("has_old_data", "how"), [(False, "container"), (True, "server")], ids=["empty", "old-data"]
)
def test_a_killed_transfer_has_no_position(donors: Trio, has_old_data: bool, how: str) -> None:
    """The joiner is killed while its table is copied. Its old data no longer count either."""
    joiner = donors[2]
    if has_old_data:
        joiner.start("join")
        joiner.await_ready()
        joiner.kill()
        # So many small changes are not kept for an incremental transfer.
        change = f"UPDATE d.t SET v = REPEAT(CHAR(97 + (ASCII(v) + 1) % 26), {ROW}) WHERE id % 50 ="
        for part in range(CHANGES):
            write(donors[0], f"{change} {part}")
    else:
        shutil.rmtree(joiner.data, ignore_errors=True)
    joiner.start("join")
    stopped = stop_transfer(donors)
    mark = joiner.data / "sst_in_progress"
    assert mark.exists()
    try:
        if how == "container":
            joiner.kill()
        else:
            joiner.kill_server()
    finally:
        # Not CONT: then the joiner's programs, which still run, could receive everything.
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    eventually(lambda: not joiner.processes, "all its processes have ended")
    # The script of the transfer removes its mark, unless it was killed too.
    assert mark.exists() == (how == "container")
    assert joiner.grastate().get("uuid", NO_GROUP) == NO_GROUP
    assert joiner.position()[:2] == (0, "none")


@pytest.fixture(scope="module")
def members(place: Path) -> Iterator[Trio]:
    """Three members that were killed together, after a row was written."""
    directory = place / "small"
    directory.mkdir(mode=0o755)
    with trio(directory) as members:
        members.form()
        members[0].sql("CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT)")
        members[0].sql(f"INSERT INTO d.t SELECT * FROM d.seq_1_to_{ROWS}")
        members.kill()
        yield members


def form_again(members: Trio) -> None:
    """Start all, the one with the largest position first."""
    found = {member.host: member.position() for member in members}
    assert {each.status for each in found.values()} == {0}, found
    winner = max(members, key=lambda member: found[member.host].seqno)
    for member in (winner, *(each for each in members if each is not winner)):
        member.start("first" if member is winner else "join", found[member.host].text)
        member.await_ready()


def test_no_data(place: Path) -> None:
    directory = place / "none"
    member = Member(HOSTS[0], directory, Ports.free())
    assert member.position()[:2] == (0, "none")
    member.data.mkdir()
    assert member.position()[:2] == (0, "none")


def test_new_data_that_were_never_in_a_cluster(place: Path) -> None:
    """The winner was killed between the installation and its first start."""
    member = Member(HOSTS[0], place / "new", Ports.free())
    start = (member.etc / "start.sh").read_text()
    (member.etc / "start.sh").write_text(start.replace("exec mariadbd", "exit 9 # mariadbd"))
    member.start("first", "none")
    eventually(lambda: member.status == 9, f"the installation ends; {member.log_end()}")
    assert member.position()[:2] == (0, "none")
    (member.etc / "start.sh").write_text(start)
    member.start("first", "none")
    try:
        member.await_ready()
    finally:
        member.kill()


def test_a_running_server_fails(members: Trio) -> None:
    """Also if it was started by hand."""
    member = members[0]
    member.start("first")
    try:
        member.await_ready()
        status, text, messages = member.position()
        assert (status, text) == (1, "")
        assert f"process {member.pid} still has it open" in messages
    finally:
        member.kill()
    assert member.position().status == 0


def test_killed_members_have_a_position(members: Trio) -> None:
    form_again(members)
    members[1].sql("INSERT INTO d.t VALUES ()")
    before = int(members[1].sql("SHOW STATUS LIKE 'wsrep_last_committed'")[0][1])
    members.kill()
    positions = [member.position() for member in members]
    assert {each.text.partition(":")[0] for each in positions} == {members[0].grastate()["uuid"]}
    assert max(each.seqno for each in positions) >= before


def test_stopped_members_have_a_position(members: Trio) -> None:
    """Those that stop later have a larger one: each stop is an event."""
    form_again(members)
    assert [member.stop() for member in members] == [0, 0, 0]
    positions = [member.position() for member in members]
    assert positions[0].seqno < positions[1].seqno < positions[2].seqno


def test_a_schema_change_withdraws_the_state_and_not_the_position(members: Trio) -> None:
    """Killed during ALTER TABLE, no grastate.dat has a group. The members form the cluster again."""
    form_again(members)
    over = threading.Event()

    def alter() -> None:
        number = 0
        while not over.is_set():
            number += 1
            with suppress(Refused):
                members[0].sql(f"ALTER TABLE d.t ADD COLUMN c{number} INT, FORCE")

    changing = threading.Thread(target=alter)
    changing.start()
    try:
        eventually(
            lambda: all(member.grastate().get("uuid") == NO_GROUP for member in members),
            "it has begun",
            every=0,
        )
    finally:
        over.set()
        members.kill()
        changing.join()
    assert {member.position().status for member in members} == {0}
    form_again(members)
    tables = [
        member.sql("SHOW CREATE TABLE d.t; CHECKSUM TABLE d.t; SELECT COUNT(*) FROM d.t")
        for member in members
    ]
    assert tables[0] == tables[1] == tables[2]
    assert int(tables[0][-1][0]) >= ROWS
    members.kill()


def test_an_interrupted_join_with_a_withdrawn_state_has_no_position(members: Trio) -> None:
    """An incremental transfer leaves complete data, but they look like a copy of half the files."""
    member = members[2]
    state = member.data / "grastate.dat"
    before, group = state.read_text(), member.grastate()["uuid"]
    state.write_text(before.replace(group, NO_GROUP))
    joining = member.state / "joining"
    joining.write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    try:
        assert member.position()[:2] == (0, "none")
        state.write_text("")
        assert member.position()[:2] == (0, "none")
        state.write_text(before)
        assert member.position().text.startswith(f"{group}:")
        joining.write_text("an earlier boot")
        assert member.position()[:2] == (0, "none")
    finally:
        state.write_text(before)
        joining.unlink()


def test_a_joined_member_is_ready_after_its_mark_is_gone_from_the_disk(members: Trio, place: Path) -> None:
    """A power cut would bring the mark back, and the member would have no position although it has joined."""
    programs = place / "programs"
    programs.mkdir()
    joiner = members[2]
    log = joiner.state / "synced"
    (programs / "sync").write_text(
        f'#!/bin/sh\necho "$@" joining=$(test -e {joiner.state}/joining && echo yes || echo no) >>{log}\n'
        'exec /bin/sync "$@"\n'
    )
    (programs / "sync").chmod(0o755)
    joiner.environ["PATH"] = f"{programs}:{joiner.environ['PATH']}"
    try:
        form_again(members)
        synced = log.read_text().splitlines()
        assert synced[-2:] == [f"--file-system {joiner.state} joining=yes", f"{joiner.state} joining=no"]
        log.unlink()
        assert joiner.is_ready
        assert not log.exists(), "once is enough"
    finally:
        members.kill()


def test_a_server_that_has_left_its_cluster_is_ended(members: Trio) -> None:
    """Galera asks for a restart in its log, and the server would run for ever."""
    form_again(members)
    try:
        leaver = members[2]
        leaver.sql("SET GLOBAL wsrep_cluster_address = ''")
        assert not leaver.is_ready
        eventually(lambda: leaver.status == 0, f"it ends; {leaver.log_end()}")
        leaver.start("join")
        leaver.await_ready()
    finally:
        members.kill()


def test_data_that_are_not_a_clusters_fail(members: Trio) -> None:
    """`none` would have them overwritten by those of the cluster."""
    member = members[2]
    state = member.data / "grastate.dat"
    before, group = state.read_text(), member.grastate()["uuid"]
    state.unlink()
    try:
        status, text, messages = member.position()
        assert (status, text) == (1, "")
        assert "not data of a Galera cluster" in messages
        state.write_text(before.replace(group, "12345678" + group[8:]))
        status, text, messages = member.position()
        assert (status, text) == (1, "")
        assert f"InnoDB {group}" in messages
    finally:
        state.write_text(before)


def test_a_database_that_cannot_be_recovered_fails(members: Trio) -> None:
    member = members[2]
    system = member.data / "ibdata1"
    kept = member.data / "kept"
    system.rename(kept)
    system.write_bytes(b"\xff" * 4096)
    try:
        status, text, messages = member.position()
        assert (status, text) == (1, "")
        assert "mariadbd --wsrep-recover: status" in messages
    finally:
        kept.replace(system)
