"""Lin et al. 2024: solvers, gradient estimators and warm starts of iterative inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.papers import iterative_cells as run
from benchmarks.papers import iterative_figures as draw
from benchmarks.papers.experiment import Column, Experiment, Paper, Published, Row
from benchmarks.papers.iterative_printed import LARGE, SMALL

_HELD = ("pol", "elevators", "bike")
_LAW = "the paper's code drew frequencies of another kernel's law, coordinate by coordinate"
_SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 48, "steps": 3, "probes": 4, "tolerance": 0.01, "max_epochs": 20},
    "quick": {"rows": 500, "steps": 15, "probes": 16, "tolerance": 0.01, "max_epochs": 100, "limit": 100},
    "full": {"rows": None, "steps": 100, "probes": 64, "tolerance": 0.01, "max_epochs": 1000, "limit": 86_400},
}
_PAPERS = {"rows": None, "steps": 100, "probes": 64, "tolerance": 0.01}
_RESIDUALS = "Residuals are relative. An epoch computes every entry of the kernel matrix once."


def _levels(smoke: dict[str, Any], quick: dict[str, Any], full: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sizes with changes."""
    return {name: {**_SIZES[name], **changes} for name, changes in zip(_SIZES, (smoke, quick, full), strict=True)}


def _combination(solver: str, estimator: str, start: str) -> tuple[str, dict[str, str]]:
    """Return the name and the settings of a row of Table 1."""
    settings = {"solver": solver, "estimator": estimator, "start": start}
    return f"{solver.upper()}, {estimator}, {start}", settings


_COLUMNS = (
    Column("RMSE", "rmse"),
    Column("LLH", "log_likelihood"),
    Column("minutes", "minutes", judged=False, digits=3),
    Column("epochs", "all_epochs", digits=5),
    Column("CPU s", "cpu_seconds"),
    Column("steps short of the tolerance", "unfinished_solves", digits=3),
)
_OURS = "gigagp's solver and warm start, pathwise"
#: Rows of Table 1 that are run on all rows of a table, where a cell takes less than about an hour of a core.
_WHOLE = {
    "elevators": (
        *("CG, standard, cold", "CG, standard, warm", "CG, pathwise, cold", "CG, pathwise, warm"),
        *("AP, pathwise, warm", "SGD, pathwise, warm", _OURS),
    ),
    "pol": ("CG, pathwise, warm", _OURS),
}


def _table_1() -> tuple[Row, ...]:
    rows = []
    for data, text in SMALL.items():
        few = {"splits": 1} if data == "bike" else {}
        lacks = "" if data in _HELD else f"not run: a fit of {run.FULL_ROWS[data]:,} rows takes hours to days of a core"
        exact = {"solver": "exact", "estimator": "standard", "start": "cold"}
        rows.append(Row("exact (Cholesky)", data, {}, exact, {"full": few}, lacks))
        for line in text.strip().splitlines():
            names, *numbers = (part.strip() for part in line.split("|"))
            paper = dict(zip(("rmse", "log_likelihood", "minutes"), numbers, strict=True))
            published = {key: Published(number, 10) for key, number in paper.items()}
            name, settings = _combination(*names.split())
            drawn = settings["estimator"] == "pathwise" and data in ("bike", "protein")
            slow = {"splits": 1, "max_epochs": 300} if _is_slow(settings) else few
            rows.append(Row(name, data, published, settings, {"full": slow}, lacks, _LAW if drawn else ""))
        ours = {"solver": "default", "estimator": "pathwise", "start": "warm"}
        rows.append(Row(_OURS, data, {}, ours, {"full": few}, lacks))
    return tuple(rows)


def _is_slow(settings: dict[str, str]) -> bool:
    """Whether the epochs of a row are several times those of the others."""
    return settings["solver"] in ("ap", "sgd") and (settings["estimator"], settings["start"]) != ("pathwise", "warm")


TABLE_1 = Experiment(
    name="table-1",
    title="solvers, estimators and starts on small tables (Tables 2 to 6 in full)",
    run=run.fit,
    rows=_table_1(),
    columns=_COLUMNS,
    levels=_levels({"cells": 14}, {}, {"rows": 2000, "splits": 3}),
    paper_settings=_PAPERS,
    note=(
        "RMSE and log-likelihood (LLH) on test rows. The paper's minutes are those of an A100, ours of two shared"
        " cores. An epoch computes every entry of the kernel matrix once; first residuals and preconditioners count."
        " A fit of all rows takes between half an hour and several hours of a core, so that the full runs have 2,000"
        " training rows, and at most 300 epochs a step in the rows of AP and SGD that take most. The next table has"
        " rows of this one with all training rows."
    ),
    finding=draw.speedups,
)
WHOLE = Experiment(
    name="table-1-whole",
    title="rows of Table 1 with all training rows",
    run=run.fit,
    rows=tuple(replace(row, at={"quick": None}) for row in TABLE_1.rows if row.name in _WHOLE.get(row.data, ())),
    columns=_COLUMNS,
    levels=_levels({"cells": 2}, {}, {"dtype": "mixed"}),
    paper_settings=_PAPERS,
    note=(
        "As in the table before, on all training rows of one split. The paper computes in float64. The full runs are in"
        " mixed precision: products inside solvers are in float32, and residuals are corrected in float64. The next"
        " table shows what that changes."
    ),
)
PRECISION = Experiment(
    name="precision",
    title="a row of Table 1 in float64 and in mixed precision",
    run=run.fit,
    rows=tuple(
        Row(
            f"CG, pathwise, warm, {dtype}",
            data,
            settings={"solver": "cg", "estimator": "pathwise", "start": "warm", "dtype": dtype},
        )
        for data in _HELD
        for dtype in ("float64", "mixed")
    ),
    columns=(
        Column("RMSE", "rmse", digits=5),
        Column("LLH", "log_likelihood"),
        Column("epochs", "all_epochs", digits=5),
        Column("CPU s", "cpu_seconds"),
        Column("steps short of the tolerance", "unfinished_solves", digits=3),
    ),
    levels=_levels({"cells": 2}, {}, {"rows": 3000}),
    note="Not in the paper.",
)

_ESTIMATORS = (
    ("standard", "standard", "features", "joint"),
    ("pathwise, features of the kernel's law", "pathwise", "features", "joint"),
    ("pathwise, balanced features (gigagp's)", "pathwise", "features", "balanced"),
    ("pathwise, features of the paper's law", "pathwise", "features", "independent"),
    ("pathwise, exact prior", "pathwise", "exact", "joint"),
)
FIGURE_5 = Experiment(
    name="figure-5",
    title="hyperparameters by estimated gradients beside exact ones, and exact draws of the prior",
    run=run.ablate,
    rows=tuple(
        Row(
            f"{name}, {start}",
            data,
            settings={"solver": "cg", "estimator": estimator, "start": start, "prior": prior, "law": law},
        )
        for data in _HELD
        for name, estimator, prior, law in _ESTIMATORS
        for start in ("cold", "warm")
    ),
    columns=(
        Column("median difference", "median_difference", digits=3),
        Column("largest", "largest_difference", digits=3),
        Column("largest at the last step", "last_difference", digits=3),
        Column("log-likelihood below that of exact gradients, nats", "nats_below", digits=3),
    ),
    levels=_levels({"cells": 10}, {"rows": 300}, {"rows": 1000}),
    paper_settings=_PAPERS,
    note=(
        "Absolute differences of log hyperparameters from exact optimisation with the same steps of Adam, over all"
        " steps and hyperparameters. The paper: differences concentrate at zero; on elevators, some lengthscales"
        " deviate with random features and not with exact draws of the prior."
    ),
    draw=draw.figure_5,
)

PROBES = Experiment(
    name="figure-5-probes",
    title="figure 5's question by the number of probe vectors",
    run=run.ablate,
    rows=tuple(
        Row(
            f"{estimator}, {start}, {probes} probes",
            data,
            settings={
                **{"solver": "cg", "estimator": estimator, "start": start, "probes": probes},
                **{"prior": "exact", "law": "joint"},
            },
        )
        for data in ("pol", "elevators")
        for estimator in ("standard", "pathwise")
        for start in ("cold", "warm")
        for probes in (4, 16, 64, 256)
    ),
    columns=(
        Column("log-likelihood below that of exact gradients, nats", "nats_below", digits=2),
        Column("median difference", "median_difference", digits=2),
        Column("largest", "largest_difference", digits=2),
        Column("largest at the last step", "last_difference", digits=2),
    ),
    levels=_levels({"cells": 8}, {"rows": 200}, {"rows": 500, "splits": 2}),
    paper_settings={"rows": None, "steps": 100, "tolerance": 0.01},
    note=(
        "The exact log-likelihood of the training rows where learning ends, and differences as in figure 5. Draws of"
        " the prior are exact, so that only the number of probes differs. Not in the paper, which has 64 probes."
    ),
    draw=draw.figure_5_probes,
)

FIGURE_3 = Experiment(
    name="figure-3",
    title="distances between starts and solutions (alternating projections)",
    run=run.distances,
    rows=tuple(
        Row(f"{estimator}, {start}", data, settings={"solver": "ap", "estimator": estimator, "start": start})
        for data in ("pol", "elevators")
        for estimator in ("standard", "pathwise")
        for start in ("cold", "warm")
    ),
    columns=(
        Column("root-mean-square distance", "rms_distance"),
        Column("at the last step", "last_distance"),
        Column("epochs", "epochs"),
    ),
    levels=_levels({"cells": 4}, {}, {"rows": 2000}),
    paper_settings=_PAPERS,
    note=(
        "The distance is that of the norm of the kernel matrix. The paper: for pathwise probes from zero its square is"
        " the number of rows at any hyperparameters; for standard ones it grows with the noise precision."
    ),
    draw=draw.figure_3,
    finding=draw.nearer,
)

_BUDGETS = (10, 20, 30, 40, 50)
FIGURE_9 = Experiment(
    name="figure-9",
    title="solves that stop at a budget",
    run=run.fit,
    rows=tuple(
        Row(
            f"{name}, {budget} epochs",
            data,
            settings={**settings, "max_epochs": budget},
        )
        for data in _HELD
        for solver in ("cg", "ap", "sgd")
        for estimator in ("standard", "pathwise")
        for start in ("cold", "warm")
        for name, settings in [_combination(solver, estimator, start)]
        for budget in _BUDGETS
    ),
    columns=(
        Column("last residual, probes", "residual_probes_last", digits=3),
        Column("targets", "residual_targets_last", digits=3),
        Column("RMSE", "rmse"),
        Column("LLH", "log_likelihood"),
    ),
    levels=_levels({"cells": 3}, {}, {"rows": 2000}),
    paper_settings=_PAPERS,
    note=(
        f"{_RESIDUALS} The paper: residuals fall with the budget, pathwise probes and warm starts have smaller ones,"
        " those of CG grow most during training; the log-likelihood depends little on them. Figures 14 to 17 are the"
        " same runs."
    ),
    draw=draw.figure_9,
)


def _large() -> tuple[Row, ...]:
    rows = []
    for data, text in LARGE.items():
        for line in text.strip().splitlines():
            names, *numbers = (part.strip() for part in line.split("|"))
            solver, start = names.split()
            keys = ("rmse", "log_likelihood", "residual_targets", "residual_probes")
            paper = {key: Published(value, 10) for key, value in zip(keys, numbers, strict=True)}
            name, settings = _combination(solver, "pathwise", start)
            rows.append(Row(name, data, paper, settings, lacks=f"data set {data} is not to be had here"))
    for solver in ("cg", "ap", "sgd"):
        for start in ("cold", "warm"):
            name, settings = _combination(solver, "pathwise", start)
            rows.append(Row(name, "protein", {}, settings))
    return tuple(rows)


TABLE_7 = Experiment(
    name="tables-7-10",
    title="large tables, at most ten epochs a step",
    run=run.fit_large,
    rows=_large(),
    columns=(
        Column("RMSE", "rmse"),
        Column("LLH", "log_likelihood"),
        Column("mean residual, targets", "residual_targets"),
        Column("probes", "residual_probes"),
        Column("CPU s", "cpu_seconds"),
    ),
    levels={
        name: {
            **level,
            "max_epochs": 10,
            "learning_rate": 0.03,
            "centroids": few,
            "neighbours": near,
            "start_steps": first,
        }
        for (name, level), few, near, first in zip(
            _levels({"cells": 3}, {"rows": 1000, "steps": 8}, {"steps": 30}).items(),
            (2, 3, 10),
            (16, 200, 2000),
            (2, 20, 100),
            strict=True,
        )
    },
    paper_settings={"rows": None, "steps": 30, "centroids": 10, "neighbours": 10_000, "max_epochs": 10},
    note=(
        "The protocol for large tables: start at the average of exact fits on neighbourhoods of ten random rows, then"
        " 30 steps of Adam at 0.03 with at most ten epochs a solve. The paper's four tables are not to be had here;"
        f" protein stands in for them, with neighbourhoods that two cores can factorise. {_RESIDUALS}"
    ),
    draw=draw.figure_10,
)

FIGURE_4 = Experiment(
    name="figure-4",
    title="more probe vectors",
    run=run.fit,
    rows=tuple(
        Row(
            f"{probes} probe vectors",
            "pol",
            settings={"solver": "cg", "estimator": "pathwise", "start": "warm", "probes": probes},
        )
        for probes in (4, 16, 64)
    ),
    columns=(
        Column("RMSE", "rmse"),
        Column("LLH", "log_likelihood"),
        Column("epochs", "all_epochs"),
        Column("CPU s", "cpu_seconds"),
    ),
    levels=_levels({}, {}, {"rows": 4000}),
    paper_settings={"rows": None, "steps": 100},
    note="The paper: four times as many probes cost about 10 % more time on a GPU; scores saturate at 64 samples.",
)


def _drawn(name: str, title: str, drawing: Any, source: str = "table-1", finding: Any = None) -> Experiment:
    return Experiment(name, title, source=source, draw=drawing, finding=finding)


PAPER = Paper(
    name="iterative",
    title="Improving linear system solvers for hyperparameter optimisation in iterative Gaussian processes",
    reference=(
        "Lin, Padhy, Mlodozeniec, Antoran and Hernandez-Lobato 2024, [arXiv:2405.18457](https://arxiv.org/abs/2405.18457)."
    ),
    experiments=(
        TABLE_1,
        WHOLE,
        PRECISION,
        TABLE_7,
        _drawn("figure-1", "the cost of every row", draw.figure_1),
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        PROBES,
        _drawn("figure-6", "warm starts near the solution", draw.figure_6, "figure-3"),
        _drawn("figure-7", "epochs to the tolerance by step (also figure 21)", draw.iterations),
        _drawn("figure-8", "differences from exact optimisation", draw.figure_8, finding=draw.closeness),
        FIGURE_9,
        _drawn("figure-11", "hyperparameters by step, conjugate gradients", draw.figure_11),
        _drawn("figure-12", "hyperparameters by step, alternating projections", draw.figure_12),
        _drawn("figure-13", "hyperparameters by step, stochastic gradient descent", draw.figure_13),
        _drawn("figure-14", "target residuals and RMSE by budget, standard", draw.figure_14, "figure-9"),
        _drawn("figure-15", "target residuals and RMSE by budget, pathwise", draw.figure_15, "figure-9"),
        _drawn("figure-16", "probe residuals and log-likelihood by budget, standard", draw.figure_16, "figure-9"),
        _drawn("figure-17", "probe residuals and log-likelihood by budget, pathwise", draw.figure_17, "figure-9"),
    ),
)
