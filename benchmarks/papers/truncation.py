"""Potapczynski et al. 2021: biases of early stopping and of random features, and their removal by random truncation."""

from __future__ import annotations

from typing import Any

from benchmarks.papers import truncation_cells as run
from benchmarks.papers import truncation_plots as draw
from benchmarks.papers.experiment import Column, Experiment, Paper, Row
from benchmarks.papers.truncation_printed import TABLES, printed

_NAMES = {
    "cholesky": "Cholesky",
    "poe": "POE",
    "rff": "RFF",
    "svgp": "SVGP",
    "sggp": "sgGP",
    "cg": "CG",
    "rr-cg": "RR-CG",
}
#: Methods that take at most some half an hour of a core with all rows of these tables.
_CHEAP, _SMALL = ("poe", "svgp", "sggp"), ("pol", "elevators", "bike")
_LACKS = {"3droad": "data set 3droad is not to be had here"}
_SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rows": 48, "steps": 2, "learning_rate": 0.05, "iterations": 20, "batch": 20},
    "quick": {"rows": 300, "steps": 80, "learning_rate": 0.1, "iterations": 25, "batch": 100, "limit": 100},
    "full": {"rows": 2000, "steps": None, "learning_rate": 0.01, "iterations": 100, "batch": 256, "limit": 7200},
}
_PAPERS = {"rows": None, "steps": None, "learning_rate": 0.01}
#: Settings of the paper that only some methods have.
_OWN: dict[str, dict[str, Any]] = {
    **{key: {"batch": 1024} for key in ("poe", "svgp", "sggp")},
    **{key: {"iterations": 100} for key in ("cg", "rr-cg")},
}
_STEPS = "Where steps are not given, they are the paper's for the method and the set."


def _levels(smoke: dict[str, Any], quick: dict[str, Any], full: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sizes with changes."""
    return {name: {**_SIZES[name], **changes} for name, changes in zip(_SIZES, (smoke, quick, full), strict=True)}


def _scores() -> tuple[Row, ...]:
    rows = []
    for data in TABLES:
        lacks = _LACKS.get(data, "")
        for key, name in _NAMES.items():
            whole = key in _CHEAP and data in _SMALL
            at = {"full": {"rows": None, "batch": 1024, "splits": 1}} if whole else {}
            own = _OWN.get(key, {})
            rows.append(Row(name, data, printed(data, key), {"method": key}, at, lacks, paper_settings=own))
        if not lacks:
            rows.append(Row("gigagp, all defaults", data, {}, {"method": "default"}))
    return tuple(rows)


TABLE_S1 = Experiment(
    name="table-s1",
    title="scores of every method, with the training times of Table S2",
    run=run.fit,
    rows=_scores(),
    columns=(
        Column("RMSE", "rmse", digits=3),
        Column("NLL", "nll", digits=3),
        Column("minutes", "minutes", judged=False, digits=3),
        Column("loss", "loss", digits=4),
    ),
    levels=_levels({"cells": 8}, {}, {"splits": 3}),
    paper_settings=_PAPERS,
    note=(
        "Test scores of standardized targets, minutes of learning (the paper's on a GPU), and the exact negative log"
        " marginal likelihood per row. The batch is the size of minibatches and experts, and the number of inducing"
        " points. SVGP and POE predict with their own models, all others exactly with what they learned."
        f" {_STEPS} The last row of a set is this package's default, with its own kernel and optimizer."
    ),
    finding=draw.ratios,
)

#: Rows of figure 1 whose draws are computed one by one.
_FEW_DRAWS = {"full": {"draws": 1000}}
_FOUR = tuple(
    Row(name, "pol", settings={"method": name.lower()}, at=_FEW_DRAWS if name in ("RR-CG", "SS-RFF") else {})
    for name in ("CG", "RR-CG", "RFF", "SS-RFF")
)
FIGURE_1 = Experiment(
    name="figure-1",
    title="both terms of the loss against the (expected) length",
    run=run.terms,
    rows=_FOUR,
    columns=(
        Column("data fit, error at the shortest", "fit_first", digits=3),
        Column("at the longest", "fit_last", digits=3),
        Column("largest error in standard errors", "fit_score", digits=2),
        Column("log-determinant, at the shortest", "determinant_first", digits=3),
        Column("at the longest", "determinant_last", digits=3),
        Column("largest error in standard errors", "determinant_score", digits=2),
    ),
    levels={
        "smoke": {"rows": 48, "draws": 2, "cells": 4},
        "quick": {"rows": 200, "draws": 60, "limit": 100},
        "full": {"rows": 600, "draws": 10_000, "limit": 20_000},
    },
    paper_settings={"draws": 10_000},  # the size of its subset is not stated
    note=(
        "The paper: CG underestimates the data fit and overestimates the log-determinant, RFF the other way round; the"
        " means of RR-CG and SS-RFF are the exact values. Errors are in nats, at the exact optimum of a subset."
    ),
    draw=draw.figure_1,
    finding=draw.biases,
)

FIGURE_2 = Experiment(
    name="figure-2",
    title="learned lengthscale of a toy function, as a log ratio to the exact one",
    run=run.recover,
    rows=tuple(Row(row.name, "", settings=row.settings) for row in _FOUR),
    columns=(Column("at the shortest length", "first", digits=3), Column("at the longest", "last", digits=3)),
    levels={
        "smoke": {"steps": 1, "cells": 1},
        "quick": {"steps": 120, "limit": 100},
        "full": {"steps": 300, "limit": 3600},
    },
    note=(
        "The paper: CG learns lengthscales that are too long, RFF too short ones. With the gradient of truncated CG the"
        " sign can turn just before convergence, which no theorem excludes. SS-RFF takes ten times the steps."
    ),
    draw=draw.figure_2,
    finding=draw.recoveries,
)

_PATHS = ("Cholesky", "RR-CG", "CG", "SS-RFF", "RFF")
FIGURE_3 = Experiment(
    name="figure-3",
    title="paths over the exact loss of one lengthscale and the noise",
    run=run.wander,
    rows=(
        Row("exact loss on a grid", "pol", settings={"method": "surface"}),
        *(Row(name, "pol", settings={"method": name.lower()}) for name in _PATHS),
    ),
    columns=(
        Column("lengthscale", "lengthscale", digits=3),
        Column("noise variance", "noise", digits=3),
        Column("exact loss", "loss"),
    ),
    levels=_levels(
        {"iterations": 20, "frequencies": 8, "nodes": 3, "cells": 6},
        {"iterations": 20, "nodes": 15, "frequencies": 60},
        {"iterations": 20, "nodes": 30, "frequencies": 350, "steps": 500, "learning_rate": 0.02},
    ),
    paper_settings={"rows": None},
    note=(
        "The paper (PoleTele): Cholesky, RR-CG (20 iterations) and SS-RFF (700 features) end at the optimum, CG and RFF"
        " elsewhere. Ends are means over the last tenth of the steps."
    ),
    draw=draw.figure_3,
    finding=draw.ends,
)


#: Made tables are too small for as many frequencies.
_FEW = {"smoke": {"frequencies": 8}}


def _learning(name: str, title: str, data: str, rows: tuple[tuple[str, dict[str, Any]], ...], note: str) -> Experiment:
    """Return a figure of exact losses while learning."""
    exact = ("Cholesky", {"method": "cholesky"})
    return Experiment(
        name=name,
        title=title,
        run=run.fit,
        rows=tuple(Row(label, data, settings=settings, at=_FEW) for label, settings in (exact, *rows)),
        columns=(Column("exact loss at the end", "loss", digits=5), Column("minutes", "minutes", digits=3)),
        levels=_levels({"curves": 2, "cells": 6}, {"curves": 12}, {"curves": 40, "steps": 500, "learning_rate": 0.02}),
        paper_settings={"rows": None},
        note=note,
        draw=draw.curves,
        finding=draw.ends,
    )


def _lengths(method: str, key: str, lengths: tuple[int, ...]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return a row for each length of a method."""
    word = "iterations" if key == "iterations" else "frequencies"
    return tuple((f"{method}, {length} {word}", {"method": method.lower(), key: length}) for length in lengths)


FIGURE_4 = _learning(
    "figure-4",
    "exact loss while learning with random features (PoleTele)",
    "pol",
    _lengths("RFF", "frequencies", (50, 100)) + _lengths("SS-RFF", "frequencies", (100,)),
    "The paper: RFF ends at worse losses; SS-RFF near the optimum, after more than 100 times the steps.",
)
FIGURE_5 = _learning(
    "figure-5",
    "exact loss while learning with conjugate gradients (Bike)",
    "bike",
    _lengths("CG", "iterations", (20, 40)) + _lengths("RR-CG", "iterations", (20, 40)),
    "The paper: RR-CG is at the optimum after about 100 steps, later with 20 iterations than with 40; CG diverges.",
)
FIGURE_S2 = _learning(
    "figure-s2",
    "exact loss while learning with random features (Bike)",
    "bike",
    _lengths("RFF", "frequencies", (100, 150)) + _lengths("SS-RFF", "frequencies", (100, 150)),
    "The paper has 1,000 and 1,500 features, 11,122 rows: RFF ends off the optimum, SS-RFF at it after 1,000 steps.",
)
FIGURE_S3 = _learning(
    "figure-s3",
    "exact loss while learning with conjugate gradients (PoleTele)",
    "pol",
    _lengths("CG", "iterations", (10, 20, 40)) + _lengths("RR-CG", "iterations", (20, 40)),
    "The paper: with few iterations CG diverges and RR-CG converges; above 40, all are the same.",
)

_COUNTS = (20, 40, 60, 80, 100)
FIGURE_S1 = Experiment(
    name="figure-s1",
    title="scores against the (expected) number of iterations (Elevators)",
    run=run.fit,
    rows=(
        Row("Cholesky", "elevators", settings={"method": "cholesky"}),
        *(
            Row(
                f"{name}, {count} iterations",
                "elevators",
                settings={"method": name.lower(), "iterations": count},
                at={"smoke": {} if count < 48 else None},
            )
            for name in ("CG", "RR-CG")
            for count in _COUNTS
        ),
    ),
    columns=(Column("RMSE", "rmse"), Column("NLL", "nll"), Column("exact loss", "loss")),
    levels=_levels({"cells": 3}, {}, {"splits": 3, "steps": 500, "learning_rate": 0.02}),
    paper_settings={"rows": None},
    note="The paper: CG is poor at 20 iterations and improves up to 100; RR-CG is at the level of Cholesky throughout.",
    draw=draw.figure_s1,
    finding=draw.ends,
)

PAPER = Paper(
    name="truncation",
    title="Bias-free scalable Gaussian processes via randomized truncations",
    reference="Potapczynski, Wu, Biderman, Pleiss and Cunningham 2021, [arXiv:2102.06695](https://arxiv.org/abs/2102.06695).",
    experiments=(
        TABLE_S1,
        Experiment("table-s2", "training times: the minutes of Table S1", source="table-s1"),
        FIGURE_1,
        FIGURE_2,
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        Experiment(
            "figure-6",
            "scores of every method",
            source="table-s1",
            draw=draw.figure_6,
            note="What ran on all rows of a set cannot be compared with what ran on 2,000; Table S1 says which did.",
        ),
        FIGURE_S1,
        FIGURE_S2,
        FIGURE_S3,
    ),
)
