"""Why a deployment is not up, for trees of znodes: one for each kind that is told apart."""

from __future__ import annotations

from typing import Any

import pytest

from kolla_mesos_start.ctl.live import causes, explanation
from kolla_mesos_start.ctl.live.causes import TOO_FEW
from kolla_mesos_start.ctl.live.logs import LAUNCHER
from kolla_mesos_start.ctl.live.model import KINDS, UNKNOWN_STATUS
from kolla_mesos_start.ctl.live.reader import DeploymentReader
from kolla_mesos_start.tree.states import NO_TIMEOUT
from tests.ctl.trees import (
    NOW,
    ZNODES,
    Tree,
    container,
    definition,
    deployment,
    one_time,
    ready,
    view,
)

TASK = definition(commands={"sync": one_time()}, daemon=False)
STATE, DETAIL, LOCK = (f"status/global/job/sync{end}" for end in ("", "/detail", "/lock/x__lock__0000000000"))
FAILED = {"attempt": 3, "host": "h1", "message": "exit status 1", "started": NOW - 9, "finished": NOW - 5}
SEE = "; see the log of"
FAILED_THERE = "failed on h1 1 min ago: exit status 1 (3 attempts so far); see the log of"
ENDED = {"stage": "render", "command": "web/daemon", "reason": "missing: x", "status": 78, "retriable": False}
CRASHED = {
    "stage": "daemon",
    "command": "web/daemon",
    "reason": "ended 0.4 s after its start",
    "code": "never-ready",
    "retriable": True,
}
CRASHED_THERE = f"ended 0.4 s after its start, 1 min ago; {UNKNOWN_STATUS}; see the log of web there"
NEVER = f"was ever started, or none has reached ZooKeeper: {LAUNCHER}"
OUTSIDE = {"external": {"tcp": "u:80"}}
OUTSIDE_NAME = "external tcp u:80"
WANTED = TOO_FEW
NEW = {"path": "web/daemon", "generation": "2", "exclusive": True, "count": 2}


def one(service: str, said: object, written: object = None) -> Tree:
    """A service with one container."""
    return {service: written or definition(), f"{service}/.containers/1": said}


def up(service: str) -> Tree:
    """A service with one ready instance."""
    return {service: definition(), **ready(service, "1")}


def of_generation(*generations: str) -> Tree:
    """Ready instances of `web`, each with the generation of its image."""
    tree: dict[str, Any] = {"status/global/web": "web"}
    for number, generation in enumerate(generations):
        tree[f"status/global/web/daemon/ready/{number}"] = {"generation": generation}
        tree[f"web/.containers/{number}"] = container("ready", generation=generation)
    return tree


# What publishing with acl.yml creates.
PREPARED = {"a/web/.acl": "x509:CN=web:cdrw", "a/web/.containers": "", "status/global/web": "a/web"}
KILLED = {"what": "publication", "by": "root on h", "begun": "12:00", "finished": None}
# The tree, and `kind: text` of each cause.
CASES: dict[str, tuple[Any, ...]] = {
    "all is up": ({**up("db")},),
    "an instance is invalid": (
        {**up("db"), "status/global/db/daemon/ready/9": "[]"},
        "left out: /kolla/site/status/global/db/daemon/ready/9: it is not a JSON object",
    ),
    "its refresh has failed": (
        {
            **ready("db", "1"),
            **one(
                "db",
                container("ready", "the refresh of its files failed: no variable a", code="refresh-failed"),
            ),
        },
        "refresh failed: db/daemon on web1 is ready; the refresh of its files failed: no variable a;"
        " correct that and publish, or run `kolla_mesos_start refresh` in the container",
    ),
    "its refresh is running": (
        {**ready("db", "1"), **one("db", container("ready", "its turn comes"))},
        "refreshing: db/daemon on web1 is ready; its turn comes",
    ),
    "it waits for a dependency of an older definition": (
        {**one("web", container("waiting", "web/daemon waits for x", definition="3e7"))},
        "restart: web on web1 waits by an older definition: restart it; web/daemon waits for x",
    ),
    "a new version fails, and the others are the last ones that work": (
        {
            "web": definition(instances=2),
            "status/global/web": "web",
            "web/.containers/0": container("ready", definition="3e7", host="web0"),
            "web/.containers/1": container("unready", "exit status 1", definition="3e8"),
            "status/global/web/daemon/ready/0": {},
        },
        "not ready: web/daemon on web1 is not ready for 0 s: exit status 1; see the log of web",
        "keep: web/daemon on web0 runs an older definition (changed 1 min ago): keep it while the new version"
        " fails on web1: correct that and publish, or publish the old version again",
    ),
    "a new version starts, and the others stay until it is ready": (
        {
            "web": definition(instances=2),
            "status/global/web": "web",
            "status/global/web/daemon/ready/0": {},
            "web/.containers/0": container("ready", definition="3e7", host="web0"),
            "web/.containers/1": container("starting", definition="3e8"),
        },
        "starting: web/daemon on web0 runs an older definition (changed 1 min ago): keep it until the new"
        " version is ready on web1",
        "starting: web/daemon on web1 has been starting for 0 s",
    ),
    "a start of a new version ended": (
        {
            **ready("web", "0"),
            "web": definition(instances=2),
            "web/.containers/0": container("ready", definition="3e7", host="web0"),
            "status/h1/web/ended": ENDED,
        },
        "ended: web/daemon on h1 ended 1 min ago in stage render, exit status 78: missing: x; correct that,"
        " and start it again",
        "keep: web/daemon on web0 runs an older definition (changed 1 min ago): keep it while the new version"
        " fails on h1: correct that and publish, or publish the old version again",
    ),
    "failed": (
        {"job": TASK, STATE: "error", DETAIL: FAILED},
        f"failed: job/sync {FAILED_THERE} job there, correct the cause, and start it again",
    ),
    "failed, and another container tries it again": (
        {"job": TASK, STATE: "error", DETAIL: FAILED, LOCK: "h2"},
        "failing: job/sync failed on h1 1 min ago and is tried again: exit status 1 (3 attempts so far)",
    ),
    "failed, and other containers have got past it": (
        {
            "web": definition(commands={"sync": one_time()}, instances=2),
            "status/global/web/sync": "error",
            "status/global/web/sync/detail": FAILED,
            "status/h1/web/ended": {**ENDED, "stage": "bootstrap", "command": "web/sync"},
            **ready("web", "1"),
        },
        f"failed: web/sync {FAILED_THERE} web there, correct the cause, and start it again",
    ),
    "between two attempts": (
        {STATE: "retry", DETAIL: FAILED, **one("job", container("bootstrapping"), TASK)},
        "failing: job/sync failed on h1 1 min ago and is tried again: exit status 1 (3 attempts so far)",
    ),
    "an external service that two services wait for": (
        {
            **one(
                "job",
                container(
                    "waiting",
                    "job/sync waits",
                    outside={OUTSIDE_NAME: "the name u can't be resolved: unknown"},
                ),
                definition(commands={"sync": one_time(OUTSIDE)}, daemon=False),
            ),
            **one(
                "web",
                container("waiting", "web/daemon waits", outside={OUTSIDE_NAME: "refused"}),
                definition(OUTSIDE),
            ),
        },
        f"outside: {OUTSIDE_NAME}: the name u can't be resolved: unknown (asked from web1)",
    ),
    "an external service, before a command that another container has run": (
        {
            "web": definition(commands={"sync": one_time(OUTSIDE)}),
            "status/global/web/sync": "done",
            **{
                f"web/.containers/{i}": container(
                    "waiting", "web/sync waits", host=f"h{i}", outside={OUTSIDE_NAME: "refused"}
                )
                for i in range(3)
            },
        },
        f"outside: {OUTSIDE_NAME}: refused (asked from h0 and 2 more)",
    ),
    "an external service that may depend on another service": (
        {
            **one(
                "web",
                container("waiting", "web/daemon waits", outside={OUTSIDE_NAME: "refused"}),
                definition(OUTSIDE, "db/daemon"),
            ),
            **one("db", container("starting", since=NOW - 1)),
        },
        "starting: db/daemon on web1 has been starting for 1 s",
        f"unanswered: {OUTSIDE_NAME}: refused (asked from web1)",
    ),
    "an external service, and enough instances are ready": (
        {
            "web": definition(commands={"sync": one_time(OUTSIDE)}),
            "status/global/web/sync": "done",
            **ready("web", "1"),
            "web/.containers/2": container("waiting", "web/sync waits", outside={OUTSIDE_NAME: "refused"}),
        },
    ),
    "running, and the container has written nothing yet": (
        {
            "job": TASK,
            STATE: "running",
            DETAIL: {"attempt": 1, "host": "h1", "started": NOW},
            LOCK: "h1",
            "job/.containers": "",
        },
        f"running: job/sync has run on h1 for 1 min (attempt 1), and holds its lock; {NO_TIMEOUT}",
    ),
    "its container is gone": (
        {STATE: "running", DETAIL: {"attempt": 1, "host": "h1"}, **one("job", container("waiting"), TASK)},
        "abandoned: job/sync on h1 began 1 min ago and has no outcome; nobody holds its lock",
    ),
    "started, and not ready": (
        {**one("web", container("starting", "command check, exit status 69", since=NOW - 130))},
        f"not ready: web/daemon on web1 is not ready for 2 min 10 s: command check, exit status 69{SEE} web",
    ),
    "a check that never succeeds": (
        {**one("web", container("starting", "check tcp port 1: refused", since=NOW - 130, code="check"))},
        "not ready: web/daemon on web1 is not ready for 2 min 10 s: check tcp port 1: refused;"
        f" the daemon runs: correct its configuration, or `ready` in its definition{SEE} web",
    ),
    "about to be stopped": (
        {
            **one(
                "web",
                container("draining", "waits for haproxy on edge1 to refresh", since=NOW - 3),
            )
        },
        "draining: web/daemon on web1 has been draining for 3 s: waits for haproxy on edge1 to refresh",
    ),
    "started by an older agent": (
        {"web": definition(), "web/.party/1": {"host": "h1"}},
        "starting: web/daemon on h1 has been starting for 1 min",
    ),
    "ended before its command began": (
        {"web": definition(), "status/h2/web/ended": ENDED},
        "ended: web/daemon on h2 ended 1 min ago in stage render, exit status 78: missing: x;"
        " correct that, and start it again",
    ),
    "its wait timed out": (
        {
            "web": definition(),
            "status/h2/web/ended": {**ENDED, "stage": "wait", "status": 75, "retriable": True},
        },
        "gave up: web/daemon on h2 ended 1 min ago in stage wait, exit status 75: missing: x",
    ),
    "ended, and the next start has not got as far": (
        {"status/web1/web/ended": ENDED, **one("web", container("bootstrapping"))},
        "ended: web/daemon on web1 ended 1 min ago in stage render, exit status 78: missing: x",
    ),
    "ended, and the next start waits before that": (
        {"status/web1/web/ended": ENDED, **one("web", container("waiting", since=NOW - 30))},
        "gave up: web/daemon on web1 ended 1 min ago in stage render, exit status 78: missing: x;"
        " the next start has not reached this point yet",
    ),
    "ended, beside an instance that started long before": (
        {
            "status/web1/web/ended": ENDED,
            **ready("web", "1"),
            **one("web", container("ready", since=NOW - 90), definition(instances=2)),
            "web/.containers/2": container("waiting"),
        },
        "ended: web/daemon on web1 ended 1 min ago in stage render, exit status 78: missing: x",
    ),
    "a daemon that ended before it was ready, alone": (
        {"web": definition(instances=2), "status/web2/web/ended": CRASHED, **ready("web", "1")},
        f"ended: web/daemon on web2 {CRASHED_THERE}, correct the cause, and start the container again",
    ),
    "a daemon that ended before it was ready, with its successor": (
        {
            "web": definition(instances=2),
            "status/web2/web/ended": CRASHED,
            **ready("web", "1"),
            "web/.containers/2": container("starting", host="web2"),
        },
        f"gave up: web/daemon on web2 {CRASHED_THERE}",
        "starting: web/daemon on web2 has been starting for 0 s",
    ),
    "a daemon that ended before it was ready, and now is no longer": (
        {"status/web1/web/ended": CRASHED, **one("web", container("unready", "refused"))},
        "not ready: web/daemon on web1 is not ready for 0 s: refused; see the log of web",
    ),
    "its wait timed out, and it waits again": (
        {
            "status/web1/web/ended": {**ENDED, "stage": "wait", "status": 75, "retriable": True},
            **one("web", container("waiting"), definition("db/daemon")),
            **one("db", container("starting")),
        },
        "starting: db/daemon on web1 has been starting for 0 s",
    ),
    "ended, and has been replaced on another host": (
        {"status/h9/web/ended": ENDED, **one("web", container("starting"))},
        "starting: web/daemon on web1 has been starting for 0 s",
    ),
    "failed, and its container has ended": (
        {"job": TASK, STATE: "error", DETAIL: FAILED, "status/h1/job/ended": {**ENDED, "stage": "bootstrap"}},
        f"failed: job/sync {FAILED_THERE} job there, correct the cause, and start it again",
    ),
    "never started": ({"a/web": definition()}, f"absent: no container of a/web {NEVER}"),
    "gone": (
        {"a/web": definition(), "a/web/.containers": "", "status/global/web": "a/web"},
        "absent: no container of a/web is left: start it again",
    ),
    "never started, and publish has claimed its role": (
        {"a/web": definition(), **PREPARED},
        f"absent: no container of a/web {NEVER}",
    ),
    "gone, and publish has claimed its role": (
        {"a/web": definition(), **PREPARED, "status/global/web/daemon": "waiting"},
        "absent: no container of a/web is left: start it again",
    ),
    "a task of older agents": (
        {"a/job": TASK, "status/global/job": "a/job"},
        "absent: a/job was started, but none of its containers reports what it is doing",
    ),
    "too few containers": (
        {"web": definition(instances=3), **ready("web", "1", "2")},
        "absent: 2 of 3 containers of web exist: start the others",
    ),
    "of another generation": (
        {
            **one(
                "job",
                container("waiting", generation="2025.2"),
                definition(commands={"sync": one_time(generation="2026.1")}, daemon=False),
            )
        },
        "generation: job/sync is for generation 2026.1, and the existing containers are of 2025.2: "
        "start one of the image of 2026.1",
    ),
    "instances of a generation that no container has": (
        {
            **one(
                "job",
                container("waiting", generation="2"),
                definition(commands={"contract": one_time(NEW)}, daemon=False),
            ),
            "web": definition(instances=2),
            **of_generation("1", "1"),
        },
        "generation: job/contract waits for web/daemon of generation 2, and its containers are of 1: "
        "start some of the image of 2",
    ),
    "a container of another generation exists": (
        {
            **one(
                "job",
                container("waiting", generation="2"),
                definition(commands={"contract": one_time(NEW)}, daemon=False),
            ),
            "web": definition(instances=2),
            **of_generation("2", "2", "1"),
        },
        "generation: job/contract waits: web on web1 still has generation 1: "
        "start it with the image of 2, or stop it",
    ),
    "a dependency on another generation": (
        {
            **one("web", container("waiting"), definition({"path": "job/sync", "generation": "3"})),
            "job": definition(commands={"sync": one_time(generation="2")}, daemon=False),
            STATE: "done",
            "status/global/job/sync/generations/2": "5 5",
        },
        "generation: web/daemon waits for generation 3 of job/sync, whose definition has 2",
    ),
    "daemons of another generation": (
        {
            **one(
                "job",
                container("waiting"),
                definition({"path": "web/daemon", "generation": "2", "count": 2, "exclusive": True}),
            ),
            **one("web", container("ready", host="h1", generation="1"), definition(instances=2)),
            "web/.containers/2": container("ready", host="h2", generation="2"),
            "status/global/web/daemon/ready/1": {"generation": "1"},
            "status/global/web/daemon/ready/2": {"generation": "2"},
        },
        "generation: job/daemon waits for web/daemon: 1 of 2 instances of generation 2 ready; "
        "replace the containers of other generations, on h1",
    ),
    "daemons of another generation, and something else comes first": (
        {
            **one(
                "job",
                container("waiting"),
                definition({"path": "web/daemon", "generation": "2", "exclusive": True}, "db/daemon"),
            ),
            **one("db", container("starting")),
            **one("web", container("ready", host="h1", generation="1")),
            "status/global/web/daemon/ready/1": {"generation": "1"},
        },
        "starting: db/daemon on web1 has been starting for 0 s",
    ),
    "an old definition": (
        {
            **one(
                "job",
                container("waiting", definition="3e0", generation="1"),
                definition(commands={"sync": one_time(generation="1")}, daemon=False),
            ),
            "status/global/job/sync/generations/2": "995 995",
        },
        "superseded: job/sync: a newer definition has run it since; restart the containers of job",
    ),
    "nothing is published": (
        {"a/web/variables/x": "1"},
        "no definition: a/web has no definition: publish it",
    ),
    "a dependency on a service that does not exist": (
        {**one("web", container("waiting"), definition({"members": "a/bd"})), "a/db": TASK},
        "no provider: web/daemon: there is no service 'a/bd' (did you mean 'a/db'?)",
        f"absent: no container of a/db {NEVER}",
    ),
    "unreadable": (
        {"web": "[]"},
        "unreadable: the definition of web can't be read: expected a JSON object, found a list",
    ),
    "a number of instances that is no template": (
        {**up("web"), "web": {"service": {"instances": "{{ bad", "daemon": {"command": "sleep 9"}}}},
        "unreadable: the definition of web can't be read: service.instances line 1: the tag is not closed:"
        " add '}}'",
    ),
    "no such role": (
        {**up("one"), **one("two", container("waiting"), definition("won/wait"))},
        "no provider: two/daemon needs won/wait, but no service has the role 'won' (did you mean 'one'?);"
        " publish such a service; or correct the dependency, publish, and restart the containers of two",
    ),
    "no such command": (
        {"job": TASK, STATE: "done", **one("two", container("waiting"), definition("job/synk"))},
        "no provider: two/daemon: job has no 'synk' (did you mean 'sync'?)",
    ),
    "a dependency on more instances than are wanted": (
        {**up("db"), **one("web", container("waiting"), definition({"path": "db/daemon", "count": 3}))},
        f"too many: web/daemon waits for 3 ready instances of db/daemon, and 1 {WANTED}",
    ),
    "ready on its host, and only one of two znodes says so yet": (
        {
            **up("db"),
            "status/web1/web": "web",
            **one(
                "web", container("waiting", host="web1"), definition({"path": "db/daemon", "scope": "local"})
            ),
        },
    ),
    "more members than containers": (
        {
            **up("db"),
            **one("web", container("waiting"), definition({"members": "db", "count": 3})),
        },
        f"too many: web/daemon waits for 3 members of db, and 1 {WANTED}",
    ),
    "ready on another host": (
        {
            **ready("db", "1"),
            **one("db", container("ready", host="h2")),
            "status/web1/web": "web",
            **one("web", container("waiting"), definition({"path": "db/daemon", "scope": "local"})),
        },
        "elsewhere: web/daemon waits for db/daemon on its own host: 0 of 1 instances ready",
    ),
    "two services of one role": (
        {"status/global/web": "a/web", **one("b/web", container("waiting"))},
        "claimed: b/web: its role web is claimed by a/web; rename one of them",
    ),
    "killed": (
        {
            "web": definition(instances=2),
            **ready("web", "1"),
            "status/h1/web/daemon": "running",
            "status/h1/web/daemon/ready": "",
        },
        "gone: web/daemon on h1: its container is gone; it became ready 1 min ago; it or its"
        " registrar was killed, or its host was lost or its credential refused; see its log, and start it"
        " again",
    ),
    "ended after it was ready": (
        {"db": definition(), "status/h1/db/daemon": "waiting", "status/h1/db/daemon/ready": ""},
        "gone: db/daemon on h1: its container is gone; its daemon ended 1 min ago; see its log,"
        " and start it again",
    ),
    "a cycle": (
        {
            "a": definition(commands={"x": one_time("b/y")}),
            "b": definition(commands={"y": one_time("c/z")}),
            "c": definition(commands={"z": one_time("a/daemon")}),
            **{f"{each}/.containers/1": container("waiting") for each in "abc"},
        },
        "cycle: a cycle, in which each waits for the next: a/daemon -> a/x -> b/y -> c/z -> a/daemon;"
        " remove a dependency",
    ),
    "a publication that was killed comes first": (
        {".publication": KILLED, "db": definition()},
        "unfinished: publication begun at 12:00 by root on h has not finished: publish again",
        f"absent: no container of db {NEVER}",
    ),
    "somebody is publishing": (
        {".publication": KILLED, ".publication/1": "root on h", **up("db")},
        "publishing: publication begun at 12:00 by root on h has not finished yet",
    ),
}


def test_causes_that_may_be_wrong_are_looked_at_twice() -> None:
    """Between two reads a task has ended, and another service has lost its container."""
    ended = {"job": TASK, STATE: "running", DETAIL: {"attempt": 1, "host": "h1", "started": NOW}}
    looks = [deployment(ended, NOW), deployment({**ended, STATE: "done", "web": definition()}, NOW)]
    kinds = [{each.kind for each in causes.find(each, NOW)} for each in looks]
    assert kinds == [{"abandoned", "absent"}, {"absent"}]
    found = explanation.read_and_explain(iter(looks).__next__)
    assert found == (looks[1], [])


@pytest.mark.parametrize("name", CASES)
def test_the_causes_of_a_tree(name: str) -> None:
    tree, *expected = CASES[name]
    found = causes.find(deployment(tree, NOW - 60), NOW)
    assert [f"{cause.kind}: {cause.text}" for cause in found] == expected


def test_a_change_after_the_end_may_have_corrected_it() -> None:
    """No launcher starts it again after such an exit status."""
    live = deployment({"web": definition(), "status/h2/web/ended": ENDED}, NOW - 60)
    (cause,) = causes.find(live._replace(published_at=NOW - 5), NOW)
    assert cause.text.endswith("missing: x; the deployment was changed 5 s ago: start it again")


def test_the_latest_failure_explains_a_missing_container() -> None:
    """The container on h2 was replaced before the one on h1 was killed."""
    tree = {
        "web": definition(instances=2),
        **ready("web", "1"),
        "status/h1/web/daemon": "running",
        "status/h1/web/daemon/ready": "",
        "status/h2/web/ended": ENDED,
    }
    zxids = {"status/h1/web/daemon/ready": 1200, "status/h2/web/ended": 1100}
    (cause,) = causes.find(deployment(tree, zxids=zxids), NOW)
    assert (cause.kind, cause.text.partition(":")[0]) == ("gone", "web/daemon on h1")
    zxids["status/h2/web/ended"] = 1300
    (cause,) = causes.find(deployment(tree, zxids=zxids), NOW)
    assert (cause.kind, cause.text.partition(" ended")[0]) == ("ended", "web/daemon on h2")


def test_causes_since_the_last_publication_come_first() -> None:
    """Although older ones block more; restarts come last."""
    tree = {
        "job": TASK,
        STATE: "error",
        DETAIL: FAILED,
        "api": definition("job/sync"),
        "api/.containers/1": container("waiting"),
        "db": definition(),
        "variables/x": "y",
        "web": definition(),
        **ready("web", "1"),
        "web/.containers/1": container("ready", definition="3e7"),
    }
    live = DeploymentReader(ZNODES)
    found = live.deployment(view(live, tree, {STATE: NOW - 600}))
    assert [cause.kind for cause in causes.find(found, NOW)] == ["absent", "failed", "restart"]


def test_every_kind_has_a_case() -> None:
    assert {text.partition(":")[0] for _, *found in CASES.values() for text in found} == (
        {kind for kind in KINDS if "elect" not in kind and kind != "no position"}
    )


SHOP = "shop-api/schema <- shop-api/daemon (0 of 3 ready)"
CHAIN: dict[str, Any] = {
    "rabbitmq": definition(),
    "rabbitmq/.containers/1": container("unready", "exit status 69", since=NOW - 130, host="rab1"),
    "infra/rabbitmq_tasks": definition(commands={"user": one_time("rabbitmq/daemon")}, daemon=False),
    "infra/rabbitmq_tasks/.containers/1": container("waiting"),
    "shop-api": definition(commands={"schema": one_time("rabbitmq_tasks/user")}, instances=3),
    **{f"shop-api/.containers/{each}": container("waiting") for each in range(3)},
    "haproxy": definition("shop-api/daemon"),
    "haproxy/.containers/1": container("waiting"),
    "stats": definition("rabbitmq_tasks/user"),
    "stats/.containers/1": container("waiting"),
    "redis": definition(),
    **ready("redis", "1"),
}


def explained(tree: Tree) -> list[str]:
    found = deployment(tree)
    shown = explanation.lines(found, causes.find(found, NOW), list(found.services.values()))
    return [line.whole().plain for line in shown]


def test_each_blocked_chain_has_a_line() -> None:
    """A branch begins at the step where it leaves the line above."""
    assert explained(CHAIN) == [
        f"ROOT CAUSE  rabbitmq/daemon on rab1 is not ready for 2 min 10 s: exit status 69{SEE} rabbitmq",
        f"  blocks    rabbitmq_tasks/user <- {SHOP} <- haproxy/daemon",
        "            rabbitmq_tasks/user <- stats/daemon",
        "up          redis 1 of 1",
    ]


def test_nothing_that_was_ever_started_is_one_line() -> None:
    """What is wrong besides, is shown; once a container has started, each missing one is named."""
    tree = {name: definition() for name in ("api", "db", "web")} | {"bad": "{"}
    first, second = explained(tree)
    assert first.startswith("ROOT CAUSE  no container of 3 services was ever started")
    assert "the definition of bad can't be read" in second
    assert len(explained({**tree, "web/.containers/1": container("starting")})) > 2


def test_an_invalid_definition_blocks_its_dependents() -> None:
    tree = {"db": "[]", "web": definition("db/daemon"), "web/.containers/1": container("waiting")}
    assert explained(tree) == [
        "ROOT CAUSE  the definition of db can't be read: expected a JSON object, found a list",
        "  blocks    web/daemon",
    ]


def test_a_daemon_that_only_blocks_itself_has_no_line_for_that() -> None:
    """The line would repeat the name. A dependent has one."""
    tree = {"web": definition(), "status/web1/web/ended": CRASHED}
    assert [line.partition(" on ")[0] for line in explained(tree)] == ["ROOT CAUSE  web/daemon"]
    assert explained({**tree, "api": definition("web/daemon")})[1] == "  blocks    web/daemon <- api/daemon"


@pytest.mark.parametrize(("seconds", "final"), [(9, False), (11, True)])
def test_an_ended_daemon_is_final_if_nobody_starts_it_again(seconds: float, final: bool) -> None:
    """A launcher may be about to."""
    tree = {"web": definition(), "status/web1/web/ended": CRASHED}
    (cause,) = causes.find(deployment(tree, NOW - 60), NOW - 60 + seconds)
    assert (cause.is_stuck, cause.is_final) == (True, final)


def test_the_cause_that_blocks_most_comes_first() -> None:
    lines = explained({**CHAIN, "alone": definition()})
    assert [line[:22] for line in lines if line.startswith("ROOT")] == [
        "ROOT CAUSE  rabbitmq/d",
        "ROOT CAUSE  no contain",
    ]


@pytest.mark.parametrize(("name", "count"), [("haproxy", 1), ("redis", 0), ("rabbitmq", 1), ("alone", 1)])
def test_the_causes_of_one_service(name: str, count: int) -> None:
    found = deployment({**CHAIN, "alone": definition()})
    concerning = causes.concerning(causes.find(found, NOW), found.services[name])
    assert len(concerning) == count


def test_a_missing_container_blocks_its_dependents() -> None:
    """Its own dependencies are missing, too: both are causes."""
    tree = {key: value for key, value in CHAIN.items() if not key.startswith("shop-api/")}
    assert explained(tree)[:5] == [
        f"ROOT CAUSE  rabbitmq/daemon on rab1 is not ready for 2 min 10 s: exit status 69{SEE} rabbitmq",
        f"  blocks    rabbitmq_tasks/user <- {SHOP} <- haproxy/daemon",
        "            rabbitmq_tasks/user <- stats/daemon",
        f"ROOT CAUSE  no container of shop-api {NEVER}",
        "  blocks    shop-api/schema <- ...",
    ]


def test_what_two_causes_block_is_shown_once() -> None:
    """With many causes, as before the first start, the same chains would fill the screen."""
    schema = one_time("rabbitmq_tasks/user", "mail/daemon")
    shop = definition(commands={"schema": schema}, instances=3)
    assert explained({**CHAIN, "mail": definition(), "shop-api": shop})[:5] == [
        f"ROOT CAUSE  rabbitmq/daemon on rab1 is not ready for 2 min 10 s: exit status 69{SEE} rabbitmq",
        f"  blocks    rabbitmq_tasks/user <- {SHOP} <- haproxy/daemon",
        "            rabbitmq_tasks/user <- stats/daemon",
        f"ROOT CAUSE  no container of mail {NEVER}",
        "  blocks    mail/daemon <- shop-api/schema <- ...",
    ]


def test_a_container_that_is_about_to_continue_is_not_stuck() -> None:
    """Its last dependency is satisfied, and it has not seen that yet."""
    tree = {"job": TASK, "job/.containers/1": container("waiting")}
    assert explained(tree) == ["starting    job: nothing that it waits for is stuck"]


def test_a_chain_may_be_longer_than_the_stack() -> None:
    tree: dict[str, Any] = {"s0": definition(), "s0/.containers/1": container("unready", since=NOW - 60)}
    for number in range(1, 1500):
        tree[f"s{number}"] = definition(f"s{number - 1}/daemon")
        tree[f"s{number}/.containers/1"] = container("waiting")
    (cause,) = causes.find(deployment(tree), NOW)
    assert [len(chain) for chain in cause.blocks] == [1499]
