"""The choice of the kernel for labels and counts, and what it is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.latent import LatentObjective
from gigagp.inference.vecchia.laplace import LaplaceObjective
from gigagp.model.likelihoods import Logistic
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model

RNG = np.random.default_rng(0)


def waves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of a smooth function of two inputs."""
    X = RNG.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] > 0.4 * RNG.normal(size=n)


def months(n: int = 180) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return months, counts with a season, and their rates."""
    t = np.arange(float(n))
    rate = np.exp(1.0 + np.sin(2 * np.pi * t / 12) + 0.005 * t)
    return t[:, None], np.random.default_rng(1).poisson(rate).astype(float), rate


@pytest.mark.slow
def test_labels_of_one_scale_keep_the_default_kernel_to_the_bit():
    X, y = waves(120)
    chosen, plain = GPClassifier().fit(X, y), GPClassifier(kernels.RBF()).fit(X, y)
    assert [one.name for one in chosen.latent_.kernel_choice_.tried] == ["rbf", "rq"]
    assert chosen.latent_.kernel_choice_.tried[0].weight == 1.0
    assert np.array_equal(chosen.predict_proba(X), plain.predict_proba(X))
    assert plain.latent_.kernel_choice_ is None
    assert "kernels tried chosen" in chosen.latent_.describe()


@pytest.mark.slow
def test_counts_with_a_season_get_it_and_a_file_keeps_what_was_tried(tmp_path):
    t, y, rate = months()
    chosen, plain = (GPRegressor(k, likelihood="poisson").fit(t[:150], y[:150]) for k in (None, kernels.Matern(nu=1.5)))
    tried = chosen.kernel_choice_.tried
    assert [one.name for one in tried] == ["matern32", "matern32+rbf*periodic"]
    assert tried[1].weight == 1.0
    assert tried[1].gain > 20
    assert tried[1].left_out_gain > 0
    errors = [np.abs(np.log(gp.predict(t[150:]) / rate[150:])).mean() for gp in (chosen, plain)]
    assert errors[0] < 0.5 * errors[1]
    chosen.save(tmp_path / "m")
    loaded = gigagp.load(tmp_path / "m")
    assert loaded.kernel_choice_ == chosen.kernel_choice_
    assert np.array_equal(loaded.predict(t), chosen.predict(t))


def test_neighbours_compare_by_laplace_where_they_learn_from_some_rows():
    t, y, _ = months(150)
    gp = GPRegressor(inference=inference.Vecchia(8, learning_rows=100), likelihood="negative-binomial").fit(t, y)
    assert [one.name for one in gp.kernel_choice_.tried] == ["matern32", "matern32+rbf*periodic"]
    assert gp.kernel_choice_.n_rows == 150
    assert np.isfinite([one.gain for one in gp.kernel_choice_.tried]).all()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rows", "arguments"),
    [
        (60, {}),
        (110, {"inference": inference.RelevanceVectorMachine()}),
        (110, {"optimizer": None}),
        (110, {"time_budget": 30}),
    ],
)
def test_nothing_is_compared_where_that_costs_much_or_tells_little(rows, arguments):
    X, y = waves(rows)
    assert GPClassifier(**arguments).fit(X, y).latent_.kernel_choice_ is None


def test_the_plain_kernel_of_labels_can_be_said_of_any_fit():
    assert kernels.Chosen(default="rbf", ard=False).plain() == kernels.RBF(ard=False)
    with pytest.raises(InvalidInputError, match="default"):
        kernels.Chosen(default="linear")
    X, y = waves(40)
    gp = GPRegressor(kernels.Chosen(default="rbf")).fit(X, y.astype(float) + 0.1 * RNG.normal(size=40))
    assert gp.kernel_choice_.tried[0].name == "rbf"


@pytest.mark.parametrize("method", ["bound", "laplace"])
def test_left_out_densities_against_dense_algebra(method):
    """Sites of all other rows, whose Gaussian posterior is found densely for each row, and its probability summed."""
    n, likelihood = 25, Logistic()
    X = torch.from_numpy(RNG.normal(size=(n, 2)))
    y = torch.where(X[:, :1] + 0.3 * torch.from_numpy(RNG.normal(size=(n, 1))) > 0, 1.0, -1.0).double()
    kernel = kernels.RBF(lengthscale=[1.0, 1.5], variance=3.0).bind(2)
    model = Model(kernel, resolve_mean("zero"), torch.tensor(0.1, dtype=torch.float64))
    table = TrainingTable(X, y, resolve_mean("zero"), 2**30)
    K = kernel.block(X, X)
    if method == "bound":
        objective = LatentObjective(table, likelihood, 101)
        best = objective._maximise(model)
        f = K @ best.alpha
        curvature, slope = best.fit.bend[:, 0], best.fit.slope
    else:
        objective = LaplaceObjective(table, likelihood, n - 1, None)
        posterior = objective.posterior(model, torch.Generator())
        f = posterior.mean(X)
        p = torch.sigmoid(f)
        curvature, slope = (p * (1 - p))[:, 0], (y + 1) / 2 - p
    found = objective.left_out_densities(model, torch.Generator())
    pull, places = curvature[:, None] * f + slope, torch.linspace(-60, 60, 40_001, dtype=torch.float64)
    expected, with_own = [], []
    for i in range(n):
        for kept, values in ((0.0, expected), (1.0, with_own)):
            weight = torch.ones(n, dtype=torch.float64)
            weight[i] = kept
            covariance = torch.linalg.inv(torch.linalg.inv(K) + torch.diag(weight * curvature))
            mean, variance = (covariance @ (weight[:, None] * pull))[i, 0], covariance[i, i]
            density = torch.exp(-0.5 * (places - mean) ** 2 / variance) / torch.sqrt(2 * math.pi * variance)
            values.append(float(torch.trapezoid(density * torch.sigmoid(y[i] * places), places).log()))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert np.abs(found.numpy() - with_own).max() > 0.01  # control: the row's own term is taken out
