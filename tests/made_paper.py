"""A made paper for tests of ``benchmarks.papers``; its cells write their names to the file named by MADE_PAPER_LOG."""

import os
import time
from pathlib import Path

import numpy as np
from benchmarks.papers.experiment import Cell, Column, Experiment, Paper, Published, Row


def compute(cell: Cell) -> dict[str, object]:
    log = os.environ.get("MADE_PAPER_LOG")
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{cell.row.key} {cell.split}\n")
        Path(log).with_suffix(".pid").write_text(str(os.getpid()), encoding="utf-8")
    what = cell.settings.get("what", "number")
    if what == "error":
        raise ValueError("a made error")
    if what == "death":
        os._exit(3)
    if what == "sleep":
        time.sleep(cell.settings["seconds"])
    X = cell.table()[0]
    return {"score": np.float64(1.0 + 0.1 * cell.split), "bad": float("nan"), "rows": len(X)}


def draw(plt, results):
    figure, axis = plt.subplots()
    for row, numbers in results:
        axis.plot([one["score"] for one in numbers], label=row.name)
    return figure


def finding(results) -> str:
    return f"{len(results)} rows have numbers."


_LEVELS = {"smoke": {"rows": 12, "cells": 2}, "quick": {"rows": 12}, "full": {"rows": None, "splits": 3}}
_COLUMNS = (Column("score", "score"), Column("seconds", "seconds", judged=False))
TABLE = Experiment(
    name="table-1",
    title="made numbers",
    run=compute,
    rows=(
        Row("one row", "made", {"score": Published("1.10 ± 0.05", 10)}),
        Row("far off", "made", {"score": Published("7.3 ± 0.1", 10)}, why="the paper is wrong"),
        Row("fails", "made", {"score": Published("1.0")}, {"what": "error"}),
        Row("dies", "made", {}, {"what": "death"}),
        Row("too slow", "made", {}, {"what": "sleep", "seconds": 60.0, "limit": 1.0}),
        Row("large", "absent", {"score": Published("2.0")}, lacks="data set absent is not to be had"),
        Row("quick only", "other", {"score": Published("1.0 ± 0.2", 5, deviation=True)}, at={"full": None}),
    ),
    columns=_COLUMNS,
    levels=_LEVELS,
    paper_settings={"rows": None},
    draw=draw,
    finding=finding,
)
NAPS = Experiment(
    name="naps",
    title="cells that take a moment",
    run=compute,
    rows=tuple(Row(f"nap {k}", settings={"what": "sleep", "seconds": 0.3}) for k in range(8)),
    columns=_COLUMNS,
    levels={"quick": {"rows": 12}},
)
FIGURE = Experiment("figure-1", "the same numbers", source="table-1", draw=draw)
PAPER = Paper("made", "A made paper", "Nobody 2026.", (TABLE, NAPS, FIGURE))
