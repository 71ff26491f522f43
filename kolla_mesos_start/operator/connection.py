"""The operator's connection to ZooKeeper: kazoo's own client, its errors translated into AgentError.

What lives here: connecting, and the few requests that the tools make. Nothing of the agent's session:
here threads do no harm. A request waits for as long as an outage lasts.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Callable

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import ACL, Id, Permissions

from kolla_mesos_start.errors import AccessDenied, AgentError, BadEnvironment, NoConnection
from kolla_mesos_start.settings import Settings

log = logging.getLogger(__name__)

# kazoo's defaults try once, and then with delays that grow to hours.
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0}
DENIED = (NoAuthError, AuthFailedError, InvalidACLError)
PERMISSIONS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


def connect(settings: Settings) -> KazooClient:
    """A connected client, which the caller closes (`close`).

    Raises NoConnection past KOLLA_ZK_CONNECT_TIMEOUT, AccessDenied for refused credentials, and
    BadEnvironment for a certificate or key that can't be loaded.
    """
    _check_tls(settings)
    client = _new_client(settings)
    limit = settings.connect_timeout
    is_connected = client.start_async().wait(limit)
    if client.client_state == KeeperState.AUTH_FAILED:
        close(client)
        raise AccessDenied("ZooKeeper refused the credentials of KOLLA_ZK_AUTH_FILE")
    if not is_connected:
        close(client)
        raise NoConnection(
            f"no connection to ZooKeeper at {settings.hosts} within {limit:g} s (KOLLA_ZK_CONNECT_TIMEOUT)"
        )
    client.add_listener(_log_outage)
    return client


def close(client: KazooClient) -> None:
    """End the session."""
    client.remove_listener(_log_outage)
    client.stop()
    client.close()


def _new_client(settings: Settings) -> KazooClient:
    acl = [
        ACL(sum(PERMISSIONS[letter] for letter in set(letters)), Id(scheme, identity))
        for scheme, identity, letters in settings.acl
    ]
    return KazooClient(
        hosts=settings.hosts + settings.chroot,
        timeout=settings.session_timeout,
        connection_retry=RETRY,
        command_retry=RETRY,
        auth_data=list(settings.auth),
        default_acl=acl or None,
        use_ssl=bool(settings.ca or settings.cert),
        ca=settings.ca,
        certfile=settings.cert,
        keyfile=settings.key or settings.cert,  # They may be one file.
        check_hostname=bool(settings.ca),
    )


def _check_tls(settings: Settings) -> None:
    """Refuse files that can't be loaded: kazoo would try them again and again, and report no connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issues = []
    if settings.ca:
        try:
            context.load_verify_locations(settings.ca)
        except OSError as error:
            issues.append(f"KOLLA_ZK_CA: expected certificates, in PEM: {error}")
    if settings.cert:
        try:
            # A password is never asked for: nobody may be there to type it.
            context.load_cert_chain(settings.cert, settings.key, password="")
        except OSError as error:
            issues.append(
                f"KOLLA_ZK_CERT and KOLLA_ZK_KEY: expected a certificate and its key, in PEM: {error}"
            )
    if issues:
        raise BadEnvironment(issues)


def _log_outage(state: str) -> None:
    # Runs on kazoo's thread.
    if state == KazooState.SUSPENDED:
        log.warning("lost the connection to ZooKeeper; retrying")
    elif state == KazooState.CONNECTED:
        log.warning("connected to ZooKeeper again")


# -- requests. Each may be sent a second time, when an outage has hidden the reply to the first. ------


def read(client: KazooClient, paths: Iterable[str]) -> dict[str, bytes | None]:
    """The data at each of `paths`; None where no znode is."""
    found = _read_together(client, client.get_async, paths)
    return {path: result and result[0] for path, result in found.items()}


def children(client: KazooClient, paths: Iterable[str]) -> dict[str, Sequence[str]]:
    """The sorted names below each of `paths`; none where no znode is."""
    found = _read_together(client, client.get_children_async, paths)
    return {path: sorted(names or ()) for path, names in found.items()}


def _read_together(client: KazooClient, start: Callable[[str], Any], paths: Iterable[str]) -> dict[str, Any]:
    """The result for each path, all requests being sent before the first reply is awaited."""
    wanted = tuple(dict.fromkeys(paths))

    def read_all() -> dict[str, Any]:
        replies = [(path, start(path)) for path in wanted]
        return {path: _result(path, reply) for path, reply in replies}

    result: dict[str, Any] = client.retry(read_all)
    return result


def _result(path: str, reply: Any) -> Any:
    try:
        return reply.get()
    except NoNodeError:
        return None
    except DENIED as error:
        raise AccessDenied(f"{path} can't be read: {type(error).__name__}") from error


def write(client: KazooClient, path: str, data: bytes) -> None:
    """Have `data` at `path`, created or replaced; the znode above must exist."""

    def set_or_create() -> None:
        # In this order: the right to write here does not include the right to create beside it.
        try:
            client.set(path, data)
        except NoNodeError:
            client.create(path, data)

    _retry(client, set_or_create, f"{path} can't be written")


def create(client: KazooClient, path: str) -> None:
    """Create an empty znode at `path`; the znode above must exist."""

    def create_once() -> None:
        with suppress(NodeExistsError):  # By a first try, or by another publisher.
            client.create(path)

    _retry(client, create_once, f"{path} can't be created")


def remove(client: KazooClient, path: str) -> None:
    """Remove the znode at `path`; it is no error that none is there."""

    def delete() -> None:
        with suppress(NoNodeError):
            client.delete(path)

    _retry(client, delete, f"{path} can't be removed")


def _retry(client: KazooClient, request: Callable[[], None], what: str) -> None:
    """Send the request until it gets a reply; AccessDenied or AgentError where that is an error."""
    try:
        client.retry(request)
    except DENIED as error:
        raise AccessDenied(f"{what}: {type(error).__name__}") from error
    except KazooException as error:
        raise AgentError(f"{what}: {type(error).__name__}") from error
