"""Likelihoods with random features: exact for the features, and unbiased with random truncation."""

from __future__ import annotations

import pytest
import torch

from gigagp import inference, kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError, NotPositiveDefiniteError
from gigagp.inference import RandomFeatures
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective, ExactPosterior
from gigagp.inference.gradients import Pathwise
from gigagp.inference.iterative.pathwise_posterior import PathwisePosterior
from gigagp.inference.random_features import random_features
from gigagp.inference.random_features.posterior import FeaturePosterior
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import Adam, Auto
from gigagp.solvers.truncation import ExponentialDecay, Fixed, OneOverJ, RussianRoulette, SingleSample, Uniform
from helpers import close, generator, new_trace, points

X = points(44, 3, seed=1)
Y = torch.stack([torch.sin(2 * X[:, 0]) + 2, X[:, 1] * X[:, 2]], 1) + 0.1 * points(44, 2, seed=2)
KERNELS = {
    "rbf": kernels.RBF([1.0, 2.0, 1.5], 1.3),
    "matern": kernels.Matern(1.5, [1.0, 2.0, 1.5], 0.8),
    "rational quadratic": kernels.RationalQuadratic([1.0, 2.0, 1.5], 1.1, 0.7),
    "sum": kernels.RBF(1.2) * kernels.Matern(2.5, 3.0) + kernels.Linear(0.2) + kernels.White(0.05),
}
NOISES = {"one": torch.tensor(0.1).double(), "each": torch.linspace(0.05, 0.3, 44).double()}
SERIES = {
    "single": SingleSample(OneOverJ(base=3, maximum=20, step=4)),
    "single, every frequency": SingleSample(OneOverJ(base=1)),
    "single, uniform": SingleSample(Uniform(minimum=5, maximum=21, step=2)),
    "roulette": RussianRoulette(ExponentialDecay(rate=0.2, minimum=4, maximum=20, step=3)),
}


def model_of(name="rbf", mean=None, noise="one"):
    return Model(KERNELS[name].bind(3), ConstantMean() if mean is None else mean, NOISES[noise])


def table_of(mean=None, budget=2**30):
    return TrainingTable(X, Y, ConstantMean() if mean is None else mean, budget)


def enumerated(objective, model, draw_of):
    """Return the mean of value and gradient over all lengths of the law, with frequencies from ``draw_of``."""
    law = objective.series.distribution
    value, gradient = 0.0, {name: torch.zeros_like(one) for name, one in model.parameters().items()}
    for length in law.support():
        evaluation = objective.estimate(model, draw_of(length), length)
        value += law.probability(length) * evaluation.value
        for name, one in evaluation.gradient.items():
            gradient[name] += law.probability(length) * one
    return value, gradient


# Unbiased -------------------------------------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_mean_over_all_lengths_is_the_exact_likelihood(name, series, noise):
    """Without Monte Carlo: for fixed frequencies, the sums of value and gradient over the law telescope."""
    model, table = model_of(name, noise=noise), table_of()
    objective = RandomFeatures(truncation=SERIES[series]).objective(table, generator())
    draw = objective._frequencies(model)
    value, gradient = enumerated(objective, model, lambda length: draw)
    exact = ExactObjective(table).evaluate(model)
    assert value == pytest.approx(exact.value, rel=1e-11)
    for key, one in exact.gradient.items():
        if key in gradient:
            assert torch.allclose(gradient[key], one, rtol=1e-9, atol=1e-9), key


def test_frequencies_that_are_not_nested_do_not_telescope():
    """The control: with other frequencies for each length, their errors do not cancel."""
    model, table = model_of(), table_of()
    objective = RandomFeatures(truncation=SERIES["single"]).objective(table, generator())
    draws = {length: objective._new_frequencies(model, 40, generator(length)) for length in range(50)}
    value, _ = enumerated(objective, model, draws.__getitem__)
    assert abs(value - ExactObjective(table).evaluate(model).value) > 1


def test_differences_of_neighbours_at_a_step_above_one_do_not_telescope(monkeypatch):
    """The control: ``L(J) - L(J - 1)`` with J in steps of four, as in the published code, omits increments."""
    model, table = model_of(), table_of()
    objective = RandomFeatures(truncation=SERIES["single"]).objective(table, generator())
    law = SERIES["single"].distribution

    def published(self, length):
        weight = 1 / law.probability(length)
        return {law.base: 1.0, length - 1: -weight, length: weight}

    monkeypatch.setattr(SingleSample, "coefficients", published)
    draw = objective._new_frequencies(model, 40, generator())
    value, _ = enumerated(objective, model, lambda length: draw)
    assert abs(value - ExactObjective(table).evaluate(model).value) > 1


@pytest.mark.parametrize("law", [OneOverJ(base=8, maximum=9), Fixed(5)])
def test_a_series_of_one_term_is_the_exact_likelihood(law):
    model, table = model_of(), table_of()
    objective = RandomFeatures(truncation=SingleSample(law)).objective(table, generator())
    found, exact = objective.evaluate(model), ExactObjective(table).evaluate(model)
    assert found.value == pytest.approx(exact.value, rel=1e-12)
    assert torch.allclose(found.gradient["lengthscale"], exact.gradient["lengthscale"], rtol=1e-10)


def test_the_longest_series_ends_at_half_the_rows():
    objective = RandomFeatures(truncation=SingleSample(OneOverJ(base=2))).objective(table_of(), generator())
    assert objective.series.distribution.last == 22
    assert objective._frequencies(model_of()).n_features == 2 * 21  # the last term needs none


def test_a_distribution_alone_is_a_single_sample_of_it():
    objectives = [
        RandomFeatures(truncation=truncation).objective(table_of(), generator())
        for truncation in (OneOverJ(base=3, step=4), SingleSample(OneOverJ(base=3, step=4)))
    ]
    assert objectives[0].series == objectives[1].series
    assert objectives[0].evaluate(model_of()).value == objectives[1].evaluate(model_of()).value


def test_lengths_follow_the_law_and_do_not_depend_on_the_frequencies():
    truncation = SingleSample(OneOverJ(base=2, maximum=10, step=4))
    objective = RandomFeatures(truncation=truncation, redraw=True).objective(table_of(), generator())
    law = objective.series.distribution
    lengths = []
    for _ in range(40):
        objective.evaluate(model_of())
        lengths.append(objective.last_length)
    assert set(lengths) == set(law.support())
    share = sum(length == 6 for length in lengths) / 40
    assert abs(share - law.probability(6)) < 4 * (law.probability(6) * law.probability(10) / 40) ** 0.5


# Frozen and redrawn ---------------------------------------------------------------------------------------------------


def test_frozen_frequencies_make_one_function_of_the_hyperparameters():
    model = model_of()
    objective = RandomFeatures(40).objective(table_of(), generator())
    assert objective.deterministic
    first = objective.evaluate(model)
    assert objective.evaluate(model).value == first.value
    step = 1e-5
    moved = [
        objective.evaluate(model.replace({"variance": model.kernel.value("variance") + sign * step})).value
        for sign in (1, -1)
    ]
    assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(float(first.gradient["variance"]), rel=1e-6)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", KERNELS)
def test_few_rows_have_the_likelihood_and_the_gradient_of_the_sums(name, noise, dtype, monkeypatch):
    table = TrainingTable(X.to(dtype), Y.to(dtype), ConstantMean(), 2**30)
    objective, model = RandomFeatures(200).objective(table, generator()), model_of(name, noise=noise)
    found, posterior = objective.evaluate(model), objective.current_posterior()
    monkeypatch.setattr(random_features, "evaluate_few", not_positive_definite)
    expected = objective.evaluate(model)
    close(found.value, expected.value, condition=1e3, dtype=dtype)
    for key, one in expected.gradient.items():
        close(found.gradient[key], one, condition=1e3, dtype=dtype)
    close(posterior.log_marginal_likelihood(generator()).value, expected.value, condition=1e3, dtype=dtype)


def not_positive_definite(*_):
    raise NotPositiveDefiniteError


def test_redrawn_frequencies_are_new_each_time():
    objective = RandomFeatures(40, redraw=True).objective(table_of(), generator())
    assert not objective.deterministic
    assert objective.evaluate(model_of()).value != objective.evaluate(model_of()).value
    truncated = RandomFeatures(truncation=SERIES["single"]).objective(table_of(), generator())
    assert not truncated.deterministic


def test_a_seed_gives_the_same_numbers():
    for settings in (RandomFeatures(40), RandomFeatures(truncation=SERIES["single"], redraw=True)):
        runs = [
            [settings.objective(table_of(), generator(seed)).evaluate(model_of()).value for _ in range(2)]
            for seed in (3, 3, 4)
        ]
        assert runs[0] == runs[1] != runs[2]


def test_a_snapshot_goes_on_with_the_same_draws():
    for settings in (
        RandomFeatures(20, redraw=True),
        RandomFeatures(truncation=SERIES["single"]),
        RandomFeatures(20),
    ):
        one, other = (settings.objective(table_of(), generator()) for _ in range(2))
        one.evaluate(model_of())
        other.restore(model_of(), *one.snapshot())
        assert [one.evaluate(model_of()).value for _ in range(4)] == [
            other.evaluate(model_of()).value for _ in range(4)
        ]


# Learning -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_features_learn_what_the_exact_likelihood_learns():
    exact = Adam(0.1, 30).run(ExactObjective(table_of()), model_of(), new_trace(), generator())
    distances = []
    for n_features in (20, 600):
        objective = RandomFeatures(n_features).objective(table_of(), generator())
        found = Adam(0.1, 30).run(objective, model_of(), new_trace(), generator())
        distances.append(float((found.kernel.value("lengthscale") / exact.kernel.value("lengthscale")).log().norm()))
    assert distances[0] > 3 * distances[1]


def test_the_default_outer_loop_runs_on_features():
    objective = RandomFeatures(60).objective(table_of(), generator())
    before = objective.evaluate(model_of()).value
    found = Auto(subset_sizes=(20,)).run(objective, model_of(), new_trace(), generator())
    assert objective.evaluate(found).value > before + 3


def test_thinning_keeps_the_settings():
    thinned = RandomFeatures(truncation=SERIES["single"]).objective(table_of(), generator()).thin(torch.arange(20))
    assert thinned.n_rows == 20
    assert thinned.series == SERIES["single"]  # longer than half of these rows, but still unbiased
    model = model_of()
    value, _ = enumerated(thinned, model, lambda length: thinned._frequencies(model))
    assert value == pytest.approx(ExactObjective(thinned.table).evaluate(model).value, rel=1e-11)


# What predicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (RandomFeatures(20), FeaturePosterior),
        (RandomFeatures(20, redraw=True), FeaturePosterior),
        (RandomFeatures(20, truncation=SERIES["single"]), ExactPosterior),
        (RandomFeatures(20, truncation=SERIES["single"], prediction="features"), FeaturePosterior),
        (RandomFeatures(20, prediction=inference.Exact()), ExactPosterior),
        (
            RandomFeatures(
                20, prediction=inference.Iterative(n_samples=4, gradient=Pathwise(n_probes=2, n_features=20))
            ),
            PathwisePosterior,
        ),
    ],
)
def test_what_predicts(settings, kind):
    objective = settings.objective(table_of(), generator())
    objective.evaluate(model_of())
    posterior = objective.posterior(model_of(), generator(1))
    assert type(posterior) is kind
    assert posterior.mean(X).shape == (44, 2)
    if kind is FeaturePosterior:
        assert posterior.draw.n_features == 20
    current = objective.current_posterior()
    assert type(current) is kind
    assert objective.settings.objective(table_of(), generator()).current_posterior() is None  # before any evaluation
    if not settings.redraw and (kind is ExactPosterior or settings.truncation is None):
        torch.testing.assert_close(current.mean(X), posterior.mean(X), rtol=0.05, atol=0.05)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_more_features_than_memory_and_longer_series_than_rows():
    with pytest.raises(MemoryBudgetError, match=r"2,000 columns of random features needs 224,192,000 bytes"):
        RandomFeatures(2000).objective(table_of(budget=10**8), generator())
    with pytest.raises(MemoryBudgetError, match="Exact inference on 44 rows needs"):
        RandomFeatures(truncation=SingleSample(OneOverJ(0, 2))).objective(table_of(budget=20_000), generator())
    with pytest.raises(InvalidInputError, match="maximum of OneOverJ must be at most half of the 44 rows, 22; got 30"):
        RandomFeatures(truncation=SingleSample(OneOverJ(1, 30))).objective(table_of(), generator())
    with pytest.raises(MemoryBudgetError, match="Exact inference on 44 rows needs"):
        RandomFeatures(4, prediction=inference.Exact()).objective(table_of(budget=20_000), generator())
    # a sum of kernels has columns for each of its random terms, which only the kernel knows
    two = Model((kernels.RBF() + kernels.Matern()).bind(3), ZeroMean(), NOISES["one"])
    objective = RandomFeatures(200).objective(table_of(ZeroMean(), budget=7 * 8 * 300**2), generator())
    with pytest.raises(MemoryBudgetError, match="400 columns"):
        objective.evaluate(two)


def test_a_description_says_what_runs():
    assert RandomFeatures(20).describe() == "random features (20, joint, frozen)"
    described = RandomFeatures(truncation=SERIES["single"], redraw=True, prediction=inference.Exact()).describe()
    assert "OneOverJ(base=3" in described
    assert described.endswith("redrawn, predictions: exact (Cholesky))")
