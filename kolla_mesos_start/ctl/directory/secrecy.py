"""What is secret, and must not be printed. Pure.

A variable is secret if its name says so or if it is declared: in secrets.yml, in the file of --secrets, or in
acl.yml, which gives it to some services only. A text is hidden as far as it holds the value of such a
variable, or looks like a secret; a private key is hidden completely. So is the value of a variable that
looks like a secret, whatever its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from difflib import unified_diff
from urllib.parse import quote

from kolla_mesos_start.ctl.directory.directory import VARIABLES

HIDDEN = "***"
IN_URL = "a URL with a password"  # of which only the password is hidden
_WORDS = r"(?:pass(?:word|wd|phrase)?|pwd?|secret|token|credential|cookie|key)s?"
_LAST_WORDS = (
    # Elsewhere these say what has no secret: auth_url.
    r"(?:(?<=[_-])auth|keyrings?|keytab|(?<![a-z])(?:psk|dsn))"
)
_NAME = re.compile(rf"(?i){_WORDS}($|[_-])|{_LAST_WORDS}$")
_FILE = re.compile(rf"(?i)({_WORDS}|keyring|keytab|htpasswd|pgpass)$")
# The text after such a name in a file or a definition, unless it is a template or a path.
_BESIDE = re.compile(
    rf"(?i)((?:(?:{_WORDS}|{_LAST_WORDS})[\"']?\s*[:=]|stats\s+auth\s)\s*)"
    r"(?:(?P<quote>[\"'])(?![{/\[\s])(?:\\.|(?!(?P=quote)).)+|(?![\"'{/\[\s])[^\s\"',]+)"
)
# Also of each further host, as in transport_url.
_IN_URL = re.compile(r"((?:://|,)[^\s:/@{},]*:)(?![{])[^\s/@]+@")
_PRIVATE_KEY = re.compile(rb"PRIVATE KEY( BLOCK)?-----")
_WEB_TOKEN = re.compile(r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.")
_ONE_WORD = re.compile(r"(?!sha[0-9]+-)[!#-+\-/-9;=?-~]+")  # no host list, address, version, image or text
_HEXADECIMAL = re.compile(r"(?i)[0-9a-f-]+")  # UUIDs and hashes, which are rarely secret
_CASES = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
RANDOM, VARIED = 16, 12  # characters of random text, and how many of them differ
LEAST = 4  # characters: shorter values would be masked everywhere


def is_variable(node: str) -> bool:
    """Whether the znode holds the value of a variable."""
    return VARIABLES in node.split("/")[:-1]


def is_secret(node: str, declared: Set[str] = frozenset()) -> bool:
    """Whether the variable with this name, or in this znode, is secret."""
    name = node.rpartition("/")[2]
    return name in declared or bool(_NAME.search(name))


def likeness(value: str) -> str:
    """What secret the value of a variable looks like; empty if it looks like none."""
    value = value.strip()
    if _PRIVATE_KEY.search(value.encode()):
        return "a private key"
    if _IN_URL.search(value):
        return IN_URL
    return "random text" if _WEB_TOKEN.match(value) or _is_random(value) else ""


def _is_random(value: str) -> bool:
    """Whether lower case, upper case and digits change as often as by chance, and not as in words."""
    if not _ONE_WORD.fullmatch(value) or _HEXADECIMAL.fullmatch(value) or value[0] in "/~$%":
        return False
    longest = max(re.split("[-_]", value), key=len)
    runs = _CASES.findall(longest)
    kinds = {run[0].islower() + 2 * run[0].isupper() for run in runs}
    # By chance, three in five neighbours differ in their kind if there are three, and two in five if two.
    least = {3: 0.4, 2: 0.3}.get(len(kinds), 1.0)
    return (
        len(longest) >= RANDOM and len(set(longest)) >= VARIED and len(runs) - 1 >= least * (len(longest) - 1)
    )


class Mask:
    """Hides the secrets of the given variables in any text, and text that looks like a secret.

    `declared` are names of variables that are secret whatever their names say.
    """

    def __init__(self, *variables: Mapping[str, bytes], declared: Set[str] = frozenset()) -> None:
        self._declared = declared
        values = (
            data.decode(errors="replace").strip()
            for nodes in variables
            for node, data in nodes.items()
            if is_variable(node) and self._is_hidden(node, data)
        )
        found = {text for value in values for text in _forms(value) if len(text) >= LEAST}
        longest_first = sorted(found, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _IN_URL.sub(rf"\1{HIDDEN}@", _BESIDE.sub(rf"\1\g<quote>{HIDDEN}", text))

    def value(self, node: str, data: bytes | None) -> str | None:
        """The value of a variable."""
        if data is None:
            return None
        return HIDDEN if self._is_hidden(node, data) else self.hide(data.decode(errors="replace"))

    def _is_hidden(self, node: str, data: bytes) -> bool:
        return is_secret(node, self._declared) or likeness(data.decode(errors="replace")) not in ("", IN_URL)

    def lines(self, node: str, before: bytes | None, after: bytes) -> Iterator[str]:
        """The different lines of a file or a definition, in the format of `diff -u`."""
        if any(_PRIVATE_KEY.search(data or b"") for data in (before, after)):
            yield "a private key, and not shown"
            return
        if _FILE.search(node):
            yield "secret by its name, and not shown"
            return
        try:
            old, new = (data.decode().splitlines() for data in (before or b"", after))
        except UnicodeDecodeError:
            yield "not text, and not shown"
            return
        # Hidden after the comparison: otherwise a line would not differ if only its secret does.
        for line in list(unified_diff(old, new, lineterm="", n=1))[2:]:
            yield self.hide(line)


def _forms(value: str) -> Iterator[str]:
    """A secret as it stands in other texts: its lines, also in JSON and in URLs."""
    for line in map(str.strip, value.splitlines()):
        yield from (line, json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1], quote(line, ""))
    yield json.dumps(value)[1:-1]
