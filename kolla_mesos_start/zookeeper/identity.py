"""Who the server takes us for. It is asked, since it decides: only for an error, or a check.

`whoAmI` is a request of ZooKeeper 3.7, and kazoo does not have it.
"""

from __future__ import annotations

from kazoo.protocol.serialization import int_struct, read_string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT = 1.0  # seconds
NOBODY = "nobody (neither KOLLA_ZK_AUTH_FILE nor KOLLA_ZK_CERT is set)"


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


def names(identities: Sequence[tuple[str, str]]) -> str:
    """`digest:web`, `x509:CN=web`, or nobody."""
    # Whoever connects has its address, too.
    return ", ".join(f"{scheme}:{name}" for scheme, name in identities if scheme != "ip") or NOBODY


GRANT = "use another credential, or give this one the right (acl.yml, then publish)"


def connected_as(name: str) -> str:
    """For the end of a message; nothing where the server has not said it."""
    return f"; connected as {name}: {GRANT}" if name else ""
