"""The images under test: Kolla's own Dockerfiles, and on top of them the snippet that one is to paste.

What lives here: how the images are made, and kept. kolla-build, from PyPI, renders the Dockerfiles and
brings the scripts; `kolla/` beside this file says what is left out. Nothing of Kolla's is in git.

    debian          Debian's packages, by mmdebstrap
    kolla/<name>    Kolla's base, memcached, mariadb-server, openstack-base, keystone-base, keystone
    agent/<name>    the whole snippet pasted onto it
    closed/<name>   the snippet without its last part, which opens /etc/<service>
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from retrying import retry

from kolla_mesos_start.ctl.up.containers import dies_with_us
from kolla_mesos_start.errors import BadUsage
from tests import CHECKOUT
from tests.containers.podman import settings
from tests.examples.openstack import (
    CONSTRAINTS,
    INSTALL,
    PIP,
    REQUIREMENTS,
    Say,
    kept,
    python_for_keystone,
    run,
)
from tests.support import pins

RECIPE = Path(__file__).with_name("kolla")
SNIPPET = CHECKOUT / "Dockerfile.snippet"
OPENS = "# Way 1 only"  # Here begins what opens /etc/<service>.
AGENT = (
    "setup.py",
    "pyproject.toml",
    "README.rst",
    "LICENSE",
    "bin/kolla_mesos_*",
    "kolla_mesos_start/**/*.py",
)
SUITE = "trixie"  # what Kolla's Dockerfiles want to find
DEBIAN = """\
FROM scratch
ADD debian.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
# The images in the order in which they are made, and where kolla-build puts their Dockerfiles.
KOLLA = {
    "base": "base",
    "memcached": "memcached",
    "mariadb-server": "mariadb-server",
    "openstack-base": "openstack-base",
    "keystone-base": "keystone/keystone-base",
    "keystone": "keystone/keystone",
}
# Of which images there is one with the agent, the /etc/<service> that it opens, and the USER of Kolla's.
SERVICES = {
    "memcached": ("memcached", "memcached"),
    "mariadb-server": ("mysql", "mysql"),
    "keystone": ("keystone", "root"),
}
# Debian repositories of OpenStack, on a host that is none of Debian's.
EXTREPO = re.compile(r"^RUN apt update .*?apt clean$", re.MULTILINE | re.DOTALL)
# What a machine that reaches its registries through a proxy of its own needs to know there too.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFIED = [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
# Process ids and mounts of its own: where we are killed no process of a build goes on, and no mount stays.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# buildah copies itself into memory and seals the copy; on a busy machine the kernel may refuse that at first.
BUSY = "sealing memfd copy: Device or resource busy"


def _is_busy(error: Exception) -> bool:
    return isinstance(error, BadUsage) and BUSY in str(error)


class Images:
    """The images, in a storage of their own below `cache`; each is named by what it is made of."""

    place = "images"
    healthchecks = False  # Kolla's own
    dockerfiles: Mapping[str, str] = KOLLA
    services: Mapping[str, tuple[str, str]] = SERVICES
    requirements, constraints = REQUIREMENTS, CONSTRAINTS

    def __init__(self, cache: Path, say: Say) -> None:
        self.store = cache / self.place
        self._temporary = cache / f"{self.place}.tmp"  # Where whoever holds the lock works.
        self._say = say
        recipe = [Path(__file__), self.constraints, self.requirements, *RECIPE.iterdir()]
        self._kolla = _digest(recipe)
        self._agent = _digest([*recipe, SNIPPET, pins.AGENT, *agent_sources()])
        cache.mkdir(exist_ok=True)
        (cache / ".gitignore").write_text("*\n")
        self._lock = (cache / f"{self.place}.lock").open("w")

    @property
    def _debian(self) -> str:
        return f"localhost/debian:{self._kolla}"

    def kolla(self, name: str) -> str:
        return f"localhost/kolla/{name}:{self._kolla}"

    def agent(self, name: str) -> str:
        return f"localhost/agent/{name}:{self._agent}"

    def closed(self, name: str) -> str:
        return f"localhost/closed/{name}:{self._agent}"

    @property
    def _wanted(self) -> set[str]:
        with_agent = {make(name) for name in self.services for make in (self.agent, self.closed)}
        return {self._debian, *map(self.kolla, self.dockerfiles), *with_agent}

    def make(self) -> None:
        """Make what is missing and remove what nobody wants any more; hold the rest until `release`."""
        # One after the other: who finds nothing to make then waits for nobody who uses the images.
        with self.store.with_suffix(".making").open("w") as making:
            fcntl.flock(making, fcntl.LOCK_EX)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self._there() != self._wanted:
                with self.alone() as directory:
                    self._make(directory)

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """Nobody else has the images meanwhile; a directory. What was interrupted is cleared away."""
        # Whoever runs containers of these images goes on with them until the end.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._buildah("rm", "--all")
        with self._directory() as directory:
            yield directory
        # What was made before the interruption has been made again, under the same name.
        self._buildah("rmi", "--prune")
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def release(self) -> None:
        self._lock.close()

    def _make(self, directory: Path) -> None:
        there = self._there()
        for name in sorted(there - self._wanted):
            self._buildah("rmi", "--force", name)
        if not there.issuperset(map(self.kolla, self.dockerfiles)):
            self._make_kolla(directory)
        for name in self.services:
            if self.agent(name) not in there:
                self._paste(directory / name, name)

    def _there(self) -> set[str]:
        listed = self._buildah("images", "--format", "{{.Name}}:{{.Tag}}")
        return {name for name in listed.split() if not name.startswith("<none>")}

    # -- Kolla's --------------------------------------------------------------------------------

    def _make_kolla(self, directory: Path) -> None:
        self._say("making Debian's and Kolla's images (about 2 minutes)")
        self._make_debian(directory / "debian")
        contexts = self._render(directory / "kolla")
        for name, place in self.dockerfiles.items():
            self.build(contexts / place, self.kolla(name))

    def _make_debian(self, context: Path) -> None:
        context.mkdir()
        (context / "Dockerfile").write_text(DEBIAN)
        bootstrap = ("mmdebstrap", "--quiet", "--variant=apt", "--include=adduser,ca-certificates")
        self._run(*bootstrap, "--dpkgopt=force-unsafe-io", SUITE, str(context / "debian.tar"))
        self.build(context, self._debian)

    def _render(self, directory: Path) -> Path:
        """Have kolla-build write the Dockerfiles and what they copy; the directory of their contexts."""
        names = [f"^{name}$" for name in self.dockerfiles]
        contexts = render(
            kolla_build(self.store.parent, self._say),
            directory,
            [f"--{'' if self.healthchecks else 'no'}docker-healthchecks", *names],
            base_image="localhost/debian",
            base_tag=self._kolla,
            namespace="localhost/kolla",
            tag=self._kolla,
            template_override=RECIPE / "override.j2",
            repos_yaml=RECIPE / "repos.yaml",
        )
        self._complete(contexts)
        return contexts

    def _complete(self, contexts: Path) -> None:
        """What kolla-build would fetch, had it to build: the pinned versions, and no plugins."""
        base = contexts / self.dockerfiles["base"] / "Dockerfile"
        text, count = EXTREPO.subn("", base.read_text())
        assert count == 1, f"kolla-build has written something new: {base}"
        base.write_text(text)
        with tarfile.open(contexts / "openstack-base" / "openstack-base-archive", "w") as archive:
            archive.add(self.constraints, "requirements/upper-constraints.txt")
            archive.add(self.requirements, "requirements/requirements.txt")
        for place in {"openstack-base", "keystone/keystone"} & set(self.dockerfiles.values()):
            with tarfile.open(contexts / place / "plugins-archive", "w") as archive:
                plugins = tarfile.TarInfo("plugins")
                plugins.type, plugins.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(plugins)

    # -- with the agent -------------------------------------------------------------------------

    def _paste(self, context: Path, name: str) -> None:
        self._say(f"pasting Dockerfile.snippet onto Kolla's {name}")
        context.mkdir()
        shutil.copy(pins.AGENT, context)
        # Either form that the snippet takes.
        source = archive(context / "kolla_mesos_start-source.tar.gz")
        if name != "keystone":
            self._wheel(source, context)
            source.unlink()
        service, user = self.services[name]
        first, mark, last = SNIPPET.read_text().partition(OPENS)
        assert mark, f"{SNIPPET} holds no line that begins {OPENS!r}"
        for base, text, made in (
            (self.kolla(name), first, self.closed(name)),
            (self.closed(name), mark + last, self.agent(name)),
        ):
            (context / "Dockerfile").write_text(f"FROM {base}\nUSER root\n{text}\nUSER {user}\n")
            self.build(context, made, {"KOLLA_SERVICE": service})

    def _wheel(self, source: Path, directory: Path) -> None:
        """Build the agent's wheel from its source; setuptools leaves nothing in the checkout."""
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check")
        self._run(*pip, "--no-deps", "--no-build-isolation", "-w", str(directory), str(source))

    # -- buildah --------------------------------------------------------------------------------

    def build(self, context: Path, name: str, arguments: Mapping[str, str] | None = None) -> None:
        given = [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
        self._buildah("bud", "--network=host", *given, *CERTIFIED, f"--tag={name}", str(context))

    @retry(retry_on_exception=_is_busy, stop_max_attempt_number=5, wait_fixed=1000)  # type: ignore[untyped-decorator]
    def _buildah(self, *words: str) -> str:
        with self._directory() as directory:
            return self._run("buildah", *words, **settings(directory, self.store))

    def _run(self, *words: str, **environ: str) -> str:
        return run((*dies_with_us(), *ALONE, *words), TMPDIR=str(self._temporary), **environ).decode()

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        self._temporary.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._temporary) as directory:
            yield Path(directory)


def kolla_build(cache: Path, say: Say) -> Path:
    """The program, in a virtual environment of its own."""
    python, requirements = python_for_keystone(), RECIPE / "requirements.txt"

    def make(directory: Path) -> None:
        run((python, "-m", "venv", str(directory)))
        run((str(directory / "bin" / "python"), *PIP, *INSTALL, "-r", str(requirements)))

    wanted = (requirements.read_bytes(), run((python, "-VV")))
    return kept(cache, "kolla-build", wanted, make, say) / "kolla-build"


def render(program: Path, directory: Path, words: Iterable[str], **options: str | Path) -> Path:
    """Have kolla-build write Dockerfiles, and what they copy, below this directory."""
    given = {"engine": "podman", "base": "debian", "work_dir": directory, **options}
    line = (str(word) for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))
    run((*dies_with_us(), *ALONE, str(program), "--template-only", *line, *words))
    return directory / "docker"


def agent_sources() -> list[Path]:
    """The files that the agent's package is made of."""
    return sorted(path for pattern in AGENT for path in CHECKOUT.glob(pattern))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CHECKOUT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def archive(path: Path) -> Path:
    """The agent's source as `git archive` would give it, of the files as they are now."""
    with tarfile.open(path, "w:gz") as archive:
        for source in agent_sources():
            archive.add(source, source.relative_to(CHECKOUT))
    return path
