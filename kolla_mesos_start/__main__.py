"""The command line: chooses the command that the agent runs.

`health` comes first and imports nothing else, because it runs as a probe every few seconds. Without
arguments, the agent starts the container, and no parser is imported.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # `typing` alone would double the time of a probe.
if TYPE_CHECKING:
    from typing import NoReturn

DESCRIPTION = """\
The startup agent of Kolla containers: waits, renders, bootstraps once,
registers, execs.
"""
EPILOG = """\
It is configured by environment variables: KOLLA_ZK_HOSTS and KOLLA_APP_ID are
required. docs/reference lists all of them, the keys of a definition, and the
exit statuses.
"""
CHECK = """\
Validate the definition, render all files, and print what a start would do to
each file. Nothing is written. The exit status is 0 if no file would change,
and 1 if a file would change. An error that would end a start has the same
exit status here.
"""
HEALTH = """\
Print in one line what this container is doing. The exit status is 1 if no
agent or daemon runs here, or if the daemon is no longer registered. A daemon
that runs is healthy while its check fails: its database may be down. This
command does not connect to ZooKeeper. It reads files in KOLLA_RUN_DIR, so run
it in the container.
"""
REFRESH = """\
Render the files of this container's daemon again, replace those that have
changed, and notify the daemon as its `on_change` says. Does not wait for
other instances. Returns when the daemon is ready again. Run it in the
container, as the agent's user or root.
"""
STOP = """\
Drain this container's daemon, run its `before_stop`, send it SIGTERM, and
wait until it has ended. The daemon is no longer registered then. While the
container still starts, this ends the start, as SIGTERM does. For a hook
that a launcher runs before it sends SIGTERM itself, add --no-term. The exit
status is 1 if it could not be deregistered, or if `before_stop` failed.
"""


def main(lock: int | None = None) -> None:
    """Run the command that the arguments name, and exit with its status.

    `lock`: a descriptor, if this process has locked the run directory already.
    """
    try:
        _run(lock)
    except Exception as error:  # Once it is loaded, the agent itself reports all errors.
        from kolla_mesos_start import log
        from kolla_mesos_start.errors import unexpected, where

        for line in where(error):
            log.OUTPUT.bare(line)
        failure = unexpected(error)
        # Probes and hooks do not end the container.
        termination_log = None if sys.argv[1:] else os.environ.get("KOLLA_TERMINATION_LOG")
        log.last_line(log.ending("environment", failure), termination_log)
        _exit(failure.status)


def _run(lock: int | None) -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["health"] and not {"-h", "--help"} & set(arguments):
        from kolla_mesos_start.health import health

        _exit(health(arguments[1:], os.environ))
    _fill_standard_descriptors()
    verb, option = ("run", False) if not arguments else _parse(arguments)
    if verb == "refresh":
        from kolla_mesos_start.daemon.control import refresh

        _exit(refresh(os.environ))
    if verb == "stop":
        from kolla_mesos_start.daemon.control import stop

        _exit(stop(os.environ, with_term=not option))

    # Imports leave no garbage; looking for it would take a tenth of the start.
    gc.disable()
    from kolla_mesos_start import agent

    agent.main(verb, option, lock)


def _exit(status: int) -> NoReturn:
    try:  # noqa: SIM105 (contextlib would cost every probe its import)
        sys.stdout.flush()
    except OSError:
        pass  # The result is the exit status: a closed pipe must not change it.
    os._exit(status)


def _fill_standard_descriptors() -> None:
    """Open /dev/null for each standard descriptor that the launcher has left closed.

    Otherwise the next file or socket would get its number, and a command would print into that.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number: `fd`.
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _parse(arguments: list[str]) -> tuple[str, bool]:
    from argparse import ArgumentParser, RawDescriptionHelpFormatter
    from functools import partial

    from kolla_mesos_start import __version__

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            from kolla_mesos_start import agent

            self.print_usage(sys.stderr)
            agent.refuse(message)

    parser = Parser(
        prog="kolla_mesos_start",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kolla_mesos_start {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", parser_class=Parser)
    add = partial(commands.add_parser, formatter_class=RawDescriptionHelpFormatter)
    add("run", help="start the container (the entrypoint; the default)")
    check = add("check", help="print which files a start would change; write nothing", description=CHECK)
    check.add_argument(
        "--show", action="store_true", help="print the content of the files too, with all secrets"
    )
    add("refresh", help="render the files of the running daemon again, now", description=REFRESH)
    stop = add(
        "stop",
        help="drain and stop the running daemon",
        description=STOP,
        epilog="example, as a preStop hook:\n  kolla_mesos_start stop --no-term",
    )
    stop.add_argument(
        "--no-term", action="store_true", help="do not send SIGTERM: the launcher does so afterwards"
    )
    health = add(
        "health",
        help="exit 0 if this container is healthy (for probes)",
        description=HEALTH,
        epilog="example, as a readiness probe:\n  kolla_mesos_start health --ready",
    )
    which = health.add_mutually_exclusive_group()
    which.add_argument(
        "--ready", action="store_true", help="exit 0 only if its daemon is ready, or its task has finished"
    )
    which.add_argument(
        "--started",
        metavar="SECONDS",
        help="exit 1 also if its daemon has not been ready within SECONDS of its start",
    )
    parsed = parser.parse_args(arguments)
    return parsed.verb or "run", getattr(parsed, "show", False) or getattr(parsed, "no_term", False)


if __name__ == "__main__":
    main()
