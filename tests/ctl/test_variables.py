"""`get`, `set` and `unset`, against a real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Create
from kazoo.security import OPEN_ACL_UNSAFE

from tests.conftest import Deployment
from tests.support.publishing import publish
from tests.support.terminal import Terminal
from tests.support.tool import TOOL, ctl, environ, run_ctl

SERVICE = "infra/db"
COMMAND = {"command": "true", "env": {"LEVEL": "{{ level }}"}, "files": {"conf": {"dest": "/conf"}}}


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    """A service whose templates name `level` and `size`."""
    publish(
        deployment,
        SERVICE,
        {"commands": {"sync": COMMAND}, "service": {"daemon": {"command": "true"}}},
        files={"conf": "size = {{ size }}\n"},
        shared={"level": "info", "size": "1"},
    )
    return deployment


def present(zk: KazooClient, site: Deployment, *hosts: str) -> None:
    """Have a container on each host, as its agent would show it."""
    for host in hosts:
        path = f"{site.path}/{SERVICE}/.party/{host}"
        zk.create(path, json.dumps({"host": host}).encode(), ephemeral=True, makepath=True)


def test_get_falls_back_as_an_agent_would(zk: KazooClient, site: Deployment) -> None:
    """Host, service, deployment; where it was found stands beside the value, on standard error."""
    where = [f"{site.path}{place}/size" for place in ("/variables", f"/{SERVICE}/variables")]
    words = ["get", "size", "--service", SERVICE, "--host", "web1"]
    for number, path in enumerate([*where, f"{site.path}/{SERVICE}/variables/web1/size"]):
        zk.ensure_path(path)
        zk.set(path, f"{number}".encode())
        done = ctl(site, *words)
        assert (done.stdout, done.stderr.splitlines()[0]) == (f"{number}\n", f"found at {path}")
    assert ctl(site, "get", "size").stdout == "0\n"
    assert ctl(site, "get", "size", "--service", SERVICE).stdout == "1\n"
    found = json.loads(ctl(site, "get", "size", "--format", "json").stdout)
    assert found == {"name": "size", "value": "0", "path": where[0]}


def test_a_znode_without_data_is_empty(zk: KazooClient, site: Deployment) -> None:
    """As `create PATH` of zkCli makes it; no command of the tool ends with a traceback of it."""
    for path in ("variables/null", f"{SERVICE}/files/null", "status", "status/global", "status/global/db"):
        made = zk.handler.async_result()
        zk._call(Create(f"{site.path}/{path}", None, OPEN_ACL_UNSAFE, 0), made)
        made.get()
    done = ctl(site, "get", "null")
    assert (done.stdout, done.stderr.splitlines()[0]) == ("\n", f"found at {site.path}/variables/null")
    for words in (
        ["status"],
        ["explain"],
        ["timeline"],
        ["graph"],
        ["snapshot", "/dev/null"],
        ["unset", "null"],
    ):
        run_ctl(site, *words)


def test_get_without_a_name_lists_all_with_their_places(zk: KazooClient, site: Deployment) -> None:
    """As an agent would find them there; secrets are hidden, also within other values."""
    for place, name, value in (
        ("variables", "db_password", "s3cret"),
        ("variables", "url", "http://me:s3cret@h"),
        (f"{SERVICE}/variables", "size", "2"),
        (f"{SERVICE}/variables/web1", "level", "debug\n"),
        (f"{SERVICE}/variables/web1", "own", ""),
    ):
        zk.create(f"{site.path}/{place}/{name}", value.encode(), makepath=True)
    shared = {"db_password": "'***'", "level": "'info'", "size": "'1'", "url": "'http://me:***@h'"}
    rows = [line.split(maxsplit=2) for line in ctl(site, "get").stdout.splitlines()]
    assert rows == [[name, value, f"variables/{name}"] for name, value in shared.items()]
    done = ctl(site, "get", "--service", "db", "--host", "web1", "--format", "json")
    assert json.loads(done.stdout) == [
        {"name": "db_password", "value": "***", "origin": "variables/db_password"},
        {"name": "level", "value": "debug\n", "origin": f"{SERVICE}/variables/web1/level"},
        {"name": "own", "value": "", "origin": f"{SERVICE}/variables/web1/own"},
        {"name": "size", "value": "2", "origin": f"{SERVICE}/variables/size"},
        {"name": "url", "value": "http://me:***@h", "origin": "variables/url"},
    ]
    assert "web1" not in ctl(site, "get", "--service", "db").stdout


def test_get_refuses_a_host_that_is_not_known(zk: KazooClient, site: Deployment) -> None:
    """A host is known by a value, a status record or a container; before all of these any host will do."""
    words = ("get", "--service", SERVICE, "--host")
    ctl(site, *words, "node1")
    zk.create(f"{site.path}/{SERVICE}/variables/node-1/size", b"2", makepath=True)
    zk.create(f"{site.path}/status/node-2/db", SERVICE.encode(), makepath=True)
    present(zk, site, "node-3")
    for host in ("node-1", "node-2", "node-3"):
        ctl(site, *words, host)
    for name in ([], ["size"]):
        said = ctl(site, "get", *name, *words[1:], "node1", status=66).stderr
        assert "nothing is recorded of the host 'node1' (did you mean 'node-1'? there are: node-1, " in said


@pytest.mark.parametrize("words", [["get"], ["set"], ["unset"], ["unset", "--force"]])
def test_a_host_is_not_taken_for_a_variable(site: Deployment, words: list[str]) -> None:
    """Nor the reverse: their znodes have the same parent."""
    ctl(site, "set", "size", "2", "--service", SERVICE, "--host", "web1")
    ctl(site, "set", "level", "debug", "--service", SERVICE)
    value = ["3"] if words == ["set"] else []
    said = ctl(site, *words, "web1", *value, "--service", SERVICE, status=64).stderr
    assert f"'web1' is no variable, but a host with values of {SERVICE}" in said
    said = ctl(site, *words, "size", *value, "--service", SERVICE, "--host", "level", status=64).stderr
    assert f"--host: 'level' is no host, but a variable of {SERVICE}" in said


def test_a_host_without_values_is_no_empty_variable(site: Deployment) -> None:
    words = ["size", "--service", SERVICE, "--host", "web1"]
    ctl(site, "set", words[0], "2", *words[1:])
    ctl(site, "unset", *words)
    assert "web1" not in ctl(site, "get", "--service", SERVICE).stdout
    assert "web1 is not set" in ctl(site, "get", "web1", "--service", SERVICE, status=1).stderr


def test_what_is_not_set_ends_with_1_and_names_the_nearest(site: Deployment) -> None:
    done = ctl(site, "get", "levle", "--service", SERVICE, status=1)
    assert f"levle is not set at {site.path}/{SERVICE}/variables/levle, nor at" in done.stderr
    assert "(did you mean 'level'? there are: level, size)" in done.stderr
    assert done.stdout == ""
    assert ctl(site, "get", "nothing", status=1).stderr == (
        f"nothing is not set at {site.path}/variables/nothing (there are: size, level)\n"
    )
    assert "is not set at" in ctl(site, "unset", "level", "--service", SERVICE, status=1).stderr


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([], "/variables/size"),
        (["--service", SERVICE], f"/{SERVICE}/variables/size"),
        (["--service", SERVICE, "--host", "web1"], f"/{SERVICE}/variables/web1/size"),
    ],
)
def test_set_writes_one_place_and_unset_removes_it(
    zk: KazooClient, site: Deployment, words: list[str], place: str
) -> None:
    """Absent parents are made. No value is shown."""
    done = ctl(site, "set", "size", "s3cret", *words)
    assert f"{site.path}{place}" in done.stdout
    assert zk.get(f"{site.path}{place}")[0] == b"s3cret"
    assert "already has this value" in ctl(site, "set", "size", "s3cret", *words).stdout
    gone = ctl(site, "unset", "size", *words, "--force")
    assert not zk.exists(f"{site.path}{place}")
    holds = (
        f"the value of {site.path}/variables/size is used now"
        if words
        else "size no longer has a value for the whole deployment"
    )
    assert holds in gone.stdout
    assert "s3cret" not in done.stdout + done.stderr + gone.stdout + gone.stderr


@pytest.mark.parametrize(
    ("name", "readers"), [("level", SERVICE), ("size", SERVICE), ("other", "no published service")]
)
def test_the_readers_of_a_variable_are_named(site: Deployment, name: str, readers: str) -> None:
    """In its definition, in a file, and nowhere; also if another service is asked for the shared value."""
    ctl(site, "set", "other", "1")
    publish(site, "web", {"commands": {"a": {"command": "true"}}})
    for more in ((), ("--service", "web")):
        done = ctl(site, "get", name, *more)
        assert f"read by {readers}" in done.stderr.splitlines()
        assert "read by" not in done.stdout


def test_set_warns_of_an_untidy_value(site: Deployment) -> None:
    done = ctl(site, "set", "size", "-", given="s3cret\r")
    assert "size ends with a carriage return" in done.stdout + done.stderr
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "value"), [("a b\n", b"a b"), ("a\nb\n", b"a\nb\n"), ("", b""), ("\t", b"\t")]
)
def test_a_value_from_standard_input_is_taken_as_it_is(
    zk: KazooClient, site: Deployment, given: str, value: bytes
) -> None:
    """But for the newline that `echo` and editors put at its end."""
    ctl(site, "set", "size", "-", given=given)
    assert zk.get(f"{site.path}/variables/size")[0] == value
    assert ctl(site, "get", "size").stdout.encode() == value + b"\n"


@pytest.mark.parametrize(
    ("typed", "status", "says", "value"),
    [
        (("s3cret\n", "s3cret\n"), 0, "updated ", b"s3cret"),
        (("s3cret\n", "s3crte\n"), 64, "the two values differ; nothing was changed", b"1"),
        (("s3cret\n", "\x04"), 64, "no value was typed; nothing was changed", b"1"),
        (("\x03",), 128 + signal.SIGINT, "stopped by SIGINT", b"1"),
    ],
    ids=["twice", "another one", "Ctrl-D", "Ctrl-C"],
)
def test_a_terminal_is_asked_for_the_value_and_does_not_show_it(
    zk: KazooClient, site: Deployment, typed: Sequence[str], status: int, says: str, value: bytes
) -> None:
    """So it is asked for twice."""
    with Terminal((sys.executable, str(TOOL), "set", "size", "-"), environ(site)) as terminal:
        for question, answer in zip(("value of size (not shown): ", "the same again: "), typed):
            terminal.shows(question)
            terminal.types(answer)
        assert os.waitstatus_to_exitcode(terminal.ends()) == status
    assert says in terminal.screen
    assert "s3c" not in terminal.screen
    assert zk.get(f"{site.path}/variables/size")[0] == value


@pytest.mark.parametrize("words", [[], ["--service", SERVICE], ["--service", SERVICE, "--host", "web1"]])
def test_an_empty_value_is_a_value(site: Deployment, words: list[str]) -> None:
    """It is said, since a file that could not be read gives one too; the next value updates it."""
    assert "size is empty now: templates get an empty text" in ctl(site, "set", "size", "-", *words).stdout
    assert "already has this value: it is empty" in ctl(site, "set", "size", "", *words).stdout
    done = ctl(site, "set", "size", "2", *words).stdout
    assert done.startswith("updated ") and "empty" not in done


def test_it_says_whom_to_restart(zk: KazooClient, site: Deployment) -> None:
    """Those whose templates name it and who have no nearer value; a running container keeps the old one."""
    present(zk, site, "web1", "web2")
    assert f"restart {SERVICE} to use it: 2 containers on web1, web2" in ctl(site, "set", "size", "2").stdout
    own = ctl(site, "set", "size", "3", "--service", SERVICE, "--host", "web1")
    assert f"restart {SERVICE} to use it: 1 container on web1\n" in own.stdout
    assert "1 container on web2" in ctl(site, "set", "size", "4").stdout
    ctl(site, "set", "size", "5", "--service", SERVICE)
    place = f"{site.path}/{SERVICE}/variables"
    assert ctl(site, "set", "size", "6").stdout.splitlines()[1:] == [
        f"{SERVICE} has its own value at {place}/web1/size, which takes precedence: 1 container on web1",
        f"{SERVICE} has its own value at {place}/size, which takes precedence: 1 container on web2",
    ]
    assert "2 containers" in ctl(site, "set", "level", "debug").stdout
    definition = json.loads(zk.get(f"{site.path}/{SERVICE}")[0])
    definition["service"] = {"daemon": {"command": "true", "on_change": {"signal": "HUP"}}}
    zk.set(f"{site.path}/{SERVICE}", json.dumps(definition).encode())
    followed = ctl(site, "set", "level", "info").stdout
    assert f"{SERVICE} refreshes its files without a restart" in followed
    assert "restart web" not in followed
    other = ctl(site, "set", "levl", "debug")
    assert "restart" not in other.stdout
    assert (
        f"note: no template of a service below {site.path} uses levl (did you mean 'level'?)" in other.stderr
    )
    assert "; `kolla_mesos_ctl unset levl` removes it" in other.stderr


def test_a_value_that_a_service_needs_is_not_removed(zk: KazooClient, site: Deployment) -> None:
    """A restart would end its containers with status 78; by force it is removed, and no restart advised."""
    present(zk, site, "web1", "web2")
    refused = ctl(site, "unset", "size", status=1)
    needs = f"{SERVICE} needs size (file conf line 1)"
    assert f"{needs}: without a value the next start of its containers fails" in refused.stderr
    assert "set another value instead; nothing was changed" in refused.stderr
    assert zk.exists(f"{site.path}/variables/size")
    done = ctl(site, "unset", "size", "--force")
    assert f"{needs} and has no value now: the next start of its containers fails" in done.stdout
    assert "set it again first" in done.stdout and "restart" not in done.stdout
    assert (
        f"{SERVICE} needs level (commands.sync.env.LEVEL line 1)"
        in ctl(site, "unset", "level", status=1).stderr
    )


def test_a_value_that_is_not_needed_goes(zk: KazooClient, site: Deployment) -> None:
    """There is another one, or the template has a default."""
    present(zk, site, "web1", "web2")
    ctl(site, "set", "size", "2", "--service", SERVICE)
    ctl(site, "unset", "size")
    ctl(site, "set", "size", "3", "--service", SERVICE, "--host", "web1")
    only = ctl(site, "unset", "size", "--service", SERVICE, status=1).stderr
    assert f"{SERVICE} on web2 needs size (file conf line 1): " in only
    ctl(site, "set", "size", "4", "--service", SERVICE, "--host", "web2")
    ctl(site, "unset", "size", "--service", SERVICE)
    assert "needs size" in ctl(site, "unset", "size", "--service", SERVICE, "--host", "web2", status=1).stderr
    publish(site, SERVICE, {"commands": {"sync": COMMAND}}, files={"conf": "{{ size | default('') }}"})
    gone = ctl(site, "unset", "size", "--service", SERVICE, "--host", "web2")
    assert f"size no longer has a value for {SERVICE} on web2" in gone.stdout
    assert f"restart {SERVICE} to do without it: 1 container on web2" in gone.stdout


def test_a_host_that_has_never_had_a_container_is_warned_of(zk: KazooClient, site: Deployment) -> None:
    """It may be misspelt; the value is written all the same, since the host may come later."""
    words = ["--service", SERVICE, "--host", "wbe1"]
    assert "warning" not in ctl(site, "set", "size", "1", *words).stderr
    present(zk, site, "web1")
    zk.create(f"{site.path}/status/node-2/db", SERVICE.encode(), makepath=True)
    zk.create(f"{site.path}/status/node-3/other", b"other", makepath=True)
    done = ctl(site, "set", "size", "2", *words)
    assert done.stderr == (
        f"warning: no container of {SERVICE} has ever been on wbe1"
        " (they have been on node-2, web1; did you mean 'web1'?)\n"
    )
    assert done.stdout.splitlines()[1:] == [f"no container of {SERVICE} is on wbe1 now: 1 container on web1"]
    words[-1] = "node-2"
    assert "warning" not in ctl(site, "set", "size", "2", *words).stderr
    words[-1] = "wbe1"
    gone = ctl(site, "unset", "size", *words).stdout
    assert f"the value of {site.path}/variables/size is used now" in gone and "precedence" not in gone


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["get", "a/b"], 64, "VARIABLE: expected a name that can be"),
        (["set", "size", "1", "--host", "web1"], 64, "give --service too"),
        (["set", "size", "1", "--service", "infra/bd"], 66, "did you mean 'infra/db'?"),
        (["get", "size", "--deployment", "siet"], 66, "did you mean 'site'?"),
        (["set", "size"], 64, "--help"),
    ],
)
def test_what_is_wrong_is_named(site: Deployment, words: list[str], status: int, expected: str) -> None:
    """Nothing is written for a typo."""
    assert expected in ctl(site, *words, status=status).stderr


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\nb", "\N{GRINNING FACE}"])
def test_what_can_be_no_znode_is_no_variable(site: Deployment, name: str) -> None:
    """Nor a host, nor a deployment."""
    assert "VARIABLE: expected a name" in ctl(site, "set", name, "1", status=64).stderr
    words = ["get", "size", "--service", SERVICE, "--host", name or "."]
    assert "--host: expected a name" in ctl(site, *words, status=64).stderr
    assert (
        "--deployment: expected a name" in ctl(site, "status", "--deployment", name or ".", status=64).stderr
    )


def test_a_value_that_is_no_text_is_shown_as_it_is(zk: KazooClient, site: Deployment) -> None:
    """Somebody else has written it; what is printed can be kept, and is valid JSON where that is wanted."""
    zk.set(f"{site.path}/variables/size", b"\x00\xff\x1b")
    done = subprocess.run(
        [sys.executable, TOOL, "get", "size"], env=environ(site), capture_output=True, check=True
    )
    assert done.stdout == b"\x00\xff\x1b\n"
    assert json.loads(ctl(site, "get", "size", "--format", "json").stdout)["value"] == "\x00\ufffd\x1b"
    with Terminal((sys.executable, str(TOOL), "get", "size"), environ(site)) as terminal:
        terminal.ends()
    assert r"\x00\xff\x1b" in terminal.screen and "\x1b" not in terminal.screen


def test_a_value_that_is_too_large_is_refused(site: Deployment) -> None:
    """Not more is read than it takes to know."""
    for given in (b"x" * 1_000_001, b"x" * 2_000_000, b"\xff" * 2_000_000):
        assert (
            "longer than ZooKeeper allows (1000000 bytes)"
            in ctl(site, "set", "size", "-", given=given, status=64).stderr
        )
    ctl(site, "set", "size", "-", given=b"x" * 1_000_000 + b"\n")


def test_a_value_that_is_no_text_is_refused(site: Deployment) -> None:
    assert "not UTF-8 text (byte 1)" in ctl(site, "set", "size", os.fsdecode(b"a\xff"), status=64).stderr
    assert "not UTF-8 text (byte 1)" in ctl(site, "set", "size", "-", given=b"a\xff", status=64).stderr


def test_a_service_is_named_by_its_role_too(zk: KazooClient, site: Deployment) -> None:
    """As for `status` and the others; a role of several services is no name."""
    ctl(site, "set", "size", "7", "--service", "db")
    assert zk.get(f"{site.path}/{SERVICE}/variables/size")[0] == b"7"
    assert ctl(site, "get", "size", "--service", "db").stdout == "7\n"
    ctl(site, "unset", "size", "--service", "db")
    publish(site, "other/db", {"commands": {"sync": {"command": "true"}}})
    several = ctl(site, "get", "size", "--service", "db", status=64).stderr
    assert "'db' is the role of several services, give one's name: infra/db, other/db" in several
    assert "is the role of several services" in ctl(site, "rerun", "db/sync", status=64).stderr


def test_a_value_that_is_still_encrypted_is_not_set(deployment: Deployment, tmp_path: Path) -> None:
    """Nothing could use it."""
    done = ctl(deployment, "set", "password", "$ANSIBLE_VAULT;1.1;AES256 3661", status=64)
    assert "the value is still encrypted by ansible-vault" in done.stderr
    (tmp_path / "services").mkdir()
    done = ctl(deployment, "publish", tmp_path, "--set", "password= $ANSIBLE_VAULT;1.1 3661", status=64)
    assert "--set: password is still encrypted by ansible-vault" in done.stderr
