"""`kolla_mesos_ctl up`: run the deployment of a directory on this machine, to try it out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from kolla_mesos_start.ctl.directory import secret_values, source
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.directory.findings import Finding, counted, from_parser, refuse
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.subcommand import argument, subcommand
from kolla_mesos_start.ctl.text import seconds
from kolla_mesos_start.ctl.up import private_zookeeper
from kolla_mesos_start.ctl.up.containers import SETPRIV
from kolla_mesos_start.ctl.up.deployment import pairs, plan, with_roles
from kolla_mesos_start.ctl.up.up import GOOD_ENDS, SITE, START_TIMEOUT, Up, locked, remove
from kolla_mesos_start.ctl.validate.uses import without_unused_secrets
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.errors import AgentError, BadDefinition, BadUsage, NoConnection, Stopped


@subcommand(
    "kolla_mesos_ctl up etc/examples/quickstart --replicas jobs/api=3 --once",
    source.add_arguments,
    argument(
        "--replicas", metavar="SERVICE=N", action="append", default=[], help="so many containers of a service"
    ),
    argument(
        "--host",
        metavar="SERVICE=NAME",
        action="append",
        default=[],
        help="the host name of a container of a service; give it once for each container",
    ),
    argument(
        "--role",
        metavar="ROLE=NAME[,NAME...]",
        action="append",
        default=[],
        help="the hosts of a role, in place of those in launch.yml of DIR",
    ),
    argument("--once", action="store_true", help="end once all are up"),
    argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=START_TIMEOUT,
        help="end, with status 75 and the causes, if not all are up after so many seconds; default:"
        " %(default)g",
    ),
    argument("--quiet", action="store_true", help="show what each is doing, not their logs"),
    argument(
        "--in",
        dest="place",
        metavar="PLACE",
        type=Path,
        help="keep the containers' directories here; by default they are removed at the end, and after a"
        " failed start only the logs are kept",
    ),
)
def up(invocation: Invocation) -> int:
    """Run the whole deployment of a directory on this machine, to try it out: each container is a set of
    plain processes with its own directory, and all start at the same moment. ZooKeeper is a private one,
    unless --hosts or KOLLA_ZK_HOSTS is given. The deployment's name is that of the directory unless
    --deployment gives another one. The command runs until Ctrl-C or SIGTERM, which end everything. Once all
    are up, a container that ends is restarted: after 1 s, with a delay that grows to 10 s if it ends again
    soon. This includes one whose status is final (78, for example), because a change of the published data
    may have cured it. If a start fails, all logs are kept in a directory that is printed at the end.

    Templates find two more variables: `root`, the directory that is the container's /, with which the `dest`
    of each file has to begin, and `port`, a free port of the container. Both replace those in DIR, which are
    for other places (`root: ""`, for example) and which `validate` needs. The number of a service's
    containers is `instances` of its definition's `service`, by default one; their hosts are named node-1,
    node-2 and so on.

    If DIR has a launch.yml, containers run on the hosts of their role, one on each of them with `replicas:
    each`; its `tag` is their KOLLA_GENERATION. --host, --replicas and --role have precedence.

    If KOLLA_VARIABLES_DIR is set, containers find variables in it, as they will where secrets are mounted.

    The secrets of DIR's secrets.yml are generated for this run alone, unless --secrets FILE keeps them.

    The status is 65 if `validate` finds an error, 0 once all are up, 1 if a container ended unexpectedly, 75
    if the timeout has passed; Ctrl-C after that is 0 too.
    """
    options = invocation.options
    loaded, _ = without_unused_secrets(invocation.load(is_local=True))
    contents = loaded.deployment
    refuse([*loaded.unreadable, *_bad_json(contents)])
    replicas, hosts = pairs("--replicas", options.replicas), pairs("--host", options.host)
    launch = with_roles(contents.launch, pairs("--role", options.role, "ROLE=NAME[,NAME...]"))
    contents = contents._replace(launch=launch)
    planned = plan(contents, replicas, hosts, loaded.given)
    _check_machine(invocation)
    secret_values.keep(options.secrets, loaded.kept, loaded.generated, invocation.err)
    if loaded.generated and options.secrets is None:
        secrets = counted(len(loaded.generated), "secret")
        print(f"generated {secrets} for this run alone; --secrets FILE would keep them")
    with ExitStack() as stack:
        where = locked(options.place, stack)
        up = Up(invocation, loaded.name, where / SITE)
        try:
            try:
                up.run(contents, planned)
            except (AgentError, OSError):
                up.check_signals()  # A child that Ctrl-C has ended looks like a failure.
                raise
        except Stopped as stopped:
            return 0 if up.is_up and stopped.signum in GOOD_ENDS else stopped.status
        finally:
            up.end()
            if options.place is None:
                remove(where, up.kept_logs)
                if up.kept_logs:
                    invocation.err.print(f"all logs are in {where}; remove them when you have read them")
    return 0


def _bad_json(contents: Deployment) -> Iterator[Finding]:
    """Findings of definitions that are not valid JSON. Empty ones are those of unreadable files."""
    for service in filter(lambda service: service.definition, contents.services):
        try:
            load(service.definition)
        except BadDefinition as error:
            yield from (from_parser(service.source, issue) for issue in error.issues)


def _check_machine(invocation: Invocation) -> None:
    """Refuse missing programs before anything begins."""
    if not shutil.which(SETPRIV):
        raise BadUsage(f"the program {SETPRIV} is missing: install util-linux")
    hosts = getattr(invocation.options, "hosts", None) or invocation.environ.get("KOLLA_ZK_HOSTS")
    if not hosts and not private_zookeeper.is_installed():
        raise NoConnection(
            "no ZooKeeper is given and none is installed: give --hosts, or install (in Debian) the packages"
            " zookeeper and default-jre-headless"
        )
