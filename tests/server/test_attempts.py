"""Claims and outcomes, while another container acts between any two of their requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from kolla_mesos_start.ctl.zk.token_floor import keep_tokens
from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Command
from kolla_mesos_start.definition.strings import GLOBAL
from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.tree.attempts import Attempts, Lost, Outcome
from kolla_mesos_start.tree.status import StatusTree
from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
from kolla_mesos_start.zookeeper.client import Client
from kolla_mesos_start.zookeeper.view import Znode, data_of
from tests.conftest import Deployment
from tests.server.test_session import servers
from tests.support.instances import INSTANCE
from tests.support.tool import operator_client

SERVICE = "infra/db"
# More requests than any operation here sends.
PLENTY = 20
DONE = Outcome("done", 0, "done")


class Interrupted(Client):
    """A client that calls `interlude` before its request of number `at`."""

    def __init__(self, hosts: str) -> None:
        super().__init__(servers(hosts), 10.0, OPEN_ACL_UNSAFE, Loop())
        self.at = 0
        self.interlude: Callable[[], None] = lambda: None

    def interrupt(self, at: int, interlude: Callable[[], None]) -> None:
        self.at, self.interlude = at, interlude

    @property
    def was_interrupted(self) -> bool:
        return self.at <= 0

    def _count(self) -> None:
        self.at -= 1
        if self.at == 0:
            self.interlude()

    def read(self, paths: Iterable[str], unrecorded: str = "") -> dict[str, Znode | None]:
        self._count()
        return super().read(paths)

    def children(self, paths: Iterable[str]) -> dict[str, Sequence[str] | None]:
        self._count()
        return super().children(paths)

    def transaction(
        self, operations: Sequence[Any], what: str, meanwhile: Callable[[], object] | None = None
    ) -> Sequence[Any]:
        self._count()
        return super().transaction(operations, what, meanwhile)


@pytest.fixture
def client(deployment: Deployment) -> Iterator[Interrupted]:
    """The session of an agent on web1."""
    client = Interrupted(deployment.hosts)
    client.connect(30.0)
    yield client
    client.close()


class Bench:
    """Commands that are all alike, one for each number of a request."""

    def __init__(
        self,
        zk: KazooClient,
        deployment: Deployment,
        client: Client,
        generation: str | None = "1.0",
        dependencies: Sequence[object] = (),
    ) -> None:
        self.zk = zk
        once = {"command": "true", "run_once": True, "generation": generation, "dependencies": dependencies}
        commands = {f"sync{number}": once for number in range(PLENTY)}
        document = load(json.dumps({"name": SERVICE, "commands": commands}).encode())
        built = keys.build(document, SERVICE, lambda text: text.text)
        self.znodes = Znodes(deployment.prefix, deployment.id, SERVICE, "web1")
        self.tree = StatusTree(client, self.znodes, built, definition_zxid=1, stamps={})
        zk.ensure_path(self.znodes.definition)
        self.tree.start()
        self.commands = built.commands
        self.attempts = Attempts(self.tree)

    def at(self, command: Command) -> CommandZnodes:
        return self.znodes.command(GLOBAL, command.path)

    def contend(self, command: Command) -> str:
        path: str = self.zk.create(f"{self.at(command).lock}/x__lock__", b"", ephemeral=True, sequence=True)
        return path

    def detail(self, command: Command) -> dict[str, Any]:
        detail: dict[str, Any] = json.loads(self.zk.get(self.at(command).detail)[0])
        return detail

    def claim_as_another(self, command: Command, *, finishes: bool) -> None:
        """Do what another container does when the lock is free; perhaps it finishes too."""
        at = self.at(command)
        for name in self.zk.get_children(at.lock):
            self.zk.delete(f"{at.lock}/{name}")
        contender = self.contend(command)
        state = "done" if finishes else "running"
        detail = {"attempt": 7, "claim": "theirs", "host": "web2", "started": 1.0, "state": state}
        self.zk.set(at.detail, json.dumps({**detail, **({"finished": 2.0} if finishes else {})}).encode())
        self.zk.set(at.state, state.encode())
        if finishes:
            self.zk.create(at.generation("1.0"), b"1 1")
            self.zk.delete(contender)


@pytest.fixture
def bench(zk: KazooClient, deployment: Deployment, client: Interrupted) -> Bench:
    """Commands of one generation, in a deployment of the test's own."""
    return Bench(zk, deployment, client)


def watch(client: Client, *paths: str) -> None:
    """Watch these paths, as an agent does that has waited."""
    client.watches.watch(map(data_of, paths))
    assert client.loop.wait(client.watches.fresh, now() + 30)


@pytest.mark.parametrize("watched", [False, True], ids=["unknown", "watched"])
@pytest.mark.parametrize("finishes", [False, True], ids=["claims", "finishes"])
def test_no_claim_succeeds_after_another_one(
    client: Interrupted, bench: Bench, finishes: bool, watched: bool
) -> None:
    """Whenever the other container acts, its claim stays."""
    interruptions = 0
    for number, command in enumerate(bench.commands):
        contender = bench.contend(command)
        if watched:
            watch(client, bench.at(command).detail, bench.znodes.token_floor)
        client.interrupt(number + 1, lambda c=command: bench.claim_as_another(c, finishes=finishes))  # type: ignore[misc]
        try:
            claim = bench.attempts.claim(command, contender)
        except Lost:
            assert client.was_interrupted
            assert bench.detail(command)["claim"] == "theirs"
            interruptions += 1
        else:
            assert not client.was_interrupted
            assert bench.detail(command)["claim"] == claim.detail.claim
    assert 0 < interruptions < PLENTY


def test_an_old_image_that_comes_before_the_claim_prevents_the_last_step_of_an_upgrade(
    zk: KazooClient, deployment: Deployment, client: Interrupted
) -> None:
    """`exclusive` is checked again after the claim, whenever it comes; the step waits for its end."""
    wanted = {"path": "api/daemon", "generation": "2.0", "exclusive": True}
    bench = Bench(zk, deployment, client, "2.0", [wanted])
    api = bench.znodes._replace(service_name="web/api")
    zk.ensure_path(f"{api.status}/global")
    zk.ensure_path(api.containers)
    zk.create(api.owner(GLOBAL, "api"), b"web/api", makepath=True)
    ready = f"{bench.znodes.command(GLOBAL, 'api/daemon').ready}/1"
    new = json.dumps({**INSTANCE, "host": "new", "generation": "2.0"}).encode()
    for path in (ready, f"{api.containers}/new"):
        zk.create(path, new, ephemeral=True, makepath=True)

    def come() -> None:
        zk.create(f"{api.containers}/old", b'{"host": "old", "generation": "1.0"}', ephemeral=True)

    refused = 0
    for number, command in enumerate(bench.commands):
        contender = bench.contend(command)
        client.interrupt(number + 1, come)
        try:
            bench.attempts.claim(command, contender)
        except Lost as lost:
            assert "api on old still has generation 1.0" in str(lost)
            assert zk.get(bench.at(command).state)[0] == b"retry"
            zk.delete(f"{api.containers}/old")
            bench.attempts.claim(command, bench.contend(command))
            refused += 1
        else:
            assert not client.was_interrupted or zk.exists(f"{api.containers}/old")
            break
    assert refused > 1


@pytest.mark.parametrize("watched", [False, True], ids=["unknown", "watched"])
@pytest.mark.parametrize(
    ("generation", "node", "data"),
    [
        (None, "", b"done"),
        ("1.0", "generations/1.0", b"1000 1"),
        ("1.0", "generations/2.0", b"1000 1000"),
    ],
    ids=["done", "this generation is done", "a newer definition's generation is done"],
)
def test_no_claim_succeeds_if_the_command_is_done(
    zk: KazooClient,
    deployment: Deployment,
    client: Interrupted,
    generation: str | None,
    node: str,
    data: bytes,
    watched: bool,
) -> None:
    """The container before us in the queue finishes: we are first, but what we have read is outdated."""
    bench = Bench(zk, deployment, client, generation)

    def finish(command: Command) -> None:
        at = bench.at(command)
        zk.set(at.detail, b'{"attempt": 7, "claim": "theirs", "started": 1, "finished": 2}')
        path = f"{at.state}/{node}".rstrip("/")
        zk.ensure_path(path)
        zk.set(path, data)

    for number, command in enumerate(bench.commands):
        contender = bench.contend(command)
        if watched:
            watch(client, bench.at(command).detail, bench.znodes.token_floor)
        client.interrupt(number + 1, lambda c=command: finish(c))  # type: ignore[misc]
        try:
            bench.attempts.claim(command, contender)
        except Lost:
            assert bench.detail(command)["claim"] == "theirs"
        else:
            assert not client.was_interrupted


@pytest.mark.parametrize("watched", [False, True], ids=["unknown", "watched"])
def test_no_claim_reuses_a_token_that_was_removed(
    zk: KazooClient, bench: Bench, client: Interrupted, watched: bool
) -> None:
    """Another container has claimed and failed, and an operator has reset the command by force."""
    ahead, claimed = 10**12, 0
    operator = operator_client(zk, bench.znodes.prefix, bench.znodes.deployment_id)

    def remove(at: CommandZnodes) -> None:
        zk.set(at.detail, b'{"claim": "theirs", "started": 1, "finished": 2, "token": %d}' % ahead)
        keep_tokens(operator, bench.znodes, [at.detail])
        zk.delete(at.state, recursive=True)
        for path in (at.state, at.detail, at.lock, at.generations, at.hosts):
            zk.create(path, b"")

    for number, command in enumerate(bench.commands):
        contender, at = bench.contend(command), bench.at(command)
        if zk.exists(bench.znodes.token_floor):
            zk.delete(bench.znodes.token_floor)
        if watched:
            watch(client, at.detail, bench.znodes.token_floor)
        client.interrupt(number + 1, lambda at=at: remove(at))  # type: ignore[misc]
        with suppress(Lost):
            claim = bench.attempts.claim(command, contender)
            assert claim.token > ahead or not client.was_interrupted
            claimed += 1
    operator.close()
    assert 0 < claimed < PLENTY


@pytest.mark.parametrize("finishes", [False, True], ids=["claims", "finishes"])
@pytest.mark.parametrize("lock", ["held", "lost"])
@pytest.mark.parametrize("state", ["done", "retry", "error"])
def test_no_outcome_is_written_over_a_later_claim(
    client: Interrupted, bench: Bench, state: str, lock: str, finishes: bool
) -> None:
    """Without one it is written, even if the lock is lost."""
    interruptions = 0
    for number, command in enumerate(bench.commands):
        client.interrupt(0, lambda: None)
        contender = bench.contend(command)
        claim = bench.attempts.claim(command, contender)
        if lock == "lost":
            bench.zk.delete(contender)
        client.interrupt(number + 1, lambda c=command: bench.claim_as_another(c, finishes=finishes))  # type: ignore[misc]
        try:
            bench.attempts.conclude(command, claim, contender, DONE._replace(state=state))
        except Lost:
            # A further attempt needs the lock; and `detail` may have been created again.
            assert client.was_interrupted or (state, lock) == ("retry", "lost")
            assert bench.detail(command)["claim"] == (
                "theirs" if client.was_interrupted else claim.detail.claim
            )
            interruptions += client.was_interrupted
        else:
            assert not client.was_interrupted
            detail = bench.detail(command)
            assert (detail["claim"], detail["state"], detail["token"]) == (
                claim.detail.claim,
                state,
                claim.token,
            )
            assert bench.zk.get(bench.at(command).state)[0] == state.encode()
            marked = bench.zk.exists(bench.at(command).generation("1.0")) is not None
            assert marked is (state == "done")
    assert 0 < interruptions < PLENTY


def test_a_second_refusal_does_not_stop_the_end(
    zk: KazooClient, deployment: Deployment, client: Interrupted
) -> None:
    """The first one ends the agent."""
    paths = [f"{deployment.path}/{name}" for name in ("one", "two")]
    for path in paths:
        zk.create(path, acl=[make_acl("world", "anyone", admin=True, delete=True)])
    client.watches.watch(map(data_of, paths))
    with pytest.raises(AccessDenied):
        client.loop.wait(client.watches.fresh, now() + 30)
    client.close()
    assert client.session.closed
    for path in paths:
        zk.set_acls(path, OPEN_ACL_UNSAFE)


def test_a_long_list_is_read(zk: KazooClient, deployment: Deployment, client: Interrupted) -> None:
    """A server limits requests, not answers: many members are many megabytes."""
    names = [f"{number:04}{'x' * 9000}" for number in range(500)]
    for begin in range(0, len(names), 50):
        transaction = zk.transaction()
        for name in names[begin : begin + 50]:
            transaction.create(f"{deployment.path}/{name}")
        transaction.commit()
    assert client.children([deployment.path])[deployment.path] == names
