"""Attacks on a deployment with an acl.yml, and their outcome: rows of docs/guide/secure.rst.

`agent/test_attacks_on_znodes.py` tries the attacks on real deployments, and `test_docs.py` compares the
table with docs/guide/secure.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# The attacker is a service, `web`, or a stranger, without any right in the plan.
DB, TASK, WEB = "infra/db/db", "app/task", "app/web/web"
SERVICE, STRANGER = "web", "stranger"

# What is tried, in the words of that page: a verb and a znode below the deployment. `*` is one that is there.
# By both attackers:
REFUSED = {
    "Read the secrets of another service": """
        names infra/db/db
        read infra/db/db
        names infra/db/db/variables
        read infra/db/db/variables/own
        read infra/db/db/variables/h1/own
        read infra/db/db/files/conf
        read infra/db/db/.acl
        read variables/secret
        read .acl
        """,
    "Change a definition, a variable, a file, or who may do what": """
        write infra/db/db
        write app/web/web
        write infra/db/db/variables/own
        write infra/db/db/files/conf
        write app/web/web/variables/own
        write variables/region
        write variables/secret
        make infra/db/db/variables/new
        make infra/db/db/variables/h2/new
        make infra/db/db/files/new
        make app/web/web/variables/region
        make variables/new
        delete infra/db/db/variables/own
        delete infra/db/db/variables/h1/own
        delete infra/db/db/variables
        delete infra/db/db/files/conf
        delete app/web/web
        delete variables/secret
        write .acl
        make .token_floor
        write infra/db/db/.acl
        write app/web/web/.acl
        delete .acl
        open variables/secret
        open infra/db/db
        open status/global/db
        open app/web/web
        open status/global/web
        open status
        """,
    "Forge, change or delete the status, an instance or a member of another service": """
        write status/global/db/sync
        write status/global/db/sync/detail
        make status/global/db/sync/generations/2
        make status/global/db/each/hosts/h9
        write status/h1/db/each
        write status/global/task/schema
        make status/h1/db/ended
        delete status/global/db/sync
        delete status/global/db/sync/detail
        delete status/global/db/sync/generations/1
        delete status/global/db/each/hosts/h1
        delete status/global/db
        delete status/h1/db
        register status/global/db/daemon/ready/forged
        register status/h1/db/daemon/ready/forged
        write status/global/db/daemon/ready/*
        delete status/global/db/daemon/ready/*
        delete status/global/db/daemon/ready
        register infra/db/db/.party/forged
        write infra/db/db/.party/*
        delete infra/db/db/.party/*
        register infra/db/db/.containers/forged
        write infra/db/db/.containers/*
        delete infra/db/db/.containers/*
        """,
    "Take the lock, the role, or the turn to refresh, of another service": """
        register status/global/task/schema/lock/forged
        write status/global/task/schema/lock/*
        delete status/global/task/schema/lock/*
        delete status/global/task/schema/lock
        write status/global/db
        write status/h2/db
        make status/global/db/daemon/refreshes/slots/forged
        write status/global/db/daemon/refreshes/slots/*
        delete status/global/db/daemon/refreshes/slots/*
        register status/global/db/daemon/refreshes/queue/forged
        delete status/global/db/daemon/refreshes/queue/*
        """,
    "Create a service, role, host or any other znode, or write data below those of another service": """
        make app/new
        make infra/db/new
        make infra/db/db/new
        make new
        make status/global/new
        make status/h1/new
        make status/h9
        write status
        write infra
        delete status/h1
        delete status/global
        fill status/global/db
        fill status/h1/db
        fill infra/db/db/.party
        fill variables
        """,
}
BY_STRANGERS_REFUSED = {
    "As a stranger, read anything, or write as a service": """
        read variables/region
        names variables
        read infra/db/db/.party/*
        names infra/db/db/.party
        names infra
        names
        names status/global
        read status/global/db/sync
        read status/global/db/daemon/ready/*
        read app/web/web
        read app/web/web/.acl
        make status/global/web/forged
        register app/web/web/.party/forged
        delete status/global/web/daemon
        """,
}
BY_SERVICES_POSSIBLE = {
    "As a service, forge its own status, instances and members": """
        write status/global/web/daemon
        make status/global/web/forged
        write status/global/web/forged
        delete status/global/web/forged
        register status/global/web/daemon/ready/forged
        delete status/global/web/daemon/ready/forged
        register app/web/web/.party/forged
        delete app/web/web/.party/forged
        """,
    "As a service, read shared data: variables, hosts, addresses, status": """
        read variables/region
        names variables
        read infra/db/db/.party/*
        read infra/db/db/.containers/*
        read status/global/db/sync/detail
        read status/global/db/daemon/ready/*
        names status/global/task/schema/lock
        """,
    "As a service, read its variables for other hosts": "read app/web/web/variables/h2/own",
    "As a service, read the digests of all identities": "read app/web/web/.acl",
    "As a service, create znodes that the operator can neither read nor change": """
        keep status/global/web/kept
        """,
    "As a service, fill the memory of ZooKeeper": "fill status/global/web",
}
BY_STRANGERS_POSSIBLE = {
    "As a stranger, see whether a znode exists, its size and its times": "see variables/secret",
    "As a stranger, create znodes outside of the deployment, or a quota": """
        make /elsewhere
        delete /elsewhere
        make /zookeeper/quota/elsewhere
        delete /zookeeper/quota/elsewhere
        """,
    "As a stranger, end a session whose id it has seen": "end infra/db/db/.party/*",
}
# That one takes an ensemble: `agent/test_secured.py` tries it out.
BY_SERVERS_REFUSED = "As a service, join a quorum with TLS as an observer, to receive all data"
OUTCOMES = {
    **dict.fromkeys((*REFUSED, *BY_STRANGERS_REFUSED, BY_SERVERS_REFUSED), "refused"),
    **dict.fromkeys({**BY_SERVICES_POSSIBLE, **BY_STRANGERS_POSSIBLE}, "possible"),
}


class Attack(NamedTuple):
    """Somebody tries something."""

    who: str
    verb: str
    node: str


def attacks(rows: Mapping[str, str], *attackers: str) -> list[Attack]:
    """All that stands in such rows, tried by each of the attackers."""
    lines = [line.split() for text in rows.values() for line in text.strip().splitlines()]
    return [Attack(who, verb, "".join(node)) for who in attackers for verb, *node in lines]


MUST_BE_REFUSED = attacks(REFUSED, SERVICE, STRANGER) + attacks(BY_STRANGERS_REFUSED, STRANGER)
MUST_BE_POSSIBLE = attacks(BY_SERVICES_POSSIBLE, SERVICE) + attacks(BY_STRANGERS_POSSIBLE, STRANGER)
