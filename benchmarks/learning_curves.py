"""Learning curves of which some end early: a panel as Kronecker products, all cells by neighbours, and BoTorch's model.

    python benchmarks/learning_curves.py --data ../shared/data --json benchmarks/results/learning_curves.json

LCBench (Zimmer et al. 2021): validation loss of 2,000 settings of a network (7 numbers) over 52 epochs. Of a tenth or
a half of the curves everything from a random epoch on is missing, and is predicted (Lin et al. 2025, arXiv:2506.06895;
the split has the seed 2025). Values are in deviations of the last epoch of the curves that are whole. "default" is a
default fit of a long table with ``panel=``, and "likelihood" the same kernel given by hand, which is learned by the
likelihood alone. "product" has a product kernel of settings and epochs, and "stacked" is ``inference.Vecchia`` with one
kernel of all 8 inputs. "botorch" is ``LatentKroneckerGP``, where it is installed. All have one thread; ``cpu_s`` is
that of fit and prediction together.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from checkout import commit
from earlier_run import earlier_rows

from gigagp import GPRegressor, inference, kernels, metrics

SETS = ("airlines", "adult", "car", "helena", "higgs")
#: A made set, which needs no data.
MADE = "made"


class Curves(NamedTuple):
    """Settings (n, d), epochs (T,), values (n, T), and which of them were observed."""

    X: np.ndarray
    epochs: np.ndarray
    Y: np.ndarray
    observed: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """All cells as rows, curve by curve."""
        return np.column_stack([self.X.repeat(len(self.epochs), 0), np.tile(self.epochs, len(self.X))])


def read(folder: Path | None, name: str, share: float, n_curves: int) -> Curves:
    """Return a set with a share of its curves cut at random epochs, in deviations of the last epoch."""
    if name == MADE:
        draw = np.random.default_rng(0)
        X, epochs = draw.random((n_curves, 3)), np.arange(1.0, 21)
        Y = X[:, :1] + (1 + X[:, 1:2]) * np.exp(-epochs / (3 + 9 * X[:, 2:])) + 0.02 * draw.normal(size=(n_curves, 20))
    else:
        assert folder is not None, "sets other than the made one need --data"
        with np.load(folder / "panels" / "lcbench" / f"{name}.npz") as file:
            X, Y = file["X"][:n_curves], file["Y"][:n_curves]
        epochs = np.arange(1.0, Y.shape[1] + 1)
    random = np.random.RandomState(2025)
    observed = np.ones(Y.shape, dtype=bool)
    for curve in random.choice(len(X), int(share * len(X)), replace=False):
        observed[curve, random.randint(Y.shape[1]) :] = False
    last = Y[observed[:, -1], -1]
    return Curves(X, epochs, (Y - last.mean()) / last.std(ddof=1), observed)


Answer = tuple[np.ndarray, np.ndarray, dict[str, Any]]


def product(curves: Curves) -> Answer:
    """Return mean and std of the missing cells from a kernel that is one product."""
    d = curves.X.shape[1]
    kernel = kernels.Matern(1.5, columns=list(range(d))) * kernels.Matern(0.5, columns=[d], fixed=["variance"])
    return _of(GPRegressor(kernel, random_state=0), curves)


def likelihood(curves: Curves) -> Answer:
    """Return mean and std of the missing cells from the default kernel, learned by the likelihood alone."""
    d = curves.X.shape[1]
    settings, epochs = list(range(1, d + 1)), [d + 1]
    entities = kernels.Group(0) + kernels.Matern(columns=settings)
    kernel = entities * kernels.Matern(columns=epochs, fixed=["variance"]) + entities + kernels.Matern(columns=epochs)
    return default(curves, kernel)


def default(curves: Curves, kernel: kernels.Kernel | None = None) -> Answer:
    """Return mean and std of the missing cells from a default fit of a long table."""
    d, (n, n_times) = curves.X.shape[1], curves.Y.shape
    rows = np.column_stack([np.arange(n).repeat(n_times), curves.rows])
    observed = curves.observed.ravel()
    gp = GPRegressor(kernel, panel=(0, d + 1), random_state=0).fit(rows[observed], curves.Y.ravel()[observed])
    mean, std = gp.predict(rows[~observed], return_std=True, include_noise=True)
    more = {"noise_variance": float(gp.noise_variance_), "evaluations": len(gp.history_)}
    return mean, std, more | {"inference": gp.inference_.label}


def stacked(curves: Curves) -> Answer:
    """Return mean and std of the missing cells from neighbours in all inputs."""
    return _of(GPRegressor(kernels.Matern(1.5), inference=inference.Vecchia(), random_state=0), curves)


def _of(gp: GPRegressor, curves: Curves) -> Answer:
    observed = curves.observed.ravel()
    gp.fit(curves.rows[observed], curves.Y.ravel()[observed])
    mean, std = gp.predict(curves.rows[~observed], return_std=True, include_noise=True)
    return mean, std, {"noise_variance": float(gp.noise_variance_), "evaluations": len(gp.history_)}


def botorch(curves: Curves, steps: int = 20) -> Answer:
    """Return mean and std of the missing cells from BoTorch's model, with at most some steps of its fit."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models.latent_kronecker_gp import LatentKroneckerGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    X, Y = torch.from_numpy(curves.X).double(), torch.from_numpy(np.where(curves.observed, curves.Y, np.nan)).double()
    X = (X - X.mean(0)) / X.std(0)
    times = torch.from_numpy(curves.epochs / curves.epochs.max()).double()[:, None]
    model = LatentKroneckerGP(train_X=X, train_Y=Y, train_T=times)
    with model.use_iterative_methods():
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": steps}}
        )
        posterior = model.posterior(X)
        samples = posterior.rsample(torch.Size([64])).detach().numpy().reshape(64, *curves.Y.shape)
    noise = float(model.likelihood.noise.detach().mean())
    std = np.sqrt(samples.var(0) + noise)
    return samples.mean(0)[~curves.observed], std[~curves.observed], {"noise_variance": noise}


MODELS: dict[str, Callable[[Curves], Answer]] = {
    "default": default,
    "likelihood": likelihood,
    "product": product,
    "stacked": stacked,
    "botorch": botorch,
}


def main() -> None:
    """Run all sets and models, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder with panels/lcbench/")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=(*SETS, MADE))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.5], help="shares of the curves that are cut")
    parser.add_argument("--models", nargs="+", default=["default", "likelihood", "product", "stacked"], choices=MODELS)
    parser.add_argument("--curves", type=int, default=2000)
    parser.add_argument("--resume", action="store_true", help="keep the rows of the JSON file, and run the others")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = commit()
    records = earlier_rows(parser, options)
    for name in options.sets:
        for share in options.shares:
            curves = read(options.data, name, share, options.curves)
            truth = curves.Y[~curves.observed]
            done = {row["model"] for row in records if (row["set"], row["share"]) == (name, share)}
            for model in (one for one in options.models if one not in done):
                began = time.process_time()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    mean, std, more = MODELS[model](curves)
                coverage = float((np.abs(mean - truth) < 1.96 * std).mean())
                records.append(
                    {"set": name, "share": share, "model": model, "rmse": metrics.rmse(truth, mean)}
                    | {"nll": metrics.gaussian_nll(truth, mean, std), "coverage": coverage}
                    | {"cpu_s": time.process_time() - began, "cells": int(curves.observed.sum()), "missing": len(truth)}
                    | more
                    | {"commit": where, "warnings": [str(one.message)[:200] for one in caught]}
                )
                print(records[-1], flush=True)
                if options.json:
                    settings = {"threads": 1, "curves": options.curves, "seed": 2025}
                    text = json.dumps({"settings": settings, "rows": records}, indent=1)
                    options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
