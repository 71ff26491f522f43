"""The strings of a definition: the labels that say where each one is, the templates among them, and the forms
of names, paths, modes, owners and URLs.

Each form is a function that returns None for a valid string, else what was expected. No message
repeats the string: the result of a template may hold a secret.
"""

from __future__ import annotations

import re

from kolla_mesos_start.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable, Optional, TypeVar

    T = TypeVar("T")
    Form = Callable[[str], Optional[str]]


DAEMON = "daemon"  # the name of the daemon beside the commands
ENDED = "ended"  # a znode beside the states of commands, so no command may have this name
ELECTION = "election"  # another one
GLOBAL, LOCAL = "global", "local"  # scopes
RESERVED = ("variables", "status", "files")  # names that the last segment of a service can't have
ANY = "any"  # of a dependency: any generation that is done is enough
RESTARTED = "restarted"  # the variable that a daemon with `on_change: {restart: true}` follows
# Signals that a daemon may handle as a notification.
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "URG", "WINCH", "IO", "PWR")

# Not compiled here, but by re when a definition first needs one: not every start does.
_HOST = r"(\[[0-9A-Fa-f:.%]+\]|[^\s/:?#@\[\]]+)"
_PORT = (
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"  # 1 to 65535
)
_USER = r"[^\s:/]+"
# ZooKeeper refuses these in paths; the last range because Java stores it as surrogates.
_NOT_IN_ZNODES = "[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"


def any_text(text: str) -> str | None:
    """Every string is valid."""
    return None


def _matching(pattern: str, expected: str) -> Form:
    return lambda text: None if re.fullmatch(pattern, text) else expected


def unusable(text: str) -> str | None:
    """Why `text` can't be written to a file, an argv or a znode; None if it can."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which UTF-8 can't encode"
    return None


def bad_segment(text: str) -> str | None:
    """One segment of a znode's path: the name of a role, a command or a file."""
    plain = text.isascii() and text.isprintable()
    if text in ("", ".", "..") or "/" in text or (not plain and re.search(_NOT_IN_ZNODES, text)):
        return "expected a name that can be one segment of a znode's path"
    return None


def bad_path(text: str) -> str | None:
    """`role/command`"""
    parts = text.split("/")
    return "expected role/command" if len(parts) != 2 or any(map(bad_segment, parts)) else None


def bad_service(text: str) -> str | None:
    if any(map(bad_segment, text.split("/"))):
        return "expected the path of a service, such as openstack/keystone/keystone-api"
    return None


def bad_scope(text: str) -> str | None:
    return None if text in (GLOBAL, LOCAL) else f"expected {GLOBAL!r} or {LOCAL!r}"


def bad_host(text: str) -> str | None:
    """The name of a host. More is possible in a znode, but a mistake: quotes, blanks, `%H`, `$HOSTNAME`."""
    if re.fullmatch(r"[\w.:@+-]+", text) and text != GLOBAL and not (bad_segment(text) or disguise(text)):
        return None
    return f"expected the name of a host, of letters, digits and . _ - : @ +, other than {GLOBAL}"


def bad_generation(text: str) -> str | None:
    if not text.strip():
        return "expected the name of a generation, such as an image tag"
    found = disguise(text)
    return f"expected the name of a generation, but it {found}" if found else None


def disguise(text: str) -> str:
    """What makes a name another one than the one that was meant, and what to do; or nothing.

    An env file keeps quotes and carriage returns, and nobody sees a blank at the end.
    """
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`":
        return "is in quotes, which are a part of it: write it without them"
    if text != text.strip():
        edge = text[-1] if text[-1].isspace() else text[0]
        return f"begins or ends with a blank (U+{ord(edge):04X}): remove that"
    unseen = next((each for each in text if not each.isprintable()), "")
    if unseen:
        return f"has a character that nobody sees (U+{ord(unseen):04X}): remove that"
    if re.search(r"\$[A-Za-z_({]|\{\{", text):
        return "has a placeholder that nothing has replaced: write the value"
    if not text.isascii():
        import unicodedata  # Few names need it.

        if not unicodedata.is_normalized("NFC", text):
            return "has letters and accents as separate characters: write it in Unicode's form NFC"
    return ""


def bad_signal(text: str) -> str | None:
    """The name of a signal, with SIG or without."""
    good = text.removeprefix("SIG") in SIGNALS
    return None if good else f"expected the name of a signal, one of {', '.join(SIGNALS)}"


def bad_variable(text: str) -> str | None:
    """The name of an environment variable."""
    return "expected the name of an environment variable, without =" if not text or "=" in text else None


def bad_file(text: str) -> str | None:
    """The path of a file in the container."""
    good = text.startswith("/") and text.rsplit("/", 1)[-1] not in ("", ".", "..")
    return None if good else "expected the absolute path of a file"


bad_perm = _matching(r"[0-7]{3,4}|0o0*[0-7]{1,4}", 'expected octal text such as "0600"')
bad_user = _matching(_USER, "expected a user's name or number")
bad_owner = _matching(f"{_USER}(:{_USER})?", "expected user or user:group")
bad_endpoint = _matching(f"{_HOST}:{_PORT}", "expected host:port, an IPv6 address in brackets")
bad_url = _matching(rf"https?://{_HOST}(:[0-9]{{1,5}})?([/?]\S*)?", "expected http[s]://host[:port][/path]")
bad_external_url = _matching(
    rf"https?://{_HOST}(:{_PORT})?([/?]\S*)?",
    "expected http[s]://host[:port][/path], a port from 1 to 65535",
)


# -- labels, templates, values ---------------------------------------------------------------------------

SHOWN = 80
"""How many characters of a key or a value a message shows."""
_TEMPLATE_MARKS = ("{{", "{%", "{#")


class Text(NamedTuple):
    """A string of a definition, and its label: `commands.db_sync.env.PASSWORD`."""

    label: str
    text: str

    @property
    def is_template(self) -> bool:
        """Whether rendering can change the text."""
        return any(mark in self.text for mark in _TEMPLATE_MARKS)


def value_of(data: bytes) -> bytes:
    """The value of a variable in a file. The newline at the end of a single line is the editor's; a text of
    several lines, such as a key, keeps its own."""
    return data[:-1] if data.find(b"\n") == len(data) - 1 else data


def is_encrypted(data: bytes) -> bool:
    """Whether ansible-vault has encrypted it, also behind a byte order mark or white space."""
    return data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"$ANSIBLE_VAULT")


def untidy(value: str) -> str:
    """What the value of a variable has that nobody sees, and a password should not have; or nothing."""
    line = value.rstrip("\n")
    if value.startswith("\ufeff"):
        return "begins with a byte order mark"
    if "\r" in value:
        return f"{'ends with' if line.endswith(chr(13)) else 'has'} a carriage return, as in files of Windows"
    if "\n" in line or not line.strip():
        return ""
    if value != line:
        return "ends with a newline"
    edges = [where for where, blank in (("begins", line[0]), ("ends", line[-1])) if blank.isspace()]
    return f"{' and '.join(edges)} with a blank" if edges else ""


if TYPE_CHECKING:
    Render = Callable[[Text], str]


def rendered_by(read: Callable[[Render], object]) -> tuple[Text, ...]:
    """The templates that `read` renders, found by calling it with a function that changes nothing."""
    texts: list[Text] = []

    def record(text: Text) -> str:
        texts.append(text)
        return text.text

    read(record)
    return tuple(texts)


def sublabel(label: str, key: str) -> str:
    """The label of the value under `key`. A key that is empty or not printable is quoted, a long one cut."""
    shown = key if key and key.isprintable() else repr(key)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    return f"{label}.{shown}" if label else shown


def labelled(label: str, items: Iterable[T]) -> Iterator[tuple[str, T]]:
    """The items of a list, each with its label."""
    return ((f"{label}[{index}]", item) for index, item in enumerate(items))
