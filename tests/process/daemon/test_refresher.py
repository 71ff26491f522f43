"""When the files of a running daemon are refreshed, and what happens then; with everything in memory."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import stat

import pytest

from kolla_mesos_start.daemon.handoff import Refreshed, plain
from kolla_mesos_start.daemon.refresher import (
    LONGEST,
    QUIET,
    SHORT_QUIET,
    ending,
    quiet_after,
    read_report,
    retry_after,
)
from kolla_mesos_start.report import REFRESH_FAILED, REFRESH_RUNNING, RESTART
from tests.conftest import LogLines
from tests.process.daemon.fleet import FILE, KILLED, SERVICE, SLOTS, Fleet, Instance, render
from tests.process.daemon.fleet import fleet as fleet

CONTAINERS = f"{SERVICE}/.containers"
READY = "/kolla/site/status/global/api/daemon/ready"
KNOWN = {(READY, True), (f"{READY}/1", False), ("/kolla/site/variables/port", False)}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((READY, True), SHORT_QUIET),
        ((f"{READY}/1", False), SHORT_QUIET),
        (("/kolla/site/variables/port", False), QUIET),
    ],
)
def test_a_changed_instance_is_refreshed_sooner_than_a_publication(
    key: tuple[str, bool], expected: float
) -> None:
    """A publication has many znodes; load balancers should learn of an instance soon."""
    assert quiet_after(key, KNOWN) == expected


@pytest.mark.parametrize(("killed", "seconds"), [(0, 0), (1, 1), (6, 32), (7, 60), (10_000, 60)])
def test_a_refresh_that_is_killed_repeatedly_is_tried_with_increasing_delay(
    killed: int, seconds: float
) -> None:
    """It costs a full agent each time."""
    assert retry_after(killed) == seconds


def test_an_incomplete_report_counts_as_none() -> None:
    """A kill may cut it off at any byte."""
    whole = marshal.dumps(plain(Refreshed({("/a", True): 1}, "no")))
    for size in range(len(whole) + 1):
        report = os.memfd_create("report")
        os.write(report, whole[:size])
        found = read_report(report)
        assert found == (Refreshed({("/a", True): 1}, "no") if size == len(whole) else None)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "it was killed by signal 9 (is the memory limit of the container too low?)"),
        (-signal.SIGSEGV, "it was killed by signal 11"),
        (70, "kolla_mesos_start refresh ended with status 70"),
    ],
)
def test_the_reason_of_a_refresh_without_a_report_says_how_it_ended(status: int, words: str) -> None:
    """The kernel's OOM killer sends SIGKILL."""
    assert ending(status) == words


# -- what changes -----------------------------------------------------------------------------------------


def test_one_publication_notifies_the_daemon_once(fleet: Fleet) -> None:
    """The refresh begins when nothing has changed for a second."""
    web = fleet.start()
    for number in range(8):
        fleet.publish(f"text {number}")
        fleet.settle(QUIET - 0.1)
        assert not web.refreshes
    fleet.settle(2)
    assert (web.heard, web.refreshes) == (["text 7"], 1)


def test_constant_changes_do_not_delay_a_refresh_for_ever(fleet: Fleet) -> None:
    web = fleet.start()
    for number in range(int(LONGEST) * 2 + 2):
        fleet.publish(f"text {number}")
        fleet.settle(0.5)
    assert web.refreshes == 1


def test_a_missing_znode_is_watched(fleet: Fleet) -> None:
    """For example, a variable of the host would take precedence over one of the deployment."""
    fleet.servers.remove(FILE)
    web = fleet.start()
    fleet.publish("nearer")
    fleet.settle(3)
    fleet.servers.remove(FILE)
    fleet.settle(3)
    assert web.heard == ["nearer", ""]


@pytest.mark.parametrize("exists", [True, False])
def test_a_new_instance_or_member_leads_to_a_refresh(fleet: Fleet, exists: bool) -> None:
    """Even if the first one creates the znode above."""
    if exists:
        fleet.servers.put(READY)
    web = fleet.start()

    def list_ready(instance: Instance) -> Refreshed:
        seen = {(READY, True): fleet.servers.znodes[READY].pzxid if READY in fleet.servers.znodes else None}
        instance.file = " ".join(fleet.servers.children(READY))
        return Refreshed(seen, "", written=["web.conf"], kind="signal", signal="HUP")

    web.render = list_ready
    web.ask()
    fleet.settle(3)
    for name in ("1", "2"):
        fleet.servers.put(f"{READY}/{name}")
        fleet.settle(3)
    fleet.servers.remove(f"{READY}/1")
    fleet.settle(3)
    assert web.heard == ["", "1", "1 2", "2"]


def test_a_change_between_rendering_and_watching_is_not_lost(fleet: Fleet) -> None:
    """What it finds is compared with what was rendered."""
    web = fleet.start()
    web.session.lose()
    fleet.publish("new")
    web.session.connect()
    fleet.settle(3)
    assert web.heard == ["new"]


def test_a_change_during_a_refresh_leads_to_another_one(fleet: Fleet) -> None:
    web = fleet.start()
    fleet.publish("two")
    fleet.settle(1.2)
    assert (web.is_rendering, web.refresher.code) == (True, REFRESH_RUNNING)
    fleet.publish("three")
    fleet.settle(5)
    assert web.heard == ["two", "three"]


@pytest.mark.parametrize("outage", [0.5, 30.0])
def test_an_outage_during_a_refresh_loses_nothing(fleet: Fleet, outage: float) -> None:
    """A change during the outage is found afterwards."""
    web = fleet.start()
    fleet.publish("new")
    fleet.settle(1.2)
    web.session.lose()
    fleet.settle(outage)
    fleet.publish("newer")
    web.session.connect(expired=outage > 10)
    fleet.settle(5)
    assert web.heard == ["new", "newer"]


def test_a_refresh_that_changes_no_file_does_not_notify_the_daemon(fleet: Fleet) -> None:
    web = fleet.start()
    fleet.publish("old")
    fleet.settle(3)
    assert (web.refreshes, web.heard, web.refresher.reason) == (1, [], "")
    assert web.constants == b"old"  # The container runs what is published.


# -- failures ---------------------------------------------------------------------------------------------


def test_a_failed_refresh_is_tried_again_after_the_next_change(fleet: Fleet, log_lines: LogLines) -> None:
    """Of what it has read, or of what was read before."""
    web = fleet.start()
    nowhere = "/kolla/site/variables/nowhere"

    def render_both(instance: Instance) -> Refreshed:
        if nowhere in fleet.servers.znodes:
            return render(instance) or Refreshed({}, "")
        return Refreshed({(nowhere, False): None}, "missing: nowhere")

    web.render = render_both
    fleet.publish("two")
    fleet.settle(3)
    assert web.refresher.reason == "the refresh of its files failed: missing: nowhere"
    assert web.refresher.code == REFRESH_FAILED
    assert log_lines()[-1].message == "the refresh of the daemon's files failed: missing: nowhere"
    fleet.publish("three")
    fleet.settle(30)
    assert (web.refreshes, web.heard) == (2, [])
    fleet.servers.put(nowhere)
    fleet.settle(3)
    assert (web.heard, web.refresher.reason) == (["three"], "")


def test_a_notification_that_failed_is_repeated_at_the_next_refresh(fleet: Fleet) -> None:
    """The new files are placed already."""
    web = fleet.start()
    web.deaf = "SIGHUP can't be sent to the daemon: Operation not permitted"
    fleet.publish("new")
    fleet.settle(3)
    assert web.refresher.reason.startswith(f"the refresh of its files failed: {web.deaf}; its new files are")
    web.deaf = ""
    asking = web.ask()
    fleet.settle(3)
    assert answer(asking) == "0 refreshed; the daemon was notified, and is ready"
    assert web.refresher.notified == [{}, None]
    assert web.heard == ["new"]


def test_a_killed_refresh_is_tried_again_and_notifies_the_daemon(fleet: Fleet) -> None:
    """It may have placed files before it was killed: the next one finds nothing to place."""
    web = fleet.start()
    fleet.publish(KILLED)
    fleet.settle(1.6)
    web.file = "placed"
    web.render = lambda instance: Refreshed({}, "", written=[], kind="signal", signal="HUP")
    fleet.settle(3)
    assert web.refreshes > 1 and web.heard == ["placed"]
    assert answer(web.ask(), fleet) == "0 nothing has changed in its files"


def test_a_publication_during_a_killed_refresh_is_not_lost(fleet: Fleet) -> None:
    web = fleet.start()
    fleet.publish(KILLED)
    fleet.settle(1.2)
    fleet.publish("newer")
    fleet.settle(5)
    assert web.heard == ["newer"]


def test_a_change_that_needs_a_restart_is_shown(fleet: Fleet) -> None:
    """Until it is taken back."""
    web = fleet.start()
    web.render = lambda instance: Refreshed({(FILE, False): 0}, "", note="restart it", needs_restart=True)
    web.ask()
    fleet.settle(0.6)
    assert (web.refresher.reason, web.refresher.code) == ("restart it", RESTART)
    web.render = render
    fleet.settle(3)
    assert (web.refresher.reason, web.refresher.code) == ("", "")


def test_a_daemon_that_its_files_have_broken_gets_the_next_ones(fleet: Fleet) -> None:
    """A refresh in the meantime that changes nothing does not count as its success."""
    web = fleet.start()
    web.takes = 1e6
    fleet.publish("bad")
    fleet.settle(3)
    asking = web.ask()
    fleet.settle(LONGEST + 3)
    assert (web.refreshes, web.heard) == (2, ["bad"])
    assert web.refresher.reason == "its files were refreshed, and its check has not passed since"
    web.takes = 1.0
    fleet.publish("good")
    fleet.settle(LONGEST + 3)
    assert answer(asking).startswith("1 the daemon was notified, and has not become ready since")
    assert (web.heard, web.refresher.reason) == (["bad", "good"], "")


# -- by hand ----------------------------------------------------------------------------------------------


def answer(asking: socket.socket, fleet: Fleet | None = None) -> str:
    """The answer to a refresh by hand."""
    if fleet:
        fleet.settle(5)
    asking.setblocking(False)  # It is there already.
    return asking.recv(1000).decode().rstrip("\n")


@pytest.mark.parametrize(("width", "seconds"), [(None, 0.5), (1, 5.0)])
def test_a_refresh_by_hand_does_not_wait(fleet: Fleet, width: int | None, seconds: float) -> None:
    """Neither until nothing changes any more, nor for its turn. Its end is the answer."""
    web = fleet.start("w1", width)
    fleet.publish("new")
    fleet.servers.put(f"{SLOTS}/other", b"other", owner=7)
    fleet.settle(seconds)
    assert web.refreshes == 0
    asking = web.ask()
    fleet.settle(1.6)
    assert answer(asking) == "0 refreshed; the daemon was notified, and is ready"
    fleet.publish("poison")
    assert answer(web.ask(), fleet) == "78 its check refuses the new content"


def test_requests_during_a_refresh_lead_to_one_more(fleet: Fleet) -> None:
    """Except for those that have come before it began."""
    web = fleet.start()
    web.held = True
    first = [web.ask(), web.ask()]
    fleet.settle(1)
    late = [web.ask(), web.ask()]
    fleet.settle(1)
    assert web.refreshes == 1
    web.held = False
    fleet.settle(5)
    assert web.refreshes == 2
    assert {answer(each) for each in first + late} == {"0 nothing has changed in its files"}


def test_a_client_that_leaves_does_not_disturb_the_refresh(fleet: Fleet) -> None:
    web = fleet.start()
    fleet.publish("new")
    web.ask().close()
    fleet.settle(3)
    assert (web.heard, web.refresher.reason) == (["new"], "")


def test_only_the_agents_user_can_ask_for_a_refresh(fleet: Fleet) -> None:
    web = fleet.start()
    assert stat.S_IMODE((web.run_dir / "refresh").stat().st_mode) == 0o600


def test_the_end_of_the_daemon_ends_its_refresh(fleet: Fleet) -> None:
    web = fleet.start()
    web.held = True
    web.ask()
    fleet.settle(1)
    assert web.is_rendering
    web.refresher.close()
    assert (web.is_rendering, web.loop.readers) == (False, {})


def test_a_client_does_not_wait_for_later_changes(fleet: Fleet) -> None:
    """It asks while the daemon settles; changes that go on come meanwhile."""
    web = fleet.start()
    web.takes = 5.0
    fleet.publish("a")
    fleet.settle(3)
    web.ask()
    before = web.refreshes
    for number in range(10):
        fleet.publish(f"b{number}")
        fleet.settle(0.5)
    assert web.refreshes > before
