"""Decides whether a dependency is satisfied or a one-time command is done.

Pure, on a View of znodes.
"""

from __future__ import annotations

import json
from itertools import islice

from kolla_mesos_start.definition.model import Dependency, External, Members
from kolla_mesos_start.definition.strings import ANY, GLOBAL, bad_service
from kolla_mesos_start.log import printable
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.tree.codec import (
    NO_SESSION,
    Field,
    Invalid,
    decode,
    decode_leniently,
    instance,
    is_text,
    member,
    why_left_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
    from kolla_mesos_start.zookeeper.view import View, Znode

# waiting -> running -> (retry -> running)* -> error or done; error -> running by the next claim,
# and done -> running only for another generation.
WAITING = "waiting"
RUNNING = "running"
RETRY = "retry"
DONE = "done"
ERROR = "error"

MAX_DETAIL = 4096  # bytes of the `detail` znode
MAX_MESSAGE = 1024  # bytes of the message in it
KEPT_MARKS = 16  # of a command; the oldest are deleted when it is done for another generation
MAX_MARK = 64  # bytes of the znode of a generation
MAX_FLOOR = 2**62  # A service may forge its own tokens; above this, there is enough room for other services.
MAX_STATE = 64  # bytes of a state that are shown
MAX_REGISTERED = 16384  # bytes of a container's facts
REMARKS = 10  # about what is left out below the same znode
MAX_NAME = 64  # characters of another container's host or generation that are shown


class Unmet(NamedTuple):
    """A dependency that is not satisfied: its state, since when (seconds since the epoch), and the path of
    the `detail` znode with the last attempt, or None.
    """

    dependency: Dependency | Members | External
    found: str
    since: float | None = None
    detail: str | None = None

    @property
    def what(self) -> str:
        dependency = self.dependency
        if isinstance(dependency, Members):
            return f"members of {dependency.service}"
        if isinstance(dependency, External):
            return dependency.what
        named = dependency.generation not in (None, ANY) and not dependency.is_daemon
        generation = f" generation {dependency.generation}" if named else ""
        return f"{dependency.path}{generation}{'' if dependency.scope == GLOBAL else ' on this host'}"


class Mark(NamedTuple):
    """The record that a one-time command is done for one generation.

    `name` is the path of its znode, `token` the zxid of the attempt's claim, `definition_zxid` the mzxid of
    the definition that was used.
    """

    name: str
    token: int
    definition_zxid: int


# For a long-running command without a time limit.
NO_TIMEOUT = "it has no `timeout`: if it hangs, kill its process there, and set one in the definition"


class Detail(NamedTuple):
    """The last attempt of a command. `finished` is None while it has no outcome.

    `claim` identifies the attempt. `token` grows with every attempt: it exceeds `after`, the token of the
    previous attempt or the token floor (see `token_of`). `newest` is the generation of the last earlier
    attempt that succeeded. Times are seconds since the epoch, only for people. `message` never contains
    output or command text. `adopted` and `taken_back` name the operator who has recorded it as done, and who
    has had it run again since then.
    """

    attempt: int = 0
    claim: str = ""
    host: str = ""
    generation: str | None = None
    started: float | None = None
    finished: float | None = None
    state: str = ""
    status: int | None = None
    after: int | None = None
    token: int | None = None
    message: str = ""
    newest: str | None = None
    adopted: str | None = None
    taken_back: str | None = None

    @property
    def newest_done(self) -> str | None:
        """The generation that was last done according to the attempts."""
        return self.generation if self.state == DONE else self.newest

    def encoded(self) -> bytes:
        """At most MAX_DETAIL bytes of JSON; message and generation are cut until it fits."""
        limit = MAX_MESSAGE
        while True:
            short = self._replace(
                message=cut(self.message, limit),
                generation=self.generation and cut(self.generation, limit),
                newest=self.newest and cut(self.newest, limit),
            )
            fields = {name: value for name, value in short._asdict().items() if value is not None}
            data = json.dumps(fields).encode()
            if len(data) <= MAX_DETAIL or limit == 0:
                return data
            limit //= 2  # JSON may write one byte as six.


COUNT = Field(lambda value: type(value) is int and 0 <= value < 2**63)  # A token is a zxid, or slightly more.
NUMBER = Field(lambda value: value is None or COUNT.fits(value))
TIME = Field(lambda value: type(value) is float or NUMBER.fits(value))
TEXT = Field(lambda value: isinstance(value, str))
TEXT_OR_NULL = Field(lambda value: value is None or isinstance(value, str))
DETAIL = {
    "attempt": COUNT,
    **dict.fromkeys(("claim", "host", "state", "message"), TEXT),
    **dict.fromkeys(("generation", "newest", "adopted", "taken_back"), TEXT_OR_NULL),
    **dict.fromkeys(("started", "finished"), TIME),
    **dict.fromkeys(("status", "after", "token"), NUMBER),
}


def decode_detail(znode: Znode | None) -> Detail:
    """The content of a `detail` znode; empty if it is missing or invalid."""
    try:
        found = Detail(**decode(znode.data, DETAIL, MAX_DETAIL)) if znode else Detail()
    except Invalid:
        found = Detail()
    return found._replace(host=printable(found.host), message=printable(found.message))


def token_of(detail: Detail, mzxid: int) -> int:
    """The token of the last attempt; `mzxid` is that of the znode with the `detail`.

    It is the zxid of the claim, which is only known once the claim is written; or one more than `after` if
    that is larger: zxids are smaller after a tree was moved to another ensemble.
    """
    return detail.token or max(mzxid, (detail.after or 0) + 1)


def largest_token(znode: Znode | None, floor: Znode | None) -> int:
    """The largest token of any attempt according to `detail` and the floor; 0 before the first attempt."""
    detail = decode_detail(znode)
    last = 0 if znode is None or detail.started is None else token_of(detail, znode.stat.mzxid)
    return max(last, decode_floor(floor))


def decode_floor(znode: Znode | None) -> int:
    """The token floor: every later attempt in the deployment gets a larger token.

    Invalid data counts as 0.
    """
    data = znode.data if znode and len(znode.data) <= MAX_MARK else b""
    try:
        floor = int(data or b"0")
    except ValueError:
        return 0
    return floor if 0 <= floor <= MAX_FLOOR else 0


def cut(message: str, limit: int) -> str:
    """`message` in at most `limit` bytes of UTF-8, cut between characters."""
    return message.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def decode_mark(name: str, znode: Znode | None) -> Mark:
    """The mark that `encode_mark` wrote; an invalid one counts as older than all others."""
    data = znode.data if znode and len(znode.data) <= MAX_MARK else b""
    try:
        number, zxid = (int(word) for word in data.split())
    except ValueError:
        number, zxid = 0, 0
    if znode is not None and zxid > znode.stat.mzxid:
        zxid = 0  # From another ensemble: this one had a smaller zxid when the mark was written.
    return Mark(name, number, zxid)


def encode_mark(token: int, definition_zxid: int) -> bytes:
    return b"%d %d" % (token, definition_zxid)


def state_of(view: View, path: str) -> tuple[str | None, float | None]:
    """The state in the znode `path`, safe to show, and since when (seconds since the epoch)."""
    znode = view.znode(path)
    if znode is None:
        return None, None
    more = "..." if len(znode.data) > MAX_STATE else ""
    state = printable(znode.data[:MAX_STATE].decode("utf-8", "replace")) + more
    return state or None, znode.stat.mtime / 1000


# -- dependencies ---------------------------------------------------------------------------------


def unmet(
    dependency: Dependency | Members,
    view: View,
    znodes: Znodes,
    image: str | None = None,
    published: Callable[[Dependency], str | None] = lambda dependency: None,
) -> Unmet | None:
    """Why the dependency is not satisfied, or None.

    `image` is the generation of the code in the container that has the dependency, None if unknown.
    `published` returns the published generation of a one-time command, None if it has none, or it is unknown.
    It is only called if it decides: the command is done, but not for `image`. If that is the published one,
    this container must wait for it; any other container need not.
    """
    if isinstance(dependency, Members):
        present = _counted(dependency, dependency.count, znodes.party(dependency.service), view)
        found = f"{present} of {dependency.count} present"
        return None if present >= dependency.count else Unmet(dependency, found)
    at = znodes.command(dependency.scope, dependency.path)
    if dependency.is_daemon:
        return _unmet_instances(dependency, view, znodes)
    if dependency.generation not in (None, ANY):
        assert dependency.generation is not None
        is_done = view.znode(at.generation(dependency.generation)) is not None
        return None if is_done else Unmet(dependency, "not done for this generation", detail=at.detail)
    if dependency.count is not None:
        at = znodes.command(GLOBAL, dependency.path)
        hosts = len(view.names(at.hosts, dependency.count))
        found = f"done on {hosts} of {dependency.count} hosts"
        return None if hosts >= dependency.count else Unmet(dependency, found, detail=at.detail)
    missing = _unmet_done(dependency, view, at)
    if missing or image is None or dependency.generation == ANY:
        return missing
    own = at.generation(image)
    znode_of = view.znodes([at.generations, own])
    if znode_of[at.generations] is None or znode_of[own] is not None:  # Plain commands have no `generations`.
        return None
    if published(dependency) != image:
        return None
    return Unmet(dependency, f"not done for generation {image}, which this image has", detail=at.detail)


def _unmet_done(dependency: Dependency, view: View, at: CommandZnodes) -> Unmet | None:
    state, since = state_of(view, at.state)
    # Most commands have no generations: they are only read if the state is not `done`.
    if state == DONE or view.names(at.generations):
        return None
    # "waits for db/sync: waiting" would leave open who waits.
    found = "not started yet" if state == WAITING else state or "not started"
    return Unmet(dependency, found, since, at.detail)


def _unmet_instances(dependency: Dependency, view: View, znodes: Znodes) -> Unmet | None:
    required = dependency.count or 1
    place = znodes.command(dependency.scope, dependency.path).ready
    ready = _counted(dependency, required, place, view)
    if ready < required:
        which = f" of generation {dependency.generation}" if dependency.generation is not None else ""
        return Unmet(dependency, f"{ready} of {required} instances{which} ready")
    others = _others(dependency, view, znodes) if dependency.exclusive else ""
    return Unmet(dependency, others) if others else None


def _counted(dependency: Dependency | Members, required: int, place: str, view: View) -> int:
    """How many members or ready instances below `place` count for the dependency, at most `required`.

    Only as many as are required are read; up to twice as many as do not count are read besides.
    """
    read = member if isinstance(dependency, Members) else instance
    generation = dependency.generation if isinstance(dependency, Dependency) else None
    paths = iter([f"{place}/{name}" for name in view.names(place, required)])
    counted, left_out = 0, list[str]()
    while counted < required and (batch := list(islice(paths, max(required - counted, len(left_out))))):
        for path, znode in view.znodes(batch).items():
            if znode is None:
                continue
            if why := why_left_out(znode, read):
                left_out.append(f"{path} is left out: {why}")
            else:
                counted += generation is None or decode_registered(znode).generation == generation
    _remark(view, place, left_out)
    return min(counted, required)


def _remark(view: View, place: str, left_out: list[str]) -> None:
    """The first few of these remarks, and about how many more there are: one container may write them all."""
    view.remarks += left_out[:REMARKS]
    more = len(left_out) - REMARKS
    if more > 0:
        view.remarks.append(f"{place}: at least {1 << more.bit_length() - 1} more are left out")


def _others(dependency: Dependency, view: View, znodes: Znodes) -> str:
    """The containers of other generations that block an exclusive dependency, in words."""
    claim = znodes.owner(GLOBAL, dependency.role)
    znode = view.znode(claim)
    owner = znode.data.decode("utf-8", "replace") if znode else ""
    if bad_service(owner) or owner.rsplit("/", 1)[-1] != dependency.role:
        return f"{claim} does not name the service of this role"
    place = znodes._replace(service_name=owner).containers
    others: list[tuple[str, str]] = []
    left_out: list[str] = []
    for path, znode in view.znodes(f"{place}/{name}" for name in view.names(place)).items():
        if znode and not znode.stat.ephemeralOwner:
            left_out.append(f"{path} is left out: {NO_SESSION}")
        elif znode:  # None: deleted since. One that is invalid may be of any generation.
            shown = decode_registered(znode)
            if shown.generation != dependency.generation:
                others.append((shown.host, shown.generation or ""))
    _remark(view, place, left_out)
    if not others:
        return ""
    host, generation = min(others)
    more = f", and {len(others) - 1} more have another one" if len(others) > 1 else ""
    has = f"generation {generation[:MAX_NAME]}" if generation else "no generation"
    return f"{dependency.role} on {host[:MAX_NAME]} still has {has}{more}"


class Registered(NamedTuple):
    """What another container has written; `generation` is its image's, None if it has none."""

    host: str
    generation: str | None


def decode_registered(znode: Znode | None) -> Registered:
    """The content of a ready instance or a container's znode; invalid data has no generation."""
    fields = decode_leniently(znode.data, MAX_REGISTERED) if znode else {}
    host, generation = fields.get("host"), fields.get("generation")
    return Registered(
        printable(host) if isinstance(host, str) and host else "an unknown host",
        generation if is_text(generation) else None,
    )


# -- one-time commands ----------------------------------------------------------------------------


def once_znodes(command: Command, znodes: Znodes) -> CommandZnodes:
    """The znodes of a one-time command, in the scope `run_once`."""
    assert command.run_once is not None
    return znodes.command(command.run_once, command.path)


def is_done(command: Command, znodes: Znodes, view: View) -> bool:
    """Whether a one-time command is done, for its generation if it has one."""
    at = once_znodes(command, znodes)
    if command.generation is None:
        return state_of(view, at.state)[0] == DONE
    return at.generation(command.generation).rpartition("/")[2] in view.names(at.generations)


def superseded_by(command: Command, znodes: Znodes, view: View, definition_zxid: int) -> Mark | None:
    """The newest mark, if it was made from a definition newer than `definition_zxid`.

    A replica that was stopped for a while must not run an old migration after a new one.
    """
    if command.generation is None:
        return None
    newest = newest_mark(once_znodes(command, znodes), view)
    return newest if newest is not None and newest.definition_zxid > definition_zxid else None


def newest_mark(at: CommandZnodes, view: View) -> Mark | None:
    """The mark with the largest token: the last generation for which a command was done.

    Its name does not show that. If there are too many marks, the mark of the last successful attempt is
    enough: its token is the largest.
    """
    names = view.names(at.generations)
    if len(names) > KEPT_MARKS:
        newest = at.generation(decode_detail(view.znode(at.detail)).newest_done or "").rpartition("/")[2]
        names = [newest] if newest in names else names
    found = view.znodes(f"{at.generations}/{name}" for name in names)
    marks = [decode_mark(path, znode) for path, znode in found.items()]
    return max(marks, key=lambda mark: mark.token, default=None)


def plain_state(scope: str, current: str | None, new: str) -> str:
    """The new state of a plain command. In scope `global`, `done` stays: it has succeeded at least once."""
    return DONE if scope == GLOBAL and current == DONE else new


def describe(missing: Unmet, detail: Detail, epoch: float) -> str:
    """An unmet dependency in words: its state, since when, and where and why the last attempt failed.

    `epoch` is the current time, in seconds since the epoch.
    """
    words = [missing.found]
    if missing.since is not None:
        words.append(f"for {max(0.0, epoch - missing.since):.0f} s")
    if detail.finished is not None and detail.state != DONE:
        words.append(f"attempt {detail.attempt} on {detail.host} failed: {detail.message}")
    elif detail.started is not None and detail.state != DONE:
        words.append(f"attempt {detail.attempt} runs on {detail.host}")
    return f"{missing.what} ({', '.join(words)})"
