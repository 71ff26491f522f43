"""`manifests marathon --post`: Marathon gets what it lacks, and is waited for; what goes wrong is said."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.invocation import CONNECT_TIMEOUT
from kolla_mesos_start.ctl.manifests import marathon_api, marathon_post
from kolla_mesos_start.ctl.manifests.marathon_api import Rejected
from kolla_mesos_start.errors import AgentError, BadUsage
from tests import CHECKOUT
from tests.ctl.manifests.test_manifests import LAUNCH, site
from tests.support.certificates import Authority
from tests.support.marathon import Answer, Marathon, Request, serving
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

IDS = ["/site/a/agent", "/site/a/look-up", "/site/a/web", "/site/db", "/site/make"]
SECRET = "correct-horse"


@pytest.fixture
def marathon() -> Iterator[Marathon]:
    with serving() as marathon:
        yield marathon


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server decides how long things take; nobody's own user is sent to it."""
    for module in (marathon_api, marathon_post):
        monkeypatch.setattr(module, "TICK", 0.02)
    monkeypatch.setattr(marathon_post, "SETTLE", 0.2)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def post(root: Path, url: str, *words: str) -> int:
    return cli.run(["manifests", "marathon", str(root), "--deployment", "site", "--post", url, *words])


def fails(root: Path, url: str, status: int, *words: str) -> str:
    """Why it fails with this status."""
    with pytest.raises(AgentError) as caught:
        post(root, url, *words)
    assert caught.value.status == status
    return caught.value.reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return site(tmp_path / "site")


# -- what is sent ------------------------------------------------------------------------------------


def test_all_apps_are_created_and_waited_for(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one deployment, whose steps are said once each."""
    marathon.steps = 3
    assert post(root, marathon.url) == 0
    told = capsys.readouterr()
    assert told.out == "".join(f"created {id}\n" for id in IDS) + f"deployed /site to {marathon.url}\n"
    steps = [line.split("s  ", 1)[1] for line in told.err.splitlines() if " s  " in line]
    names = "/site/a/agent, /site/a/look-up, /site/a/web and 2 more"
    assert steps == [
        f"step 1 of 3: StartApplication {names}",
        f"step 2 of 3: ScaleApplication {names}",
        f"step 3 of 3: ScaleApplication {names}",
    ]
    assert sorted(marathon.apps) == IDS
    assert [request.query for request in marathon.requests if request.method == "PUT"] == [
        {"partialUpdate": ["false"]}
    ]


def test_what_has_not_changed_is_not_sent(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though Marathon shows much more of each app than it was sent."""
    post(root, marathon.url)
    capsys.readouterr()
    sent = marathon.sent()
    assert post(root, marathon.url) == 0
    assert capsys.readouterr().out == "unchanged: 5 apps\n"
    assert marathon.sent() == sent


def test_only_what_differs_is_sent(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what others have set of it; in what it differs is said, not its values."""
    post(root, marathon.url)
    marathon.apps["/site/a/web"]["labels"] = {"HAPROXY_GROUP": "external"}
    marathon.apps["/site/a/web"]["env"]["FORMER"] = SECRET
    (root / "launch.yml").write_text(LAUNCH.replace("10Gi", "20Gi").replace("user: 0", "user: 1"))
    capsys.readouterr()
    assert post(root, marathon.url) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:2] == ["changed /site/a/agent: container", "changed /site/a/web: env"]
    assert marathon.sent()[5:] == ["/site/a/agent", "/site/a/web"]
    assert marathon.apps["/site/a/web"]["labels"] == {"HAPROXY_GROUP": "external"}
    assert "FORMER" not in marathon.apps["/site/a/web"]["env"]
    assert SECRET not in told.out + told.err


def test_an_app_that_is_not_sent_need_not_be_healthy(marathon: Marathon, root: Path) -> None:
    """It was not before either."""
    post(root, marathon.url)
    marathon.healthy["/site/db"] = 0
    (root / "launch.yml").write_text(LAUNCH.replace("user: 0", "user: 1"))
    assert post(root, marathon.url) == 0


def test_what_the_directory_has_no_more_is_named_and_left(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a group below; other groups are not looked at."""
    post(root, marathon.url)
    for id in ("/site/old/api", "/site2/other"):
        marathon.apps[id] = {**marathon.apps["/site/db"], "id": id}
        marathon.healthy[id] = 1
    capsys.readouterr()
    assert post(root, marathon.url) == 0
    told = capsys.readouterr()
    assert "left /site/old/api, which is not part of this deployment: remove it if it once was\n" in told.err
    assert "/site2" not in told.err
    assert {"/site/old/api", "/site2/other"} < set(marathon.apps)


def test_a_second_one_waits_for_what_the_first_has_begun(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever was interrupted, or lost the connection, starts it again."""
    marathon.is_held = True
    fails(root, marathon.url, 75, "--timeout", "0.1")
    marathon.is_held = False
    sent = marathon.sent()
    capsys.readouterr()
    assert post(root, marathon.url) == 0
    told = capsys.readouterr()
    assert told.out == f"unchanged: 5 apps\ndeployed /site to {marathon.url}\n"
    assert "step 2 of 2" in told.err
    assert marathon.sent() == sent


def test_a_marathon_below_a_path_is_reached(
    marathon: Marathon, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DC/OS has it."""
    answer = marathon.answer

    def below(request: Request) -> Answer:
        assert request.path.startswith("/service/marathon/v2/")
        return answer(request._replace(path=request.path.removeprefix("/service/marathon")))

    monkeypatch.setattr(marathon, "answer", below)
    assert post(root, f"{marathon.url}/service/marathon/") == 0


# -- how a deployment ends ---------------------------------------------------------------------------


def replaced(marathon: Marathon) -> None:
    """Somebody else forces another version."""
    marathon.deployments.clear()
    app = marathon.apps["/site/db"]
    marathon.deploy([{**app, "instances": 7}])
    marathon.is_held = True


ENDS: dict[str, tuple[Callable[[Marathon], object], str]] = {
    "rolled back": (
        lambda marathon: marathon.cancel(),
        "taken back, or replaced: it did not leave /site/a/agent",
    ),
    "cancelled": (
        lambda marathon: marathon.cancel(is_forced=True),
        "cancelled, or its tasks have ended: healthy are /site/a/agent 0 of 2, ",
    ),
    "superseded": (replaced, "taken back, or replaced, by "),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_deployment_that_somebody_has_stopped_is_a_failure(
    name: str, marathon: Marathon, root: Path
) -> None:
    """Marathon says only that it is gone."""
    stop, expected = ENDS[name]
    marathon.is_held = True

    def polled() -> None:
        if len([request for request in marathon.requests if request.path == "/v2/deployments"]) == 3:
            stop(marathon)

    marathon.polled = polled
    assert expected in fails(root, marathon.url, 1)


def test_after_the_timeout_the_deployment_is_named(marathon: Marathon, root: Path) -> None:
    """And where it stands; it goes on."""
    marathon.is_held = True
    why = fails(root, marathon.url, 75, "--timeout", "0.2")
    (deployment,) = marathon.deployments
    step = "step 1 of 2: StartApplication /site/a/agent, "
    assert why.startswith(f"deployment {deployment['id']} goes on after 0.2 s: {step}")


def test_apps_that_are_locked_are_left_alone(marathon: Marathon, root: Path) -> None:
    """The deployment that locks them is named, and what to do; nothing is forced."""
    post(root, marathon.url)
    marathon.is_held = True
    id = marathon.deploy([{**marathon.apps["/site/db"], "instances": 3}])
    assert fails(root, marathon.url, 75) == (
        f"locked by deployment {id}, nothing was changed: run this again when it has ended, or take it back"
        f" first: curl -X DELETE {marathon.url}/v2/deployments/{id}"
    )
    assert marathon.apps["/site/db"]["instances"] == 3


def test_ctrl_c_leaves_the_deployment_to_marathon(marathon: Marathon, root: Path, tmp_path: Path) -> None:
    """And says so, at once."""
    marathon.is_held = True
    argv = [sys.executable, CHECKOUT / "bin" / "kolla_mesos_ctl", "manifests", "marathon", str(root)]
    process = subprocess.Popen(
        [*map(str, argv), "--deployment", "site", "--post", marathon.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    try:
        eventually(lambda: marathon.deployments and len(marathon.requests) > 4, "it waits")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    (deployment,) = marathon.deployments
    assert process.returncode == 130
    assert f"\ndeployment {deployment['id']} goes on: run this again to wait for its end\n" in said
    assert said.endswith("kolla_mesos_ctl: stopped by SIGINT\n")


# -- while nobody leads ------------------------------------------------------------------------------


class Clock:
    """A clock on which each pause takes as long as a connection may."""

    def __init__(self) -> None:
        self._later = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._later

    def sleep(self, seconds: float) -> None:
        self._later += CONNECT_TIMEOUT


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each pause between two requests take as long as a connection may, without waiting for it."""
    monkeypatch.setattr(marathon_api, "time", Clock())


def electing(marathon: Marathon, method: str, path: str, heeded: bool = False) -> None:
    """The first three such requests meet no leader; `heeded`: but it had got them."""
    left = [3]
    first = marathon.first

    def answer(request: Request) -> Answer | None:
        if request.method != method or not request.path.startswith(path) or not left[0]:
            return None
        left[0] -= 1
        if heeded:
            marathon.first = first
            marathon.answer(request)
        return Answer(503, b"<html>no leader</html>", {"Content-Type": "text/html"})

    marathon.first = answer


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2/groups"), ("PUT", "/v2/apps"), ("GET", "/v2/deployments")]
)
def test_an_election_is_waited_for(
    method: str, path: str, marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whenever it comes; it is said once."""
    electing(marathon, method, path)
    assert post(root, marathon.url) == 0
    told = capsys.readouterr()
    assert told.err.count("status 503, as while a leader is elected; trying again") == 1
    assert told.out.startswith("created /site/a/agent\n")
    assert sorted(marathon.apps) == IDS


def test_a_connection_that_is_lost_is_made_again(marathon: Marathon, root: Path) -> None:
    """Half an answer is none."""
    half = [
        Answer(200, b'{"id": "/site", ', {"Content-Length": "500"}),
        Answer(200, b"", {"Content-Length": "9"}),
    ]
    marathon.first = lambda request: half.pop() if half else None
    assert post(root, marathon.url) == 0


@pytest.mark.usefixtures("long_pauses")
def test_an_election_may_take_longer_than_a_connection(marathon: Marathon, root: Path) -> None:
    """Somebody has answered; the limit is that of the deployment."""
    electing(marathon, "GET", "/v2/groups")
    assert post(root, marathon.url) == 0


def test_what_was_heeded_without_an_answer_is_not_sent_again(marathon: Marathon, root: Path) -> None:
    """It would be locked by itself."""
    electing(marathon, "PUT", "/v2/apps", heeded=True)
    assert post(root, marathon.url) == 0
    assert len({json.dumps(request.body) for request in marathon.requests if request.method == "PUT"}) == 1
    assert sorted(marathon.apps) == IDS


@pytest.mark.usefixtures("long_pauses")
def test_an_election_without_end_is_one_of_no_connection(marathon: Marathon, root: Path) -> None:
    """With what was met last."""
    marathon.first = lambda request: Answer(503)
    why = fails(root, marathon.url, 69, "--timeout", "30")
    assert why.startswith(f"no answer from Marathon at {marathon.url}: status 503")


def test_a_deployment_that_a_new_leader_does_not_know_yet_has_not_ended(
    marathon: Marathon, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads its deployments first."""
    asked = [0]

    def forgetful(request: Request) -> Answer | None:
        if request.path == "/v2/deployments":
            asked[0] += 1
            return Answer(200, []) if asked[0] == 2 else None
        return None

    marathon.first, marathon.steps = forgetful, 3
    assert post(root, marathon.url) == 0
    assert "step 3 of 3" in capsys.readouterr().err


# -- whom it refuses ---------------------------------------------------------------------------------


def netrc(tmp_path: Path, text: str, mode: int = 0o600) -> None:
    path = tmp_path / "home" / ".netrc"
    path.write_text(text)
    path.chmod(mode)


def test_the_user_is_that_of_netrc(marathon: Marathon, root: Path, tmp_path: Path) -> None:
    """By the host's name."""
    marathon.credentials = ("kolla", SECRET)
    netrc(tmp_path, f"machine 127.0.0.1 login kolla password {SECRET}\n")
    assert post(root, marathon.url) == 0


DENIED = {
    "no user": (
        "machine other login kolla password x\n",
        "refuses it with status 401: give a user in ~/.netrc: machine 127.0.0.1 login USER password PASSWORD",
    ),
    "a wrong password": (
        "machine 127.0.0.1 login kolla password wrong-horse\n",
        "refuses it with status 401: has the user of ~/.netrc the right?",
    ),
}


@pytest.mark.parametrize("name", DENIED)
def test_who_has_no_right_is_told_what_is_missing(
    name: str, marathon: Marathon, root: Path, tmp_path: Path
) -> None:
    """Never by its password."""
    marathon.credentials = ("kolla", SECRET)
    text, expected = DENIED[name]
    netrc(tmp_path, text)
    why = fails(root, marathon.url, 77)
    assert expected in why and "horse" not in why


def test_its_certificate_must_be_of_a_ca_that_is_trusted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the password would be anybody's; SSL_CERT_FILE is Python's own variable."""
    authority = Authority(tmp_path)
    authority.issue("server")
    netrc(tmp_path, f"machine 127.0.0.1 login kolla password {SECRET}\n")
    with serving(tmp_path / "server-both.pem") as marathon:
        why = fails(root, marathon.url, 69)
        assert marathon.url in why and "SSL_CERT_FILE names the CAs that are trusted" in why
        assert marathon.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert post(root, marathon.url) == 0


# -- what it does not take ---------------------------------------------------------------------------


def test_what_marathon_rejects_is_said_with_its_reasons(
    marathon: Marathon, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words, as far as a terminal takes them."""
    details = [{"path": "/0/id", "errors": ["must be\x1b[2J lowercase"]}, {"errors": ["x" * 2000]}]
    rejected = Answer(422, {"message": "Object is not valid", "details": details})
    marathon.first = lambda request: rejected if request.method == "PUT" else None
    with pytest.raises(Rejected) as caught:
        post(root, marathon.url)
    assert caught.value.status == 65
    first, second, third = caught.value.issues
    assert (first, second) == ("Object is not valid", "/0/id: must be [2J lowercase")
    assert len(third) < 600


# -- what is no Marathon -----------------------------------------------------------------------------


FOREIGN: dict[str, tuple[Callable[[], Answer], str]] = {
    "a page": (lambda: Answer(200, b"<html>", {"Content-Type": "text/html"}), "text/html that is no JSON"),
    "another document": (lambda: Answer(200, []), "JSON without a mapping where one belongs"),
    "apps without ids": (lambda: Answer(200, {"apps": [{"id": 1}]}), "JSON without a text where one belongs"),
    "nothing": (lambda: Answer(200, b""), "application/json that is no JSON"),
    "too deep": (lambda: Answer(200, b"[" * 100000), "application/json that is no JSON"),
    "a failure": (lambda: Answer(500, b"out of\nmemory\xff"), "status 500: out of memory"),
    "another place": (
        lambda: Answer(307, b"", {"location": "https://u:secret@login.example.org/?token=secret"}),
        "redirects to https://login.example.org, which is not followed",
    ),
    "a bad place": (lambda: Answer(302, b"", {"Location": "http://[secret"}), "no URL"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_answer_of_marathons_is_said(name: str, marathon: Marathon, root: Path) -> None:
    """With the URL, which may be the mistake, and without a secret."""
    answer, expected = FOREIGN[name]
    marathon.first = lambda request: answer()
    why = fails(root, marathon.url, 69)
    assert marathon.url in why and expected in why and "secret" not in why
    assert len(marathon.requests) == 1


def test_a_server_without_an_answer_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds, here one, by its URL."""
    monkeypatch.setattr(marathon_api, "CONNECT_TIMEOUT", 1.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert fails(root, url, 69).startswith(f"no answer from Marathon at {url}: ")


@pytest.mark.usefixtures("long_pauses")
def test_a_port_that_nobody_listens_on_is_given_up(root: Path) -> None:
    """Tried again until then: it may be about to start."""
    url = f"http://127.0.0.1:{free_port()}"
    assert "Connection refused" in fails(root, url, 69)


# -- bad usage ---------------------------------------------------------------------------------------

URL = "--post: expected http://HOST:8080"
REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing": (["--post", ""], URL),
    "no scheme": (["--post", "marathon:8080"], URL),
    "another scheme": (["--post", "ftp://marathon"], URL),
    "no host": (["--post", "http://"], URL),
    "a bad port": (["--post", "http://marathon:port"], URL),
    "a bad host": (["--post", "http://[::1"], URL),
    "a long host": (["--post", f"http://{'m' * 64}"], URL),
    "a query": (["--post", f"http://marathon/?token={SECRET}"], URL),
    "a line break": (["--post", "http://marathon/a\nb"], URL),
    "a password": (["--post", f"http://kolla:{SECRET}@marathon"], "belong in ~/.netrc"),
    "files too": (["--post", "http://marathon", "--output", "x"], "not allowed with argument"),
    "a time without --post": (["--timeout", "5"], "--timeout limits how long --post waits: give --post too"),
    "a time": (["--post", "http://marathon", "--timeout", "soon"], "--timeout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_usage_is_refused_before_anything_else(name: str) -> None:
    """The directory is not even there; what may be a secret is not said again."""
    words, expected = REFUSED[name]
    with pytest.raises(BadUsage) as caught:
        cli.run(["manifests", "marathon", "/nowhere", *words])
    assert expected in caught.value.reason
    assert SECRET not in caught.value.reason


def test_other_formats_are_not_posted() -> None:
    """There is no API that they would go to."""
    with pytest.raises(BadUsage, match="--post is only for marathon, not for kubernetes"):
        cli.run(["manifests", "kubernetes", "/nowhere", "--post", "http://marathon"])


def test_a_mistake_in_the_directory_is_found_before_marathon_is_asked(marathon: Marathon, root: Path) -> None:
    """As without --post."""
    (root / "launch.yml").write_text(LAUNCH.replace("zookeeper: zk-1:2181\n", ""))
    fails(root, marathon.url, 65)
    assert marathon.requests == []
