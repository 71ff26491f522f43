"""The agent as a directory, mounted into Kolla's images as they are: no image has the snippet."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from tests import CHECKOUT
from tests.conftest import Deployment
from tests.containers.images import Images
from tests.containers.obedient import PROGRAM, SERVICE, STATUS, publish_obedient
from tests.containers.podman import MOUNTED, Container, Podman
from tests.containers.test_compose import compose
from tests.containers.test_hard_conditions import NO_RIGHTS
from tests.containers.test_images import HOME, costs
from tests.containers.test_with_kolla_start import kolla_config
from tests.support import pythons
from tests.support.launching import directory as keystone
from tests.support.launching import free_ports
from tests.support.waiting import eventually

Start = Callable[..., Container]

pytestmark = pytest.mark.timeout(900)

MAKER = CHECKOUT / "bin" / "agent-directory"
PLACE = "/opt/kolla_mesos_start"
AGENT = f"{PLACE}/bin/kolla_mesos_start"
RUN, STATE = "/run/kolla_mesos_start", "/var/lib/kolla_mesos_start"
# What the obedient daemon's one file may be, without a directory that anybody has opened.
DEST = f"{STATE}/files/obedient.conf"
MOUNTS = [f"--tmpfs={place}:mode=1777" for place in (RUN, STATE)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mounted") / "agent"
    make(place)
    return place


def make(place: Path, *words: str | Path) -> None:
    subprocess.run([sys.executable, MAKER, place, *words], check=True)


@pytest.fixture
def start(podman: Podman, images: Images, deployment: Deployment, directory: Path) -> Iterator[Start]:
    made: list[Container] = []

    def run(
        image: str,
        *command: str,
        options: tuple[str, ...] = (),
        volumes: dict[Path, str] | None = None,
        **environ: str,
    ) -> Container:
        container = podman.run(
            images.kolla(image),
            *command,
            environ=deployment.environ(SERVICE, **environ),
            volumes={directory: f"{PLACE}:ro", **(volumes or {})},
            options=[*MOUNTS, *options],
        )
        made.append(container)
        return container

    yield run
    for container in made:
        print(container.said)
        container.remove()


def is_ready(container: Container) -> bool:
    assert container.running, container.said
    return container.exec(AGENT, "health", "--ready").returncode == 0


@pytest.mark.parametrize("image", ["memcached", "mariadb-server", "keystone"])
def test_an_image_as_kolla_publishes_it_starts_with_the_agent(
    start: Start, deployment: Deployment, image: str
) -> None:
    publish_obedient(deployment, "", DEST)
    container = start(image, AGENT)
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(30) == STATUS


def test_before_kolla_start(start: Start, deployment: Deployment, tmp_path: Path) -> None:
    """Kolla's sudo rule copies as root what the agent has written into its own mount."""
    publish_obedient(deployment, "", DEST, command="kolla_start")
    program, path = tmp_path / "config" / "obedient.py", "/etc/mysql/obedient.conf"
    copied = {"source": DEST, "dest": path, "owner": "mysql", "perm": "0600"}
    command = "python3 /var/lib/kolla/config_files/obedient.py"
    volume = kolla_config(program.parent, command, config_files=[copied])
    program.write_text(PROGRAM)
    container = start("mariadb-server", AGENT, volumes=volume, KOLLA_CONFIG_STRATEGY="COPY_ALWAYS")
    eventually(lambda: is_ready(container), "it is ready")
    assert container.exec("stat", "--format=%a %U", path).stdout == "600 mysql\n"
    assert container.stop(30) == STATUS


def test_without_any_right_and_with_a_root_that_nobody_writes_to(
    start: Start, deployment: Deployment
) -> None:
    publish_obedient(deployment, "", DEST)
    container = start(
        "memcached",
        AGENT,
        options=(*NO_RIGHTS, "--read-only", "--read-only-tmpfs=false", "--security-opt=label=disable"),
    )
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(30) == STATUS


def test_what_a_mounted_agent_costs(
    podman: Podman,
    images: Images,
    deployment: Deployment,
    directory: Path,
    tmp_path: Path,
    measured: list[str],
) -> None:
    """Beside the agent in an image. It has byte code for the Python of an image if that is asked for."""
    names = {
        each: f"{each}={value}" for each, value in podman.environ.items() if each.startswith("CONTAINERS_")
    }
    image = images.kolla("mariadb-server")
    python = shlex.join(("env", *names.values(), "podman", "run", "--rm", "-i", image, "python3"))
    make(tmp_path / "compiled", "--python", python)
    built_in = costs(podman, images.agent("mariadb-server"), deployment, HOME)
    compiled, plain = (
        costs(podman, image, deployment, PLACE, f"--volume={each}:{PLACE}:ro")
        for each in (tmp_path / "compiled", directory)
    )
    for what, (size, delay) in {"built in": built_in, "mounted": compiled, "no byte code": plain}.items():
        measured.append(f"{what}: {size:.1f} MB, a daemon starts {delay:.2f} s later (the quickest of 5)")
    assert compiled[1] < 5 * built_in[1]


def test_an_image_without_python_is_named(start: Start) -> None:
    container = start("memcached", AGENT, volumes={Path("/dev/null"): "/usr/bin/python3:ro"})
    assert container.ends() == 64
    assert "this image has no /usr/bin/python3: use an image with Python 3.9 to 3.13" in container.said


@pytest.mark.parametrize(
    "change, why",
    {
        "sys.version_info = (3, 8, 20)": "its Python is 3.8: use an image with Python 3.9 to 3.13",
        "sys.implementation._multiarch = 'x86_64-linux-musl'": "its C library is musl: use an image",
        "sys.implementation._multiarch = 's390x-linux-gnu'": "there is no agent for s390x in",
    }.items(),
)
def test_an_image_that_the_agent_cannot_run_in_is_named(directory: Path, change: str, why: str) -> None:
    program = directory / "bin" / "kolla_mesos_start"
    script = f"import sys; {change}; __file__ = {str(program)!r}; exec(open(__file__).read())"
    done = subprocess.run([sys.executable, "-ISc", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith(f"kolla_mesos_start can't run in this image: {why}")


# Everything that a start, a guard, a registrar or a probe may import.
IMPORT_ALL = """\
import importlib, pathlib, sys
library = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(library), str(library / sys.implementation._multiarch.partition("-")[0])]
for path in sorted((library / "kolla_mesos_start").rglob("*.py")):
    importlib.import_module(".".join(path.relative_to(library).with_suffix("").parts))
import psutil
assert psutil.__file__.startswith(sys.path[1]), psutil.__file__
"""


@pytest.mark.parametrize("python", pythons.found(), ids=lambda each: each.version)
def test_every_python_takes_it(python: pythons.Python, directory: Path) -> None:
    for words in (
        ["-c", IMPORT_ALL, f"{directory}/lib"],
        [f"{directory}/bin/kolla_mesos_start", "--version"],
    ):
        subprocess.run([python.program, "-ISB", *words], check=True, timeout=60)


def test_the_same_input_makes_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "again"
    make(place)
    assert contents(place) == contents(directory)
    before = place.stat().st_ino
    make(place)
    assert place.stat().st_ino == before  # Containers may have mounted it.
    (place / "bin" / "older").touch()
    make(place)
    assert contents(place) == contents(directory)


def contents(place: Path) -> dict[str, tuple[int, int, bytes]]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {
        str(path.relative_to(place)): (path.stat().st_mode, int(path.stat().st_mtime), path.read_bytes())
        for path in found
    }


@pytest.mark.parametrize(
    "words, why",
    [
        (["{used}"], "{used} has other content than an agent: name another directory"),
        (["{new}", "--wheel", "{used}/file"], "{used}/file is no wheel: build one with"),
        (["{new}", "--wheel", "{used}/none"], "{used}/none: No such file or directory"),
        (["{new}", "--python", "no-python"], "--python no-python: there is no such program"),
        (["{new}", "--python", "false"], "--python false: it can't compile: status 1"),
        (["{new}", "--python", "true"], "--python true: no Python 3.9 to 3.13 has answered"),
        (["{new}", "--python", "echo /etc/x.py 1 cpython-311"], "no Python 3.9 to 3.13 has answered"),
        (["{new}", "--image", "An Image"], "--image An Image: expected registry/name:tag"),
        (["{used}/file/new"], "{used}/file: File exists"),
    ],
)
def test_what_cannot_become_the_directory_is_named(words: list[str], why: str, tmp_path: Path) -> None:
    """And nothing is lost or left."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("precious")
    places = {"used": tmp_path / "used", "new": tmp_path / "new"}
    argv = [sys.executable, str(MAKER), *(word.format(**places) for word in words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and why.format(**places) in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["used"]
    assert (tmp_path / "used" / "file").read_text() == "precious"


# -- as launchers mount it ------------------------------------------------------------------------------


@pytest.fixture
def mounting(images: Images, tmp_path: Path) -> Iterator[Podman]:
    """podman, with the image of the agent."""
    podman = Podman(tmp_path / "podman", images.store)
    podman.make_mounted()
    yield podman
    podman.end()


def manifest(format: str, images: Images, deployment: Deployment, place: Path) -> Path:
    """The directory of the manifests of the example, which is published."""
    tree = keystone(place / "site", images, deployment.hosts, free_ports(), agent=MOUNTED)
    words = [str(tree), "--deployment", deployment.id, "--prefix", deployment.prefix]
    cli.run(["publish", *words, "--hosts", deployment.hosts])
    cli.run(["manifests", format, *words, "--output", str(place / "made")])
    return place / "made"


def test_podman_compose_mounts_it(
    mounting: Podman, images: Images, deployment: Deployment, tmp_path: Path
) -> None:
    """memcached; the others need directories of the host."""
    file = manifest("compose", images, deployment, tmp_path) / "node-1.yml"
    compose(mounting, file, "up", "--detach", "memcached")
    container = Container(mounting, f"{deployment.id}_memcached")
    eventually(lambda: is_ready(container), "it is ready")
    assert "can't be written" not in container.said
    compose(mounting, file, "down")


def test_a_pod_copies_it(mounting: Podman, images: Images, deployment: Deployment, tmp_path: Path) -> None:
    """As the init container of the manifest says, into a volume that anybody may write, as an emptyDir."""
    file = manifest("kubernetes", images, deployment, tmp_path) / "memcached.yml"
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(file.read_text())
        if "selector" in each["spec"] and "template" in each["spec"]
    )
    (copy,), (main,) = pod["initContainers"], pod["containers"]
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    rights = ("--cap-drop=all", "--security-opt=no-new-privileges", "--read-only")
    user = copy["securityContext"]["runAsUser"]
    options = (f"--user={user}", *rights, f"--volume={volume}:{PLACE}")
    mounting("run", "--rm", *options, copy["image"], *copy["command"])
    environ = deployment.environ("infra/memcached/memcached", KOLLA_PRIVATE_INTERFACE="lo")
    container = mounting.run(
        main["image"],
        *main["args"],
        environ=environ,
        volumes={volume: f"{PLACE}:ro"},
        options=(f"--user={pod['securityContext']['runAsUser']}", *rights, *MOUNTS),
    )
    eventually(lambda: is_ready(container), "it is ready")
    assert container.stop(30) == 0
