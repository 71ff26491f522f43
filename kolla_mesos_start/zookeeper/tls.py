"""TLS to the ensemble: creates the context of each connection, and explains errors of OpenSSL and alerts.

Only imported if TLS is used: OpenSSL would be a quarter of the registrar's memory.
"""

from __future__ import annotations

import errno
import socket

from kolla_mesos_start.errors import NO_ANSWER, cause, handshake_cause
from kolla_mesos_start.lean_import import import_without

# base64, which is only for converting to PEM, would import regular expressions.
import_without("ssl", {"base64": ()})

import ssl  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors in the server's certificate, by OpenSSL's number (X509_V_ERR_...).
VERIFICATION = {
    9: "is not valid yet (compare the clocks)",
    10: "has expired",
    **dict.fromkeys((2, 18, 19, 20, 21), "is not signed by a CA in KOLLA_ZK_CA"),
    **dict.fromkeys((62, 64), "is for another host than {hosts} names"),
}
# The alerts with which servers answer a client without a certificate.
WANTED = ("bad certificate", "certificate required", "certificate unknown", "handshake failure")
DISAGREE = ("protocol version", "handshake failure", "insufficient security")
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


class UnusableFiles(OSError):
    """Files that can't be loaded; each of `issues` begins with the name of its variable."""

    def __init__(self, issues: list[str]) -> None:
        super().__init__(errno.EINVAL, "; ".join(issues))
        self.issues = issues


class _Encrypted(Exception):
    """A key can't be read without a password."""


def make_context(ca: str, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """A context that only trusts `ca`, and verifies the host name. Without `key`, the key is in `cert`.

    All are paths of PEM files, which may be renewed: create a context for each connection. Raises
    UnusableFiles.
    """
    # Not `create_default_context`, which differs between the versions of Python.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issues = [*_trust(context, ca), *(_identify(context, cert, key) if cert else ())]
    if issues:
        raise UnusableFiles(issues)
    return context


def _trust(context: ssl.SSLContext, ca: str) -> Iterator[str]:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        yield f"KOLLA_ZK_CA is {ca!r}: expected CA certificates in PEM ({_words(error)})"


def _identify(context: ssl.SSLContext, cert: str, key: str | None) -> Iterator[str]:
    holder = f"KOLLA_ZK_KEY is {key!r}" if key else f"KOLLA_ZK_CERT is {cert!r}, KOLLA_ZK_KEY is not set"
    try:
        context.load_cert_chain(cert, key, password=_refuse)
    except _Encrypted:
        yield f"{holder}: expected a key that is not encrypted; nobody is here to type its password"
    except OSError as error:
        try:
            # Alone, to find out which of the two is wrong.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cert)
        except OSError as missing:
            yield f"KOLLA_ZK_CERT is {cert!r}: expected the client's certificate in PEM ({_words(missing)})"
        else:
            yield f"{holder}: expected the key of the certificate, in PEM ({_words(error)})"


def _refuse() -> str:
    # OpenSSL itself would ask on the terminal.
    raise _Encrypted


def explain(error: OSError, *, has_cert: bool, hosts: str) -> str:
    """Why the handshake with a server failed.

    `has_cert`: we have a certificate. `hosts`: where the servers are named.
    """
    if isinstance(error, (TimeoutError, socket.timeout)):
        return NO_ANSWER
    if isinstance(error, ssl.SSLCertVerificationError):
        words = VERIFICATION.get(error.verify_code, "can't be verified").format(hosts=hosts)
        return f"the server's certificate {words}: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return _failure(error, has_cert)
    doubt = "refuses the certificate in" if has_cert else "wants a client certificate: set"
    return handshake_cause(
        ConnectionResetError() if isinstance(error, ssl.SSLEOFError) else error,
        f"its port is not for TLS (expected its secureClientPort), or it {doubt} KOLLA_ZK_CERT",
    )


def _failure(error: ssl.SSLError, has_cert: bool) -> str:
    _, is_alert, alert = (error.reason or "").partition("ALERT_")
    alert = alert.lower().replace("_", " ")
    if alert in WANTED and not has_cert:
        return f"the server wants a client certificate: set KOLLA_ZK_CERT (TLS alert: {alert})"
    if "certificate" in alert or alert == "unknown ca":
        return f"the server refuses the certificate in KOLLA_ZK_CERT (TLS alert: {alert})"
    if alert in DISAGREE:
        return (
            f"the server and this host have no TLS version or cipher in common (TLS alert: {alert}): see"
            " ssl.enabledProtocols and ssl.ciphersuites in its zoo.cfg"
        )
    if is_alert:
        return f"the server refuses the TLS handshake (TLS alert: {alert})"
    if error.reason in NOT_TLS:
        return "the port does not speak TLS: expected the server's secureClientPort"
    return f"the TLS handshake failed: {cause(error)}"


def _words(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return cause(error)
    # Without a reason, OpenSSL has found nothing of the expected kind.
    return error.reason.lower().replace("_", " ") if error.reason else "none is in it"
