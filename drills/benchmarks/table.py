"""What was measured, as rows: in text for people, in JSON with all samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

HEADER = ("figure", "measured: median (range, n)", "floor", "target", "", "kolla-mesos")
LEGEND = (
    "Floors were measured in the same run, ratios pair by pair. The last column is kolla-mesos itself,"
    " measured once and elsewhere."
)


class Row(NamedTuple):
    """One figure. The median of `samples` should not be above `target`; `floor` is in the same `unit`."""

    figure: str
    unit: str
    samples: Sequence[float]
    target: float
    floor: Sequence[float] = ()
    peer: str = ""
    note: str = ""

    @property
    def met(self) -> bool:
        return median(self.samples) <= self.target

    def cells(self) -> tuple[str, ...]:
        return (
            self.figure,
            _spread(self.samples, self.unit),
            _spread(self.floor, self.unit),
            f"<= {_number(self.target)}{self.unit}",
            "met" if self.met else "MISSED",
            self.peer,
        )

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "met": self.met, "median": median(self.samples)}


def as_text(machine: Mapping[str, object], rows: Sequence[Row]) -> str:
    """The table, with the machine above and the notes below it."""
    lines = [f"{name}: {value}" for name, value in machine.items()]
    table = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(HEADER))]
    rule = ["-" * width for width in widths]
    lines += [
        "",
        *("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (HEADER, rule, *table[1:])),
    ]
    lines += ["", LEGEND, "", *(f"{row.figure}: {row.note}" for row in rows if row.note)]
    return "\n".join(lines)


def as_json(machine: Mapping[str, object], rows: Sequence[Row]) -> str:
    """The same, with every sample."""
    return json.dumps({"machine": machine, "rows": [row.record() for row in rows]}, indent=1) + "\n"


def milliseconds(samples: Sequence[float]) -> str:
    """For a note."""
    return _spread(samples, " ms")


def _spread(samples: Sequence[float], unit: str) -> str:
    if len(set(samples)) < 2:
        return "".join(f"{_number(sample)}{unit}" for sample in samples[:1])
    least, most = _number(min(samples)), _number(max(samples))
    return f"{_number(median(samples))}{unit} ({least} to {most}, {len(samples)})"


def _number(value: float) -> str:
    """Three digits, or all that stand before the point."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
