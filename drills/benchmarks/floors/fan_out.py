"""The floor of being told: COUNT bare sessions watch a znode, and read it again when it has changed.

    python fan_out.py HOSTS PATH COUNT

Says `standing` once all watch, and then in JSON when each was told, and when it had the value.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from kazoo.client import KazooClient

hosts, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.alarm(120)  # to end with, where something goes wrong
all_read = threading.Event()
told: list[float] = []
read: list[float] = []


def fired(client: KazooClient, event: object) -> None:
    told.append(time.time())
    client.get_async(path).rawlink(arrived)


def arrived(reply: object) -> None:
    read.append(time.time())
    if len(read) == count:
        all_read.set()


for _ in range(count):
    client = KazooClient(hosts)
    client.start()
    client.get(path, watch=lambda event, client=client: fired(client, event))
print("standing", flush=True)
all_read.wait()
print(json.dumps({"told": told, "read": read}), flush=True)
threading.Event().wait()  # to be killed
