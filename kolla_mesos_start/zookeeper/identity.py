"""Who the server takes us for. It is asked, since it decides: only for an error, or a check.

`whoAmI` is a request of ZooKeeper 3.7, and kazoo does not have it.
"""

from __future__ import annotations

from kazoo.protocol.serialization import read_string

from kolla_mesos_start.loop import now
from kolla_mesos_start.zookeeper.wire import int_struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kolla_mesos_start.zookeeper.client import Client

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


def known_as(client: Client) -> str:
    """`digest:web`, `x509:CN=web`, or nobody; empty where the server does not say it soon."""
    answers: list[list[tuple[str, str]] | None] = []
    client.session.request(WhoAmI(), lambda value, error: answers.append(value))
    client.loop.wait(lambda: bool(answers), now() + ANSWER_TIMEOUT)
    if not answers or answers[0] is None:
        return ""
    # Whoever connects has its address, too.
    return ", ".join(f"{scheme}:{name}" for scheme, name in answers[0] if scheme != "ip") or NOBODY
