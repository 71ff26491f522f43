"""The real programs of OpenStack's examples: Debian's servers, and OpenStack from PyPI.

Installs the programs. Only agents start them, so the service of a Debian package must not start either.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Callable

from kolla_mesos_start.errors import BadUsage
from tests import CHECKOUT, EXAMPLES

EXAMPLE = EXAMPLES / "keystone"
UPGRADE = EXAMPLES / "upgrade"
WHOLE = CHECKOUT / "etc" / "openstack"
REQUIREMENTS = EXAMPLE / "requirements.txt"
CONSTRAINTS = EXAMPLE / "constraints.txt"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Debian's packages, and a program of each, by which it is found.
PACKAGES = {"mariadb-server": "mariadbd", "mariadb-client": "mariadb", "memcached": "memcached"}
WHOLE_PACKAGES = {**PACKAGES, "rabbitmq-server": "rabbitmq-server", "haproxy": "haproxy"}
# Galera copies the data to a new member with rsync.
CLUSTER_PACKAGES = {**WHOLE_PACKAGES, "rsync": "rsync"}
# Every Debian package asks it before it starts its service; status 101 forbids that.
POLICY = Path("/usr/sbin/policy-rc.d")

UV = "uv==0.13.9"
PIP = ("-m", "pip", "-q", "--disable-pip-version-check")
INSTALL = ("install", "--no-cache-dir")  # A cache would be in the user's home.

# pip's and uv's own last lines say what nobody has asked.
OTHER_INDEX = (
    "packages could not be installed, see above; PIP_INDEX_URL and UV_DEFAULT_INDEX name another index, if"
    " PyPI can't be reached"
)

Say = Callable[[str], None]


def install_packages(say: Say, packages: Mapping[str, str] = PACKAGES) -> None:
    """Install those that are missing. Without root, BadUsage names the command."""
    missing = [name for name, program in packages.items() if not shutil.which(program, path=SYSTEM_PATH)]
    if not missing:
        return
    install = ("apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing)
    if os.geteuid() != 0:
        raise BadUsage(f"packages are missing; run: sudo {' '.join(install)}")
    say(f"installing {', '.join(missing)} (up to a minute; Ctrl-C waits for that)")
    with no_service_starts():
        run(("apt-get", "update", "-qq"))
        # In a session of its own: an installation that Ctrl-C has interrupted has to be repaired by hand.
        run(("setsid", *install), DEBIAN_FRONTEND="noninteractive")


@contextmanager
def no_service_starts() -> Iterator[None]:
    """Meanwhile no package starts its service; a policy that the machine has already stays as it is."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def keystone_environment(cache: Path, say: Say) -> Path:
    """The directory with `keystone-manage` and `uwsgi`, in a virtual environment of their own."""
    return environment(cache, EXAMPLE, say)


def environment(cache: Path, deployment: Path, say: Say) -> Path:
    """The directory with the programs of a deployment, in a virtual environment of their own."""
    python = python_for_keystone()
    files = (deployment / REQUIREMENTS.name, deployment / CONSTRAINTS.name)
    wanted = (*(file.read_bytes() for file in files), run((python, "-VV")))
    return kept(cache, deployment.name, wanted, partial(make_environment, python, files), say)


def release_environment(cache: Path, release: str, say: Say) -> Path:
    """The same for this release of Keystone, whose own packages lie on top of that environment's.

    So a second and a third release cost seconds. That the packages fit each other is checked.
    """
    base = keystone_environment(cache, say).parent
    pins = UPGRADE / f"keystone-{release}.txt"
    wanted = (pins.read_bytes(), os.fsencode(base))
    return kept(cache, f"keystone-{release}", wanted, partial(make_release, base, pins), say)


def kept(cache: Path, name: str, wanted: Sequence[bytes], make: Callable[[Path], None], say: Say) -> Path:
    """The directory with the programs of a virtual environment in `cache`, which is out of git.

    It is made where it is missing, and again when what is `wanted` of it changes.
    """
    cache.mkdir(exist_ok=True)
    cache = cache.resolve()  # The programs in there name it, and a link to it may go.
    directory = cache / f"{name}-{hashlib.sha256(b''.join(wanted)).hexdigest()[:12]}"
    (cache / ".gitignore").write_text("*\n")
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            say(f"installing {name} into {directory} (up to a minute)")
            # An interrupted run may have left something there.
            shutil.rmtree(directory, ignore_errors=True)
            make(directory)
            (directory / "complete").touch()
    return directory / "bin"


def make_environment(python: str, files: tuple[Path, Path], directory: Path) -> None:
    """Make the virtual environment of a deployment; `files` are its requirements and constraints."""
    requirements, constraints = map(str, files)
    run((python, "-m", "venv", str(directory)))
    own = str(directory / "bin" / "python")
    install((own, *PIP, *INSTALL, UV))
    # A quarter of the time that pip takes. Without byte code every start would compile.
    uv = (str(directory / "bin" / "uv"), "pip", "install", "-q", "--no-cache", "--compile-bytecode")
    install((*uv, "--python", own, "-c", constraints, "-r", requirements))


def make_release(base: Path, pins: Path, directory: Path) -> None:
    """Make a virtual environment that has the packages in `pins`, and all others of `base`."""
    python = str(base / "bin" / "python")
    run((python, "-m", "venv", "--without-pip", str(directory)))
    pip = (python, *PIP, "--python", str(directory / "bin" / "python"))
    run((*pip, *INSTALL, "--no-deps", "-r", str(pins)))
    (packages,) = directory.glob("lib/python*/site-packages")
    # After its own packages: so of what is in both, its own is found.
    (packages / "base.pth").write_text(f"{base / packages.relative_to(directory)}\n")
    run((*pip, "check"))


def install(argv: Sequence[str]) -> None:
    """Run a program that installs packages from an index."""
    try:
        run(argv)
    except BadUsage as error:
        raise BadUsage(f"{error.reason.rstrip()}\n{OTHER_INDEX}") from error


def python_for_keystone() -> str:
    """A Python that this OpenStack runs on: it needs a newer one than the agent."""
    question = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "python3.13", "python3.12", "python3.11", "/usr/bin/python3"):
        found = shutil.which(python)
        if found and subprocess.run((found, "-c", question), stderr=subprocess.DEVNULL).returncode == 0:
            return found
    raise BadUsage("OpenStack needs Python 3.11 or newer, with its venv module, on PATH")


def run(argv: Sequence[str], **environ: str) -> bytes:
    """The output of the command; if it fails, BadUsage with the end of the output."""
    # Byte code must be written even if the environment forbids it: else every start would compile.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        argv,
        env={**inherited, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace")[-2000:]
        raise BadUsage(f"{' '.join(argv)}: status {done.returncode}: {said}")
    return done.stdout
