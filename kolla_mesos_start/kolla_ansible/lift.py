"""Puts variables where two recordings with different stand-ins have different values.

In a lifted text, each stand-in is replaced by a mark, which holds the expression of a template; `template`
makes the template. A number that is less in the second recording depends on the CPUs or the memory of its
host, and gets a mark too. Any other difference that is no stand-in, nor one in a known encoding, is reported:
its value would be that of a stand-in.

`merge` makes one template of the lifted texts that several hosts have, and values for each host where they
differ. A host's own address and name become the variables `own_address` and `own_hostname`. A word that
differs otherwise, or that depends on the size of the host, becomes a variable of the service. Texts that
differ in more than words become branches of one template, by `own_host`.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Callable

from kolla_mesos_start.kolla_ansible.recording import Task
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns

BEGIN, END = "\ue000", "\ue001"  # for private use: rare in a configuration
# Expressions of a template for these characters themselves.
OWN_MARKS = {BEGIN: r'"\ue000"', END: r'"\ue001"'}
MARK = re.compile(f"{BEGIN}([^{END}]*){END}")
STATEMENT = "%"  # begins a mark that is a statement of a template, and no expression
SIZED = "#"  # begins a mark that is the value of this host, and no expression
SIZED_MARK = re.compile(f"{BEGIN}{SIZED}([^{END}]*){END}")
# A mark, a word as host names have it, or one other character.
TOKEN = re.compile(f"{BEGIN}[^{END}]*{END}|[A-Za-z0-9_-]+|.", re.DOTALL)
BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
# A brace before the next tag would join its braces. A carriage return becomes a tag, too.
TEMPLATE_SYNTAX = re.compile(r"\{\{|\{%|\{#|\{(?=\Z|\r)|\r")
# characters: a shorter real password could be any word of a file
LEAST_PASSWORD = 12
# Names without meaning outside of kolla-ansible's own run.
NAME = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class Unlifted:
    """A text that differs between the recordings, although no stand-in is in it."""

    host: str
    what: str
    line: int


def variable(*parts: str) -> str:
    """A name that a template can use."""
    return NAME.sub("_", "_".join(parts))


class Lifter:
    """Replaces the stand-ins of one recording by marks."""

    def __init__(
        self,
        stand_ins: StandIns,
        names: Mapping[str, str],
        passwords: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`names` are the variables of real addresses, and `passwords` the real ones by their variables."""
        addresses = {stand_ins.addresses[real]: name for real, name in names.items()}
        secrets = {value: name for name, value in passwords.items() if len(value) >= LEAST_PASSWORD}
        secrets.update({value: name for name, value in stand_ins.secrets.items()})
        tuples = {value.replace(".", ","): f'{name} | replace(".", ",")' for value, name in addresses.items()}
        self._names = {**secrets, **addresses, **tuples, **OWN_MARKS}
        found = [*_alternatives([*secrets, *OWN_MARKS], ""), *_alternatives([*addresses, *tuples], r"\d")]
        self._pattern = re.compile("|".join(found) or r"(?!)")

    def text(self, text: str) -> str:
        """The text with marks."""
        marked = self._pattern.sub(lambda found: _mark(self._names[found[0]]), text)
        return BASE64.sub(self._encoded, marked)

    def arguments(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a task with marks."""
        marked: Mapping[str, Any] = mapped(
            args, lambda value: self.text(value) if isinstance(value, str) else value
        )
        return marked

    def _encoded(self, found: re.Match[str]) -> str:
        """A mark if the text is the base64 of a text with stand-ins."""
        try:
            text = base64.b64decode(found[0], validate=True).decode()
        except ValueError:
            return found[0]
        marked = self._pattern.sub(lambda inner: _mark(self._names[inner[0]]), text)
        return _mark(f"({' ~ '.join(_operands(marked))}) | b64encode") if marked != text else found[0]


def _alternatives(values: Iterable[str], beside: str) -> list[str]:
    """Regular expressions of values, long ones first; none is part of a longer word of such characters."""
    before, after = (rf"(?<![{beside}.])", rf"(?![{beside}])") if beside else ("", "")
    return [before + re.escape(value) + after for value in sorted(values, key=len, reverse=True)]


def _mark(expression: str) -> str:
    return f"{BEGIN}{expression}{END}"


def _operands(marked: str) -> Iterator[str]:
    """The text as operands of a template's ~."""
    for number, part in enumerate(MARK.split(marked)):
        if number % 2:
            yield part
        elif part:
            yield '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same value with changed keys and single values in it."""
    if isinstance(value, Mapping):
        return {change(key): mapped(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(each, change) for each in value]
    return change(value)


def expressions(lifted: object) -> Iterator[str]:
    """The expressions of the marks in a value, and in what it contains."""
    if isinstance(lifted, str):
        yield from (each for each in MARK.findall(lifted) if not each.startswith(SIZED))
    elif isinstance(lifted, Mapping):
        for key, value in lifted.items():
            yield from expressions(key)
            yield from expressions(value)
    elif isinstance(lifted, (list, tuple)):
        for each in lifted:
            yield from expressions(each)


def template(lifted: str) -> str:
    """The template of a file that renders to the text once its variables have their values.

    A text without marks is its own template only if nothing in it looks like one: see `is_template`.
    """
    lifted = SIZED_MARK.sub(r"\1", lifted)
    if not is_template(lifted):
        return lifted
    parts = MARK.split(lifted)
    return "".join(
        _tag(part) if number % 2 else TEMPLATE_SYNTAX.sub(_quoted, part) for number, part in enumerate(parts)
    )


def words(lifted: str) -> Sequence[str]:
    """The words of a command, as a shell splits them, but without splitting marks."""
    marks: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        marks.append(found[0])
        return _mark(str(len(marks) - 1))

    split = shlex.split(MARK.sub(numbered, lifted))
    return [MARK.sub(lambda found: marks[int(found[1])], word) for word in split]


def templates(lifted: Any) -> Any:
    """The templates of all texts in a value. Other than a file, a text loses one newline at its end."""

    def changed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return template(value) + ("\n" if is_template(value) and value.endswith("\n") else "")

    return mapped(lifted, changed)


def shown(lifted: str) -> str:
    """The text for people: a variable is shown as a template has it."""
    return MARK.sub(lambda found: _tag(found[1]), SIZED_MARK.sub(r"\1", lifted))


def _tag(expression: str) -> str:
    if expression.startswith(STATEMENT):
        return f"{{% {expression[len(STATEMENT) :]} %}}"
    return f"{{{{ {expression} }}}}"


def is_template(lifted: str) -> bool:
    """Whether an agent would render it."""
    return BEGIN in lifted or bool(re.search(r"\{\{|\{%|\{#", lifted))


def _quoted(found: re.Match[str]) -> str:
    return '{{ "\\r" }}' if found[0] == "\r" else f'{{{{ "{found[0]}" }}}}'


def pairs(first: Sequence[Task], second: Sequence[Task]) -> Iterator[tuple[Task, Task | None]]:
    """Each task of the first recording with the same task of the second one.

    Hosts are recorded side by side, so their order within a task may differ.
    """
    others: dict[tuple[str, ...], list[Task]] = {}
    for task in second:
        others.setdefault(_key(task), []).append(task)
    for task in first:
        same = others.get(_key(task), [])
        yield task, same.pop(0) if same else None


def _key(task: Task) -> tuple[str, ...]:
    return (task.place, task.module, task.host, task.target, task.dest or "")


def lift(
    first: Sequence[Task], second: Sequence[Task], lifters: tuple[Lifter, Lifter]
) -> tuple[Sequence[Task], Sequence[Unlifted]]:
    """The first recording with marks, and what differs although no stand-in is there."""
    lifted: list[Task] = []
    unlifted: list[Unlifted] = []
    for one, other in pairs(first, second):
        made, differing = _lifted(one, other, lifters)
        lifted.append(made)
        unlifted += differing
    return lifted, unlifted


def _lifted(one: Task, other: Task | None, lifters: tuple[Lifter, Lifter]) -> tuple[Task, Sequence[Unlifted]]:
    if other is None:
        found = [Unlifted(one.host, f"the task {one.name!r}, which was recorded only once,", 0)]
        other = one
    else:
        found = []
    args = lifters[0].arguments(one.args)
    if other is not one:
        args, is_explained = _sized(args, lifters[1].arguments(other.args))
        if not is_explained:
            found.append(Unlifted(one.host, f"arguments of {one.name!r}", 0))
    content = one.content
    if one.content is not None:
        text, again = _decoded(one.content), _decoded(other.content)
        if text is not None and again is not None:
            marked, marked_again = lifters[0].text(text), lifters[1].text(again)
            sized, is_explained = _sized(marked, marked_again)
            content = str(sized).encode()
            found += [] if is_explained or other is one else _differences(one, marked, marked_again)
        elif one.content != other.content:
            found.append(Unlifted(one.host, one.dest or "", 0))
    return replace(one, args=args, content=content), found


def _sized(one: Any, other: Any) -> tuple[Any, bool]:
    """The first value with marks where it depends on the size of the host, and whether only that differs."""
    if one == other:
        return one, True
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        by_key = {key: _sized(value, other[key]) for key, value in one.items()}
        return {key: value for key, (value, _) in by_key.items()}, all(same for _, same in by_key.values())
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        each = [_sized(*values) for values in zip(one, other)]
        return [value for value, _ in each], all(same for _, same in each)
    tokens, others = TOKEN.findall(str(one)), TOKEN.findall(str(other))
    if len(tokens) != len(others) or isinstance(one, (bool, type(None))):
        return one, False
    if not all(left == right or _is_less(right, left) for left, right in zip(tokens, others)):
        return one, False
    pieces = (left if left == right else _mark(f"{SIZED}{left}") for left, right in zip(tokens, others))
    return "".join(pieces), True


def _is_less(word: str, than: str) -> bool:
    """Whether these are the same words with a smaller number: 409M, 3276M."""
    number, other = re.findall(r"\d+", word), re.findall(r"\d+", than)
    is_same = re.sub(r"\d+", "0", word) == re.sub(r"\d+", "0", than) and BEGIN not in word
    return is_same and len(number) == 1 and int(number[0]) < int(other[0])


def _decoded(content: bytes | None) -> str | None:
    try:
        return (content or b"").decode()
    except UnicodeDecodeError:
        return None


def _differences(task: Task, one: str, other: str) -> list[Unlifted]:
    """Each line that differs; only the first one if the others can't be compared line by line."""
    lines, others = one.split("\n"), other.split("\n")
    found = [number for number, pair in enumerate(zip(lines, others), start=1) if len(set(pair)) > 1]
    if len(lines) != len(others):
        found = found[:1] or [0]
    return [Unlifted(task.host, task.dest or "", line) for line in found]


# -- one text for several hosts --------------------------------------------------------------------

OWN_ADDRESS, OWN_HOSTNAME, OWN_HOST = "own_address", "own_hostname", "own_host"


@dataclass(frozen=True)
class OwnNames:
    """A host's names for itself: the variables of its addresses by their own names, and its host name."""

    addresses: Mapping[str, str]
    hostname: str


@dataclass(frozen=True)
class Merged:
    """A lifted text for all hosts. `values` are each host's variables in it, except its own names.

    `sized` are those that depend on the CPUs or the memory of the host.
    """

    text: str
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_branched: bool = False
    sized: Sequence[str] = ()


def merge(name: str, texts: Mapping[str, str], own: Mapping[str, OwnNames]) -> Merged:
    """One text for the hosts. `name` begins the names of its variables."""
    first = next(iter(texts.values()))
    if len(set(texts.values())) == 1 and not SIZED_MARK.search(first):
        return Merged(first)
    tokens = {host: TOKEN.findall(text) for host, text in texts.items()}
    if len({len(found) for found in tokens.values()}) > 1:
        return Merged(_branched(texts), is_branched=True)
    parts: list[str] = []
    values: dict[str, dict[str, str]] = {host: {} for host in texts}
    sized: list[str] = []
    for marked in zip(*tokens.values()):
        column = [SIZED_MARK.sub(r"\1", word) for word in marked]
        is_sized = column != list(marked)
        words = dict(zip(texts, column))
        if len(set(column)) == 1 and not is_sized:
            parts.append(column[0])
        elif not is_sized and (common := _own(words, own)) is not None:
            parts.append(common)
        elif any(BEGIN in word or not word.strip() for word in column):
            return Merged(_branched(texts), is_branched=True)
        else:
            own_name = variable(name, str(1 + len(next(iter(values.values())))))
            parts.append(f"{BEGIN}{own_name}{END}")
            sized += [own_name] if is_sized else []
            for host, word in words.items():
                values[host][own_name] = word
    return Merged("".join(parts), values if any(values.values()) else {}, sized=sized)


def _own(words: Mapping[str, str], own: Mapping[str, OwnNames]) -> str | None:
    """The word with a variable of the host's own in place of what differs; None if something else differs.

    Each word is a mark, or has none.
    """
    first = next(iter(words))
    for variable in own[first].addresses:
        names = {host: own[host].addresses.get(variable) for host in words}
        found = {_renamed(word, names[host], variable) for host, word in words.items()}
        if len(found) == 1:
            return found.pop()
    if any(BEGIN in word for word in words.values()):
        return None
    mark = f"{BEGIN}{OWN_HOSTNAME}{END}"
    found = {word.replace(own[host].hostname, mark) for host, word in words.items()}
    return found.pop() if len(found) == 1 else None


def _renamed(word: str, name: str | None, variable: str) -> str:
    is_known = name is not None and BEGIN in word
    return re.sub(rf"\b{name}\b", variable, word) if is_known else word


def _branched(texts: Mapping[str, str]) -> str:
    """A template with one branch for each different text. Its marks are statements."""
    by_text: dict[str, list[str]] = {}
    for host, text in texts.items():
        by_text.setdefault(text, []).append(host)
    parts: list[str] = []
    for text, hosts in by_text.items():
        condition = f"{'elif' if parts else 'if'} {OWN_HOST} in {_listed(hosts)}"
        parts.append(f"{BEGIN}{STATEMENT}{condition}{END}{text}")
    return "".join(parts) + f"{BEGIN}{STATEMENT}endif{END}"


def _listed(hosts: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{host}"' for host in hosts) + "]"
