"""A ZooKeeper session in one thread, and the znodes that it keeps. Nothing here knows Kolla."""

from __future__ import annotations

from kolla_mesos_start.records import NamedTuple


class Labels(NamedTuple):
    """What messages call the settings of a connection. The caller passes the names that its users know."""

    hosts: str = "the list of servers"
    auth: str = "the credentials file"
    ca: str = "the CA file"
    cert: str = "the certificate file"
    key: str = "the key file"
    connect_timeout: str = "connect timeout"
    session_timeout: str = "session timeout"
    identity: str = "identity"
    """what two clients must not share"""


NO_LABELS = Labels()
