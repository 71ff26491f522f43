"""The records of a command graph: a command, what it depends on, its files, its readiness check.

Only data and simple properties. `keys.build` makes them from a definition.
All strings may be templates until `resolve.resolve` makes a `ResolvedCommand` of a command that is to run.
"""

from __future__ import annotations

from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.definition.strings import DAEMON, LOCAL, sublabel
from kolla_mesos_start.records import NamedTuple


class Dependency(NamedTuple):
    """A command that must be done, or a daemon that must be ready, before another command may run."""

    path: str
    """`role/command`, or `role/daemon`"""
    scope: str
    """`global` or `local`"""
    count: int | None  # type: ignore[assignment]  # Named as in the definition; it hides tuple.count.
    generation: str | None
    """which one must be done; `any`: one of them; None: see `states.unmet`"""
    exclusive: bool
    """whether no container of the daemon's service may have another generation"""
    timeout: float | None

    @property
    def role(self) -> str:
        return self.path.split("/")[0]

    @property
    def name(self) -> str:
        return self.path.split("/")[-1]

    @property
    def is_daemon(self) -> bool:
        return self.name == DAEMON


class Members(NamedTuple):
    """A number of members that must be present in the party of a service, before a command may run."""

    service: str
    count: int  # type: ignore[assignment]
    timeout: float | None


class External(NamedTuple):
    """Something outside the deployment that must answer, before a command may run.

    `kind` is `tcp` (`value` is host:port) or `http` (a URL). `interval`: the most seconds between two
    questions.
    """

    kind: str
    value: str
    interval: float
    timeout: float | None

    @property
    def endpoint(self) -> str:
        """host:port; the rest of a URL may hold a secret."""
        if self.kind == "tcp":
            return self.value
        scheme, _, rest = self.value.partition("://")
        netloc = rest.partition("?")[0].partition("/")[0]
        _, colon, port = netloc.rpartition(":")
        return netloc if colon and port.isdigit() else f"{netloc}:{443 if scheme == 'https' else 80}"

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"external {self.kind} {self.endpoint}"


class File(NamedTuple):
    """One config file of a command. `dest`, `owner`, `perm` and `check` may be templates."""

    name: str
    dest: str
    owner: str | None
    perm: str
    optional: bool
    mounted: str | None
    template: bool
    check: str | tuple[str, ...] | None
    """the command that a new file must pass; `{}` in it is the file's temporary path"""
    keep_last: bool
    """whether the old content stays while none of the instances that it lists exists"""

    @property
    def mode(self) -> int:
        """The permission bits. Only for a file whose `perm` is rendered."""
        return int(self.perm, 8)


class OnChange(NamedTuple):
    """How a daemon is notified of new files: `kind` is `signal`, `command` or `restart`.

    `value` is a signal's name without SIG, a command (an argv in a ResolvedCommand), or None.
    """

    kind: str
    value: str | tuple[str, ...] | None


class Election(NamedTuple):
    """Which instance of a daemon bootstraps a cluster that is down.

    `position` is the name of a command of the same definition, which prints how new this host's data are.
    `members`: how many hosts there are. `start`: the winner's command, in place of the daemon's (an argv in a
    ResolvedCommand). `start_timeout`: seconds that the winner may take to become ready; None: no limit.
    `give_up`: seconds that a daemon may be not ready while no instance is ready.
    """

    position: str
    members: int
    start: str | tuple[str, ...]
    start_timeout: float | None
    give_up: float


class BeforeStop(NamedTuple):
    """A command that runs before a daemon is stopped, and after `timeout` seconds is killed.

    In a ResolvedCommand, `command` is an argv; `program` is then that of the command, as in `Ready`.
    """

    command: str | tuple[str, ...]
    timeout: float
    program: str | None = None


class Command(NamedTuple):
    """One step of a definition, or its daemon."""

    path: str
    """`role/name`"""
    name: str
    """`daemon` for the daemon only"""
    command: str | tuple[str, ...]
    dependencies: tuple[Dependency | Members | External, ...]
    run_once: str | None
    """the scope in which it runs once, `global` or `local`; None: it runs in every container"""
    generation: str | None
    env: tuple[tuple[str, str], ...]
    files: tuple[File, ...]
    succeeds: tuple[int, ...]
    """the exit statuses that count as success"""
    retries: int
    """attempts after the first"""
    delay: float
    timeout: float | None
    stop_grace: float
    user: str | None
    ready: Ready | None
    """only the daemon has this field and the ones below; None for other commands"""
    generations: tuple[str, ...] | None
    """the generations of images that may run the daemon; empty: any"""
    on_change: OnChange | None
    """None: its files are never rendered again"""
    width: int | None
    """how many instances of the service may refresh at the same time; None: all"""
    election: Election | None
    """None: each instance is started with `command`"""
    drain: float | None
    """seconds between withdrawing the instance and stopping the daemon"""
    before_stop: BeforeStop | None

    @property
    def inside(self) -> tuple[Dependency | Members, ...]:
        """Its dependencies inside the deployment, which are checked in ZooKeeper."""
        return tuple(each for each in self.dependencies if not isinstance(each, External))

    @property
    def outside(self) -> tuple[External, ...]:
        """Its dependencies outside the deployment, which the container checks itself."""
        return tuple(each for each in self.dependencies if isinstance(each, External))

    @property
    def is_daemon(self) -> bool:
        return self.name == DAEMON

    @property
    def stop_seconds(self) -> float:
        """How long a stop may take: with all that precedes SIGTERM, and `stop_grace`."""
        before = self.before_stop.timeout if self.before_stop else 0.0
        return (self.drain or 0.0) + before + self.stop_grace

    @property
    def drains(self) -> bool:
        """Whether something precedes SIGTERM."""
        return bool(self.drain or self.before_stop)

    @property
    def label(self) -> str:
        """Its place in the definition, for messages."""
        return f"service.{DAEMON}" if self.is_daemon else sublabel("commands", self.name)


class ResolvedCommand(NamedTuple):
    """A command that is to run now: all its strings are rendered."""

    command: Command
    argv: tuple[str, ...]
    shell: bool
    """whether `argv` is the `/bin/sh -c` form of a string"""
    lacks_exec: bool
    """whether that shell would stay as the parent of a daemon"""
    program: str | None
    """the program, to name it in an error; None if a template gave it (a secret, perhaps) or for a shell"""

    @property
    def start_digest(self) -> int:
        """A digest of everything that only a restart of the daemon can change."""
        import zlib  # Only a daemon with `on_change` needs it.

        command = self.command._replace(files=(), dependencies=(), generations=(), on_change=None)
        return zlib.crc32(repr((self.argv, command)).encode())


class Graph(NamedTuple):
    """A definition that has been read: its commands in order, and its daemon; without one it is a task.

    `digest` tells it from others, as `document.digest` has it.
    """

    service_name: str
    commands: tuple[Command, ...]
    daemon: Command | None
    digest: str = ""

    @property
    def all_commands(self) -> tuple[Command, ...]:
        """The commands, and the daemon last."""
        return (*self.commands, self.daemon) if self.daemon else self.commands

    @property
    def local_dependencies(self) -> tuple[str, ...]:
        """The dependencies of scope `local`, as `role/command on role/command`."""
        return tuple(
            f"{command.path} on {dependency.path}"
            for command in self.all_commands
            for dependency in command.dependencies
            if isinstance(dependency, Dependency) and dependency.scope == LOCAL
        )
