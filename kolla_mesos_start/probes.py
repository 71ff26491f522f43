"""Probes over the network: whether a TCP port accepts connections, and whether a URL answers.

A probe is a generator of steps for a single-threaded loop. It returns why it failed, or an empty text.
`daemon.readiness` probes daemons, `wait.external` probes external services.
"""

from __future__ import annotations

import select

from kolla_mesos_start.errors import cause
from kolla_mesos_start.zookeeper.connect import connect_any, connect_with_tls, resolve, would_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kolla_mesos_start.zookeeper.connect import Steps

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
        # Without the zone of an IPv6 address, which has a meaning on this host only.
        name = f"[{host.partition('%')[0]}]" if ":" in host else host
        netloc = f"{name}:{parts.port}" if parts.port else name
        connection.send(
            f"GET {target} HTTP/1.1\r\nHost: {netloc}\r\nUser-Agent: kolla_mesos_start\r\n"
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
                if _end_of_headers(answer):
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
    while _status(answer)[:1] == b"1" and (end := _end_of_headers(answer)):
        answer = answer[end:]
    return answer


def _end_of_headers(answer: bytes) -> int:
    """Where the body begins; 0 if the headers have not ended. Without `re`, which this process would keep."""
    ends = [answer.find(mark) + len(mark) for mark in (b"\n\n", b"\n\r\n") if mark in answer]
    return min(ends, default=0)


def _status(answer: bytes) -> bytes:
    """The three digits of the status line; empty if the answer is not HTTP."""
    words = answer[:STATUS_LINE_LIMIT].split(b"\r\n")[0].split()
    is_http = len(words) > 1 and words[0].startswith(b"HTTP/") and len(words[1]) == 3 and words[1].isdigit()
    return words[1] if is_http else b""


def _failure_of(answer: bytes) -> str:
    status = _status(answer)
    if not status:
        return "the answer is not HTTP"
    return "" if status[:1] in b"23" else f"HTTP status {status.decode()}"
