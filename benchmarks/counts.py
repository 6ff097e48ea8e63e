"""Counts over different efforts: whether intervals hold the rate, and what leaving the effort out costs.

    python benchmarks/counts.py --json benchmarks/results/counts.json
    python benchmarks/counts.py --part series --json benchmarks/results/counts_series.json
    python benchmarks/counts.py --part coverage --draws 12 --json benchmarks/results/counts_coverage.json

Five made fields of two inputs with 400 rows each, whose efforts vary a hundredfold (log-uniform), several draws of
each. Counts are Poisson, or negative binomial with a dispersion of 0.5. Each is fitted as Poisson and as negative
binomial with ``exposure=``, and as Poisson without it. "rate" is the share of 500 new places whose true rate lies in
its 95 % interval; "counts" that of new counts with efforts of their own in theirs; "nll" is the mean of minus the log
probability of these counts. Intervals of counts are of whole numbers and hold a little more than 95 %.

``--part coverage``: the same share of true rates, with its standard error, which is that of fields: rates of one field
lie in their intervals together or not at all. Fields are the five above, each drawn often, and draws of the model
itself, with its own hyperparameters ("given") and with learned ones. Draws tell a fault of Laplace's approximation
("given" is not 95 %) from one of the learned hyperparameters, and both from fields unlike any draw.

``--part series``: 180 monthly counts of four rates, of which 30 months and the last 30 are left out: their NLL with the
plain kernel, and with the one that is chosen by default.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit

from gigagp import GPRegressor, kernels, likelihoods

FIELDS = {
    "waves": lambda X: 0.5 + np.sin(3 * X[:, 0]) + np.cos(2 * X[:, 1]),
    "slope": lambda X: 1.5 * X[:, 0] - X[:, 1],
    "bump": lambda X: 3 * np.exp(-4 * ((X - 0.3) ** 2).sum(1)),
    "ridge": lambda X: 2 - 4 * np.abs(X[:, 0] - X[:, 1]),
    "rare": lambda X: -2 + np.sin(4 * X[:, 0]) * X[:, 1],
}
SERIES = {
    "season": lambda t: 1 + np.sin(2 * np.pi * t / 12) + 0.01 * t,
    "weak season": lambda t: 2 + 0.5 * np.sin(2 * np.pi * t / 12) + 0.3 * np.sin(t / 30),
    "trend": lambda t: 0.02 * t,
    "two waves": lambda t: 1 + np.sin(t / 8) + 0.5 * np.sin(t / 3),
}
MONTHS, LEFT_OUT = 180, 30
DISPERSION, ROWS, NEW = 0.5, 400, 500
DRAWN = kernels.Matern(2.5, 0.6, 1.0)  # kernel of the fields that are drawn
FITS = {
    "poisson": {"likelihood": "poisson", "exposure": True},
    "negative binomial": {"likelihood": "negative-binomial", "exposure": True},
    "poisson without exposure": {"likelihood": "poisson", "exposure": False},
}


def drawn(field: str, kind: str, n: int, draw: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return places, efforts, true rates and counts."""
    X = draw.uniform(-1, 1, (n, 2))
    effort, rate = 10 ** draw.uniform(-1, 1, n), np.exp(FIELDS[field](X))
    mean = rate * effort
    shape = 1 / DISPERSION
    counts = draw.poisson(mean) if kind == "poisson" else draw.negative_binomial(shape, shape / (shape + mean))
    return X, effort, rate, counts.astype(float)


def case(field: str, kind: str, seed: int) -> dict[str, dict[str, float]]:
    """Return the scores of each fit to one draw."""
    draw = np.random.default_rng([seed, list(FIELDS).index(field), kind == "poisson"])
    X, effort, _, counts = drawn(field, kind, ROWS, draw)
    new, new_effort, rate, new_counts = drawn(field, kind, NEW, draw)
    found = {}
    for name, settings in FITS.items():
        began = time.process_time()
        given = {"exposure": effort} if settings["exposure"] else {}
        told = {"exposure": new_effort} if settings["exposure"] else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gp = GPRegressor(likelihood=settings["likelihood"]).fit(X, counts, **given)
            low, high = np.quantile(gp.sample_y(new, n_samples=400), [0.025, 0.975], axis=1)
            below, above = gp.predict_quantile(new, [0.025, 0.975], **told).T
            density = gp.predictive_log_density(new, new_counts, **told)
        found[name] = {
            "rate": float(((low <= rate) & (rate <= high)).mean()),
            "counts": float(((below <= new_counts) & (new_counts <= above)).mean()),
            "nll": float(-density.mean()),
            "cpu_seconds": time.process_time() - began,
        }
    return found


def held(
    settings: dict[str, Any], likelihood: Any, rows: tuple[np.ndarray, ...], new: np.ndarray, f: np.ndarray
) -> float:
    """Return the share of latent values f in their 95 % intervals, which are those of their rates."""
    X, effort, counts = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = GPRegressor(likelihood=likelihood, **settings).fit(X, counts, exposure=effort)
        mean, std = gp.predict_latent(new, return_std=True)
    return float((np.abs(f - mean) < 1.959964 * std).mean())


def summary(shares: list[float]) -> dict[str, float]:
    """Return the mean over fields with its standard error, and the ends."""
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    numbers = {"mean": np.mean(shares), "standard_error": error, "least": min(shares), "most": max(shares)}
    return {name: round(float(number), 4) for name, number in numbers.items()} | {"fields": len(shares)}


def drawn_field(kind: str, seed: int) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Return rows, new places and the latent values there, of a draw of `DRAWN`."""
    draw = np.random.default_rng([seed, 77, kind == "poisson"])
    X = draw.uniform(-1, 1, (ROWS + NEW, 2))
    at = torch.from_numpy(X)
    K = DRAWN.bind(2).block(at, at).numpy() + 1e-9 * np.eye(len(X))
    f = 0.5 + np.linalg.cholesky(K) @ draw.normal(size=len(X))
    effort = 10 ** draw.uniform(-1, 1, ROWS)
    mean, shape = np.exp(f[:ROWS]) * effort, 1 / DISPERSION
    counts = draw.poisson(mean) if kind == "poisson" else draw.negative_binomial(shape, shape / (shape + mean))
    return (X[:ROWS], effort, counts.astype(float)), X[ROWS:], f[ROWS:]


def coverage(draws: int) -> dict[str, Any]:
    """Return the share of rates in their intervals, of made and of drawn fields."""
    found: dict[str, Any] = {"commit": commit(), "rows": ROWS, "draws": draws, "dispersion": DISPERSION}
    for kind, known in (
        ("poisson", likelihoods.Poisson()),
        ("negative binomial", likelihoods.NegativeBinomial(DISPERSION)),
    ):
        name, of_kind = kind.replace(" ", "-"), {}
        given = {"kernel": DRAWN, "optimizer": None, "standardize": False}
        cases = [drawn_field(kind, seed) for seed in range(8 * draws)]
        of_kind["drawn_given"] = summary([held(given, known, *one) for one in cases])
        of_kind["drawn_learned"] = summary([held({}, name, *one) for one in cases[: 2 * draws]])
        print(kind, of_kind, flush=True)
        everything = []
        for field in FIELDS:
            shares = []
            for seed in range(draws):
                draw = np.random.default_rng([seed, list(FIELDS).index(field), kind == "poisson"])
                X, effort, _, counts = drawn(field, kind, ROWS, draw)
                new = drawn(field, kind, NEW, draw)
                shares.append(held({}, name, (X, effort, counts), new[0], np.log(new[2])))
            of_kind[field] = summary(shares)
            everything += shares
            print(kind, field, of_kind[field], flush=True)
        found[kind.replace(" ", "_")] = of_kind | {"all": summary(everything)}
    return found


def series(name: str, seed: int) -> dict[str, Any]:
    """Return the NLL of left-out months with the plain kernel and by default, and CPU seconds of the fits."""
    draw = np.random.default_rng([seed, list(SERIES).index(name)])
    t = np.arange(float(MONTHS))
    y = draw.poisson(np.exp(SERIES[name](t))).astype(float)
    last = np.arange(MONTHS - LEFT_OUT, MONTHS)
    among = draw.permutation(MONTHS - LEFT_OUT)[:LEFT_OUT]
    kept = np.setdiff1d(np.arange(MONTHS), np.concatenate([among, last]))
    found: dict[str, Any] = {}
    for model, kernel in {"plain": kernels.Matern(nu=1.5), "default": None}.items():
        began = time.process_time()
        gp = GPRegressor(kernel, likelihood="poisson", verbose=0).fit(t[kept, None], y[kept])
        found[f"{model} cpu_seconds"] = time.process_time() - began
        for part, rows in {"among": among, "last": last}.items():
            found[f"{model} {part}"] = float(-gp.predictive_log_density(t[rows, None], y[rows]).mean())
        if gp.kernel_choice_ is not None:
            found["kernel"] = next(one.name for one in gp.kernel_choice_.tried if one.weight)
    return found


def fields(draws: int) -> dict[str, Any]:
    """Return the scores of all fields, and their means."""
    found: dict[str, Any] = {"commit": commit(), "rows": ROWS, "draws": draws, "dispersion": DISPERSION}
    for kind in ("poisson", "negative binomial"):
        cases = {field: [case(field, kind, seed) for seed in range(draws)] for field in FIELDS}
        of_kind: dict[str, Any] = {}
        for name in FITS:
            each = {
                field: {key: round(float(np.mean([one[name][key] for one in parts])), 4) for key in parts[0][name]}
                for field, parts in cases.items()
            }
            everything = {key: round(float(np.mean([one[key] for one in each.values()])), 4) for key in each["waves"]}
            of_kind[name] = {"all": everything, **each}
            print(f"{kind:18s} {name:26s} {everything}", flush=True)
        found[kind] = of_kind
    return found


def main() -> None:
    """Run all fields."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="fields", choices=("fields", "series", "coverage"))
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "series":
        found = {"commit": commit(), "months": MONTHS, "left_out": LEFT_OUT}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in SERIES:
                found[name] = [series(name, seed) for seed in range(arguments.draws)]
                print(name, found[name], flush=True)
    else:
        found = coverage(arguments.draws) if arguments.part == "coverage" else fields(arguments.draws)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
