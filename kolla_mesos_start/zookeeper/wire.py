"""kazoo's wire format, its errors and its ACLs, without the rest of kazoo.

`kazoo.security` imports hashlib and base64 for the digests of ACLs, which we do not need. hashlib imports
OpenSSL, which would be a quarter of the registrar's memory, and a tenth of every start.
"""

from __future__ import annotations

import struct

from kolla_mesos_start.lean_import import import_without

import_without("kazoo.security", {"hashlib": (), "base64": ("b64encode",)})

from kazoo.exceptions import (  # noqa: E402, F401
    EXCEPTIONS,
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
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
    from typing import Any

# The result of a transaction may be an error that is newer than kazoo, which raises RuntimeError for it.
EXCEPTIONS.default_factory = lambda: KazooException

UNREADABLE = "it has sent what can't be read: not a ZooKeeper server?"

# The errors of a request whose connection is lost.
OUTAGE = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)


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
