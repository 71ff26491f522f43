"""Dockerfile.snippet does to Kolla's images what it says and nothing else."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kolla_mesos_start import __version__
from kolla_mesos_start.errors import BadUsage
from tests.conftest import Deployment
from tests.containers.images import SERVICES, SNIPPET, Images
from tests.containers.obedient import is_ready
from tests.containers.podman import Container, Podman
from tests.support import pins
from tests.support.publishing import publish
from tests.support.waiting import eventually
from tests.support.zookeeper import free_port

# The first test waits for the images.
pytestmark = pytest.mark.timeout(900)

HOME = "/opt/kolla_mesos_start"
OWN = ("/run/kolla_mesos_start", "/var/lib/kolla_mesos_start")
PYTHON = f"{HOME}/bin/python3"
PODMANS = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/run/.containerenv"}
SERVICE_PYTHON = "/var/lib/kolla/venv/bin/python3"
USER_OF = {"memcached": 42457, "mariadb-server": 42434, "keystone": 0}  # uids are Kolla's

DUMB_INIT = ["dumb-init", "--single-child", "--"]
# Of mysqld_safe Kolla says that it ignores SIGTERM, so that image signals all its processes.
ENTRYPOINTS = {"memcached": DUMB_INIT, "mariadb-server": ["dumb-init", "--"], "keystone": DUMB_INIT}


# -- what the snippet adds, and what it does not -----------------------------------------------------


def modes(podman: Podman, image: str, paths: dict[str, str]) -> dict[str, str]:
    """Mode and owners of each path in the image."""
    told = podman.output(image, "stat", "--format=%n %a %U:%G", *paths, options=["--user=root"])
    return dict(line.split(" ", 1) for line in told.splitlines())


@pytest.mark.parametrize("name", SERVICES)
def test_the_snippet_touches_nothing_else(podman: Podman, images: Images, name: str) -> None:
    """Nothing is left of what builds: no file anywhere is another one, but these."""
    before, after = (files(podman, image) for image in (images.kolla(name), images.agent(name)))
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    home = {path for path in changed if path == HOME or path.startswith(f"{HOME}/")}
    link, etc = "/usr/local/bin/kolla_mesos_start", f"/etc/{SERVICES[name][0]}"
    assert changed - home == {link, etc, *OWN}
    assert len(home) > 100
    assert not [path for path in home if re.search("/(pip|setuptools|wheel)", path)]


def files(podman: Podman, image: str) -> dict[str, str]:
    """Every file of an image: kind, mode, owners, and of what is no directory size, time and link.

    As a container sees them: `podman diff` of two images mounts both in the storage that all share.
    """
    script = "find / -xdev -type d -printf '%p\\t%y %m %u:%g\\n' -o -printf '%p\\t%y %m %u:%g %s %T@ %l\\n'"
    told = podman.output(image, "sh", "-c", script, options=["--user=root"])
    found = dict(line.split("\t", 1) for line in told.splitlines())
    return {path: what for path, what in found.items() if path not in PODMANS}


@pytest.mark.parametrize("name", SERVICES)
def test_the_snippet_opens_one_directory_and_no_more(podman: Podman, images: Images, name: str) -> None:
    """The agent's own directories are for Kolla's group; /etc/<service> for the service's, if wanted."""
    service, user = SERVICES[name]
    etc = f"/etc/{service}"
    own = dict.fromkeys(OWN, "775 root:kolla")
    assert modes(podman, images.closed(name), own) == own
    assert modes(podman, images.agent(name), {**own, etc: ""}) == {**own, etc: f"775 root:{service}"}
    if name != "memcached":  # Kolla's has none.
        assert modes(podman, images.closed(name), {etc: ""}) == {etc: "755 root:root"}
    config = podman.config(images.agent(name))
    assert (config["Entrypoint"], config["Cmd"]) == (ENTRYPOINTS[name], ["kolla_mesos_start"])
    assert config["User"] == user


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_holds_none_of_the_operators_tools(podman: Podman, images: Images, name: str) -> None:
    """They run outside containers; the agent is there, and no script of theirs is left behind."""
    agent = f"{HOME}/lib/*/site-packages/kolla_mesos_start"
    patterns = (
        f"{agent}/__main__.py",
        f"{agent}/ctl*",
        f"{agent}/kolla_ansible*",
        f"{HOME}/bin/kolla_mesos_*",
    )
    paths = " -o ".join(f"-path '{pattern}'" for pattern in patterns)
    found = podman.output(images.agent(name), "sh", "-c", f"find {HOME} {paths}").split()
    assert [path.rpartition("/")[2] for path in sorted(found)] == ["kolla_mesos_start", "__main__.py"]


def test_the_image_holds_the_tested_versions(podman: Podman, images: Images) -> None:
    """And nothing else; bin/test installs the same ones."""
    names = "(f'{each.name}=={each.version}'.lower() for each in importlib.metadata.distributions())"
    script = f"import importlib.metadata; print(*{names})"
    found = podman.output(images.agent("keystone"), PYTHON, "-I", "-c", script).split()
    pinned = {f"{pin.name}=={pin.version}" for pin in pins.read(pins.AGENT) if pin.name != pins.BUILDS}
    assert set(found) == {*pinned, f"kolla_mesos_start=={__version__}"}


def test_a_file_of_another_content_is_not_installed(images: Images, tmp_path: Path) -> None:
    """Whoever hands out the packages: the image is not built."""
    shutil.copy(pins.AGENT, tmp_path)
    text = (tmp_path / pins.AGENT.name).read_text()
    (tmp_path / pins.AGENT.name).write_text(re.sub("sha256:[0-9a-f]{8}", "sha256:01234567", text))
    (tmp_path / "kolla_mesos_start-0-py3-none-any.whl").touch()
    (tmp_path / "Dockerfile").write_text(f"FROM {images.kolla('base')}\nUSER root\n{SNIPPET.read_text()}")
    with pytest.raises(BadUsage, match="Expected sha256 01234567"):  # Its end is what is kept of the output.
        images.build(tmp_path, "localhost/never")


def test_agent_and_service_have_packages_of_their_own(podman: Podman, images: Images) -> None:
    """The service pins another jinja2. Neither sees the other's, not even by PYTHONPATH."""
    version = "import jinja2; print(jinja2.__version__)"
    script = (
        f"{SERVICE_PYTHON} -c '{version}';"
        # As the kernel starts the agent: with all that its first line says.
        f"$(sed -n '1s/^#!//p' /usr/local/bin/kolla_mesos_start) -c '{version}';"
        f"{SERVICE_PYTHON} -c 'import kazoo' 2>&1 | tail -n 1"
    )
    path = "--env=PYTHONPATH=/var/lib/kolla/venv/lib/python3/site-packages"
    told = podman.output(images.agent("keystone"), "sh", "-c", script, options=[path])
    assert told.splitlines() == ["3.1.4", "3.1.6", "ModuleNotFoundError: No module named 'kazoo'"]


def test_byte_code_is_used_whatever_the_times_of_the_sources(podman: Podman, images: Images) -> None:
    """Every module comes from the image's byte code, also after a layer has changed all times."""
    touch = f"find {HOME} -name '*.py' -exec touch -d 2001-01-01 {{}} +"
    imported = "import kolla_mesos_start.zookeeper.client, kolla_mesos_start.render.sandbox, psutil"
    script = f"{touch} && exec {PYTHON} -I -v -c '{imported}'"
    done = podman("run", "--rm", "--user=root", images.agent("mariadb-server"), "sh", "-c", script)
    loaded = re.findall(rf"# code object from '?({HOME}/[^']*?)'?$", done.stderr, re.MULTILINE)
    assert len([path for path in loaded if "/site-packages/kolla_mesos_start/" in path]) > 10
    assert [path for path in loaded if not path.endswith(".pyc")] == []


# -- the agent in the image --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_the_agent_runs_as_the_images_user(podman: Podman, images: Images, name: str) -> None:
    """From either form that the snippet takes, a wheel or the source, it is on PATH and can be run."""
    words = (
        "kolla_mesos_start --version",
        "kolla_mesos_start health; echo $?",
        "kolla_mesos_start check; echo $?",
    )
    script = "; ".join((*words, "id -u"))
    told = podman.output(images.agent(name), "sh", "-c", script).splitlines()
    assert re.fullmatch(r"kolla_mesos_start \d+\.\d+\.\d+", told[0])
    assert told[1].startswith("no agent runs here; its last state: nothing in /run/kolla_mesos_start")
    assert told[2:] == ["1", "64", str(USER_OF[name])]


@pytest.fixture
def web(podman: Podman, images: Images, deployment: Deployment) -> Iterator[Container]:
    """A container of a small web server with one config file, in MariaDB's image."""
    publish(
        deployment,
        "demo/web",
        {
            "service": {
                "daemon": {
                    "command": ["python3", "-m", "http.server", "--bind=127.0.0.1", "{{ port }}"],
                    "files": {"web.conf": {"dest": "/etc/mysql/web.conf", "perm": "0640"}},
                    "ready": {"tcp": "{{ port }}", "interval": 1},
                }
            }
        },
        files={"web.conf": "port = {{ port }}"},
        variables={"port": str(free_port())},
    )
    container = podman.run(images.agent("mariadb-server"), environ=deployment.environ("demo/web"))
    yield container
    print(container.said)
    container.remove()


def test_a_daemon_starts_under_dumb_init_as_the_images_user(web: Container) -> None:
    """No root anywhere: the daemon is the agent's process, and nobody's child but process 1's."""
    eventually(lambda: is_ready(web), "it is ready")
    listed = web.exec("ps", "--no-headers", "-eo", "pid,ppid,user:20,comm").stdout.splitlines()
    processes = {words[3]: words[:3] for words in (line.split() for line in listed) if words[3] != "ps"}
    assert processes.keys() == {"dumb-init", "python3", "kolla_registrar"}
    assert {user for _, _, user in processes.values()} == {"mysql"}
    assert processes["dumb-init"][0] == "1"
    assert (processes["python3"][1], processes["kolla_registrar"][1]) == ("1", "1")
    stat = web.exec("stat", "--format=%a %U:%G", "/etc/mysql/web.conf")
    assert stat.stdout == "640 mysql:mysql\n"
    assert web.stop() == 128 + signal.SIGTERM


def test_check_tells_what_a_start_would_write(web: Container) -> None:
    """Beside a running daemon: nothing would change any more."""
    eventually(lambda: web.read("/etc/mysql/web.conf"), "the file is written")
    done = web.exec("kolla_mesos_start", "check")
    assert (done.returncode, "/etc/mysql/web.conf" in done.stdout, "unchanged" in done.stdout) == (
        0,
        True,
        True,
    )


def test_the_snippet_says_what_it_costs(
    podman: Podman, images: Images, deployment: Deployment, measured: list[str]
) -> None:
    """Its figures are what is measured here: the size, and how much later a daemon starts."""
    size, delay = costs(podman, images.agent("mariadb-server"), deployment, HOME)
    measured.append(
        f"Dockerfile.snippet: {size:.1f} MB, a daemon starts {delay:.2f} s later (the quickest of 5)"
    )
    claim = re.search(r"adds (\d+) MB .* (\d\.\d) s to", SNIPPET.read_text())
    assert claim is not None
    assert size < float(claim[1]) + 1
    assert delay < 5 * float(claim[2])


def costs(
    podman: Podman, image: str, deployment: Deployment, place: str, *options: str
) -> tuple[float, float]:
    """The megabytes of the agent at `place`, and the seconds of the quickest of five starts.

    Whatever else the machine does can only add to them.
    """
    publish(
        deployment,
        "demo/nothing",
        {"service": {"daemon": {"command": ["true"], "files": {"a": {"dest": "/tmp/a"}}}}},
        files={"a": "{{ deployment_id }}"},
    )
    agent = f"{place}/bin/kolla_mesos_start"
    start = f"KOLLA_RUN_DIR=/tmp/run-$i KOLLA_STATE_DIR=/tmp/state-$i {agent} >/tmp/log 2>&1 || exit"
    timed = f"du -sk {place}; for i in 1 2 3 4 5; do date +%s%N; {start}; date +%s%N; done"
    environ = [f"--env={name}={value}" for name, value in deployment.environ("demo/nothing").items()]
    told = podman.output(image, "sh", "-c", timed, options=[*environ, *options]).splitlines()
    times = [int(line) / 1e9 for line in told[1:]]
    assert len(times) == 10
    delay = min(end - begin for begin, end in zip(times[::2], times[1::2]))
    return int(told[0].split()[0]) / 1000, delay
