"""The mark of the last publication: who published, when, and whether it has finished. Pure."""

from __future__ import annotations

import json

from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.codec import decode_leniently, printable

PUBLICATION, RESTORE = "publication", "restore"
REMEDY = {PUBLICATION: "publish again", RESTORE: "restore again"}
MAX_MARK = 256 * 1024  # bytes
SHOWN = 5  # services, in a message
MAX_SHOWN = 200  # characters


class PublicationMark(NamedTuple):
    """`what` is PUBLICATION or RESTORE; the times are in ISO 8601, `finished` is None until then.

    `services` are those that it changes, while it has not finished.
    """

    what: str
    by: str
    begun: str
    finished: str | None
    services: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    def __str__(self) -> str:
        return f"{self.what} begun at {self.begun} by {self.by} has not finished"

    @property
    def problem(self) -> str:
        """That it has not finished, and what to do."""
        more = ", ..." if len(self.services) > SHOWN else ""
        names = f" (it has changes of {', '.join(self.services[:SHOWN])}{more})" if self.services else ""
        return f"{self}: {REMEDY[self.what]}{names}"


def unfinished(data: bytes) -> PublicationMark | None:
    """The last publication, if it has not finished."""
    found = decode_leniently(data, MAX_MARK)
    if found.get("finished", "") is not None:
        return None
    begun, by = (printable(str(found.get(name))[:MAX_SHOWN]) for name in ("begun", "by"))
    services = found.get("services")
    names = services if isinstance(services, list) else []
    what = RESTORE if found.get("what") == RESTORE else PUBLICATION
    return PublicationMark(what, by, begun, None, tuple(printable(str(name)[:MAX_SHOWN]) for name in names))
