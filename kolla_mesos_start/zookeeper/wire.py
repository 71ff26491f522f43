"""kazoo's wire format, its errors and its ACLs, without the rest of kazoo.

`kazoo.security` imports hashlib and base64 for the digests of ACLs, which we do not need. hashlib imports
OpenSSL, which would be a quarter of the registrar's memory, and a tenth of every start.
"""

from __future__ import annotations

import struct

from kolla_mesos_start.lean_import import import_without
from kolla_mesos_start.records import NamedTuple

import_without("kazoo.security", {"hashlib": (), "base64": ("b64encode",)})

from kazoo.exceptions import (  # noqa: E402
    EXCEPTIONS,
    APIError,
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    DataInconsistency,
    EphemeralOnLocalSessionError,
    InvalidACLError,
    InvalidCallbackError,
    KazooException,
    MarshallingError,
    NewConfigNoQuorumError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotReadOnlyCallError,
    NoWatcherError,
    OperationTimeoutError,
    QuotaExceededError,
    ReconfigDisabledError,
    ReconfigInProcessError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    SystemZookeeperError,
    ThrottledOpError,
    UnimplementedError,
    UnknownSessionError,
)
from kazoo.protocol.serialization import (  # noqa: E402, F401
    Auth,
    CheckVersion,
    Close,
    Connect,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    Ping,
    ReplyHeader,
    SetACL,
    SetData,
    Sync,
    Transaction,
    Watch,
    ZnodeStat,
    int_struct,
)
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id  # noqa: E402, F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kolla_mesos_start import identities

# The result of a transaction may be an error that is newer than kazoo, which raises RuntimeError for it.
EXCEPTIONS.default_factory = lambda: KazooException

PERMISSIONS = {"c": 4, "d": 8, "r": 1, "w": 2, "a": 16}
UNREADABLE = "it has sent what can't be read: not a ZooKeeper server?"

# What an error of the server means for whoever has sent the request.
EXPECTED = "expected"  # something about the znode, which the sender handles, if the request can have it
LOST = "lost"  # this connection is of no use: it is closed, and counts as lost
LATER = "later"  # the same request may succeed later: its sender hears of it after a pause
UNKNOWN_IDENTITY = "unknown identity"  # the server refuses our credentials, or demands some: exit status 77
DENIED_BY_ACL = "denied by ACL"  # exit status 77; what keeps a daemon registered tries again, with pauses
REFUSED = "refused"  # exit status 69; what keeps a daemon registered tries again, with pauses


class Meaning(NamedTuple):
    """What an error means: its kind, and what the server says, in words of our own."""

    kind: str
    words: str


DEFECT = "it has an internal error: see its log"
UNSUPPORTED = "it does not support this request: is it older than ZooKeeper 3.5, or no ZooKeeper?"
ERRORS: dict[type[KazooException], Meaning] = {
    RolledBackError: Meaning(EXPECTED, "another operation of the same transaction has failed"),
    RuntimeInconsistency: Meaning(REFUSED, "another operation of the same transaction has failed"),
    NoNodeError: Meaning(EXPECTED, "it does not exist"),
    NodeExistsError: Meaning(EXPECTED, "it exists already"),
    BadVersionError: Meaning(EXPECTED, "it was changed meanwhile"),
    NotEmptyError: Meaning(EXPECTED, "something is below it: remove that"),
    ConnectionLoss: Meaning(LOST, "the connection is lost"),
    OperationTimeoutError: Meaning(LOST, "the request took too long"),
    SessionExpiredError: Meaning(LOST, "the session has expired"),
    SessionMovedError: Meaning(LOST, "the session has moved to another server"),
    UnknownSessionError: Meaning(LOST, "the server does not know the session"),
    NotReadOnlyCallError: Meaning(LOST, "the server is read-only, because it has no quorum"),
    ThrottledOpError: Meaning(LATER, "the server is overloaded"),
    RequestTimeoutError: Meaning(LATER, "the request took too long"),
    AuthFailedError: Meaning(UNKNOWN_IDENTITY, "ZooKeeper refused the credentials of KOLLA_ZK_AUTH_FILE"),
    SessionClosedRequireSaslError: Meaning(
        UNKNOWN_IDENTITY,
        "ZooKeeper demands an identity (enforce.auth.schemes in its zoo.cfg): set KOLLA_ZK_AUTH_FILE or,"
        " for the scheme x509, KOLLA_ZK_CERT",
    ),
    NoAuthError: Meaning(DENIED_BY_ACL, "the ACL lacks a right"),
    InvalidACLError: Meaning(
        DENIED_BY_ACL,
        "the ACL for new znodes is invalid here: correct KOLLA_ZK_ACL, or acl.yml, then publish",
    ),
    QuotaExceededError: Meaning(REFUSED, "its quota is used up: raise it, or remove znodes"),
    NoChildrenForEphemeralsError: Meaning(REFUSED, "its parent is an ephemeral znode: remove that"),
    EphemeralOnLocalSessionError: Meaning(
        REFUSED, "a local session has no ephemerals: set localSessionsUpgradingEnabled=true on all servers"
    ),
    UnimplementedError: Meaning(REFUSED, UNSUPPORTED),
    BadArgumentsError: Meaning(REFUSED, "the path or an argument is invalid for it"),
    MarshallingError: Meaning(REFUSED, "it can't read the request: is its version supported?"),
    SystemZookeeperError: Meaning(REFUSED, DEFECT),
    DataInconsistency: Meaning(REFUSED, DEFECT),
    APIError: Meaning(REFUSED, DEFECT),
    InvalidCallbackError: Meaning(REFUSED, DEFECT),
    NoWatcherError: Meaning(REFUSED, "there is no such watch"),
    NewConfigNoQuorumError: Meaning(REFUSED, "the ensemble is being reconfigured, and has no quorum"),
    ReconfigInProcessError: Meaning(REFUSED, "the ensemble is being reconfigured"),
    ReconfigDisabledError: Meaning(REFUSED, "reconfiguration is disabled"),
}
READS = (Exists, GetData, GetChildren, GetChildren2)
UNKNOWN = Meaning(REFUSED, "an error that this version of kolla_mesos_start does not know")
# The errors of a request that may be sent again: whether it was applied is not known.
OUTAGE = tuple(error for error, meaning in ERRORS.items() if meaning.kind in (LOST, LATER))
DENIED = tuple(
    error for error, meaning in ERRORS.items() if meaning.kind in (DENIED_BY_ACL, UNKNOWN_IDENTITY)
)
# What operations of a transaction have that did not fail themselves.
_OTHERS = (RolledBackError, RuntimeInconsistency)


def meaning(error: Exception) -> Meaning:
    """What an error of the server means."""
    return ERRORS.get(type(error), UNKNOWN)


def in_words(error: Exception) -> str:
    """An error of the server for a message, with kazoo's name of it; one that is unknown has a number, if it
    is not that of an operation of a transaction.
    """
    name = str(error) if type(error) is KazooException else type(error).__name__
    return f"{meaning(error).words} ({name})" if name else meaning(error).words


def error_of(code: int) -> KazooException:
    """The error with this number."""
    kind = EXCEPTIONS.get(code, KazooException)
    return kind(f"error {code}") if kind is KazooException else kind()


def failure(results: object) -> Exception | None:
    """The first error among the results of a transaction: that of the operation that failed, if known."""
    errors = [each for each in results if isinstance(each, Exception)] if isinstance(results, list) else []
    return next((each for each in errors if not isinstance(each, _OTHERS)), errors[0] if errors else None)


def znode_acl(entries: Iterable[identities.Acl]) -> list[ACL]:
    """An ACL in ZooKeeper's form."""
    return [
        ACL(sum(PERMISSIONS[letter] for letter in set(perms)), Id(scheme, identity))
        for scheme, identity, perms in entries
    ]


def decode(kind: Any, frame: bytes, offset: int) -> Any:
    """What a class of kazoo reads from a frame. Raises ValueError if it can't."""
    try:
        return kind.deserialize(frame, offset)
    except (struct.error, ValueError) as error:
        raise ValueError(UNREADABLE) from error


def answer(operation: Any, frame: bytes, offset: int) -> Any:
    """The answer to a request. Raises ValueError if the frame is no answer to it.

    A znode without data (`create PATH` in zkCli) counts as empty.
    """
    value = decode(operation, frame, offset)
    if isinstance(operation, GetData):
        return value[0] or b"", value[1]
    if not _fits(operation, value):
        raise ValueError(UNREADABLE)
    return value


def _fits(operation: Any, value: Any) -> bool:
    if isinstance(operation, Transaction):
        return len(value) == len(operation.operations) and all(
            isinstance(each, KazooException) or _fits(one, each)
            for one, each in zip(operation.operations, value)
        )
    if isinstance(operation, GetChildren):
        return None not in value
    if isinstance(operation, GetChildren2):
        return bool(value) and None not in value[0]
    return isinstance(value, {Create: str, SetData: ZnodeStat}.get(type(operation), object))
