"""Jobs over HTTP, kept in the database.

api.py CONFIG create-schema       once: a second time is an error
api.py CONFIG serve

POST /jobs            a new job, its text in the body
GET  /jobs            how many there are
GET  /jobs/next       the oldest that nobody has done
GET  /jobs/<number>   one job
PUT  /jobs/<number>   its result
"""

import json
import os
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCHEMA = "CREATE TABLE jobs (job INTEGER PRIMARY KEY, text TEXT NOT NULL, result TEXT)"


def sql(statement, *values):
    """The answer of the database: the rows, and the number of the inserted one."""
    address, _, port = CONFIG["database"].rpartition(":")
    with socket.create_connection((address, int(port)), timeout=10) as server, server.makefile("rw") as lines:
        print(json.dumps([statement, *values]), file=lines, flush=True)
        answer = json.loads(lines.readline() or '{"error": "the database has hung up"}')
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


class Handler(BaseHTTPRequestHandler):
    def respond(self):
        """Any request: 200 and the requested data, 404, or 503 while the database can't be reached."""
        try:
            content = self.content()
            self.answer(content, 404 if content is None else 200)
        except OSError as error:
            self.answer({"error": str(error)}, 503)

    do_GET = do_POST = do_PUT = respond

    def log_request(self, *details):
        if self.path != "/jobs" or self.command != "GET":  # That is the readiness check, twice a second.
            super().log_request(*details)

    def content(self):
        job = self.path.rpartition("/")[2]
        if self.command == "POST":
            job = sql("INSERT INTO jobs (text) VALUES (?)", self.body())["inserted"]
        elif self.command == "PUT":
            sql("UPDATE jobs SET result = ? WHERE job = ?", self.body(), job)
        elif job == "jobs":
            return {"jobs": sql("SELECT count(*) FROM jobs")["rows"][0][0]}
        elif job == "next":
            return self.first("SELECT * FROM jobs WHERE result IS NULL ORDER BY job LIMIT 1")
        return self.first("SELECT * FROM jobs WHERE job = ?", job)

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"])).decode()

    def first(self, statement, *values):
        rows = sql(statement, *values)["rows"]
        return dict(zip(("job", "text", "result"), rows[0])) if rows else None

    def answer(self, content, status):
        self.send_response(status)
        self.end_headers()
        reply = {**(content or {}), "replica": os.environ["KOLLA_HOSTNAME"]}
        self.wfile.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        CONFIG = json.load(file)
    if sys.argv[2] == "create-schema":
        sql(SCHEMA)
    else:
        ThreadingHTTPServer((CONFIG["address"], CONFIG["port"]), Handler).serve_forever()
