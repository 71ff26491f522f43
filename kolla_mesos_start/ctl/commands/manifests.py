"""`kolla_mesos_ctl manifests`: make a launcher's files from a deployment's directory. Needs no ZooKeeper."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Callable

from kolla_mesos_start.ctl.directory import source
from kolla_mesos_start.ctl.directory.findings import refuse
from kolla_mesos_start.ctl.directory.source import Source
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.ctl.manifests.formats import FORMATS, check_agent, check_pods, unplaced, write
from kolla_mesos_start.ctl.manifests.model import Model, Site, build
from kolla_mesos_start.ctl.subcommand import argument, either, subcommand
from kolla_mesos_start.ctl.text import seconds
from kolla_mesos_start.ctl.validate.rules import validate
from kolla_mesos_start.errors import BadUsage

TIMEOUT = 600.0  # seconds for which --post waits


@subcommand(
    """\
kolla_mesos_ctl manifests kubernetes etc/openstack --output made
  kolla_mesos_ctl manifests marathon etc/openstack --post http://marathon:8080""",
    argument("format", metavar="FORMAT", choices=sorted(FORMATS), help=", ".join(sorted(FORMATS))),
    source.add_arguments,
    either(
        argument(
            "--output",
            metavar="DIR2",
            type=Path,
            help="write the files into this directory; by default all go to standard output",
        ),
        argument("--post", metavar="URL", help="send the apps that differ to this Marathon"),
    ),
    argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help=f"seconds, only with --post; default: {TIMEOUT:g}",
    ),
)
def manifests(invocation: Invocation) -> int:
    """Make the files with which a launcher starts the containers of a deployment, from its definitions and
    from launch.yml in DIR. Only --post connects to anything. The deployment's name is that of the directory
    unless --deployment gives another one. Give the same --deployment, --prefix, --set, --variables-from and
    --secrets as to `publish`.

    launch.yml adds what definitions do not have: where containers run, images, resources, users, devices,
    ports, volumes, secrets, and where they reach ZooKeeper (docs/reference/launch.rst).

    kubernetes: a Job for each task, named by its generation; for a service a Deployment, a StatefulSet if it
    has data of its own, or a DaemonSet on each host. Their names do not contain the deployment's: give it its
    own namespace, kubectl apply --namespace NAME -f DIR2. For kustomize, a Kustomization in DIR2 lists the
    files; `kubectl apply -f` ignores it.

    quadlet: a directory for each host, whose files belong in /etc/containers/systemd there; podman 4.9 or
    newer makes systemd units of them. A container is not restarted if its exit status says that another
    attempt can't succeed.

    compose: a file for each host, for docker compose 2, or podman-compose 1.0.6 or newer; on standard output
    a document for each. Compose does not look at exit statuses: it restarts such a container too. It does not
    restart an unhealthy container: watch the output of `docker compose ps`, and restart such a container
    yourself.

    quadlet and compose: services without placement are on node-1 and so on, as for `up`.

    marathon: an app for each service and task, in the group of the deployment. A completed task keeps
    running: Marathon restarts everything that ends, and Chronos is no longer maintained. Hosts have the names
    of the Mesos agents. Standard output gets one list, for

      curl -X PUT -H 'Content-Type: application/json' --data-binary @- \\
          'http://HOST:8080/v2/apps?partialUpdate=false'

    With --post no file is written: Marathon gets the apps that differ from its own, and the command waits for
    the deployment. Nothing is removed, and settings made in Marathon, such as labels, stay. The user is that
    of ~/.netrc. The exit status is 1 if the deployment was rolled back or cancelled, 75 if it is still
    running or another one locks the apps, 69 if Marathon does not answer, 77 if it refuses the user, 65 if it
    rejects an app.

    No secret is written. At the end the command lists the secrets that you have to create.

    The status is 65 if `validate` finds an error.
    """
    options = invocation.options
    post = _poster(options)
    model = _model(invocation, invocation.load(is_local=True))
    made = FORMATS[options.format](model)
    notes = [*made.notes, *unplaced(model, options.format)]
    if options.output is not None:
        notes = [*write(options.output, options.directory, made.files), *notes]
    elif post is None:
        print(made.whole or "".join(made.files.values()), end="")
    for note in notes:
        invocation.err.out(note)
    return post(invocation, model) if post else 0


def _model(invocation: Invocation, loaded: Source) -> Model:
    """The valid model of a directory."""
    refuse(loaded.unreadable)
    deployment, given = loaded.deployment, loaded.given
    findings = validate(deployment, deployment_id=loaded.name, given=given)
    refuse(findings)
    prefix = getattr(invocation.options, "prefix", None) or invocation.environ.get("KOLLA_SYSTEM_PREFIX")
    model, found = build(deployment, Site(loaded.name, prefix, given, loaded.hidden))
    agent = check_agent(deployment.launch, invocation.options.format)
    pods = check_pods(deployment.launch, model) if invocation.options.format == "kubernetes" else ()
    refuse([*findings, *found, *agent, *pods], invocation.err)
    return model


def _poster(options: argparse.Namespace) -> Callable[[Invocation, Model], int] | None:
    """The function that sends the manifests to their launcher, if that was asked for."""
    if options.post is None:
        if options.timeout is not None:
            raise BadUsage("--timeout limits how long --post waits: give --post too, or leave it out")
        return None
    if options.format != "marathon":
        raise BadUsage(f"--post is only for marathon, not for {options.format}")
    from kolla_mesos_start.ctl.manifests import marathon_api, marathon_post

    url = marathon_api.parsed(options.post)
    timeout = TIMEOUT if options.timeout is None else options.timeout
    return lambda invocation, model: marathon_post.post(invocation, url, model, timeout)
