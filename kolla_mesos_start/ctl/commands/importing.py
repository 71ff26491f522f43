"""`kolla_mesos_ctl import kolla-ansible`: make a directory from kolla-ansible's playbooks."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from kolla_mesos_start.ctl.directory.container_settings import read_agent
from kolla_mesos_start.ctl.directory.findings import counted
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.subcommand import argument, subcommand
from kolla_mesos_start.definition.document import Reading
from kolla_mesos_start.errors import BadDefinition, BadUsage
from kolla_mesos_start.kolla_ansible import directory, importing, recording, rules
from kolla_mesos_start.kolla_ansible.emitted import Imported
from kolla_mesos_start.kolla_ansible.recording import Request

SOURCE = "kolla-ansible"
ADOPTED = "adopt.txt"


class CannotImport(BadDefinition):
    """What was recorded does not make a deployment."""

    subject = "import"


class ChangedByOperator(BadDefinition):
    """Files of an earlier import that the operator has changed."""

    subject = "import"


@subcommand(
    """\
kolla_mesos_ctl import kolla-ansible --ansible ~/kolla --inventory multinode \\
      --facts facts.yml --output site""",
    argument("source", metavar="SOURCE", choices=[SOURCE], help=SOURCE),
    argument(
        "share",
        metavar="SHARE",
        nargs="?",
        type=Path,
        help="an installed kolla-ansible (share/kolla-ansible) or a checkout; by default that of --ansible",
    ),
    argument(
        "--config",
        metavar="PATH",
        type=Path,
        default=Path("/etc/kolla"),
        help="the directory with globals.yml and passwords.yml; default: %(default)s",
    ),
    argument("--inventory", metavar="FILE", type=Path, required=True, help="the inventory of ansible"),
    argument("--output", metavar="DIR", type=Path, required=True, help="the directory to write"),
    argument(
        "--facts",
        metavar="PATH",
        type=Path,
        help="facts of the hosts: the directory of Ansible's cache, or a YAML file",
    ),
    argument(
        "--ansible",
        metavar="VENV",
        type=Path,
        help="the virtual environment with ansible-core; by default the tool's own",
    ),
    argument(
        "--overrides", metavar="FILE", type=Path, help="your own rules, which precede those of rules.yml"
    ),
    argument("--tags", metavar="TAGS", help="only these tags of kolla-ansible, as in: keystone,mariadb"),
    argument(
        "--action",
        choices=importing.ACTIONS,
        default=importing.DEPLOY,
        help="what kolla-ansible would do: deploy, or upgrade from the release before; default: %(default)s",
    ),
    argument(
        "--agent",
        metavar="IMAGE",
        help="`agent` of launch.yml: the image of bin/agent-directory, or its directory on your hosts;"
        " default: as in an earlier import",
    ),
    argument(
        "--adopt",
        action="store_true",
        help=f"for a cloud that kolla-ansible has deployed: list all one-time steps in {ADOPTED}",
    ),
    argument(
        "--overwrite", action="store_true", help="replace files of an earlier import that you have changed"
    ),
)
def import_(invocation: Invocation) -> int:
    """Make a deployment's directory from kolla-ansible's own playbooks and your configuration of it.

    kolla-ansible's site.yml runs in a copy, in which every module is recorded instead of executed: no host is
    contacted, and nothing is changed. It runs twice, with invented passwords and addresses, so that each
    place of a password or an address is known; the values of your passwords.yml are never written into DIR.
    Publish with

      kolla_mesos_ctl publish DIR --secrets /etc/kolla/passwords.yml

    The playbooks are those of this tool's own environment, after pip install '.[import]'. --ansible names
    another virtual environment with kolla-ansible, ansible-core and the collections:

      python3 -m venv ~/kolla
      ~/kolla/bin/pip install 'kolla-ansible==22.*' ansible-core ansible

    --facts names what ansible knows about the hosts: its cache (`kolla-ansible gather-facts` with jsonfile),
    or a file with a line for each host:

      hosts:
        ctl-1: {address: 192.0.2.11, interface: eth0, cpus: 16, memory: 65536}

    A host that the inventory names localhost, or by its address, gets its hostname. A line may have
    `hostname`.

    If kolla-ansible has deployed this cloud already, give --adopt, publish, and record all steps as done
    before the first container starts:

      kolla_mesos_ctl adopt --list DIR/adopt.txt --deployment site

    For an upgrade, import the next release with --action upgrade into the same DIR: the steps have the new
    tag as their generation, and those after the upgrade of a service wait until no older container of it is
    left.

    After the import DIR is yours. A later import refuses to replace files that you have changed. One that was
    interrupted while it wrote DIR can't be published: run it again.
    """
    options = invocation.options
    if options.adopt and options.action == importing.UPGRADE:
        raise BadUsage("the steps of --action upgrade must run: give --adopt for the release that runs now")
    directory.check(options.output)
    given = {
        "zookeeper": getattr(options, "hosts", None) or invocation.environ.get("KOLLA_ZK_HOSTS"),
        "agent": earlier_agent(options.output) if options.agent is None else agent(options.agent),
    }
    found = recording.find_environment(options.share, options.ansible)
    table = rules.read(options.overrides)
    request = Request(found, options.config.absolute(), options.inventory, options.action, options.tags)
    site = importing.look(request, options.facts, table)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end)
    recorded = importing.record(request, site, lambda play: _show(invocation, play))
    outcome = importing.make(recorded, site, table, found.release, given, options.action)
    refuse(outcome, options.tags)
    if options.adopt:
        outcome.emitted.files[ADOPTED] = adoption(outcome)
    changed = directory.changed(options.output, outcome.emitted)
    if changed and not options.overwrite:
        raise ChangedByOperator(
            [
                f"{options.output / path}: you have changed it, and the import too: --overwrite replaces it"
                for path in changed
            ]
        )
    for path in directory.kept(options.output, outcome.emitted):
        print(f"kept {options.output / path}, which you have changed")
    for path in directory.write(options.output, outcome.emitted):
        print(f"removed {options.output / path}")
    _summarize(outcome, options.output)
    return 0


def earlier_agent(output: Path) -> object:
    """`agent` in launch.yml of an earlier import, which stays without --agent."""
    try:
        content = yaml.safe_load((output / "launch.yml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return content.get("agent") if isinstance(content, dict) else None


def agent(text: str) -> object:
    """`agent` of launch.yml. Raises BadUsage."""
    value = {"host": text} if text.startswith("/") else text
    reading = Reading(lambda text: text.text)
    read_agent(reading, "agent", value)
    if reading.issues:
        raise BadUsage(f"--agent {text}: expected the name of an image, or the path of a directory")
    return value


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    """Exit without leaving processes or the temporary directory behind."""
    sys.exit(128 + signum)


def _show(invocation: Invocation, play: str) -> None:
    """Progress goes to standard error."""
    invocation.err.print(f"recording: {play}")


def refuse(outcome: Imported, tags: str | None = None) -> None:
    """Raise CannotImport for bad dependencies, for clusters that would be split, and for no containers.

    With tags only a part is imported, which connects to daemons outside of it: unresolved addresses are only
    reported.
    """
    issues = [
        f"{each.name} needs {each.on} ({each.reason}), which starts later: add a rule to a file for"
        " --overrides"
        for each in outcome.against_order
    ]
    issues += (
        f"{each}: add a row to `listeners` or `addresses` of a file for --overrides"
        for each in (() if tags else outcome.unresolved)
    )
    if not outcome.containers.daemons and not outcome.containers.steps:
        issues.append(
            f"no container was recorded: {f'correct --tags {tags}' if tags else 'enable a service'}"
        )
    if issues or outcome.clusters.issues:
        raise CannotImport([*outcome.clusters.issues, *issues])


def adoption(outcome: Imported) -> bytes:
    """The list of all one-time steps for `adopt --list`, in the recorded order."""
    lines = [f"{step.name}/run  # {step.tasks[0].name}" for step in outcome.containers.steps]
    return "".join(f"{line}\n" for line in lines).encode()


def _summarize(outcome: Imported, output: Path) -> None:
    daemons, steps = outcome.containers.daemons, outcome.containers.steps
    print(
        f"imported {counted(len(daemons), 'daemon')} and {counted(len(steps), 'one-time step')} into {output}"
    )
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    refused, left = len(dict.fromkeys(outcome.emitted.refused)), len(outcome.emitted.left)
    if refused or left:
        print(
            f"{output / 'report.txt'} lists what is left to you ({left}) and what could not be expressed"
            f" ({refused})",
            file=sys.stderr,
        )
