"""Passes each request on to the next of its upstreams that answers.

front.py CONFIG
"""

import sys
import threading
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Upstreams:
    """All upstreams, the next one first."""

    def __init__(self, addresses):
        self.addresses = addresses
        self.lock = threading.Lock()

    def in_turn(self):
        with self.lock:
            self.addresses = self.addresses[1:] + self.addresses[:1]
            return list(self.addresses)


class Handler(BaseHTTPRequestHandler):
    def respond(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        for upstream in UPSTREAMS.in_turn():
            try:
                connection = HTTPConnection(upstream, timeout=10)
                connection.request(self.command, self.path, body)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, HTTPException) as error:
                self.log_error("%s: %s", upstream, error)
                continue
            return self.answer(answer.status, content)
        self.answer(502, b"no upstream answers\n")

    do_GET = do_POST = do_PUT = respond

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def config(path):
    """The addresses after each keyword, `listen` and `upstream`."""
    found = {"listen": [], "upstream": []}
    with open(path) as file:
        for line in file:
            word, address, *_ = line.split()
            found[word].append(address)
    return found


if __name__ == "__main__":
    found = config(sys.argv[1])
    UPSTREAMS = Upstreams(found["upstream"])
    address, _, port = found["listen"][0].rpartition(":")
    ThreadingHTTPServer((address, int(port)), Handler).serve_forever()
