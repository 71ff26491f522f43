"""kazoo's wire format, its errors and its ACLs, without the rest of kazoo.

`kazoo.security` imports hashlib and base64 to make the digests of ACLs, which nobody does here. The OpenSSL
that comes with them would be a quarter of the registrar, and a tenth of every start.
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
    GetChildren,
    GetChildren2,
    GetData,
    Ping,
    ReplyHeader,
    SetData,
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

# What a request meets when the connection goes away.
OUTAGE = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)


def decode(kind: Any, frame: bytes, offset: int) -> Any:
    """What `kind`, a class of kazoo's, reads in a frame. ValueError where it can't."""
    try:
        return kind.deserialize(frame, offset)
    except (struct.error, ValueError) as error:
        raise ValueError(UNREADABLE) from error


def answer(operation: Any, frame: bytes, offset: int) -> Any:
    """What a request is answered. ValueError for what is no answer to this one.

    Who has made a znode without data, as `create PATH` of zkCli does, has made an empty one.
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
