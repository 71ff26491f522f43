"""What a definition means, and everything that is refused before any command runs."""

from __future__ import annotations

import json

import pytest

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.model import (
    Command,
    Dependency,
    Election,
    External,
    File,
    Members,
    OnChange,
)
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.definition.resolve import resolve
from kolla_mesos_start.definition.strings import Text
from tests.unit.definition.examples import (
    ANY,
    SERVICE,
    TEMPLATED,
    built,
    command,
    daemon,
    dependencies,
    election,
    file,
    issues_of,
    ready,
    templated,
    unrendered,
    with_command,
    with_daemon,
    with_election,
    with_file,
)

# -- good definitions -----------------------------------------------------------------------------


def test_a_command_needs_no_key_but_its_command() -> None:
    """Every other key has a default."""
    assert built(with_command()).commands[1] == Command(
        path="keystone-api/db_sync",
        name="db_sync",
        command="true",
        dependencies=(),
        run_once=None,
        generation=None,
        env=(),
        files=(),
        succeeds=(0,),
        retries=0,
        delay=5.0,
        timeout=None,
        stop_grace=10.0,
        user=None,
        ready=None,
        generations=None,
        on_change=None,
        width=None,
        election=None,
        drain=None,
        before_stop=None,
    )


def test_a_number_in_env_is_the_text_that_is_written() -> None:
    """The version 3.10 is not 3.1."""
    data = b'{"commands": {"a": {"command": "a", "timeout": 1.50, "env": {"V": 3.10, "E": 1e3, "F": 1.0}}}}'
    (found,) = keys.build(load(data), SERVICE, lambda text: text.text).commands
    assert (found.env, found.timeout) == ((("V", "3.10"), ("E", "1e3"), ("F", "1.0")), 1.5)


def test_by_default_a_daemon_is_ready_when_it_notifies_or_after_20_seconds() -> None:
    """The default of `ready`; the daemon is a command of the name `daemon` otherwise."""
    found = daemon()
    assert (found.path, found.is_daemon, found.label) == ("keystone-api/daemon", True, "service.daemon")
    assert found.ready == Ready("default", 20.0, interval=10.0, timeout=5.0, fall=3)


def test_commands_keep_the_order_of_the_definition_and_the_daemon_is_last() -> None:
    """Whichever is ready first runs first; among several the definition decides."""
    names = ["z", "a", "m"]
    found = built({**with_daemon(), "commands": {name: {"command": "true"} for name in names}})
    assert [step.name for step in found.commands] == names
    assert [step.name for step in found.all_commands] == [*names, "daemon"]


def test_a_definition_without_a_daemon_is_a_task() -> None:
    """The graph has no daemon then."""
    assert built(with_command()).daemon is None
    assert [step.name for step in built(with_command()).all_commands] == ["first", "db_sync"]


GOOD: list[tuple[ANY, ANY]] = [
    (command(command=["a", "", "b c"]).command, ("a", "", "b c")),
    (command(command="a | b").command, "a | b"),
    (command(run_once=True).run_once, "global"),
    (command(run_once="host").run_once, "local"),
    (command(run_once=False).run_once, None),
    (command(run_once="true").run_once, "global"),
    (command(run_once=True, generation="quay.io/k:1").generation, "quay.io/k:1"),
    (command(run_once=True, generation=None).generation, None),
    (command(retries=3).retries, 3),
    (command(retries=" 2\x1f").retries, 2),  # Whitespace to re and to str.strip, not to int.
    (command(delay="\x1c2.5").delay, 2.5),
    (command(retries="3").retries, 3),
    (command(delay=0).delay, 0.0),
    (command(delay="1.5").delay, 1.5),
    (command(timeout=60).timeout, 60.0),
    (command(timeout=None).timeout, None),
    (command(stop_grace=0).stop_grace, 0.0),
    (command(user="keystone").user, "keystone"),
    (command(user=42425).user, "42425"),
    (command(env=None).env, ()),
    (command(env={"A": "a", "B": None, "C": 5, "D": 0.5, "E": True, "F": False}).env,
     (("A", "a"), ("B", ""), ("C", "5"), ("D", "0.5"), ("E", "true"), ("F", "false"))),
    (command(timeout="1e3").timeout, 1000.0),
    (command(files=None).files, ()),
    (command(dependencies=None).dependencies, ()),
    (dependencies("mariadb/daemon"), [Dependency("mariadb/daemon", "global", None, None, False, None)]),
    (dependencies({"path": "mariadb/daemon"}), dependencies("mariadb/daemon")),
    (dependencies({"path": "a/b", "scope": "local", "count": "2", "generation": "g", "timeout": 9}),
     [Dependency("a/b", "local", 2, "g", False, 9.0)]),
    (dependencies({"members": "infra/memcached", "count": 3}), [Members("infra/memcached", 3, None)]),
    (dependencies({"members": "memcached", "timeout": "5"}), [Members("memcached", 1, 5.0)]),
    (dependencies({"external": {"tcp": "db.example.org:3306"}}),
     [External("tcp", "db.example.org:3306", 10.0, None)]),
    (dependencies({"external": {"http": "https://[::1]/a?b"}, "interval": "2", "timeout": 9}),
     [External("http", "https://[::1]/a?b", 2.0, 9.0)]),
    (file(), File("a.conf", "/etc/a.conf", None, "0600", False, None, True, None, False)),
    (file(owner="keystone:kolla", perm="0o640", optional=True, mounted="/m/a", template=False, source=["x"]),
     File("a.conf", "/etc/a.conf", "keystone:kolla", "0o640", True, "/m/a", False, None, False)),
    (file(owner=42425, perm="755", optional="yes", template="False"),
     File("a.conf", "/etc/a.conf", "42425", "755", True, None, False, None, False)),
    (file(perm="0640").mode, 0o640),
    (file(owner=None, mounted=None), file()),
    (daemon(ready=None).ready, daemon().ready),
    (daemon(ready={}).ready, daemon().ready),
    (ready(notify=True), Ready("notify", None, 10.0, 5.0, 3)),
    (ready(tcp=5000), Ready("tcp", 5000, 10.0, 5.0, 3)),
    (ready(tcp="5000", interval=1, timeout="2.5", fall=1), Ready("tcp", 5000, 1.0, 2.5, 1)),
    (ready(http="http://[::1]:5000/v3"), Ready("http", "http://[::1]:5000/v3", 10.0, 5.0, 3)),
    (ready(command="mysqladmin ping"), Ready("command", "mysqladmin ping", 10.0, 5.0, 3)),
    (ready(command=["mysqladmin", "ping"]), Ready("command", ("mysqladmin", "ping"), 10.0, 5.0, 3)),
    (ready(alive=3), Ready("alive", 3.0, 10.0, 5.0, 3)),
    (command(succeeds=[0, "1"]).succeeds, (0, 1)),
    (command(succeeds=None).succeeds, (0,)),
    (dependencies({"path": "a/b", "generation": "any"}),
     [Dependency("a/b", "global", None, "any", False, None)]),
    (dependencies({"path": "a/daemon", "generation": "any"}),
     [Dependency("a/daemon", "global", None, None, False, None)]),
    (dependencies({"path": "a/daemon", "generation": "g", "exclusive": True, "count": 3}),
     [Dependency("a/daemon", "global", 3, "g", True, None)]),
    (file(check="nginx -t -c {}", keep_last=True).check, "nginx -t -c {}"),
    (file(check=["nginx", "{}"], keep_last="yes").keep_last, True),
    (daemon(generations=["1", "2"]).generations, ("1", "2")),
    (daemon(on_change={"signal": "HUP"}).on_change, OnChange("signal", "HUP")),
    (daemon(on_change={"signal": "SIGUSR2"}, width="5").on_change, OnChange("signal", "USR2")),
    (daemon(on_change={"command": "reload"}, width=1).on_change, OnChange("command", "reload")),
    (daemon(on_change={"restart": True}).on_change, OnChange("restart", None)),
    (daemon(on_change={"restart": True}, width=2).width, 2),
    (daemon(on_change=None).on_change, None),
    (daemon(election=None).election, None),
    (with_election().election, Election("keystone-api/position", 3, ("db", "--new"), None, 20.0)),
    (with_election(members="5", start="db --new", start_timeout=9, give_up="8").election,
     Election("keystone-api/position", 5, "db --new", 9.0, 8.0)),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), GOOD, ids=range(len(GOOD)))
def test_every_key_has_its_meaning(found: object, expected: object) -> None:
    """Each key, in each of the ways it may be written."""
    assert found == expected


def test_keys_for_schedulers_are_ignored() -> None:
    """Keys that kolla-mesos wrote for Marathon and Chronos, and a file's source."""
    definition = {
        **{"enabled": "x", "container": [{"a": 1}], "task": 5, "openstack_roles": ["controller"], "mem": 512},
        **{"name": SERVICE, "commands": None},
        "service": {
            **{"mem": "{{ x }}", "cpus": None, "instances": {}, "constraints": [[]], "anything": "at all"},
            "daemon": {
                "command": "apache2",
                "reload_signal": "SIGHUP",
                "files": {"a": {"source": 5, "dest": "/a"}},
            },
        },
    }
    assert built(definition).daemon == daemon(files={"a": {"dest": "/a"}})


# -- bad definitions ------------------------------------------------------------------------------

BAD: list[tuple[ANY, list[str]]] = [
    # the definition
    ({}, ["definition:", "nothing to run", "commands", "daemon"]),
    ({"commands": {}, "service": {}}, ["nothing to run"]),
    ({"commands": None, "service": None}, ["nothing to run"]),
    ({"name": "openstack/nova", **with_daemon()}, ["name:", "'openstack/nova'", repr(SERVICE)]),
    ({"name": 5, **with_daemon()}, ["name:", "a number", repr(SERVICE)]),
    ({"name": None, **with_daemon()}, ["name:", "null", repr(SERVICE)]),
    ({"comands": {}, **with_daemon()}, ["comands: unknown key", "'commands'"]),
    ({"commands": ["db_sync"]}, ["commands: expected an object, found a list"]),
    ({"service": "daemon", **with_command()}, ["service: expected an object, found text"]),
    ({"service": {"daemon": "apache2"}}, ["service.daemon: expected an object, found text"]),
    ({"service": {"daemon": None}}, ["service.daemon.command:", "required"]),
    ({"commands": {"a": "true"}}, ["commands.a: expected an object, found text"]),
    # names
    ({"commands": {"daemon": {"command": "a"}}}, ["commands.daemon:", "service"]),
    ({"commands": {"ended": {"command": "a"}}}, ["commands.ended:", "another"]),
    ({"commands": {"election": {"command": "a"}}}, ["commands.election:", "another"]),
    ({"commands": {"a/b": {"command": "a"}}}, ["commands.a/b:", "one segment"]),
    ({"commands": {"": {"command": "a"}}}, ["commands.'':", "one segment"]),
    ({"commands": {"..": {"command": "a"}}}, ["commands...:", "one segment"]),
    ({"commands": {"a\n": {"command": "a"}}}, ["commands.'a\\n':", "one segment"]),
    # unknown and misplaced keys
    (with_command(retires=3), ["commands.db_sync.retires: unknown key", "'retries'"]),
    (with_command(run_onec=True), ["commands.db_sync.run_onec: unknown key", "'run_once'"]),
    (with_command(zzz=True), ["commands.db_sync.zzz: unknown key; nearest is "]),
    (with_daemon(dependancies=[]), ["service.daemon.dependancies: unknown key", "'dependencies'"]),
    (with_command(ready={"tcp": 1}), ["commands.db_sync.ready:", "only allowed in service.daemon"]),
    (with_daemon(run_once=True), ["service.daemon.run_once:", "not allowed here: the daemon"]),
    (with_daemon(generation="g"), ["service.daemon.generation:", "not allowed here: the daemon"]),
    (with_file(destination="/a"), ["commands.db_sync.files.a.conf.destination: unknown key", "'dest'"]),
    # command
    ({"commands": {"a": {}}}, ["commands.a.command:", "required"]),
    ({"commands": {"a": None}}, ["commands.a.command:", "required"]),
    (with_command(command=None), ["commands.db_sync.command: expected text or a list", "found null"]),
    (with_command(command=5), ["commands.db_sync.command: expected text or a list", "found a number"]),
    (with_command(command=""), ["commands.db_sync.command: is empty"]),
    (with_command(command=[]), ["commands.db_sync.command: is empty"]),
    (with_command(command=["", "a"]), ["commands.db_sync.command: is empty"]),
    (with_command(command="echo 'open"), ["commands.db_sync.command:", "quotation"]),
    (with_command(command=["sleep", 5]), ["commands.db_sync.command[1]: expected text, found a number"]),
    (with_command(command="a\0"), ["commands.db_sync.command:", "NUL"]),
    (with_command(command=["a", "\ud800"]), ["commands.db_sync.command[1]:", "surrogate"]),
    # dependencies
    (with_command(dependencies="a/b"), ["commands.db_sync.dependencies: expected a list, found 'a/b'"]),
    (with_command(dependencies={"path": "a/b"}), ["dependencies: expected a list, found an object"]),
    (with_command(dependencies=[5]), ["dependencies[0]: expected an object, found a number"]),
    (with_command(dependencies=[{"count": 1}]), ["dependencies[0].path: is required"]),
    (with_command(dependencies=["mariadb"]), ["[0].path: expected role/command, found 'mariadb'"]),
    (with_command(dependencies=["a/b", "a//b"]), ["dependencies[1].path: expected role/command"]),
    (with_command(dependencies=[{}]), ["dependencies[0].path: is required", "members"]),
    (with_command(dependencies=[{"path": None}]), ["dependencies[0].path: expected text, found null"]),
    (with_command(dependencies=[{"path": "a/b", "scop": "local"}]), ["scop: unknown key", "'scope'"]),
    (with_command(dependencies=[{"path": "a/b", "scope": "host"}]),
     ["scope: expected 'global' or 'local', found 'host'"]),
    (with_command(dependencies=[{"path": "a/b", "scope": None}]), ["scope: expected text, found null"]),
    (with_command(dependencies=[{"path": "a/b", "count": 0}]), ["count: expected a whole number from 1"]),
    (with_command(dependencies=[{"path": "a/b", "count": "two"}]), ["expected a whole number", "'two'"]),
    (with_command(dependencies=[{"path": "a/b", "timeout": 0}]), ["timeout: expected a number of seconds"]),
    (with_command(dependencies=[{"path": "a/b", "generation": 3}]), ["generation: expected text, found 3"]),
    (with_command(dependencies=[{"path": "a/daemon", "exclusive": True}]),
     ["dependencies[0].exclusive: is only allowed on role/daemon, with generation"]),
    (with_command(dependencies=[{"path": "a/b", "generation": "g", "exclusive": True}]),
     ["dependencies[0].exclusive: is only allowed on role/daemon, with generation"]),
    (with_command(dependencies=[{"members": "a", "scope": "local"}]), ["dependencies[0].scope: unknown key"]),
    (with_command(dependencies=[{"members": "/a"}]), ["members: expected the path of a service"]),
    (with_command(dependencies=[{"members": "a", "count": -1}]), ["count: expected a whole number from 1"]),
    (with_command(dependencies=[{"members": None}]), ["members: expected text, found null"]),
    (with_command(dependencies=[{"external": "a:1"}]), ["external: expected an object, found text"]),
    (with_command(dependencies=[{"external": {}}]), ["external: expected one of tcp, http, found none"]),
    (with_command(dependencies=[{"external": None}]), ["external: expected one of tcp, http, found none"]),
    (with_command(dependencies=[{"external": {"tcp": "a:1", "http": "http://a"}}]),
     ["external: expected one of tcp, http, found tcp and http"]),
    (with_command(dependencies=[{"external": {"tpc": "a:1"}}]), ["external.tpc: unknown key", "'tcp'"]),
    (with_command(dependencies=[{"external": {"tcp": "a"}}]), ["external.tcp: expected host:port"]),
    (with_command(dependencies=[{"external": {"tcp": "a:0"}}]), ["external.tcp: expected host:port"]),
    (with_command(dependencies=[{"external": {"tcp": "a:65536"}}]), ["external.tcp: expected host:port"]),
    (with_command(dependencies=[{"external": {"tcp": "::1:80"}}]), ["an IPv6 address in brackets"]),
    (with_command(dependencies=[{"external": {"tcp": 80}}]), ["external.tcp: expected text, found 80"]),
    (with_command(dependencies=[{"external": {"http": "http://a:99999/"}}]),
     ["http: expected http[s]://", "1 to 65535"]),
    (with_command(dependencies=[{"external": {"tcp": "a:1"}, "interval": 0.05}]),
     ["dependencies[0].interval: expected a number of seconds from 0.1"]),
    (with_command(dependencies=[{"external": {"tcp": "a:1"}, "count": 1}]), ["count: unknown key"]),
    # run_once, generation
    (with_command(run_once="hosts"), ['run_once: expected true, false or "host", found \'hosts\'']),
    (with_command(run_once=1), ["run_once: expected true, false", "found 1"]),
    (with_command(run_once=None), ["run_once: expected true, false", "found null"]),
    (with_command(generation="g"), ["commands.db_sync.generation:", "only allowed with run_once"]),
    (with_command(run_once=True, generation=""), ["commands.db_sync.generation: expected the name"]),
    (with_command(run_once=True, generation=2024.1), ["generation: expected text, found 2024.1"]),
    # succeeds
    (with_command(succeeds=[]), ["commands.db_sync.succeeds: is empty: expected exit statuses"]),
    (with_command(succeeds=1), ["commands.db_sync.succeeds: expected a list, found 1"]),
    (with_command(succeeds=[0, 256]), ["succeeds[1]: expected an exit status, a whole number from 0 to 255"]),
    (with_command(succeeds=[True]), ["succeeds[0]: expected an exit status"]),
    (with_command(succeeds=["one"]), ["succeeds[0]: expected an exit status"]),
    (with_daemon(succeeds=[0]), ["service.daemon.succeeds: is not allowed here", "container's"]),
    # env
    (with_command(env=["A=B"]), ["commands.db_sync.env: expected an object, found a list"]),
    (with_command(env={"A": ["b"]}), ["commands.db_sync.env.A: expected text, a number", "found a list"]),
    (with_command(env={"A": {}}), ["commands.db_sync.env.A:", "found an object"]),
    (with_command(env={"A=B": "c"}), ["commands.db_sync.env.A=B: expected the name"]),
    (with_command(env={"": "c"}), ["commands.db_sync.env.'': expected the name"]),
    (with_command(env={"A\0": "c"}), ["env.'A\\x00': holds a NUL"]),
    (with_command(env={"A": "\0"}), ["env.A: holds a NUL"]),
    # numbers, user
    (with_command(retries=-1), ["commands.db_sync.retries: expected a whole number from 0", "found -1"]),
    (with_command(retries="three"), ["commands.db_sync.retries: expected a whole number", "found 'three'"]),
    (with_command(retries=True), ["commands.db_sync.retries: expected a whole number", "found true"]),
    (with_command(retries=None), ["commands.db_sync.retries: expected a whole number", "found null"]),
    (with_command(delay=[]), ["commands.db_sync.delay: expected a number of seconds", "found a list"]),
    (with_command(timeout=0), ["commands.db_sync.timeout: expected a number of seconds", "found 0"]),
    (with_command(timeout=10**12), ["commands.db_sync.timeout: expected a number of seconds"]),
    (with_command(stop_grace="10s"), ["commands.db_sync.stop_grace: expected a number", "found '10s'"]),
    (with_command(user="a b"), ["commands.db_sync.user: expected a user"]),
    (with_command(user=-1), ["commands.db_sync.user: expected text, found -1"]),
    (with_command(user=True), ["commands.db_sync.user: expected text, found true"]),
    # files
    (with_command(files=["a"]), ["commands.db_sync.files: expected an object, found a list"]),
    (with_command(files={"a": None}), ["commands.db_sync.files.a.dest: is required"]),
    (with_command(files={"a": {}}), ["commands.db_sync.files.a.dest: is required"]),
    (with_command(files={"a/b": {"dest": "/a"}}), ["commands.db_sync.files.a/b:", "one segment"]),
    (with_file(dest=None), ["files.a.conf.dest: expected text, found null"]),
    (with_file(dest="etc/a"), ["files.a.conf.dest: expected the absolute path"]),
    (with_file(dest="/etc/"), ["files.a.conf.dest: expected the absolute path"]),
    (with_file(owner="a:b:c"), ["files.a.conf.owner: expected user or user:group"]),
    (with_file(perm=384), ["files.a.conf.perm:", "octal", "number", "quotes"]),
    (with_file(perm=0.5), ["files.a.conf.perm:", "octal", "number", "quotes"]),
    (with_file(perm="0800"), ["files.a.conf.perm: expected octal"]),
    (with_file(perm=None), ["files.a.conf.perm: expected text, found null"]),
    (with_file(mounted="a"), ["files.a.conf.mounted: expected the absolute path"]),
    (with_file(optional=1), ["files.a.conf.optional: expected true or false, found 1"]),
    (with_file(template="maybe"), ["files.a.conf.template: expected true or false, found 'maybe'"]),
    (with_file(check=""), ["files.a.conf.check: is empty"]),
    (with_file(check=5), ["files.a.conf.check: expected text or a list of texts, found a number"]),
    (with_file(keep_last="maybe"), ["files.a.conf.keep_last: expected true or false, found 'maybe'"]),
    # generations, on_change, width
    (with_command(on_change={"signal": "HUP"}), ["db_sync.on_change: is only allowed in service.daemon"]),
    (with_daemon(generations="1"), ["service.daemon.generations: expected a list"]),
    (with_daemon(generations=[]), ["service.daemon.generations: is empty"]),
    (with_daemon(generations=[1]), ["service.daemon.generations[0]: expected text"]),
    (with_daemon(generations=["1", ""]), ["service.daemon.generations[1]: "]),
    (with_daemon(on_change="HUP"), ["service.daemon.on_change: expected an object, found text"]),
    (with_daemon(on_change={}), ["on_change: expected one of signal, command, restart, found none"]),
    (with_daemon(on_change={"signal": "HUP", "restart": True}), ["found signal and restart"]),
    (with_daemon(on_change={"signal": "HPU"}), ["on_change.signal: expected the name of a signal", "'HPU'"]),
    (with_daemon(on_change={"signal": "KILL"}), ["on_change.signal: expected the name of a signal"]),
    (with_daemon(on_change={"signal": 1}), ["on_change.signal: expected text, found 1"]),
    (with_daemon(on_change={"restart": False}), ["on_change.restart: expected true"]),
    (with_daemon(on_change={"command": []}), ["on_change.command: is empty"]),
    (with_daemon(on_change={"sginal": "HUP"}), ["on_change.sginal: unknown key", "'signal'"]),
    # election
    (with_command(election={}), ["db_sync.election: is only allowed in service.daemon"]),
    (election(position="keystone-api/posit"), ["position: this definition has no command", "nearest"]),
    (election(position="other/position"), ["election.position: this definition has no command"]),
    (election(position="keystone-api/once"), ["election.position: keystone-api/once: expected a plain"]),
    (election(position="position"), ["service.daemon.election.position: expected role/command"]),
    (election(members=0), ["service.daemon.election.members: expected a whole number from 1"]),
    (election(start=[]), ["service.daemon.election.start: is empty"]),
    (election(give_up=0), ["service.daemon.election.give_up: expected a number of seconds from 0.001"]),
    (election(start_timeout=0), ["service.daemon.election.start_timeout: expected a number of seconds"]),
    (election(member=3), ["service.daemon.election.member: unknown key", "'members'"]),
    (with_daemon(width=2), ["service.daemon.width: is only allowed with on_change"]),
    (with_daemon(on_change={"signal": "HUP"}, width=0), ["width: expected a whole number from 1"]),
    # ready
    (with_daemon(ready="notify"), ["service.daemon.ready: expected an object, found text"]),
    (with_daemon(ready={"tpc": 1}), ["service.daemon.ready.tpc: unknown key", "'tcp'"]),
    (with_daemon(ready={"interval": 1}), ["service.daemon.ready: expected one of notify, tcp", "found none"]),
    (with_daemon(ready={"tcp": 1, "alive": 1}), ["expected one of notify", "found tcp and alive"]),
    (with_daemon(ready={"notify": False}), ["service.daemon.ready.notify: expected true"]),
    (with_daemon(ready={"notify": 5}), ["service.daemon.ready.notify: expected true or false, found 5"]),
    (with_daemon(ready={"tcp": 65536}), ["service.daemon.ready.tcp:", "from 1 to 65535", "found 65536"]),
    (with_daemon(ready={"tcp": "http"}), ["service.daemon.ready.tcp:", "from 1 to 65535", "found 'http'"]),
    (with_daemon(ready={"http": "localhost"}), ["service.daemon.ready.http: expected http"]),
    (with_daemon(ready={"http": 80}), ["service.daemon.ready.http: expected text, found 80"]),
    (with_daemon(ready={"command": []}), ["service.daemon.ready.command: is empty"]),
    (with_daemon(ready={"command": None}), ["service.daemon.ready.command: expected text", "found null"]),
    (with_daemon(ready={"alive": -1}), ["service.daemon.ready.alive: expected a number of seconds"]),
    (with_daemon(ready={"tcp": 1, "interval": 0}), ["service.daemon.ready.interval: expected a number"]),
    (with_daemon(ready={"tcp": 1, "timeout": 0}), ["service.daemon.ready.timeout: expected a number"]),
    (with_daemon(ready={"tcp": 1, "fall": 0}), ["service.daemon.ready.fall: expected a whole number from 1"]),
    # dependencies inside the definition
    (with_command(dependencies=["keystone-api/db_sync"]), ["db_sync.dependencies:", "depends on itself"]),
    (with_daemon(dependencies=["keystone-api/daemon"]), ["daemon.dependencies:", "depends on itself"]),
    (with_command(dependencies=["keystone-api/frist"]), ["keystone-api/frist:", "has no frist", "'first'"]),
    (with_command(dependencies=["keystone-api/daemon"]), ["keystone-api/daemon:", "has no daemon"]),
    (with_daemon(dependencies=["keystone-api/db_snyc"]), ["service.daemon.dependencies:", "has no db_snyc"]),
    ({**with_command(dependencies=["keystone-api/daemon"]), **with_daemon()},
     ["a cycle: db_sync -> daemon -> db_sync"]),
    (with_command(dependencies=[{"path": "keystone-api/first", "generation": "g"}]), ["has no generations"]),
]  # fmt: skip


@pytest.mark.parametrize(("definition", "words"), BAD, ids=range(len(BAD)))
def test_an_issue_has_a_label_and_says_what_was_expected(definition: ANY, words: list[str]) -> None:
    """One mistake, one issue, which names the key and says what to do."""
    issues = issues_of(definition)
    assert len(issues) == 1
    for word in words:
        assert word in issues[0]


def test_all_issues_are_reported_at_once() -> None:
    """One publication is enough to mend a definition."""
    definition = {
        "name": "other",
        "commands": {
            "a": {"command": "", "retries": "x", "files": {"f": {"dest": "x", "perm": 600}}},
            "b": {"comand": "true"},
        },
        "service": {"daemon": {"dependencies": ["x"], "ready": {"tcp": 0}}},
    }
    labels = [issue.split(": ")[0] for issue in issues_of(definition)]
    assert sorted(labels) == [
        *("commands.a.command", "commands.a.files.f.dest", "commands.a.files.f.perm", "commands.a.retries"),
        *("commands.b.comand", "commands.b.command", "name"),
        *("service.daemon.command", "service.daemon.dependencies[0].path", "service.daemon.ready.tcp"),
    ]


# -- templates ------------------------------------------------------------------------------------

EARLY = {
    "commands.a.dependencies[0].path": "{{ role }}/daemon",
    "commands.a.dependencies[1].scope": "{{ s }}",
    "commands.a.dependencies[1].count": "{{ n }}",
    "commands.a.run_once": "{% if x %}true{% endif %}",
    "commands.a.generation": "{{ tag }}",
    "commands.a.files.f.mounted": "{{ m }}",
    "commands.a.retries": "{{ r }}",
    "commands.a.delay": "{{ r }}",
    "commands.a.timeout": "{{ r }}",
    "commands.a.stop_grace": "{# r #}5",
    "service.daemon.dependencies[0].members": "{{ role }}",
    "service.daemon.dependencies[0].timeout": "{{ n }}",
    "service.daemon.dependencies[1].external.tcp": "{{ e }}:1",
    "service.daemon.dependencies[1].interval": "{{ n }}",
    "service.daemon.ready.interval": "{{ i }}",
}


def test_the_early_templates_are_dependencies_numbers_and_generations() -> None:
    """They are known before rendering, so that their variables are read together. Ignored keys have none."""
    texts = keys.early_texts(load(json.dumps(TEMPLATED).encode()))
    assert {text.label: text.text for text in texts} == EARLY


def test_rendered_numbers_and_dependencies_are_converted() -> None:
    """Text that is a number or a boolean becomes one."""
    found = templated()
    step = found.commands[0]
    assert step.dependencies == (
        Dependency("mariadb/daemon", "global", None, None, False, None),
        Dependency("b/c", "local", 2, None, False, None),
    )
    assert (step.run_once, step.generation) == ("global", "k:1")
    assert (step.retries, step.delay, step.timeout, step.stop_grace) == (7, 7.0, 7.0, 5.0)
    assert found.daemon is not None
    assert found.daemon.inside == (Members("infra/mariadb", 1, 2.0),)
    assert found.daemon.outside == (External("tcp", "[::1]:1", 2.0, None),)
    assert found.daemon.ready == Ready("command", ("ping", "{{ h }}"), 4.0, 5.0, 3)


def test_early_templates_are_found_in_a_bad_definition_too() -> None:
    """So that all issues are reported together when the values are known."""
    definition = {**with_command(retries="{{ r }}", delay=[], wrong=1), "name": 5}
    texts = keys.early_texts(load(json.dumps(definition).encode()))
    assert texts == (Text("commands.db_sync.retries", "{{ r }}"),)
    assert len(issues_of(definition, lambda text: "x")) == 4


def test_a_bad_result_of_a_template_is_an_issue_that_does_not_show_the_value() -> None:
    """The label leads to the template; the value is not shown."""
    issues = issues_of(TEMPLATED, lambda text: "s3cret=\0")
    assert len(issues) == len(EARLY)
    assert "s3cret" not in " ".join(issues)
    assert "commands.a.retries: expected a whole number" in " ".join(issues)


def test_no_message_holds_a_secret_of_the_definition() -> None:
    """Commands, values of variables and URLs are never shown."""
    definition = {
        "commands": {
            "a": {"command": "s3cret 'open", "env": {"A": "s3cret\0"}, "user": "s3 cret"},
            "b": {"command": ["s3cret\0"], "env": {"A": ["s3cret"]}},
            "c": {"command": {"s3cret": 1}, "env": ["s3cret"]},
            "d": {"command": "x", "dependencies": [{"external": {"http": "http://s3cret@host/"}}]},
        },
        "service": {"daemon": {"command": ["", "s3cret"], "ready": {"http": "http://s3cret@host"}}},
    }
    assert len(issues_of(definition)) == 10
    assert "s3" not in " ".join(issues_of(definition))


# -- what kolla-mesos wrote -----------------------------------------------------------------------

# Shapes as its deployer stored them, YAML turned to JSON; the texts are ours.
MESOS_TASK: ANY = {
    "name": SERVICE,
    "enabled": True,
    "openstack_role": "controller",
    "container": {"image": "toolbox:3", "parameters": [{"key": "volume", "value": "logs:/var/log"}]},
    "task": {"mem": 128, "cpus": 0.3},
    "commands": {
        "create": {
            "run_once": True,
            "retries": 3,
            "delay": 5,
            "dependencies": [{"path": "mariadb/daemon"}],
            "command": "ansible localhost -m db -a \"login_password='{{ pw }}' name='ks' priv='ks.*:ALL'\"",
        },
        "user": {
            "run_once": True,
            "dependencies": ["keystone-api/create", "rabbitmq/daemon"],
            "command": "ansible all -m user -a \"auth={{ '{{ token }}' }}\" -e \"{'token':{'a': 'b'}}\"",
        },
    },
}

MESOS_SERVICE: ANY = {
    "name": SERVICE,
    "enabled": True,
    "container": {"image": "keystone:3", "privileged": True, "volumes": [{"mode": "RW"}]},
    "service": {
        "daemon": {
            "command": "memcached -l {{ hostvars[inventory_hostname]['ansible_' + api]['ipv4'] }} -p 1",
            "reload_signal": "SIGHUP",
            "dependencies": [
                {"path": "keystone-api/bootstrap"},
                {"path": "heka/bootstrap", "scope": "local"},
            ],
            "env": {"OS_TOKEN": "password", "KOLLA_BOOTSTRAP": None},
            "files": {
                "keystone.conf.j2": {
                    "source": ["/etc/kolla-mesos/config/global.conf", "config/keystone.conf.j2"],
                    "dest": "/etc/keystone/keystone.conf",
                    "owner": "keystone",
                    "perm": "0600",
                }
            },
        },
        "mem": 512,
        "cpus": 0.5,
        "taskRateLimit": 600.0,
        "instances": 3,
        "constraints": [["hostname", "UNIQUE"], ["openstack_role", "CLUSTER", "controller"]],
    },
    "commands": {
        "extend": {"command": "kolla_extend_start", "files": None, "env": None, "dependencies": None},
        "bootstrap": {
            "run_once": True,
            "command": "bash kolla_extend_start",
            "env": {"KOLLA_BOOTSTRAP": None},
        },
        "disable-netfilter-4": {"command": "echo sudo sysctl net.bridge.bridge-nf-call-iptables=1"},
    },
}


def test_a_task_of_kolla_mesos_works() -> None:
    """Quotes of quotes, and templates that were left inside strings."""
    found = built(MESOS_TASK)
    assert found.daemon is None
    assert [step.run_once for step in found.commands] == ["global", "global"]
    create = resolve(found.commands[0], lambda text: text.text.replace("{{ pw }}", "a b"))
    assert create.argv[-1] == "login_password='a b' name='ks' priv='ks.*:ALL'"
    user = resolve(found.commands[1], lambda text: text.text.replace("{{ '{{ token }}' }}", "{{ token }}"))
    assert user.argv[-3:] == ("auth={{ token }}", "-e", "{'token':{'a': 'b'}}")


def test_a_service_of_kolla_mesos_works() -> None:
    """Scheduler keys, sources, null values and Kolla's own script."""
    found = built(MESOS_SERVICE)
    assert found.daemon is not None
    assert found.daemon.env == (("OS_TOKEN", "password"), ("KOLLA_BOOTSTRAP", ""))
    assert found.daemon.dependencies[1] == Dependency("heka/bootstrap", "local", None, None, False, None)
    assert resolve(found.daemon, lambda text: "memcached -l 10.0.0.1").argv == (
        "memcached",
        "-l",
        "10.0.0.1",
    )
    extend, bootstrap, netfilter = (resolve(step, unrendered) for step in found.commands)
    assert extend.argv == bootstrap.argv
    assert extend.argv[0] == "bash"
    assert extend.argv[-1] == "kolla_extend_start"
    assert netfilter.argv[-1] == "net.bridge.bridge-nf-call-iptables=1"


# -- anything at all ------------------------------------------------------------------------------


def test_an_election_needs_three_keys() -> None:
    """The other two have defaults."""
    issues = issues_of(with_daemon(election={}))
    assert [issue.partition(":")[0].rpartition(".")[2] for issue in issues] == [
        "position",
        "members",
        "start",
    ]
