"""The measurement of bias: correct numbers, and biases found only where they exist, for every inference method."""

from __future__ import annotations

import json
import math

import pytest
import torch

from gigagp import GPRegressor, diagnostics, gradients, kernels, solvers, truncation
from gigagp.diagnostics.bias import VALUE
from gigagp.errors import InvalidInputError
from gigagp.inference import Exact, Iterative, RandomFeatures
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.model.means import ConstantMean
from gigagp.model.model import Model
from gigagp.optimization import ParameterSpace
from gigagp.solvers.truncation import ExponentialDecay, OneOverJ, SingleSample
from helpers import draw_targets, points

KERNEL = kernels.RBF([0.8, 1.2], 1.3).bind(2)
X = points(60, 2, seed=1)
TABLE = TrainingTable(X, draw_targets(KERNEL, X, 0.05, columns=1), ConstantMean(), 2**30)
MODEL = Model(KERNEL, ConstantMean(), torch.tensor(0.05, dtype=torch.float64))
HUTCHINSON = gradients.Hutchinson(n_probes=4)
FINISHED = solvers.ConjugateGradients(tolerance=1e-8, preconditioner=None)
EARLY = {"tolerance": 1e-12, "max_epochs": 6, "preconditioner": None}
DECAY = ExponentialDecay(rate=0.1, minimum=6)
SERIES = SingleSample(OneOverJ(base=10, step=5))

METHODS = {
    "exact": (Exact(), False),
    "cg": (Iterative(FINISHED, HUTCHINSON), False),
    "cg, stopped early": (Iterative(solvers.ConjugateGradients(**EARLY), HUTCHINSON), True),
    "cg, stopped early, pathwise": (
        Iterative(solvers.ConjugateGradients(**EARLY), gradients.Pathwise(n_probes=4, prior="exact")),
        True,
    ),
    "cg, truncated": (
        Iterative(solvers.ConjugateGradients(1e-12, preconditioner=None, truncation=DECAY), HUTCHINSON),
        False,
    ),
    "pathwise": (Iterative(FINISHED, gradients.Pathwise(n_probes=4, prior="exact")), False),
    "exact trace": (Iterative(FINISHED, gradients.Exact()), False),
    "alternating projections": (
        Iterative(solvers.AlternatingProjections(tolerance=1e-6), HUTCHINSON),
        False,
    ),
    "stochastic gradient descent": (
        Iterative(solvers.StochasticGradientDescent(batch_size=30, tolerance=1e-12, max_epochs=10), HUTCHINSON),
        True,
    ),
    "cholesky": (Iterative(solvers.Cholesky(), HUTCHINSON), False),
    "random features": (RandomFeatures(12), True),
    "single sample": (RandomFeatures(truncation=SERIES), False),
    "single sample, redrawn": (RandomFeatures(truncation=SERIES, redraw=True), False),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", METHODS)
def test_biases_are_found_where_they_are_and_nowhere_else(name):
    method, is_biased = METHODS[name]
    report = diagnostics.measure_bias(method, MODEL, TABLE, n_draws=40)
    assert (report.worst > 4) == is_biased, [(row.name, row.errors) for row in report]
    assert [row.name for row in report] == [VALUE, "lengthscale[0]", "lengthscale[1]", "variance", "noise_variance"]
    assert report.draws.shape == (40, 5)
    assert report.method == method.describe()
    assert report.seconds > 0
    assert report.exact_seconds > 0
    assert (report.epochs is not None) == (isinstance(method, Iterative))


def test_the_exact_numbers_and_their_units():
    report = diagnostics.measure_bias(METHODS["cg"][0], MODEL, TABLE, n_draws=20)
    exact, space = ExactObjective(TABLE).evaluate(MODEL), ParameterSpace(MODEL, "log")
    gradient = space.pull_back(exact.gradient, space.encode(MODEL))
    assert report[VALUE].exact == pytest.approx(exact.value)
    assert [row.exact for row in report][1:] == pytest.approx(gradient.tolist())
    row, draws = report["variance"], report.draws[:, 3]
    assert row.mean == pytest.approx(float(draws.mean()))
    assert row.standard_deviation == pytest.approx(float(draws.std()))
    assert row.bias == row.mean - row.exact
    assert row.errors == pytest.approx(row.bias / (row.standard_deviation / math.sqrt(20)))
    assert report[VALUE].scale == pytest.approx(math.sqrt(30))
    squares = [
        ((report.draws[:, i + 1] - one.exact) / one.scale).square().mean() for i, one in enumerate(report.rows[1:])
    ]
    assert report.gradient_error == pytest.approx(float(torch.stack(squares).mean().sqrt()))
    with pytest.raises(InvalidInputError, match="'alpha' was not measured"):
        report["alpha"]


def test_scales_are_what_the_exact_gradient_varies_between_data_sets():
    """Compare the root of the Fisher information with targets drawn from the model itself."""
    mean_free = Model(KERNEL, ConstantMean(), MODEL.noise_variance)
    space = ParameterSpace(mean_free, "log")
    vector = space.encode(mean_free)
    seen = []
    for seed in range(150):
        table = TrainingTable(X, draw_targets(KERNEL, X, 0.05, seed=seed), ConstantMean(), 2**30)
        evaluation = ExactObjective(table).evaluate(mean_free)
        seen.append(torch.cat([torch.tensor([evaluation.value]), space.pull_back(evaluation.gradient, vector)]))
    expected = torch.stack(seen).std(0).tolist()
    found = [row.scale for row in diagnostics.measure_bias(Exact(), mean_free, TABLE, n_draws=2)]
    assert found == pytest.approx(expected, rel=0.3)


def test_draws_without_spread_have_no_finite_error():
    """A solve cut at five iterations with an exact trace gives the same wrong number every time."""
    method = Iterative(solvers.ConjugateGradients(**EARLY), gradients.Exact())
    report = diagnostics.measure_bias(method, MODEL, TABLE, n_draws=3, values=False)
    assert math.isinf(report.worst)
    json.loads(json.dumps(report.to_dict(), allow_nan=False))
    exact = diagnostics.measure_bias(Exact(), MODEL, TABLE, n_draws=3)
    assert exact.worst == 0
    assert exact.gradient_error == pytest.approx(0, abs=1e-9)


def test_values_can_be_left_out():
    report = diagnostics.measure_bias(METHODS["cg"][0], MODEL, TABLE, n_draws=3, values=False)
    assert report.rows[0].name == "lengthscale[0]"
    assert report.draws.shape == (3, 4)


def test_draws_are_independent_and_a_seed_repeats_them():
    first, again, other = (
        diagnostics.measure_bias(METHODS["random features"][0], MODEL, TABLE, n_draws=4, random_state=seed).draws
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(set(first[:, 0].tolist())) == 4


@pytest.mark.slow
def test_the_variance_that_is_measured_is_that_of_the_truncation():
    """A smaller step of the truncated series has a larger variance, as measured in the notes."""
    spreads = [
        diagnostics.measure_bias(
            RandomFeatures(truncation=SingleSample(OneOverJ(base=5, maximum=29, step=step))), MODEL, TABLE, n_draws=80
        )[VALUE].standard_deviation
        for step in (1, 8)
    ]
    assert spreads[0] > 1.5 * spreads[1]


@pytest.mark.slow
def test_a_fitted_estimator_gives_the_place_to_measure_at():
    posterior = GPRegressor(kernels.Matern(1.5), optimizer=None).fit(X.numpy(), TABLE.Y[:, 0].numpy()).posterior_
    method = Iterative(
        solvers.ConjugateGradients(truncation=truncation.ExponentialDecay(0.2, 4)), gradients.Hutchinson(4)
    )
    assert diagnostics.measure_bias(method, posterior.model, posterior.table, n_draws=20).n_rows == 60


@pytest.mark.parametrize("wrong", [1, 0, 2.0, True])
def test_too_few_draws_are_refused(wrong):
    with pytest.raises(InvalidInputError, match="n_draws of measure_bias must be an int of at least 2"):
        diagnostics.measure_bias(Exact(), MODEL, TABLE, n_draws=wrong)


def test_nothing_to_learn_is_refused():
    model = Model(kernels.RBF(1.0, 1.0, fixed=True).bind(2), ConstantMean(), torch.full((60,), 0.1).double())
    with pytest.raises(InvalidInputError, match="model of measure_bias must have a learned hyperparameter"):
        diagnostics.measure_bias(Exact(), model, TABLE)
