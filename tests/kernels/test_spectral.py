"""Balanced tails: weights that keep every mean, far draws that plain sampling never makes, exact quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.special import gammaincinv

from gigagp.errors import InvalidInputError
from gigagp.kernels.spectral import SMALLEST_TAIL, lower_gamma_quantile, tail_probabilities, upper_gamma_quantile
from helpers import generator, within_standard_errors

#: functions of the tail probability whose integral over (0, 1) is known; the last are those that rough samples live on
INTEGRALS = {
    "one": (lambda p: torch.ones_like(p), 1.0),
    "p": (lambda p: p, 0.5),
    "far half": (lambda p: (p > 0.5).double(), 0.5),
    "root": (lambda p: p**-0.5, 2.0),
    "thousandth": (lambda p: 1e3 * (p < 1e-3).double(), 1.0),
    # what lies beyond the smallest tail is not looked for: it is in the mean, but no few hundred draws see it
    "hundred thousandth": (lambda p: 1e5 * ((p < 1e-5) & (p >= SMALLEST_TAIL)).double(), 1 - 1e5 * SMALLEST_TAIL),
}


def means(function, *, balanced, n=100, repeats=400):
    found = []
    for seed in range(repeats):
        probability, weight = tail_probabilities(n, generator(seed), balanced=balanced)
        found.append((weight * function(probability)).mean())
    return torch.stack(found)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", INTEGRALS)
@pytest.mark.parametrize("n", [2, 7, 100])
def test_weighted_means_are_unbiased(name, n):
    function, expected = INTEGRALS[name]
    assert within_standard_errors(means(function, balanced=True, n=n), expected + 1e-12 * (name == "one"), errors=4.5)


def test_without_their_weights_they_are_not():
    """The control: half of the draws are far out on purpose."""
    unweighted = torch.stack([tail_probabilities(100, generator(s), balanced=True)[0].mean() for s in range(100)])
    assert not within_standard_errors(unweighted, 0.5)


@pytest.mark.parametrize("name", ["thousandth", "hundred thousandth"])
def test_far_tails_are_seen_far_better(name):
    function, _ = INTEGRALS[name]
    spread = {balanced: float(means(function, balanced=balanced).std()) for balanced in (True, False)}
    assert spread[True] < 0.1 * spread[False]


def test_no_weight_is_above_two_and_plain_draws_have_weight_one():
    probability, weight = tail_probabilities(1000, generator(), balanced=True)
    assert probability.shape == weight.shape == (1000, 1)
    assert bool(((probability > 0) & (probability <= 1)).all())
    assert bool(((weight > 0) & (weight <= 2)).all())
    assert float(probability.min()) < 10 * SMALLEST_TAIL
    assert bool((tail_probabilities(1000, generator(), balanced=False)[1] == 1).all())


def test_the_order_is_random():
    """Leaves of a product pair their draws by position: an order would make them dependent."""
    first = tail_probabilities(2000, generator(1), balanced=True)[0][:, 0]
    second = tail_probabilities(2000, generator(2), balanced=True)[0][:, 0]
    correlation = float(torch.corrcoef(torch.stack([first.log(), second.log()]))[0, 1])
    assert abs(correlation) < 4 / math.sqrt(2000)
    ordered = torch.corrcoef(torch.stack([first.sort().values.log(), second.sort().values.log()]))[0, 1]
    assert float(ordered) > 0.99


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.5])
def test_quantiles_invert_the_gamma_distribution(shape):
    probability = torch.tensor([1e-9, 1e-3, 0.2, 0.9]).double()
    law = scipy.stats.gamma(shape)
    at = torch.tensor(shape)
    assert law.sf(upper_gamma_quantile(probability, at).numpy()) == pytest.approx(probability.numpy(), rel=1e-6)
    assert law.cdf(lower_gamma_quantile(probability, at).numpy()) == pytest.approx(probability.numpy(), rel=1e-6)


@pytest.mark.parametrize("shape", [0.5, 1.5, 2.5])
def test_lower_quantiles_have_twelve_digits_in_both_tails(shape):
    """Beside what SciPy inverts; between the nodes of the table as well as on them."""
    small = 10.0 ** -torch.linspace(0.3, 16, 2001, dtype=torch.float64)
    probability = torch.cat(
        [small, torch.linspace(1e-3, 1 - 1e-3, 4001, dtype=torch.float64), 1 - small[small > 2e-16]]
    )
    found = lower_gamma_quantile(probability[:, None], torch.tensor(shape))[:, 0].numpy()
    expected = gammaincinv(shape, probability.numpy())
    assert np.abs(found / expected - 1).max() < 1e-12


def test_a_lost_derivative_is_refused():
    with pytest.raises(InvalidInputError, match="not differentiable in its shape"):
        lower_gamma_quantile(torch.tensor([0.5]).double(), torch.tensor(1.0, requires_grad=True))


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 4.5, 60.0])
def test_the_upper_quantile_has_a_derivative_in_the_shape(shape):
    probability = torch.tensor([1e-9, 1e-3, 0.2, 0.5, 0.9, 0.999]).double()
    at = torch.tensor(shape, dtype=torch.float64, requires_grad=True)
    values = upper_gamma_quantile(probability, at)
    slopes = torch.stack([torch.autograd.grad(value, at, retain_graph=True)[0] for value in values])
    step = 1e-4 * shape  # five points, as wide as the quantile itself is steep
    moved = {i: upper_gamma_quantile(probability, at.detach() + i * step) for i in (-2, -1, 1, 2)}
    difference = (moved[-2] - 8 * moved[-1] + 8 * moved[1] - moved[2]) / (12 * step)
    assert slopes.numpy() == pytest.approx(difference.numpy(), rel=1e-6, abs=1e-200)


def test_the_derivative_of_a_gamma_of_shape_one_is_known():
    """Against mpmath's d/da of the regularised incomplete gamma function at a = 1 (30 digits)."""
    probability = torch.tensor([0.5], dtype=torch.float64)
    at = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(upper_gamma_quantile(probability, at), at)
    assert float(slope) == pytest.approx(0.96804483044204449, rel=1e-9)
