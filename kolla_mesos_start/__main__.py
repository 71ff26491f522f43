"""The command line: which of the agent's commands is meant.

`health` is decided first and imports nothing else, since it is run as a probe every few seconds;
without a word on the command line the agent runs, and pays for no parser.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # `typing` alone would double the time of a probe.
if TYPE_CHECKING:
    from typing import NoReturn

DESCRIPTION = "The startup agent of Kolla containers: waits, renders, bootstraps once, registers, execs."
EPILOG = """\
What it needs to know comes from the environment: KOLLA_ZK_HOSTS and KOLLA_APP_ID at least;
README.rst has the others, the definition's schema and the exit statuses.
"""


def main() -> None:
    """Run the command that the words after the program's name ask for, and exit with its status."""
    words = sys.argv[1:]
    if words[:1] == ["health"] and not {"-h", "--help"} & set(words):
        from kolla_mesos_start.health import health

        status = health(words[1:], os.environ)
        try:  # noqa: SIM105 (contextlib would cost every probe its import)
            sys.stdout.flush()
        except OSError:
            pass  # Whoever probes reads the status; a closed pipe must not change it.
        os._exit(status)
    _fill_standard_descriptors()
    verb, show = ("run", False) if not words else _parse(words)

    # Nothing that an import makes is ever garbage: to look for some takes a tenth of the start.
    gc.disable()
    from kolla_mesos_start import container

    container.live(verb, show)


def _fill_standard_descriptors() -> None:
    """Open /dev/null where the launcher has left a standard descriptor closed.

    What is opened next would take its place, and then a command would print into a socket of ours.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # The lowest number that is free: this one.
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _parse(words: list[str]) -> tuple[str, bool]:
    import argparse

    from kolla_mesos_start import __version__

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            from kolla_mesos_start import container

            self.print_usage(sys.stderr)
            container.refuse(message)

    parser = Parser(
        prog="kolla_mesos_start",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kolla_mesos_start {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", parser_class=Parser)
    commands.add_parser("run", help="start the container (the entrypoint; also without any word)")
    check = commands.add_parser("check", help="validate the definition and render all files; write nothing")
    check.add_argument(
        "--show", action="store_true", help="print the content of the files too, secrets and all"
    )
    health = commands.add_parser("health", help="exit 0 if this container is where it should be (a probe)")
    health.add_argument(
        "--ready", action="store_true", help="only if its daemon is ready, or its task finished"
    )
    parsed = parser.parse_args(words)
    return parsed.verb or "run", getattr(parsed, "show", False)


if __name__ == "__main__":
    main()
