"""Users, groups and owners, by name and by number."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from kolla_mesos_start.errors import AgentError, CannotExecute, CannotWrite
from kolla_mesos_start.host import accounts


@pytest.fixture(name="nova")
def _nova(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account `nova` (4242, group 4243, also in 4300), and one whose name is a number."""
    users = {
        "nova": pwd.struct_passwd(("nova", "x", 4242, 4243, "", "/var/lib/nova", "/bin/false")),
        "777": pwd.struct_passwd(("777", "x", 5000, 5001, "", "/home/777", "/bin/false")),
    }
    groups = {"nova": 4243, "kolla": 4300}
    by_number = {one.pw_uid: one for one in users.values()}
    monkeypatch.setattr(pwd, "getpwnam", users.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", by_number.__getitem__)
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", groups[name], [])))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 4300] if name == "nova" else [gid])
    monkeypatch.setattr(os, "getegid", lambda: 99)


@pytest.mark.usefixtures("nova")
@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("nova", accounts.Ids(4242, 4243, (4243, 4300), "nova", "/var/lib/nova")),
        ("4242", accounts.Ids(4242, 4243, (4243, 4300), "nova", "/var/lib/nova")),
        ("777", accounts.Ids(5000, 5001, (5001,), "777", "/home/777")),
        ("1234", accounts.Ids(1234, 1234, (1234,), None, None)),
    ],
)
def test_a_command_runs_with_the_users_own_groups(user: str, ids: accounts.Ids) -> None:
    """With supplementary groups. A number may be that of an account; a name is looked up first."""
    assert accounts.ids(user) == ids


@pytest.mark.usefixtures("nova")
@pytest.mark.parametrize("user", ["nobody-here", "", "-1", "4294967295", "9" * 5000, "٣", "1.5", "0x1"])
def test_an_unknown_user_of_a_command_is_reported(user: str) -> None:
    """chown reads 4294967295 as "no change"."""
    with pytest.raises(CannotExecute) as caught:
        accounts.ids(user)
    assert repr(user) in caught.value.reason


@pytest.mark.usefixtures("nova")
@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("nova", (4242, 4243)),
        ("nova:kolla", (4242, 4300)),
        ("nova:55", (4242, 55)),
        ("4242", (4242, 4243)),
        ("1234", (1234, 99)),
        ("1234:kolla", (1234, 4300)),
        ("0:0", (0, 0)),
    ],
)
def test_an_owner_is_a_user_and_a_group_by_name_or_number(owner: str, expected: tuple[int, int]) -> None:
    """Without a group it is the account's own, or the agent's if there is no account."""
    assert accounts.owner_ids(owner) == expected


@pytest.mark.usefixtures("nova")
@pytest.mark.parametrize(
    ("owner", "at_fault"),
    [
        ("nowa", "user 'nowa'"),
        ("nova:nowhere", "group 'nowhere'"),
        ("nova:", "group ''"),
        (":nova", "user ''"),
    ],
)
def test_an_unknown_owner_is_reported(owner: str, at_fault: str) -> None:
    """The message names the part that is not known."""
    with pytest.raises(CannotWrite, match=at_fault) as caught:
        accounts.owner_ids(owner)
    assert caught.value.status == 73


def test_a_name_that_no_account_can_have_is_unknown_too() -> None:
    """Python raises another error for a NUL."""
    for ask in (accounts.ids, accounts.owner_ids):
        with pytest.raises(AgentError, match="is not known in this container"):
            ask("a\0b")
    with pytest.raises(CannotWrite, match="is not known in this container"):
        accounts.owner_ids("0:a\0b")


def test_real_accounts_are_found() -> None:
    """Every system has root."""
    root = pwd.getpwuid(0)
    assert accounts.ids("root")[:2] == (0, root.pw_gid)
    assert root.pw_gid in accounts.ids("root").groups
    assert accounts.owner_ids("root") == (0, root.pw_gid)
    assert accounts.owner_ids(f"root:{grp.getgrgid(root.pw_gid).gr_name}") == (0, root.pw_gid)
