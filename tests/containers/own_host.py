"""A host of its own on this machine: its processes, its network, its name and its /run are not the machine's.

What lives here: making it. A program starts itself again in it, and all that was started there ends with it.
Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from tests.containers.images import ALONE

# Kolla's containers share these with their host. The directories are those that `manifests` names. Of what an
# operator sets with sysctl only this matters here.
SETUP = """\
mount -t sysfs sysfs /mnt
mount --rbind /sys/fs/cgroup /mnt/fs/cgroup
mount --move /mnt /sys
for directory in /run /dev/shm; do mount -t tmpfs tmpfs $directory; mount --make-shared $directory; done
mkdir -p /run/lock/nova /run/libvirt /run/netns /run/nova /run/openvswitch
hostname "$OWN_NAME"
printf '127.0.0.1 localhost\\n%s %s\\n' "$OWN_ADDRESS" "$OWN_NAME" >/run/hosts
mount --bind /run/hosts /etc/hosts
ip link set lo up
for interface in eth0 eth1; do
    ip link add $interface type veth peer name far-$interface
    ip link set $interface up
    ip link set far-$interface up
done
ip address add "$OWN_ADDRESS/24" dev eth0
echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind
exec "$@"
"""
INSIDE = "OWN_NAME"  # Set for what runs there.


def enter(name: str, address: str, argv: Sequence[str]) -> int:
    """Run a program on a host with this name, and this address at eth0; eth1 has none. The exit status."""
    words = (*ALONE, "--net", "--uts", "--ipc", "sh", "-ec", SETUP, "sh", *argv)
    return subprocess.run(words, env={**os.environ, INSIDE: name, "OWN_ADDRESS": address}).returncode
