"""Run a program in a network of its own, which has nothing in common with ours but ZooKeeper's port.

python own_network.py PORT BATCH PROGRAM...

PORT of 127.0.0.1 leads to the same port here. BATCH is a file of `ip -batch` that makes the
network; the loopback interface is there. The program takes over the process id. Needs root.
`cut` takes that way away without a word to either end, `heal` gives it back.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.tcp_proxy import HOST, carry

CLONE_NEWNET = 0x40000000


def cut(pid: int) -> None:
    """Drop every packet in the network of this process: nothing is refused, nothing is answered."""
    _traffic_control(pid, "add", "root", "blackhole")


def heal(pid: int) -> None:
    """Take back `cut`."""
    _traffic_control(pid, "del", "root")


def _traffic_control(pid: int, verb: str, *words: str) -> None:
    network = f"--net=/proc/{pid}/ns/net"
    subprocess.run(["nsenter", network, "tc", "qdisc", verb, "dev", "lo", *words], check=True)


def main(port: int, batch: str, program: list[str]) -> None:
    ours, theirs = socket.socketpair()
    pidfd = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        # Not a child of the program, which may not expect one.
        if os.fork() == 0:
            ours.close()
            _relay(theirs, pidfd, port)
        os._exit(0)
    os.wait()
    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "-batch", batch], check=True)
    # A socket belongs to the network that it was made in, whoever accepts from it.
    with socket.create_server((HOST, port)) as listening:
        socket.send_fds(ours, [b"listen"], [listening.fileno()])
    os.execvp(program[0], program)


def _relay(theirs: socket.socket, pidfd: int, port: int) -> None:
    """Carry connections until the program has ended."""
    listening = socket.recv_fds(theirs, 16, 1)[1]
    if listening:
        asyncio.run(_serve(socket.socket(fileno=listening[0]), pidfd, port))


async def _serve(listening: socket.socket, pidfd: int, port: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    await asyncio.start_server(partial(carry, target=port), sock=listening)
    await ended.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
