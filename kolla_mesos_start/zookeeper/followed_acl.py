"""Keeps the ACL of new znodes as publishing has recorded it, also while it is replaced under a running
daemon."""

from __future__ import annotations

from kolla_mesos_start import identities
from kolla_mesos_start.errors import AccessDenied, AgentError
from kolla_mesos_start.zookeeper import wire
from kolla_mesos_start.zookeeper.ephemerals import denial
from kolla_mesos_start.zookeeper.session import perform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.zookeeper.session import Requests, Session


class FollowedAcl:
    """Replaces the entries of `acl`, a list that all who create znodes hold, when the record at `path` does.

    `known`: the record was read, or is missing; `error` says why it can't be used.
    """

    def __init__(self, session: Session, path: str, acl: list[wire.ACL]) -> None:
        self.known = False
        self.error: AgentError | None = None
        self._session, self._path, self._acl = session, path, acl
        session.on_connected(self._look)
        session.on_watch(self._fired)
        if session.connected:
            self._look()

    def _look(self) -> None:
        perform(self._session, self._read())

    def _fired(self, path: str) -> None:
        if path == self._path:
            self._look()

    def _read(self) -> Requests:
        try:
            data, _ = yield wire.GetData(self._path, True)
        except wire.NoNodeError:
            self.known = True
            yield wire.Exists(self._path, True)  # Only this sets a watch on a missing znode.
            self._look()  # It exists by now.
            return
        except wire.OUTAGE:
            return  # It is read again at the next connection.
        except wire.KazooException as error:
            self.known, self.error = True, denial(self._path, "read", error)
            return
        self.known, self.error = True, None
        try:
            self._acl[:] = wire.znode_acl(identities.acl(data.decode()))
        except ValueError:
            self.error = AccessDenied(
                f"{self._path} holds no ACL: publish the deployment with its acl.yml again"
            )
