"""What a paper, an experiment, a row and a cell are.

An experiment is a table or a figure of a paper. It has rows, each with the numbers that the paper prints, and a
function that computes one cell: one row on one split of its data.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: Modules with a ``PAPER``, in the order of the documents.
MODULES = (
    "benchmarks.papers.iterative",
    "benchmarks.papers.truncation",
    "benchmarks.papers.computation_aware",
    "benchmarks.papers.grids",
    "benchmarks.papers.quadruply",
)
#: Sizes of a run. ``smoke`` runs on a few dozen made rows, keeps nothing and is for tests.
LEVELS = ("smoke", "quick", "full")
_NUMBER = re.compile(r"(-?\d+\.?\d*(?:e-?\d+)?)(?:\s*±\s*(\d+\.?\d*))?")


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it.

    Attributes
    ----------
    text : str
        As printed, for example ``"0.0750 ± 0.0010"``, or without a number (``"> 24 h"``).
    splits : int
        Number of splits behind it.
    deviation : bool
        Whether the printed spread is the standard deviation over splits, not the standard error of the mean.
    """

    text: str
    splits: int = 1
    deviation: bool = False

    def number(self) -> tuple[float, float | None] | None:
        """Return the number and the standard deviation over splits, if these are printed."""
        found = _NUMBER.fullmatch(self.text)
        if found is None:
            return None
        if found[2] is None:
            return float(found[1]), None
        return float(found[1]), float(found[2]) * self._deviations()

    def _deviations(self) -> float:
        """Return the standard deviation between splits in units of the printed spread."""
        return 1.0 if self.deviation else math.sqrt(self.splits)

    def agrees(self, values: Sequence[float]) -> bool | None:
        """Return whether the mean of our values is within two standard errors of the paper's; None: no spread is known.

        The standard error is that of the difference of two means over splits, with the paper's deviation between
        splits, or with ours where the paper prints none. Half a unit of the last printed digit is added for rounding,
        to the number and to its spread: "± 0.000" may be 0.0005.
        """
        number = self.number()
        if number is None or not values:
            return None
        value, deviation = number
        digits, of_spread = (
            len((part or "").partition(".")[2])
            for part in _NUMBER.fullmatch(self.text).groups()  # type: ignore[union-attr]
        )
        if deviation is None:
            if len(values) < 2:
                return None
            error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        else:
            widest = deviation + 0.5 * 10**-of_spread * self._deviations()
            error = widest * math.sqrt(1 / len(values) + 1 / self.splits)
        return abs(float(np.mean(values)) - value) <= 2 * error + 0.5 * 10**-digits


@dataclass(frozen=True)
class Column:
    """A quantity that a page shows.

    Attributes
    ----------
    title : str
    key : str
        Its name in what a cell returns.
    judged : bool
        Whether it should agree with the paper. Times on another machine should not.
    digits : int
        Significant digits of our mean.
    """

    title: str
    key: str
    judged: bool = True
    digits: int = 4


@dataclass(frozen=True)
class Row:
    """A row of a table, or a curve of a figure.

    Attributes
    ----------
    name : str
    data : str
        Name of the data set; rows of one data set form one table of a page.
    paper : dict
        `Published` numbers by the key of a column. Empty for a method of the package that the paper does not have.
    settings : dict
        What distinguishes the row; overrides the settings of a level.
    at : dict
        Settings of this row at a level, which override everything else; None: the row is not run at that level.
    lacks : str
        Why the row cannot be run, or which data set it lacks. Such a row is never run.
    why : str
        Why our number is not the paper's.
    paper_settings : dict
        The paper's own values of settings, where they differ from those of the experiment.
    """

    name: str
    data: str = ""
    paper: Mapping[str, Published] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    lacks: str = ""
    why: str = ""
    paper_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The row's name in file names."""
        return "--".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (self.data, self.name) if part)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper.

    Attributes
    ----------
    name : str
        Such as "table-1" or "figure-5".
    title : str
    run : callable or None
        Computes one `Cell` and returns numbers, lists of numbers and texts by name. A function of a module.
    rows : tuple of Row
    columns : tuple of Column
    levels : dict
        Settings of "smoke", "quick" and "full". Three have a meaning here: ``splits`` (default 1), ``limit`` (seconds
        of a cell, default 600) and, at "smoke", ``cells`` (how many rows are tried, default 1).
    paper_settings : dict
        The paper's own values of settings. A cell with others is not judged, and the page names the difference. What a
        paper does not state does not belong here.
    limits : dict
        Settings that only end a run, with the name of the number in a record that counts towards them. A smaller limit
        than the paper's is no difference where it was not reached.
    note : str
        What a reader has to know, as Markdown.
    draw : callable or None
        ``draw(plt, results)`` returns a matplotlib figure; ``results`` has a pair for each row with numbers: the row
        and the list of what its cells returned. Rows may be missing.
    finding : callable or None
        ``finding(results)`` returns a sentence on what the paper claims and what our numbers show.
    source : str
        Name of the experiment of this paper whose results are drawn; this one then has no rows of its own.
    """

    name: str
    title: str
    run: Callable[[Cell], Mapping[str, Any]] | None = None
    rows: tuple[Row, ...] = ()
    columns: tuple[Column, ...] = ()
    levels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paper_settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    draw: Callable[[Any, Results], Any] | None = None
    finding: Callable[[Results], str] | None = None
    source: str = ""


#: A row and what its cells returned, for every row that has numbers.
Results = list[tuple[Row, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments; a module has one as ``PAPER``."""

    name: str
    title: str
    reference: str
    experiments: tuple[Experiment, ...]


@dataclass(frozen=True)
class Cell:
    """One row of an experiment on one split of its data.

    Attributes
    ----------
    experiment, row, level
    split : int
        Number of the split, and the seed of everything else.
    folder : Path or None
        Data folder; None at the level "smoke", which is for made data.
    """

    experiment: Experiment
    row: Row
    level: str
    split: int
    folder: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the level, the row, and the row at this level, in increasing order of precedence."""
        return settings(self.experiment, self.row, self.level) or {}

    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return X, y, X_test, y_test of the row's UCI table, z-scored with training statistics.

        The setting ``rows`` is the number of random training rows (None: all). At the level "smoke" the table is made.
        """
        rows = self.settings.get("rows")
        if self.folder is None:
            return made_table(rows or 48, self.split)
        from benchmarks.splits import read_split

        return read_split(self.folder, self.row.data, self.split, rows)


def settings(experiment: Experiment, row: Row, level: str) -> dict[str, Any] | None:
    """Return the settings of a row at a level, without ``splits``, or None where it is not run."""
    if row.lacks or level not in experiment.levels or row.at.get(level, {}) is None:
        return None
    merged = {"splits": 1, "limit": 600, **experiment.levels[level], **row.settings, **(row.at.get(level) or {})}
    merged.pop("cells", None)
    return merged


def cells(experiment: Experiment, level: str, folder: Path | None) -> list[Cell]:
    """Return the cells of an experiment at a level."""
    found = []
    for row in experiment.rows:
        chosen = settings(experiment, row, level)
        if chosen is not None:
            found += [Cell(experiment, row, level, split, folder) for split in range(chosen["splits"])]
    return found[: experiment.levels[level].get("cells", 1)] if level == "smoke" and found else found


def load(module: str) -> Paper:
    """Return the paper of a module."""
    return importlib.import_module(module).PAPER


def made_table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a made regression table with three inputs: X, y, X_test, y_test; a third as many test rows."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows + rows // 3, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * random.normal(size=len(X))
    y = (y - y[:rows].mean()) / y[:rows].std()
    return X[:rows], y[:rows], X[rows:], y[rows:]
