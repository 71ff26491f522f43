"""Every path of a deployment's tree.

    <prefix>/<deployment>/
      variables/<name>                      value for the whole deployment
      <service>                             definition
        variables/<name>                    value for this service
        variables/<host>/<name>             value for this service on this host
        files/<name>                        content or template of one file
        .party/<id>                         presence (ephemeral)
        .containers/<id>                    what a container is doing now (ephemeral)
        .acl                                the ACL of what its agents create, if it was published with one
        .generations                        the generations in its definition, for others, if it was
                                            published with an ACL
      .acl                                  acl.yml, as it was published
      .events                               the last publications and actions of operators
      .publication                          who published last, when, and whether that has finished
        <id>__lock__<number>                who is publishing, or waits to      (ephemeral)
      .token_floor                          the largest fencing token that was removed with its znode
      status/<scope>/<role>                 the service that owns the role    (scope: global, or a host)
      status/<host>/<role>/ended            how the last start there that went wrong ended
      status/<scope>/<role>/<command>       state of a command
        lock/                               contenders of a one-time command
        generations/<name>                  a generation for which it is done
        detail                              the last attempt, and how it ended
        hosts/<host>                        hosts on which it has succeeded   (under global)
        ready/<id>                          a ready instance of a daemon      (ephemeral)
        refreshes/queue/<id>-<number>       an instance that waits to refresh (ephemeral; under global)
        refreshes/slots/<id>                one that refreshes                (ephemeral)
      status/global/<role>/election         which instance of a daemon bootstraps its cluster
        turn                                its version moves with every transition
        decision                            the winner, and whether its cluster was formed
        members/<host>                      a host that must be present when the cluster is bootstrapped
        candidates/<host>                   a host that waits for the decision        (ephemeral)
        running/<host>                      a host whose daemon runs, or is started   (ephemeral)
        override                            the operator's override, for one epoch

Only paths are made here; `zookeeper.client` reads and writes them.
"""

from __future__ import annotations

from kolla_mesos_start.definition.strings import ELECTION, ENDED, GLOBAL, LOCAL
from kolla_mesos_start.definition.strings import RESERVED as RESERVED
from kolla_mesos_start.records import NamedTuple

PARTY = ".party"
RECORDED_ACL, RECORDED_GENERATIONS = ".acl", ".generations"
PUBLICATION, TOKEN_FLOOR, EVENTS = ".publication", ".token_floor", ".events"


class CommandZnodes(NamedTuple):
    """The znodes of one command in one scope: its state and the znodes below it."""

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

    @property
    def refreshes(self) -> str:
        return f"{self.state}/refreshes"

    @property
    def slots(self) -> str:
        return f"{self.refreshes}/slots"

    @property
    def queue(self) -> str:
        return f"{self.refreshes}/queue"

    def generation(self, name: str) -> str:
        """The mark of a generation; percent-encoded, because an image tag holds `/` and `:`."""
        from urllib.parse import quote  # Few commands have a generation.

        encoded = quote(name, safe="")
        # ZooKeeper refuses `.` and `..` as names, and quote() leaves dots alone.
        return f"{self.generations}/{encoded.replace('.', '%2E') if encoded in ('.', '..') else encoded}"


class ElectionZnodes(NamedTuple):
    """The znodes of an election."""

    top: str

    @property
    def turn(self) -> str:
        return f"{self.top}/turn"

    @property
    def decision(self) -> str:
        return f"{self.top}/decision"

    @property
    def override(self) -> str:
        return f"{self.top}/override"

    @property
    def members(self) -> str:
        return f"{self.top}/members"

    @property
    def candidates(self) -> str:
        return f"{self.top}/candidates"

    @property
    def running(self) -> str:
        return f"{self.top}/running"

    def member(self, host: str) -> str:
        return f"{self.members}/{host}"

    def candidate(self, host: str) -> str:
        return f"{self.candidates}/{host}"

    def runner(self, host: str) -> str:
        """The znode of a host in `running`."""
        return f"{self.running}/{host}"


class Znodes(NamedTuple):
    """The paths of one deployment's tree, for one service on one host."""

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
    def publication(self) -> str:
        return f"{self.deployment}/{PUBLICATION}"

    @property
    def events(self) -> str:
        return f"{self.deployment}/{EVENTS}"

    @property
    def definition(self) -> str:
        return self.service(self.service_name)

    def service(self, name: str) -> str:
        return f"{self.deployment}/{name}"

    def party(self, name: str) -> str:
        return f"{self.service(name)}/{PARTY}"

    @property
    def containers(self) -> str:
        return f"{self.definition}/.containers"

    @property
    def recorded_acl(self) -> str:
        return f"{self.definition}/{RECORDED_ACL}"

    @property
    def recorded_generations(self) -> str:
        return f"{self.definition}/{RECORDED_GENERATIONS}"

    @property
    def token_floor(self) -> str:
        return f"{self.deployment}/{TOKEN_FLOOR}"

    def file(self, name: str) -> str:
        return f"{self.definition}/files/{name}"

    def variable(self, name: str) -> tuple[str, str, str]:
        """The places of a variable; the first one that exists wins."""
        return (
            f"{self.definition}/variables/{self.host}/{name}",
            f"{self.definition}/variables/{name}",
            f"{self.deployment}/variables/{name}",
        )

    @property
    def status(self) -> str:
        return f"{self.deployment}/status"

    def scope(self, scope: str) -> str:
        """`scope` is `global` or `local`, as in a dependency."""
        return f"{self.status}/{GLOBAL if scope == GLOBAL else self.host}"

    def owner(self, scope: str, role: str) -> str:
        return f"{self.scope(scope)}/{role}"

    @property
    def ended(self) -> str:
        return f"{self.owner(LOCAL, self.role)}/{ENDED}"

    @property
    def election(self) -> ElectionZnodes:
        return ElectionZnodes(f"{self.owner(GLOBAL, self.role)}/{ELECTION}")

    def command(self, scope: str, path: str) -> CommandZnodes:
        """`path` is `role/command`."""
        return CommandZnodes(f"{self.scope(scope)}/{path}")
