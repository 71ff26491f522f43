"""A whole OpenStack behind one address, asked with plain requests until it has booted a server.

What lives here: the requests. The server has a network of its own, and an image with nothing in it.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.examples.keystone import issue_token, validate_token
from tests.support.waiting import eventually

KEYSTONE, GLANCE, PLACEMENT, NEUTRON, NOVA, HEAT, HORIZON = 5000, 9292, 8780, 9696, 8774, 8004, 80
MICROVERSION = "2.87"


class Cloud:
    """The services at `address`, as the administrator sees them."""

    def __init__(self, address: str, password: str) -> None:
        self.address = address
        self.token = issue_token(self.url(KEYSTONE, "/v3"), password)
        self.project = validate_token(self.url(KEYSTONE, "/v3"), self.token)["project"]["id"]

    def url(self, port: int, path: str) -> str:
        return f"http://{self.address}:{port}{path}"

    def ask(self, port: int, path: str, body: object = None, data: bytes | None = None) -> Any:
        """What a service answers to a GET, a POST of `body`, or a PUT of `data`; OSError if it fails."""
        method = "PUT" if data is not None else "GET" if body is None else "POST"
        kind = "application/octet-stream" if data is not None else "application/json"
        request = urllib.request.Request(
            self.url(port, path),
            data=data if body is None else json.dumps(body).encode(),
            headers={
                "X-Auth-Token": self.token,
                "Content-Type": kind,
                "Accept": "application/json, text/html",
                "OpenStack-API-Version": f"compute {MICROVERSION}" if port == NOVA else "",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            content = reply.read()
        return json.loads(content) if content.startswith((b"{", b"[")) else content.decode()

    def look(self) -> None:
        """Ask each service for what it has."""
        for port, path in (
            (GLANCE, "/v2/images"),
            (PLACEMENT, "/resource_providers"),
            (NEUTRON, "/v2.0/networks"),
            (NEUTRON, "/v2.0/agents"),
            (NOVA, "/v2.1/os-services"),
            (HEAT, f"/v1/{self.project}/stacks"),
        ):
            print(f"{path}: {_shortened(self.ask(port, path))}", flush=True)
        assert "<html" in self.ask(HORIZON, "/auth/login/"), "Horizon's page has no HTML"

    def boot(self) -> dict[str, Any]:
        """A server that is ACTIVE."""
        image = {"name": "empty", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        image_id = self.ask(GLANCE, "/v2/images", image)["id"]
        self.ask(GLANCE, f"/v2/images/{image_id}/file", data=b"\0" * 65536)
        flavor = {"name": "tiny", "ram": 64, "vcpus": 1, "disk": 1}
        flavor_id = self.ask(NOVA, "/v2.1/flavors", {"flavor": flavor})["flavor"]["id"]
        network_id = self.ask(NEUTRON, "/v2.0/networks", {"network": {"name": "own"}})["network"]["id"]
        subnet = {"network_id": network_id, "ip_version": 4, "cidr": "192.0.2.0/24"}
        self.ask(NEUTRON, "/v2.0/subnets", {"subnet": subnet})
        server = {
            "name": "first",
            "imageRef": image_id,
            "flavorRef": flavor_id,
            "networks": [{"uuid": network_id}],
        }
        server_id = self.ask(NOVA, "/v2.1/servers", {"server": server})["server"]["id"]

        def ended() -> dict[str, Any] | None:
            found: dict[str, Any] = self.ask(NOVA, f"/v2.1/servers/{server_id}")["server"]
            return found if found["status"] != "BUILD" else None

        found = eventually(ended, "the server is no longer in BUILD", seconds=300, every=1)
        assert found and found["status"] == "ACTIVE", found
        return found


def _shortened(answer: Any) -> str:
    """How many of what, with their names."""
    (kind, found), *_ = ((key, value) for key, value in answer.items() if isinstance(value, list))
    names = (str(each.get("binary") or each.get("name") or each.get("uuid")) for each in found)
    return f"{len(found)} {kind} {' '.join(names)}"
