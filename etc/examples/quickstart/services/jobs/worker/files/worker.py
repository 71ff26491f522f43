"""Does jobs: a job's result is the SHA-256 of its text.

worker.py FILE       FILE holds the address and port of an API on each line
"""

import hashlib
import itertools
import json
import os
import socket
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

IDLE = 0.2  # seconds


def work(api):
    """Do the next job, if there is one; returns whether there was one."""
    try:
        with urlopen(f"http://{api}/jobs/next", timeout=10) as answer:
            job = json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return False
        raise
    result = hashlib.sha256(job["text"].encode()).hexdigest()
    urlopen(Request(f"http://{api}/jobs/{job['job']}", result.encode(), method="PUT"), timeout=10).close()
    return True


def notify(state):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state, os.environ["NOTIFY_SOCKET"])


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        apis = file.read().split()
    for api in itertools.cycle(apis):
        try:
            busy = work(api)
            notify(b"READY=1")
        except OSError as error:
            busy = False
            notify(f"STATUS={api}: {error}".encode())
        if not busy:
            time.sleep(IDLE)
