"""Images of different generations in one deployment: who runs what, in the middle of an upgrade.

Whole agents against a real ZooKeeper.
"""

from __future__ import annotations

import signal

from tests.integration.test_one_time import Site, said_at
from tests.integration.test_one_time import site as site
from tests.waiting import eventually

FOREIGN = "db/sync is for 2.0, this image is 1.0"


def test_an_old_image_never_runs_what_a_newer_one_is_to_run(site: Site) -> None:
    """Nor does it keep the newer one waiting; once that has run it, it goes on by itself."""
    site.publish(sync=site.once(generation="2.0"))
    old = [site.start(f"old{number}", KOLLA_GENERATION="1.0") for number in range(3)]
    for agent in old:
        agent.says(FOREIGN)
    assert site.queue() == []
    new = site.start("new", KOLLA_GENERATION="2.0")
    assert site.running().host == "new"
    assert site.queue() == ["new"]
    site.let_go()
    assert [agent.ends() for agent in (new, *old)] == [0] * 4
    assert [run.host for run in site.runs()] == ["new"]
    assert all("db/sync: already done" in agent.said for agent in old)


def test_an_old_image_never_takes_over(site: Site) -> None:
    """Whatever it restarts through, and though the new image is killed in the middle."""
    site.publish(sync=site.once(generation="2.0"))
    new = site.start("new", KOLLA_GENERATION="2.0", KOLLA_ZK_SESSION_TIMEOUT="2")
    site.running()
    old = [site.start(f"old{number}", KOLLA_GENERATION="1.0") for number in range(3)]
    for agent in old:
        agent.says(FOREIGN)
    old[0].signal(signal.SIGKILL)
    old[0].ends()
    new.signal(signal.SIGKILL)
    new.ends()
    eventually(lambda: site.queue() == [], "the lock is free")
    old[0].restart()
    eventually(lambda: old[0].said.count(FOREIGN) == 2, "it waits again")
    eventually(lambda: FOREIGN in old[1].health().stdout, "the other one still does")
    assert (site.queue(), site.names(f"{site.at()}/generations")) == ([], [])
    site.let_go()
    new.restart()
    assert [agent.ends() for agent in (new, *old)] == [0] * 4
    assert [run.host for run in site.runs()] == ["new", "new"]


def test_a_newer_image_does_not_run_an_old_generation(site: Site) -> None:
    """It was started before what it is for was published."""
    site.publish(sync=site.once(gate=None, generation="1.0"))
    new = site.start("new", KOLLA_GENERATION="2.0")
    new.says("db/sync is for 1.0, this image is 2.0")
    assert site.start("old", KOLLA_GENERATION="1.0").ends() == 0
    assert new.ends() == 0
    assert [run.host for run in site.runs()] == ["old"]


def test_it_is_once_for_each_host_too(site: Site) -> None:
    """A host waits for an image of its own."""
    site.publish(sync=site.once(gate=None, run_once="host", generation="2.0"))
    old = site.start("web1", KOLLA_GENERATION="1.0")
    old.says(FOREIGN)
    assert site.start("web2", KOLLA_GENERATION="2.0").ends() == 0
    assert site.start("web1", KOLLA_GENERATION="2.0").ends() == 0
    assert old.ends() == 0
    assert [run.host for run in site.runs()] == ["web2", "web1"]


def test_a_container_that_does_not_say_its_generation_is_warned(site: Site) -> None:
    """It behaves as before."""
    site.publish(sync=site.once(gate=None, generation="2.0"), step=site.plain(gate=None))
    agent = site.start()
    assert agent.ends() == 0
    assert len(site.runs()) == 1
    assert agent.said.count("KOLLA_GENERATION is not set") == 1
    assert said_at(agent, "KOLLA_GENERATION is not set") < said_at(agent, "db/sync: starting")
