"""The ephemerals of this container: made in every session anew, and gone for sure when given up.

Nobody waits for either. What an outage interrupts is done at the next connection; a znode that
was forgotten would stay for as long as the session, and that outlives the agent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from kolla_mesos_start.ensemble import DENIED, OUTAGE, Ensemble, check_size
from kolla_mesos_start.errors import AccessDenied


class Ephemerals:
    """`unwanted`: znodes that are to go and aren't known to be gone."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.unwanted: set[str] = set()
        self._kept: dict[str, bytes] = {}
        self._unmade: set[str] = set()
        self._ensemble = ensemble
        self._session = ensemble.session
        ensemble.on_connected(self._catch_up)

    def keep(self, path: str, data: bytes) -> None:
        """Have an ephemeral at `path`, in this session and in every later one."""
        check_size(path, data)
        self._kept[path] = data
        self._unmade.add(path)
        self._make(path)

    def discard(self, path: str) -> None:
        """Have `path` deleted."""
        self.unwanted.add(path)
        self._delete(path)

    def _catch_up(self) -> None:
        if self._session != self._ensemble.session:
            # Whatever the expired session owned is gone.
            self._session = self._ensemble.session
            self._unmade.update(self._kept)
        for path in self._unmade:
            self._make(path)
        for path in self.unwanted:
            self._delete(path)

    def _make(self, path: str) -> None:
        if not self._ensemble.connected:
            return
        self._ensemble.client.create_async(path.rsplit("/", 1)[0])
        reply = self._ensemble.client.create_async(path, self._kept[path], ephemeral=True)
        reply.rawlink(lambda result: self._ensemble.mailbox.post(partial(self._made, path, result)))

    def _made(self, path: str, reply: Any) -> None:
        try:
            reply.get()
        except NodeExistsError:
            self._replace(path)
        except OUTAGE:
            self._make(path)
        except DENIED as error:
            raise AccessDenied(f"{path} can't be created: {type(error).__name__}") from error
        else:
            self._unmade.discard(path)

    def _replace(self, path: str) -> None:
        # A previous run of this container left it, or our own request was applied and its reply
        # lost. Replaced in one transaction, so that nobody counts two, nor none.
        transaction = self._ensemble.client.transaction()
        transaction.delete(path)
        transaction.create(path, self._kept[path], ephemeral=True)
        reply = transaction.commit_async()
        reply.rawlink(lambda result: self._ensemble.mailbox.post(partial(self._replaced, path, result)))

    def _replaced(self, path: str, reply: Any) -> None:
        try:
            replaced = not any(isinstance(result, Exception) for result in reply.get())
        except OUTAGE:
            replaced = False
        if replaced:
            self._unmade.discard(path)
        else:
            self._make(path)  # What stood there has gone by itself, or the connection has.

    def _delete(self, path: str) -> None:
        if not self._ensemble.connected:
            return
        reply = self._ensemble.client.delete_async(path)
        reply.rawlink(lambda result: self._ensemble.mailbox.post(partial(self._deleted, path, result)))

    def _deleted(self, path: str, reply: Any) -> None:
        try:
            reply.get()
        except NoNodeError:
            self.unwanted.discard(path)  # Somebody was quicker, or the reply to an earlier try was lost.
        except OUTAGE:
            self._delete(path)
        except DENIED as error:
            raise AccessDenied(f"{path} can't be deleted: {type(error).__name__}") from error
        else:
            self.unwanted.discard(path)
