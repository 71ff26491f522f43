"""Published texts become config files; tests/unit/render tests single texts."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests.conftest import Deployment
from tests.support.agents import Agent, Containers
from tests.support.counting import Line
from tests.support.publishing import publish
from tests.support.tap import Tap
from tests.support.zookeeper import Server


def writes(*names: str, **command: Any) -> dict[str, Any]:
    """A definition with one command, whose files go to its working directory."""
    files = {name: {"dest": "{{ here }}/" + name} for name in names}
    return {"commands": {"go": {"command": "true", "files": files, **command}}}


def written(agent: Agent, name: str) -> str:
    return (agent.directory / name).read_text()


def test_a_nearer_variable_takes_precedence(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Host over service over deployment; an empty value is a value."""
    publish(
        deployment,
        "web",
        writes("conf"),
        files={"conf": "{{ a }} {{ b }} {{ c }} [{{ d }}]"},
        shared={"a": "shared", "b": "shared", "c": "shared", "d": "shared", "here": "/nowhere"},
        variables={"a": "service", "b": "service", "d": "", "here": str(tmp_path)},
        host_variables={host: {"a": host, "here": str(tmp_path / host)} for host in ("web1", "web2")},
    )
    agents = [containers.start("web", host) for host in ("web1", "web2", "web3")]
    assert [agent.ends() for agent in agents] == [0, 0, 0]
    for directory, first in (("web1", "web1"), ("web2", "web2"), ("", "service")):
        assert (tmp_path / directory / "conf").read_text() == f"{first} service shared []"


def test_a_publication_during_the_reads_is_read_again(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """All that is rendered belongs to the same definition."""
    here = {"here": str(tmp_path)}
    sources = {"one": "{{ a }} {{ z }}", "two": "{{ z }} {{ a }}"}
    publish(
        deployment, "web", writes("one", "two"), files=sources, variables={"a": "old", "z": "old", **here}
    )

    def redeploy() -> None:
        publish(
            deployment,
            "web",
            writes("one", "two", retries=1),
            files={name: f"new: {source}" for name, source in sources.items()},
            variables={"a": "new", "z": "new", **here},
        )

    tap = Tap(zookeeper, f"{deployment.path}/web/variables/z", redeploy)
    try:
        agent = containers.start("web", KOLLA_ZK_HOSTS=tap.hosts)
        assert agent.ends() == 0
    finally:
        tap.close()
    assert tap.acted
    assert [(tmp_path / name).read_text() for name in sources] == ["new: new new"] * 2


def test_all_missing_variables_and_files_are_named_together(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """With file, line and the znodes that were looked up; nothing is written."""
    publish(
        deployment,
        "web",
        writes("one", "two", "three", env={"TOKEN": "{{ token }}"}),
        files={
            "one": "{{ good }}\n{{ password }}\n",
            "two": "{% if false %}{{ unused }}{% endif %}{{ x | default('') }}\n\n{{ password }}{{ user }}",
            "three": "",
        },
        variables={"here": str(tmp_path), "good": "good"},
    )
    zk.delete(f"{deployment.path}/web/files/three")
    agent = containers.start("web")
    assert agent.ends() == 78
    assert agent.ending["command"] == "web/go"
    service = f"{deployment.path}/web"

    def looked_at(name: str) -> str:
        places = (f"{service}/variables/web1", f"{service}/variables", f"{deployment.path}/variables")
        return ", ".join(f"{place}/{name}" for place in places)

    assert agent.ending["reason"] == (
        "missing: "
        f"password (used in file one line 2; file two line 3; looked at {looked_at('password')}), "
        f"user (used in file two line 3; looked at {looked_at('user')}), "
        f"token (used in commands.go.env.TOKEN line 1; looked at {looked_at('token')}), "
        f"content of file three ({service}/files/three does not exist)"
        "; publish values, or use `kolla_mesos_ctl set NAME`"
    )
    assert not (tmp_path / "one").exists()


def test_a_missing_variable_names_other_hosts_that_have_it(
    zk: KazooClient, deployment: Deployment, containers: Containers
) -> None:
    """The host's name is often the mistake."""
    publish(deployment, "web", {"commands": {"go": {"command": "true", "env": {"A": "{{ user }}"}}}})
    zk.create(f"{deployment.path}/web/variables/web2/user", b"s3cret", makepath=True)
    agent = containers.start("web", "web1")
    assert agent.ends() == 78
    assert agent.ending["reason"].endswith(
        "; user has a value for web2 only; publish a value, or use `kolla_mesos_ctl set user`"
    )
    assert "s3cret" not in agent.said


def test_missing_variables_can_be_empty_as_in_kolla_mesos(
    deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """With KOLLA_MISSING_VARIABLES=empty, and one warning for each."""
    files = {"conf": "[{{ user }}{{ user }}{{ password }}]"}
    publish(deployment, "web", writes("conf"), files=files, variables={"here": str(tmp_path)})
    agent = containers.start("web", KOLLA_MISSING_VARIABLES="empty")
    assert agent.ends() == 0
    assert (tmp_path / "conf").read_text() == "[]"
    warnings = [line for line in agent.said.splitlines() if "WARNING" in line]
    assert len(warnings) == 2
    assert "user is missing" in warnings[0]
    assert "password is missing" in warnings[1]


def test_a_value_cannot_break_the_definition(deployment: Deployment, containers: Containers) -> None:
    """Strings are rendered after the JSON is parsed, and a value is no template."""
    nasty = "\"}, 'x': {{ y }}\n\\ $HOME `id`"
    script = 'printf %s "$1" > argument; printf %s "$VALUE" > environment; echo x >> attempts; exit "$2"'
    command = {
        "command": ["/bin/sh", "-c", script, "sh", "{{ nasty }}", "{{ status }}"],
        "env": {"VALUE": "{{ nasty }}"},
        "retries": "{{ tries }}",
        "delay": "{{ pause }}",
        "dependencies": ["{{ needs }}/setup"],
    }
    publish(deployment, "db", {"commands": {"setup": {"command": "true"}}})
    publish(
        deployment,
        "web",
        {"commands": {"go": command}},
        variables={"nasty": nasty, "status": "3", "tries": "2", "pause": "0.01", "needs": "db"},
    )
    assert containers.start("db").ends() == 0
    agent = containers.start("web")
    assert agent.ends() == 1
    assert written(agent, "argument") == nasty
    assert written(agent, "environment") == nasty
    assert written(agent, "attempts").count("x") == 3
    assert agent.ending["reason"] == "exit status 3 (3 attempts)"


def test_templates_can_list_members_and_instances(
    zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """Members with their own addresses; no members are an empty list."""
    daemon = {"service": {"daemon": {"command": "sleep 100", "ready": {"alive": 0}}}}
    publish(deployment, "infra/db", daemon)
    template = """\
{{ list_ips_by_service('infra/db', port=3306) == get_ip_address() ~ ':3306,' ~ get_ip_address() ~ ':3306' }}
{{ groups['db'] == [inventory_hostname] * 2 }} {{ groups['nobody'] }} {{ list_ips_by_service('no/body') }}.
{{ list_addresses_by_service('infra/db', 3306) }}
{{ hostvars[inventory_hostname]['ansible_' + api_interface]['ipv4']['address'] == get_ip_address() }}
{% for one in ready_instances('infra/db') %}{{ one.host }}={{ one.address }}:{{ one.ports[0] }}
{% endfor %}"""
    definition = writes("conf", dependencies=[{"members": "infra/db", "count": 2}, two("db/daemon")])
    publish(deployment, "web", definition, files={"conf": template}, variables={"here": str(tmp_path)})
    agent = containers.start("web", "web1")
    for number in (2, 1):
        containers.start(
            "infra/db", f"db{number}", KOLLA_ADDRESS=f"192.0.2.{number}", KOLLA_PORTS=f"330{number}"
        )
    assert agent.ends() == 0
    assert (tmp_path / "conf").read_text() == (
        "True\nTrue [] .\n192.0.2.1:3306,192.0.2.2:3306\nTrue\ndb1=192.0.2.1:3301\ndb2=192.0.2.2:3302\n"
    )


def test_only_the_members_that_a_template_names_are_read(
    zookeeper: Server, zk: KazooClient, deployment: Deployment, containers: Containers, tmp_path: Path
) -> None:
    """There may be ten thousand others; only an unknown address is looked up among all."""
    for service, member in product(range(5), range(20)):
        address = f"10.0.{service}.{member}"
        facts = {
            "private_address": address,
            "ansible_hostname": f"host{service}-{member}",
            "api_interface": "eth0",
            "ansible_eth0": {"ipv4": {"address": address}},
        }
        path = f"{deployment.path}/infra/service{service}/.party/{member}"
        zk.create(path, json.dumps(facts).encode(), makepath=True, ephemeral=True)
    # The others have claimed none, as in kolla-mesos.
    zk.create(f"{deployment.path}/status/global/service3", b"infra/service3", makepath=True)
    named = "{% for one in groups['ROLE'] %}{{ hostvars[one]['ansible_hostname'] }} {% endfor %}"
    templates = {
        "claimed": named.replace("ROLE", "service3"),
        "unclaimed": named.replace("ROLE", "service2"),
        "all": "{{ groups | length }} {{ hostvars['10.0.4.19'].ansible_hostname }}",
    }
    for name, template in templates.items():
        publish(deployment, name, writes(name), files={name: template}, variables={"here": str(tmp_path)})
        with closing(Line(zookeeper)) as line:
            assert containers.start(name, KOLLA_ZK_HOSTS=line.hosts).ends() == 0
            paths = [request.path for request in line.connections[0]]
        read = [path for path in paths if "/.party/" in path]
        listed = [path for path in paths if path.endswith("/.party")]
        assert (len(read), len(listed)) == ((100, 5) if name == "all" else (20, 1)), name
    hosts = [sorted((tmp_path / name).read_text().split()) for name in ("claimed", "unclaimed")]
    assert hosts == [sorted(f"host{service}-{member}" for member in range(20)) for service in (3, 2)]
    assert (tmp_path / "all").read_text() == "5 host4-19"


def two(path: str) -> dict[str, Any]:
    return {"path": path, "count": 2}
