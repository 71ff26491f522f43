"""The ephemerals of this container: made in every session anew, and gone for sure when given up.

Nobody waits for either. What an outage interrupts is done at the next connection; a znode that
was forgotten would stay for as long as the session, and that outlives the agent.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from kolla_mesos_start.errors import AccessDenied
from kolla_mesos_start.zookeeper.client import DENIED, OUTAGE, Ensemble, check_size

log = logging.getLogger(__name__)

LATER = "later"

# What to do after a request: (request, what came of it) -> the next one; LATER for the same one at
# the next connection, or by the registrar; nothing where all is as it should be. What stands in our
# place is of a previous run of this container, or our own and the reply was lost. It is replaced in
# one transaction, so that nobody counts two, nor none; where that fails it has gone by itself.
NEXT: dict[tuple[str, str], str] = {
    ("create", "done"): "",
    ("create", "exists"): "replace",
    ("create", "absent"): LATER,
    ("create", "outage"): "create",
    ("replace", "done"): "",
    ("replace", "absent"): "create",
    ("replace", "outage"): "create",
    ("delete", "done"): "",
    ("delete", "absent"): "",
    ("delete", "outage"): "delete",
}


class Wishes:
    """What is to be there, and what is to go. Decides which requests that takes, and sends none.

    `kept`: the data of what is to be there in every session; of those `unmade` aren't known to be
    there. `unwanted` are to go, and aren't known to be gone.
    """

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.unmade: set[str] = set()
        self.unwanted: set[str] = set()

    def connected(self, renewed: bool) -> list[tuple[str, str]]:
        """Requests to send at a connection; `renewed`: whatever the expired session owned is gone."""
        if renewed:
            self.unmade.update(self.kept)
        return [*(("create", path) for path in self.unmade), *(("delete", path) for path in self.unwanted)]

    def answered(self, request: str, path: str, outcome: str) -> str:
        """The request that follows from what came of one; see NEXT."""
        following = NEXT[request, outcome]
        if not following:
            (self.unwanted if request == "delete" else self.unmade).discard(path)
        return following


class Ephemerals:
    """`unwanted`: znodes that are to go and aren't known to be gone."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._wishes = Wishes()
        self._ensemble = ensemble
        self._session = ensemble.session
        ensemble.on_connected(self._catch_up)

    @property
    def unwanted(self) -> set[str]:
        return self._wishes.unwanted

    def keep(self, path: str, data: bytes) -> None:
        """Have an ephemeral at `path`, in this session and in every later one."""
        check_size(path, data)
        self._wishes.kept[path] = data
        self._wishes.unmade.add(path)
        self._send("create", path)

    def discard(self, path: str) -> None:
        """Have `path` deleted."""
        self._wishes.unwanted.add(path)
        self._send("delete", path)

    def _catch_up(self) -> None:
        renewed = self._session != self._ensemble.session
        self._session = self._ensemble.session
        for request, path in self._wishes.connected(renewed):
            self._send(request, path)

    def _send(self, request: str, path: str) -> None:
        if not self._ensemble.connected:
            return
        client = self._ensemble.client
        if request == "delete":
            reply = client.delete_async(path)
        elif request == "create":
            client.create_async(path.rsplit("/", 1)[0])
            reply = client.create_async(path, self._wishes.kept[path], ephemeral=True)
        else:
            transaction = client.transaction()
            transaction.delete(path)
            transaction.create(path, self._wishes.kept[path], ephemeral=True)
            reply = transaction.commit_async()
        reply.rawlink(lambda result: self._ensemble.loop.post(partial(self._answered, request, path, result)))

    def _answered(self, request: str, path: str, reply: Any) -> None:
        following = self._wishes.answered(request, path, _outcome(request, path, reply))
        if following == LATER:
            log.warning("%s can't be created: there is nothing above it any more", path)
        elif following:
            self._send(following, path)


def _outcome(request: str, path: str, reply: Any) -> str:
    """What came of a request, as NEXT has it; AccessDenied where it may not be."""
    try:
        results = reply.get()
        # A transaction is answered with what came of each part of it.
        errors = (
            [result for result in results if isinstance(result, Exception)] if request == "replace" else []
        )
        denied = [error for error in errors if isinstance(error, DENIED)]
        if errors:
            raise (denied or [NoNodeError()])[0]
    except NodeExistsError:
        return "exists"
    except NoNodeError:
        return "absent"
    except OUTAGE:
        return "outage"
    except DENIED as error:
        raise AccessDenied(f"{path} can't be {request}d: {type(error).__name__}") from error
    return "done"
