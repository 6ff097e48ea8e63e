"""Check two properties of computation-aware inference: variances never below the exact ones, and coverage.

    python benchmarks/computation_aware_checks.py

Reports the smallest difference between its variance and the exact one over random problems, and the coverage of central
intervals on targets drawn from the model, over 20 draws, for several numbers of actions.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from gigagp import GPRegressor, __version__, actions, inference, kernels, metrics
from gigagp.inference.computation_aware import ComputationAwarePosterior, Evidence
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix


def smallest_difference(problems: int) -> tuple[float, float]:
    """Return the smallest and the median difference of variances over random problems."""
    found = []
    for seed in range(problems):
        draw = torch.Generator().manual_seed(seed)
        n = int(torch.randint(3, 60, (), generator=draw))
        count = int(torch.randint(1, n + 1, (), generator=draw))
        d = int(torch.randint(1, 5, (), generator=draw))
        kernel = kernels.Matern(1.5, float(torch.rand((), generator=draw)) + 0.1).bind(d)
        noise = 10 ** float(-5 * torch.rand((), generator=draw))
        X, x = (
            torch.rand(n, d, generator=draw, dtype=torch.float64),
            torch.rand(4, d, generator=draw, dtype=torch.float64),
        )
        S = torch.randn(n, count, generator=draw, dtype=torch.float64)
        model = Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))
        table = TrainingTable(X, X[:, :1], ZeroMean(), 2**30)
        each = model.noise_variance.expand(n)
        matrix = KernelMatrix(kernel, X, noise, storage="tiles")
        seen = Evidence(model, table, actions.DenseActions(S), "projected", each, matrix)
        posterior = ComputationAwarePosterior(model, table, seen.actions, seen.factor, seen.conditioned(), each)
        ours = posterior.mean_and_variance(x)[1]
        cross = kernel.block(X, x)
        exact = kernel.diagonal(x) - (cross * torch.linalg.solve(matrix.to_dense(), cross)).sum(0)
        found.append((ours - exact).numpy())
    differences = np.concatenate(found)
    return float(differences.min()), float(np.median(differences))


def coverage(counts: list[int], draws: int) -> None:
    """Print the mean coverage over draws from the model with known hyperparameters."""
    kernel = kernels.Matern(1.5, [0.5, 0.8]).bind(2)
    print(f"{'actions':>8s} {'50 %':>7s} {'80 %':>7s} {'95 %':>7s} {'std / exact std':>16s}")
    for count in [*counts, 0]:
        shares, ratios = [], []
        for seed in range(draws):
            draw = torch.Generator().manual_seed(seed)
            X = torch.randn(500, 2, generator=draw, dtype=torch.float64)
            H = kernel.block(X, X) + 0.05 * torch.eye(500, dtype=torch.float64)
            y = (torch.linalg.cholesky(H) @ torch.randn(500, generator=draw, dtype=torch.float64)).numpy()
            settings = {"optimizer": None, "mean": "zero", "noise_variance": 0.05, "standardize": False}
            x = X.numpy()
            exact = GPRegressor(kernel, inference.Exact(), **settings).fit(x[:300], y[:300])
            chosen = inference.ComputationAware(count) if count else inference.Exact()
            gp = GPRegressor(kernel, chosen, **settings).fit(x[:300], y[:300])
            mean, std = gp.predict(x[300:], return_std=True, include_noise=True)
            shares.append([metrics.coverage(y[300:], mean, std, level) for level in metrics.INTERVALS])
            ratios.append(float((std / exact.predict(x[300:], return_std=True, include_noise=True)[1]).mean()))
        means = " ".join(f"{100 * share:7.2f}" for share in np.mean(shares, 0))
        print(f"{count or 'exact':>8} {means} {np.mean(ratios):16.3f}", flush=True)


def main() -> None:
    """Run both checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--actions", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    arguments = parser.parse_args()
    print(f"gigagp {__version__}")
    smallest, median = smallest_difference(arguments.problems)
    print(f"variance minus the exact one, {arguments.problems} problems: smallest {smallest:.3g}, median {median:.3g}")
    coverage(arguments.actions, arguments.draws)


if __name__ == "__main__":
    main()
