"""Yadav, Sheldon and Musco 2021: faster kernel interpolation for Gaussian processes."""

from __future__ import annotations

from typing import Any

from benchmarks.papers import grids_cells as run
from benchmarks.papers import grids_figures as draw
from benchmarks.papers.experiment import Column, Experiment, Paper, Published, Row

_LACKING = {
    "radar": "the 13 stations' 10.5 M rows are not to be had here; one station's volume stands in",
    "precipitation": "the precipitation of a whole year is not to be had here; a month stands in",
    "national": "the 120 M rows of the national network are not to be had here; made rows stand in",
}
_RADAR, _RAIN = "radar, one volume of 1.25 M rows", "precipitation, January 2010, 53,743 rows"

#: Table 1: data, rows, nodes, ratio of times, ratio of memory.
_PRINTED = """
sound | 8K | 0.433 | 0.247
sound | 60K | 0.941 | 0.505
radar | 51.2K | 0.014 | 0.007
radar | 6.4M | 0.584 | 0.425
precipitation | 128K | 0.326 | 0.366
precipitation | 528K | 0.491 | 0.628
precipitation | 1.2M | 0.806 | 2.941
"""
_TITLES = {
    "sound": "sound, 59,309 rows",
    "radar": "radar, 13 stations, 10.5 M rows",
    "precipitation": "precipitation, 2010, 528 K rows",
}
_ALIGNED = "the paper's memory is that of nodes on the samples, where W'W is diagonal; ours lie between them"
_SOUND = {"8K": (8000,), "60K": (60_000,)}
#: Sets in the place of those that are not to be had, with as many nodes a row.
_STAND_INS = (
    ("radar", _RADAR, (80, 80, 8), "m = 51.2K"),
    ("radar", _RADAR, (160, 160, 12), "m = 307K"),
    ("precipitation", _RAIN, (32, 20, 20), "m = 13K (0.24 n, as 128K)"),
    ("precipitation", _RAIN, (64, 42, 20), "m = 54K (n, as 528K)"),
    ("precipitation", _RAIN, (96, 64, 20), "m = 123K (2.3 n, as 1.2M)"),
    ("temperature", "maximum temperature, 196,253 rows", (20, 20, 128), "m = 51.2K"),
    ("elevation", "elevation, 816,307 rows", (600, 300), "m = 180K"),
)


def _table_1() -> tuple[Row, ...]:
    rows = []
    for line in _PRINTED.strip().splitlines():
        name, m, time, memory = (part.strip() for part in line.split("|"))
        paper = {"time_ratio": Published(time), "formula_ratio": Published(memory)}
        settings: dict[str, Any] = {"set": name, "shape": _SOUND.get(m, ())}
        why = _ALIGNED if m == "60K" else ""
        rows.append(Row(f"m = {m}", _TITLES[name], paper, settings, lacks=_LACKING.get(name, ""), why=why))
    for m, shape in _SOUND.items():
        settings = {"set": "sound", "shape": shape, "gram": "rows"}
        rows.append(Row(f"m = {m}, gigagp's path without W'W", _TITLES["sound"], {}, settings))
    for name, data, shape, title in _STAND_INS:
        at: dict[str, Any] = {} if name == "precipitation" and shape[0] < 90 else {"quick": None}
        rows.append(Row(title, data, {}, {"set": name, "shape": shape}, at))
        if name == "precipitation":
            settings = {"set": name, "shape": shape, "gram": "rows"}
            rows.append(Row(f"{title}, gigagp's path without W'W", data, {}, settings, at))
    return tuple(rows)


TABLE_1 = Experiment(
    name="table-1",
    title="time of an iteration and memory, GSGP over SKI",
    run=run.iterations,
    rows=_table_1(),
    columns=(
        Column("time", "time_ratio", judged=False, digits=3),
        Column("memory", "formula_ratio", digits=3),
        Column("bytes held", "bytes_ratio", digits=3),
        Column("set-up", "pass_ratio", digits=3),
        Column("GSGP, s an iteration", "grid_s", judged=False, digits=3),
        Column("SKI, s an iteration", "ski_s", judged=False, digits=3),
    ),
    levels={
        "smoke": {"repeats": 1, "cells": 12},
        "quick": {"repeats": 2, "limit": 100},
        "full": {"repeats": 3, "limit": 3000},
    },
    note=(
        "Below 1 the paper's method (GSGP) needs less than kernel interpolation over the rows (SKI). Both run the same"
        " conjugate gradients of gigagp, one thread, CPU seconds of the best of three runs of 20 iterations. Memory is"
        " the paper's count, (nnz(W'W) + 2 m) / (nnz(W) + m + n); bytes are those of the matrices that gigagp holds:"
        " W'W as half of a stencil, W and its transpose in sparse rows. Set-up is one pass for W'W against making W."
        " The path without W'W multiplies by W and W', for grids with"
        " more nodes than rows."
    ),
    finding=draw.same_iterates,
)

FIGURE_1 = Experiment(
    name="figure-1",
    title="a grid-structured process is a sum of compact basis functions",
    run=run.functions,
    rows=(
        Row("cubic", settings={"interpolation": "cubic"}),
        Row("linear (gigagp has it too)", settings={"interpolation": "linear"}),
    ),
    columns=(
        Column("basis functions at a point", "functions_at_a_point"),
        Column("largest difference of the draws' covariance from w'K_G w, in standard errors", "covariance_errors"),
    ),
    levels={"smoke": {"draws": 100, "cells": 2}, "quick": {"draws": 20_000}, "full": {"draws": 20_000}},
    note="Below: basis functions at the nodes 2 to 9. Above: their sum with weights from the prior at the nodes.",
    draw=draw.figure_1,
)

FIGURE_3 = Experiment(
    name="figure-3",
    title="time of an iteration by the number of rows",
    run=run.sine,
    rows=tuple(Row(nodes, settings={"nodes": nodes}) for nodes in ("n", "n / 16", "sqrt(n)")),
    columns=(
        Column("GSGP over SKI, fewest rows", "first_ratio", digits=3),
        Column("most rows", "last_ratio", digits=3),
        Column("most iterations of SKI", "most_steps"),
        Column("largest difference of the numbers of iterations", "steps_difference"),
    ),
    levels={
        "smoke": {"powers": [6, 7], "repeats": 1, "cells": 3},
        "quick": {"powers": [12, 14, 16], "repeats": 2, "splits": 2, "limit": 100},
        "full": {"powers": [12, 14, 16, 18], "repeats": 2, "splits": 8, "limit": 1000},
    },
    note=(
        "A noisy sine in one dimension, with m nodes for n rows; eight trials at full size, as in the paper, whose"
        " numbers of rows are only in its picture."
    ),
    draw=draw.figure_3,
    finding=draw.speed,
)

#: Grids of fits, which cost more than one solve.
_FITTED: dict[str, dict[str, Any]] = {"quick": {"nodes": [1000]}, "full": {"nodes": [8000, 60_000]}}
FIGURE_4 = Experiment(
    name="figure-4",
    title="error by time on sound",
    run=run.sound,
    rows=(
        *(
            Row(name, settings={"task": task})
            for name, task in (
                ("mean (SMAE)", "mean"),
                ("log-likelihood", "log-likelihood"),
                ("covariance, exact", "covariance"),
                ("covariance, low rank", "low rank"),
            )
        ),
        *(
            Row(name, settings={"task": "mean", "kernel": kernel}, at=_FITTED)
            for name, kernel in (
                ("mean (SMAE), gigagp learns an RBF", "rbf"),
                ("mean (SMAE), gigagp learns RBF * Cosine", "wave"),
            )
        ),
    ),
    columns=(
        Column("SKI, error", "ski_error_shown"),
        Column("GSGP, error", "grid_error_shown"),
        Column("SKI, CPU s", "ski_s_shown", judged=False, digits=3),
        Column("GSGP, CPU s", "grid_s_shown", judged=False, digits=3),
        Column("SKI over GSGP", "ratio_shown", judged=False, digits=3),
    ),
    levels={
        "smoke": {"nodes": [10, 20], "shown": 10, "columns": 4, "rank": 4, "probes": 3, "cells": 6},
        "quick": {"nodes": [1000, 8000], "shown": 1000, "columns": 50, "rank": 100, "probes": 4, "limit": 100},
        "full": {
            "nodes": [1000, 2000, 5000, 6000, 8000, 10_000, 30_000, 60_000],
            "shown": 8000,
            "columns": 200,
            "rank": 500,
            "probes": 30,
            "limit": 3000,
        },
    },
    paper_settings={"columns": 691, "rank": 10_000, "probes": 30},
    note=(
        "The numbers of the table are those at 8,000 nodes (quick: 1,000). Errors of the mean are those at the 691 test"
        " samples over their mean size; others are relative to SKI on the largest grid. Seconds include the set-up. The"
        " hyperparameters are those of the authors' code. The paper shows only pictures."
    ),
    draw=draw.figure_4,
    finding=draw.tradeoff,
)
_VOLUMES = {
    "smoke": {"probes": 3, "ski_probes": 2, "rows": None, "cells": 4},
    "quick": {"probes": 8, "ski_probes": 2, "rows": 50_000, "limit": 100},
    "full": {"probes": 30, "ski_probes": 2, "rows": None, "limit": 3000},
}
_COLUMNS = (
    Column("set-up, SKI over GSGP", "set_up_ratio", judged=False, digits=3),
    Column("mean, SKI over GSGP", "mean_ratio", judged=False, digits=3),
    Column("log det to 0.1", "logdet_0.1_ratio", judged=False, digits=3),
    Column("log det to 0.01", "logdet_0.01_ratio", judged=False, digits=3),
    Column("GSGP, mean, CPU s", "grid_mean_s", judged=False, digits=3),
    Column("iterations", "steps"),
    Column("error of the mean", "mean_error", digits=2),
    Column("log det, CPU s", "grid_logdet_0.01_s", judged=False, digits=3),
    Column("its standard error", "logdet_0.01_standard_error", digits=3),
)
_ABOUT = (
    " Ratios are SKI's CPU seconds over GSGP's. The noise over the signal's variance is that of the authors' code: 714"
    " for radar, 5.65 for precipitation. The error of the mean at the rows is a share of the mean's size. Rows of"
    " gigagp's solver have the preconditioner and the log-determinant that the package chooses, at the same tolerance."
    " SKI's log-determinants are timed with two probe vectors and multiplied."
)


def _volumes(name: str, data: str, noise: float, shapes: tuple[tuple[int, ...], ...], quick: int) -> tuple[Row, ...]:
    """Return two rows for each grid: the paper's method, and the package's choice; the first few run at "quick"."""
    rows = []
    for k, shape in enumerate(shapes):
        title = f"m = {' x '.join(map(str, shape))}"
        at: dict[str, Any] = {} if k < quick else {"quick": None}
        settings = {"set": name, "shape": shape, "noise": noise}
        rows.append(Row(title, data, {}, settings | {"way": "paper"}, at))
        rows.append(Row(f"{title}, gigagp's solver", data, {}, settings | {"way": "gigagp"}, at))
    return tuple(rows)


FIGURE_5 = Experiment(
    name="figure-5",
    title="time by grid size on radar",
    run=run.tasks,
    rows=(
        Row(
            "m = 51.2K",
            _TITLES["radar"],
            {
                "set_up_ratio": Published("at least 1/3"),
                "mean_ratio": Published("about 150"),
                "logdet_0.01_ratio": Published("about 15"),
            },
            lacks=_LACKING["radar"],
        ),
        *_volumes("radar", _RADAR, 714.0, ((80, 80, 8), (112, 112, 10), (160, 160, 12)), 1),
    ),
    columns=_COLUMNS,
    levels=_VOLUMES,
    note=(
        "The paper has eight times our rows on the same smallest grid, and prints only three numbers; the one of the"
        " log-likelihood names no tolerance." + _ABOUT
    ),
    draw=draw.volume,
    finding=draw.tasks,
)
FIGURE_7 = Experiment(
    name="figure-7",
    title="time by grid size on precipitation",
    run=run.tasks,
    rows=(
        *(
            Row(f"m = {m}", _TITLES["precipitation"], lacks=_LACKING["precipitation"])
            for m in ("12K", "96K", "128K", "528K", "640K")
        ),
        *_volumes(
            "precipitation", _RAIN, 5.65, ((16, 10, 8), (32, 20, 15), (32, 20, 20), (64, 42, 20), (80, 40, 20)), 2
        ),
    ),
    columns=_COLUMNS,
    levels=_VOLUMES,
    note="Grids have as many nodes a row as the paper's five. The paper: set-up of GSGP up to six times slower."
    + _ABOUT,
    draw=draw.volume,
    finding=draw.tasks,
)
NATIONAL = Experiment(
    name="section-5",
    title="120 million rows",
    run=run.stream,
    rows=(
        Row(
            "m = 128K",
            "radar, national network, 120 M rows",
            {"set_up_s": Published("4861.60 ± 233.42", 10), "mean_s": Published("9.33 ± 0.31", 10)},
            lacks=_LACKING["national"],
        ),
        Row("m = 160 x 80 x 10", "made rows, from a generator"),
    ),
    columns=(
        Column("set-up, s", "set_up_s", judged=False),
        Column("mean, CPU s", "mean_s", judged=False, digits=3),
        Column("iterations", "steps"),
        Column("error of the mean", "mean_error", digits=2),
        Column("mean by long waves to 0.1, CPU s", "long_waves_mean_s", judged=False, digits=3),
        Column("peak memory, GiB", "peak_GiB", judged=False, digits=3),
    ),
    levels={
        "smoke": {"rows": 300, "shape": (6, 6, 6)},
        "quick": {"rows": 2_000_000, "shape": (40, 40, 8), "limit": 100},
        "full": {"rows": 120_000_000, "shape": (160, 80, 10), "limit": 3000},
    },
    paper_settings={"rows": 120_000_000},
    note=(
        "The mean is that of conjugate gradients without a preconditioner to 0.01, as in the paper; its error at the"
        " rows is relative to long waves to 0.1, in deviations of the noise. The set-up excludes the generator's time."
    ),
)

PAPER = Paper(
    name="grids",
    title="Faster kernel interpolation for Gaussian processes",
    reference="Yadav, Sheldon and Musco 2021, [arXiv:2101.11751](https://arxiv.org/abs/2101.11751).",
    experiments=(
        TABLE_1,
        FIGURE_1,
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        Experiment(
            "figure-6", "numbers of iterations on the sine", source="figure-3", draw=draw.figure_6, finding=draw.counts
        ),
        FIGURE_7,
        NATIONAL,
    ),
)
