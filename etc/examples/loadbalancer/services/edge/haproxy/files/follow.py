"""Apply a new haproxy.cfg to a running HAProxy, without a reload if only servers or weights differ.

follow.py DIRECTORY    which has haproxy.cfg, master.sock, and loaded.cfg, the configuration in use

It needs HAProxy 2.5 or newer, which adds and removes servers by its runtime API.
"""

import os
import shutil
import socket
import sys
import time


def read(path):
    """The servers of a configuration, `backend/name` and the rest of the line; and its other lines."""
    servers, others, backend = {}, [], ""
    with open(path) as file:
        for line in file:
            words = line.partition("#")[0].split()
            if words and not line[0].isspace():  # A section begins.
                backend = words[1] if words[0] in ("backend", "listen") else ""
            if backend and words[:1] == ["server"]:
                servers[f"{backend}/{words[1]}"] = " ".join(words[2:])
            elif words:
                others.append(line)
    return servers, others


def connected():
    """A connection to HAProxy's master process, which accepts none for a moment while it reloads."""
    for _ in range(100):
        master = socket.socket(socket.AF_UNIX)
        try:
            master.connect("master.sock")
            return master
        except ConnectionRefusedError:
            master.close()
            time.sleep(0.1)
    sys.exit("HAProxy's master process accepts no connection to master.sock: does it run?")


def tell(command):
    """What HAProxy's master process answers."""
    with connected() as master:
        master.settimeout(10)
        master.sendall(f"{command}\n".encode())
        master.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: master.recv(65536), b"")).decode().strip()


def add(server, options):
    """Whether the server could be added. It takes requests at once, and is checked."""
    # @1: the process that serves, the newest one.
    if tell(f"@1 add server {server} {options}") != "New server registered.":
        return False
    return not any(tell(f"@1 enable {what} {server}") for what in ("health", "server"))


def remove(server):
    """Send it nothing new. While it still answers requests its end is refused: the next change repeats it."""
    tell(f"@1 set server {server} state maint")
    tell(f"@1 del server {server}")


def weigh(server, old, new):
    """Whether nothing but its weight has changed, which HAProxy has now."""
    (before, _, _), (after, word, weight) = old.rpartition(" weight "), new.rpartition(" weight ")
    return word and before == after and not tell(f"@1 set server {server} weight {weight}")


def follow():
    """Whether the new servers are in use, with all else as it was."""
    (old, old_others), (new, others) = read("loaded.cfg"), read("haproxy.cfg")
    if others != old_others:
        return False
    for server, options in new.items():
        if server not in old and not add(server, options):
            return False
        if options != old.get(server, options) and not weigh(server, old[server], options):
            return False
    for backend in {server.partition("/")[0] for server in [*old, *new]}:
        for line in tell(f"@1 show servers conn {backend}").splitlines()[1:]:
            server = line.split()[0]
            if server not in new:
                remove(server)
    return True


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    if follow():
        print("haproxy: changed, without a reload")
    else:
        tell("reload")
        print("haproxy: reloaded")
    shutil.copy("haproxy.cfg", "loaded.cfg")
