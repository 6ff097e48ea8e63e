"""Correlated outputs of one estimator, against dense algebra on the covariance of all cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.model.means import LinearMean

UNITS = np.array([1.0, 40.0, 0.01])
OFFSETS = np.array([0.0, 5000.0, -3.0])


def table(n: int = 40, missing: float = 0.4, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return clumped, badly scaled inputs and outputs in units of their own, one of them against the others.

    A row repeats another, one row has no output, and the last output ends before the others.
    """
    draw = np.random.default_rng(0)
    X = np.stack([np.sort(draw.exponential(size=n)), 1e4 * draw.normal(size=n)], 1)
    X[1] = X[0]
    f = np.sin(2.5 * X[:, 0])
    Y = OFFSETS[:k] + UNITS[:k] * (f[:, None] * np.array([1, -1, 0.7])[:k] + 0.1 * draw.normal(size=(n, k)))
    Y[draw.random(Y.shape) < missing] = np.nan
    Y[2] = np.nan
    Y[-n // 4 :, k - 1] = np.nan
    return X, Y


def dense(
    gp: GPRegressor, X: np.ndarray, Y: np.ndarray, points: np.ndarray, kernel: Kernel | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean (m, k), covariance (m, k, m, k) and likelihood of ordinary cokriging in the outputs' own units.

    The model is that of the kernel of a fit, or of a given one and its noise.
    """
    k, seen = Y.shape[1], ~np.isnan(Y)
    parts = (gp.kernel_ if kernel is None else kernel).parts
    joint = [term for term in parts if not any(leaf.is_white for leaf in term.leaves())]
    scale = gp._stacking.scale

    def covariance(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        total = np.zeros((len(A), k, len(B), k))
        for term in joint:
            *of_inputs, outputs = term.parts
            R = np.ones((len(A), len(B)))
            for part in of_inputs:
                fresh = kernels.from_dict({**part.to_dict(), "n_inputs": None})
                R = R * fresh.block(*(torch.from_numpy(one) for one in (A, B))).numpy()
            C = outputs.covariance().numpy() * np.outer(scale, scale)
            total += R[:, None, :, None] * C[None, :, None, :]
        return total

    noise = gp.noise_variance_
    if kernel is not None:
        noise = parts[-1].parts[1].value("variance").numpy() * scale**2
    own = np.broadcast_to(noise, Y.shape)[seen]
    H = covariance(X, X)[seen][:, seen] + np.diag(own)
    basis = np.broadcast_to(np.eye(k), (*Y.shape, k))[seen]
    cross = covariance(points, X)[:, :, seen].reshape(-1, seen.sum())
    solved = np.linalg.solve(H, np.concatenate([basis, Y[seen][:, None], cross.T], 1))
    P = basis.T @ solved[:, :k]
    coefficients = np.linalg.solve(P, basis.T @ solved[:, k])
    residual = Y[seen] - basis @ coefficients
    rest = np.tile(np.eye(k), (len(points), 1)) - cross @ solved[:, :k]
    mean = np.tile(np.eye(k), (len(points), 1)) @ coefficients + cross @ np.linalg.solve(H, residual)
    prior = covariance(points, points).reshape(len(mean), -1)
    posterior = prior - cross @ solved[:, k + 1 :] + rest @ np.linalg.solve(P, rest.T)
    fit = residual @ np.linalg.solve(H, residual)
    value = -0.5 * (fit + np.linalg.slogdet(H)[1] + seen.sum() * np.log(2 * np.pi))
    return mean.reshape(-1, k), posterior.reshape(len(points), k, len(points), k), value


@pytest.fixture(scope="module")
def fitted() -> tuple[GPRegressor, np.ndarray, np.ndarray]:
    X, Y = table()
    return GPRegressor(kernels.Matern(1.5, fixed=["variance"]), outputs="correlated").fit(X, Y), X, Y


@pytest.fixture(scope="module")
def chosen() -> tuple[GPRegressor, np.ndarray, np.ndarray]:
    """Return a fit whose kernel is left to the rows, at the learned hyperparameters, for which one kernel is poor."""
    draw = np.random.default_rng(0)
    X = draw.random((60, 2)) * np.array([1.0, 1e4])
    slow, fast = np.sin(3 * X[:, 0]), np.sin(1e-3 * X[:, 1] + 2 * X[:, 0])
    Y = OFFSETS + UNITS * (np.stack([slow, slow - fast, fast], 1) + 0.05 * draw.normal(size=(60, 3)))
    Y[draw.random(Y.shape) < 0.2] = np.nan
    return GPRegressor(outputs="correlated", hyperparameters="learned").fit(X, Y), X, Y


def test_answers_are_those_of_cokriging(fitted):
    gp, X, Y = fitted
    points = np.concatenate([X[:3], X[5:8] + np.array([0.05, 300.0]), [[9.0, 0.0]]])
    mean, covariance, value = dense(gp, X, Y, points)
    found, std = gp.predict(points, return_std=True)
    np.testing.assert_allclose((found - mean) / UNITS, 0, atol=1e-7)
    whole = gp.predict(points, return_cov=True)[1]
    units = UNITS[None, :, None, None] * UNITS
    np.testing.assert_allclose(whole / units, covariance / units, atol=1e-7)
    np.testing.assert_allclose(std, np.sqrt(np.einsum("akak->ak", covariance)), rtol=1e-6)
    assert np.abs(whole[3, 0, 3, 1] / (std[3, 0] * std[3, 1])) > 0.1  # the control: outputs do correlate
    noisy = gp.predict(points, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(noisy**2 - std**2, np.broadcast_to(gp.noise_variance_, std.shape), rtol=1e-5)
    y = mean + std
    normal = -0.5 * ((y - mean) / noisy) ** 2 - np.log(noisy) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(gp.predictive_log_density(points, y), normal, rtol=1e-6)
    quantiles = gp.predict_quantile(points, [0.5, 0.8413447460685429], include_noise=False)
    np.testing.assert_allclose((quantiles[:, :, 1] - quantiles[:, :, 0]) / std, 1, rtol=1e-6)
    np.testing.assert_allclose(gp.log_marginal_likelihood().value, value, rtol=1e-7)


def test_answers_of_the_default_are_those_of_cokriging_with_the_chosen_kernels(chosen, tmp_path):
    """The distribution is the mixture of those of the kernels, with the weights that `describe` shows."""
    gp, X, Y = chosen
    weights = np.array(sorted((one.weight for one in gp.kernel_choice_.tried if one.weight), reverse=True))
    assert len(weights) > 1
    assert gp.kernel_choice_.tried[0].weight < 0.5, "one kernel is poor here"
    units = gp.scaling_.units()
    own = [one.model.in_own_units(units).kernel for one in gp.posterior_.components]
    points = np.concatenate([X[:3], X[5:8] + np.array([0.05, 300.0]), [[1.5, 0.0]]])
    means, covariances = zip(*(dense(gp, X, Y, points, kernel)[:2] for kernel in own), strict=True)
    mean = np.einsum("c,cmk->mk", weights, means)
    apart = np.array(means) - mean
    covariance = np.einsum("c,cakbl->akbl", weights, covariances)
    covariance += np.einsum("c,cak,cbl->akbl", weights, apart, apart)
    found, whole = gp.predict(points, return_cov=True)
    products = UNITS[None, :, None, None] * UNITS
    np.testing.assert_allclose((found - mean) / UNITS, 0, atol=1e-6)
    np.testing.assert_allclose(whole / products, covariance / products, atol=1e-6)
    std = gp.predict(points, return_std=True)[1]
    np.testing.assert_allclose(std, np.sqrt(np.einsum("akak->ak", covariance)), rtol=1e-5)
    assert np.abs((means[0] - mean) / UNITS).max() > 1e-3  # the control: the kernels differ
    gp.save(tmp_path / "model")
    again = gigagp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(points, return_cov=True)[1], whole)
    draws = gp.sample_y(points[3:5], 4000, 1)
    error = np.abs(draws.mean(2) - found[3:5]) / (std[3:5] / 4000**0.5)
    assert error.max() < 5
    left, seen = gp.leave_one_out(), ~np.isnan(Y)
    row, output = np.argwhere(seen)[7]
    assert np.isnan(left.mean[~seen]).all()
    assert abs(left.mean[row, output] - Y[row, output]) < 6 * left.std[row, output]
    grown = gp.condition_on(points[3:4], mean[3:4] + std[3:4])
    assert (grown.predict(points[3:4], return_std=True)[1] < std[3:4]).all()


def test_the_default_is_better_than_one_kernel_where_outputs_share_parts_of_two_scales(chosen):
    gp, X, Y = chosen
    draw = np.random.default_rng(1)
    points = draw.random((200, 2)) * np.array([1.0, 1e4])
    slow, fast = np.sin(3 * points[:, 0]), np.sin(1e-3 * points[:, 1] + 2 * points[:, 0])
    truth = OFFSETS + UNITS * np.stack([slow, slow - fast, fast], 1)
    plain = GPRegressor(kernels.Matern(1.5, fixed=["variance"]), outputs="correlated").fit(X, Y)
    errors = [np.sqrt(np.mean(((one.predict(points) - truth) / UNITS) ** 2)) for one in (gp, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_the_default_of_two_outputs_of_one_input_with_a_gap():
    """Of which points between the rows are of no output."""
    t = np.linspace(0, 10, 80)[:, None]
    Y = np.hstack([np.sin(2 * t), -0.7 * np.sin(2 * t)]) + 0.1 * np.random.default_rng(0).normal(size=(80, 2))
    Y[t[:, 0] > 6, 0] = np.nan
    Y[(t[:, 0] > 3) & (t[:, 0] < 4)] = np.nan
    gp = GPRegressor(outputs="correlated").fit(t, Y)
    assert len(gp.kernel_choice_.tried) > 1
    assert np.sqrt(np.mean((gp.predict(t)[-30:, 0] - np.sin(2 * t[-30:, 0])) ** 2)) < 0.2


def test_samples_have_the_covariance_across_outputs(fitted):
    gp, X, _ = fitted
    points = X[[3, 8]] + np.array([0.02, 0.0])
    mean, covariance = gp.predict(points, return_cov=True)
    units = np.tile(UNITS, 2)
    of_model = covariance.reshape(6, 6) / units / units[:, None]
    for draws in (gp.sample_y(points, 4000, 1), gp.sample_functions(2000, 1)(points)):
        assert draws.shape[:2] == (2, 3)
        flat = ((draws - mean[:, :, None]) / UNITS[None, :, None]).reshape(6, -1)
        error = 6 * np.sqrt(2 / flat.shape[1]) * np.sqrt(np.outer(np.diag(of_model), np.diag(of_model)))
        assert (np.abs(np.cov(flat) - of_model) < error).all()


def test_left_out_cells_and_further_rows(fitted):
    gp, X, Y = fitted
    left = gp.leave_one_out()
    seen = ~np.isnan(Y)
    assert (np.isnan(left.mean) == ~seen).all()
    row, output = np.argwhere(seen)[7]
    without = Y.copy()
    without[row, output] = np.nan
    mean, covariance, _ = dense(gp, X, without, X[[row]])
    np.testing.assert_allclose((left.mean[row, output] - mean[0, output]) / UNITS[output], 0, atol=1e-7)
    std = np.sqrt(covariance[0, output, 0, output] + gp.noise_variance_[output])
    np.testing.assert_allclose(left.std[row, output], std, rtol=1e-6)
    new, further = X[:2] + np.array([0.3, 0.0]), np.array([[0.4, np.nan, -2.99], [np.nan, 4980.0, np.nan]])
    grown = gp.condition_on(new, further)
    expected = dense(gp, np.concatenate([X, new]), np.concatenate([Y, further]), X[:4])[0]
    np.testing.assert_allclose((grown.predict(X[:4]) - expected) / UNITS, 0, atol=1e-7)
    assert grown.leave_one_out().mean.shape == (len(X) + 2, 3)
    with pytest.raises(InvalidInputError, match="refit"):
        gp.condition_on(new, further, refit=True)


@pytest.mark.parametrize("known", [False, True])
def test_a_saved_model_is_the_same(fitted, known, tmp_path):
    gp, X, Y = fitted
    if known:
        kernel = kernels.Matern(2.5, [1.0, 1e4]) + kernels.RBF(0.3, 0.1, columns=[0])
        noise = np.broadcast_to(0.01 * UNITS**2, Y.shape) * np.linspace(0.5, 2, len(X))[:, None]
        gp = GPRegressor(kernel, noise_variance=noise, optimizer=None, outputs="correlated").fit(X, Y)
        mean = dense(gp, X, Y, X[:4])[0]
        np.testing.assert_allclose((gp.predict(X[:4]) - mean) / UNITS, 0, atol=1e-7)
    gp.save(tmp_path / "model")
    again = gigagp.load(tmp_path / "model")
    for one, other in zip(gp.predict(X[:5], return_cov=True), again.predict(X[:5], return_cov=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(gp.leave_one_out().std, again.leave_one_out().std)
    np.testing.assert_allclose(again.noise_variance_, gp.noise_variance_, rtol=1e-12)
    assert again.outputs_ == "correlated"
    # the arguments came back too
    one, other = (clone(each).set_params(optimizer=None).fit(X, Y).predict(X[:5]) for each in (gp, again))
    np.testing.assert_allclose((one - other) / UNITS, 0, atol=1e-9)
    assert again.n_features_in_ == 2
    lines = gp.describe().splitlines()
    assert lines[0].endswith("one for each observed cell, inputs 2")
    assert lines[1].startswith("outputs       3, correlated, observed ")
    assert again.describe().splitlines()[0] == gp.describe().splitlines()[0]


@pytest.mark.parametrize("method", [inference.Iterative(), inference.Vecchia()])
def test_other_inferences(fitted, method):
    """Approximations at the learned hyperparameters come near the exact answer."""
    exact, X, Y = fitted
    gp = GPRegressor(inference=method, outputs="correlated").fit(X, Y)
    mean, std = exact.predict(X, return_std=True)
    found, error = gp.predict(X, return_std=True)
    assert np.sqrt(np.mean(((found - mean) / std) ** 2)) < 0.5
    assert 0.7 < np.median(error / std) < 1.5


@pytest.mark.slow
def test_what_is_learned_of_one_output_helps_another():
    """The last quarter of the third output is told by the others; on its own it is not known there."""
    X, Y = table(80)
    X[:, 1] = 0.0
    truth = OFFSETS[2] + UNITS[2] * 0.7 * np.sin(2.5 * X[-20:, 0])
    together = GPRegressor(outputs="correlated").fit(X, Y).predict(X[-20:])[:, 2]
    seen = ~np.isnan(Y[:, 2])
    alone = GPRegressor().fit(X[seen], Y[seen, 2]).predict(X[-20:])
    errors = [np.sqrt(np.mean((one - truth) ** 2)) / UNITS[2] for one in (together, alone)]
    assert errors[0] < 0.2 < 0.4 < errors[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"likelihood": "poisson"}, "likelihood"),
        ({"kernel": "auto"}, "kernel"),
        ({"kernel": kernels.RBF() * kernels.Outputs(3, columns=[1])}, "a kernel of the inputs alone"),
        ({"kernel": kernels.RBF(columns=[4])}, "columns of RBF must be below 2"),
        ({"mean": lambda X: X[:, 0]}, "mean"),
        ({"target_transform": "log"}, "target_transform"),
        ({"encode": "auto"}, "encode"),
        ({"hyperparameter_units": "standardized"}, "hyperparameter_units"),
        ({"noise_variance": 0.1}, "noise_variance .* one for each output"),
    ],
)
def test_refused_arguments(settings, words):
    X, Y = table()
    with pytest.raises(InvalidInputError, match=words):
        GPRegressor(outputs="correlated", **settings).fit(X, Y)


def test_refused_targets(fitted):
    gp, X, Y = fitted
    with pytest.raises(InvalidInputError, match="NaN in row 2"):
        GPRegressor(outputs="correlated").fit(X, Y[:, 0])  # one output
    with pytest.raises(InvalidInputError, match=r"NaN in column 2, row 0.*outputs=.correlated."):
        GPRegressor(outputs="independent").fit(X, Y)
    few = Y.copy()
    few[1:, 1] = np.nan
    with pytest.raises(InvalidInputError, match="two values or more of each output; output 1 has"):
        GPRegressor(outputs="correlated").fit(X, few)
    with pytest.raises(InvalidInputError, match="row 3 is infinite"):
        GPRegressor(outputs="correlated").fit(X, np.where(np.arange(len(X))[:, None] == 3, np.inf, Y))
    with pytest.raises(InvalidInputError, match="posterior of GPRegressor needs outputs"):
        gp.posterior(X[:2])
    with pytest.raises(InvalidInputError, match="3 targets, as in the fit"):
        gp.condition_on(X[:2], Y[:2, :2])


@pytest.mark.parametrize("mean", ["zero", "linear", LinearMean(columns=(1,))], ids=str)
def test_a_mean_is_the_same_in_a_file(mean, tmp_path):
    draw = np.random.default_rng(0)
    X = draw.uniform(size=(30, 2))
    Y = np.stack([3 * X[:, 1], 1 + 2 * X[:, 1]], 1) + 0.01 * draw.normal(size=(30, 2))
    settings = {"mean": mean, "optimizer": None, "noise_variance": np.full((30, 2), 1e-4), "outputs": "correlated"}
    gp = GPRegressor(kernels.Matern(lengthscale=1.0, variance=0.01), **settings).fit(X, Y)
    gp.save(tmp_path / "m.gp")
    again = gigagp.load(tmp_path / "m.gp")
    far = np.array([[0.5, 9.0]])
    np.testing.assert_array_equal(again.predict(far), gp.predict(far))
    shown = again.mean if isinstance(mean, str) else again.mean.columns
    assert shown == (mean if isinstance(mean, str) else mean.columns)
    if mean != "zero":  # the outputs share slopes, in their own units, and far from all rows the lines go on
        np.testing.assert_allclose(gp.predict(far), [[27.0, 19.0]], rtol=0.02)


def test_a_mean_of_columns_that_are_not_there_is_refused():
    gp = GPRegressor(outputs="correlated", mean=LinearMean(columns=(2,)))
    with pytest.raises(InvalidInputError, match="columns of LinearMean must be below 2"):
        gp.fit(np.eye(4)[:, :2], np.eye(4)[:, :2])
