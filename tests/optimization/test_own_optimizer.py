"""User-defined optimizers: which are accepted, that they find the optimum of dense algebra, and how they are saved."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.optimization import Minimiser, Optimizer, ParameterSpace, Restarts

RNG = np.random.default_rng(5)
X = RNG.uniform(-3, 3, (30, 1))
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=30)
SETTINGS = {"inference": inference.Exact(), "mean": "zero", "standardize": False}


class Halving:
    """Coordinate search: an optimizer that uses nothing of the package's own optimizers."""

    def __repr__(self):
        return "Halving()"

    def run(self, objective, model, trace, generator):
        space = ParameterSpace(objective.start(model), "log")
        vector, width = space.encode(space.template), 1.0
        best = trace.evaluate(objective, space, vector, "halving")[0].value
        while width > 1e-3:
            trials = [vector + width * sign * unit for unit in torch.eye(space.size).double() for sign in (1, -1)]
            found = [(trace.evaluate(objective, space, trial, "halving")[0].value, trial) for trial in trials]
            value, trial = max(found, key=lambda pair: pair[0])
            if value > best:
                best, vector = value, trial
            else:
                width /= 2
        return space.decode(vector)


def search(evaluate, start, bounds):
    return scipy.optimize.minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-14).x


def dense_optimum():
    """Return the highest log marginal likelihood of an RBF kernel with noise, using NumPy alone."""

    def minus_likelihood(logs):
        lengthscale, variance, noise = np.exp(logs)
        H = variance * np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2) + noise * np.eye(len(X))
        return 0.5 * (Y @ np.linalg.solve(H, Y) + np.linalg.slogdet(H)[1] + len(X) * math.log(2 * math.pi))

    return -scipy.optimize.minimize(minus_likelihood, np.log([1.0, 1.0, 0.1]), tol=1e-12, method="Nelder-Mead").fun


@pytest.mark.parametrize(
    ("optimizer", "tolerance"),
    [(Halving(), 1e-4), (Minimiser(search), 1e-7), (Minimiser(search, transform="softplus"), 1e-7)],
)
def test_it_finds_the_optimum_of_dense_algebra(optimizer, tolerance):
    gp = GPRegressor(kernels.RBF(1.0), optimizer=optimizer, noise_variance=0.1, **SETTINGS).fit(X, Y)
    assert isinstance(optimizer, Optimizer)
    assert gp.log_marginal_likelihood().value == pytest.approx(dense_optimum(), abs=tolerance)
    assert gp.optimizer_ is optimizer
    assert len(gp.history_) > 5


def test_lbfgs_ends_at_the_optimum_of_dense_algebra():
    """An earlier version ended when a gain of 1e-4 nats per observation was left."""
    gp = GPRegressor(kernels.RBF(1.0), optimizer=optimization.LBFGS(), noise_variance=0.1, **SETTINGS).fit(X, Y)
    assert gp.log_marginal_likelihood().value == pytest.approx(dense_optimum(), abs=1e-8)
    loose = GPRegressor(kernels.RBF(1.0), optimizer=optimization.LBFGS(tolerance=1e-4), noise_variance=0.1, **SETTINGS)
    assert loose.fit(X, Y).log_marginal_likelihood().value < dense_optimum() - 1e-6


def test_bounds_come_as_pairs_of_the_vectors_units():
    seen = []

    def looks(evaluate, start, bounds):
        seen.append((start, bounds))
        return start

    kernel = kernels.RBF(1.0, 0.5, bounds={"lengthscale": (0.5, 2.0), "variance": (None, 4.0)})
    gp = GPRegressor(kernel, optimizer=Minimiser(looks), noise_variance=0.25, **SETTINGS).fit(X, Y)
    start, bounds = seen[0]
    np.testing.assert_allclose(start, [0.0, 0.5 * math.log(0.5), 0.5 * math.log(0.25)])
    infinite = math.inf
    np.testing.assert_allclose(
        bounds, [[math.log(0.5), math.log(2.0)], [-infinite, 0.5 * math.log(4.0)], [-infinite, infinite]]
    )
    assert gp.kernel_.lengthscale.tolist() == [1.0]


@pytest.mark.parametrize("optimizer", [search, optimization.Adam, Optimizer, "adam", 3, object()])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(InvalidInputError, match="optimizer of GPRegressor must be"):
        GPRegressor(optimizer=optimizer).fit(X, Y)
    with pytest.raises(InvalidInputError, match="must be"):
        Restarts(optimizer)


def returning(make):
    class Returns:
        def run(self, objective, model, trace, generator):
            return make(model)

    return Returns()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: None, "run of Returns must return a gigagp.model.model.Model; got None"),
        (lambda model: replace(model, kernel=kernels.Linear().bind(1)), "must return a model with the hyperparameters"),
        (lambda model: model.replace({"variance": torch.tensor(math.nan)}), "positive finite hyperparameters"),
        (lambda model: model.replace({"noise_variance": torch.tensor(-1.0)}), "positive finite hyperparameters"),
    ],
)
def test_what_it_returns_is_checked(make, message):
    with pytest.raises(InvalidInputError, match=message):
        GPRegressor(optimizer=returning(make)).fit(X, Y)


@pytest.mark.parametrize("found", [[1.0], [math.nan] * 3, "abc"])
def test_what_a_function_returns_is_checked(found):
    with pytest.raises((InvalidInputError, ValueError)):
        GPRegressor(optimizer=Minimiser(lambda evaluate, start, bounds: found)).fit(X, Y)


@pytest.mark.parametrize(
    "method",
    [inference.Iterative(), inference.Iterative(warm_start=False), inference.SparseVariational(5, batch_size=8)],
)
@pytest.mark.parametrize("optimizer", [Minimiser(search), Restarts(optimization.Adam(steps=2))])
def test_without_values_that_compare_it_is_refused(method, optimizer):
    with pytest.raises(InvalidInputError, match="compares values of the log marginal likelihood"):
        GPRegressor(inference=method, optimizer=optimizer).fit(X, Y)


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", [Halving(), Minimiser(search), Restarts(Halving(), 1)])
def test_a_model_outlives_its_optimizer(optimizer, tmp_path):
    gp = GPRegressor(kernels.Matern(nu=1.5), optimizer=optimizer).fit(X, Y)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(again.predict(X), gp.predict(X))
    assert again.optimizer == optimization.Unsaved(repr(optimizer))
    with pytest.raises(InvalidInputError, match=r"is not in the model file. Set optimizer"):
        again.fit(X, Y)


# Restarts -------------------------------------------------------------------------------------------------------------


def wavy(optimizer, **settings):
    """Fit a kernel with many optima."""
    kernel = kernels.Periodic(1.0, 1.0, 1.0, bounds={"period": (0.3, 6.0)})
    gp = GPRegressor(kernel, optimizer=optimizer, noise_variance=0.1, **{**SETTINGS, **settings})
    return gp.fit(X, Y)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "one", [optimization.LBFGS(), optimization.Auto(), optimization.Adam(0.1, 30), Minimiser(search)]
)
def test_more_starts_never_end_lower(one):
    values = [wavy(Restarts(one, k)).log_marginal_likelihood().value for k in (0, 1, 3)]
    # likelihoods of ends at one optimum differ by rounding: 1e-16 of their terms times the condition, some hundreds
    assert all(after > before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[0] == wavy(one).log_marginal_likelihood().value
    assert values[-1] > values[0] + 1  # the start led to a poor optimum


@pytest.mark.slow
def test_the_best_model_is_the_one_that_predicts():
    gp = wavy(Restarts(optimization.LBFGS(), 6))
    best = max(step.objective for step in gp.history_ if step.stage == "restarts, end")
    assert gp.log_marginal_likelihood().value == pytest.approx(best, abs=1e-9)
    assert len([step for step in gp.history_ if step.stage == "restarts, end"]) == 7


@pytest.mark.slow
def test_starts_are_spread_over_the_box_and_repeat():
    kernel = kernels.RBF(1.0, bounds={"lengthscale": (0.01, 100.0), "variance": (0.5, None)})
    starts = []

    class Remember:
        def run(self, objective, model, trace, generator):
            starts.append(model)
            return model

    for _ in range(2):
        GPRegressor(kernel, optimizer=Restarts(Remember(), 60), noise_variance=0.1, **SETTINGS).fit(X, Y)
    values = [{name: value.tolist() for name, value in model.parameters().items()} for model in starts]
    assert values[:61] == values[61:]
    logs = np.log10([model.kernel.lengthscale.item() for model in starts[1:61]])
    assert scipy.stats.kstest(logs, scipy.stats.uniform(-2, 4).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(logs, scipy.stats.uniform(-1, 2).cdf).pvalue < 1e-3
    noise = np.log10([model.noise_variance.item() for model in starts[1:61]])
    assert scipy.stats.kstest(noise, scipy.stats.uniform(-2, 2).cdf).pvalue > 1e-3
    assert min(model.kernel.variance.item() for model in starts) == 0.5


def test_a_start_without_a_factor_is_passed_over():
    class Breaks(optimization.LBFGS):
        def run(self, objective, model, trace, generator, *, stage="lbfgs"):
            if len(trace.history) > 5:  # not the first run
                raise gigagp.errors.NonFiniteError("wild")
            return super().run(objective, model, trace, generator, stage=stage)

    found = wavy(Restarts(Breaks(), 3))
    assert found.log_marginal_likelihood().value == wavy(optimization.LBFGS()).log_marginal_likelihood().value


@pytest.mark.parametrize(
    "make",
    [
        lambda: Restarts(restarts=-1),
        lambda: Restarts(restarts=1.5),
        lambda: Restarts(restarts=True),
        lambda: Restarts(spread=1.0),
        lambda: Restarts(spread=math.nan),
        lambda: Restarts(None),
        lambda: Restarts(Restarts()),
        lambda: Minimiser(3),
        lambda: Minimiser(search, transform="square"),
    ],
)
def test_settings_that_cannot_be_used(make):
    with pytest.raises(InvalidInputError, match=r"of (Restarts|Minimiser|GPRegressor) must be"):
        make()


def test_restarts_are_saved(tmp_path):
    gp = wavy(Restarts(optimization.Auto(subset_sizes=(20,)), 1))
    gp.save(tmp_path / "model.gp")
    assert gigagp.load(tmp_path / "model.gp").optimizer_ == gp.optimizer
