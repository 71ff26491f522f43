"""A command, or a daemon, of a chaos run: it tells the recorder of itself, works, and ends.

    python -I -S step.py SOCKET NAME SECONDS plain|family|fails-once|daemon

Its connection to the recorder stays open in each of its processes: when the kernel closes it, the
last of them is gone. It begins to work only when the recorder has heard of it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

path, name, seconds, flavour = sys.argv[1:]
line = socket.socket(socket.AF_UNIX)
line.connect(path)


def say(word: str, **more: object) -> None:
    line.sendall(json.dumps({"word": word, **more}).encode() + b"\n")


say(
    "begin",
    name=name,
    container=os.path.basename(os.getcwd()),
    host=os.environ["KOLLA_HOSTNAME"],
    token=int(os.environ.get("KOLLA_FENCING_TOKEN", "0")),
    previous=os.environ.get("KOLLA_PREVIOUS_ATTEMPT", ""),
)
if not line.recv(1):
    sys.exit("nobody records this")
if flavour == "daemon":
    say("done")
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    while True:
        signal.pause()
if flavour == "family" and os.fork() == 0:
    # Out of the group, and a bit longer at work than its parent.
    os.setsid()
    time.sleep(float(seconds) + 0.1)
    os._exit(0)
time.sleep(float(seconds))
if flavour == "fails-once" and not os.path.exists("has-failed"):
    open("has-failed", "w").close()
    sys.exit(1)
say("done")
