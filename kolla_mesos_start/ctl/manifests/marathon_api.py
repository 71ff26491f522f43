"""Marathon's API: requests and responses.

Each request has its own connection, and is retried while Marathon has no leader. Redirects are not followed,
because their target would receive user and password. A response from anything but Marathon is an error.
"""

from __future__ import annotations

import base64
import json
import netrc
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import Any, Callable, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

from kolla_mesos_start.ctl.invocation import CONNECT_TIMEOUT
from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage, Issues, NoConnection, cause, listed

TICK = 0.5  # seconds between two requests
LEAST = 1.0  # seconds that an answer may take, however late it is
NOBODY_LEADS = (502, 503, 504)
LARGEST = 64 << 20  # bytes of an answer
SHOWN = 3  # names in a line of progress
KINDS: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
LONGEST = 500  # characters of what Marathon says
ENDLESS = "an answer without end"


class Rejected(Issues):
    """Marathon rejects the apps."""

    status = 65
    subject = "Marathon rejects it"


class NotFinished(AgentError):
    """A deployment is still running."""

    status = 75


class Unsure(Exception):
    """It is unknown whether Marathon has received a request."""


class Url(NamedTuple):
    """The URL of Marathon. `path` precedes the path of each request."""

    text: str
    is_tls: bool
    host: str
    port: int | None
    path: str


def parsed(text: str) -> Url:
    """Parse the URL. BadUsage never contains it: there may be a password in it."""
    expected = "--post: expected http://HOST:8080 or https://HOST, and a path where Marathon has one"
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError as error:
        raise BadUsage(expected) from error
    if "@" in parts.netloc:
        raise BadUsage("--post: others can read it: user and password of Marathon belong in ~/.netrc")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' ?#"<>\\')
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise BadUsage(expected)
    path = parts.path.rstrip("/")
    shown = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return Url(shown, parts.scheme == "https", host, port, path)


class MarathonDeployment(NamedTuple):
    """A running deployment: the apps that it changes, and its current step."""

    id: str
    apps: Sequence[str]
    step: str


class Api:
    """The API of Marathon at one URL. `say` reports progress."""

    def __init__(self, url: Url, timeout: float, say: Callable[[str], object]) -> None:
        self.url, self.say = url, say
        self.deadline = time.monotonic() + timeout
        self._authorization = _authorization(url.host)
        self._has_answered = False

    # -- what there is ------------------------------------------------------------------------------

    def apps(self, group: str) -> Mapping[str, Mapping[str, Any]]:
        """The apps of a group by id, with counts of healthy tasks; none if the group does not exist."""
        embedded = "embed=group.groups&embed=group.apps&embed=group.apps.counts"
        answer = self._call("GET", f"/v2/groups{group}?{embedded}")
        found, left = {}, [] if answer is None else [answer]
        while left:
            above = self._expected(left.pop(), dict)
            left += self._expected(above.get("groups", []), list)
            for app in self._expected(above.get("apps", []), list):
                found[self._expected(self._expected(app, dict).get("id"), str)] = app
        return found

    def deployments(self) -> Iterator[MarathonDeployment]:
        """All running deployments."""
        for plan in self._expected(self._call("GET", "/v2/deployments"), list):
            id = self._expected(self._expected(plan, dict).get("id"), str)
            apps = self._expected(plan.get("affectedApps", []), list)
            yield MarathonDeployment(id, [str(each) for each in apps], self._step(plan))

    def _step(self, plan: Mapping[str, Any]) -> str:
        actions: dict[str, list[str]] = {}
        for each in self._expected(plan.get("currentActions", []), list):
            action = self._expected(each, dict)
            actions.setdefault(str(action.get("action")), []).append(
                str(action.get("app", action.get("pod")))
            )
        what = "; ".join(f"{name} {_brief(ids)}" for name, ids in actions.items())
        return clean(f"step {plan.get('currentStep')} of {plan.get('totalSteps')}: {what}")

    # -- what is changed ----------------------------------------------------------------------------

    def put(self, apps: Sequence[Mapping[str, Any]]) -> str:
        """Have Marathon run these, in place of those with their ids; the id of the deployment.

        Without `partialUpdate` it would keep what an app had and no longer says. Raises Unsure.
        """
        answer = self._expected(self._call("PUT", "/v2/apps?partialUpdate=false", apps), dict)
        return str(self._expected(answer.get("deploymentId"), str))

    # -- requests -----------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: object = None) -> Any:
        """The response; None for status 404."""
        limit = self.deadline
        if not self._has_answered:
            limit = min(limit, time.monotonic() + CONNECT_TIMEOUT)
        while True:
            try:
                status, data, headers = self._bounded(method, path, body, limit)
            except ssl.SSLCertVerificationError as error:
                raise NoConnection(
                    f"{self.url.text}: {error.verify_message}: SSL_CERT_FILE names the CAs that are trusted"
                ) from error
            except (OSError, HTTPException) as error:
                problem = cause(error) if isinstance(error, OSError) else "a broken answer"
            else:
                self._has_answered, limit = True, self.deadline
                if status not in NOBODY_LEADS:
                    return self._judged(status, data, headers)
                problem = f"status {status}, as while a leader is elected"
            if time.monotonic() + TICK >= limit:
                raise NoConnection(f"no answer from Marathon at {self.url.text}: {problem}")
            self.say(f"Marathon: {problem}; trying again")
            time.sleep(TICK)
            if method == "PUT":
                raise Unsure

    def _bounded(self, method: str, path: str, body: object, limit: float) -> tuple[int, bytes, HTTPMessage]:
        """One request within the limit, even if the response arrives byte by byte."""
        now = time.monotonic()
        timeout = min(CONNECT_TIMEOUT, max(LEAST, limit - now))
        last = max(limit, now + timeout)
        try:
            return _in_thread(lambda: self._once(method, path, body, timeout, last)).result(
                last - now + LEAST
            )
        except FutureTimeout as error:
            raise TimeoutError(ENDLESS) from error

    def _once(
        self, method: str, path: str, body: object, timeout: float, limit: float
    ) -> tuple[int, bytes, HTTPMessage]:
        kind = HTTPSConnection if self.url.is_tls else HTTPConnection
        connection = kind(self.url.host, self.url.port, timeout=timeout)
        headers = {"Accept": "application/json", "Content-Type": "application/json", "Connection": "close"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        try:
            sent = None if body is None else json.dumps(body).encode()
            connection.request(method, self.url.path + path, sent, headers)
            with connection.getresponse() as response:
                return response.status, self._read(response, limit), response.headers
        finally:
            connection.close()

    def _read(self, response: HTTPResponse, limit: float) -> bytes:
        """Read a response, within limits of time and size."""
        found = bytearray()
        while True:
            part = response.read1(1 << 16)
            found += part
            if not part:
                break
            if len(found) > LARGEST:
                raise self._foreign(f"an answer of more than {LARGEST >> 20} MiB")
            if time.monotonic() > limit:
                raise TimeoutError(ENDLESS)
        length = response.getheader("Content-Length", "")
        if length.isascii() and length.isdigit() and len(found) < int(length):
            raise IncompleteRead(b"")
        return bytes(found)

    def _judged(self, status: int, data: bytes, headers: HTTPMessage) -> Any:
        if 300 <= status < 400:
            to = _site(headers.get("Location", ""))
            raise NoConnection(
                f"{self.url.text} redirects to {to}, which is not followed: give Marathon's own URL"
            )
        if status in (401, 403):
            hint = f"give a user in ~/.netrc: machine {self.url.host} login USER password PASSWORD"
            if self._authorization:
                hint = "has the user of ~/.netrc the right?"
            raise AccessDenied(f"Marathon at {self.url.text} refuses it with status {status}: {hint}")
        if status not in (200, 201, 400, 404, 409, 422):
            said = clean(data[:LONGEST].decode(errors="replace"))
            raise NoConnection(f"Marathon at {self.url.text} answers with status {status}: {said}")
        content = self._parsed(data, headers)
        if status < 300 and content is not None:
            return content
        said = self._expected(content, dict)
        message = clean(str(self._expected(said.get("message"), str)))
        if status == 404:
            return None
        if status == 409:
            raise NotFinished(self._locked(message, said))
        raise Rejected([message, *self._details(said)])

    def _locked(self, message: str, said: Mapping[str, Any]) -> str:
        locks = self._expected(said.get("deployments", []), list)
        ids = [clean(str(self._expected(each, dict).get("id"))) for each in locks]
        if not ids:
            return f"Marathon refuses it for now: {message}"
        return (
            f"locked by deployment {listed(ids)}, nothing was changed: run this again when it has ended, or"
            f" take it back first: curl -X DELETE {self.url.text}/v2/deployments/{ids[0]}"
        )

    def _details(self, said: Mapping[str, Any]) -> Iterator[str]:
        for each in self._expected(said.get("details", []), list):
            detail = self._expected(each, dict)
            errors = self._expected(detail.get("errors", [detail.get("message")]), list)
            yield clean(f"{detail.get('path', 'app')}: {'; '.join(map(str, errors))}")

    def _parsed(self, data: bytes, headers: HTTPMessage) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            kind = clean(headers.get("Content-Type", "something"))
            raise self._foreign(f"{kind} that is no JSON") from error

    def _expected(self, content: Any, kind: type) -> Any:
        """The content, if it has this type."""
        if not isinstance(content, kind):
            raise self._foreign(f"JSON without {KINDS[kind]} where one belongs")
        return content

    def _foreign(self, what: str) -> NoConnection:
        return NoConnection(f"{self.url.text} answers with {what}, as Marathon does not: is this its URL?")


def _site(location: str) -> str:
    """The target of a redirect, without its path, which may contain a secret."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "elsewhere"
    return clean(f"{parts.scheme}://{parts.hostname}") if parts.hostname else "elsewhere"


def _brief(ids: Sequence[str]) -> str:
    """Names that fit one line."""
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{', '.join(ids[:SHOWN])}{more}"


def clean(text: str) -> str:
    """A server's text, for one line of a terminal."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."


def _authorization(host: str) -> str | None:
    """The header for the host's user in ~/.netrc. BadUsage contains nothing from the file."""
    try:
        found = netrc.netrc().authenticators(host)
    except FileNotFoundError:
        return None
    except netrc.NetrcParseError as error:
        # Other messages contain words of the file.
        problem = error.msg if error.msg.startswith("~/") else f"line {error.lineno} is not as expected"
        raise BadUsage(f"~/.netrc can't be read: {problem}") from error
    except (OSError, UnicodeError) as error:
        problem = "not UTF-8 text" if isinstance(error, UnicodeError) else cause(error)
        raise BadUsage(f"~/.netrc can't be read: {problem}") from error
    if found is None:
        return None
    login, _, password = found
    return f"Basic {base64.b64encode(f'{login}:{password}'.encode()).decode()}"


T = TypeVar("T")


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """The result of `work` in a thread. The process does not wait for the thread at its end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
