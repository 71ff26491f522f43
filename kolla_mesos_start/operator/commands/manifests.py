"""`kolla_mesos_ctl manifests`: files for a launcher, from a deployment's directory.

    read the directory -> validate -> the model of its containers -> files of one format -> write

What lives here: the command. Which containers there are is decided in `model`, how a format says it in the
format's own module.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Callable

from kolla_mesos_start.definition.forms import bad_segment
from kolla_mesos_start.errors import BadUsage, CannotWrite
from kolla_mesos_start.operator.deployment import directory, layouts
from kolla_mesos_start.operator.deployment.directory import Deployment
from kolla_mesos_start.operator.deployment.findings import ERROR
from kolla_mesos_start.operator.deployment.private_file import write_public
from kolla_mesos_start.operator.invocation import DEPLOYMENT, Invocation, Subcommand
from kolla_mesos_start.operator.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.operator.manifests.model import FOREIGN, Manifests, Model, Site, build
from kolla_mesos_start.operator.terminal.durations import seconds
from kolla_mesos_start.operator.validation.refusal import refuse, shown
from kolla_mesos_start.operator.validation.rules import validate

# Each makes the files, and notes of what only the operator can make.
FORMATS: Mapping[str, Callable[[Model], Manifests]] = {
    "compose": compose.manifests,
    "kubernetes": kubernetes.manifests,
    "marathon": marathon.manifests,
    "quadlet": quadlet.manifests,
}
PER_HOST = ("compose", "quadlet")  # These have files for each host.
TIMEOUT = 600.0  # seconds for which --post waits


def run(invocation: Invocation) -> int:
    """All stages, in order. Needs no ZooKeeper."""
    options, site, post = invocation.options, _site(invocation), _poster(invocation.options)
    deployment, unreadable = layouts.read(options, site.deployment)
    refuse(unreadable)
    findings = validate(deployment, deployment_id=site.deployment, given=site.given)
    refuse(each for each in findings if each.severity == ERROR)
    model, found = build(deployment, site._replace(hidden=_secrets(options, deployment, site)))
    refuse(each for each in found if each.severity == ERROR)
    for each in (*findings, *found):
        invocation.err.print(shown(each))
    made = FORMATS[options.format](model)
    notes = [*made.notes, *_without_placement(model, options.format)]
    if post is not None:
        for note in notes:
            invocation.err.out(note)
        return post(invocation, model)
    if options.output is None:
        print(made.whole or "".join(made.files.values()), end="")
    else:
        notes = [*_write(options.output, options.directory, made.files), *notes]
    for note in notes:
        invocation.err.out(note)
    return 0


def _without_placement(model: Model, form: str) -> Sequence[str]:
    """A note of the services without placement, unless that is all of them and the launcher chooses hosts."""
    names = [each.service for each in model.workloads if not each.hosts]
    where = "on node-1 and so on" if form in PER_HOST else "on any host"
    if not names or (form not in PER_HOST and len(names) == len(model.workloads)):
        return ()
    return [f"launch.yml has no `placement` for {', '.join(names)}: they run {where}"]


def _site(invocation: Invocation) -> Site:
    options, environ = invocation.options, invocation.environ
    name = getattr(options, "deployment", None) or environ.get(DEPLOYMENT) or options.directory.resolve().name
    wrong = bad_segment(name)
    if wrong:
        raise BadUsage(f"--deployment: {wrong}, found {name!r}")
    prefix = getattr(options, "prefix", None) or environ.get("KOLLA_SYSTEM_PREFIX")
    return Site(name, prefix, invocation.given)


def _secrets(options: argparse.Namespace, deployment: Deployment, site: Site) -> Set[str]:
    """The variables whose values are for a few only."""
    restricted = deployment.acl.variables if deployment.acl else ()
    return {*site.given, *layouts.hidden(options, deployment), *restricted}


def _poster(options: argparse.Namespace) -> Callable[[Invocation, Model], int] | None:
    """What takes the manifests to their launcher, where that is wanted."""
    if options.post is None:
        if options.timeout is not None:
            raise BadUsage("--timeout: how long --post waits; give --post too, or leave it out")
        return None
    if options.format != "marathon":
        raise BadUsage(f"--post: is for marathon, not for {options.format}")
    from kolla_mesos_start.operator.manifests import marathon_api, marathon_post

    url = marathon_api.parsed(options.post)
    timeout = TIMEOUT if options.timeout is None else options.timeout
    return lambda invocation, model: marathon_post.post(invocation, url, model, timeout)


def _write(place: Path, root: Path, files: Mapping[str, str]) -> Sequence[str]:
    """Write each file; what is to be said of others that a launcher would take for ours."""
    if place.exists() and not place.is_dir():
        raise BadUsage(f"--output {place}: is not a directory")
    _check_apart(place.resolve(), root.resolve())
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        parent = (place / name).parent
        if parent != place and parent.is_symlink():
            raise CannotWrite(f"{parent} is a link: remove it, since the files of {parent.name} belong there")
        parent.mkdir(exist_ok=True)
        write_public(place / name, text.encode())
    patterns = {"*/" * name.count("/") + f"*{Path(name).suffix}" for name in files}
    there = {path for pattern in patterns for path in place.glob(pattern)}
    return [f"left {path}, {FOREIGN}" for path in sorted(there - {place / name for name in files})]


def _check_apart(place: Path, root: Path) -> None:
    """Refuse what is read as a part of DIR: a host may be called as one of its files is."""
    if place == root or any(place.is_relative_to(root / name) for name in directory.TOP):
        raise BadUsage(
            f"--output {place}: the files would be taken for parts of {root}: give another directory"
        )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", metavar="FORMAT", choices=sorted(FORMATS), help=", ".join(sorted(FORMATS)))
    layouts.add_arguments(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        metavar="DIR2",
        type=Path,
        help="write the files into this directory; by default all go to standard output",
    )
    where.add_argument("--post", metavar="URL", help="of Marathon, which gets what differs from what it has")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help=f"seconds, only with --post; default: {TIMEOUT:g}",
    )


SUBCOMMAND = Subcommand(
    description="""\
Make the files with which a launcher starts the containers of a deployment, from its definitions and from
launch.yml in DIR. Only --post connects to anything. The deployment is called as the directory is, unless
--deployment names it. Give --deployment, --prefix, --set, --variables-from and
--secrets as to `publish`.

launch.yml says what no definition does. Its `zookeeper` is where containers reach ZooKeeper. Its `defaults`,
and each of its `services`, may hold:

  placement, replicas    a role of `hosts`; `each`: one on each of them
  image                  may hold {{ tag }}, {{ role }} and the service's own
                         variables, as `ports` and `env` may
  cpu, memory            0.5 or 500m; 512Mi or 1Gi
  user, read_only        a number; true where the image's root may be read-only
  network, capabilities  host, or own, which only Kubernetes has by default;
                         a list, such as [NET_ADMIN]
  ports, env             a list of those that are registered; a mapping
  volumes                by path: a size (10Gi) for data of each container's
                         own, {shared: NAME}, {host: PATH}, or `temporary`
  variables, credential  secrets: KOLLA_VARIABLES_DIR, and the key `auth` for
                         KOLLA_ZK_AUTH_FILE

kubernetes: a Job for each task, named by its generation; for a service a Deployment, a StatefulSet if it has
data of its own, or a DaemonSet on each host. Their names do not have the deployment's: give it a namespace of
its own, kubectl apply --namespace NAME -f DIR2.

quadlet: a directory for each host, whose files belong into /etc/containers/systemd there; podman 5.0 or newer
makes systemd units of them. What another attempt can't mend, by its exit status, is not started again.

compose: a file for each host, for podman-compose or docker compose; on standard output a document for each.
Compose knows no exit statuses: it starts such a container again. It does not restart an unhealthy container:
watch the output of `docker compose ps`, and restart such a container yourself.

quadlet and compose: what has no placement is on node-1 and so on, as for `up`.

marathon: an app for each service and task, in the group of the deployment. A task stays when it is done:
Marathon restarts whatever ends, and Chronos is no longer kept. Hosts are called as the Mesos agents are. On
standard output it is one list, for

  curl -X PUT -H 'Content-Type: application/json' --data-binary @- \\
      'http://HOST:8080/v2/apps?partialUpdate=false'

With --post nothing is written: Marathon gets the apps that differ from those that it has, and the command
waits for the deployment. Nothing is removed, and what has been set there besides, such as labels, stays. The
user is that of ~/.netrc. The exit status is 1 if the deployment was taken back or cancelled, 75 if it goes on
or another one locks the apps, 69 without an answer of Marathon, 77 if it refuses the user, 65 if it rejects
an app.

No secret is written: what you have to make is said at the end.

What `validate` finds to be an error is refused (65).
""",
    example="""\
kolla_mesos_ctl manifests kubernetes etc/openstack --output made
  kolla_mesos_ctl manifests marathon etc/openstack --post http://marathon:8080""",
    add_arguments=_add_arguments,
    run=run,
)
