"""Keeps sessions of others alive: what a test does in the meantime may then take any time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from tests.support.secured import password


@contextmanager
def kept_alive(hosts: str, session: int) -> Iterator[None]:
    """The session does not expire meanwhile, even if its owner sends nothing. Then it is closed."""
    keeper = KazooClient(hosts, client_id=(session, password(session)))
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
        keeper.close()
