"""The programs of Kubernetes, which Go compiles once; `.cache` keeps them.

All of them are one program, under several names: `program/` has its source, and pins the version.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from kolla_mesos_start.errors import BadUsage
from tests.examples.openstack import Say, install_packages, kept, run
from tests.stack.conftest import alone

# Debian's packages, and a program of each, by which it is found.
PACKAGES = {
    "containerd": "containerd",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "etcd-server": "etcd",
    "iproute2": "ip",
    "iptables": "iptables",
    "openssl": "openssl",
    "runc": "runc",
}
SOURCE = Path(__file__).with_name("program")
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")
GO = Path("/usr/local/go/bin/go")  # where its own archive is to be unpacked
OLDEST_GO = (1, 21)  # It downloads the version that go.mod names.


def install(say: Say) -> None:
    """Install what a node needs besides."""
    with alone():
        install_packages(say, PACKAGES)


def programs(cache: Path, say: Say) -> Path:
    """The directory with all programs of Kubernetes."""

    def make(directory: Path) -> None:
        go = find_go(say)
        say("compiling Kubernetes (6 minutes, and seconds if Go has compiled it before)")
        (directory / "bin").mkdir(parents=True)
        first, *others = (directory / "bin" / name for name in NAMES)
        flags = ("-ldflags", f"-s -w {version_flags()}")
        # Most tests wait for other parts, so those come first.
        run(("nice", "-n", "5", go, "build", "-C", str(SOURCE), *flags, "-o", str(first), "."))
        for other in others:
            os.link(first, other)

    return kept(cache, "kubernetes", [path.read_bytes() for path in sorted(SOURCE.iterdir())], make, say)


def find_go(say: Say) -> str:
    """Go, which is Debian's if there is no other. BadUsage if it is too old."""
    if not shutil.which("go") and not GO.exists():
        with alone():
            install_packages(say, {"golang-go": "go"})
    go = shutil.which("go") or str(GO)
    version = run((go, "env", "GOVERSION"), GOTOOLCHAIN="local").decode().strip()
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_GO:
        raise BadUsage(f"{go} is {version}: Kubernetes needs Go 1.24 (https://go.dev/dl, to /usr/local/go)")
    return go


def version_flags() -> str:
    """For the linker: without them, clients take the server for version 1.0."""
    (version,) = re.findall(r"k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text())
    major, minor = re.findall(r"\d+", version)[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
