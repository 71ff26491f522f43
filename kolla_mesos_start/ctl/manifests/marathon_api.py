"""Marathon's API: requests and responses.

Each request is retried while Marathon has no leader. Redirects are not followed, because their target would
receive user and password. A response from anything but Marathon is an error.
"""

from __future__ import annotations

import netrc
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import requests

from kolla_mesos_start.ctl.invocation import CONNECT_TIMEOUT
from kolla_mesos_start.errors import AccessDenied, AgentError, BadUsage, Issues, NoConnection, listed

TICK = 0.5  # seconds between two requests
NOBODY_LEADS = (502, 503, 504)
SHOWN = 3  # names in a line of progress
KINDS: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
NETRC = "only you may read it, and its lines are: machine HOST login USER password PASSWORD"
LONGEST = 500  # characters of what Marathon says


class Rejected(Issues):
    """Marathon rejects the apps."""

    status = 65
    subject = "Marathon rejects it"


class NotFinished(AgentError):
    """A deployment is still running."""

    status = 75


class Unsure(Exception):
    """It is unknown whether Marathon has received a request."""


def parsed(text: str) -> str:
    """The URL without a slash at its end. BadUsage never contains it: there may be a password in it."""
    expected = "--post: expected http://HOST:8080 or https://HOST, and a path where Marathon has one"
    try:
        parts = urlsplit(text)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError as error:
        raise BadUsage(expected) from error
    if "@" in parts.netloc:
        raise BadUsage("--post: others can read it: user and password of Marathon belong in ~/.netrc")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' ?#"<>\\')
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise BadUsage(expected)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


class MarathonDeployment(NamedTuple):
    """A running deployment: the apps that it changes, and its current step."""

    id: str
    apps: Sequence[str]
    step: str


class Api:
    """The API of Marathon at one URL. `say` reports progress."""

    def __init__(self, url: str, timeout: float, say: Callable[[str], object]) -> None:
        self.url, self._say = url, say
        self.deadline = time.monotonic() + timeout
        self._limit = min(self.deadline, time.monotonic() + CONNECT_TIMEOUT)  # until the first answer
        trusted = ssl.get_default_verify_paths()  # the system's CAs, or those of SSL_CERT_FILE
        self._trusted = trusted.cafile or trusted.capath or True
        self._user = _user(urlsplit(url).hostname or "")

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

    def put(self, apps: Sequence[Mapping[str, Any]]) -> str:
        """Have Marathon run these, in place of those with their ids; the id of the deployment.

        Without `partialUpdate` it would keep what an app had and no longer says. Raises Unsure.
        """
        answer = self._expected(self._call("PUT", "/v2/apps?partialUpdate=false", apps), dict)
        return str(self._expected(answer.get("deploymentId"), str))

    # -- requests -----------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """The response; None for status 404."""
        while True:
            try:
                response = self._request(method, path, body)
            except requests.exceptions.SSLError as error:
                raise NoConnection(
                    f"{self.url}: {_problem(error)}: SSL_CERT_FILE names the CAs that are trusted"
                ) from error
            except requests.exceptions.RequestException as error:
                problem = _problem(error)
            except ValueError as error:
                raise self._foreign("a redirect to something that is no URL") from error
            else:
                self._limit = self.deadline
                if response.status_code not in NOBODY_LEADS:
                    return self._judged(response)
                problem = f"status {response.status_code}, as while a leader is elected"
            if time.monotonic() + TICK >= self._limit:
                raise NoConnection(f"no answer from Marathon at {self.url}: {problem}")
            self._say(f"Marathon: {problem}; trying again")
            time.sleep(TICK)
            if method == "PUT":
                raise Unsure

    def _request(self, method: str, path: str, body: Any) -> requests.Response:
        with requests.Session() as session:
            # Neither proxies, which would see the password, nor other CAs, from the environment.
            session.trust_env = False
            return session.request(
                method,
                self.url + path,
                json=body,
                headers={"Connection": "close"},
                timeout=CONNECT_TIMEOUT,
                allow_redirects=False,
                verify=self._trusted,
                auth=self._user,
            )

    def _judged(self, response: requests.Response) -> Any:
        status = response.status_code
        if 300 <= status < 400:
            to = _site(response.headers.get("Location", ""))
            raise NoConnection(
                f"{self.url} redirects to {to}, which is not followed: give Marathon's own URL"
            )
        if status in (401, 403):
            hint = (
                f"give a user in ~/.netrc: machine {urlsplit(self.url).hostname} login USER password PASSWORD"
            )
            if "Authorization" in response.request.headers:
                hint = "has the user of ~/.netrc the right?"
            raise AccessDenied(f"Marathon at {self.url} refuses it with status {status}: {hint}")
        if status not in (200, 201, 400, 404, 409, 422):
            raise NoConnection(f"Marathon at {self.url} answers with status {status}: {clean(response.text)}")
        try:
            content = response.json()
        except (ValueError, RecursionError) as error:
            kind = clean(response.headers.get("Content-Type", "something"))
            raise self._foreign(f"{kind} that is no JSON") from error
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
            f" take it back first: curl -X DELETE {self.url}/v2/deployments/{ids[0]}"
        )

    def _details(self, said: Mapping[str, Any]) -> Iterator[str]:
        for each in self._expected(said.get("details", []), list):
            detail = self._expected(each, dict)
            errors = self._expected(detail.get("errors", [detail.get("message")]), list)
            yield clean(f"{detail.get('path', 'app')}: {'; '.join(map(str, errors))}")

    def _expected(self, content: Any, kind: type) -> Any:
        """The content, if it has this type."""
        if not isinstance(content, kind):
            raise self._foreign(f"JSON without {KINDS[kind]} where one belongs")
        return content

    def _foreign(self, what: str) -> NoConnection:
        return NoConnection(f"{self.url} answers with {what}, as Marathon does not: is this its URL?")


def _user(host: str) -> tuple[str, str] | None:
    """User and password for a host, if ~/.netrc has any."""
    try:
        found = netrc.netrc().authenticators(host)
    except FileNotFoundError:
        return None
    except (netrc.NetrcParseError, OSError) as error:  # Its text could be that of a password.
        raise BadUsage(f"~/.netrc can't be read ({type(error).__name__}): {NETRC}") from error
    return (found[0], found[2]) if found else None


def _problem(error: requests.exceptions.RequestException) -> str:
    """The cause at the end of a chain of errors, such as `[Errno 111] Connection refused`."""
    cause = error.args[0] if error.args else error
    return clean(str(getattr(cause, "reason", cause)).rpartition(": ")[2])


def _site(location: str) -> str:
    """The target of a redirect, without its path, which may contain a secret."""
    parts = urlsplit(location)
    return clean(f"{parts.scheme}://{parts.hostname}") if parts.hostname else "elsewhere"


def _brief(ids: Sequence[str]) -> str:
    """Names that fit one line."""
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{', '.join(ids[:SHOWN])}{more}"


def clean(text: str) -> str:
    """A server's text, for one line of a terminal."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."
