"""The record of a readiness check. It is apart from `model` because each registrar keeps it in memory."""

from __future__ import annotations

from kolla_mesos_start.records import NamedTuple


class Ready(NamedTuple):
    """When a daemon counts as ready.

    `kind` is one of `default notify tcp http command alive`; `value` is None, a port, a URL, a
    command (an argv in a ResolvedCommand), or the seconds to be alive (for `default`: if it never notifies).
    `interval` and `timeout` are seconds; after `fall` failures in a row the daemon is not ready. `program`
    is that of a command in a ResolvedCommand, to name it in an error, as in `ResolvedCommand`.
    """

    kind: str
    value: int | float | str | tuple[str, ...] | None
    interval: float
    timeout: float
    fall: int
    program: str | None = None
