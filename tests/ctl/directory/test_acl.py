"""Who may do what with each znode by `acl.yml`, and what is wrong in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl.directory import acl
from kolla_mesos_start.ctl.directory.acl import Plan
from kolla_mesos_start.ctl.directory.findings import WARNING, Finding
from tests.ctl import sources
from tests.ctl.sources import load
from tests.support.publishing import write_files

HASH = "A" * 27 + "="
OPERATOR, DB, WEB, BELOW = f"digest:op:{HASH}", f"digest:db:{HASH}", "x509:CN=web,O=x", "x509:CN=below"
NAMES = {"o": OPERATOR, "d": DB, "w": WEB, "b": BELOW}
PLAN = Plan(
    OPERATOR,
    {"infra/db": DB, "shop/web": WEB, "shop/web/below": BELOW},
    {"password": ["infra/db"], "closed": []},
    ["h1"],
)


@pytest.mark.parametrize(
    ("node", "working", "reading"),
    [
        ("", "", "dwb"),
        ("infra", "", "dwb"),
        ("infra/db", "", "d"),
        ("infra/db/variables", "", "d"),
        ("infra/db/variables/h1/password", "", "d"),
        ("infra/db/files/conf", "", "d"),
        ("infra/db/.acl", "", "d"),
        ("infra/db/.party", "d", "wb"),
        ("infra/db/.containers/1", "d", "wb"),
        ("shop/web", "", "w"),  # Though a service lies below it.
        ("shop/web/below", "", "b"),
        ("variables", "", "dwb"),
        ("variables/region", "", "dwb"),
        ("variables/password", "", "d"),
        ("variables/closed", "", ""),
        ("status", "", "dwb"),
        ("status/global", "", "dwb"),
        ("status/h1", "", "dwb"),
        ("status/h9/db", "d", "wb"),
        ("status/global/db/sync/lock/1", "d", "wb"),
        ("status/global/gone/sync", "", "dwb"),
        ("status/global/db/election", "d", "wb"),
        ("status/global/db/election/running/h1", "d", "wb"),
        ("status/global/db/election/override", "d", "wb"),
        (".acl", "", ""),
        ("nobodys", "", ""),
        ("infra/db-2/variables/x", "", ""),
        ("gone/.party", "", "dwb"),
    ],
)
def test_every_path_has_its_acl(node: str, working: str, reading: str) -> None:
    """The operator may do everything; services work at what is their own, and read what they need."""
    expected = {OPERATOR: "cdrwa"}
    expected.update({NAMES[each]: "cdrw" for each in working})
    expected.update({NAMES[each]: "r" for each in reading})
    assert PLAN.acl(node) == expected


def test_what_agents_may_not_make_is_made() -> None:
    """Above all that they make themselves; with the data that they would give it."""
    made = PLAN.made()
    assert list(made)[:3] == ["status", "status/global", "status/h1"]
    assert made["status/h1/db"] == made["status/global/db"] == b"infra/db"
    assert {"shop/web/below/.party", "shop/web/below/.containers"} <= made.keys()


def test_what_is_recorded_can_be_read_again() -> None:
    recorded = PLAN.recorded()
    assert acl.parse(json.loads(recorded[".acl"])) == (PLAN, [])
    assert recorded["infra/db/.acl"] == f"{OPERATOR}:cdrwa,{DB}:cdrw,{WEB}:r,{BELOW}:r".encode()
    assert recorded.keys() == {".acl", "infra/db/.acl", "shop/web/.acl", "shop/web/below/.acl"}
    assert PLAN.only({"infra/db"}).services == {"infra/db": DB}


def test_one_identity_has_all_its_rights() -> None:
    """Several services may connect as the same."""
    plan = Plan(OPERATOR, {"a": DB, "b": DB})
    assert plan.acl("status/global/a") == {OPERATOR: "cdrwa", DB: "cdrw"}


@pytest.mark.parametrize(
    ("found", "more"),
    [
        ({OPERATOR: "cdrwa", DB: "r"}, {}),
        ({OPERATOR: "r"}, {}),
        ({OPERATOR: "cdrwa", DB: "rw"}, {DB: "w"}),
        ({"world:anyone": "cdrwa"}, {"world:anyone": "cdrwa"}),
    ],
)
def test_wider_is_what_is_not_planned(found: acl.Acl, more: acl.Acl) -> None:
    assert acl.wider(found, {OPERATOR: "cdrwa", DB: "r"}) == more


def test_no_digest_is_shown() -> None:
    shown = acl.shown({DB: "rw", WEB: "a"})
    assert shown == "digest:db may read, write; x509:CN=web,O=x may change the ACL"


GOOD = {
    "operator": OPERATOR,
    "services": {"db": DB},
    "variables": {"password": ["db"]},
    "hosts": ["h1"],
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"variables": None, "hosts": None}, []),
        ({"oparator": "x"}, [("oparator", "unknown key; nearest is 'operator'")]),
        ({"operator": None}, [("operator", acl.EXPECTED)]),
        ({"operator": "world:anyone"}, [("operator", acl.EXPECTED)]),
        ({"operator": "digest:op:password"}, [("operator", acl.EXPECTED)]),
        ({"services": {"db": f"digest:{HASH}"}}, [("services.db", acl.EXPECTED)]),
        ({"services": {"db": ["x509:CN=db", DB]}}, []),
        ({"services": {"db": []}}, [("services.db", acl.EXPECTED)]),
        ({"operator": ["x509:CN=op", "op"]}, [("operator[1]", acl.EXPECTED)]),
        ({"services": {"db": "x509:CN=\ud800"}}, [("services.db", acl.EXPECTED)]),
        ({"\ud800": 1}, [("'\\ud800'", "unknown key; nearest is 'variables'")]),
        ({"services": ["db"]}, [("services", "expected a mapping")]),
        ({"services": {"a/status": DB}}, [("services.a/status", "no service can have this name")]),
        ({"services": {"/a": DB}}, [("services./a", "no service can have this name")]),
        ({"variables": {"password": "db"}}, [("variables.password", "expected a list of names")]),
        ({"hosts": ["global"]}, [("hosts[0]", "expected the name of a host, found 'global'")]),
        ({"hosts": {"h1": "x"}}, [("hosts", "expected a list of names")]),
    ],
)
def test_what_is_wrong_in_it_is_named(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """Not the value of an identity, in whose place a password may stand."""
    assert acl.parse({**GOOD, **changes})[1] == expected


FILE = f"""\
operator: "{OPERATOR}"
services:
  infra/db: x509:CN=db
  shop/web: x509:CN=web
variables:
  password: [infra/db]
"""
DAEMON = "service: {daemon: {command: run, ready: {alive: 1}, env: {P: '{{ own }}'}}}\n"


def findings(directory: Path, file: str) -> Sequence[Finding]:
    """What is said about a deployment with this acl.yml."""
    root = write_files(
        directory,
        acl_yml=file,
        variables_yml="password: one\nown: two\n",
        services__infra__db__definition_yml=DAEMON,
        services__shop__web__definition_yml=DAEMON.replace("{{ own }}", "{{ own }}x"),
    )
    assert load(root).deployment.left_out == ()
    return sources.findings(root)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("shop/web", "shop/wbe", ["4: services.shop/wbe: no service is called", "2: services: shop/web is"]),
        ("  shop/web: x509:CN=web\n", "", ["2: services: shop/web is missing"]),
        ("password:", "pasword:", ["6: variables.pasword: the deployment has no variable 'pasword'"]),
        ("[infra/db]", "[infra/db, db]", ["6: variables.password[1]: no service is called 'db'"]),
        ("password: [infra/db]", "own: [infra/db]", ["6: variables.own: a template of shop/web names it"]),
        ("x509:CN=web", "digest:web:secret", ["4: services.shop/web: expected digest:<user>:<base64"]),
        ("variables:", "variables: {", ["bad YAML"]),
        ("operator:", "oparator:", ["1: oparator: unknown key; nearest is 'operator'", "operator: expected"]),
    ],
)
def test_each_mistake_has_its_line(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    """The nearest name too. What is not right can't be published."""
    found = [f"{each.line}: {each.message}" for each in findings(tmp_path, FILE.replace(old, new))]
    if not expected:
        assert found == []
    for each in expected:
        assert any(each in line for line in found), found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("CN=web", "CN=db", "services.shop/web: infra/db has the same identity"),
        ("x509:CN=web", OPERATOR, "services.shop/web: the operator has the same identity"),
    ],
)
def test_an_identity_that_another_has_is_doubtful(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """It may be published all the same."""
    (finding,) = findings(tmp_path, FILE.replace(old, new))
    assert finding.severity == WARNING
    assert (finding.line, finding.message.partition(",")[0]) == (4, expected)


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    root = write_files(tmp_path, acl_yml=FILE, acl_json='{"operator": "x509:CN=x"}', variables_yml="a: b\n")
    assert [each.message for each in load(root).unreadable] == ["acl.json exists too: keep one of them"]
