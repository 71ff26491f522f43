"""TLS that isn't right: whole agents, and the operator's tool, against real servers that are secured.

Whatever the mistake is, both end soon, and the last line names it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kolla_mesos_start.zookeeper.tls import make_context
from tests.agent.test_files import Home
from tests.agent.test_files import home as home
from tests.conftest import Deployment
from tests.support.agents import Containers
from tests.support.certificates import certify
from tests.support.peer import SILENT, Peer
from tests.support.secured import JAVA, connect_with_tls, shows
from tests.support.tool import run_ctl
from tests.support.waiting import LIMIT as WAIT
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, Server, free_port

LIMIT, MORE = 1.0, 10.0  # seconds: KOLLA_ZK_CONNECT_TIMEOUT, and what the end may take besides
# The default before 3.9, which allows only TLS 1.3.
ONLY_1_2 = {"ssl.protocol": "TLSv1.2", "ssl.enabledProtocols": "TLSv1.2"}
ONLY_1_3 = {
    "ssl.protocol": "TLSv1.3",
    "ssl.enabledProtocols": "TLSv1.3",
    "ssl.ciphersuites": "TLS_AES_128_GCM_SHA256",
}
# For a certificate with another kind of key than the server has: it agrees on nothing with anybody.
NO_CIPHER = {**ONLY_1_2, "ssl.ciphersuites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}
AT_MOST_1_2 = """\
openssl_conf = all
[all]
ssl_conf = parts
[parts]
system_default = limits
[limits]
MaxProtocol = TLSv1.2
"""
PEERS = {"another program": b"HTTP/1.1 400 Bad Request\r\n\r\n", "silence": SILENT}
GOOD = ("ca.pem", "client.pem", "client.key")
ROLES = ("KOLLA_ZK_CA", "KOLLA_ZK_CERT", "KOLLA_ZK_KEY")


class Places:
    """Where a client may be sent: each is started when it is first wanted, and has a port of its own.

    `directory` holds the files of `certify`.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        self._ports: dict[str, int] = {}
        certify(directory)
        (directory / "limited.cnf").write_text(AT_MOST_1_2)

    def port(self, place: str) -> int:
        if place not in self._ports:
            self._ports.update(self._start(place))
        return self._ports[place]

    def _start(self, place: str) -> Mapping[str, int]:
        if place in PEERS:
            peer = Peer(PEERS[place]).start()
            self._stack.callback(peer.stop)
            return {place: peer.port}
        settings = {"only 1.3": ONLY_1_3, "no cipher": NO_CIPHER}.get(place, ONLY_1_2)
        certificate = "expired-server-both.pem" if place == "expired" else "server-both.pem"
        port = free_port()
        server = Server(
            self.directory / place.replace(" ", "-"),
            settings={**shows(self.directory, certificate, "ca.pem"), "secureClientPort": port, **settings},
            java=JAVA,
        )
        self._stack.enter_context(server)
        # The first handshake takes such a server a second.
        context = make_context(*(str(self.directory / name) for name in GOOD))
        with suppress(OSError), connect_with_tls(context, (HOST, port), WAIT, HOST):
            pass
        return {place: port, "plain": server.port}

    def environ(self, mistake: Mistake) -> dict[str, str]:
        files = {role: str(self.directory / name) for role, name in zip(ROLES, mistake.files) if name}
        if mistake.limited:
            files["OPENSSL_CONF"] = str(self.directory / "limited.cnf")
        return {"KOLLA_ZK_HOSTS": f"{mistake.host}:{self.port(mistake.place)}", **files}


class Mistake(NamedTuple):
    """What is wrong, by the files of KOLLA_ZK_CA, KOLLA_ZK_CERT and KOLLA_ZK_KEY, and what is said of it.

    `limited`: the client's OpenSSL does not know TLS 1.3.
    """

    why: str
    files: tuple[str, ...] = GOOD
    place: str = "good"
    host: str = HOST
    limited: bool = False


BAD_ENVIRONMENT = 64
REFUSED = "the server refuses the certificate in KOLLA_ZK_CERT"
WANTED = "the server wants a client certificate: set KOLLA_ZK_CERT"
PERHAPS_REFUSED, PERHAPS_WANTED = (why.replace("the server ", "") for why in (REFUSED, WANTED))
DISAGREE = "the server and this host have no TLS version or cipher in common"
EXPIRED_CLIENT = ("ca.pem", "expired-client.pem", "expired-client.key")
MISTAKES: Mapping[str, Mistake] = {
    "another CA": Mistake("certificate is not signed by a CA in KOLLA_ZK_CA", ("stranger.pem", *GOOD[1:])),
    "another name": Mistake("is for another host than KOLLA_ZK_HOSTS names", host="localhost"),
    "an expired server": Mistake("the server's certificate has expired", place="expired"),
    "an expired client": Mistake(REFUSED, EXPIRED_CLIENT),
    # The client has sent more by then, so that the server's alert may be lost: it is a guess among others.
    "an expired client, TLS 1.3": Mistake(PERHAPS_REFUSED, EXPIRED_CLIENT, "only 1.3"),
    "a stranger's certificate": Mistake(REFUSED, ("ca.pem", "stranger.pem", "stranger.key")),
    "a stranger's certificate, TLS 1.3": Mistake(
        PERHAPS_REFUSED, ("ca.pem", "stranger-both.pem"), "only 1.3"
    ),
    "no certificate": Mistake(WANTED, ("ca.pem",)),
    "no certificate, TLS 1.3": Mistake(PERHAPS_WANTED, ("ca.pem",), "only 1.3"),
    "no TLS": Mistake("its port is for TLS (set KOLLA_ZK_CA)", ()),
    "TLS to a plain port": Mistake("its port is not for TLS (expected its secureClientPort)", place="plain"),
    "TLS to another program": Mistake("the port does not speak TLS", place="another program"),
    "no answer": Mistake("(KOLLA_ZK_CONNECT_TIMEOUT): no answer in time", place="silence"),
    "another version": Mistake(DISAGREE, place="only 1.3", limited=True),
    "another cipher": Mistake(DISAGREE, place="no cipher"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(tmp_path_factory.mktemp("tls"), stack)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_an_agent_says_what_is_wrong(places: Places, containers: Containers, mistake: Mistake) -> None:
    """In its last line and to the launcher; `process/test_tls.py` owns each file's message."""
    environ = places.environ(mistake)
    begun = time.monotonic()
    agent = containers.start("web", **environ, KOLLA_ZK_CONNECT_TIMEOUT=f"{LIMIT:g}")
    assert agent.ends() == 69
    assert time.monotonic() - begun < MORE + LIMIT
    assert mistake.why in agent.ending["reason"]
    assert json.loads((agent.directory / "termination-log").read_text()) == agent.ending
    assert agent.ending["retriable"]


def test_the_operator_is_told_what_is_wrong(places: Places, deployment: Deployment) -> None:
    """The same words."""
    environ = places.environ(MISTAKES["another name"])
    done = run_ctl(deployment, "status", **environ, KOLLA_ZK_CONNECT_TIMEOUT=f"{LIMIT:g}")
    assert done.returncode == 69, done.stderr
    assert "is for another host than --hosts or KOLLA_ZK_HOSTS names" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("place", "limited"), [("good", False), ("good", True), ("only 1.3", False)])
def test_what_is_right_is_accepted(places: Places, deployment: Deployment, place: str, limited: bool) -> None:
    """The servers above are refused, or refuse, for nothing but these mistakes."""
    environ = places.environ(Mistake("", place=place, limited=limited))
    done = run_ctl(deployment, "status", **environ)
    assert (done.returncode, "no deployment" in done.stderr) == (66, True), done.stderr


def test_a_key_that_only_others_can_read_is_a_bad_environment(
    places: Places, containers: Containers, home: Home
) -> None:
    """The user of the image is not always the one who has mounted the file."""
    files = {}
    for role, name in zip(ROLES, GOOD):
        path = home.path / name
        path.write_bytes((places.directory / name).read_bytes())
        path.chmod(0o644)
        files[role] = str(path)
    Path(files["KOLLA_ZK_KEY"]).chmod(0o600 if os.geteuid() == 0 else 0)
    agent = containers.start("web", under=home.launcher, **home.environ, **files)
    assert agent.ends(MORE) == BAD_ENVIRONMENT
    said = f"KOLLA_ZK_KEY is {files['KOLLA_ZK_KEY']!r}: expected a file that this user can read"
    assert said in agent.ending["reason"]


def test_what_is_wrong_is_said_while_it_is_tried_again(places: Places, containers: Containers) -> None:
    """In the log, and to the probes, where no limit is set."""
    mistake = MISTAKES["another CA"]
    agent = containers.start("web", **places.environ(mistake))
    why = f"the server's {mistake.why}"
    where = f"a connection to ZooKeeper at {agent.environ['KOLLA_ZK_HOSTS']}: {why}"
    agent.says(f"can't connect to ZooKeeper at {agent.environ['KOLLA_ZK_HOSTS']} ({why}")
    eventually(lambda: f"waiting for {where}" in agent.health().stdout, "health says it")
