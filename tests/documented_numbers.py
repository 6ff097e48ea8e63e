"""Measured numbers in documents, and the records that they come from.

A comment after a paragraph, list or table with measured numbers says where in ``benchmarks/results`` they are::

    On bike the NLL is -2.088 with the default tolerance of 0.01.

    <!-- numbers: computation_aware_tables.json[table=bike,training_rows=5000] 0.01 -->

Each measured number has to be one of the numbers at these places, rounded, or a hundred times one of them as a
percentage. Numbers in the comment itself, here 0.01, are given and not measured. A table may have one line for each of
its rows, which continues the places of the first line, or those of them that it fits::

    <!-- numbers: computation_aware_tables.json 95
    [table=bike,training_rows=5000]
    [table=kin40k,training_rows=5000]/rmse,nll
    -->

A place is a file and the way into it. ``/name,other`` takes items of an object, ``/name+other`` the sum of two, ``/*``
all objects in it, ``/0`` an item of a list and ``[name=value]`` those items that have the value. A text counts by the
numbers in it. ``place÷place`` is a ratio, also to a number; ``place|mean``, ``|median``, ``|std``, ``|min`` and
``|max`` are over all numbers there.

Measured are, in text, numbers with a decimal point or a unit; in a table, also the numbers of cells that begin with
one, except in the first column, which names the row. Code, addresses and headings do not count.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
#: A comment that names more numbers than this says too little about one of them.
MOST_NUMBERS = 300
_NUMBER = r"(?<![\w.])[-+]?\d+(?:,\d{{3}})*{decimals}(?:e[-+]?\d+)?{unit}(?![\w]|\.\d)"
_UNIT = r"(?:CPU|[mn]?s|[KMG]iB|times|seconds|minutes|hours|iterations|epochs|nats)(?!\w)"
_ANY = re.compile(_NUMBER.format(decimals=r"(?:\.\d+)?", unit=""))
_MEASURED = re.compile(
    _NUMBER.format(decimals=r"\.\d+", unit="")
    + "|"
    + _NUMBER.format(decimals=r"(?:\.\d+)?", unit=rf"(?=\s?(?:%|{_UNIT}))")
)
_HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)|arXiv:[\d.]+")
_COMMENT = "<!-- numbers:"
_STEP = re.compile(r"\[([^\]]*)\]|/([^/\[\]]+)")
_TERM = re.compile(r"(?:\[[^\]]*\]|[^\s\[])+")
_OVER: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "std": statistics.stdev,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Block:
    """A table, or anything else between empty lines, and the lines of its comment (None: it has none)."""

    line: int
    text: str
    source: list[str] | None = None

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.text.startswith("|")

    def rows(self) -> list[list[str]]:
        """Return the measured numbers of each row of a table, or those of the whole text as one row."""
        if not self.is_table:
            text = " ".join(line for line in self.text.splitlines() if not line.startswith("#"))
            return [_MEASURED.findall(_HIDDEN.sub(" ", text))]
        lines = [line for line in self.text.splitlines() if not re.fullmatch(r"[|\s:-]+", line)][1:]
        return [[number for cell in line.split("|")[2:-1] for number in _in_cell(cell.strip())] for line in lines]


def _in_cell(cell: str) -> list[str]:
    cell = _HIDDEN.sub(" ", cell)
    return (_ANY if re.match(r"[-+(>]*\s?\d", cell) else _MEASURED).findall(cell)


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page outside code, each with its comment."""
    found: list[Block] = []
    gathered: list[str] = []
    code = False
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        fence = line.startswith("```")
        if line.strip() and not fence and not code and not (gathered and line.startswith(_COMMENT)):
            gathered.append(line)
        elif gathered:
            text = "\n".join(gathered)
            if text.startswith(_COMMENT):
                inner = text.removeprefix(_COMMENT).partition("-->")[0]
                found[-1] = replace(found[-1], source=inner.strip().splitlines())
            else:
                found.append(Block(number - len(gathered), text))
            gathered = [line] if line.startswith(_COMMENT) else []
        code ^= fence
    return found


def numbers_at(place: str) -> list[float]:
    """Return the numbers at a place, such as ``iterative_table_pol_4000.json/rows[solver=ap]/epochs``."""
    if "÷" in place:
        above, below = (numbers_at(part) for part in place.split("÷"))
        return [a / b for a, b in zip(above, below * (len(above) if len(below) == 1 else 1), strict=True)]
    if _ANY.fullmatch(place):
        return [float(place.replace(",", ""))]
    path, _, over = place.partition("|")
    file, found, steps = path.partition(".json")
    assert found, f"{place} is not in a JSON file"
    assert not _STEP.sub("", steps), f"{_STEP.sub('', steps)!r} of {place} is no step"
    items = [_read(RESULTS / (file + found))]
    for wanted, name in _STEP.findall(steps):
        items = [item for value in items for item in (_those(value, wanted) if wanted else _named(value, name))]
    leaves = [leaf for item in items for leaf in (_of_text(item) if isinstance(item, str) else _leaves(item))]
    return [_OVER[over](leaves)] if over else leaves


@cache
def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _those(value: Any, wanted: str) -> list[Any]:
    pairs = [pair.split("=", 1) for pair in re.split(r",\s*(?=[\w.]+=)", wanted)]
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict) and all(str(item.get(k)) == text for k, text in pairs)]


def _named(value: Any, names: str) -> list[Any]:
    if isinstance(value, list):
        return [value[int(names)]] if names.isdigit() else [found for item in value for found in _named(item, names)]
    if names == "*":
        return [item for item in value.values() if isinstance(item, dict)]
    parts = [name.split("+") if name not in value else [name] for name in names.split(",")]
    return [
        value[part[0]] if len(part) == 1 else sum(value[one] for one in part)
        for part in parts
        if value.keys() >= {*part}
    ]


def _of_text(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _ANY.findall(text)]


def _leaves(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(item)]
    return [float(value)] if isinstance(value, int | float) and math.isfinite(value) else []


def is_rounded(token: str, value: float) -> bool:
    """Return whether a printed number is a value, or a share as a percentage, rounded to its digits."""
    mantissa, _, exponent = token.replace(",", "").partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) * (1 + 1e-6)
    printed = float(token.replace(",", ""))
    return abs(printed - value) <= half or (0 <= value <= 1 and abs(printed - 100 * value) <= half)


def check(page: str) -> list[str]:
    """Return what is wrong with the numbers of a page."""
    wrong: list[str] = []
    for block in blocks(page):
        rows = block.rows()
        first, *lines = (block.source or [""]) if block.is_table else [" ".join(block.source or [])]
        starts = _TERM.findall(first)
        if lines and len(lines) != len(rows):
            wrong.append(f"line {block.line}: {len(rows)} rows, {len(lines)} lines of places")
            continue
        for number, row in enumerate(rows):
            values: list[float] = []
            for term in [*starts, *_TERM.findall(lines[number])] if lines else starts:
                if lines and ".json" in term and term in starts:
                    continue  # only where the rows' own places start
                from_starts = [re.sub(r"(?:^|(?<=÷))(?=[\[/])", start, term) for start in starts if ".json" in start]
                places = from_starts if term[0] in "[/" else [term]
                there = [value for place in places for value in numbers_at(place)]
                wrong += [] if there else [f"line {block.line}: {term} leads nowhere"]
                values += there
            if len(values) > MOST_NUMBERS:
                wrong.append(f"line {block.line}: row {number + 1} may be any of {len(values)} numbers")
            lost = [token for token in row if not any(is_rounded(token, value) for value in values)]
            if lost:
                wrong.append(
                    f"line {block.line}: no record of {', '.join(lost)}" + f" in row {number + 1}" * bool(lines)
                )
    return wrong
