"""Exact inference in float32, which takes float64 where its rounding would show beside the noise."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, actions, inference
from gigagp.errors import SolverWarning
from gigagp.inference.contract import exact_posterior
from gigagp.inference.contract.exact_posterior import ExactPosterior, Factorised
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels import RBF, Matern
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import reference_block, reference_matrix

N = 200
coarse_warning = "rounding of float32 would show"


def rows(layout: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 2))
    if layout == "clumps":
        X = X[rng.integers(0, 4, size=N)] + 1e-3 * rng.normal(size=(N, 2))
    if layout == "repeats":
        X = X[rng.integers(0, N // 2, size=N)]
    return X, np.sin(3 * X).sum(1) + 0.003 * rng.normal(size=N), rng.normal(size=(40, 2))


def errors(gp: GPRegressor, kernel, X, y, new, noise: float) -> tuple[float, float]:
    """Return the largest errors of means, in standard deviations of targets, and of the logarithms of these."""
    kernel = kernel.bind(2)
    X, y, new = (torch.from_numpy(one) for one in (X, y, new))
    H, cross = reference_matrix(kernel, X, noise), reference_block(kernel, new, X)
    solved = torch.linalg.solve(H, torch.cat([y[:, None], cross.T], 1))
    exact = cross @ solved[:, 0]
    std = (reference_block(kernel, new, new).diagonal() - (cross * solved[:, 1:].T).sum(1) + noise).sqrt()
    mean, found = (torch.from_numpy(one) for one in gp.predict(new.numpy(), return_std=True, include_noise=True))
    return float(((mean - exact) / std).abs().max()), float((found / std).log().abs().max())


def fitted(kernel, X, y, noise: float) -> GPRegressor:
    gp = GPRegressor(
        kernel, inference.Exact(), dtype="float32", noise_variance=noise, optimizer=None, mean="zero", standardize=False
    )
    return gp.fit(X, y)


@pytest.mark.parametrize("layout", ["spread", "clumps", "repeats"])
@pytest.mark.parametrize("kernel", [RBF(1.0, variance=30.0), Matern(2.5, 1.0, variance=1.0)], ids=["RBF", "Matern"])
@pytest.mark.parametrize("noise", [1e-5, 1e-3, 0.1])
def test_answers_are_those_of_dense_algebra_for_any_noise(kernel, layout, noise):
    X, y, new = rows(layout)
    coarse = noise < 8 * 1.2e-7 * N * float(kernel.variance)
    with pytest.warns(SolverWarning, match=coarse_warning) if coarse else nullcontext():
        gp = fitted(kernel, X, y, noise)
    assert gp.posterior_.factor.dtype == (torch.float64 if coarse else torch.float32)
    of_means, of_stds = errors(gp, kernel, X, y, new, noise)
    assert of_means < 0.03
    assert of_stds < 0.01
    copy = pickle.loads(pickle.dumps(gp))
    assert np.array_equal(copy.predict(new), gp.predict(new))


def test_a_factor_in_float32_is_far_off_there(monkeypatch):
    """The control."""
    monkeypatch.setattr(exact_posterior, "_is_coarse", lambda model, table: False)
    X, y, new = rows("spread")
    kernel = Matern(2.5, 2.0, variance=4.0)
    gp = fitted(kernel, X, y, 1e-5)
    assert gp.posterior_.factor.dtype == torch.float32
    assert errors(gp, kernel, X, y, new, 1e-5)[0] > 0.06


def test_a_mixture_of_both_precisions_is_float64():
    X, y, new = (torch.from_numpy(one) for one in rows("spread"))
    table = TrainingTable(X.float(), y[:, None].float(), ZeroMean(), 2**30)
    kernel = Matern(2.5, 1.0, variance=1.0).bind(2)
    parts = []
    for noise in (1e-6, 0.5):
        model = Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))
        parts.append(ExactPosterior(Factorised.of(model, table)))
    assert [one.dtype for one in parts] == [torch.float64, torch.float32]
    mixture = MixturePosterior(parts, torch.tensor([0.5, 0.5], dtype=torch.float64))
    mean, _ = mixture.mean_and_variance(new)
    expected = sum(0.5 * one.mean(new.to(one.dtype)).double() for one in parts)
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("settings", [{"likelihood": "student-t"}, {"inference": "auto"}], ids=str)
def test_whatever_else_is_asked_for_takes_float64_too(settings):
    X, y, new = rows("spread")
    settings = {"kernel": Matern(2.5, 1.0), "inference": inference.Exact(), "noise_variance": 1e-6} | settings
    with pytest.warns(SolverWarning, match=coarse_warning):
        gp = GPRegressor(dtype="float32", random_state=0, optimizer=None, **settings).fit(X[:60], y[:60])
    exact = GPRegressor(random_state=0, optimizer=None, **settings).fit(X[:60], y[:60])
    (found, stds), (means, expected) = (one.predict(new, return_std=True) for one in (gp, exact))
    assert gp.posterior_.dtype == torch.float64
    assert np.abs((found - means) / expected).max() < 0.05
    assert np.abs(np.log(stds / expected)).max() < 0.05


def test_relevance_vectors_say_that_they_take_float64():
    X, y, _ = rows("spread")
    settings = {"inference": inference.RelevanceVectorMachine(), "optimizer": None, "noise_variance": 0.1}
    with pytest.warns(SolverWarning, match="Weights of relevance vectors .* used float64"):
        gp = GPRegressor(RBF(1.0), dtype="float32", **settings).fit(X, y)
    assert gp.posterior_.dtype == torch.float64
    GPRegressor(RBF(1.0), **settings).fit(X, y)  # says nothing


METHODS = {
    "computation-aware": inference.ComputationAware(50),
    "computation-aware, dense": inference.ComputationAware(20, policy=actions.ConjugateGradients(), loss="projected"),
    "relevance vectors": inference.RelevanceVectorMachine(),
    "quadruply stochastic": inference.QuadruplyStochastic(),
    "sparse": inference.SparseVariational(),
}


@pytest.mark.few(5)
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:Squared errors")  # relevance vectors cannot follow the rows
@pytest.mark.parametrize("layout", ["spread", "clumps", "repeats"])
@pytest.mark.parametrize("method", METHODS)
def test_other_methods_in_float32_answer_as_in_float64(method, layout):
    """Differences of large numbers: a projected matrix with little noise, weights that cancel."""
    X, y, new = rows(layout)
    settings = {"noise_variance": 1e-5, "optimizer": None, "mean": "zero", "standardize": False}
    kernel, found = RBF(1.0, variance=30.0), []
    for dtype in ("float64", "float32"):
        gp = GPRegressor(kernel, METHODS[method], dtype=dtype, **settings).fit(X, y)
        found.append(gp.predict(new, return_std=True, include_noise=True))
    (mean, std), (of_float32, narrow) = found
    assert (abs(mean - of_float32) / std).max() < 0.03
    assert abs(np.log(narrow / std)).max() < 0.01
    copy = pickle.loads(pickle.dumps(gp))
    assert np.array_equal(copy.predict(new), gp.predict(new))
