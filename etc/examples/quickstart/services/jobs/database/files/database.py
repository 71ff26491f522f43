"""A database server: SQL in, rows out, a line of JSON each way. SQLite keeps the data.

database.py FILE ADDRESS PORT
"""

import json
import os
import socket
import socketserver
import sqlite3
import sys
from contextlib import closing


class Connection(socketserver.StreamRequestHandler):
    """One client: each line is [statement, value...]."""

    def handle(self):
        for line in self.rfile:
            statement, *values = json.loads(line)
            try:
                answer = execute(statement, values)
            except sqlite3.Error as error:
                answer = {"error": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def execute(statement, values=()):
    with closing(sqlite3.connect(FILE, timeout=10)) as database, database:
        cursor = database.execute(statement, values)
        return {"rows": cursor.fetchall(), "inserted": cursor.lastrowid}


def notify(state):
    """Notify the parent process, like systemd's sd_notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state, os.environ["NOTIFY_SOCKET"])


if __name__ == "__main__":
    FILE, address, port = sys.argv[1:]
    if execute("PRAGMA integrity_check")["rows"] != [("ok",)]:
        sys.exit(f"{FILE} is damaged")
    with Server((address, int(port)), Connection) as server:
        notify(b"READY=1")
        server.serve_forever()
