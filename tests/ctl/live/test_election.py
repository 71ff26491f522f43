"""How an election is shown: by `elect`, `status` and `explain`, for trees of znodes."""

from __future__ import annotations

from typing import Any

import pytest

from kolla_mesos_start.ctl.commands import elect, status
from kolla_mesos_start.ctl.live import causes
from kolla_mesos_start.ctl.live.election import LiveElection, as_data
from kolla_mesos_start.ctl.live.model import LiveService
from tests.ctl.trees import NOW, container, deployment

AT = "status/global/db/election"
DEFINITION = {
    "commands": {"position": {"command": "cat /data/position"}},
    "service": {
        "instances": 3,
        "daemon": {
            "command": "mariadbd",
            "ready": {"alive": 1},
            "election": {"position": "db/position", "members": 3, "start": "mariadbd --new"},
        },
    },
}
LATER = NOW + 130
SINCE = "2 min 10 s"


def hosts(**parts: str) -> dict[str, Any]:
    """Znodes of each host: a position for a candidate, `ready`, `starting`, or `waiting` for a container."""
    tree: dict[str, Any] = {}
    for host, part in parts.items():
        said = container("waiting", "position fails: exit status 1" if part == "waiting" else "", host=host)
        if part in ("ready", "starting"):
            tree[f"{AT}/running/{host}"] = {"epoch": 2, "role": "join", "state": part}
            said["state"] = part
        elif part != "waiting":
            group, _, value = part.rpartition(":")
            empty = part == "none"
            tree[f"{AT}/candidates/{host}"] = {
                "group": None if empty else group,
                "value": None if empty else int(value),
            }
        tree[f"infra/db/.containers/{host}"] = said
        if part == "ready":
            tree[f"status/global/db/daemon/ready/{host}"] = {"host": host}
    return tree


def members(*hosts: str, state: str = "joined") -> dict[str, Any]:
    return {f"{AT}/members/{host}": {"epoch": 1, "state": state} for host in hosts}


def decision(
    state: str = "formed", winner: str = "h1", group: str | None = "g", attempts: int = 1
) -> dict[str, Any]:
    value = None if group is None else 7
    positions = {"h1": "g:7", "h2": "g:6", "h3": "g:5"}
    return {
        f"{AT}/decision": {
            "epoch": 1,
            "winner": winner,
            "group": group,
            "value": value,
            "positions": positions,
            "state": state,
            "attempts": attempts,
        }
    }


FORMED = {**decision(), **members("h1", "h2", "h3")}
OVERRIDE = {f"{AT}/override": {"epoch": 2, "winner": "h1", "without": ["h3"]}}
SEEN = f"(last seen {SINCE} ago)"
TWO = hosts(h1="g:9", h2="g:8")
NEWEST = "a missing host may have the newest data: start it"
FOREIGN = (
    "refused: the data of h3 belong to another cluster than the one that was formed (h3: other:5):"
    " check that the right volume is mounted; if it is, empty the data directory"
)
GROUPS = (
    "refused: the candidates have data of different clusters (h1: g:9, h2: x:8, h3: g:7):"
    " empty the data directories that are wrong"
)
BAD = f"refused: /kolla/site/{AT}/members/h3: it is not a JSON object; correct or delete this znode"
ENDED = {
    "stage": "bootstrap",
    "command": "db/position",
    "reason": "no disk",
    "status": 1,
    "retriable": True,
}
# The znodes; the lines of `elect` before the hosts; `kind: text` of each cause.
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a member is missing": (
        {**FORMED, **TWO},
        [
            f"electing for {SINCE}: 2 of 3 candidates",
            "missing: h3",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        [
            f"election waits: db/daemon has waited for {SINCE} for an election: missing: h3 {SEEN};"
            f" candidates: h1 (g:9), h2 (g:8); {NEWEST}"
        ],
    ),
    "a host that never took part is missing": (
        {"status/global/db": "infra/db", **TWO},
        [
            f"electing for {SINCE}: 2 of 3 candidates",
            "missing: 1 host that never took part",
            "cluster  not formed; 3 hosts are needed",
        ],
        [
            f"election waits: db/daemon has waited for {SINCE} for an election:"
            " missing: 1 host that never took part;"
            f" candidates: h1 (g:9), h2 (g:8); {NEWEST}"
        ],
    ),
    "all members are missing": (
        FORMED,
        [
            "electing: 0 of 3 candidates",
            "missing: h1, h2, h3",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        [
            "election waits: db/daemon waits for an election: missing:"
            f" h1 {SEEN}, h2 {SEEN}, h3 {SEEN}; there is no candidate; {NEWEST}"
        ],
    ),
    "a missing member has ended": (
        {
            **FORMED,
            **TWO,
            "status/h3/db/ended": ENDED,
        },
        [
            f"electing for {SINCE}: 2 of 3 candidates",
            "missing: h3",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        [
            f"gave up: db/position on h3 ended {SINCE} ago in stage bootstrap, exit status 1: no disk",
            f"election waits: db/daemon has waited for {SINCE} for an election: missing: h3 {SEEN};"
            f" candidates: h1 (g:9), h2 (g:8); {NEWEST}",
        ],
    ),
    "one is no candidate yet": (
        {**FORMED, **TWO, **hosts(h3="waiting")},
        [
            f"electing for {SINCE}: 2 of 3 candidates",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        ["electing: db/daemon: not yet candidates: h3 (position fails: exit status 1)"],
    ),
    "the winner is about to start": (
        {**FORMED, **hosts(h1="g:9", h2="g:9", h3="g:8")},
        [
            f"electing for {SINCE}: h1 has the newest data, and is about to bootstrap the cluster",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        ["electing: db/daemon: h1 has the newest data, and is about to bootstrap the cluster"],
    ),
    "the winner starts": (
        {
            **decision("bootstrapping"),
            **members("h1", "h2", "h3"),
            **hosts(h1="starting", h2="g:6", h3="g:5"),
        },
        [
            f"bootstrapping for {SINCE}: h1 bootstraps the cluster, and is not ready yet",
            "cluster  bootstrapping in epoch 1 by h1, group g",
        ],
        [
            "electing: db/daemon: h1 bootstraps the cluster, and is not ready yet",
            f"starting: db/daemon on h1 has been starting for {SINCE}",
        ],
    ),
    "the winner has died three times": (
        {
            **decision("bootstrapping", attempts=3),
            **members("h1", "h2", "h3"),
            **hosts(h2="g:6", h3="g:5"),
            "status/h1/db/ended": {
                "stage": "daemon",
                "command": "db/daemon",
                "reason": "the data are damaged",
                "status": 1,
                "retriable": True,
            },
        },
        [
            f"electing for {SINCE}: 2 of 3 candidates",
            "missing: h1",
            "cluster  bootstrapping in epoch 1 by h1, group g",
            "winner   h1 won 3 times and ended each time before it was ready; its last exit:"
            " the data are damaged; exit status 1",
        ],
        [
            f"ended: db/daemon on h1 ended: the data are damaged, {SINCE} ago; exit status 1;"
            " see the log of infra/db there, correct the cause, and start the container again",
            f"election waits: db/daemon has waited for {SINCE} for an election: missing: h1 {SEEN};"
            f" candidates: h2 (g:6), h3 (g:5); {NEWEST}; h1 won 3 times and ended each time before it was"
            " ready; its last exit: the data are damaged; exit status 1",
        ],
    ),
    "the cluster runs": (
        {**FORMED, **hosts(h1="ready", h2="ready", h3="ready")},
        [
            "ready on h1, h2, h3",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        [],
    ),
    "one joins": (
        {**FORMED, **hosts(h1="ready", h2="ready", h3="none")},
        [
            "ready on h1, h2",
            "cluster  formed in epoch 1 by h1, group g",
        ],
        ["electing: db/daemon on h3 is about to join the cluster: ready on h1, h2"],
    ),
    "one may not join": (
        {**FORMED, **hosts(h1="ready", h2="ready", h3="other:5")},
        [
            "ready on h1, h2",
            FOREIGN,
            "cluster  formed in epoch 1 by h1, group g",
        ],
        [f"election refused: db/daemon: {FOREIGN}"],
    ),
    "two clusters": (
        {**decision(group=None), **members("h1", "h2", "h3"), **hosts(h1="g:9", h2="x:8", h3="g:7")},
        [
            f"electing for {SINCE}",
            GROUPS,
            "cluster  formed in epoch 1 by h1",
        ],
        [f"election refused: db/daemon: {GROUPS}"],
    ),
    "the operator has decided, and the winner is gone": (
        {**FORMED, **OVERRIDE, **hosts(h2="g:8")},
        [
            f"electing for {SINCE}: 1 of 3 candidates",
            "missing: h1",
            "cluster  formed in epoch 1 by h1, group g",
            "operator for epoch 2: winner h1, without h3",
        ],
        [
            f"election waits: db/daemon has waited for {SINCE} for an election: missing: h1 {SEEN};"
            f" candidates: h2 (g:8); {NEWEST}"
        ],
    ),
    "no valid record": (
        {**FORMED, **TWO, f"{AT}/members/h3": "[]"},
        [
            "electing",
            BAD,
            "cluster  not formed; 3 hosts are needed",
        ],
        [
            "absent: 2 of 3 containers of infra/db exist: start the others",
            f"election refused: db/daemon: {BAD}",
        ],
    ),
}


def live(tree: dict[str, Any]) -> tuple[LiveService, LiveElection]:
    service = deployment({"infra/db": DEFINITION, f"{AT}/turn": "", **tree}).services["infra/db"]
    assert service.election
    return service, service.election


@pytest.mark.parametrize("case", CASES)
def test_an_election_is_shown_and_explained(case: str) -> None:
    tree, expected, expected_causes = CASES[case]
    service, election = live(tree)
    shown = [line.whole().plain.rstrip() for line in elect.lines(service, election, LATER)]
    head = [line for line in shown if not line.startswith("  ")]
    assert head == [f"infra/db  {expected[0]}", *expected[1:]]
    found = deployment({"infra/db": DEFINITION, f"{AT}/turn": "", **tree})
    assert [f"{cause.kind}: {cause.text}" for cause in causes.find(found, LATER)] == expected_causes


@pytest.mark.parametrize(
    ("tree", "rows"),
    [
        (
            {**FORMED, **hosts(h1="g:9", h2="waiting"), "status/h3/db/ended": ENDED},
            [
                f"  h1    candidate        g:9       joined  {SINCE}",
                f"  h2    not a candidate            joined  {SINCE:24}  position fails: exit status 1",
                f"  h3    missing                    joined  last seen {SINCE} ago"
                "  ended in stage bootstrap, exit status 1: no disk",
            ],
        ),
        (
            {
                **decision("bootstrapping"),
                **members("h1", "h2"),
                **hosts(h1="starting", h2="ready", h3="none"),
            },
            [
                f"  h1    starting   g:7       joined     {SINCE}",
                f"  h2    ready      g:6       joined     {SINCE}",
                f"  h3    candidate  none      no member  {SINCE}",
            ],
        ),
    ],
)
def test_each_host_has_a_row(tree: dict[str, Any], rows: list[str]) -> None:
    lines = [line.whole().plain.rstrip() for line in elect.lines(*live(tree), LATER)]
    assert lines[-3:] == rows
    assert lines[-4].split() == ["HOST", "STATE", "POSITION", "MEMBER", "SINCE"]


def test_a_refusal_is_stuck_and_stays_so() -> None:
    """A missing host may come back."""
    sites = {case: deployment({"infra/db": DEFINITION, **tree}) for case, (tree, _, _) in CASES.items()}
    found = {
        case: [(each.is_stuck, each.is_final) for each in causes.find(site, LATER)]
        for case, site in sites.items()
    }
    kinds = {cause.kind for site in sites.values() for cause in causes.find(site, LATER)}
    assert kinds >= {"electing", "election waits", "election refused"}
    assert found["two clusters"] == [(True, True)]
    assert found["a member is missing"] == [(True, False)]
    assert found["the winner is about to start"] == [(False, False)]


def test_a_position_that_is_not_known_is_a_cause() -> None:
    reason = "db/position: exit status 1; this host is no candidate yet"
    said = container("waiting", reason, host="h3", code="election-position")
    tree = {"infra/db": DEFINITION, **FORMED, **TWO, "infra/db/.containers/h3": said}
    kinds = {each.kind: each.text for each in causes.find(deployment(tree), LATER)}
    assert kinds["no position"] == f"infra/db on h3 for {SINCE}: {reason}; see its log"


def test_status_has_one_line_for_it() -> None:
    """Only while it is going on."""
    shown, over = (
        status.fitting(deployment({"infra/db": DEFINITION, **FORMED, **tree}), LATER, 80, 24).plain
        for tree in (TWO, hosts(h1="ready", h2="ready", h3="ready"))
    )
    assert f"\n  election  electing  {SINCE}  2 of 3 candidates; missing h3\n" in shown
    assert "election" not in over


def test_a_program_gets_all_of_it() -> None:
    _, election = live({**FORMED, **TWO, **OVERRIDE})
    data = as_data(election)
    assert data.pop("hosts")[2] == {
        "host": "h3",
        "part": "missing",
        "position": None,
        "member": "joined",
        "since": None,
        "last_seen": NOW,
        "reason": "",
        "refused": "",
    }
    assert data == {
        "state": "electing",
        "text": "h1 has the newest data, and is about to bootstrap the cluster",
        "code": None,
        "cluster": "formed",
        "epoch": 1,
        "winner": "h1",
        "group": "g",
        "winner_ended": 0,
        "wanted": 3,
        "elected": "h1",
        "missing": [],
        "unknown": 0,
        "refused": [],
        "since": NOW,
        "override": {"epoch": 2, "winner": "h1", "without": ["h3"]},
    }


def test_names_of_hosts_can_not_move_a_cursor() -> None:
    """The containers of the service make the znodes whose names they are."""
    found = deployment({"infra/db": DEFINITION, **FORMED, **TWO, f"{AT}/members/h\u202e3": b"{}".decode()})
    service, election = live({**FORMED, **TWO, f"{AT}/members/h\u202e3": {"epoch": 1, "state": "joined"}})
    shown = [line.whole().plain for line in elect.lines(service, election, LATER)]
    said = [cause.text for cause in causes.find(found, LATER)]
    assert any("h\N{REPLACEMENT CHARACTER}3" in line for line in shown)
    assert not any("\u202e" in line for line in (*shown, *said))
