"""Probes over the network: whether a TCP port accepts connections, and whether a URL answers.

A probe is a generator of steps for a single-threaded loop. It returns why it failed, or an empty text.
`daemon.readiness` probes daemons, `wait.external` probes external services.
"""

from __future__ import annotations

import re
import select

from kolla_mesos_start.errors import cause
from kolla_mesos_start.zookeeper.connect import connect_any, connect_with_tls, resolve, would_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.zookeeper.connect import Steps

_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
STATUS_LINE_LIMIT, ANSWER_LIMIT = 1024, 1 << 16  # bytes


def tcp(addresses: Sequence[str], port: int) -> Steps[str]:
    """Whether one of the addresses accepts a connection; otherwise the error of the first one."""
    reason = ""
    for address in addresses:
        try:
            connection = yield from connect_any((yield from resolve(address, port)))
        except OSError as error:
            reason = reason or cause(error)
        else:
            connection.close()
            return ""
    return reason or "no address"


def http(url: str) -> Steps[str]:
    """Whether a GET is answered with 2xx or 3xx. Certificates are not verified."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    addresses = yield from resolve(host, parts.port or (443 if secure else 80))
    if secure:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = yield from connect_with_tls(addresses, context, host)
    else:
        connection = yield from connect_any(addresses)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        netloc = parts.netloc.rpartition("@")[2]
        connection.send(
            f"GET {target} HTTP/1.0\r\nHost: {netloc}\r\nUser-Agent: kolla_mesos_start\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while len(answer) < ANSWER_LIMIT:
            try:
                data = connection.recv(ANSWER_LIMIT)
            except OSError as error:
                if answer and not would_block(error):
                    break
                if not would_block(error):
                    raise
                answer = _without_interim(answer)
                if _END_OF_HEADERS.search(answer):
                    break  # The rest may never end. What has come is read: some servers log an early close.
                yield connection.fileno(), select.POLLIN
                continue
            if not data:
                break
            answer += data
    finally:
        connection.close()
    return _failure_of(_without_interim(answer))


def _without_interim(answer: bytes) -> bytes:
    """The answer without what a server may send before it (1xx)."""
    while re.match(rb"HTTP/\S+ 1\d\d\b", answer) and (end := _END_OF_HEADERS.search(answer)):
        answer = answer[end.end() :]
    return answer


def _failure_of(answer: bytes) -> str:
    words = answer[:STATUS_LINE_LIMIT].split(b"\r\n")[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or len(words[1]) != 3 or not words[1].isdigit():
        return "the answer is not HTTP"
    return "" if words[1][:1] in b"23" else f"HTTP status {words[1].decode()}"
