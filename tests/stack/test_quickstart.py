"""bin/quickstart as a stranger calls it: from a fresh checkout, with and without a terminal, and interrupted.

The checkout is a copy, made once; its environment is made once too, by the first test that needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.conftest import Deployment
from tests.support.quickstarts import Quickstart, Size, checkout_in
from tests.support.waiting import eventually
from tests.support.zookeeper import Server

CONTAINERS = ("api@web-1", "api@web-2", "api@web-3", "database@db-1", "front@edge-1", "worker@work-1")
FAILED = 70  # what AgentError ends with

# The first one waits for a virtual environment.
pytestmark = pytest.mark.timeout(600)


Start = Callable[..., Quickstart]


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """A checkout that nobody has touched yet, in a place with an awkward name."""
    place = Path(tempfile.mkdtemp(prefix="q 'ü\\-"))
    yield checkout_in(place)
    shutil.rmtree(place)


@pytest.fixture
def start(checkout: Path) -> Iterator[Start]:
    """Starts quickstarts (`start(*arguments)`), and ends them."""
    started: list[Quickstart] = []

    def one(*arguments: str, **more: Any) -> Quickstart:
        started.append(Quickstart(checkout, *arguments, **more))
        return started[-1]

    yield one
    for each in started:
        each.close()


def files(checkout: Path) -> set[Path]:
    """All that lies in the checkout and beside it, but for the quickstart's own directory."""
    return {path for path in checkout.parent.rglob("*") if ".quickstart" not in path.parts}


@pytest.mark.parametrize(
    ("moment", "signum", "status"),
    [
        ("virtual environment", signal.SIGINT, 130),
        ("containers at once", signal.SIGTERM, 143),
        ("daemon waits for api", signal.SIGHUP, 129),
        ("starting", signal.SIGKILL, -9),
    ],
)
def test_an_interruption_leaves_nothing(
    start: Start, checkout: Path, moment: str, signum: int, status: int
) -> None:
    """No process, and no file outside its directory; also after SIGKILL, when none is left to clean up."""
    before = files(checkout)
    quickstart = start()
    quickstart.says(moment)
    quickstart.signal(signum)
    assert quickstart.ends() == status, quickstart.said
    assert "Traceback" not in quickstart.said
    eventually(lambda: not quickstart.left(), "nothing is left")
    assert files(checkout) == before


@pytest.mark.parametrize(
    ("seconds", "signums"),
    [
        (0.4, [signal.SIGINT, signal.SIGINT]),
        (1.3, [signal.SIGTERM, signal.SIGINT]),
        (2.0, [signal.SIGINT, signal.SIGINT]),
    ],
    ids=str,
)
def test_an_interruption_at_any_instant_leaves_nothing(
    start: Start, checkout: Path, seconds: float, signums: list[int]
) -> None:
    """Wherever it is by then; also a second signal while it ends. The tests below are the next runs."""
    before = files(checkout)
    begun = time.monotonic()
    quickstart = start(terminal=Size(80, 24))
    eventually(lambda: time.monotonic() - begun >= seconds, "the instant has come", every=0.001)
    for signum in signums:
        with suppress(ProcessLookupError):  # The first was enough.
            quickstart.signal(signum)
    status = quickstart.ends()
    # Of several that have come together the kernel chooses; once all are up each is a good end.
    by_signal = {sign for signum in signums for sign in (-signum, 128 + signum)}
    assert status in by_signal or "Where to find things" in quickstart.said, quickstart.said
    assert "Traceback" not in quickstart.said
    eventually(lambda: not quickstart.left(), "nothing is left")
    assert files(checkout) == before


def test_an_interruption_is_heard_while_zookeeper_hangs(start: Start) -> None:
    """Publishing would wait for it."""
    quickstart = start()
    quickstart.says("publish")
    os.kill(quickstart.zookeeper(), signal.SIGSTOP)
    quickstart.signal(signal.SIGINT)
    assert quickstart.ends() == 130
    assert not quickstart.left()


def test_without_a_terminal_it_ends_by_itself(start: Start, checkout: Path) -> None:
    """A line for each change, the timeline, and where things lie."""
    before = files(checkout)
    quickstart = start()
    assert quickstart.ends() == 0, quickstart.said
    said = quickstart.said
    assert "\x1b" not in said
    changes, _, rest = said.partition("the timeline of the start")
    drawn, _, places = rest.partition("Where to find things")
    for container in CONTAINERS:
        assert re.search(rf"\d\.\d\d s  {container} +ready\n", changes)
        assert re.search(rf"{container} +[.#+]+=*\n", drawn)
    assert "daemon waits for api/daemon: 0 of 1 instances ready" in changes
    assert re.search(r"\n\* database/daemon \(db-1\) .*\n\* api/schema \(web-\d\) ", drawn)
    replicas = re.findall(r"\n(.) api/daemon \(web-\d\) +[\d.]+ +([\d.]+) ", drawn)
    ends = {float(end) for _, end in replicas}
    # The worker wants one replica, the front all three: the path goes through the one that came last.
    decided = min(ends) if "\n* worker/daemon" in drawn else max(ends)
    assert [float(end) for mark, end in replicas if mark == "*"] == [decided]
    paths = re.findall(r"\S+/site/\S+/", places)
    assert len(paths) == len(CONTAINERS) and all((checkout / path / "log").is_file() for path in paths)
    assert "What to try next" not in places
    assert not quickstart.left()
    assert files(checkout) == before


def test_on_a_terminal_it_stays_and_what_it_says_works(start: Start, checkout: Path) -> None:
    """A live view; then each command that it names does what it says; Ctrl-C is a good end."""
    before = files(checkout)
    quickstart = start(terminal=Size(100, 30))
    mode = termios.tcgetattr(quickstart.ours)
    quickstart.says("-- up")
    assert re.search(r"front@edge-1 +waiting +\d+\.\d s  daemon for api/daemon: [0-2] of 3", quickstart.said)
    last = quickstart.said.partition("-- the timeline")[0].rpartition("\x1b[2K")[2]
    assert re.findall(r"(\S+@\S+) +(\w+)", last) == [(name, "ready") for name in CONTAINERS]
    assert re.findall(r"\n(?:-- )?(the timeline|Where|What|up; Ctrl-C)", quickstart.said) == [
        *("the timeline", "Where", "What", "up; Ctrl-C")
    ]
    load, kill, health, status, tool = what_to_try(quickstart)
    assert health.endswith("  # api@web-1")
    done = shell(quickstart, f"{load}; {health}")
    assert (done.returncode, done.stdout.partition(" ")[0].rstrip()) == (0, "ready")
    assert "3 of 3 ready" in shell(quickstart, f"{load}; {status}").stdout
    assert shell(quickstart, f"{load}; {tool}").returncode == 0
    assert shell(quickstart, f"{load}; kolla_mesos_ctl get api_replicas").stdout == "3\n"
    does_a_job(quickstart)
    assert shell(quickstart, kill).returncode == 0
    stays = quickstart.said.index("-- up")
    again = r"(?s)api@web-1 +ended +by signal 9\n.*api@web-1 +ready\n"
    eventually(lambda: re.search(again, quickstart.said[stays:]), "it has ended, and is ready again")
    os.kill(quickstart.zookeeper(), signal.SIGKILL)
    again = r"(?s)ZooKeeper +away +no connection\n.*ZooKeeper +back\n"
    eventually(lambda: re.search(again, quickstart.said[stays:]), "it is started again too")
    assert quickstart.said.count("api@web-1            ended") == 1, "which ends no daemon"
    quickstart.types(b"\x03")
    assert quickstart.ends() == 0
    assert quickstart.said.endswith("^C\n-- ending all containers\n")
    assert quickstart.said.count("\x1b[?25l") == quickstart.said.count("\x1b[?25h"), (
        "the cursor is shown again"
    )
    assert termios.tcgetattr(quickstart.ours) == mode
    assert not quickstart.left()
    assert files(checkout) == before


def what_to_try(quickstart: Quickstart) -> list[str]:
    """The commands that it suggests, none of them too long for a line."""
    lines = quickstart.said.partition("What to try next")[2].partition("\n\n")[0].splitlines()[1:]
    assert all(len(line) <= 80 for line in lines)
    return lines


def does_a_job(quickstart: Quickstart) -> None:
    """Through the front, by the worker."""
    address = re.search(r"front@edge-1 .* (127\.0\.0\.1:\d+)\n", quickstart.said)
    assert address is not None
    url = f"http://{address[1]}/jobs"
    job = asked(url, b"good morning")
    result = eventually(lambda: asked(f"{url}/{job['job']}")["result"], "the worker has done its job")
    assert result == hashlib.sha256(b"good morning").hexdigest()


def asked(url: str, text: bytes | None = None) -> dict[str, Any]:
    """The answer to a GET, or to a POST of `text`."""
    with urllib.request.urlopen(url, text, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def shell(quickstart: Quickstart, line: str) -> subprocess.CompletedProcess[str]:
    """What happens when the line is typed in the checkout."""
    return subprocess.run(
        ["sh", "-c", line], cwd=quickstart.checkout, capture_output=True, text=True, timeout=60
    )


def test_a_second_one_in_the_same_directory_is_refused(start: Start) -> None:
    """It would remove what the first one is using."""
    first = start()
    first.says("containers at once")
    second = start()
    assert second.ends() == 1
    assert "another quickstart runs in" in second.said
    first.signal(signal.SIGINT)
    assert first.ends() == 130


def test_a_directory_of_somebody_elses_is_refused(start: Start, tmp_path: Path) -> None:
    """What is removed at each start has to be ours."""
    (tmp_path / "site").mkdir()
    quickstart = start(str(tmp_path))
    assert quickstart.ends() == 1
    assert "is not empty" in quickstart.said
    assert os.listdir(tmp_path) == ["site"]


def test_a_directory_that_can_not_be_written_is_refused(start: Start, tmp_path: Path) -> None:
    """Before anything is made, and by what there is to do."""
    (tmp_path / "file").touch()
    quickstart = start(str(tmp_path / "file" / "q"))
    assert quickstart.ends() == 1
    assert quickstart.said.endswith("file/q can't be written: choose another DIRECTORY\n")
    assert quickstart.said.count("\n") == 1


def test_packages_that_can_not_be_installed_name_the_index(start: Start, tmp_path: Path) -> None:
    """The last lines of pip are about versions that conflict, whatever has happened."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    quickstart = start(str(tmp_path / "home"), environ=offline)
    assert quickstart.ends() == 1
    assert "PIP_INDEX_URL names another index" in quickstart.said.splitlines()[-1]


def test_the_end_of_zookeeper_ends_the_start(start: Start) -> None:
    """No container would ever be ready; it says so at once, and leaves nothing."""
    quickstart = start()
    quickstart.says("daemon waits for api")
    os.kill(quickstart.zookeeper(), signal.SIGKILL)
    assert quickstart.ends() == FAILED
    assert "ZooKeeper has ended" in quickstart.said
    assert not quickstart.left()


def test_an_ensemble_that_goes_away_is_shown_and_named_in_the_end(
    start: Start, deployment: Deployment, zookeeper: Server
) -> None:
    """What is left in it could not be removed."""
    environ = {"KOLLA_ZK_HOSTS": deployment.hosts, "KOLLA_SYSTEM_PREFIX": deployment.path}
    quickstart = start(environ=environ)
    quickstart.says("daemon waits for api")
    zookeeper.kill()
    quickstart.says("ZooKeeper            away          no connection")
    quickstart.signal(signal.SIGINT)
    assert quickstart.ends() == 130
    assert f"{deployment.path}/quickstart may be left in ZooKeeper" in quickstart.said
    assert not quickstart.left()


def test_without_root_the_missing_packages_are_named(start: Start, tmp_path: Path) -> None:
    """One command to run; nothing has been made."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "python3", "apt-get"):  # and no java
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    quickstart = start(str(tmp_path / "home"), environ={"PATH": str(programs)})
    assert quickstart.ends() == 1
    assert re.search("run: sudo apt-get install .*default-jre-headless", quickstart.said), quickstart.said
    assert not (tmp_path / "home").exists()
