"""Numbers in documents, and the records that they come from.

A table, list or paragraph with measured numbers is followed by a comment that says where each of them is. In a table
every number counts as measured, elsewhere those with a decimal point or a unit. ``<!-- numbers: given -->`` says that
none is. ::

    | table | rows | NLL |
    |---|---|---|
    | bike | 5,000 | -2.088 |

    <!-- numbers: computation_aware_tables.json
    [table=bike,training_rows=5000] : training_rows nll
    -->

There is one line for each row of a table, or for each paragraph. What stands before the colon is put in front of every
path. A path goes into the JSON file by names and numbers of list items, or by the values of the one item that has them;
``100*path`` is a percentage, ``path÷path`` a ratio, ``other.json#path`` is in another file. ``_`` is a number that is
given and not measured, ``?`` one that has no record.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w])")
_MEASURED = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+|(?:\.\d+)?\s?(?:%|s|GiB|MiB|times|seconds|minutes|hours)(?!\w))")
_HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)|arXiv:[\d.]+")
_COMMENT = "<!-- numbers:"


@dataclass(frozen=True)
class Block:
    """A table, or anything else between empty lines, and the lines of its comment (None: it has none)."""

    line: int
    text: str
    source: list[str] | None

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.text.startswith("|")

    @property
    def rows(self) -> list[str]:
        """The body rows of a table, or the whole text."""
        lines = [line for line in self.text.splitlines() if not re.fullmatch(r"[|\s:-]+", line)]
        return lines[1:] if self.is_table else [" ".join(lines)]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page outside code, each with its comment."""
    found: list[Block] = []
    code = False
    gathered: list[str] = []
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        fence = line.startswith("```")
        if (line.strip() and not fence and not code) and not (gathered and line.startswith(_COMMENT)):
            gathered.append(line)
        elif gathered:
            text = "\n".join(gathered)
            if text.startswith(_COMMENT):
                inner = text.removeprefix(_COMMENT).partition("-->")[0]
                found[-1] = Block(found[-1].line, found[-1].text, inner.rstrip().splitlines())
            else:
                found.append(Block(number - len(gathered), text, None))
            gathered = [line] if line.startswith(_COMMENT) else []
        code ^= fence
    return found


def numbers_in(text: str, pattern: re.Pattern[str] = _NUMBER) -> list[str]:
    """Return the numbers of a text outside code and addresses."""
    return pattern.findall(_HIDDEN.sub(" ", text))


def lookup(path: str, file: str) -> float:
    """Return the number at a path, such as ``rows/[method=SVGP,rows=5000]/nll``."""
    scale = 1.0
    if path.startswith("100*"):
        scale, path = 100.0, path.removeprefix("100*")
    if "#" in path:
        file, _, path = path.partition("#")
    value: Any = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    for step in re.findall(r"\[[^\]]*\]|[^/\[\]]+", path):
        if step.startswith("["):
            wanted = dict(pair.split("=", 1) for pair in step[1:-1].split(","))
            items = [item for item in value if all(str(item.get(name)) == text for name, text in wanted.items())]
            assert len(items) == 1, f"{len(items)} items of {file} have {step}"
            value = items[0]
        else:
            value = value[int(step)] if isinstance(value, list) else value[step]
    return scale * float(value)


def is_rounded(token: str, value: float) -> bool:
    """Return whether a printed number is a value rounded to its digits."""
    digits = len(token.partition(".")[2])
    return abs(float(token.replace(",", "")) - value) <= 0.5 * 10**-digits * (1 + 1e-6)


def check(page: str) -> tuple[list[str], int]:
    """Return what is wrong with a page's numbers, and how many of them have no record."""
    wrong: list[str] = []
    missing = 0
    for block in blocks(page):
        if block.source is None:
            pattern = _NUMBER if block.is_table else _MEASURED
            found = [number for row in block.rows for number in numbers_in(row, pattern)]
            if found:
                wrong.append(f"line {block.line}: no source of {found}")
            continue
        file, lines = block.source[0].strip(), block.source[1:]
        if file == "given":
            continue
        if len(lines) != len(block.rows):
            wrong.append(f"line {block.line}: {len(block.rows)} rows, {len(lines)} lines of sources")
            continue
        for row, line in zip(block.rows, lines, strict=True):
            prefix, _, paths = line.partition(" : ") if " : " in line else ("", "", line)
            tokens, expressions = numbers_in(row), paths.split()
            if len(tokens) != len(expressions):
                wrong.append(f"line {block.line}: {len(tokens)} numbers {tokens}, {len(expressions)} sources")
                continue
            missing += expressions.count("?")
            for token, expression in zip(tokens, expressions, strict=True):
                if expression not in ("_", "?"):
                    parts = [lookup(_joined(prefix.strip(), part), file) for part in expression.split("÷")]
                    value = parts[0] / parts[1] if len(parts) == 2 else parts[0]
                    if not is_rounded(token, value):
                        wrong.append(f"line {block.line}: {token} is {value:.8g} in {file} ({prefix}{expression})")
    return wrong, missing


def _joined(prefix: str, path: str) -> str:
    if not prefix or "#" in path:
        return path
    return f"100*{prefix}/{path[4:]}" if path.startswith("100*") else f"{prefix}/{path}"
