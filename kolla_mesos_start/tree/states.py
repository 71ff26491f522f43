"""Decides whether a dependency is satisfied or a one-time command is done.

Pure, on a `query.View` of znodes.
"""

from __future__ import annotations

import json
from types import MappingProxyType

from kolla_mesos_start.definition.forms import ANY, GLOBAL, bad_service
from kolla_mesos_start.definition.model import Dependency, External, Members
from kolla_mesos_start.records import NamedTuple
from kolla_mesos_start.zookeeper.query import children_of, data_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Optional

    from kolla_mesos_start.definition.model import Command
    from kolla_mesos_start.tree.znodes import CommandZnodes, Znodes
    from kolla_mesos_start.zookeeper.query import Query, View, Znode

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

    `name` is the path of its znode, `token` the zxid of the attempt's claim, `definition` the mzxid of the
    definition that was used.
    """

    name: str
    token: int
    definition: int


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


NUMBER, TEXT, NULL = (int, float), (str,), (type(None),)
DETAIL_TYPES: dict[str, tuple[type, ...]] = {
    "attempt": (int,),
    "claim": TEXT,
    "host": TEXT,
    "generation": TEXT + NULL,
    "started": NUMBER + NULL,
    "finished": NUMBER + NULL,
    "state": TEXT,
    "status": (int, *NULL),
    "after": (int, *NULL),
    "token": (int, *NULL),
    "message": TEXT,
    "newest": TEXT + NULL,
    "adopted": TEXT + NULL,
    "taken_back": TEXT + NULL,
}


def decode_detail(znode: Znode | None) -> Detail:
    """The content of a `detail` znode; empty if it is missing or invalid."""
    data = znode.data if znode and len(znode.data) <= MAX_DETAIL else b""
    try:
        fields = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        fields = {}
    known = (
        {name: fields[name] for name in DETAIL_TYPES if name in fields} if isinstance(fields, dict) else {}
    )
    if any(type(value) not in DETAIL_TYPES[name] or _is_huge(value) for name, value in known.items()):
        known = {}
    found = Detail(**known)
    return found._replace(host=printable(found.host), message=printable(found.message))


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and not 0 <= value < 2**63  # A token is a zxid, or slightly more.


def printable(text: str) -> str:
    """Text of another container that is safe to show: it can't end a line or move a cursor."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


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
        number, definition = (int(word) for word in data.split())
    except ValueError:
        number, definition = 0, 0
    if znode is not None and definition > znode.stat.mzxid:
        definition = 0  # From another ensemble: this one had a smaller zxid when the mark was written.
    return Mark(name, number, definition)


def encode_mark(token: int, definition: int) -> bytes:
    return b"%d %d" % (token, definition)


def state_of(view: View, path: str) -> tuple[str | None, float | None]:
    """The state in the znode `path`, safe to show, and since when (seconds since the epoch)."""
    znode = view.get(data_of(path))
    if znode is None:
        return None, None
    more = "..." if len(znode.data) > MAX_STATE else ""
    state = printable(znode.data[:MAX_STATE].decode("utf-8", "replace")) + more
    return state or None, znode.stat.mtime / 1000


# -- dependencies ---------------------------------------------------------------------------------


def queries(
    dependency: Dependency | Members, znodes: Znodes, view: View, image: str | None = None
) -> list[Query]:
    """What to read to decide whether the dependency is satisfied. More may be needed once that is read.

    `image` is the generation of the code in the container that has the dependency, None if unknown.
    """
    if isinstance(dependency, Members):
        return _registered_queries(dependency, znodes, view)
    at = znodes.command(dependency.scope, dependency.path)
    if dependency.is_daemon:
        return _instance_queries(dependency, znodes, view)
    if dependency.generation not in (None, ANY):
        return [data_of(at.generation(dependency.generation))]
    if dependency.count is not None:
        return [children_of(znodes.command(GLOBAL, dependency.path).hosts, dependency.count)]
    # Most commands have no generations: they are only read if the state is not `done`.
    known = data_of(at.state) in view and state_of(view, at.state)[0] != DONE
    found = [data_of(at.state), *([children_of(at.generations)] if known else [])]
    if image is not None and dependency.generation is None:
        found += [data_of(at.generations), data_of(at.generation(image))]
    return found


if TYPE_CHECKING:
    # The published generation of a one-time command, by path and scope; None if it has none, or it is
    # unknown.
    Published = Mapping[tuple[str, str], Optional[str]]


def unmet(
    dependency: Dependency | Members,
    view: View,
    znodes: Znodes,
    image: str | None = None,
    published: Published = MappingProxyType({}),
) -> Unmet | None:
    """Why the dependency is not satisfied, or None.

    `image`: see `queries`. `published` must contain its command if it `needs_published`.
    """
    if isinstance(dependency, Members):
        return _unmet_members(dependency, view, znodes)
    if dependency.is_daemon:
        return _unmet_instances(dependency, view, znodes)
    if dependency.generation not in (None, ANY):
        return _unmet_generation(dependency, view, znodes)
    if dependency.count is not None:
        return _unmet_hosts(dependency, view, znodes)
    return _unmet_done(dependency, view, znodes) or _unmet_own(dependency, view, znodes, image, published)


def needs_published(dependency: Dependency | Members, view: View, znodes: Znodes, image: str | None) -> bool:
    """Whether the published generation of the command decides about the dependency.

    Then the command is done, but not for this image's generation. If that is the published one, this
    container must wait for it; any other container need not.
    """
    if image is None or not isinstance(dependency, Dependency):
        return False
    if dependency.is_daemon or dependency.generation is not None or dependency.count is not None:
        return False
    at = znodes.command(dependency.scope, dependency.path)
    is_once = view.get(data_of(at.generations)) is not None  # Plain commands have no such znode.
    own_is_missing = view.get(data_of(at.generation(image))) is None
    return is_once and own_is_missing and _unmet_done(dependency, view, znodes) is None


def _unmet_own(
    dependency: Dependency, view: View, znodes: Znodes, image: str | None, published: Published
) -> Unmet | None:
    if (
        not needs_published(dependency, view, znodes, image)
        or published.get((dependency.path, dependency.scope)) != image
    ):
        return None
    at = znodes.command(dependency.scope, dependency.path)
    return Unmet(dependency, f"not done for generation {image}, which this image has", detail=at.detail)


def _unmet_members(dependency: Members, view: View, znodes: Znodes) -> Unmet | None:
    present = len(_counted(dependency, znodes, view))
    if present >= dependency.count:
        return None
    return Unmet(dependency, f"{present} of {dependency.count} present")


def _unmet_instances(dependency: Dependency, view: View, znodes: Znodes) -> Unmet | None:
    required, ready = dependency.count or 1, len(_counted(dependency, znodes, view))
    if ready < required:
        which = f" of generation {dependency.generation}" if dependency.generation is not None else ""
        return Unmet(dependency, f"{ready} of {required} instances{which} ready")
    others = _others(dependency, view, znodes) if dependency.exclusive else ""
    return Unmet(dependency, others) if others else None


def _registered(dependency: Dependency | Members, znodes: Znodes) -> tuple[Query, Callable[[bytes], object]]:
    """The list of what a dependency counts, and what decodes an entry."""
    from kolla_mesos_start.tree import members  # Many containers count nothing.

    if isinstance(dependency, Members):
        return children_of(znodes.party(dependency.service), dependency.count), members.member
    at = znodes.command(dependency.scope, dependency.path)
    return children_of(at.ready, dependency.count or 1), members.instance


def _counts(dependency: Dependency | Members, read: Callable[[bytes], object], znode: Znode | None) -> bool:
    from kolla_mesos_start.tree.members import why_left_out

    if znode is None or why_left_out(znode, read):
        return False
    generation = dependency.generation if isinstance(dependency, Dependency) else None
    return generation is None or decode_registered(znode).generation == generation


def _counted(dependency: Dependency | Members, znodes: Znodes, view: View) -> list[str]:
    """The paths of the members or instances that count for the dependency, as far as they are needed."""
    listed, read = _registered(dependency, znodes)
    paths = [f"{listed.path}/{name}" for name in view[listed]]
    return [path for path in paths if _counts(dependency, read, view.get(data_of(path)))]


def _registered_queries(dependency: Dependency | Members, znodes: Znodes, view: View) -> list[Query]:
    """The list, and as many entries as are required; another one for each that does not count."""
    listed, read = _registered(dependency, znodes)
    found, required = [listed], listed.required
    for name in _names(listed, view):
        if required <= 0:
            break
        entry = data_of(f"{listed.path}/{name}")
        found.append(entry)
        if entry not in view or _counts(dependency, read, view[entry]):
            required -= 1
    return found


def left_out(dependency: Dependency | Members, znodes: Znodes, view: View) -> Iterator[str]:
    """What the dependency does not count because it is invalid, or no session owns it: a warning for each."""
    if isinstance(dependency, Dependency) and not dependency.is_daemon:
        return
    from kolla_mesos_start.tree.members import why_left_out

    lists = [_registered(dependency, znodes)]
    if isinstance(dependency, Dependency) and (containers := _containers(dependency, znodes, view)):
        lists.append((children_of(containers), bytes))
    for listed, read in lists:
        for path in [f"{listed.path}/{name}" for name in _names(listed, view)]:
            if (znode := view.get(data_of(path))) and (why := why_left_out(znode, read)):
                yield f"{path} is left out: {why}"


def _instance_queries(dependency: Dependency, znodes: Znodes, view: View) -> list[Query]:
    found = _registered_queries(dependency, znodes, view)
    if dependency.exclusive:
        found.append(data_of(znodes.owner(GLOBAL, dependency.role)))
        if containers := _containers(dependency, znodes, view):
            found.append(children_of(containers))
            found += [data_of(f"{containers}/{name}") for name in _names(found[-1], view)]
    return found


def _names(query: Query, view: View) -> Iterable[str]:
    """The names below a path; empty if unknown."""
    try:
        names: Iterable[str] = view[query]  # Not get(): a view may know it for another number of names.
    except KeyError:
        return ()
    return names


def _containers(dependency: Dependency, znodes: Znodes, view: View) -> str | None:
    """The `.containers` znode of the service that owns the dependency's role; None if no service does."""
    znode = view.get(data_of(znodes.owner(GLOBAL, dependency.role)))
    owner = znode.data.decode("utf-8", "replace") if znode else ""
    if bad_service(owner) or owner.rsplit("/", 1)[-1] != dependency.role:
        return None
    return znodes._replace(service_name=owner).containers


def _others(dependency: Dependency, view: View, znodes: Znodes) -> str:
    """The containers of other generations that block an exclusive dependency, in words."""
    containers = _containers(dependency, znodes, view)
    if containers is None:
        return f"{znodes.owner(GLOBAL, dependency.role)} does not name the service of this role"
    found = [view.get(data_of(f"{containers}/{name}")) for name in view[children_of(containers)]]
    # None: deleted since. One that is invalid may be of any generation.
    shown = [decode_registered(znode) for znode in found if znode and znode.stat.ephemeralOwner]
    others = sorted(
        (each.host, each.generation or "") for each in shown if each.generation != dependency.generation
    )
    if not others:
        return ""
    host, generation = others[0]
    more = f", and {len(others) - 1} more have another one" if len(others) > 1 else ""
    has = f"generation {generation[:MAX_NAME]}" if generation else "no generation"
    return f"{dependency.role} on {host[:MAX_NAME]} still has {has}{more}"


class Registered(NamedTuple):
    """The facts of another container; `generation` is its image's, None if it has none."""

    host: str
    generation: str | None


def decode_registered(znode: Znode | None) -> Registered:
    """The content of a ready instance or a container's znode; invalid data has no generation."""
    try:
        facts = json.loads(znode.data) if znode and len(znode.data) <= MAX_REGISTERED else {}
    except (ValueError, RecursionError):
        facts = {}
    host, generation = (facts.get(key) if isinstance(facts, dict) else None for key in Registered._fields)
    is_text = isinstance(generation, str) and generation.isprintable() and generation != ""
    return Registered(
        printable(host) if isinstance(host, str) and host else "an unknown host",
        generation if is_text else None,
    )


def _unmet_generation(dependency: Dependency, view: View, znodes: Znodes) -> Unmet | None:
    at = znodes.command(dependency.scope, dependency.path)
    assert dependency.generation is not None
    if view[data_of(at.generation(dependency.generation))] is not None:
        return None
    return Unmet(dependency, "not done for this generation", detail=at.detail)


def _unmet_hosts(dependency: Dependency, view: View, znodes: Znodes) -> Unmet | None:
    at = znodes.command(GLOBAL, dependency.path)
    assert dependency.count is not None
    hosts = len(view[children_of(at.hosts, dependency.count)])
    if hosts >= dependency.count:
        return None
    return Unmet(dependency, f"done on {hosts} of {dependency.count} hosts", detail=at.detail)


def _unmet_done(dependency: Dependency, view: View, znodes: Znodes) -> Unmet | None:
    at = znodes.command(dependency.scope, dependency.path)
    state, since = state_of(view, at.state)
    if state == DONE or view.get(children_of(at.generations)):
        return None
    # "waits for db/sync: waiting" would leave open who waits.
    found = "not started yet" if state == WAITING else state or "not started"
    return Unmet(dependency, found, since, at.detail)


# -- one-time commands ----------------------------------------------------------------------------


def once_queries(command: Command, znodes: Znodes, view: View) -> list[Query]:
    """What to read to decide whether a one-time command is done.

    The names of its marks are read first; the marks themselves only if its own is missing.
    """
    at = once_znodes(command, znodes)
    if command.generation is None:
        return [data_of(at.state), data_of(at.detail)]
    if is_done(command, znodes, view):
        return [children_of(at.generations), data_of(at.detail)]
    return mark_queries(at, view)


def mark_queries(at: CommandZnodes, view: View) -> list[Query]:
    """What to read to find the newest mark.

    Its name does not show that. If there are too many marks, the mark of the last successful attempt is
    enough: its token is the largest.
    """
    names = view.get(children_of(at.generations), ())
    if len(names) > KEPT_MARKS:
        last = decode_detail(view.get(data_of(at.detail)))
        newest = at.generation(last.newest_done or "").rpartition("/")[2]
        names = [newest] if newest in names else names
    return [
        children_of(at.generations),
        *(data_of(f"{at.generations}/{name}") for name in names),
        data_of(at.detail),
    ]


def once_znodes(command: Command, znodes: Znodes) -> CommandZnodes:
    """The znodes of a one-time command, in the scope `run_once`."""
    assert command.run_once is not None
    return znodes.command(command.run_once, command.path)


def is_done(command: Command, znodes: Znodes, view: View) -> bool:
    """Whether a one-time command is done, for its generation if it has one."""
    at = once_znodes(command, znodes)
    if command.generation is None:
        return state_of(view, at.state)[0] == DONE
    return at.generation(command.generation) in {mark.name for mark in _marks(at, view)}


def superseded_by(command: Command, znodes: Znodes, view: View, definition: int) -> Mark | None:
    """The newest mark, if it was made from a definition newer than `definition` (an mzxid).

    A replica that was stopped for a while must not run an old migration after a new one.
    """
    if command.generation is None:
        return None
    newest = newest_mark(once_znodes(command, znodes), view)
    return newest if newest is not None and newest.definition > definition else None


def newest_mark(at: CommandZnodes, view: View) -> Mark | None:
    """The mark with the largest token: the last generation for which a command was done."""
    return max(_marks(at, view), key=lambda mark: mark.token, default=None)


def _marks(at: CommandZnodes, view: View) -> list[Mark]:
    paths = [f"{at.generations}/{name}" for name in view.get(children_of(at.generations), ())]
    return [decode_mark(path, view.get(data_of(path))) for path in paths]


def retirement_queries(at: CommandZnodes, view: View) -> list[Query]:
    """What to read to decide whether the command at `at` has retired an image, or is about to."""
    return [*mark_queries(at, view), children_of(at.lock)]


def under_way(at: CommandZnodes, view: View) -> str | None:
    """The host that is running the one-time command, or None.

    If the lock has no contender, an attempt without an outcome has ended with its container.
    """
    detail = decode_detail(view[data_of(at.detail)])
    runs = detail.started is not None and detail.finished is None and view[children_of(at.lock)]
    return (detail.host or "another host") if runs else None


def retired_for(image: str | None, at: CommandZnodes, view: View) -> str | None:
    """The generation for which the command at `at` was last done, if it is not `image`."""
    newest = newest_mark(at, view)
    if newest is None or (image is not None and newest.name == at.generation(image)):
        return None
    from urllib.parse import unquote  # Few images are retired.

    return printable(unquote(newest.name.rpartition("/")[2]))[:MAX_NAME]


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
