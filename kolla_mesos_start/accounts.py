"""The user and group database of this container: names and numbers become ids."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Sequence
from typing import NamedTuple

from kolla_mesos_start.errors import CannotExecute, CannotWrite


class Ids(NamedTuple):
    """Who a process runs as. `name` and `home` are None for a number without an account."""

    uid: int
    gid: int
    groups: Sequence[int]
    name: str | None
    home: str | None


def ids(user: str) -> Ids:
    """Whom `user`, a name or a number, stands for, with supplementary groups. CannotExecute for nobody.

    A number without an account is taken as it is, with the group of the same number: no group of
    root's, and none that anybody gave it.
    """
    account = _account(user)
    if account is not None:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        return Ids(account.pw_uid, account.pw_gid, tuple(groups), account.pw_name, account.pw_dir)
    number = _number(user)
    if number is None:
        raise CannotExecute(
            f"user {user!r} is not known here; make the account in the image, or give a number"
        )
    return Ids(number, number, (number,), None, None)


def owner_ids(owner: str) -> tuple[int, int]:
    """The user's and the group's number of `user` or `user:group`, names or numbers. CannotWrite for nobody.

    Without a group it is the user's own; a number without an account has the agent's.
    """
    user, colon, group = owner.partition(":")
    account = _account(user)
    uid = account.pw_uid if account is not None else _number(user)
    if uid is None:
        raise CannotWrite(f"owner {owner!r}: user {user!r} is not known here; make the account in the image")
    if not colon:
        return uid, account.pw_gid if account is not None else os.getegid()
    gid = _group(group)
    if gid is None:
        raise CannotWrite(f"owner {owner!r}: group {group!r} is not known here; make it in the image")
    return uid, gid


def _account(user: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(user)
    except (KeyError, ValueError):  # ValueError: no account's name can be written like that.
        number = _number(user)
    try:
        return None if number is None else pwd.getpwuid(number)
    except KeyError:
        return None


def _group(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        return _number(group)


def _number(text: str) -> int | None:
    """A user's or group's number; the largest one means "leave it" to chown and is none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None
    return number if number is not None and number < 2**32 - 1 else None
