"""What other containers have written: facts, instances, states, marks, details, and how a start ended."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from kazoo.protocol.states import ZnodeStat

from kolla_mesos_start.ctl.zk import containers
from kolla_mesos_start.ctl.zk.view import View
from kolla_mesos_start.definition.model import Dependency
from kolla_mesos_start.tree import codec, states
from kolla_mesos_start.tree.znodes import Znodes
from kolla_mesos_start.zookeeper import view as zookeeper
from kolla_mesos_start.zookeeper.view import Query, Znode, children_of, data_of
from tests.fuzz.inputs import BYTES, FAST, ODD, Fuzz, changed, changed_json, seeded
from tests.unit.definition.examples import command

INTERFACE = {"ipv4": {"address": "10.0.0.1"}, "ipv6": [{"address": "fe80::1%eth0"}]}
MEMBER = {
    "ansible_hostname": "web-1",
    "api_interface": "eth0",
    "private_interface": "eth1",
    "host": "web-1",
    "service": "infra/web",
    "address": "10.0.0.1",
    "private_address": "10.0.0.2",
    "ports": [80, 443],
    "ansible_eth0": INTERFACE,
    "ansible_eth1": INTERFACE,
}
OLD_MEMBER = {"ansible_hostname": "web-1", "api_interface": "eth0", "ansible_eth0": INTERFACE}
INSTANCE = {
    **{"host": "web-1", "address": "web-1", "ports": [80], "service": "infra/web"},
    **{"since": "2026-01-01T00:00:00Z", "generation": "1", "stage": "unready", "reason": "it is starting"},
}
DETAIL = {
    **{"attempt": 2, "claim": "0" * 32, "host": "web-1", "generation": "2026.1", "started": 1.5e9},
    **{
        "finished": 1.5e9,
        "state": "error",
        "status": 1,
        "after": 17,
        "token": 18,
        "message": "exit status 1",
    },
}
NAMES = [*ODD, *MEMBER, *INSTANCE, *DETAIL]
STATES = [each.encode() for each in (states.WAITING, states.RUNNING, states.RETRY, states.DONE, states.ERROR)]
MARKS = [b"4294967297 17", b"0 0", b"1 2 3"]
ZNODES = Znodes("/kolla", "site", "openstack/keystone/keystone-api", "web-1")
ONCE = command(run_once=True, generation="1")
PLAIN = Dependency("db/daemon", "global", None, None, False, None)


@seeded
def test_the_facts_of_a_member(fuzz: Fuzz, seed: int) -> None:
    """They fit, whatever else is in them, or the member is left out."""

    def attempt(data: bytes) -> None:
        for interface in ("eth1", "hostname"):
            try:
                facts = codec.member(data, interface)
            except codec.Invalid as invalid:
                assert str(invalid).isprintable()
            else:
                assert facts["private_address"].isprintable() and facts["ansible_hostname"].isprintable()
        try:
            facts = codec.instance(data)
        except codec.Invalid as invalid:
            assert str(invalid).isprintable()
        else:
            assert facts["host"].isprintable() and json.dumps(facts)

    fuzz(
        "facts of members and instances",
        seed,
        lambda random: changed_json(random, [MEMBER, OLD_MEMBER, INSTANCE], NAMES),
        attempt,
        batch=FAST,
    )


def znode(random: Random, valid: Any) -> Znode | None:
    """A znode with nearly that content; seldom none."""
    if random.random() < 0.05:
        return None
    data = changed_json(random, [valid], NAMES) if isinstance(valid, dict) else changed(random, valid, BYTES)
    numbers = [random.choice((0, 1, 17, 2**32, 2**63 - 1)) for _ in ZnodeStat._fields]
    return Znode(data, ZnodeStat._make(numbers))


def view(random: Random) -> dict[Query, Any]:
    """All that is asked of a one-time command, of a daemon, and of who owns its role."""
    once = states.once_znodes(ONCE, ZNODES)
    daemon = ZNODES.command("global", "db/daemon")
    containers = ZNODES._replace(service_name="infra/db").containers
    names = ("1", "2%2F", "\N{BELL}")
    owner = data_of(ZNODES.owner("global", "db"))
    return {
        data_of(once.state): znode(random, STATES),
        data_of(once.detail): znode(random, DETAIL),
        children_of(once.generations): names,
        children_of(once.lock): names[:1],
        **{data_of(f"{once.generations}/{name}"): znode(random, MARKS) for name in names},
        children_of(daemon.ready): names,
        **{data_of(f"{daemon.ready}/{name}"): znode(random, INSTANCE) for name in names},
        owner: znode(random, [b"infra/db"]),
        children_of(containers): names,
        **{data_of(f"{containers}/{name}"): znode(random, INSTANCE) for name in names},
        data_of(daemon.state): znode(random, STATES),
    }


@seeded
def test_states_marks_and_details(fuzz: Fuzz, seed: int) -> None:
    """Something is decided, and said in one line."""
    fuzz("states, marks, details", seed, view, decide)


class Answers(dict):  # type: ignore[type-arg]
    """What was not answered is not there."""

    def __missing__(self, query: Query) -> Any:
        return () if query.children else None


def decide(answers: dict[Query, Any]) -> None:
    seen, at = zookeeper.View(Answers(answers)), states.once_znodes(ONCE, ZNODES)
    for each in (ONCE, ONCE._replace(generation=None)):
        states.is_done(each, ZNODES, seen)
        states.superseded_by(each, ZNODES, seen, 5)
    for generation, exclusive in ((None, False), ("1", False), ("1", True)):
        dependency = PLAIN._replace(generation=generation, exclusive=exclusive)
        unmet = states.unmet(dependency, seen, ZNODES)
        if unmet:
            said = states.describe(unmet, states.decode_detail(answers[data_of(at.detail)]), 1.6e9)
            assert said.isprintable() and len(said) < 6000, said
    detail = states.decode_detail(answers[data_of(at.detail)])
    next_one = detail._replace(attempt=detail.attempt + 1, after=states.token_of(detail, 2**63 - 1))
    assert len(next_one.encoded()) <= states.MAX_DETAIL
    states.encode_mark(states.token_of(next_one, 5), 5)
    state, _ = states.state_of(seen, at.state)
    assert (state or "").isprintable()


@seeded
def test_what_containers_say_of_themselves(fuzz: Fuzz, seed: int) -> None:
    """To the operator's tool; and how a start ended, to the next one."""

    def attempt(data: bytes) -> None:
        found = Znode(data, ZnodeStat._make([1] * len(ZnodeStat._fields)))  # of a session
        shown, path = View(), f"{ZNODES.containers}/1"
        shown._names[ZNODES.containers], shown._znodes[path] = ("1",), found
        (container,) = containers.containers(ZNODES, shown)
        assert container.host.isprintable() and container.reason.isprintable()
        assert states.decode_registered(found).host.isprintable()

    fuzz(
        "what containers say of themselves",
        seed,
        lambda random: changed_json(random, [INSTANCE, DETAIL, {"command": None, "stage": "wait"}], NAMES),
        attempt,
        batch=FAST,
    )
