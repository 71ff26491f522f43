"""Makes mutations of the package, and finds them again after code has moved."""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "kolla_mesos_start"
FLIPPED = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Is: ast.IsNot, ast.In: ast.NotIn}
FLIPPED |= {after: before for before, after in FLIPPED.items()}
REMOVED = (ast.Raise, ast.Delete, ast.AugAssign, ast.Break, ast.Continue)
LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "exception")


class Mutation(NamedTuple):
    """`old` and `new` are statements or conditions; `nth` counts equal ones in the function from 0."""

    module: str
    function: str
    old: str
    nth: int
    new: str


class Place(NamedTuple):
    """A simple statement in a function, or an expression in the header of a compound one."""

    module: str
    function: str
    text: str
    nth: int
    node: ast.stmt | ast.expr
    is_condition: bool


def places(root: Path) -> list[Place]:
    """All places of the package below `root`."""
    found: list[Place] = []
    count: Counter[tuple[str, str, str]] = Counter()

    def visit(parent: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(parent):
            is_expression = isinstance(child, ast.expr)
            if isinstance(child, ast.FunctionDef):
                visit(ast.Module(child.body, []), child.name)
            elif isinstance(child, ast.ClassDef):
                visit(child, "")
            elif is_expression or (isinstance(child, ast.stmt) and not hasattr(child, "body")):
                if function:
                    key = (module, function, ast.unparse(child))
                    is_condition = is_expression and isinstance(parent, (ast.If, ast.While))
                    found.append(Place(*key, count[key], child, is_condition))  # type: ignore[arg-type]
                    count[key] += 1
            else:
                visit(child, function)

    for path in sorted((root / PACKAGE).rglob("*.py")):
        module = path.relative_to(root).as_posix()
        visit(ast.parse(path.read_text()), "")
    return found


def mutations(place: Place) -> Iterator[tuple[str, Mutation]]:
    """Every mutation of this place, with its kind."""
    for kind, new in _new_texts(place.node, place.is_condition):
        if new != place.text:
            yield kind, Mutation(place.module, place.function, place.text, place.nth, new)


def _new_texts(node: ast.AST, is_condition: bool) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if getattr(node.value.func, "attr", None) not in LOG_LEVELS:
            yield "statement removed", "pass"
    elif isinstance(node, REMOVED):
        yield "statement removed", "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "value not returned", "return None"
    elif is_condition:
        yield "condition negated", ast.unparse(_negated(node))
    for number, _ in enumerate(ast.walk(node)):
        mutant = copy.deepcopy(node)
        part: Any = list(ast.walk(mutant))[number]
        if isinstance(part, ast.Compare) and type(part.ops[0]) in FLIPPED:
            part.ops[0] = FLIPPED[type(part.ops[0])]()
            yield "comparison flipped", ast.unparse(mutant)
        elif isinstance(part, ast.BoolOp):
            part.op = ast.Or() if isinstance(part.op, ast.And) else ast.And()
            yield "and, or", ast.unparse(mutant)
        elif isinstance(part, ast.IfExp):
            part.test = _negated(part.test)
            yield "condition negated", ast.unparse(mutant)
        elif isinstance(part, ast.Constant) and isinstance(part.value, (bool, int, float)):
            part.value = not part.value if isinstance(part.value, bool) else part.value + 1
            yield "constant changed", ast.unparse(mutant)


def _negated(node: Any) -> ast.expr:
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return node.operand if is_not else ast.UnaryOp(ast.Not(), node)


def choose(everywhere: list[Place], count: int) -> list[Mutation]:
    """Always the same mutations: more for longer modules, equally many of each kind, one for a place."""
    places_of: dict[str, list[Place]] = defaultdict(list)
    for place in everywhere:
        places_of[place.module].append(place)
    chooser, chosen, passed = random.Random(25), [], 0
    for here in places_of.values():
        wanted = (passed + len(here)) * count // len(everywhere) - passed * count // len(everywhere)
        passed += len(here)
        chooser.shuffle(here)
        kinds: dict[str, list[Mutation]] = defaultdict(list)
        for place in here:
            for kind, mutation in chooser.sample(found := list(mutations(place)), min(1, len(found))):
                kinds[kind].append(mutation)
        chooser.shuffle(order := sorted(kinds))
        turns = zip_longest(*(kinds[kind] for kind in order))
        chosen += [mutation for turn in turns for mutation in turn if mutation][:wanted]
    return chosen


def replaced(everywhere: list[Place], recorded: list[Mutation], count: int) -> list[Mutation]:
    """The recorded mutations, filled up to `count`; if its code is gone, another one of the same module."""
    new = [each for each in choose(everywhere, 20 * count) if each not in recorded]
    random.Random(25).shuffle(new)
    chosen = [each if find(everywhere, each) else None for each in recorded[:count]]
    for number in range(count):
        if number >= len(chosen) or chosen[number] is None:
            module = recorded[number].module if number < len(chosen) else ""
            new.sort(key=lambda each: each.module != module)
            chosen[number : number + 1] = [new.pop(0)]
    return [each for each in chosen if each]


def find(everywhere: list[Place], wanted: Mutation) -> Place | None:
    """Where this code is now: in its function, in one of the same name, or alone in the package."""
    same = [place for place in everywhere if place.text == wanted.old]
    named = [place for place in same if place.function == wanted.function]
    here = [place for place in named if place.module == wanted.module]
    for group in (here, named):
        if group:
            return group[min(wanted.nth, len(group) - 1)]
    return same[0] if len(same) == 1 else None


def apply(source: bytes, place: Place, new: str) -> bytes:
    """The source with this place replaced."""
    node: Any = place.node
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    text = f"({new})" if isinstance(node, ast.expr) else new
    return source[:start] + text.encode() + source[end:]
