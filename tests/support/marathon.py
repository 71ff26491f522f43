"""A server that speaks Marathon's documented API, on loopback: groups, apps and deployments, and no Mesos.

Facts about Marathon are from docs/docs/rest-api/public/api/v2 of mesosphere/marathon, as of 1.9. A deployment
gets one step further each time that somebody asks for the deployments.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, NamedTuple
from urllib.parse import parse_qs, urlsplit

from jsonschema import Draft7Validator

App = dict[str, Any]

# -- what Marathon takes -----------------------------------------------------------------------------


def record(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of an object that has these fields and no other."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def each(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


WHOLE = {"type": "integer", "minimum": 0}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
PORT = {"type": "integer", "minimum": 0, "maximum": 65535}
PROTOCOL = {"enum": ["tcp", "udp", "udp,tcp"]}
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
# Each part of an id is like the name of a host: neither capitals nor underscores.
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ID = {
    "type": "string",
    "pattern": rf"^(/({LABEL}\.)*{LABEL})+$",
    "not": {"pattern": "/(restart|tasks|versions)$"},
}
BRIDGE = {"properties": {"networks": {"contains": {"properties": {"mode": {"const": "container/bridge"}}}}}}
# The fields in use here.
APP = {
    **record(
        "id",
        id=ID,
        cmd=TEXT,
        args=each({"type": "string"}),
        cpus={"type": "number", "minimum": 0.001},
        mem={"type": "number", "minimum": 0},
        instances=WHOLE,
        constraints=each(
            {
                "type": "array",
                "items": [
                    {"type": "string"},
                    {"enum": ["UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER"]},
                    {"type": "string"},
                ],
                "minItems": 2,
                "maxItems": 3,
            }
        ),
        container=record(
            "type",
            "docker",
            type={"enum": ["MESOS", "DOCKER"]},
            docker=record(
                "image",
                image=TEXT,
                parameters=each(record("key", "value", key=TEXT, value={"type": "string"})),
            ),
            volumes=each(
                record(
                    "containerPath",
                    "mode",
                    containerPath=TEXT,
                    hostPath={"type": "string", "pattern": "^/"},
                    mode={"enum": ["RO", "RW"]},
                )
            ),
            portMappings=each(record(containerPort=PORT, hostPort=PORT, name=NAME, protocol=PROTOCOL)),
        ),
        fetch=each(record("uri", uri=TEXT, extract={"type": "boolean"}, executable={"type": "boolean"})),
        networks=each(record(mode={"enum": ["container", "container/bridge", "host"]})),
        portDefinitions=each(record(name=NAME, port=PORT, protocol=PROTOCOL)),
        requirePorts={"type": "boolean"},
        env={
            "type": "object",
            "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
            "additionalProperties": {"type": "string"},
        },
        healthChecks=each(
            record(
                "protocol",
                "command",
                protocol={"enum": ["COMMAND"]},
                command=record("value", value=TEXT),
                gracePeriodSeconds=WHOLE,
                intervalSeconds=WHOLE,
                timeoutSeconds=WHOLE,
                maxConsecutiveFailures=WHOLE,
            )
        ),
        upgradeStrategy=record(
            "maximumOverCapacity",
            "minimumHealthCapacity",
            maximumOverCapacity=SHARE,
            minimumHealthCapacity=SHARE,
        ),
        taskKillGracePeriodSeconds=WHOLE,
        labels=TEXTS,
        backoffSeconds=WHOLE,
    ),
    "oneOf": [{"required": ["cmd"]}, {"required": ["args"]}],
    # Ports stand with the network that they are of.
    "if": BRIDGE,
    "then": {"not": {"required": ["portDefinitions"]}},
    "else": {"properties": {"container": {"not": {"required": ["portMappings"]}}}},
}


def wrong(app: App) -> Sequence[str]:
    """What Marathon would not take."""
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(APP).iter_errors(app)]


# What it shows of an app besides what was sent, here where it matters.
DEFAULTS = {
    **{"backoffFactor": 1.15, "backoffSeconds": 1, "cpus": 1.0, "disk": 0.0, "executor": "", "instances": 1},
    **{"labels": {}, "maxLaunchDelaySeconds": 300, "mem": 128.0, "killSelection": "YOUNGEST_FIRST"},
    "upgradeStrategy": {"maximumOverCapacity": 1.0, "minimumHealthCapacity": 1.0},
    "unreachableStrategy": {"inactiveAfterSeconds": 0, "expungeAfterSeconds": 0},
}

OTHERS = DEFAULTS.keys() - APP["properties"].keys()


def completed(app: App) -> App:
    """As Marathon shows it."""
    found = {**deepcopy(DEFAULTS), **deepcopy(app)}
    found.setdefault("constraints", [])
    found["cpus"], found["mem"] = float(found["cpus"]), float(found["mem"])
    found["container"]["docker"].update(privileged=False, forcePullImage=False)
    for mapping in found["container"].get("portMappings", ()):
        mapping.update(labels={}, servicePort=10101)
    for definition in found.get("portDefinitions", ()):
        definition.update(labels={})
    for check in found.get("healthChecks", ()):
        check.update(delaySeconds=15)
    found["version"] = "2025-11-21T23:07:54.000Z"
    return found


# -- the server --------------------------------------------------------------------------------------


class Request(NamedTuple):
    """What somebody has asked for."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    authorization: str | None
    body: Any


class Answer(NamedTuple):
    """What it is answered; `body` in JSON, unless it is bytes already."""

    status: int
    body: Any = b""
    headers: Mapping[str, str] = {"Content-Type": "application/json"}


class Marathon:
    """What Marathon has, and how it behaves: tests change both.

    `steps`: of each deployment. `is_held`: they get no further. `first` may answer in its place, `polled` is
    called before it answers what deployments there are. `credentials` are a user and a password.
    """

    def __init__(self) -> None:
        self.apps: dict[str, App] = {}
        self.healthy: dict[str, int] = {}
        self.deployments: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.steps = 2
        self.is_held = False
        self.credentials: tuple[str, str] | None = None
        self.first: Callable[[Request], Answer | None] = lambda request: None
        self.polled: Callable[[], object] = lambda: None
        self.url = ""
        self._lock = threading.RLock()

    def sent(self) -> list[str]:
        """The ids of the apps that were sent, in order."""
        return [app["id"] for request in self.requests if request.method == "PUT" for app in request.body]

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.first(request) or self._refused(request) or self._answered(request)

    def _refused(self, request: Request) -> Answer | None:
        if self.credentials is None:
            return None
        expected = base64.b64encode(":".join(self.credentials).encode()).decode()
        if request.authorization == f"Basic {expected}":
            return None
        return Answer(401, {"message": "Invalid username or password."})

    def _answered(self, request: Request) -> Answer:
        kind, _, name = request.path.removeprefix("/v2/").partition("/")
        if request.method == "GET" and kind == "groups":
            return self._group(f"/{name}")
        if request.method == "GET" and request.path == "/v2/deployments":
            return self._progressed()
        if request.method == "PUT" and request.path == "/v2/apps":
            return self._put(request)
        return Answer(404, {"message": f"{request.path} does not exist"})

    # -- groups -------------------------------------------------------------------------------------

    def _group(self, id: str) -> Answer:
        """404 unless it has an app, be it in a group of its own."""
        if not any(each.startswith(f"{id}/") for each in self.apps):
            return Answer(404, {"message": f"Group '{id}' does not exist"})
        return Answer(200, self._grouped(id))

    def _grouped(self, id: str) -> dict[str, Any]:
        parts = [each[len(id) + 1 :].split("/") for each in self.apps if each.startswith(f"{id}/")]
        return {
            "id": id,
            "apps": [self._shown(f"{id}/{first}") for first, *rest in parts if not rest],
            "groups": [self._grouped(f"{id}/{each}") for each in sorted({p[0] for p in parts if len(p) > 1})],
            "pods": [],
            "dependencies": [],
        }

    def _shown(self, id: str) -> App:
        healthy = self.healthy[id]
        counts = {"tasksHealthy": healthy, "tasksRunning": healthy, "tasksStaged": 0, "tasksUnhealthy": 0}
        return {**self.apps[id], **counts}

    # -- apps ---------------------------------------------------------------------------------------

    def _put(self, request: Request) -> Answer:
        ids = [app["id"] for app in request.body]
        locks = [each["id"] for each in self.deployments if set(ids) & set(each["affectedApps"])]
        if locks and request.query.get("force") != ["true"]:
            message = "App is locked by one or more deployments. Override with the option '?force=true'."
            return Answer(409, {"message": message, "deployments": [{"id": each} for each in locks]})
        is_partial = request.query.get("partialUpdate", ["true"]) == ["true"]
        details = []
        for at, app in enumerate(request.body):
            known = self.apps.get(app["id"], {}) if is_partial else {}
            errors = wrong({name: value for name, value in {**known, **app}.items() if name not in OTHERS})
            if errors:
                details.append({"path": f"/{at}", "errors": errors})
        if details:
            return Answer(422, {"message": "Object is not valid", "details": details})
        return Answer(200, {"version": "2025-11-21T23:07:54.000Z", "deploymentId": self.deploy(request.body)})

    def deploy(self, apps: Sequence[App]) -> str:
        """What whoever else sends apps does too; the deployment's id."""
        id = str(uuid.uuid4())
        original = {app["id"]: self.apps.get(app["id"]) for app in apps}
        for app in apps:
            self.apps[app["id"]] = completed(app)
            self.healthy[app["id"]] = 0
        self.deployments.append({"id": id, "affectedApps": [*original], "at": 0, "original": original})
        return id

    # -- deployments --------------------------------------------------------------------------------

    def _progressed(self) -> Answer:
        self.polled()
        if not self.is_held:
            for each in self.deployments:
                each["at"] += 1
                if each["at"] > self.steps:
                    self.healthy.update((id, self.apps[id]["instances"]) for id in each["affectedApps"])
            self.deployments = [each for each in self.deployments if each["at"] <= self.steps]
        return Answer(200, [self._plan(each) for each in self.deployments])

    def _plan(self, deployment: Mapping[str, Any]) -> dict[str, Any]:
        at, ids = max(deployment["at"], 1), deployment["affectedApps"]
        name = "StartApplication" if at == 1 else "ScaleApplication"
        actions = [{"action": name, "app": id, "readinessCheckResults": []} for id in ids]
        return {
            **{"id": deployment["id"], "version": "2025-11-21T23:07:54.000Z", "affectedApps": ids},
            **{"affectedPods": [], "steps": [{"actions": actions}] * self.steps, "currentActions": actions},
            **{"currentStep": at, "totalSteps": self.steps},
        }

    def cancel(self, *, is_forced: bool = False) -> None:
        """What DELETE of the first deployment does: it is taken back, or with force only stopped."""
        with self._lock:
            former = self.deployments.pop(0)
            if is_forced:
                return
            for id, app in former["original"].items():
                if app is None:
                    del self.apps[id], self.healthy[id]
                else:
                    self.apps[id] = app
            self.deployments.append({**former, "id": str(uuid.uuid4()), "affectedApps": [], "original": {}})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _do(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        authorization = self.headers.get("Authorization")
        body = json.loads(data) if data else None
        request = Request(self.command, parts.path, parse_qs(parts.query), authorization, body)
        status, content, headers = self.server.marathon.answer(request)
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_DELETE = do_POST = _do


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, marathon: Marathon) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.marathon = marathon

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who has enough of an answer closes the connection."""


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[Marathon]:
    """A Marathon that has nothing yet; with TLS if there is a file with a certificate and its key."""
    marathon = Marathon()
    with _Server(marathon) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        marathon.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield marathon
        finally:
            server.shutdown()
            thread.join()
