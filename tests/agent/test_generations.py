"""Images of different generations in one deployment: who runs what, in the middle of an upgrade.

Whole agents against a real ZooKeeper.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import CHECKOUT
from tests.agent.test_one_time import SERVICE, Site, said_at
from tests.agent.test_one_time import site as site
from tests.conftest import Deployment
from tests.support import instances
from tests.support.agents import Agent, Containers
from tests.support.link import Link
from tests.support.publishing import publish
from tests.support.tool import run_ctl
from tests.support.waiting import eventually

HELD = (sys.executable, str(CHECKOUT / "tests" / "support" / "held_agent.py"))
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


def test_that_it_is_for_another_image_is_said_while_something_else_is_missing_too(site: Site) -> None:
    """Else it would come out only once the other thing is mended."""
    site.publish(sync={**site.once(generation="2.0"), "dependencies": ["mariadb/daemon"]})
    old = site.start("old", KOLLA_GENERATION="1.0")
    old.says(f"db/sync waits for mariadb/daemon: 0 of 1 instances ready; and {FOREIGN}")


def test_an_old_image_never_takes_over(site: Site) -> None:
    """Whatever it restarts through, and though the new image is killed in the middle."""
    site.publish(sync=site.once(generation="2.0"))
    new = site.start("new", KOLLA_GENERATION="2.0", KOLLA_ZK_SESSION_TIMEOUT="6")
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


# -- who depends on it ------------------------------------------------------------------------------

WEB = "web/front"
ITS_OWN = "front/daemon waits for db/sync: not done for generation 2.0, which this image has"
NOT_ITS_OWN = "db/sync is done, but not for generation"


class Front:
    """A daemon with a plain dependency on `db/sync`, which is for the generation in a shared variable."""

    def __init__(self, site: Site, dependency: object = "db/sync") -> None:
        self.site = site
        daemon: dict[str, Any] = {
            "command": ["sleep", "1000"],
            "dependencies": [dependency],
            "ready": {"alive": 0},
        }
        publish(site.deployment, WEB, {"service": {"daemon": daemon}})

    def release(self, generation: str | None) -> None:
        """Publish the migration for this generation."""
        keys = {} if generation is None else {"generation": "{{ release }}"}
        commands = {"sync": self.site.once(gate=None, **keys)}
        shared = {"release": generation or "none"}
        publish(self.site.deployment, SERVICE, {"commands": commands}, shared=shared)

    def migrate(self, generation: str) -> None:
        assert self.site.start(KOLLA_GENERATION=generation).ends() == 0

    def start(self, generation: str | None, host: str = "web1") -> Agent:
        image = {} if generation is None else {"KOLLA_GENERATION": generation}
        return self.site.containers.start(WEB, host, **image)


def runs_daemon(agent: Agent) -> None:
    eventually(lambda: "sleep" in agent.processes.values(), "the daemon runs")


@pytest.mark.parametrize("before", ["1.0", None])
def test_a_daemon_waits_for_the_migration_of_its_own_generation(site: Site, before: str | None) -> None:
    """Also where the migration had no generation before. Containers of other images go on."""
    front = Front(site)
    front.release(before)
    front.migrate("1.0")
    front.release("2.0")
    new = front.start("2.0")
    new.says(ITS_OWN)
    eventually(
        lambda: "db/sync <- front/daemon" in run_ctl(site.deployment, "explain").stdout,
        "`explain` shows it as soon as the container's znode says so",
    )
    old, unknown = front.start("1.0", "web2"), front.start(None, "web3")
    runs_daemon(old)
    runs_daemon(unknown)
    strange = front.start("0.9", "web4")
    runs_daemon(strange)
    assert [each.said.count(NOT_ITS_OWN) for each in (old, unknown, strange)] == [before is None, 0, 1]
    assert "0.9, which this image has; it is published for generation 2.0" in strange.said
    assert "sleep" not in new.processes.values()
    front.migrate("2.0")
    runs_daemon(new)
    assert NOT_ITS_OWN not in new.said


def test_a_daemon_that_waits_for_its_generation_goes_on_once_the_upgrade_is_given_up(site: Site) -> None:
    front = Front(site)
    front.release("1.0")
    front.migrate("1.0")
    front.release("2.0")
    new = front.start("2.0")
    new.says(ITS_OWN)
    site.zk.set(f"{site.deployment.path}/variables/release", b"1.0")
    runs_daemon(new)
    assert "2.0, which this image has; it is published for generation 1.0" in new.said


def test_the_limit_holds_while_the_generation_is_being_published(site: Site) -> None:
    """The rest of what is waited for is watched meanwhile."""
    front = Front(site)
    front.release("1.0")
    front.migrate("1.0")
    front.release("2.0")
    new = site.containers.start(WEB, KOLLA_GENERATION="2.0", KOLLA_WAIT_TIMEOUT="5")
    new.says(ITS_OWN)
    mark = json.dumps({"what": "publication", "by": "op", "begun": "now", "finished": None, "services": []})
    site.zk.set(f"{site.deployment.path}/.publication", mark.encode())
    site.zk.set(f"{site.deployment.path}/variables/release", b"1.0")
    new.says("waiting for at most 30 s")
    assert new.ends(25) == 75
    assert "and the limit for dependencies has passed" in new.ending["reason"]


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (b'{"commands": {"sync": {"run_once": true, "generation": "{{ image_generation }}"}}}', "any image"),
        (b'{"commands": {"sync": {"run_once": true, "generation": "{{ nowhere }}"}}}', "missing: nowhere"),
        (b'{"commands": [', "bad JSON"),
        (b"[1]", "expected"),
    ],
)
def test_a_generation_that_cannot_be_known_keeps_nobody_waiting(
    site: Site, definition: bytes, why: str
) -> None:
    """It may never come; a warning says what to look at."""
    front = Front(site)
    front.release("1.0")
    front.migrate("1.0")
    site.zk.set(f"{site.deployment.path}/{SERVICE}", definition)
    new = front.start("2.0")
    runs_daemon(new)
    (warning,) = [line for line in new.said.splitlines() if NOT_ITS_OWN in line]
    assert "whether that is the published generation is not known: " in warning
    assert why in warning


# -- the end of an upgrade --------------------------------------------------------------------------

API, STEPS = "web/api", "web/steps"


class Upgrade:
    """A service `api` with a migration, and another one with the last step of an upgrade.

    Commands of STEPS wait for a file (`let_go`), as those of Site do.
    """

    def __init__(self, site: Site) -> None:
        self.site, self.containers = site, site.containers
        self.api = instances.Site(site.deployment, site.zk, API)

    def publish(
        self, generation: str, *allowed: str, dependencies: Sequence[str] = (), **commands: Any
    ) -> None:
        migrate = self.site.once("migrate", gate=None, generation=generation)
        wanted = {"path": "api/daemon", "generation": generation, "exclusive": True, "count": 1}
        contract = self.site.once("contract", generation=generation, dependencies=[wanted])
        daemon = {"command": ["sleep", "1000"], "ready": {"alive": 0}, "dependencies": dependencies}
        if allowed:
            daemon["generations"] = list(allowed)
        found = {"migrate": migrate, **commands}
        publish(self.site.deployment, API, {"commands": found, "service": {"daemon": daemon}})
        publish(self.site.deployment, STEPS, {"commands": {"contract": contract}})

    def start(self, generation: str | None, host: str = "web1", service: str = API, **more: Any) -> Agent:
        image = {} if generation is None else {"KOLLA_GENERATION": generation}
        return self.containers.start(service, host, **image, **more)


@pytest.fixture
def upgrade(site: Site) -> Upgrade:
    return Upgrade(site)


def test_an_upgrade_goes_through_and_excludes_the_old_image(upgrade: Upgrade) -> None:
    """Until the last publication the old image serves, also after a restart; after it, it refuses."""
    upgrade.publish("1.0", "1.0")
    old, other = upgrade.start("1.0", "old"), upgrade.start("1.0", "other")
    runs_daemon(old)
    runs_daemon(other)
    upgrade.publish("2.0", "1.0", "2.0")
    last = upgrade.start("2.0", service=STEPS)
    last.says("waits for api/daemon: 0 of 1 instances of generation 2.0 ready")
    new = upgrade.start("2.0", "web2")
    runs_daemon(new)
    old.signal(signal.SIGKILL)
    old.ends()
    eventually(lambda: "api on other still has generation 1.0" in last.state, "the other one is in its way")
    old.restart()  # Rolled back, before the last step is done.
    runs_daemon(old)
    assert upgrade.site.runs("contract") == []
    for agent in (old, other):
        agent.signal(signal.SIGKILL)
        agent.ends()
    assert upgrade.site.running(1, "contract").host == "web1"
    upgrade.site.let_go()
    assert last.ends() == 0
    upgrade.publish("2.0", "2.0")
    old.restart()
    assert old.ends() == 76
    reason = "and the daemon's definition lists 2.0: start an image of a generation that it lists"
    assert old.ending == {
        "stage": "exec",
        "command": "api/daemon",
        "reason": f"this image is of generation 1.0, {reason}",
        "retriable": False,
        "status": 76,
    }
    late = upgrade.start(None, "web3")
    assert late.ends() == 76
    assert late.ending["reason"] == f"this image has no generation (KOLLA_GENERATION is not set), {reason}"
    new.signal(signal.SIGKILL)
    new.ends()
    new.restart()
    runs_daemon(new)


def test_an_old_image_that_waits_sees_the_next_publication(upgrade: Upgrade) -> None:
    """It waits since before the upgrade, and goes on after it."""
    gate = {"command": "true", "dependencies": ["gate/open"]}
    upgrade.publish("1.0", "1.0", gate=gate)
    old = upgrade.start("1.0")
    old.says("api/gate waits for gate/open")
    upgrade.publish("2.0", "2.0")
    runs_daemon(upgrade.start("2.0", "web2"))
    upgrade.site.put("global/gate/open", "done")
    assert old.ends() == 76
    assert "has changed since it was read: beginning again" in old.said


def test_an_old_image_that_has_run_a_command_sees_the_first_list(upgrade: Upgrade) -> None:
    """Its own definition has none, so that any image may run its daemon."""
    upgrade.publish("1.0", dependencies=["gate/open"])
    old = upgrade.start("1.0")
    old.says("api/migrate: done")
    old.says("api/daemon waits for gate/open")
    upgrade.publish("2.0", "2.0")
    runs_daemon(upgrade.start("2.0", "web2"))
    upgrade.site.put("global/gate/open", "done")
    assert old.ends() == 76
    assert "has changed since it was read: beginning again" in old.said


def test_an_old_image_on_its_way_to_exec_sees_the_next_publication(upgrade: Upgrade, tmp_path: Path) -> None:
    go = tmp_path / "held"
    upgrade.publish("1.0", "1.0")
    held = (*HELD, "hold", "shown = report.ephemeral", str(go))
    old = upgrade.containers.start(API, "old", KOLLA_GENERATION="1.0", under=held)
    eventually(Path(f"{go}.reached").exists, "it has come so far")
    upgrade.publish("2.0", "2.0")
    runs_daemon(upgrade.start("2.0", "web2"))
    go.touch()
    assert old.ends() == 76
    assert "sleep" not in old.processes.values()


@pytest.mark.parametrize("limit", ["0", "1"])
def test_an_outage_before_the_generations_are_read_is_reported(
    deployment: Deployment, containers: Containers, link: Link, limit: str
) -> None:
    """Only the published definition says whether the daemon may start. The limit of a wait holds there."""
    directory = containers.directory / "0-web1"
    check = "until test -e end; do sleep 0.05; done"
    held = {"web.conf": {"dest": f"{directory}/web.conf", "check": check}}
    daemon = {"command": "sleep 1000", "generations": ["1"], "files": held}
    publish(deployment, "web", {"service": {"daemon": daemon}}, files={"web.conf": "text"})
    environ = {"KOLLA_ZK_HOSTS": link.hosts, "KOLLA_GENERATION": "1", "KOLLA_WAIT_TIMEOUT": limit}
    agent = containers.start("web", **environ)
    eventually(lambda: "waits for the check of its file" in agent.state, "the check runs")
    link.kill()
    (directory / "end").touch()
    eventually(lambda: "for an answer of ZooKeeper" in agent.state, "health says what it waits for")
    if limit == "1":
        assert agent.ends() == 75
        assert "for an answer of ZooKeeper" in agent.ending["reason"]
        return
    link.launch()
    agent.says("web/daemon: exec")
