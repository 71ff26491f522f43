"""Our identity according to the server. It is requested only for an error message, or for a check.

`whoAmI` is a request of ZooKeeper 3.7, and kazoo does not have it.
"""

from __future__ import annotations

from kazoo.protocol.serialization import int_struct, read_string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.zookeeper import Labels

ANSWER_TIMEOUT = 1.0  # seconds


class WhoAmI:
    """The request; its answer is the scheme and the name of each identity."""

    type = 107

    def serialize(self) -> bytes:
        return b""

    def deserialize(self, frame: bytes, offset: int) -> list[tuple[str, str]]:
        (count,), found = int_struct.unpack_from(frame, offset), []
        offset += int_struct.size
        for _ in range(count):
            scheme, offset = read_string(frame, offset)
            name, offset = read_string(frame, offset)
            found.append((scheme, name))
        return found


def nobody(labels: Labels) -> str:
    """The name of a client without credentials."""
    return f"nobody (neither {labels.auth} nor {labels.cert} is set)"


def names(identities: Sequence[tuple[str, str]], labels: Labels) -> str:
    """`digest:web`, `x509:CN=web`, or nobody."""
    # Every client has its address as an identity, too.
    return ", ".join(f"{scheme}:{name}" for scheme, name in identities if scheme != "ip") or nobody(labels)


GRANT = "use another credential, or give this one the right (acl.yml, then publish)"


def connected_as(name: str) -> str:
    """For the end of a message; empty if the identity is unknown."""
    return f"; connected as {name}: {GRANT}" if name else ""
