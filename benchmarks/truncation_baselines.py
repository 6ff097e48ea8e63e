"""sgGP and the product of experts, two baselines of Potapczynski et al. 2021, made of the package's parts.

    python benchmarks/truncation_baselines.py --tables kin40k protein elevators --rows 8000 --json experts.json

The command compares products of experts with nearest neighbours at the same hyperparameters (those of 1,000 rows). The
experts are exact Gaussian processes on random parts of the rows or on clusters of them; their predictions are combined
in the four usual ways. Neighbours had the lower errors and the lower NLL on every table, in less time, so the package
has no products of experts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.neighbors import NearestNeighbors

sys.path.insert(0, str(Path(__file__).parent))
from maps import write
from splits import read_split

from gigagp import GPRegressor, inference, kernels
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation


@dataclass(frozen=True)
class Minibatches(inference.Vecchia):
    """sgGP (Chen et al. 2020): gradients of the likelihoods of minibatches, each a random row and its nearest rows.

    Parameters
    ----------
    size : int, default 16
        Rows of a minibatch.
    count : int, default 1024
        Minibatches whose gradients are averaged in a step; limited by the number of rows.
    """

    size: int = 16
    count: int = 1024

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> MinibatchObjective:
        """Return the objective of a fit."""
        return MinibatchObjective(self, table, generator)


class MinibatchObjective(VecchiaObjective):
    """The mean log density of minibatches as if there were no other rows; posteriors are those of nearest neighbours.

    Chen et al. divide the gradients of noise and kernel by different powers of the size, which Adam undoes.
    """

    def __init__(self, settings: Minibatches, table: TrainingTable, generator: torch.Generator) -> None:
        super().__init__(table, settings.n_neighbors, settings.prediction_neighbors, settings.learning_rows)
        self.settings, self._generator = settings, generator
        X = table.X.cpu().numpy()
        nearest = NearestNeighbors(n_neighbors=min(settings.size, len(X))).fit(X).kneighbors(X, return_distance=False)
        self._members = torch.from_numpy(nearest)  # of the minibatch around each row

    @property
    def deterministic(self) -> bool:
        """Always false: every step draws its minibatches."""
        return False

    def start(self, model: Model) -> Model:
        """Return the model as it is."""
        return model

    def evaluate(self, model: Model) -> Evaluation:
        """Return the gradient of the minibatches' log densities, per minibatch times their number in the table."""
        size = self._members.shape[1]
        count = min(self.settings.count, self.table.n_rows)
        centres = torch.randperm(self.table.n_rows, generator=self._generator)[:count]
        members = self._members[centres]
        # log p(y_1 ... y_s) = sum_k log p(y_k | y_1 ... y_(k-1)): each row given the earlier ones of its minibatch
        earlier = torch.ones(size, size - 1, dtype=torch.bool).tril(-1)
        neighbours = torch.where(earlier, members[:, None, :-1], -1).reshape(count * size, size - 1)
        found = pool_of(model, self.table).derivatives(
            members.reshape(-1), neighbours.to(torch.int32), self.table.Y.double()
        )
        scale = self.table.n_rows / (count * size)
        return Evaluation(None, {name: scale * value for name, value in found.gradient.items()})


def split_rows(n_rows: int, size: int, seed: int) -> list[np.ndarray]:
    """Return disjoint random parts of the rows, the last one filled up from the first (Potapczynski et al., E)."""
    order = np.random.default_rng(seed).permutation(n_rows)
    size = min(size, n_rows)
    parts = [order[start : start + size] for start in range(0, n_rows, size)]
    parts[-1] = np.concatenate([parts[-1], parts[0][: size - len(parts[-1])]])
    return parts


def generalized_product(means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the product of experts with weights 1/K, as mean and variance (Deisenroth and Ng 2015, eqs. 11 and 12).

    Parameters
    ----------
    means, variances : ndarray of shape (experts, rows)
        Predictions. With variances of the targets the product is that of the paper's tables.
    """
    variance = 1 / np.mean(1 / variances, 0)
    return variance * np.mean(means / variances, 0), variance


def combinations(means: np.ndarray, variances: np.ndarray, prior: float, noise: float) -> dict[str, Any]:
    """Return the usual combinations of experts that share hyperparameters, as mean and variance of targets."""
    found = {"gPoE, weights 1/K": generalized_product(means, variances + noise)}
    entropy = np.maximum(0.5 * np.log(prior / variances), 1e-12)  # not zero where no expert knows anything
    precision = (entropy / variances).sum(0) + (1 - entropy.sum(0)) / prior
    found["robust BCM"] = (entropy * means / variances).sum(0) / precision, 1 / precision + noise
    weights = entropy / entropy.sum(0)
    variance = 1 / (weights / variances).sum(0)
    found["gPoE, weights by entropy"] = variance * (weights * means / variances).sum(0), variance + noise
    best, rows = variances.argmin(0), np.arange(means.shape[1])
    found["surest expert"] = means[best, rows], variances[best, rows] + noise
    return found


def compare(data: Sequence[np.ndarray], size: int) -> list[dict[str, Any]]:
    """Return scores and CPU seconds of experts and of neighbours, at the hyperparameters of ``size`` rows."""
    X, y, X_test, y_test = data
    shared: dict[str, Any] = {"mean": "zero", "standardize": False}
    gp = GPRegressor(kernels.RBF(), inference.Exact(), **shared).fit(X[:size], y[:size])
    noise, kernel = float(gp.noise_variance_), gp.kernel_
    shared |= {"optimizer": None, "noise_variance": noise}
    rows: list[dict[str, Any]] = []

    def add(name: str, mean: np.ndarray, variance: np.ndarray, seconds: float) -> None:
        scores = {"rmse": rmse(y_test, mean), "nll": gaussian_nll(y_test, mean, np.sqrt(variance))}
        rows.append({"method": name, **scores, "cpu_seconds": seconds})

    clusters = MiniBatchKMeans(-(-len(y) // size), random_state=0, n_init=3).fit_predict(
        X / np.asarray(kernel.lengthscale)
    )
    parts = {
        "random parts": split_rows(len(y), size, 0),
        "clusters": [np.flatnonzero(clusters == k) for k in np.unique(clusters)],
    }
    for label, members in parts.items():
        started, means, variances = time.process_time(), [], []
        for part in members:
            mean, std = GPRegressor(kernel, inference.Exact(), **shared).fit(X[part], y[part]).predict(X_test, True)
            means.append(mean)
            variances.append(std**2)
        seconds = time.process_time() - started
        combined = combinations(np.array(means), np.array(variances), float(kernel.variance), noise)
        for name, (mean, variance) in combined.items():
            add(f"{name}, {label}", mean, variance, seconds)
    for m in (200, 400):
        started = time.process_time()
        gp = GPRegressor(kernel, inference.Vecchia(prediction_neighbors=m), **shared).fit(X, y)
        mean, std = gp.predict(X_test, return_std=True, include_noise=True)
        add(f"Vecchia, {m} neighbours of a point", mean, std**2, time.process_time() - started)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare experts with neighbours and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["kin40k", "protein", "elevators"])
    parser.add_argument("--rows", type=int, default=8000, help="number of training rows")
    parser.add_argument("--size", type=int, default=1000, help="number of rows of an expert")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    results: list[dict[str, object]] = []
    for table in options.tables:
        for row in compare(read_split(options.data, table, 0, options.rows), options.size):
            results.append({"table": table, **row})
            print(
                f"{table:12s} {row['method']:40s} RMSE {row['rmse']:.4f}  NLL {row['nll']:7.4f}  "
                f"CPU {row['cpu_seconds']:.1f} s",
                flush=True,
            )
    write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
