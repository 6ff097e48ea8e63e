"""Notes on Potapczynski et al. 2021 (papers/rr-cg-ss-rff.md), section 10, tests 7, 8, 9 and 11: random features.

Every figure in a comment is the notes'; the problem is their "golden problem G" with n rows.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from gigagp.inference import RandomFeatures
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import WeightSpace
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.random_features.sums import sum_rows
from gigagp.kernels import RBF
from gigagp.kernels.features import nested_columns
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.solvers.truncation import OneOverJ, SingleSample
from helpers import generator, within_standard_errors


def problem(n, noise, lengthscale=0.1):
    """Return model, table and the exact terms ``y' H^-1 y`` and ``log det H``."""
    i = torch.arange(n, dtype=torch.float64)
    x = i / (n - 1)
    y = x * torch.sin(5 * math.pi * x) + 0.1 * torch.cos(7 * i**2)
    model = Model(RBF(lengthscale, 1.0).bind(1), ZeroMean(), torch.tensor(noise, dtype=torch.float64))
    H = model.kernel.block(x[:, None], x[:, None]) + noise * torch.eye(n)
    exact = torch.stack([y @ torch.linalg.solve(H, y), torch.linalg.slogdet(H).logabsdet])
    return model, TrainingTable(x[:, None], y[:, None], ZeroMean(), 2**30), exact


def terms(model, table, counts, seed):
    """Return the terms with the first ``counts`` frequencies of one draw, shape (len(counts), 2)."""
    draw = model.kernel.draw_features(2 * max(counts), 1, generator(seed), law="joint")
    sums = sum_rows(model, draw, table)
    spaces = [
        WeightSpace.fit(sums.take(*nested_columns(model.kernel, draw, count)), table.n_rows, 1) for count in counts
    ]
    return torch.tensor([[space.data_fit, space.log_determinant] for space in spaces], dtype=torch.float64)


@cache
def small_series():
    """Return terms at 1 to 19 frequencies for 220 draws (220, 19, 2), and the exact ones, of 40 rows."""
    model, table, exact = problem(40, 0.05)
    return torch.stack([terms(model, table, range(1, 20), seed) for seed in range(220)]), exact


# Test 7: signs and rates of the bias ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_7_the_biases_have_the_proven_signs_and_fall_like_one_over_j():
    model, table, exact = problem(200, 1.0)
    assert exact.tolist() == pytest.approx([3.293044, 26.745202], abs=1e-6)
    counts = (1, 5, 10, 20, 40, 80, 160)
    errors = torch.stack([terms(model, table, counts, seed) for seed in range(60)]) - exact
    bias, standard_error = errors.mean(0), errors.std(0) / 60**0.5
    assert bool((bias[:, 0] > 0).all())  # too high a data fit, at every number of frequencies
    assert bool((bias[:, 1] < 0).all())  # too low a log-determinant
    for column, measured in ((0, {10: 4.16, 20: 1.57, 40: 0.57}), (1, {1: -17.79, 5: -6.84, 10: -4.09, 40: -1.21})):
        for count, value in measured.items():
            place = counts.index(count)
            assert abs(float(bias[place, column]) - value) < 4 * float(standard_error[place, column]) + 0.03 * abs(
                value
            )
    far = torch.tensor(counts[3:]).double().log()
    for column in (0, 1):
        log_bias = bias[3:, column].abs().log()
        slope = float(((far - far.mean()) * log_bias).sum() / (far - far.mean()).square().sum())
        assert -1.3 < slope < -0.7
    # predicted: m times the bias of the determinant becomes half the trace of the second moment, 59.9
    assert abs(float(bias[-1, 1]) + 59.9 / 160) < 4 * float(standard_error[-1, 1])


def test_7_at_little_noise_the_rate_is_not_reached():
    """The control of the slope: its condition, that the error of the matrix is small beside the noise, is not met."""
    model, table, exact = problem(200, 0.01)
    counts = (10, 160)
    bias = torch.stack([terms(model, table, counts, seed) for seed in range(25)]).mean(0) - exact
    assert float(bias[0, 1]) < float(bias[1, 1]) < 0 < float(bias[1, 0]) < float(bias[0, 0])
    slope = math.log(float(bias[1, 1] / bias[0, 1])) / math.log(16)
    assert -0.7 < slope < -0.3  # -22.6 at 10, -5.90 at 160


# Test 8: single samples -----------------------------------------------------------------------------------------------


def single_samples(law, steps_of, series, exact):
    """Return mean and standard deviation over lengths *and* draws of the estimate, by enumeration of the lengths."""
    values, weights = [], []
    whole = torch.cat([series, exact.expand(len(series), 1, 2)], 1)  # 1 to 19 frequencies, then the exact terms
    for length in law.support():
        parts = SingleSample(law).coefficients(length)
        values.append(sum(weight * steps_of(whole, count) for count, weight in parts.items()))
        weights.append(law.probability(length))
    found, chances = torch.stack(values), torch.tensor(weights, dtype=torch.float64)
    mean = (found.mean(1) * chances[:, None]).sum(0)
    second = (found.square().mean(1) * chances[:, None]).sum(0)
    return mean, (second - mean**2).sqrt()


def nested(whole, count):
    return whole[:, count - 1]


@pytest.mark.slow
def test_8_single_samples_are_unbiased_and_spread_as_measured():
    series, exact = small_series()
    assert exact.tolist() == pytest.approx([5.660686, -78.254811], abs=1e-6)
    for base, data_fit, determinant in ((1, 234, 56), (10, 63, 25)):
        mean, deviation = single_samples(OneOverJ(base=base, maximum=20), nested, series, exact)
        assert torch.allclose(mean, exact, rtol=1e-9)  # whatever the draws are
        assert float(deviation[0]) == pytest.approx(data_fit, rel=0.25)
        assert float(deviation[1]) == pytest.approx(determinant, rel=0.25)
    # the control: features alone, with a bias of +15.9 and -8.06 at 10 frequencies
    assert not within_standard_errors(series[:, 9], exact)
    assert within_standard_errors(series[:, 9], torch.tensor([5.66 + 15.9, -78.25 - 8.06]))


@pytest.mark.slow
def test_8_frequencies_drawn_anew_for_every_term_spread_twice_as_much():
    series, exact = small_series()
    shuffled = [series[torch.randperm(len(series), generator=generator(k))] for k in range(20)]

    def independent(whole, count):
        return whole[:, 19] if count == 20 else shuffled[count][:, count - 1]

    law = OneOverJ(base=1, maximum=20)
    mean, deviation = single_samples(law, independent, series, exact)
    assert float((mean - exact)[1]) < 1e-6  # still unbiased: each count has the same draws, in another order
    assert float(deviation[1]) == pytest.approx(138, rel=0.25)


@pytest.mark.slow
def test_8_larger_steps_spread_less():
    model, table, exact = problem(120, 0.05)
    counts = range(10, 60)
    series = torch.stack([terms(model, table, counts, seed) for seed in range(40)])

    def later(whole, count):
        return whole[:, count - 10]

    deviations = [
        float(single_samples(OneOverJ(base=10, maximum=60, step=step), later, series, exact)[1][1])
        for step in (1, 5, 10)
    ]
    assert deviations == pytest.approx([69.7, 31.4, 19.2], rel=0.25)


@pytest.mark.slow
def test_8_through_the_objective_by_monte_carlo():
    """New frequencies and a new length at every evaluation; the likelihood of plain features is the control."""
    model, table, exact = problem(40, 0.05)
    value = -0.5 * (float(exact.sum()) + 40 * math.log(2 * math.pi))
    settings = RandomFeatures(truncation=SingleSample(OneOverJ(base=10, step=5)), redraw=True)
    objective = settings.objective(table, generator())
    found = [objective.evaluate(model) for _ in range(300)]
    assert within_standard_errors(torch.tensor([one.value for one in found]).double(), value)
    gradients = torch.tensor([[float(one.gradient[name]) for name in one.gradient] for one in found]).double()
    exact_gradient = ExactObjective(table).evaluate(model).gradient
    expected = torch.tensor([float(exact_gradient[name]) for name in found[0].gradient]).double()
    assert within_standard_errors(gradients, expected)
    plain = RandomFeatures(10, redraw=True).objective(table, generator())
    control = torch.tensor([plain.evaluate(model).value for _ in range(200)]).double()
    assert not within_standard_errors(control, value)


# Theorem 4: the law that varies least ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_theorem_4_one_over_j_varies_least():
    """Second moments of the increments over chances like ``J^-a``, the exact last term left out as in the notes."""
    series, _ = small_series()
    increments = (series[:, 1:] - series[:, :-1]).square().mean(0)  # of J = 2 .. 19
    lengths = torch.arange(2, 20).double()
    for column, measured in ((0, [89.6e3, 66.2e3, 60.9e3, 70.4e3, 100.4e3]), (1, [2862, 2037, 1849, 2175, 3241])):
        moments = []
        for power in (0.0, 0.5, 1.0, 1.5, 2.0):
            chances = lengths**-power / (lengths**-power).sum()
            moments.append(float((increments[:, column] / chances).sum()))
        assert min(moments) == moments[2]
        assert moments == pytest.approx(measured, rel=0.45)


# Test 11: bounds of single increments ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_11_no_increment_exceeds_its_bound():
    """Adding a pair to j pairs: eqs. S14 and S15 for pairs, without exception; halving the bound would be too sharp."""
    series, _ = small_series()
    table = problem(40, 0.05)[1]
    j = torch.arange(1, 19).double()
    step = series[:, 1:] - series[:, :-1]
    determinant_bound = 2 * torch.log1p(40 / (2 * 0.05 * (j + 1)))
    fit_bound = 40 * float(table.Y.square().sum()) / (0.05**2 * (j + 1))
    assert bool((step[:, :, 1] <= determinant_bound + 1e-9).all())
    assert bool((-step[:, :, 0] <= fit_bound + 1e-9).all())
    assert bool((step[:, :, 1] > 0.5 * determinant_bound).any())
    negative = float((step[:, :, 1] < 0).double().mean())
    assert negative == pytest.approx(0.48, abs=0.05)  # single increments have either sign


# Test 9: what is learned ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_9_few_features_learn_too_short_a_lengthscale():
    """Noise fixed, the objective averaged over draws, a grid of lengthscales: -0.39 at 20, -0.31 at 50 frequencies."""
    grid = torch.logspace(-1.6, -0.3, 27, dtype=torch.float64)
    counts = (5, 20, 60)
    scores, exact = torch.zeros(len(grid), len(counts)).double(), []
    for place, lengthscale in enumerate(grid.tolist()):
        model, table, truth = problem(120, 0.01, lengthscale)
        exact.append(-float(truth.sum()))
        for seed in range(6):
            scores[place] -= terms(model, table, counts, seed).sum(1)
    best = float(grid[torch.tensor(exact).argmax()])
    ratios = (grid[scores.argmax(0)] / best).log()
    assert bool((ratios < -0.04).all())
    assert float(ratios[0]) < float(ratios[1]) <= float(ratios[2])
