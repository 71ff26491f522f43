"""Reports what this container is doing, to probes on its host and in its znode below `.containers`.

Each registrar keeps this module in memory for months, so nothing heavy may be imported.
"""

from __future__ import annotations

import time

from kolla_mesos_start.log import printable
from kolla_mesos_start.loop import now
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kolla_mesos_start.health import Stage, StateFile
    from kolla_mesos_start.zookeeper.ephemerals import Ephemeral, Ephemerals

# Codes for programs, which must not parse `reason`.
CHECK = "check"  # the check of the daemon fails
REFRESH_PENDING, REFRESH_RUNNING = "refresh-pending", "refresh-running"
REFRESH_SETTLING = "refresh-settling"  # the daemon has new files, and has not passed a check yet
REFRESH_FAILED = "refresh-failed"
NEVER_READY = "never-ready"  # in `ended`: the daemon ended before it was ready
RESTART = "restart"  # only a restart brings the daemon up to date

# Seconds until the first write, and between writes: most starts are over before, and cost the server nothing.
FIRST, INTERVAL = 0.2, 1.0
MAX_REASON = 1024  # characters
MAX_OUTSIDE = 32  # external services that are named


class StatusZnode(NamedTuple):
    """The container's znode: its path, its constant fields (a JSON object), and when it may be written.

    `write_after` is an instant of `loop.now`.
    """

    path: str
    constants: bytes
    write_after: float


class Report:
    """The current state of the container."""

    def __init__(self, state_file: StateFile, command: str = "") -> None:
        """`command` is the one that the state is about; empty if there is none, or several."""
        self.state_file = state_file
        self._stage: Stage = "waiting"
        self._command, self._reason = command, ""
        self._fields: dict[str, str | Mapping[str, str]] = {}
        self._since = time.time()
        self._constants = b""
        self._ephemeral: Ephemeral | None = None

    def write(
        self,
        stage: Stage,
        reason: str,
        command: str = "",
        code: str = "",
        outside: Mapping[str, str] | None = None,
        election: Mapping[str, str] | None = None,
        started: float | None = None,
    ) -> None:
        """Report this state. Raises CannotWrite as `StateFile.write` does.

        `code` is one of the codes above or of `election.decide`, or empty. `outside`: why external services
        have not answered. `election`: what the code is about. `started`: see `StateFile.write`.
        """
        if (stage, command) != (self._stage, self._command):
            self._since = time.time()
        if len(reason) > MAX_REASON:  # The log has the whole text.
            reason = f"{reason[: MAX_REASON - 3]}..."
        self._stage, self._command, self._reason = stage, command, reason
        self._fields = {"code": code} if code else {}
        if outside:
            self._fields["outside"] = dict(list(outside.items())[:MAX_OUTSIDE])
        if election:
            self._fields["election"] = dict(list(election.items())[:MAX_OUTSIDE])
        if self._ephemeral:
            self._ephemeral.data = self._text()
        self.state_file.write(stage, command if stage == "bootstrapping" else reason, started)

    def write_silence(self, what: str) -> None:
        """Tell probes what ZooKeeper must answer first; empty text: it has, and the state is as before."""
        if what:
            self.state_file.write("waiting", what)
        elif self._stage in ("waiting", "bootstrapping"):
            self.state_file.write(
                self._stage, self._command if self._stage == "bootstrapping" else self._reason
            )

    def show(self, ephemerals: Ephemerals, shown: StatusZnode) -> Ephemeral:
        """Report in ZooKeeper too; returns the ephemeral."""
        if self._ephemeral is None:
            self._ephemeral = ephemerals.keep(shown.path, b"")
            self._ephemeral.interval, self._ephemeral.write_after = INTERVAL, shown.write_after
        self._constants = shown.constants
        self._ephemeral.data = self._text()
        return self._ephemeral

    def show_now(self) -> bool:
        """Do not delay the first write; returns whether the znode was written, or has been refused."""
        shown = self.ephemeral
        if shown.held or shown.refusals:
            return True
        shown.write_after = 0.0
        return False

    def renew(self, constants: bytes) -> None:
        """Replace the constant fields."""
        self._constants = constants
        if self._ephemeral:
            self._ephemeral.data = self._text()

    @property
    def ephemeral(self) -> Ephemeral:
        """The container's znode."""
        assert self._ephemeral is not None
        return self._ephemeral

    @property
    def shown(self) -> StatusZnode:
        """What another process needs to continue the report."""
        return StatusZnode(self.ephemeral.path, self._constants, self.ephemeral.write_after)

    def _text(self) -> bytes:
        return with_texts(
            self._constants,
            state=self._stage,
            command=self._command or None,
            reason=self._reason,
            since=utc(self._since),
            **self._fields,
        )


def status_znode(
    host: str, definition_zxid: int, digest: str, generation: str | None, logs: str | None, path: str
) -> StatusZnode:
    """The znode of a container that has rendered nothing yet; for the arguments see `constants`."""
    return StatusZnode(path, constants(host, definition_zxid, digest, generation, logs), now() + FIRST)


def constants(
    host: str,
    definition_zxid: int,
    digest: str,
    generation: str | None,
    logs: str | None,
    read: int | None = None,
    follows: bool = False,
    optional: Sequence[str] = (),
) -> bytes:
    """The constant fields of a container's znode.

    `definition_zxid` is its definition's mzxid, `digest` its graph's, `generation` its image's. `logs`: how
    to read its log. `read`: its files include every change up to this zxid; None: it has rendered nothing
    yet. `follows`: the files of its daemon are refreshed after a change. `optional`: those of its files that
    may be removed.
    """
    import json

    fields: dict[str, object] = {
        "host": host,
        "definition": f"{definition_zxid:#x}",
        "digest": digest,
        "generation": generation,
        "read": None if read is None else f"{read:#x}",
        "follows": follows,
    }
    if optional:
        fields["optional"] = list(optional)
    if logs:
        fields["logs"] = logs
    return json.dumps(fields).encode()


def utc(epoch: float) -> str:
    """The time in ISO 8601, from seconds since the epoch."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def with_texts(data: bytes, **texts: str | Mapping[str, str] | None) -> bytes:
    """The JSON object `data` with these members added. Without `json`, which a registrar does not import."""
    body = data.rstrip()[:-1].rstrip()
    return body + (b"" if body.endswith(b"{") else b", ") + _members(texts) + b"}"


def _members(texts: Mapping[str, str | Mapping[str, str] | None]) -> bytes:
    return b", ".join(b"%s: %s" % (_quoted(name), _quoted(text)) for name, text in texts.items())


def _quoted(text: str | Mapping[str, str] | None) -> bytes:
    if text is None:
        return b"null"
    if not isinstance(text, str):
        return b"{%s}" % _members(text)
    return b'"%s"' % printable(text).replace("\\", "\\\\").replace('"', '\\"').encode()
