"""When something outside is asked, and what is concluded."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

import pytest

from kolla_mesos_start import outside
from kolla_mesos_start.definition.model import External
from kolla_mesos_start.loop import Loop, now
from kolla_mesos_start.outside import Answer, Outside, Question
from kolla_mesos_start.zookeeper import connect
from tests.peer import OK, Peer
from tests.test_house import loaded_by

if TYPE_CHECKING:
    from kolla_mesos_start.zookeeper.connect import Steps


class Asked:
    """Time as a test has it, and an answer without a network; `instants` are those of the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.instant, self.answer, self.instants = 1000.0, "refused", list[float]()
        self.is_silent = False
        for module in (outside, connect):
            monkeypatch.setattr(module, "now", lambda: self.instant)
        monkeypatch.setattr(time, "time", lambda: self.instant)
        monkeypatch.setattr(outside, "tcp", self._tcp)

    def _tcp(self, hosts: list[str], port: int) -> Steps[str]:
        self.instants.append(self.instant)
        while self.is_silent:
            yield 0, select.POLLIN
        return self.answer

    def run(self, question: Question, until: float) -> list[float]:
        """Let the time pass; the pauses between questions."""
        self.instants.clear()
        while question.deadline <= until:
            self.instant = max(self.instant, question.deadline)
            question.run(False)
        self.instant = until
        return [after - before for before, after in zip(self.instants, self.instants[1:])]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def question(interval: float = 10.0) -> Question:
    return Question(External("tcp", "db:3306", interval, None))


def test_it_is_asked_at_once_and_then_ever_more_seldom(asked: Asked) -> None:
    """Up to the interval; each pause is a fifth longer or shorter, for many containers ask the same."""
    pauses = asked.run(question(), 1100.0)
    assert asked.instants[0] == 1000.0
    for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]):
        assert expected * 0.8 <= pause <= expected * 1.2
    assert len(set(pauses)) == len(pauses)


def test_what_answers_is_asked_again_each_interval(asked: Asked) -> None:
    asked.answer = ""
    one = question(interval=5.0)
    pauses = asked.run(one, 1050.0)
    assert all(4.0 <= pause <= 6.0 for pause in pauses)
    assert 8 <= len(pauses) <= 13
    assert one.answer == Answer("", 1000.0)


def test_once_it_has_gone_it_is_asked_soon(asked: Asked) -> None:
    """It may be back at any moment."""
    asked.answer = ""
    one = question()
    asked.run(one, 1020.0)
    asked.answer = "refused"
    asked.run(one, one.deadline + 0.05)
    gone = asked.instants[0]
    assert one.answer == Answer("refused", gone)
    asked.run(one, gone + 1.0)
    assert len(asked.instants) >= 3
    assert one.answer == Answer("refused", gone), "since when is not said anew each time"


def test_a_short_interval_is_the_longest_pause(asked: Asked) -> None:
    assert max(asked.run(question(interval=0.1), 1010.0)) <= 0.12


def test_what_says_nothing_is_given_up_and_asked_again(asked: Asked) -> None:
    """Soon it is said that there is no answer yet."""
    asked.is_silent = True
    one = question()
    asked.run(one, 1000.4)
    assert one.answer is None
    asked.run(one, 1000.6)
    assert one.answer == Answer("no answer yet", 1000.5)
    asked.run(one, 1015.0)
    assert one.answer == Answer("no answer within 10 s", 1000.5)
    assert len(asked.instants) == 1


def test_each_is_asked_only_while_it_is_wanted() -> None:
    """Real sockets: one question that is under way is closed, and its answer forgotten."""
    loop, one, other = Loop(), Peer().start(), Peer(OK).start()
    wanted = [External("http", peer.url, 10.0, None) for peer in (one, other)]
    asking = Outside(loop)
    asking.ask(wanted)
    assert loop.wait(lambda: asking.answers.get(wanted[1]), now() + 30)
    loop.wait(lambda: one.open, now() + 30)
    asking.ask(wanted[1:])
    assert set(asking.answers) == {wanted[1]}
    asking.ask(())
    assert not asking.answers and not loop._sources
    for peer in (one, other):
        peer.stop()


@pytest.mark.parametrize(
    ("kind", "value", "endpoint"),
    [
        ("tcp", "db:3306", "db:3306"),
        ("tcp", "[::1]:80", "[::1]:80"),
        ("http", "http://a", "a:80"),
        ("http", "https://a/secret", "a:443"),
        ("http", "https://a:5000?secret:1", "a:5000"),
        ("http", "http://[::1]/secret", "[::1]:80"),
        ("http", "http://[::1]:81/secret@:9", "[::1]:81"),
        ("http", "http://12/", "12:80"),
    ],
)
def test_of_a_url_only_host_and_port_are_named(kind: str, value: str, endpoint: str) -> None:
    assert External(kind, value, 1.0, None).what == f"external {kind} {endpoint}"


@pytest.mark.parametrize("module", ["wait", "agent", "tree.status"])
def test_a_start_without_such_a_dependency_does_not_import_it(module: str) -> None:
    loaded = loaded_by(f"import kolla_mesos_start.{module}")
    assert not {name for name in loaded if name.endswith((".outside", ".readiness"))}
