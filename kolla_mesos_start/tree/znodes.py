"""Every path of a deployment's tree.

    <prefix>/<deployment>/
      variables/<name>                      value for the whole deployment
      <service>                             definition
        variables/<name>                    value for this service
        variables/<host>/<name>             value for this service on this host
        files/<name>                        content or template of one file
        .party/<id>                         presence (ephemeral)
      status/<scope>/<role>                 the service that owns the role    (scope: global, or a host)
      status/<scope>/<role>/<command>       state of a command
        lock/                               contenders of a one-time command
        generations/<name>                  a generation for which it is done
        detail                              the last attempt, and how it ended
        hosts/<host>                        hosts on which it has succeeded   (under global)
        ready/<id>                          a ready instance of a daemon      (ephemeral)

Only paths are made here, and the names of what can be asked about them; reading and writing is
the business of `ensemble`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    pass

GLOBAL = "global"
LOCAL = "local"
DAEMON = "daemon"
RESERVED = ("variables", "status", "files")


class CommandZnodes(NamedTuple):
    """What stands at and below one command's state, in one scope."""

    state: str

    @property
    def lock(self) -> str:
        return f"{self.state}/lock"

    @property
    def detail(self) -> str:
        return f"{self.state}/detail"

    @property
    def generations(self) -> str:
        return f"{self.state}/generations"

    @property
    def hosts(self) -> str:
        return f"{self.state}/hosts"

    @property
    def ready(self) -> str:
        return f"{self.state}/ready"

    def generation(self, name: str) -> str:
        """The mark of a generation; percent-encoded, since an image tag holds `/` and `:`."""
        encoded = quote(name, safe="")
        # `.` and `..` are not names to ZooKeeper, and quote() leaves dots alone.
        return f"{self.generations}/{encoded.replace('.', '%2E') if encoded in ('.', '..') else encoded}"


class Znodes(NamedTuple):
    """The tree of one deployment, seen by one service on one host."""

    prefix: str
    deployment_id: str
    service_name: str
    host: str

    @property
    def role(self) -> str:
        return self.service_name.rsplit("/", 1)[-1]

    @property
    def deployment(self) -> str:
        return f"{self.prefix}/{self.deployment_id}"

    @property
    def definition(self) -> str:
        return self.service(self.service_name)

    def service(self, name: str) -> str:
        return f"{self.deployment}/{name}"

    def party(self, name: str) -> str:
        return f"{self.service(name)}/.party"

    def file(self, name: str) -> str:
        return f"{self.definition}/files/{name}"

    def variable(self, name: str) -> tuple[str, str, str]:
        """Where a variable may stand; the first that is there wins."""
        return (
            f"{self.definition}/variables/{self.host}/{name}",
            f"{self.definition}/variables/{name}",
            f"{self.deployment}/variables/{name}",
        )

    @property
    def status(self) -> str:
        return f"{self.deployment}/status"

    def scope(self, scope: str) -> str:
        """`scope` is `global` or `local`, as a dependency says it."""
        return f"{self.status}/{GLOBAL if scope == GLOBAL else self.host}"

    def owner(self, scope: str, role: str) -> str:
        return f"{self.scope(scope)}/{role}"

    def command(self, scope: str, path: str) -> CommandZnodes:
        """`path` is `role/command`."""
        return CommandZnodes(f"{self.scope(scope)}/{path}")
