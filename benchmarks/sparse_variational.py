"""Compare SGPR and SVGP with GPyTorch: one training step each, a prediction, and the values of the bounds.

Everything runs in one process, in turns, in float64; times are CPU seconds, the best of several repetitions. The SVGP
steps start at different distributions, and GPyTorch predicts with a corrected diagonal, so that only the values of the
SGPR steps are comparable. ``pip install 'gigagp[bench]'`` installs GPyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gigagp.inference import SparseVariational
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Matern
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

NOISE, JITTER = 0.1, 1e-6


def seconds(call: Callable[[], Any], repetitions: int) -> tuple[float, Any]:
    """Return the least CPU seconds of a call after a warm-up call, and its result."""
    result, best = call(), math.inf
    for _ in range(repetitions):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return best, result


def covariance(d: int) -> Any:
    """Return GPyTorch's Matern-3/2 kernel at the start of a fit."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = math.sqrt(d), 1.0
    return kernel


class TheirSGPR(gpytorch.models.ExactGP):
    """GPyTorch's exact GP with an inducing-point kernel."""

    def __init__(self, X: Tensor, y: Tensor, Z: Tensor, likelihood: Any) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(covariance(X.shape[1]), Z.clone(), likelihood)

    def forward(self, x: Tensor) -> Any:
        """Return the prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class TheirSVGP(gpytorch.models.ApproximateGP):
    """GPyTorch's whitened variational strategy with a Cholesky factor."""

    def __init__(self, Z: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
        super().__init__(gpytorch.variational.VariationalStrategy(self, Z.clone(), distribution))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), covariance(Z.shape[1])

    def forward(self, x: Tensor) -> Any:
        """Return the prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def main() -> None:
    """Measure and print all pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--inputs", type=int, default=10)
    parser.add_argument("--inducing", type=int, default=256)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(given.rows, given.inputs, generator=generator, dtype=torch.float64)
    y = torch.sin(X[:, 0]) + 0.1 * torch.randn(given.rows, generator=generator, dtype=torch.float64)
    Z, batch = X[: given.inducing].clone(), torch.randperm(given.rows, generator=generator)[: given.batch]
    new = torch.randn(given.rows, given.inputs, generator=generator, dtype=torch.float64)

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    collapsed, stochastic = TheirSGPR(X, y, Z, likelihood).double(), TheirSVGP(Z).double()
    bounds = (
        gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, collapsed),
        gpytorch.mlls.VariationalELBO(likelihood, stochastic, num_data=given.rows),
    )

    def step(model: Any, bound: Any, rows: Tensor) -> float:
        model.train().zero_grad()
        value = bound(model(X[rows] if len(rows) < len(X) else X), y[rows])
        (-value).backward()
        return float(value.detach()) * given.rows

    def predict() -> float:
        collapsed.train()  # clears the caches of the last prediction, as a fit would
        with torch.no_grad():
            answer = collapsed.eval()(new)
            return float(answer.variance.mean())

    table = TrainingTable(X, y[:, None], ZeroMean(), 2**32)
    model = Model(
        Matern(nu=1.5).bind(given.inputs), ZeroMean(), torch.tensor(NOISE, dtype=torch.float64), {"inducing_points": Z}
    )
    ours = SparseVariational(given.inducing, jitter=JITTER).objective(table, generator)
    mine = SparseVariational(given.inducing, given.batch, jitter=JITTER).objective(table, generator)
    started = mine.start(model)
    every = torch.arange(given.rows)
    pairs = {
        "SGPR step": (lambda: step(collapsed, bounds[0], every), lambda: ours.evaluate(model).value),
        "SVGP step": (lambda: step(stochastic, bounds[1], batch), lambda: mine.evaluate(started).value),
        "SGPR fit of the posterior and prediction": (
            predict,
            lambda: float(ours.posterior(model).mean_and_variance(new)[1].mean()),
        ),
    }
    print(vars(given) | {"threads": torch.get_num_threads(), "gpytorch": gpytorch.__version__})
    found = []
    for name, calls in pairs.items():
        (theirs, their_value), (own, own_value) = (seconds(call, given.repetitions) for call in calls)
        row = {"what": name, "gpytorch": theirs, "gigagp": own, "ratio": theirs / own}
        print(f"{name:42s} GPyTorch {theirs:8.4f} s   gigagp {own:8.4f} s   ratio {theirs / own:5.2f}", end="   ")
        print("" if name != "SGPR step" else f"values {their_value:.6g} and {own_value:.6g}")
        found.append(row | {"values": [their_value, own_value]})
    if given.json:
        given.json.write_text(
            json.dumps({"settings": {**vars(given), "json": str(given.json)}, "rows": found}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
