"""`kolla_mesos_ctl completion`: a script for completion in a shell, made by shtab from all parsers."""

from __future__ import annotations

import argparse

import shtab

from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.subcommand import argument, subcommand

# How to complete an argument, by its name in the help.
PATHS: dict[object, object] = {
    "FILE": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "DIR2": shtab.DIRECTORY,
    "PLACE": shtab.DIRECTORY,
}


@subcommand(
    """\
. <(kolla_mesos_ctl completion bash)  # in this shell only
  kolla_mesos_ctl completion bash > /etc/bash_completion.d/kolla_mesos_ctl
  kolla_mesos_ctl completion fish | source""",
    argument("shell", choices=("bash", "fish", "zsh")),
)
def completion(invocation: Invocation) -> int:
    """Print a script that completes subcommands, options and paths in a shell."""
    parser = invocation.options.whole_parser()
    _complete_paths(parser)
    print(shtab.complete(parser, invocation.options.shell))
    return 0


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Set which values are paths, also in all subcommands."""
    for action in parser._actions:
        if action.metavar in PATHS:
            action.complete = PATHS[action.metavar]  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                each.fill()
                _complete_paths(each)
