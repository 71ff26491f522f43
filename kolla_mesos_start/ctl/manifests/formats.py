"""The formats of manifests, and writing their files into a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.container_settings import ARCHIVE, FROM_HOST, IMAGE
from kolla_mesos_start.ctl.directory.findings import ERROR, Finding, Issue
from kolla_mesos_start.ctl.directory.launch import NAME, LaunchFile
from kolla_mesos_start.ctl.directory.private_file import write_public
from kolla_mesos_start.ctl.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.ctl.manifests.model import FOREIGN, Manifests, Model
from kolla_mesos_start.errors import BadUsage, CannotWrite

FORMATS: Mapping[str, Callable[[Model], Manifests]] = {
    "compose": compose.manifests,
    "kubernetes": kubernetes.manifests,
    "marathon": marathon.manifests,
    "quadlet": quadlet.manifests,
}
# Which agents they can mount: Docker's containerizer mounts no image, and only Mesos fetches an archive.
AGENTS = {**dict.fromkeys(FORMATS, (IMAGE, FROM_HOST)), "marathon": (FROM_HOST, ARCHIVE)}
AGENT_FORMS = {IMAGE: "an image", FROM_HOST: "{host: DIRECTORY}", ARCHIVE: "{uri: ARCHIVE}"}
PER_HOST = ("compose", "quadlet")  # These have files for each host.


def unplaced(model: Model, form: str) -> Sequence[str]:
    """A note about services without placement; none if no service has one and the launcher chooses hosts."""
    names = [each.service for each in model.workloads if not each.hosts]
    where = "on node-1 and so on" if form in PER_HOST else "on any host"
    if not names or (form not in PER_HOST and len(names) == len(model.workloads)):
        return ()
    return [f"launch.yml has no `placement` for {', '.join(names)}: they run {where}"]


def check_agent(launch: LaunchFile, form: str) -> Sequence[Finding]:
    """An error if the launcher can't mount the agent of launch.yml."""
    if launch.agent is None or launch.agent.kind in AGENTS[form]:
        return ()
    expected = " or ".join(AGENT_FORMS[kind] for kind in AGENTS[form])
    what = f"agent: expected {expected} for {form}, found {AGENT_FORMS[launch.agent.kind]}"
    return launch.located([Issue(ERROR, NAME, what, "agent")])


def check_pods(launch: LaunchFile, model: Model) -> Sequence[Finding]:
    """The errors in `kubernetes` of launch.yml."""
    return launch.located(kubernetes.conflicts(model))


def write(place: Path, root: Path, files: Mapping[str, str]) -> Sequence[str]:
    """Write each file; returns notes about other files that a launcher would read too."""
    if place.exists() and not place.is_dir():
        raise BadUsage(f"--output {place}: is not a directory")
    # A host may have the name of a file that is read as a part of DIR.
    at, parts = place.resolve(), root.resolve()
    if at == parts or any(at.is_relative_to(parts / name) for name in directory.TOP):
        raise BadUsage(
            f"--output {place}: the files would be taken for parts of {root}: give another directory"
        )
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        parent = (place / name).parent
        if parent != place and parent.is_symlink():
            raise CannotWrite(f"{parent} is a link: remove it, because files of {parent.name} belong there")
        parent.mkdir(exist_ok=True)
        write_public(place / name, text.encode())
    # kustomize refuses a directory that has two files for it.
    patterns = {
        "*/" * name.count("/") + (f"*{Path(name).suffix}" if Path(name).suffix else f"{name.lower()}.y*ml")
        for name in files
    }
    there = {path for pattern in patterns for path in place.glob(pattern)}
    return [f"left {path}, {FOREIGN}" for path in sorted(there - {place / name for name in files})]
