"""Decisions on a view: what they have asked for is what to read, and what to watch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.session import perform
from kolla_mesos_start.zookeeper.view import Unknown, View, children_of, data_of


def both(view: View) -> tuple[Any, Any]:
    """A decision that needs two answers, and a third one only if there is a name."""
    first, names = view.all(partial(view.znode, "/a"), partial(view.names, "/b", 2))
    return first, view.znodes(f"/b/{name}" for name in names)


def test_an_unread_answer_ends_the_decision_and_is_noted() -> None:
    """Together with all else that is needed, so that it is read in one turn."""
    view = View({})
    with pytest.raises(Unknown):
        both(view)
    assert view.noted == {data_of("/a"), children_of("/b", 2)}
    view = View({data_of("/a"): None, children_of("/b", 2): ("x", "y"), data_of("/b/y"): None})
    with pytest.raises(Unknown):
        both(view)
    assert view.noted >= {data_of("/b/x"), data_of("/b/y")}


def test_an_answer_that_is_not_needed_is_not_noted() -> None:
    """A change of it can't change the decision."""
    view = View({data_of("/a"): None, children_of("/b", 2): (), data_of("/c"): None})
    assert both(view) == (None, {})
    assert view.noted == {data_of("/a"), children_of("/b", 2)}


class Session:
    """Answers each request at once: its path, or an error."""

    def request(self, operation: str, done: Any) -> None:
        error = wire.NoNodeError() if operation.startswith("missing") else None
        done(None if error else f"answer to {operation}", error)


def test_requests_are_written_as_one_function() -> None:
    """An error of the server is raised there, or is among the answers of a list; unhandled, it ends it."""
    answers: list[Any] = []

    def steps() -> Any:
        answers.append((yield "one"))
        answers.extend((yield ["two", "missing three"]))
        try:
            yield "missing four"
        except wire.NoNodeError:
            answers.append("none")
        yield "missing five"
        raise AssertionError("not reached")

    perform(Session(), steps())  # type: ignore[arg-type]
    assert answers[:2] == ["answer to one", "answer to two"]
    assert isinstance(answers[2], wire.NoNodeError) and answers[3:] == ["none"]
