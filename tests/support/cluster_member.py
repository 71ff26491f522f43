"""A small database that behaves as a member of a cluster, for tests of elections.

    cluster_member.py position DATA               print the position of the data
    cluster_member.py first DATA PORT PORTS       bootstrap a cluster
    cluster_member.py join DATA PORT PORTS        join the cluster behind one of PORTS

A member of a working cluster listens on PORT, and tells its position to whoever connects. One that joins
takes over that position, and stays if it can't reach the member any longer. `DATA/history` has a line for
each start; `DATA/hold` keeps a member from serving while it exists, `DATA/fail` is the exit status of the
position command, and `DATA/says` what it prints.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time

PAUSE = 0.02


def main() -> None:
    """Run the verb of the command line."""
    verb, data, *more = sys.argv[1:]
    os.makedirs(data, exist_ok=True)
    if verb == "position":
        show_position(data)
    else:
        port, ports = more
        serve(verb, data, int(port), [int(each) for each in ports.split(",")])


def read(path: str) -> str:
    """The text of a file; empty without one."""
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return file.read().strip()
    return ""


def write(path: str, text: str, mode: str = "w") -> None:
    with open(path, mode) as file:
        file.write(f"{text}\n")
        file.flush()


def lock(data: str) -> int:
    """The lock on the data. Raises BlockingIOError while another process has it."""
    fd = os.open(f"{data}/lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def show_position(data: str) -> None:
    write(f"{data}/measured", "", "a")
    try:
        lock(data)
    except BlockingIOError:
        sys.exit("another process uses the data")
    if status := read(f"{data}/fail"):
        sys.exit(int(status))
    print("Recovering")
    print(read(f"{data}/says") or read(f"{data}/position") or "none")


def serve(verb: str, data: str, port: int, ports: list[int]) -> None:
    lock(data)
    names = ("KOLLA_ELECTION", *(f"KOLLA_ELECTION_{each}" for each in ("EPOCH", "GROUP", "POSITION")))
    write(f"{data}/history", " ".join([verb, *(os.environ.get(name, "unset") or "-" for name in names)]), "a")
    while os.path.exists(f"{data}/hold"):
        time.sleep(PAUSE)
    if verb == "first":
        group, _, number = (read(f"{data}/position") or f"g{os.getpid()}:0").rpartition(":")
        position = f"{group}:{int(number) + 1}"
    else:
        position = transferred([each for each in ports if each != port])
    write(f"{data}/position", position)
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            with contextlib.suppress(OSError), server.accept()[0] as client:
                client.sendall(position.encode())


def transferred(ports: list[int]) -> str:
    """The position of a member that serves."""
    while True:
        for port in ports:
            address = ("127.0.0.1", port)
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as member:
                if position := member.recv(1000).decode():
                    return position
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
