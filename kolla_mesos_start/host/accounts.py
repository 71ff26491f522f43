"""The user and group database of this container: names and numbers become ids."""

from __future__ import annotations

import grp
import os
import pwd

from kolla_mesos_start.errors import PASSING, CannotExecute, CannotWrite, Lacking
from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CAP_SETGID, CAP_SETUID = 6, 7  # of linux/capability.h
ADD_IT = "add it to the image, or use a number"


class Ids(NamedTuple):
    """User and groups of a process; `name` and `home` are None for a number without an account."""

    uid: int
    gid: int
    groups: Sequence[int]
    name: str | None
    home: str | None


def ids(user: str) -> Ids:
    """The ids of `user`, a name or a number. Raises CannotExecute if there is no such user.

    A number without an account gets the group of the same number only: never root's group.
    """
    _check_databases()
    account = _account(user)
    if account is not None:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        return Ids(account.pw_uid, account.pw_gid, tuple(groups), account.pw_name, account.pw_dir)
    number = _number(user)
    if number is None:
        raise CannotExecute(f"user {user!r} is not known in this container; {ADD_IT}")
    return Ids(number, number, (number,), None, None)


def to_become(user: str) -> Ids | None:
    """The ids that a process has to take on to be `user`; None if this container runs as that user already.

    Raises CannotExecute if there is no such user, or if this container must not become another one.
    """
    wanted, uid = ids(user), os.geteuid()
    may_change = _has_capabilities(CAP_SETGID, CAP_SETUID)
    if wanted.uid == uid and not (uid == 0 and may_change):
        return None
    if not may_change:
        own = _account(str(uid))
        name = own.pw_name if own else "a user without a name"
        raise CannotExecute(
            f"user {user!r} (uid {wanted.uid}): this container runs as {name} (uid {uid}), without the right "
            "(capabilities SETGID, SETUID) to become another user: start it as uid "
            f"{wanted.uid} (`user` in launch.yml), or change the user in the definition"
        )
    return wanted


def _has_capabilities(*numbers: int) -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        (effective,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return all(effective >> number & 1 for number in numbers)


def owner_ids(owner: str) -> tuple[int, int]:
    """The uid and gid of `user` or `user:group`, names or numbers. Raises CannotWrite if one is not known.

    Without `group` it is the user's own group; for a number without an account the agent's.
    """
    _check_databases()
    user, colon, group = owner.partition(":")
    account = _account(user)
    uid = account.pw_uid if account is not None else _number(user)
    if uid is None:
        raise CannotWrite(f"owner {owner!r}: user {user!r} is not known in this container; {ADD_IT}")
    if not colon:
        return uid, account.pw_gid if account is not None else os.getegid()
    try:
        gid: int | None = grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        gid = _number(group)
    if gid is None:
        raise CannotWrite(f"owner {owner!r}: group {group!r} is not known in this container; {ADD_IT}")
    return uid, gid


def _check_databases() -> None:
    """Raise Lacking if they can't be read for now: to the C library, a user or a group is then unknown."""
    for path in ("/etc/passwd", "/etc/group"):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            if error.errno in PASSING:
                raise Lacking(f"{path} can't be read: {error.strerror}").because(error.errno) from error


def _account(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user)
    except (KeyError, ValueError):  # ValueError: not a possible name, it holds a NUL.
        number = _number(user)
    try:
        return None if number is None else pwd.getpwuid(number)
    except KeyError:
        return None


def _number(text: str) -> int | None:
    """The number of a user or group, or None. 2**32 - 1 is not allowed: chown reads it as "no change"."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None
    return number if number is not None and number < 2**32 - 1 else None
