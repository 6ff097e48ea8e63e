"""Smooth kernels, whose rows determine each other to the last digit, by neighbours and Laplace's approximation."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import gigagp
from contract import dense
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import FitWarning, NotPositiveDefiniteError
from gigagp.inference.vecchia import laplace, latent
from gigagp.neighbours.predictor import LocalPredictor

L = {1: np.array([0.5]), 2: np.array([1.0, 1.4])}
#: Functions from the number of inputs to a kernel and its formula.
KERNELS = {
    "matern12": lambda d: (kernels.Matern(0.5, L[d], 0.8), dense.matern(0.5, L[d], 0.8)),
    "matern32": lambda d: (kernels.Matern(1.5, L[d], 0.8), dense.matern(1.5, L[d], 0.8)),
    "matern52": lambda d: (kernels.Matern(2.5, L[d], 0.8), dense.matern(2.5, L[d], 0.8)),
    "rbf": lambda d: (kernels.RBF(L[d]), dense.rbf(L[d])),
    "wide rbf": lambda d: (kernels.RBF(4 * L[d], 2.0), dense.rbf(4 * L[d], 2.0)),
    "rational quadratic": lambda d: (
        kernels.RationalQuadratic(L[d], 1.1, 0.8),
        dense.rational_quadratic(L[d], 1.1, 0.8),
    ),
    "periodic": lambda d: (kernels.Periodic(1.0, 0.9, 2.0), dense.periodic(1.0, 0.9, 2.0)),
    "sum": lambda d: (
        kernels.RBF(L[d], 0.7) + kernels.RationalQuadratic(2 * L[d], 0.5, 2.0) + kernels.Linear(0.2),
        dense.added(dense.rbf(L[d], 0.7), dense.rational_quadratic(2 * L[d], 0.5, 2.0), dense.linear(0.2)),
    ),
    "product": lambda d: (
        kernels.RBF(2 * L[d]) * kernels.Periodic(1.0, 0.9, 2.0),
        dense.multiplied(dense.rbf(2 * L[d]), dense.periodic(1.0, 0.9, 2.0)),
    ),
}
ROWS = {
    "even": lambda draw, n, d: draw.uniform(0, 3, (n, d)),
    "clumps": lambda draw, n, d: draw.uniform(0, 3, (4, d))[draw.integers(0, 4, n)] + 0.02 * draw.normal(size=(n, d)),
    "gap": lambda draw, n, d: draw.uniform(0, 1.2, (n, d)) + 1.8 * (np.arange(n) % 2)[:, None],
    "repeated": lambda draw, n, d: draw.uniform(0, 3, (n - n // 2, d))[np.arange(n) // 2],
}
LIKELIHOODS = ("poisson", "logistic", "laplace", "student-t")


def table(rows, n, d, likelihood, seed=0):
    """Return rows, targets, and points between and beyond the rows."""
    draw = np.random.default_rng(seed + n)
    X = ROWS[rows](draw, n, d)
    f = np.sin(2 * X[:, :1])
    scale = np.sqrt(0.05)
    y = {
        "poisson": draw.poisson(np.exp(1 + f)).astype(float),
        "logistic": np.where(draw.uniform(size=f.shape) < 1 / (1 + np.exp(-3 * f)), 1.0, -1.0),
        "laplace": f + draw.laplace(scale=scale, size=f.shape),
        "student-t": f + scale * draw.standard_t(4, size=f.shape),
    }[likelihood]
    new = [draw.uniform(low, high, (size, d)) for low, high, size in ((0, 3, 10), (-0.5, 3.5, 10), (-3, 6, 5))]
    return X, y, np.concatenate([X[:1], *new])


def fitted(kernel, X, y, likelihood, neighbours, points=None):
    noise = 0.1 if likelihood in ("laplace", "student-t") else None
    gp = GPRegressor(
        kernel,
        inference.Vecchia(neighbours, points),
        likelihood=likelihood,
        noise_variance=noise,
        optimizer=None,
        mean="zero",
        standardize=False,
    )
    return gp.fit(X, y[:, 0])


def exactly(covariance, X, y, new, likelihood):
    return dense.laplace_approximation(covariance, X, y, new, np.full(len(X), 0.1), likelihood)


def latent_at(gp, new):
    mean, variance = gp.posterior_.mean_and_variance(torch.from_numpy(new))
    return mean[:, 0].numpy(), variance.sqrt().numpy()


#: Every kernel with every likelihood, and with all rows, numbers of rows and numbers of inputs in turn.
CASES = [
    (name, likelihood, list(ROWS)[(j + k) % 4], (5, 40, 100)[(j + 2 * k) % 3], 1 + (j + k) % 2)
    for k, name in enumerate(KERNELS)
    for j, likelihood in enumerate(LIKELIHOODS)
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "likelihood", "rows", "n", "d"), CASES)
def test_all_rows_as_neighbours_are_dense_algebra(name, likelihood, rows, n, d):
    kernel, covariance = KERNELS[name](d)
    X, y, new = table(rows, n, d, likelihood)
    exact = exactly(covariance, X, y, new, likelihood)
    gp = fitted(kernel, X, y, likelihood, n - 1)
    mean, std = latent_at(gp, new)
    spread = np.sqrt(exact.variance)
    assert np.abs(mean - exact.mean[:, 0]).max() < 1e-6 * (1 + np.abs(exact.mean).max())
    np.testing.assert_allclose(std, spread, rtol=1e-6)
    assert gp.log_marginal_likelihood().value == pytest.approx(exact.evidence, rel=1e-7, abs=1e-6)
    _, covariances = gp.predict_latent(new, return_cov=True)
    np.testing.assert_allclose(covariances, exact.covariance, atol=1e-6 * spread.max() ** 2)


def test_the_nugget_is_no_part_of_the_answer_where_all_rows_are_neighbours(monkeypatch):
    """It is one only of what learns; the control has few neighbours."""
    (kernel, _), (X, y, new) = KERNELS["rbf"](1), table("even", 40, 1, "poisson")
    answers = []
    for shares in ((1e-10,), (1e-4,)):
        monkeypatch.setattr(laplace, "NUGGETS", shares)
        answers.append([latent_at(fitted(kernel, X, y, "poisson", m, 40), new)[1] for m in (39, 15)])
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    assert np.abs(answers[0][1] / answers[1][1] - 1).max() > 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("dense_rows", [10**6, 0], ids=["dense", "draws"])
@pytest.mark.parametrize(
    ("name", "rows"), [("rbf", "even"), ("wide rbf", "gap"), ("rational quadratic", "even"), ("sum", "gap")]
)
def test_few_neighbours_stay_near_dense_algebra_beyond_the_rows_too(name, rows, dense_rows, monkeypatch):
    """Within half a standard deviation, and standard deviations from draws within four of their standard errors."""
    monkeypatch.setattr(latent, "DENSE_ROWS", dense_rows)
    kernel, covariance = KERNELS[name](2)
    X, y, new = table(rows, 100, 2, "poisson")
    exact = exactly(covariance, X, y, new, "poisson")
    mean, std = latent_at(fitted(kernel, X, y, "poisson", 30, 60), new)
    spread, error = np.sqrt(exact.variance), 4 / 256**0.5 if dense_rows == 0 else 0.0
    assert np.abs((mean - exact.mean[:, 0]) / spread).max() < 0.6
    assert 0.97 - error < (std / spread).min()
    assert (std / spread).max() < 1.35 + error


def test_without_a_nugget_the_same_comparison_fails(monkeypatch):
    """The control: predictions at rows look sound, and beyond them they are off by orders of magnitude."""
    monkeypatch.setattr(laplace, "NUGGETS", (0.0,))
    (kernel, covariance), (X, y, new) = KERNELS["rbf"](1), table("even", 40, 1, "poisson")
    exact = exactly(covariance, X, y, new, "poisson")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mean, std = latent_at(fitted(kernel, X, y, "poisson", 15), new)
        except NotPositiveDefiniteError:  # rounding decides whether there is a factor; an error is a control as well
            return
    assert any("times the prior variance" in str(one.message) for one in caught)
    assert np.abs(mean - exact.mean[:, 0]).max() > 10
    assert (std / np.sqrt(exact.variance)).max() > 10


@pytest.mark.parametrize("dense_rows", [10**6, 0], ids=["dense", "draws"])
def test_predictions_that_contradict_the_values_at_the_rows_are_a_warning(dense_rows, monkeypatch):
    monkeypatch.setattr(latent, "DENSE_ROWS", dense_rows)
    (kernel, _), (X, y, _) = KERNELS["rbf"](2), table("even", 60, 2, "poisson")
    fitted(kernel, X, y, "poisson", 15)
    weights = LocalPredictor.weights
    monkeypatch.setattr(LocalPredictor, "weights", lambda self, X: weights(self, X + 0.05))
    with pytest.warns(FitWarning, match="not sound: at the rows"):
        fitted(kernel, X, y, "poisson", 15)


@pytest.mark.parametrize(("name", "neighbours", "sound"), [("rbf", 2, False), ("rbf", 15, True), ("matern12", 2, True)])
def test_too_few_neighbours_of_a_smooth_kernel_are_a_warning(name, neighbours, sound):
    """The nearest two rows leave so much open that weights of sixty multiply errors by thousands."""
    (kernel, _), (X, y, _) = KERNELS[name](2), table("even", 150, 2, "poisson")
    with nullcontext() if sound else pytest.warns(FitWarning, match="times the prior variance"):
        fitted(kernel, X, y, "poisson", neighbours)


def test_pseudo_observations_and_nuggets_are_saved(tmp_path):
    (kernel, _), (X, y, new) = KERNELS["rbf"](2), table("even", 60, 2, "poisson")
    for neighbours in (59, 15):
        gp = fitted(kernel, X, y, "poisson", neighbours)
        gp.save(tmp_path / "model.gp")
        again = gigagp.load(tmp_path / "model.gp")
        for one, other in zip(latent_at(gp, new), latent_at(again, new), strict=True):
            np.testing.assert_array_equal(one, other)
        draws = [one.sample_functions(500, random_state=1, latent=True)(new) for one in (gp, again)]
        np.testing.assert_array_equal(*draws)
        mean, std = latent_at(gp, new)
        assert np.abs((draws[0].mean(1) - mean) / std).max() < 5.5 / 500**0.5 + 0.05
        functions = torch.cat(
            [
                gp.posterior_.sample_functions(250, torch.Generator().manual_seed(k))(torch.from_numpy(new))[:, 0]
                for k in (0, 1)
            ],
            1,
        )
        assert np.abs(functions.std(1).numpy() / std - 1).max() < 5.5 / 1000**0.5 + 0.06
