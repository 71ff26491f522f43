"""kazoo's wire format, its errors and its ACLs, without the rest of kazoo.

`kazoo.security` imports hashlib and base64 to make the digests of ACLs, which nobody does here. The OpenSSL
that comes with them would be a quarter of the registrar, and a tenth of every start.
"""

from __future__ import annotations

from kolla_mesos_start.stand_ins import import_without

import_without("kazoo.security", {"hashlib": (), "base64": ("b64encode",)})

from kazoo.exceptions import (  # noqa: E402
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
from kazoo.protocol.serialization import (  # noqa: E402
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
    int_struct,
)
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id  # noqa: E402

__all__ = [
    "ACL",
    "EXCEPTIONS",
    "OPEN_ACL_UNSAFE",
    "OUTAGE",
    "Auth",
    "AuthFailedError",
    "BadVersionError",
    "CheckVersion",
    "Close",
    "Connect",
    "ConnectionLoss",
    "Create",
    "Delete",
    "Exists",
    "GetChildren",
    "GetChildren2",
    "GetData",
    "Id",
    "InvalidACLError",
    "KazooException",
    "NoAuthError",
    "NoNodeError",
    "NodeExistsError",
    "OperationTimeoutError",
    "Ping",
    "ReplyHeader",
    "RolledBackError",
    "RuntimeInconsistency",
    "SessionExpiredError",
    "SetData",
    "Transaction",
    "Watch",
    "int_struct",
]

# What a request meets when the connection goes away.
OUTAGE = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)
