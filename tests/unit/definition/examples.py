"""Definitions to start from, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import Command, File, Graph
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import BadDefinition

SERVICE = "openstack/keystone/keystone-api"
ANY = Any


def unrendered(text: Text) -> str:
    """A render that must not be called."""
    raise AssertionError(f"{text.label} is no template")


def built(definition: ANY, render: Callable[[Text], str] = unrendered) -> Graph:
    return keys.build(load(json.dumps(definition).encode()), SERVICE, render)


def with_command(**keys: ANY) -> dict[str, ANY]:
    """A definition with the commands `first` and `db_sync`, the latter with these keys."""
    return {"commands": {"first": {"command": "true"}, "db_sync": {"command": "true", **keys}}}


def with_daemon(**keys: ANY) -> dict[str, ANY]:
    return {"service": {"daemon": {"command": "apache2", **keys}}}


def with_file(**keys: ANY) -> dict[str, ANY]:
    return with_command(files={"a.conf": {"dest": "/etc/a.conf", **keys}})


def command(**keys: ANY) -> Command:
    return built(with_command(**keys)).commands[1]


def daemon(**keys: ANY) -> Command:
    found = built(with_daemon(**keys)).daemon
    assert found is not None
    return found


def election(**keys: ANY) -> dict[str, ANY]:
    """A definition whose daemon has an election with these keys."""
    wanted = {"position": "keystone-api/position", "members": 3, "start": ["db", "--new"], **keys}
    commands = {"position": {"command": "a"}, "once": {"command": "a", "run_once": True}}
    return {**with_daemon(election=wanted), "commands": commands}


def with_election(**keys: ANY) -> Command:
    found = built(election(**keys)).daemon
    assert found is not None
    return found


def ready(**keys: ANY) -> Ready:
    found = daemon(ready=keys).ready
    assert found is not None
    return found


def file(**keys: ANY) -> File:
    return built(with_file(**keys)).commands[1].files[0]


def dependencies(*items: ANY) -> ANY:
    return list(command(dependencies=list(items)).dependencies)


def issues_of(definition: ANY, render: Callable[[Text], str] = unrendered) -> list[str]:
    with pytest.raises(BadDefinition) as caught:
        built(definition, render)
    assert caught.value.status == 65
    return list(caught.value.issues)


TEMPLATED: ANY = {
    "commands": {
        "a": {
            "command": ["echo", "{{ word }}", "plain"],
            "dependencies": ["{{ role }}/daemon", {"path": "b/c", "scope": "{{ s }}", "count": "{{ n }}"}],
            "run_once": "{% if x %}true{% endif %}",
            "generation": "{{ tag }}",
            "env": {"A": "{{ a }}", "B": "plain"},
            "files": {"f": {"dest": "/{{ d }}", "owner": "{{ o }}", "perm": "{{ p }}", "mounted": "{{ m }}"}},
            "retries": "{{ r }}",
            "delay": "{{ r }}",
            "timeout": "{{ r }}",
            "stop_grace": "{# r #}5",
            "user": "{{ u }}",
        }
    },
    "service": {
        "mem": "{{ ignored }}",
        "daemon": {
            "command": "run {{ word }}",
            "dependencies": [
                {"members": "{{ role }}", "timeout": "{{ n }}"},
                {"external": {"tcp": "{{ e }}:1"}, "interval": "{{ n }}"},
            ],
            "ready": {"command": ["ping", "{{ h }}"], "interval": "{{ i }}"},
        },
    },
    "container": "{{ ignored }}",
}

EARLY_VALUES = {
    **{"{{ role }}/daemon": "mariadb/daemon", "{{ role }}": "infra/mariadb", "{{ s }}": "local"},
    **{"{{ n }}": "2", "{{ tag }}": "k:1", "{{ r }}": "7", "{{ i }}": "4", "{# r #}5": "5"},
    **{"{{ e }}:1": "[::1]:1"},
    **{"{% if x %}true{% endif %}": "true", "{{ m }}": "/m/f"},
}


def templated() -> Graph:
    return built(TEMPLATED, lambda text: EARLY_VALUES[text.text])
