"""A deployment as Kubernetes takes it: 1.31 or newer.

    task                          Job, whose name has the generation; with `replicas: each` one for each host
    service                       Deployment
    service, data of its own      StatefulSet, whose pods are the hosts of scope `local`: data follow the pod
    service, on each host         DaemonSet

What lives here: what stands in the manifests. Everything is started at once: the agents keep the order.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kolla_mesos_start.errors import listed
from kolla_mesos_start.operator.deployment import formats
from kolla_mesos_start.operator.deployment.container_settings import KEPT, SHARED, TEMPORARY, Volume
from kolla_mesos_start.operator.manifests.model import (
    CREDENTIAL,
    DATA,
    FINAL,
    HEALTH,
    READY,
    UNAVAILABLE,
    Manifests,
    Model,
    Mounted,
    Workload,
)
from kolla_mesos_start.operator.manifests.names import digested, distinct, label, name_of

Document = dict[str, Any]

CONTAINER = "agent"  # in each pod
NAME, PART_OF, HOSTNAME = "app.kubernetes.io/name", "app.kubernetes.io/part-of", "kubernetes.io/hostname"
LONGEST_JOB = 63
PATIENCE = 7200  # seconds that a container may wait for others; while it does, it is healthy
# Of a secret's files; their group is the pod's fsGroup, which only a user's number can be.
GROUP_READS, ALL_READ = 0o440, 0o444


def manifests(model: Model) -> Manifests:
    """One file for each service."""
    documents = {f"{each.name}.yml": list(_Objects(model.deployment, each).all()) for each in model.workloads}
    return Manifests(
        {name: formats.dumped(each) for name, each in sorted(documents.items())}, list(notes(model))
    )


def notes(model: Model) -> Iterator[str]:
    """What the manifests name, and only the operator can make."""
    keys = {(each.variables, "its keys are variables (KOLLA_VARIABLES_DIR)") for each in model.workloads}
    credentials = {
        (each.credential, f"its key {CREDENTIAL!r} has lines scheme:credential (KOLLA_ZK_AUTH_FILE)")
        for each in model.workloads
    }
    for name, what in sorted(keys | credentials, key=str):
        if name:
            yield f"create the Secret {name}: {what}"
    shared = {volume.source for each in model.workloads for volume in each.volumes if volume.kind == SHARED}
    yield from (
        f"create the PersistentVolumeClaim {name}, which several pods can write" for name in sorted(shared)
    )
    for each in model.workloads:
        kept = [volume.path for volume in each.volumes if volume.kind == KEPT and not _has_claims(each)]
        if kept:
            where = ", ".join(_of_host(model.deployment, each, path) for path in kept)
            yield f"make {where} on each host of {each.service}, for its user to write"
        for file in each.mounted:
            if file.content is None:
                yield f"add {file.name} of {each.service} to its ConfigMap: DIR has no such file"
    unsaid = listed(each.service for each in model.workloads if each.user is None)
    if unsaid:
        yield f"without `user` in launch.yml, the image has to name its USER by number, and not 0: {unsaid}"


# -- one service ----------------------------------------------------------------------------------


class _Objects:
    """All that Kubernetes has to have for one service."""

    def __init__(self, deployment: str, workload: Workload) -> None:
        self.deployment, self.name, self.workload = deployment, workload.name, workload
        self.labels = {NAME: self.name, PART_OF: name_of(deployment)}

    def all(self) -> Iterator[Document]:
        """What others name comes first."""
        if any(file.content is not None for file in self.workload.mounted):
            yield self.config_map()
        if self.workload.is_task:
            yield from self.jobs()
            return
        if self.workload.ports or self.is_stateful:
            yield self.service()
        yield self.controller()

    @property
    def is_stateful(self) -> bool:
        return _has_claims(self.workload)

    def object(self, version: str, kind: str, body: Document, name: str = "") -> Document:
        metadata = {"name": name or self.name, "labels": self.labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}

    # -- what is beside the pods --------------------------------------------------------------------

    def config_map(self) -> Document:
        texts, binary = {}, {}
        for key, file in self.keys().items():
            try:
                texts[key] = (file.content or b"").decode()
            except UnicodeDecodeError:
                binary[key] = base64.b64encode(file.content or b"").decode()
        data = {"data": texts, **({"binaryData": binary} if binary else {})}
        return self.object("v1", "ConfigMap", data, f"{self.name}-files")

    def keys(self) -> Mapping[str, Mounted]:
        """The mounted files by their keys: the same name may be mounted at several places."""
        found: dict[str, Mounted] = {}
        for file in self.workload.mounted:
            key = re.sub(r"[^-._a-zA-Z0-9]", "-", file.name)
            found[key if key not in found else digested(key, file.path, 253)] = file
        return found

    def service(self) -> Document:
        ports = [{"name": f"port-{port}", "port": port, "targetPort": port} for port in self.workload.ports]
        spec: Document = {"clusterIP": "None"} if self.is_stateful else {}
        spec["selector"] = {NAME: self.name}
        return self.object("v1", "Service", {"spec": {**spec, **({"ports": ports} if ports else {})}})

    # -- what makes the pods ------------------------------------------------------------------------

    def controller(self) -> Document:
        """Of a service: readiness lets a rolling update go on."""
        spec: Document = {"selector": {"matchLabels": {NAME: self.name}}}
        # A new pod on a host's own network, or on each host, would find the old one's ports in use.
        gap = {"maxUnavailable": 1} if self.workload.is_each else {"maxSurge": 0, "maxUnavailable": 1}
        extra = {"maxSurge": 1, "maxUnavailable": 0}
        if self.workload.is_each:
            spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": gap}
            return self.object("apps/v1", "DaemonSet", {"spec": {**spec, "template": self.template()}})
        spec = {"replicas": self.workload.replicas, **spec}
        if self.is_stateful:
            # None waits for another: they order themselves.
            spec.update(serviceName=self.name, podManagementPolicy="Parallel")
            claims = [self.claim(each) for each in self.kept()]
            body = {**spec, "template": self.template(), "volumeClaimTemplates": claims}
            return self.object("apps/v1", "StatefulSet", {"spec": body})
        spec["progressDeadlineSeconds"] = PATIENCE
        update = gap if self.workload.on_host_network else extra
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": update}
        return self.object("apps/v1", "Deployment", {"spec": {**spec, "template": self.template()}})

    def jobs(self) -> Iterator[Document]:
        """One for each host where there is one on each. A Job can't be changed: its name says what it is."""
        for host in self.workload.hosts if self.workload.is_each else ("",):
            spec = {
                "backoffLimit": 6,
                "activeDeadlineSeconds": PATIENCE,
                "ttlSecondsAfterFinished": 86400,
                # The next pod only when the previous one has ended: until then its command may still run.
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": list(_rules())},
                "template": self.template([host] if host else self.workload.hosts),
            }
            generations = dict.fromkeys(
                [*self.workload.generations, self.workload.env.get("KOLLA_GENERATION", "")]
            )
            name = label("-".join([self.name, *filter(None, [host, *generations])]))
            of = json.dumps([self.workload.service, *generations, spec])
            yield self.object("batch/v1", "Job", {"spec": spec}, digested(name, of, LONGEST_JOB))

    # -- the pod ------------------------------------------------------------------------------------

    def template(self, hosts: Sequence[str] | None = None) -> Document:
        hosts = self.workload.hosts if hosts is None else hosts
        user, grace = self.workload.user, self.workload.grace
        spec: Document = {"restartPolicy": "Never"} if self.workload.is_task else {}
        spec["terminationGracePeriodSeconds"] = grace
        spec["automountServiceAccountToken"] = False
        # A Service named kolla would otherwise set variables that begin with KOLLA_.
        spec["enableServiceLinks"] = False
        if self.workload.on_host_network:
            spec.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
        security: Document = {"runAsNonRoot": user != 0}
        if user is not None:
            security.update(runAsUser=user, fsGroup=user)
        spec["securityContext"] = {**security, "seccompProfile": {"type": "RuntimeDefault"}}
        if hosts:
            spec["affinity"] = {"nodeAffinity": _on(hosts)}
        if self.workload.replicas > 1 and not self.workload.is_each:
            spec["topologySpreadConstraints"] = [self.spread()]
        spec["containers"] = [self.container()]
        volumes = list(self.volumes())
        if volumes:
            spec["volumes"] = volumes
        return {"metadata": {"labels": self.labels}, "spec": spec}

    def spread(self) -> Document:
        return {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {NAME: self.name}},
        }

    def container(self) -> Document:
        """The image's ENTRYPOINT, dumb-init, stays in front of the agent."""
        workload = self.workload
        found: Document = {"name": CONTAINER, "image": workload.image, "args": list(workload.argv)}
        found["env"] = self.env()
        if workload.ports:
            found["ports"] = [{"name": f"port-{port}", "containerPort": port} for port in workload.ports]
        if not workload.is_task:
            # A container that waits is healthy and not ready, however long: no startupProbe is needed.
            found["livenessProbe"] = _probe(HEALTH, periodSeconds=10, failureThreshold=3)
            found["readinessProbe"] = _probe(READY, periodSeconds=5)
        found["terminationMessagePolicy"] = "File"
        found.update(_resources(workload))
        capabilities = {
            "drop": ["ALL"],
            **({"add": list(workload.capabilities)} if workload.capabilities else {}),
        }
        security: Document = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
        found["securityContext"] = {
            **security,
            **({"readOnlyRootFilesystem": True} if workload.read_only else {}),
        }
        mounts = list(self.mounts())
        return {**found, **({"volumeMounts": mounts} if mounts else {})}

    def env(self) -> Sequence[Document]:
        found: list[Document] = [_field("NODE_NAME", "spec.nodeName")]
        if self.is_stateful:
            found.append(_field("KOLLA_HOSTNAME", "metadata.name"))
        values = self.workload.environ
        # What launch.yml says itself wins.
        found = [each for each in found if each["name"] not in values]
        # Kubernetes would replace $(NAME), and $$ by $.
        return [
            *found,
            *({"name": name, "value": value.replace("$", "$$")} for name, value in values.items()),
        ]

    # -- its volumes --------------------------------------------------------------------------------

    def volume_names(self) -> Mapping[str, str]:
        """By the paths at which they are mounted."""
        own = [each.path for each in self.workload.directories]
        return distinct({path: label(path) for path in (*own, *self.places(), *self.workload.secrets)})

    def kept(self) -> Sequence[Volume]:
        return [each for each in self.workload.volumes if each.kind == KEPT]

    def claim(self, volume: Volume) -> Document:
        requests = {"storage": f"{volume.size}Mi"}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": requests}}
        return {"metadata": {"name": self.volume_names()[volume.path]}, "spec": spec}

    def volumes(self) -> Iterator[Document]:
        names = self.volume_names()
        for volume in self.workload.directories:
            source = self.source(volume)
            if source:
                yield {"name": names[volume.path], **source}
        for place, keys in self.places().items():
            items = [{"key": key, "path": path} for key, path in keys.items()]
            yield {"name": names[place], "configMap": {"name": f"{self.name}-files", "items": items}}
        mode = ALL_READ if self.workload.user is None else GROUP_READS
        for path, secret in self.workload.secrets.items():
            yield {"name": names[path], "secret": {"secretName": secret, "defaultMode": mode}}

    def source(self, volume: Volume) -> Document:
        """Where its content is; nothing for a claim of the pod's own, which stands elsewhere."""
        if volume.kind == SHARED:
            return {"persistentVolumeClaim": {"claimName": volume.source}}
        if volume.kind == TEMPORARY:
            return {"emptyDir": {}}
        if volume.kind == KEPT and self.is_stateful:
            return {}
        path = volume.source or _of_host(self.deployment, self.workload, volume.path)
        return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}

    def places(self) -> Mapping[str, Mapping[str, str]]:
        """The directories of mounted files, and in each the key of every file by its name there."""
        found: dict[str, dict[str, str]] = {}
        for key, file in self.keys().items():
            place, name = posixpath.split(file.path)
            found.setdefault(place, {})[key] = name
        return found

    def mounts(self) -> Iterator[Document]:
        written = {each.path for each in self.workload.directories}
        for path, name in self.volume_names().items():
            yield {"name": name, "mountPath": path, **({} if path in written else {"readOnly": True})}


def _has_claims(workload: Workload) -> bool:
    """Whether each of its pods has a claim of its own: pods of tasks, and of a DaemonSet, can't."""
    return workload.keeps_data and not workload.is_task and not workload.is_each


def _of_host(deployment: str, workload: Workload, path: str) -> str:
    """Where a host keeps what lies at `path` in a container that has no claim."""
    return f"{DATA}/{name_of(deployment)}/{workload.name}{path}"


def _rules() -> Iterator[Document]:
    """What becomes of a pod that has failed: the agent's exit status says whether to try again."""
    # The node was drained, or a pod with a higher priority needed it.
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    yield {"action": "Ignore", "onPodConditions": disrupted}
    for action, statuses in (("FailJob", FINAL), ("Ignore", UNAVAILABLE), ("Count", (1,))):
        codes = {"containerName": CONTAINER, "operator": "In", "values": list(statuses)}
        yield {"action": action, "onExitCodes": codes}


def _on(hosts: Sequence[str]) -> Document:
    match = {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
    terms = [{"matchExpressions": [match]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _field(name: str, path: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(argv: Sequence[str], **times: int) -> Document:
    return {"exec": {"command": list(argv)}, **times, "timeoutSeconds": 5}


def _resources(workload: Workload) -> Document:
    """Memory is a limit too: what exceeds it is killed. A processor's share is only what it gets at least."""
    memory = {"memory": f"{workload.memory}Mi"} if workload.memory else {}
    requests = {**({"cpu": f"{workload.cpu}m"} if workload.cpu else {}), **memory}
    if not requests:
        return {}
    return {"resources": {"requests": requests, **({"limits": memory} if memory else {})}}
