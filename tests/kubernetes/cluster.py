"""A Kubernetes of several nodes on one machine: the real API server, controllers, kubelets and containerd.

    control          192.0.2.100: the control plane and ZooKeeper, and the bridge between all machines
    the first node   192.0.2.1, its pods 10.244.1.0/24
    Services         10.96.0.0/16, which `control` reaches by way of a node

There is no DNS. Several clusters may run at the same time: nothing of one is visible outside.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.containers.podman import MOUNTED, Podman
from tests.kubernetes.machine import Machine, remove_leftovers
from tests.support.waiting import eventually
from tests.support.zookeeper import Server, Started

Document = dict[str, Any]

CONTROL, SERVICES, PODS = "192.0.2.100", "10.96.0.0/16", "10.244.0.0/16"
PAUSE = "localhost/pause:1"  # the image that keeps a pod's namespaces
FOREVER = '["/busybox", "sleep", "infinity"]'
ADMIN = "admin"
# Seconds. A node that is cut off loses its pods after 12 s; by default it would be 340 s.
LEASE, GRACE, TOLERATION = 4, 8, 4
CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{place}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def saved(place: Path, store: Path, images: Mapping[str, Sequence[str]]) -> Path:
    """An archive for `Cluster.load`: images of a storage with new names, if any, and what each node needs."""
    podman, archive = Podman(place / "podman", store), place / "images.tar"
    try:
        made = podman("create", podman.make_mounted(), "none").stdout.strip()
        podman("commit", "--quiet", f"--change=ENTRYPOINT {FOREVER}", made, PAUSE)
        wanted = [MOUNTED, PAUSE]
        for image, names in images.items():
            if names:  # All at once: the next call would take the names of a read-only image away.
                podman("tag", image, *names)
            wanted += names or [image]
        podman("save", "--quiet", "--multi-image-archive", f"--output={archive}", *wanted)
    finally:
        podman.end()
    return archive


class ZooKeeper(Server):
    """In the network of the control plane, where pods and nodes reach it."""

    @property
    def hosts(self) -> str:
        return f"{CONTROL}:{self.port}"


class Cluster(Started):
    """A running cluster; `programs` is the directory of Kubernetes' programs."""

    def __init__(self, directory: Path, programs: Path, names: Sequence[str]) -> None:
        self.directory, self.programs = directory, directory / "bin"
        self.programs.mkdir(parents=True)
        for program in programs.iterdir():
            (self.programs / program.name).symlink_to(program)
        addresses = {"control": CONTROL, **{name: f"192.0.2.{n}" for n, name in enumerate(names, 1)}}
        lines = (f"{address} {name}\n" for name, address in addresses.items())
        self.hosts = "".join(("127.0.0.1 localhost\n", *lines))
        self._volumes: list[Document] = []
        self.control = Control(self, names)
        self.nodes = {name: Node(self, name, number) for number, name in enumerate(names, 1)}

    # -- starting and ending --------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Start everything; then the nodes still need `load`."""
        remove_leftovers()
        self.control.boot()
        self._choose_tables()
        for node in self.nodes.values():
            node.boot()
        for node in self.nodes.values():
            node.connect()
        self.reach_services_by(node.name)
        with self.control.network():
            self.zookeeper = ZooKeeper(
                self.directory / "zookeeper", settings={"clientPortAddress": "0.0.0.0"}
            )
            self.zookeeper.launch_server()
            self.control.start_plane()
            self.zookeeper.await_serving()
        for node in self.nodes.values():
            node.start_kubelet()
        eventually(lambda: self.ready_nodes == list(self.nodes), "all nodes are ready")

    @property
    def ready_nodes(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.get("nodes") if condition(each, "Ready")]

    def stop(self) -> None:
        """End everything, however far the start has come."""
        if hasattr(self, "zookeeper"):
            self.zookeeper.kill()
        for machine in (*self.nodes.values(), self.control):
            machine.end()

    def _choose_tables(self) -> None:
        """Kernels lack nftables or the older tables: take what works."""
        if self.control.run("iptables --table nat --list-rules", check=False):
            return
        for name in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                (self.programs / f"{name}{suffix}").symlink_to(f"/usr/sbin/{name}-legacy{suffix}")

    # -- using it -------------------------------------------------------------------------------------

    def kubectl(self, *words: str, given: str = "", seconds: float = 300) -> str:
        """The output of a command; `given` is its standard input."""
        with self.control.network():
            done = subprocess.run(
                (str(self.programs / "kubectl"), *words),
                env={**os.environ, "KUBECONFIG": str(self.control.kubeconfig(ADMIN))},
                input=given,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> list[Document]:
        """Objects that `kubectl get` finds."""
        found: list[Document] = json.loads(self.kubectl("get", *words, "--output=json"))["items"]
        return found

    def load(self, archive: Path) -> None:
        """Copy the images of an archive, as `podman save` makes it, to all nodes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes.values()))

    def provide_volumes(self, count: int) -> None:
        """Make more volumes, each for any claim, on storage that all nodes have in common."""
        first = len(self._volumes)
        for number in range(first, first + count):
            place = self.directory / f"volumes/{number}"
            place.mkdir(parents=True)
            anywhere = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
            spec = {
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                # A kubelet gives these, and no `hostPath`, to a pod's fsGroup.
                "local": {"path": str(place)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [anywhere]}},
            }
            self._volumes.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"volume-{number}"},
                    "spec": spec,
                }
            )
        self.kubectl("apply", "--filename", "-", given=yaml.safe_dump_all(self._volumes[first:]))

    def reach_services_by(self, node: str) -> None:
        """Send requests from the control plane to Services by way of this node."""
        self.control.run(f"ip route replace {SERVICES} via {self.nodes[node].address}")

    def cut(self, node: str) -> None:
        """Disconnect a node from all others."""
        self.control.run(f"ip link set {node} down")

    def join(self, node: str) -> None:
        """Take back `cut`."""
        self.control.run(f"ip link set {node} up")

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Meanwhile ZooKeeper does not answer; connections stay open."""
        self.zookeeper.freeze()
        try:
            yield
        finally:
            self.zookeeper.thaw()


def condition(document: Document, kind: str) -> bool:
    """Whether this condition of an object is true."""
    found = document.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in found)


class Control(Machine):
    """The control plane, and the switch that connects the nodes."""

    def __init__(self, cluster: Cluster, names: Sequence[str]) -> None:
        super().__init__("control", cluster.directory / "control", cluster.programs, cluster.hosts)
        self.users = {ADMIN: (ADMIN, "system:masters")}
        self.users.update((name, (f"system:node:{name}", "system:nodes")) for name in names)
        self._tokens = {name: secrets.token_hex() for name in self.users}

    def kubeconfig(self, name: str) -> Path:
        return self.directory / f"{name}.kubeconfig"

    def boot(self) -> None:
        super().boot()
        self.run("ip link add switch type bridge")
        self.run(f"ip address add {CONTROL}/24 dev switch")
        self.run("ip link set switch up")

    def start_plane(self) -> None:
        """Start all parts; the API server is ready, the others may not be."""
        place, certificate = self.directory, self.directory / "certificates/apiserver.crt"
        key, tokens = place / "accounts.key", place / "tokens"
        self.run(f"openssl genrsa -out {key} 2048")
        lines = (
            f'{self._tokens[name]},{user},{user},"{group}"' for name, (user, group) in self.users.items()
        )
        _write(tokens, "\n".join(lines))
        self.start(f"etcd --data-dir {place}/etcd --unsafe-no-fsync --logger zap")
        self.start(
            f"kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address {CONTROL}"
            f" --cert-dir {certificate.parent} --token-auth-file {tokens} --authorization-mode Node,RBAC"
            f" --service-cluster-ip-range {SERVICES} --allow-privileged"
            " --kubelet-preferred-address-types InternalIP"
            f" --service-account-key-file {key} --service-account-signing-key-file {key}"
            " --service-account-issuer https://kubernetes.default.svc"
            f" --default-not-ready-toleration-seconds {TOLERATION}"
            f" --default-unreachable-toleration-seconds {TOLERATION}"
        )
        eventually(certificate.exists, "the API server has its certificate")
        for name in self.users:
            context = {"cluster": "kube", "user": name}
            config = {
                "current-context": "kube",
                "clusters": [
                    {
                        "name": "kube",
                        "cluster": {
                            "server": f"https://{CONTROL}:6443",
                            "certificate-authority": str(certificate),
                        },
                    }
                ],
                "contexts": [{"name": "kube", "context": context}],
                "users": [{"name": name, "user": {"token": self._tokens[name]}}],
            }
            _write(self.kubeconfig(name), yaml.safe_dump(config))
        ready = f"kubectl --kubeconfig {self.kubeconfig(ADMIN)} get --raw /readyz"
        eventually(lambda: self.run(ready, check=False) == "ok", "the API server is ready")
        given = f"--kubeconfig {self.kubeconfig(ADMIN)} --leader-elect=false"
        self.start(
            f"kube-controller-manager {given} --service-account-private-key-file {key}"
            f" --root-ca-file {certificate} --node-monitor-grace-period {GRACE}s --node-monitor-period 1s"
        )
        self.start(f"kube-scheduler {given}")


class Node(Machine):
    """A node: containerd, a kubelet, and a kube-proxy."""

    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        super().__init__(name, cluster.directory / name, cluster.programs, cluster.hosts)
        self._cluster, self.number = cluster, number
        self.address, self.pods = f"192.0.2.{number}", f"10.244.{number}.0/24"

    def boot(self) -> None:
        """With its network, and with containerd, which can be given images."""
        super().boot()
        control = self._cluster.control
        with control.network():  # Not inside `control`, which does not see our process.
            link = f"ip link add {self.name} type veth peer name eth0 netns {self.pid}"
            subprocess.run(link.split(), check=True)
        control.run(f"ip link set {self.name} master switch up")
        self.run(f"ip address add {self.address}/24 dev eth0")
        self.run("ip link set eth0 up")
        self.run(f"ip route add default via {CONTROL}")
        self.run("sysctl -qw net.ipv4.ip_forward=1")
        bridge = {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "kube", "plugins": [bridge, ports]}
        (self.directory / "cni").mkdir()
        (self.directory / "cni/10-bridge.conflist").write_text(json.dumps(network))
        (self.directory / "containerd.toml").write_text(
            CONTAINERD.format(pause=PAUSE, place=self.directory / "cni")
        )
        self.start(f"containerd --config {self.directory}/containerd.toml")

    def connect(self) -> None:
        """The ways to the pods of the other nodes."""
        control, nodes = self._cluster.control, self._cluster.nodes.values()
        control.run(f"ip route add {self.pods} via {self.address}")
        for other in nodes:
            if other is not self:
                self.run(f"ip route add {other.pods} via {other.address}")

    def start_kubelet(self) -> None:
        """It registers the node."""
        place = self.directory
        # Names are refused at once: else each reverse look-up of a pod would wait for an answer.
        (place / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            # Only machines and pods of this cluster reach it.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "nodeLeaseDurationSeconds": LEASE,
            # However full the disk is.
            "evictionHard": {
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "memory.available": "100Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            "resolvConf": str(place / "resolv.conf"),
        }
        (place / "kubelet.yml").write_text(yaml.safe_dump(config))
        control = self._cluster.control
        self.start(
            f"kubelet --config {place}/kubelet.yml --kubeconfig {control.kubeconfig(self.name)}"
            f" --hostname-override {self.name} --node-ip {self.address}"
        )
        self.start(
            f"kube-proxy --kubeconfig {control.kubeconfig(ADMIN)} --proxy-mode iptables"
            f" --hostname-override {self.name} --cluster-cidr {PODS} --conntrack-max-per-core 0"
            " --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0"
        )

    def load(self, archive: Path) -> None:
        self.run(f"ctr --namespace k8s.io images import {archive}")


def _write(path: Path, text: str) -> None:
    """A file that only its owner can read."""
    path.touch(0o600)
    path.write_text(text)
