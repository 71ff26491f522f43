"""The manifests for Kubernetes 1.31 or newer.

    task                          Job, whose name has the generation; with `replicas: each` one for each host
    service                       Deployment
    service, data of its own      StatefulSet, whose pods are the hosts of scope `local`: data follow the pod
    service, on each host         DaemonSet
    service of several pods       also a PodDisruptionBudget

Everything is started at once: the agents keep the order.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.ctl.directory import formats, pod_template
from kolla_mesos_start.ctl.directory.container_settings import (
    FROM_HOST,
    IMAGE,
    KEPT,
    NAMED,
    SHARED,
    TCP,
    TEMPORARY,
    Port,
    Volume,
)
from kolla_mesos_start.ctl.directory.findings import ERROR, Issue
from kolla_mesos_start.ctl.directory.launch import NAME as LAUNCH
from kolla_mesos_start.ctl.directory.pod_template import CONTAINER
from kolla_mesos_start.ctl.manifests.model import (
    CREDENTIAL,
    CREDENTIAL_DIR,
    FINAL,
    TERM,
    UNAVAILABLE,
    Manifests,
    Model,
    Mounted,
    Workload,
    digested,
    distinct,
    filled,
    label,
)
from kolla_mesos_start.errors import listed

Document = dict[str, Any]

LOGS = {"KOLLA_LOGS": f"kubectl -n $(POD_NAMESPACE) logs $(POD_NAME) -c {CONTAINER}"}
NAME, PART_OF, HOSTNAME = "app.kubernetes.io/name", "app.kubernetes.io/part-of", "kubernetes.io/hostname"
KUSTOMIZATION = "Kustomization"  # a kind, and the name of the file
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LONGEST_JOB = 63
# Seconds between a pod's leaving its Service and the stop signal: nodes learn of it within a second or two.
LEAVING = 5
PATIENCE = 7200  # seconds that a container may wait for others; while it does, it is healthy
# The names that Kubernetes has for them.
BOTH_WAYS, FROM_NODE = "Bidirectional", "HostToContainer"
PROPAGATIONS = {
    **dict.fromkeys(("shared", "rshared"), BOTH_WAYS),
    **dict.fromkeys(("slave", "rslave"), FROM_NODE),
}
# Runs in the image before the agent, with the directories of the node below $0: an unused one gets what the
# image has at that path, with its owner and mode, as a volume of a container engine does. If the image has
# nothing there, it becomes the user's ($1), unless another one has it already. A copy that was interrupted is
# made again.
VOLUMES = "/volumes"
COPY = """\
user=$1 && shift
for path; do
  exec 9<"$0$path" && flock 9 || exit
  if [ -n "$(ls -A "$0$path")" ] && [ ! -e "$0$path/.copying" ]; then continue; fi
  if [ -d "$path" ]; then
    : >"$0$path/.copying" && cp -a "$path/." "$0$path" && rm "$0$path/.copying" || exit
  elif [ "$(stat -c %u "$0$path")" = 0 ]; then
    chown "$user:$user" "$0$path" || exit
  fi
done
"""
NOBODY = 65534  # owns a copy of the agent, which is read-only in the daemon's container
COPY_RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
# Of a secret's files; their group is the pod's fsGroup, which only a user's number can be.
GROUP_READS, ALL_READ = 0o440, 0o444


def manifests(model: Model) -> Manifests:
    """One file for each service, and one that lists them for kustomize, which `kubectl apply -f` ignores."""
    documents = {f"{each.name}.yml": list(_Objects(each).all()) for each in model.workloads}
    files = {name: formats.dumped(each) for name, each in sorted(documents.items())}
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": KUSTOMIZATION}
    listing = formats.dumped([{**kind, "resources": list(files)}])
    return Manifests({**files, KUSTOMIZATION: listing}, list(notes(model)), "".join(files.values()))


def conflicts(model: Model) -> Iterator[Issue]:
    """What contradicts the manifests in `kubernetes` of launch.yml."""
    for each in model.workloads:
        parts = each.settings.kubernetes or ()
        written = _Objects(each).own_template() if parts else {}
        for part in parts:
            for place, why in pod_template.conflicts(written, part):
                # One of the defaults may contradict many services.
                of = f"for {each.service}, " if place.startswith("defaults.") else ""
                yield Issue(ERROR, LAUNCH, f"{place}: {of}{why}", place, about=place)


def notes(model: Model) -> Iterator[str]:
    """What the manifests refer to, and the operator has to create."""
    secrets = {(name, path) for each in model.workloads for path, name in each.secrets.items()}
    for name, path in sorted(secrets):
        what = "its keys are variables (KOLLA_VARIABLES_DIR)"
        if path == CREDENTIAL_DIR:
            what = f"its key {CREDENTIAL!r} has lines scheme:credential (KOLLA_ZK_AUTH_FILE)"
        yield f"create the Secret {name}: {what}"
    for name in sorted({volume.source for each in model.workloads for volume in each.of_kind(SHARED)}):
        yield f"create the PersistentVolumeClaim {name}, which several pods can write"
    agents = {each.agent.source for each in model.workloads if each.agent and each.agent.kind == FROM_HOST}
    yield from (f"make {place}, the agent, on each node, with bin/agent-directory" for place in agents)
    missing = [
        f"{file.name} of {each.service}"
        for each in model.workloads
        for file in each.mounted
        if file.content is None
    ]
    if missing:
        yield f"add files to ConfigMaps that DIR does not have: {listed(missing)}"
    near = listed(each.service for each in model.workloads if _uses_node(each))
    if near:
        yield f"only a namespace with Pod Security `privileged` has the node's network or directories: {near}"
    unknown = listed(each.service for each in model.workloads if each.settings.user is None)
    if unknown:
        what = "which a namespace with Pod Security `restricted` refuses"
        yield f"without `user` in launch.yml, the image's own USER is used, {what}: {unknown}"
    lost: dict[str, set[str]] = {}
    for each in model.workloads:
        for what in _lost(each):
            lost.setdefault(what, set()).add(each.service)
    yield from (f"{what}: {listed(services)}" for what, services in sorted(lost.items()))


def _uses_node(workload: Workload) -> bool:
    """Whether its pods have the network, a namespace or a directory of their node."""
    settings = workload.settings
    objects = _Objects(workload)
    has_directory = any(objects.is_of_node(each) or each.kind == FROM_HOST for each in workload.directories)
    return workload.on_host_network or bool(settings.namespaces or settings.privileged) or has_directory


def _lost(workload: Workload) -> Iterator[str]:
    """What a pod can't have, and what to do instead."""
    settings = workload.settings
    given = {"limits": bool(settings.limits), "security_options": bool(settings.security_options)}
    given["cgroup"] = "cgroup" in settings.namespaces
    for name, is_set in given.items():
        if is_set:
            yield f"a pod has no `{name}`: configure it on the hosts of"
    if workload.stop_signal != TERM:
        yield f"a pod has no stop signal: build STOPSIGNAL SIG{workload.stop_signal} into the images of"
    can_mount = not settings.privileged and {"ALL", "SYS_ADMIN"} & {*(settings.capabilities or ())}
    for volume in workload.volumes:
        if can_mount and PROPAGATIONS.get(volume.propagation) == BOTH_WAYS:
            yield f"without `privileged: true`, mounts in {volume.path} stay those of a pod, in"
    for device in settings.devices or ():
        path = device.partition(":")[0]
        how = f"with a device plugin, or with privileged: true and {{host: {path}}}"
        yield f"a pod has no `devices`: give {path} {how}, to"


class _Objects:
    """The Kubernetes objects of one service."""

    def __init__(self, workload: Workload) -> None:
        self.name, self.workload = workload.name, workload
        self.labels = {NAME: self.name, PART_OF: workload.project}
        is_one_set = not (workload.is_task or workload.is_each)
        # Each pod has a claim of its own. Pods of a Job or a DaemonSet can't have one.
        self.is_stateful = bool(workload.of_kind(KEPT)) and is_one_set
        self.has_several = (workload.replicas > 1 or workload.is_scaled) and is_one_set

    def all(self) -> Iterator[Document]:
        """Those that others refer to come first."""
        if any(file.content is not None for file in self.workload.mounted):
            yield self.config_map()
        if self.workload.is_task:
            yield from self.jobs()
            return
        if self.workload.ports or self.is_stateful:
            yield self.service()
        if self.has_several:
            yield self.disruption_budget()
        yield self.controller()

    def object(self, version: str, kind: str, body: Document, name: str = "") -> Document:
        metadata = {"name": name or self.name, "labels": self.labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}

    def config_map(self) -> Document:
        texts, binary = {}, {}
        for key, file in self.keys().items():
            try:
                texts[key] = (file.content or b"").decode()
            except UnicodeDecodeError:
                binary[key] = base64.b64encode(file.content or b"").decode()
        data = {"data": texts, **filled({"binaryData": binary})}
        return self.object("v1", "ConfigMap", data, f"{self.name}-files")

    def keys(self) -> Mapping[str, Mounted]:
        """The mounted files by their keys: the same name may be mounted at several paths."""
        found: dict[str, Mounted] = {}
        for file in self.workload.mounted:
            key = re.sub(r"[^-._a-zA-Z0-9]", "-", file.name)
            found[key if key not in found else digested(key, file.path, 253)] = file
        return found

    def service(self) -> Document:
        ports = [
            {**named, "port": port.number, "targetPort": port.number} for port, named in self.named_ports()
        ]
        headless = "None" if self.is_stateful else None
        spec = filled({"clusterIP": headless, "selector": {NAME: self.name}, "ports": ports})
        return self.object("v1", "Service", {"spec": spec})

    def named_ports(self) -> Iterator[tuple[Port, Document]]:
        """The ports with a unique name and, unless it is TCP, their protocol."""
        for port in self.workload.ports:
            name = f"port-{port}".replace("/", "-")
            yield (
                port,
                {"name": name, **({} if port.protocol == TCP else {"protocol": port.protocol.upper()})},
            )

    def disruption_budget(self) -> Document:
        """How many a drained node may evict. One that is not ready may always be evicted."""
        spec = {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {NAME: self.name}},
        }
        return self.object("policy/v1", "PodDisruptionBudget", {"spec": spec})

    # -- controllers --------------------------------------------------------------------------------

    def controller(self) -> Document:
        """The controller of a service. A rolling update goes on once a new pod is ready."""
        spec: Document = {"selector": {"matchLabels": {NAME: self.name}}}
        # On the host's own network, or with one pod on each host, old and new pods need the same ports; and
        # a cluster has no other members.
        gap = {"maxUnavailable": 1} if self.workload.is_each else {"maxSurge": 0, "maxUnavailable": 1}
        extra = {"maxSurge": 1, "maxUnavailable": 0}
        if self.workload.is_each:
            spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": gap}
            return self.object("apps/v1", "DaemonSet", {"spec": {**spec, "template": self.template()}})
        # `kubectl apply` leaves a number alone that no manifest has had.
        spec = {**({} if self.workload.is_scaled else {"replicas": self.workload.replicas}), **spec}
        if self.is_stateful:
            # The agents keep the order, not Kubernetes.
            spec.update(serviceName=self.name, podManagementPolicy="Parallel")
            claims = [self.claim(each) for each in self.workload.of_kind(KEPT)]
            body = {**spec, "template": self.template(), "volumeClaimTemplates": claims}
            return self.object("apps/v1", "StatefulSet", {"spec": body})
        spec["progressDeadlineSeconds"] = PATIENCE
        update = gap if self.workload.on_host_network or self.workload.elects else extra
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": update}
        return self.object("apps/v1", "Deployment", {"spec": {**spec, "template": self.template()}})

    def jobs(self) -> Iterator[Document]:
        """One Job, or one for each host. A Job is immutable: a digest of its content is in its name."""
        for host in self.workload.hosts if self.workload.is_each else ("",):
            spec = {
                "backoffLimit": 6,
                "activeDeadlineSeconds": PATIENCE,
                "ttlSecondsAfterFinished": 86400,
                # Until the previous pod has ended, its command may still run.
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": list(_rules())},
                "template": self.template([host] if host else self.workload.hosts),
            }
            generations = dict.fromkeys(
                [*self.workload.generations, self.workload.env.get("KOLLA_GENERATION", "")]
            )
            name = label("-".join([self.name, *filter(None, [host, *generations])]))
            content = json.dumps([self.workload.service, *generations, spec])
            yield self.object("batch/v1", "Job", {"spec": spec}, digested(name, content, LONGEST_JOB))

    # -- the pod ------------------------------------------------------------------------------------

    def template(self, hosts: Sequence[str] | None = None) -> Document:
        """The pod template, with what launch.yml adds."""
        found = self.own_template(hosts)
        for part in self.workload.settings.kubernetes or ():
            found = pod_template.merged(found, part.content)
        if self.workload.is_task:  # The numbers of probes may be set for all services.
            (agent,) = (each for each in found["spec"]["containers"] if each["name"] == CONTAINER)
            for *_, probe in pod_template.PROBES:
                agent.pop(probe, None)
        return found

    def own_template(self, hosts: Sequence[str] | None = None) -> Document:
        """The pod template without what launch.yml adds; `hosts` are those of the pod."""
        workload, user = self.workload, self.workload.settings.user
        placed = workload.hosts if hosts is None else hosts
        match = {"key": HOSTNAME, "operator": "In", "values": list(placed)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [match]}]}
        near = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {NAME: self.name}}}
        spread = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", **near}
        apart = workload.elects and self.has_several  # A node must not have two members of a cluster.
        affinity = {
            "nodeAffinity": {REQUIRED: terms} if placed else None,
            "podAntiAffinity": {REQUIRED: [near]} if apart else None,
        }
        spec = {
            "restartPolicy": "Never" if workload.is_task else None,
            "terminationGracePeriodSeconds": workload.grace + self.leaving,
            "automountServiceAccountToken": False,
            # A Service named kolla would otherwise set variables that begin with KOLLA_.
            "enableServiceLinks": False,
            "hostNetwork": workload.on_host_network or None,
            "hostPID": "pid" in workload.settings.namespaces or None,
            "hostIPC": "ipc" in workload.settings.namespaces or None,
            "dnsPolicy": "ClusterFirstWithHostNet" if workload.on_host_network else None,
            "securityContext": filled(
                {
                    # A node can't check the name of an image's user, and would refuse the pod.
                    "runAsNonRoot": None if user is None else user != 0,
                    "runAsUser": user,
                    "fsGroup": user,
                    "seccompProfile": {"type": "RuntimeDefault"},
                }
            ),
            "affinity": filled(affinity),
            "topologySpreadConstraints": [spread] if self.has_several and not apart else None,
            "initContainers": list(self.init_containers()),
            "containers": [self.container()],
            "volumes": list(self.volumes()),
        }
        return {"metadata": {"labels": self.labels}, "spec": filled(spec)}

    def init_containers(self) -> Iterator[Document]:
        """The one that copies a mounted agent, and the one that prepares directories of the node."""
        if self.workload.agent and self.workload.agent.kind == IMAGE:
            yield self.copy_agent(self.workload.agent)
        # They are root's, and may be new.
        paths = [each.path for each in self.workload.volumes if self.is_of_node(each)]
        if not paths:
            return
        names = self.volume_names()
        container = {
            "name": "volumes",
            "image": self.workload.image,
            "command": ["sh", "-c", COPY, VOLUMES, str(self.workload.settings.user or 0), *paths],
            "securityContext": {
                "runAsUser": 0,
                "runAsNonRoot": False,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": list(COPY_RIGHTS)},
            },
            "resources": self.resources(),
            "volumeMounts": [{"name": names[path], "mountPath": f"{VOLUMES}{path}"} for path in paths],
        }
        yield filled(container)

    def copy_agent(self, agent: Volume) -> Document:
        """Its image has nothing but the agent and a program that copies it. It may be any version of it."""
        mount = {"name": self.volume_names()[agent.path], "mountPath": agent.path}
        container = {
            "name": "copy-agent",
            "image": agent.source,
            "command": ["/busybox", "cp", "-r", "/bin", "/lib", agent.path],
            "securityContext": {
                "runAsUser": NOBODY,
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": self.resources(),
            "volumeMounts": [mount],
        }
        return filled(container)

    def is_of_node(self, volume: Volume) -> bool:
        """Whether it is a directory of the node that only this deployment uses."""
        return volume.kind == NAMED or (volume.kind == KEPT and not self.is_stateful)

    def container(self) -> Document:
        """The container. The image's ENTRYPOINT, dumb-init, stays in front of the agent."""
        workload, is_daemon = self.workload, not self.workload.is_task
        settings = workload.settings
        rights = {"drop": ["ALL"], "add": list(settings.capabilities or ())}
        security = {
            "allowPrivilegeEscalation": not settings.is_confined,
            "privileged": settings.privileged or None,
            "capabilities": None if settings.privileged else filled(rights),
            "readOnlyRootFilesystem": settings.read_only or None,
        }
        return filled(
            {
                "name": CONTAINER,
                "image": workload.image,
                "args": list(workload.argv),
                "env": self.env(),
                "ports": [{**named, "containerPort": port.number} for port, named in self.named_ports()],
                # A container that waits is healthy and not ready, however long. A startupProbe would have to
                # choose between that and a limit: `start_timeout` counts from the daemon's start.
                # Each probe starts a program: every few seconds they would take most of the time of a node.
                "livenessProbe": _probe(workload.liveness, periodSeconds=30, failureThreshold=2)
                if is_daemon
                else None,
                "readinessProbe": _probe(workload.ready, periodSeconds=10) if is_daemon else None,
                "lifecycle": filled({"preStop": self.before_stop()}),
                "terminationMessagePolicy": "File",
                "resources": self.resources(),
                "securityContext": filled(security),
                "volumeMounts": list(self.mounts()),
            }
        )

    @property
    def leaving(self) -> int:
        """Seconds that a pod serves on once its Service has removed it; none if its daemon drains longer."""
        workload = self.workload
        serves = bool(workload.ports) and not workload.is_task
        return LEAVING if serves and workload.drain < LEAVING else 0

    def before_stop(self) -> Document | None:
        """What happens before the stop signal: kube-proxies still forward requests for a moment."""
        if self.workload.needs_hook:
            argv = list(self.workload.stop)
            if self.leaving:
                argv = ["sh", "-c", f'sleep {self.leaving}; exec "$0" "$@"', *argv]
            return {"exec": {"command": argv}}
        return {"sleep": {"seconds": self.leaving}} if self.leaving else None

    def resources(self) -> Document:
        """Memory is also a limit: a container that exceeds it is killed. The processor share is a minimum."""
        settings = self.workload.settings
        memory = filled({"memory": f"{settings.memory}Mi" if settings.memory else None})
        requests = {**filled({"cpu": f"{settings.cpu}m" if settings.cpu else None}), **memory}
        return filled({"requests": requests, "limits": memory})

    def env(self) -> Sequence[Document]:
        values = self.workload.environ
        fields = {
            "NODE_NAME": "spec.nodeName",
            "POD_NAME": "metadata.name",
            "POD_NAMESPACE": "metadata.namespace",
        }
        if self.is_stateful and not self.workload.on_host_network:
            fields["KOLLA_HOSTNAME"] = "metadata.name"
        return [
            # Values of launch.yml take precedence.
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in fields.items()
                if name not in values
            ),
            # Kubernetes would replace $(NAME), and $$ by $.
            *({"name": name, "value": value.replace("$", "$$")} for name, value in values.items()),
            # Kubernetes replaces only names that are above.
            *({"name": name, "value": value} for name, value in LOGS.items() if name not in values),
        ]

    # -- its volumes --------------------------------------------------------------------------------

    def volume_names(self) -> Mapping[str, str]:
        """The names of the volumes, by the paths at which they are mounted."""
        own = [each.path for each in self.workload.directories]
        return distinct(
            {path: label(path) for path in (*own, *self.file_directories(), *self.workload.secrets)}
        )

    def claim(self, volume: Volume) -> Document:
        requests = {"storage": f"{volume.size}Mi"}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": volume.storage_class or None,
            "resources": {"requests": requests},
        }
        return {"metadata": {"name": self.volume_names()[volume.path]}, "spec": filled(spec)}

    def volumes(self) -> Iterator[Document]:
        names = self.volume_names()
        for volume in self.workload.directories:
            if not (volume.kind == KEPT and self.is_stateful):  # That one is in volumeClaimTemplates.
                yield {"name": names[volume.path], **self.source(volume)}
        for place, keys in self.file_directories().items():
            items = [{"key": key, "path": path} for key, path in keys.items()]
            yield {"name": names[place], "configMap": {"name": f"{self.name}-files", "items": items}}
        mode = ALL_READ if self.workload.settings.user is None else GROUP_READS
        for path, secret in self.workload.secrets.items():
            yield {"name": names[path], "secret": {"secretName": secret, "defaultMode": mode}}

    def source(self, volume: Volume) -> Document:
        if volume.kind == SHARED:
            return {"persistentVolumeClaim": {"claimName": volume.source}}
        if volume.kind in (TEMPORARY, IMAGE):
            return {"emptyDir": {}}
        # A path of the host may also be a file, a socket or a device.
        kinds = {NAMED: "DirectoryOrCreate", KEPT: "DirectoryOrCreate"}
        kind = "Directory" if volume == self.workload.agent else kinds.get(volume.kind)
        return {"hostPath": filled({"path": self.workload.place(volume), "type": kind})}

    def file_directories(self) -> Mapping[str, Mapping[str, str]]:
        """The directories of mounted files: in each, the file names by their keys."""
        found: dict[str, dict[str, str]] = {}
        for key, file in self.keys().items():
            place, name = posixpath.split(file.path)
            found.setdefault(place, {})[key] = name
        return found

    def propagation(self, volume: Volume) -> str | None:
        """Kubernetes refuses the first kind unless the container is privileged."""
        wanted = PROPAGATIONS.get(volume.propagation)
        return FROM_NODE if wanted and not self.workload.settings.privileged else wanted

    def mounts(self) -> Iterator[Document]:
        own = {each.path: each for each in self.workload.directories}
        for path, name in self.volume_names().items():
            volume = own.get(path)
            is_read_only = volume is None or volume.read_only
            propagation = self.propagation(volume) if volume else None
            yield filled(
                {
                    "name": name,
                    "mountPath": path,
                    "readOnly": is_read_only or None,
                    "mountPropagation": propagation,
                }
            )


def _rules() -> Iterator[Document]:
    """How a failed pod is handled: the agent's exit status says whether another attempt can help."""
    # The node was drained, or a pod with a higher priority needed it.
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    yield {"action": "Ignore", "onPodConditions": disrupted}
    for action, statuses in (("FailJob", FINAL), ("Ignore", UNAVAILABLE), ("Count", (1,))):
        codes = {"containerName": CONTAINER, "operator": "In", "values": list(statuses)}
        yield {"action": action, "onExitCodes": codes}


def _probe(argv: Sequence[str], **times: int) -> Document:
    return {"exec": {"command": list(argv)}, **times, "timeoutSeconds": 5}
