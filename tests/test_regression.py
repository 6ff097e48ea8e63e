"""The estimator: agreement with scikit-learn and with dense algebra, several targets, means, noise, and units."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import gigagp
from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError, SolverWarning
from gigagp.estimators.answers.answering import predictor_of
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.products import NativeTiles
from helpers import RecordingSolver, autograd_gradient, dense_posterior, draw_targets, points, reference_matrix

NOISE_VARIANCE = 0.02
LENGTHS = [0.8, 1.7, 1.2]

#: our kernel, scikit-learn's with the same values, and our names in the order of scikit-learn's ``theta``
PAIRS = {
    "rbf": (
        kernels.RBF(LENGTHS, 1.4),
        1.4 * sk.RBF(LENGTHS),
        ["variance", "lengthscale"],
    ),
    "matern12": (kernels.Matern(0.5, LENGTHS, 0.7), 0.7 * sk.Matern(LENGTHS, nu=0.5), ["variance", "lengthscale"]),
    "matern32": (kernels.Matern(1.5, LENGTHS, 1.4), 1.4 * sk.Matern(LENGTHS, nu=1.5), ["variance", "lengthscale"]),
    "matern52": (kernels.Matern(2.5, LENGTHS, 1.4), 1.4 * sk.Matern(LENGTHS, nu=2.5), ["variance", "lengthscale"]),
    "rational quadratic": (
        kernels.RationalQuadratic(1.3, 0.9, 0.6, ard=False),
        0.9 * sk.RationalQuadratic(1.3, alpha=0.6),
        ["variance", "alpha", "lengthscale"],
    ),
    "sum": (
        kernels.RBF(LENGTHS, 0.6) + kernels.Matern(1.5, 2.0, 0.8, ard=False) + kernels.White(0.03),
        0.6 * sk.RBF(LENGTHS) + 0.8 * sk.Matern(2.0, nu=1.5) + sk.WhiteKernel(0.03),
        ["0.variance", "0.lengthscale", "1.variance", "1.lengthscale", "2.variance"],
    ),
    "product": (
        kernels.RBF(LENGTHS, 1.3) * kernels.Matern(2.5, 2.5, 1.0, ard=False, fixed=["variance"]),
        1.3 * sk.RBF(LENGTHS) * sk.Matern(2.5, nu=2.5),
        ["0.variance", "0.lengthscale", "1.lengthscale"],
    ),
    "sum of products": (
        kernels.RBF(1.5, 0.9, ard=False) * kernels.Linear(0.5, ard=False) + kernels.Constant(0.4),
        0.9 * sk.RBF(1.5) * (0.5 * sk.DotProduct(0.0, "fixed")) + sk.ConstantKernel(0.4),
        ["0.0.variance", "0.0.lengthscale", "0.1.variance", "1.variance"],
    ),
}
KEPT = {"standardize": False, "mean": "zero", "optimizer": None, "noise_variance": NOISE_VARIANCE}
TIGHT = inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-11, max_epochs=400))


@pytest.fixture(scope="module")
def table():
    X, X_new = points(220, 3, seed=1).numpy(), points(40, 3, seed=2).numpy()
    y = draw_targets(kernels.Matern(1.5, LENGTHS), torch.from_numpy(X), NOISE_VARIANCE)[:, 0].numpy()
    return X, y, X_new


def sklearn_regressor(kernel, X, y):
    return GaussianProcessRegressor(kernel, alpha=NOISE_VARIANCE, optimizer=None).fit(X, y)


@pytest.fixture(scope="module", params=PAIRS)
def pair(request, table):
    X, y, _ = table
    kernel, theirs, order = PAIRS[request.param]
    return kernel, sklearn_regressor(theirs, X, y), order


# Agreement with scikit-learn ------------------------------------------------------------------------------------------


def test_exact_inference_agrees_with_scikit_learn(pair, table):
    X, y, X_new = table
    kernel, theirs, _ = pair
    gp = GPRegressor(kernel, inference.Exact(), **KEPT).fit(X, y)
    mean, std = gp.predict(X_new, return_std=True)
    _, covariance = gp.predict(X_new, return_cov=True)
    their_mean, their_covariance = theirs.predict(X_new, return_cov=True)
    # scikit-learn's covariance includes the white part; ours does with include_noise, together with the other noise
    white = gp.kernel_.white(torch.from_numpy(X_new)).numpy()
    np.testing.assert_allclose(mean, their_mean, atol=1e-6, rtol=0)
    np.testing.assert_allclose(covariance + np.diag(white), their_covariance, atol=1e-6, rtol=0)
    np.testing.assert_allclose(std**2 + white, np.diag(their_covariance), atol=1e-6, rtol=0)
    _, noisy = gp.predict(X_new, return_std=True, include_noise=True)
    np.testing.assert_allclose(noisy**2, np.diag(their_covariance) + NOISE_VARIANCE, atol=1e-6, rtol=0)
    likelihood = gp.log_marginal_likelihood()
    assert likelihood.value == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-6)
    assert likelihood.standard_error == 0


def test_tight_iterative_inference_agrees_with_scikit_learn(pair, table):
    X, y, X_new = table
    kernel, theirs, _ = pair
    gp = GPRegressor(kernel, TIGHT, **KEPT).fit(X, y)
    mean, std = gp.predict(X_new, return_std=True, variance="solve")
    _, covariance = gp.predict(X_new, return_cov=True)
    their_mean, their_covariance = theirs.predict(X_new, return_cov=True)
    white = gp.kernel_.white(torch.from_numpy(X_new)).numpy()
    np.testing.assert_allclose(mean, their_mean, atol=1e-6, rtol=0)
    np.testing.assert_allclose(std**2 + white, np.diag(their_covariance), atol=1e-6, rtol=0)
    np.testing.assert_allclose(covariance + np.diag(white), their_covariance, atol=1e-6, rtol=0)
    value, error = gp.log_marginal_likelihood()
    assert abs(value - theirs.log_marginal_likelihood_value_) <= 4 * error + 1e-6
    assert error < 3


def test_the_likelihood_test_can_tell_another_noise(table):
    """The control: with twice the noise, the estimate is far outside four standard errors."""
    X, y, _ = table
    kernel, theirs, _ = PAIRS["matern32"]
    gp = GPRegressor(kernel, TIGHT, **{**KEPT, "noise_variance": 2 * NOISE_VARIANCE}).fit(X, y)
    value, error = gp.log_marginal_likelihood()
    assert abs(value - sklearn_regressor(theirs, X, y).log_marginal_likelihood_value_) > 4 * error


def natural_gradient(kernel, X, y, noise_variance=NOISE_VARIANCE):
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**30)
    model = Model(kernel.bind(X.shape[1]), ZeroMean(), torch.tensor(noise_variance, dtype=torch.float64))
    return model, ExactObjective(table).evaluate(model).gradient


def test_the_gradient_agrees_with_scikit_learn(pair, table):
    X, y, _ = table
    kernel, theirs, order = pair
    model, gradient = natural_gradient(kernel, X, y)
    values = model.parameters()
    ours = torch.cat([(gradient[name] * values[name]).reshape(-1) for name in order])  # theirs is by the logarithm
    _, expected = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    if len(expected) > len(ours):  # scikit-learn has a free amplitude that ours fixes at one
        expected = expected[: len(ours)]
    np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_the_gradient_agrees_with_autograd(name, table):
    X, y, _ = (torch.from_numpy(part) for part in table)
    kernel = PAIRS[name][0].bind(3)
    model, gradient = natural_gradient(kernel, X.numpy(), y.numpy())

    def log_likelihood(kernel, noise=NOISE_VARIANCE):
        H = reference_matrix(kernel, X, noise)
        return -0.5 * (y @ torch.linalg.solve(H, y) + torch.linalg.slogdet(H).logabsdet)

    expected = autograd_gradient(kernel, log_likelihood)
    for parameter, value in expected.items():
        torch.testing.assert_close(gradient[parameter], value, rtol=1e-8, atol=1e-7)
    noise = model.noise_variance.clone().requires_grad_()
    (by_noise,) = torch.autograd.grad(log_likelihood(kernel, noise), noise)
    torch.testing.assert_close(gradient[NOISE], by_noise, rtol=1e-8, atol=1e-7)


# Several targets, means and noise -------------------------------------------------------------------------------------

ITERATIVE = inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-10), n_samples=8)
BOTH = pytest.mark.parametrize("method", [inference.Exact(), ITERATIVE], ids=["exact", "iterative"])
BASES = {
    "zero": lambda X: X.new_zeros(len(X), 0),
    "constant": lambda X: X.new_ones(len(X), 1),
    "linear": lambda X: torch.cat([X.new_ones(len(X), 1), X], 1),
}


def test_several_targets_share_one_solve():
    X, X_new = points(120, 2).numpy(), points(20, 2, seed=5).numpy()
    Y = draw_targets(kernels.Matern(1.5, 1.0), torch.from_numpy(X), 0.05, columns=3).numpy() * [1.0, 10.0, 0.1] + 4.0
    solver = RecordingSolver(solvers.ConjugateGradients(tolerance=1e-10))
    shared = {"kernel": kernels.Matern(1.5, 1.0), "noise_variance": 0.05, "optimizer": None}
    shared["hyperparameter_units"] = "standardized"  # each target's variance is its own unit
    gp = GPRegressor(inference=inference.Iterative(solver=solver, n_samples=8), outputs="shared", **shared).fit(X, Y)
    assert [call.right_hand_sides.shape for call in solver.calls] == [(120, 3 + 1 + 8)]  # targets, constant, samples
    assert solver.calls[0].n_targets == 4
    mean, std = gp.predict(X_new, return_std=True, variance="solve")
    assert mean.shape == std.shape == (20, 3)
    _, covariance = gp.predict(X_new, return_cov=True)
    assert covariance.shape == (20, 20, 3)
    for column in range(3):
        alone = GPRegressor(inference=inference.Exact(), **shared).fit(X, Y[:, column])
        expected_mean, expected_std = alone.predict(X_new, return_std=True)
        scale = Y[:, column].std()
        np.testing.assert_allclose(mean[:, column], expected_mean, atol=1e-7 * scale)
        np.testing.assert_allclose(std[:, column], expected_std, atol=1e-7 * scale)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance[:, :, column])), expected_std, atol=1e-7 * scale)


def test_the_likelihood_of_several_targets_is_the_sum():
    X = points(90, 2).numpy()
    Y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1, columns=2).numpy()
    shared = {"kernel": kernels.RBF(1.0), "noise_variance": 0.1, "optimizer": None, "standardize": False}
    alone = [GPRegressor(**shared).fit(X, Y[:, k]).log_marginal_likelihood().value for k in range(2)]
    shared["outputs"] = "shared"
    assert GPRegressor(**shared).fit(X, Y).log_marginal_likelihood().value == pytest.approx(sum(alone), abs=1e-9)
    value, error = GPRegressor(inference=ITERATIVE, **shared).fit(X, Y).log_marginal_likelihood()
    assert abs(value - sum(alone)) <= 4 * error + 1e-6


def test_one_column_of_targets_keeps_its_axis():
    X, y = points(30, 2).numpy(), points(30, 1, seed=1).numpy()
    column, flat = GPRegressor(optimizer=None).fit(X, y), GPRegressor(optimizer=None).fit(X, y[:, 0])
    np.testing.assert_array_equal(column.predict(X)[:, 0], flat.predict(X))
    assert column.predict(X, return_cov=True)[1].shape == (30, 30, 1)
    assert flat.predict(X, return_cov=True)[1].shape == (30, 30)
    assert column.sample_y(X, 5).shape == (30, 1, 5)
    assert flat.sample_y(X, 5).shape == (30, 5)


@BOTH
@pytest.mark.parametrize("mean", BASES)
def test_the_trend_is_generalised_least_squares(method, mean):
    X, X_new = points(130, 2), points(25, 2, seed=3) * 3
    Y = (
        draw_targets(kernels.Matern(1.5, 1.0), X, 0.1, columns=2)
        + 5
        + X @ torch.tensor([[2.0, -1.0], [0.5, 3]]).double()
    )
    kernel = kernels.Matern(1.5, 1.0, 1.3)
    expected = dense_posterior(kernel, X, Y, X_new, 0.1, BASES[mean])
    options = {"noise_variance": 0.1, "standardize": False, "outputs": "shared"}
    gp = GPRegressor(kernel, method, None, mean, **options).fit(X.numpy(), Y.numpy())
    torch.testing.assert_close(gp.posterior_.coefficients, expected.coefficients, atol=1e-7, rtol=0)
    np.testing.assert_allclose(gp.predict(X_new.numpy()), expected.mean, atol=1e-6)
    value, error = gp.log_marginal_likelihood()
    assert abs(value - expected.log_likelihood) <= 4 * error + 1e-6


@BOTH
def test_a_trend_that_the_rows_do_not_determine_gets_the_shortest_solution(method):
    X = points(60, 2).numpy()
    X[:, 1] = 3.0  # equal to the constant of the mean
    y = 2.0 + X[:, 0]
    gp = GPRegressor(kernels.RBF(1.0), method, None, "linear", noise_variance=0.1, standardize=False).fit(X, y)
    intercept, _, slope = gp.posterior_.coefficients[:, 0].tolist()
    assert intercept == pytest.approx(3 * slope, rel=1e-6)  # equal parts, each in the units of its function
    assert intercept + 3 * slope == pytest.approx(2.0, abs=1e-6)


@BOTH
@pytest.mark.parametrize("standardize", [True, False])
def test_known_noise_of_each_row(method, standardize):
    X, X_new = points(100, 2), points(20, 2, seed=3)
    noise = torch.logspace(-3, 0, 100).double()
    y = 7 * draw_targets(kernels.RBF(1.0), X, 0.1)[:, 0] + 30
    settings = {"standardize": standardize, "hyperparameter_units": "standardized"}
    gp = GPRegressor(kernels.RBF(1.0), method, None, "zero", 49 * noise.numpy(), **settings).fit(X.numpy(), y.numpy())
    if standardize:
        x_scale, scale, centre = X.std(0, correction=0), float(y.std(correction=0)), float(y.mean())
        Z, Z_new, targets = (X - X.mean(0)) / x_scale, (X_new - X.mean(0)) / x_scale, (y - centre) / scale
    else:
        scale, centre, Z, Z_new, targets = 1.0, 0.0, X, X_new, y
    expected = dense_posterior(kernels.RBF(1.0), Z, targets, Z_new, 49 * noise / scale**2)
    mean, std = gp.predict(X_new.numpy(), return_std=True, variance="solve")
    np.testing.assert_allclose(mean, expected.mean[:, 0] * scale + centre, atol=1e-6)
    np.testing.assert_allclose(std**2, expected.covariance.diagonal() * scale**2, atol=1e-5)
    np.testing.assert_allclose(gp.noise_variance_, 49 * noise / scale**2)


def test_known_noise_is_not_learned_and_not_known_elsewhere():
    X, noise = points(60, 2).numpy(), np.linspace(0.01, 0.5, 60)
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    gp = GPRegressor(kernels.Matern(nu=1.5), noise_variance=noise, standardize=False).fit(X, y)
    np.testing.assert_array_equal(gp.noise_variance_, noise)
    assert gp.kernel_ != kernels.Matern(1.5).bind(2)  # other hyperparameters were learned
    assert all(NOISE not in step.hyperparameters for step in gp.history_)
    with pytest.raises(InvalidInputError, match=r"include_noise of GPRegressor.predict must be False"):
        gp.predict(X, return_std=True, include_noise=True)
    np.testing.assert_allclose(gp.predict(X, return_std=True)[1] ** 2, np.diag(gp.predict(X, return_cov=True)[1]))


@BOTH
def test_a_fixed_mean_is_subtracted_and_added_again(method):
    X, X_new = points(80, 2).numpy() + 3, points(20, 2, seed=3).numpy() + 3
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy() * 2

    def known(X):
        return 100 * X[:, 0] ** 2  # in the inputs' own units: large next to y

    shared = {"kernel": kernels.RBF(1.0), "inference": method, "optimizer": None, "noise_variance": 0.1}
    plain = GPRegressor(mean="zero", **shared).fit(X, y)
    shifted = GPRegressor(mean=known, **shared).fit(X, y + known(X))
    np.testing.assert_allclose(shifted.predict(X_new), plain.predict(X_new) + known(X_new), atol=1e-8)
    np.testing.assert_allclose(
        shifted.predict(X_new, return_std=True)[1], plain.predict(X_new, return_std=True)[1], atol=1e-10
    )
    np.testing.assert_allclose(shifted.sample_y(X_new, 3), plain.sample_y(X_new, 3) + known(X_new)[:, None], atol=1e-8)


# Units ----------------------------------------------------------------------------------------------------------------


@BOTH
def test_predictions_follow_the_units_of_the_table(method):
    """Standardized fits do not depend on units: only predictions are scaled."""
    X, X_new = points(90, 2).numpy(), points(15, 2, seed=3).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    settings = {"inference": method, "optimizer": optimization.Adam(steps=3)}
    plain = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X, y)
    scaled = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(
        X * [1e4, 1e-3] + [5.0, 0.01], y * 1e3 - 7
    )
    mean, std = plain.predict(X_new, return_std=True)
    scaled_mean, scaled_std = scaled.predict(X_new * [1e4, 1e-3] + [5.0, 0.01], return_std=True)
    np.testing.assert_allclose(scaled_mean, mean * 1e3 - 7, atol=1e-5)
    np.testing.assert_allclose(scaled_std, std * 1e3, rtol=1e-7)
    assert scaled.noise_variance_ == pytest.approx(1e6 * plain.noise_variance_)


def test_score_is_the_coefficient_of_determination():
    X = points(60, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    gp = GPRegressor(optimizer=None).fit(X, y)
    residual = ((y - gp.predict(X)) ** 2).sum()
    assert gp.score(X, y) == pytest.approx(1 - residual / ((y - y.mean()) ** 2).sum())


def test_float32_gives_the_same_to_its_precision(table):
    X, y, X_new = table
    for method in (inference.Exact(), inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-4))):
        double = GPRegressor(PAIRS["matern32"][0], method, **KEPT).fit(X, y)
        single = GPRegressor(PAIRS["matern32"][0], method, dtype="float32", **KEPT).fit(X, y)
        assert "float32" in single.engine_
        mean, std = single.predict(X_new, return_std=True)
        assert mean.dtype == std.dtype == np.float64
        np.testing.assert_allclose(mean, double.predict(X_new), atol=2e-3)
        np.testing.assert_allclose(std, double.predict(X_new, return_std=True)[1], atol=2e-3)


# Samples --------------------------------------------------------------------------------------------------------------


def test_exact_samples_have_the_posterior_covariance():
    X, X_new = points(50, 1), torch.linspace(-2, 2, 4).double()[:, None]
    y = draw_targets(kernels.RBF(1.0), X, 0.1)[:, 0]
    gp = GPRegressor(kernels.RBF(1.0), inference.Exact(), None, "zero", noise_variance=0.1, standardize=False)
    gp.fit(X.numpy(), y.numpy())
    expected = dense_posterior(kernels.RBF(1.0), X, y, X_new, 0.1)
    draws = torch.from_numpy(gp.sample_y(X_new.numpy(), 4000)).T - expected.mean[:, 0]
    products = draws[:, :, None] * draws[:, None, :]
    error = products.std(0) / math.sqrt(len(draws))
    assert bool(((products.mean(0) - expected.covariance).abs() <= 4 * error).all())
    assert not bool(((products.mean(0) - 1.2 * expected.covariance).abs() <= 4 * error).all())


@BOTH
def test_sample_functions_are_functions(method):
    """Values are the same evaluated together, separately or again; seeds choose the samples."""
    X = points(60, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    gp = GPRegressor(kernels.RBF(1.0), method, None, noise_variance=0.1).fit(X, y)
    functions = gp.sample_functions(3, random_state=1)
    X_new = points(10, 2, seed=9).numpy()
    together = functions(X_new)
    assert together.shape == (10, 3)
    np.testing.assert_allclose(np.concatenate([functions(X_new[:4]), functions(X_new[4:])]), together, atol=1e-12)
    np.testing.assert_array_equal(gp.sample_functions(3, random_state=1)(X_new), together)
    assert not np.allclose(gp.sample_functions(3, random_state=2)(X_new), together)
    more = gp.sample_functions(20, random_state=0)(X_new)  # iterative inference has stored 8
    assert more.shape == (10, 20)
    assert np.unique(more[0]).size == 20
    with pytest.raises(InvalidInputError, match=r"n_samples of GPRegressor.sample_.* must be an int of at least 1"):
        gp.sample_functions(0)
    with pytest.raises(InvalidInputError, match=r"n_samples of GPRegressor.sample_.* must be an int of at least 1"):
        gp.sample_y(X_new, 0)


@pytest.mark.slow
def test_sampled_functions_and_answers_stay_those_of_their_fit():
    """A later fit in other units, or of other inputs, had put them into its own units, without a warning."""
    X = points(30, 2).numpy()
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.sin(X[:, 0]))
    functions, predictor = gp.sample_functions(3, random_state=1), predictor_of(gp)
    before = functions(X), predictor.predict(X, return_std=True)
    gp.fit(100 * X[:, :1], 7 + 50 * X[:, 0])
    np.testing.assert_array_equal(functions(X), before[0])
    np.testing.assert_array_equal(predictor.predict(X, return_std=True), before[1])
    assert np.abs(gp.predict(100 * X[:, :1]) - before[1][0]).max() > 1  # control
    with pytest.raises(FrozenInstanceError):
        predictor.scaling = gp.scaling_


# Validation rows ------------------------------------------------------------------------------------------------------


@BOTH
def test_validation_rows_are_scored_and_not_learned_from(method):
    X, X_new = points(80, 2).numpy(), points(30, 2, seed=3).numpy()
    Y = 100 + 7 * draw_targets(kernels.RBF(1.0), torch.from_numpy(np.vstack([X, X_new])), 0.1).numpy()[:, 0]
    y, y_new = Y[:80], Y[80:]
    settings = {"kernel": kernels.RBF(), "inference": method, "mean": lambda X: 50 + X[:, 0]}
    gp = GPRegressor(optimizer=optimization.Adam(steps=3), **settings).fit(X, y, validation=(X_new, y_new))
    blind = GPRegressor(optimizer=optimization.Adam(steps=3), **settings).fit(X, y)
    np.testing.assert_array_equal(gp.predict(X_new), blind.predict(X_new))
    assert blind.history_[0].validation_rmse is None
    # the first step is evaluated at the start, where a fit without an optimizer predicts
    start = GPRegressor(optimizer=None, **settings).fit(X, y)
    mean, std = start.predict(X_new, return_std=True, include_noise=True)
    loose = 1e-9 if method == inference.Exact() else 0.2  # from samples, by other draws
    assert gp.history_[0].validation_rmse == pytest.approx(np.sqrt(np.mean((mean - y_new) ** 2)), rel=1e-6)
    density = -0.5 * ((y_new - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert gp.history_[0].validation_log_likelihood == pytest.approx(density.mean(), abs=loose)
    with pytest.raises(InvalidInputError, match=r"validation of GPRegressor.fit must have 2 inputs and 1 target"):
        gp.fit(X, y, validation=(X_new[:, :1], y_new))


# What is on the fitted object -----------------------------------------------------------------------------------------


def test_what_ran_is_on_the_fitted_object():
    X = points(60, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    exact = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    assert exact.inference_ == inference.Exact()
    assert exact.solver_ == "cholesky"
    assert isinstance(exact.optimizer_, optimization.Auto)
    assert exact.n_features_in_ == 2
    assert not hasattr(exact, "feature_names_in_")
    iterative = GPRegressor(inference=inference.Iterative(), optimizer=None).fit(X, y)
    assert isinstance(iterative.solver_, solvers.ConjugateGradients)
    assert iterative.solver_.tolerance <= 0.01
    assert iterative.solver_.nats is None  # the last solve is for predictions, not for a gradient
    assert iterative.optimizer_ is None
    assert len(iterative.history_) == 0
    assert iterative.posterior_.final_solve.status == "CONVERGED"
    assert iterative.posterior_.n_samples == (16 if NativeTiles.available() else 64)


def test_describe_has_both_systems_of_units():
    X = points(60, 2).numpy() * [10.0, 0.1]
    y = 100 * draw_targets(kernels.RBF([10.0, 0.1]), torch.from_numpy(X), 0.1)[:, 0].numpy()
    gp = GPRegressor(kernels.RBF([1.0, 2.0], 1.5), noise_variance=0.1, optimizer=None).fit(X, y)
    lines = {line.split()[0]: line.split()[1:] for line in gp.describe().splitlines() if line}
    assert float(lines["lengthscale[1]"][1]) == 2.0
    assert float(lines["lengthscale[1]"][0]) == pytest.approx(2.0 / X[:, 1].std(), rel=1e-5)
    assert float(lines["variance"][0]) == pytest.approx(1.5 / y.var(), rel=1e-5)
    assert float(lines["noise_variance"][0]) == pytest.approx(0.1 / y.var(), rel=1e-5)
    assert "cholesky" in lines["solver"]
    iterative = clone(gp).set_params(inference=inference.Iterative()).fit(X, y)
    assert "converged" in iterative.describe()
    assert "ConjugateGradients" in iterative.describe()


def test_names_of_columns_are_kept_and_checked():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(points(40, 2).numpy(), columns=["height", "width"])
    gp = GPRegressor(optimizer=None).fit(frame, frame["height"])
    assert list(gp.feature_names_in_) == ["height", "width"]
    assert "lengthscale[width]" in gp.describe()
    assert gp.sample_y(frame, 2).shape == (40, 2)
    with pytest.raises(ValueError, match="feature names"):
        gp.predict(frame[["width", "height"]])


def test_clone_pickle_and_deepcopy():
    X = points(50, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
    settings = {"kernel": kernels.RBF([1.0, 2.0]) + kernels.White(0.1), "mean": "linear", "random_state": 3}
    for method in ("auto", inference.Iterative(gradient=gradients.Hutchinson(4))):
        gp = GPRegressor(inference=method, optimizer=optimization.Adam(steps=2), **settings).fit(X, y)
        expected = gp.predict(X, return_std=True)
        for copied in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp)), clone(gp).fit(X, y)):
            np.testing.assert_array_equal(copied.predict(X, return_std=True), expected)
        blank = clone(gp)
        assert not hasattr(blank, "posterior_")
        assert blank.get_params()["kernel"] == settings["kernel"]


@BOTH
def test_the_same_seed_gives_the_same_bits(method):
    X = points(70, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()

    def bits(seed):
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=method, random_state=seed).fit(X, y)
        return np.concatenate([*gp.predict(X, return_std=True), gp.sample_y(X, 2, random_state=seed).ravel()])

    np.testing.assert_array_equal(bits(1), bits(1))
    assert not np.array_equal(bits(1), bits(2))


def test_a_failed_refit_leaves_the_old_fit_whole(monkeypatch):
    X, y = points(40, 2).numpy(), points(40, 1, seed=1)[:, 0].numpy()
    gp = GPRegressor(optimizer=None).fit(X, y)
    before, names = gp.predict(X, return_std=True), set(vars(gp))
    wide = points(40, 3).numpy()
    wide[3, 1] = np.nan
    with pytest.raises(InvalidInputError, match="NaN"):
        gp.fit(wide, y)
    np.testing.assert_array_equal(gp.predict(X, return_std=True), before)
    with pytest.raises(ValueError, match="one for each row"):
        gp.set_params(noise_variance=np.ones(7)).fit(points(30, 4).numpy(), y[:30])
    np.testing.assert_array_equal(gp.predict(X, return_std=True), before)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(ExactObjective, "posterior", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gp.set_params(noise_variance=None).fit(points(30, 4).numpy(), y[:30])
    np.testing.assert_array_equal(gp.predict(X, return_std=True), before)
    assert set(vars(gp)) == names


# Warnings -------------------------------------------------------------------------------------------------------------


def test_unfinished_solves_are_one_warning_a_fit_with_numbers():
    X = points(200, 2).numpy()
    y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 1e-3)[:, 0].numpy()
    hurried = solvers.ConjugateGradients(tolerance=1e-8, max_epochs=1, preconditioner=None)
    gp = GPRegressor(
        inference=inference.Iterative(solver=hurried, gradient=gradients.Pathwise(4), n_samples=4),
        optimizer=optimization.Adam(steps=3),
    )
    with pytest.warns(SolverWarning) as caught:
        gp.fit(X, y)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("4 of 4 linear solves")
    worst = max(
        *(step.solve.relative_residual_targets for step in gp.history_),
        gp.posterior_.final_solve.relative_residual_targets,
    )
    assert f"{worst:.2g}" in message
    assert "max_epochs" in message  # the remedy
    assert caught[0].filename == __file__  # it points to the call of fit
    patient = clone(gp).set_params(inference=inference.Iterative(gradient=gradients.Pathwise(4), n_samples=4))
    assert all(step.solve.status == "CONVERGED" for step in patient.fit(X, y).history_)  # warnings are errors here


def test_verbose_writes_lines_to_a_stream_that_is_no_terminal(capsys):
    X, y = points(40, 2).numpy(), points(40, 1, seed=1)[:, 0].numpy()
    GPRegressor(optimizer=optimization.Adam(steps=2), verbose=2).fit(X, y)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "learning, 2 of 2 steps" in shown.err
    GPRegressor(optimizer=optimization.Adam(steps=2)).fit(X, y)
    assert capsys.readouterr().err == ""


def test_the_memory_budget_bounds_blocks_and_refuses_what_cannot_fit():
    X, y = points(300, 2).numpy(), points(300, 1, seed=1)[:, 0].numpy()
    with pytest.raises(gigagp.errors.MemoryBudgetError, match=r"Exact inference on 300 rows needs 2,160,000 bytes"):
        GPRegressor(inference=inference.Exact(), memory_budget=2**20, optimizer=None).fit(X, y)
    small = GPRegressor(memory_budget=2**20, optimizer=None).fit(X, y)
    assert isinstance(small.inference_, inference.Iterative)
    with pytest.raises(gigagp.errors.MemoryBudgetError, match="covariance of 300 points"):
        small.predict(X, return_cov=True)
    large = GPRegressor(inference=inference.Iterative(), optimizer=None).fit(X, y)
    np.testing.assert_allclose(small.predict(X), large.predict(X), atol=0.1)  # solves stop below the noise


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cpu:1"}, "there is one CPU device"),
        ({"device": "cuda"}, "torch finds no CUDA device"),
        ({"device": "meta"}, "device of GPRegressor"),
        (
            {"inference": inference.QuadruplyStochastic(20, row_batch=5), "optimizer": optimization.Adam()},
            "where rows and functions are sampled",
        ),
        ({"optimizer": lambda: optimization.Auto(middle_size=1)}, "middle_size of Auto must be 0 or at least 2; got 1"),
    ],
)
def test_devices_and_optimizers_that_cannot_be(monkeypatch, options, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    X = np.linspace(0, 1, 30)[:, None]
    with pytest.raises(InvalidInputError, match=words):
        GPRegressor(**{name: one() if callable(one) else one for name, one in options.items()}).fit(X, X[:, 0])


def test_rows_are_added_to_no_weights_of_student_noise_and_densities_are_of_the_targets():
    X = np.linspace(0, 1, 30)[:, None]
    fixed = {"kernel": kernels.RBF(0.3), "inference": inference.Exact(), "optimizer": None, "noise_variance": 0.01}
    student = GPRegressor(**fixed, likelihood="student-t").fit(X, X[:, 0])
    with pytest.raises(InvalidInputError, match="cannot add rows to a fit with Student-t noise"):
        student.condition_on(X[:2] + 1, X[:2, 0])
    with pytest.raises(InvalidInputError, match=r"y must have 1 target\(s\), as in the fit; got 2"):
        GPRegressor(**fixed).fit(X, X[:, 0]).predictive_log_density(X, np.c_[X, X])
